//! The guardian: a small process of its own between `lockkeeper lock` (the supervisor) and the
//! command that runs under the lock.
//!
//! It lives in a session of its own, so that nothing that happens to the supervisor's terminal or
//! process group happens to it, and it is a subreaper, so that nothing of the command gets out of
//! its reach by losing its parent. It shares two things with the supervisor: a pipe, and the
//! moment at which the lease is lost, on the clock that counts suspend.
//!
//! # Guarantees
//!
//! - **Armed first.** The command is started after the deadline is known, and not at all if too
//!   little of the lease is left.
//! - **Stopped in time.** When the lease isn't renewed, the command gets the first signal at the
//!   deadline less the grace, and everything that is left of it KILL at the deadline: before the
//!   lock can pass on. It doesn't matter whether the supervisor runs, was stopped, or sleeps.
//! - **Never orphaned.** When the supervisor dies, the pipe ends, and the command is stopped at
//!   once.
//! - **Then released.** Once the last process is gone, the guardian ends the session, if the
//!   supervisor can't: takeover waits for no lease.
//!
//! Not promised: anything if supervisor *and* guardian are killed or stopped together. Only what
//! compares fencing tokens is safe then. And the session of its own has a price: the command reads
//! from and writes to the terminal, but it has no controlling one, so that `/dev/tty` and a
//! shell's job control are not for it.

pub(crate) mod channel;
pub(crate) mod family;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use lockkeeper::SessionId;
use lockkeeper::clock::{Alarm, Boottime, Clock, SystemClock};
use rustix::process::{Signal, getpid, set_child_subreaper, setsid};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use self::channel::{Begin, Channel, Ended, Order, Report, Stopped, Why};
use self::family::Family;
use crate::exit::Failure;
use crate::signals::Signals;

/// What happens to the command when its lock is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnLost {
    /// It is stopped before the lease may pass on.
    Kill,
    /// It runs on; people are told.
    Warn,
    /// This shell command is run instead of the first signal; what is left is killed in time.
    Exec(String),
}

/// The guardian's whole life. Its standard input is the pipe.
pub(crate) async fn run(command: &[OsString]) -> Result<u8, Failure> {
    // The supervisor reads the end of the pipe, and says what it means.
    Ok(guard(command).await.map_or(1, |()| 0))
}

async fn guard(command: &[OsString]) -> io::Result<()> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let channel = Channel::new(io::stdin().as_fd().try_clone_to_owned()?)?;
    // Before the command exists, so that no end is missed.
    let mut ends = signal(SignalKind::child())?;
    let mut signals = Signals::of_the_guardian()?;

    let Some((Order::Begin(begin), Some(stdin))) = channel.receive().await? else { return Ok(()) };
    let first_signal = Signal::from_named_raw(begin.signal).unwrap_or(Signal::TERM);
    let alarm = SystemClock.alarm()?;
    let deadline = Boottime::from_nanos(begin.deadline_ns);
    if begin.on_lost != OnLost::Warn && now() >= minus(deadline, begin.grace) {
        let message = "too little of the lease was left".to_owned();
        return channel.send(&Report::NotStarted { errno: 0, message }, None);
    }
    let family = match Family::start(command, stdin) {
        Ok(family) => family,
        Err(error) => {
            let (errno, message) = (error.raw_os_error().unwrap_or(0), error.to_string());
            return channel.send(&Report::NotStarted { errno, message }, None);
        }
    };
    // If nobody reads it, the end of the pipe is noticed below.
    let _ = channel.send(&Report::Started(family.leader().as_raw_pid()), None);

    let mut guardian = Guardian {
        channel,
        begin,
        first_signal,
        alarm,
        family,
        deadline,
        stop: None,
        is_alone: false,
    };
    let ended = guardian.watch(&mut ends, &mut signals).await?;
    let _ = guardian.channel.send(&Report::Ended(ended), None);
    guardian.release(ended).await
}

struct Guardian {
    channel: Channel,
    begin: Begin,
    first_signal: Signal,
    alarm: Box<dyn Alarm>,
    family: Family,
    /// When the lease is lost.
    deadline: Boottime,
    stop: Option<Stop>,
    /// The supervisor is gone.
    is_alone: bool,
}

/// The command is being made to end.
#[derive(Clone, Copy, Debug)]
struct Stop {
    why: Why,
    since: Boottime,
    kill_at: Boottime,
    is_killing: bool,
}

impl Guardian {
    /// Watches until the command and its group are gone.
    async fn watch(
        &mut self,
        ends: &mut tokio::signal::unix::Signal,
        signals: &mut Signals,
    ) -> io::Result<Ended> {
        let mut has_lingered = false;
        loop {
            // The clock comes first, whatever woke this process: it may have slept.
            self.look_at_the_clock();
            self.family.reap();
            if self.is_over() {
                return Ok(self.ended());
            }
            if self.stop.is_some_and(|stop| stop.is_killing) {
                self.family.kill();
            }
            if self.family.leader_code().is_some() && !has_lingered && self.stop.is_none() {
                has_lingered = true;
                let _ = self.channel.send(&Report::Lingers, None);
            }
            let (next, alarm) = (self.next_moment(), &mut self.alarm);
            tokio::select! {
                biased;
                () = std::future::poll_fn(|cx| alarm.poll_at(next, cx)) => {}
                _ = ends.recv() => {}
                order = self.channel.receive(), if !self.is_alone => match order {
                    Ok(Some((order, _))) => self.obey(&order),
                    Ok(None) | Err(_) => {
                        self.is_alone = true;
                        self.begin_to_stop(Why::Orphaned);
                    }
                },
                // Somebody wants the guardian itself to end.
                _ = signals.next() => self.begin_to_stop(Why::Signalled),
            }
        }
    }

    fn obey(&mut self, order: &Order) {
        match *order {
            Order::Deadline(deadline_ns) => self.deadline = Boottime::from_nanos(deadline_ns),
            Order::Signal(number) => match Signal::from_named_raw(number) {
                // The command has ended; what it left running may not even hear an INT.
                Some(Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)
                    if self.family.leader_code().is_some() =>
                {
                    self.begin_to_stop(Why::Signalled);
                }
                Some(signal) => self.family.signal(signal),
                None => {}
            },
            Order::Stop => self.begin_to_stop(Why::Ordered),
            // It began long ago, and isn't done.
            Order::Begin(_) | Order::Done => {}
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = now();
        match &mut self.stop {
            Some(stop) if now >= stop.kill_at => stop.is_killing = true,
            Some(_) => {}
            None if self.begin.on_lost == OnLost::Warn => {}
            None if now >= minus(self.deadline, self.begin.grace) => {
                self.begin_to_stop(Why::LeaseRanOut);
                // It may have slept through the grace as well.
                self.look_at_the_clock();
            }
            None => {}
        }
    }

    /// When there is something to do by the clock.
    fn next_moment(&self) -> Boottime {
        match self.stop {
            Some(stop) if stop.is_killing => never(),
            Some(stop) => stop.kill_at,
            None if self.begin.on_lost == OnLost::Warn => never(),
            None => minus(self.deadline, self.begin.grace),
        }
    }

    fn begin_to_stop(&mut self, why: Why) {
        if self.stop.is_some() {
            return;
        }
        let now = now();
        let kill_at = match self.begin.on_lost {
            // The lease may be over already; that is no reason to hurry.
            OnLost::Warn => now + self.begin.grace,
            OnLost::Kill | OnLost::Exec(_) => (now + self.begin.grace).min(self.deadline),
        };
        self.stop = Some(Stop { why, since: now, kill_at, is_killing: now >= kill_at });
        match &self.begin.on_lost {
            OnLost::Exec(command) if self.run_instead(command).is_ok() => {}
            OnLost::Exec(_) | OnLost::Kill | OnLost::Warn => {
                self.family.ask_to_end(self.first_signal);
            }
        }
    }

    /// Runs the user's own way to stop the command. It ends with the rest of the family.
    fn run_instead(&self, command: &str) -> io::Result<()> {
        std::process::Command::new("/bin/sh")
            .args(["-c", command])
            .env("LOCKKEEPER_PID", self.family.leader().as_raw_pid().to_string())
            .stdin(std::process::Stdio::null())
            .spawn()
            .map(drop)
    }

    /// A command that ends by itself may leave daemons, which have left its group on purpose; one
    /// that is stopped leaves nothing.
    fn is_over(&self) -> bool {
        if self.stop.is_some() { self.family.is_extinct() } else { self.family.group_is_empty() }
    }

    fn ended(&self) -> Ended {
        let stopped = self.stop.map(|stop| {
            let Stop { why, since, is_killing: killed, .. } = stop;
            Stopped { why, killed, took: now().since(since) }
        });
        Ended { code: self.family.leader_code().unwrap_or(u8::MAX), stopped }
    }

    /// Leaves the release to the supervisor, unless it is gone, or let the lease run out: then it
    /// may be standing still.
    async fn release(&mut self, ended: Ended) -> io::Result<()> {
        let ran_out = ended.stopped.is_some_and(|stopped| stopped.why == Why::LeaseRanOut);
        if !self.is_alone && !ran_out {
            match until_done(&self.channel).await {
                Parting::Done => return Ok(()),
                Parting::Gone => self.is_alone = true,
            }
        }
        let Begin { url, session, secret, .. } = &self.begin;
        let ended = lockkeeper::end_session(url, SessionId(*session), *secret);
        if self.is_alone {
            return ended.await.map_err(io::Error::other);
        }
        tokio::select! {
            ended = ended => ended.map_err(io::Error::other),
            // A supervisor that dies meanwhile changes nothing.
            Parting::Done = until_done(&self.channel) => Ok(()),
        }
    }
}

/// How a supervisor takes its leave.
enum Parting {
    /// It ends the session itself.
    Done,
    /// It is gone.
    Gone,
}

async fn until_done(channel: &Channel) -> Parting {
    loop {
        match channel.receive().await {
            Ok(Some((Order::Done, _))) => return Parting::Done,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Parting::Gone,
        }
    }
}

/// Now, on the clock that leases are counted on.
pub(crate) fn now() -> Boottime {
    SystemClock.now().boottime
}

/// The moment `duration` before `moment`.
pub(crate) fn minus(moment: Boottime, duration: Duration) -> Boottime {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Boottime::from_nanos(moment.as_nanos().saturating_sub(nanos))
}

const fn never() -> Boottime {
    Boottime::from_nanos(u64::MAX)
}
