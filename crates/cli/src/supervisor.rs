//! The command under its lock: what `lockkeeper lock` does between the grant and the release.
//!
//! The supervisor keeps the lease alive and tells the guardian when it would be lost; the guardian
//! ([`crate::guardian`]) runs the command and stops it. Whatever wakes the supervisor, it looks at
//! the lease first: after a stop or a suspend nothing of the command is continued before that.

use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use lockkeeper::clock::{Alarm, Boottime, Clock, SystemClock};
use lockkeeper::{Guard, LossReason, State};
use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper};
use tokio::process::{Child, Command};

use crate::exit::{Failure, Reason};
use crate::guardian::channel::{self, Begin, Channel, Ended, Order, Report, Stopped, Why};
use crate::guardian::family::kill_orphaned_group;
use crate::guardian::{OnLost, now};
use crate::progress::Progress;
use crate::signals::{Signals, stop_self};
use crate::text;

/// Numbers of `errno` that mean that a command isn't there.
const NO_COMMAND: [i32; 2] =
    [rustix::io::Errno::NOENT.raw_os_error(), rustix::io::Errno::NOTDIR.raw_os_error()];

/// What is to be run, and how it is stopped.
pub(crate) struct Job<'a> {
    pub(crate) command: &'a [OsString],
    /// What the command finds in its environment, whatever it inherits.
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) grace: Duration,
    pub(crate) signal: Signal,
    pub(crate) on_lost: OnLost,
    pub(crate) max_hold: Option<Duration>,
}

/// Runs the command to its end and returns its exit code.
///
/// # Errors
///
/// [`Failure`] if it couldn't be started, or was made to stop.
pub(crate) async fn run(
    job: &Job<'_>,
    guard: &Guard,
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<u8, Failure> {
    let mut supervisor = Supervisor::start(job, guard, progress)
        .map_err(|error| Failure::new(Reason::Internal, format!("the guardian: {error}")))?;
    let ended = supervisor.supervise(signals).await;
    // From here on the caller ends the session.
    let _ = supervisor.channel.send(&Order::Done, None);
    let _ = supervisor.guardian.wait().await;
    ended
}

struct Supervisor<'a> {
    job: &'a Job<'a>,
    guard: &'a Guard,
    progress: &'a mut Progress,
    channel: Channel,
    guardian: Child,
    /// The command's process group, once it runs.
    group: Option<Pid>,
    /// Why the command must stop, or should have.
    cause: Option<Cause>,
    alarm: Box<dyn Alarm>,
    max_hold_at: Option<Boottime>,
}

/// Why the lock is at an end before the command.
#[derive(Clone, Copy, Debug)]
enum Cause {
    Lost(LossReason),
    Revoked,
    MaxHold,
}

impl<'a> Supervisor<'a> {
    fn start(job: &'a Job<'a>, guard: &'a Guard, progress: &'a mut Progress) -> io::Result<Self> {
        // If the guardian should be killed, its orphans fall to this process.
        set_child_subreaper(Some(getpid()))?;
        let (ours, theirs) = channel::pair()?;
        let guardian = Command::new("/proc/self/exe")
            .arg0("lockkeeper-guardian")
            .args(["guardian", "--"])
            .args(job.command)
            .envs(job.variables.iter().map(|(name, value)| (name, value)))
            .stdin(theirs)
            .spawn()?;
        let channel = Channel::new(ours)?;
        let session = guard.session();
        let begin = Begin {
            url: session.url,
            session: session.id.0,
            secret: session.secret,
            deadline_ns: guard.deadline_boottime_ns(),
            grace: job.grace,
            signal: job.signal.as_raw(),
            on_lost: job.on_lost.clone(),
        };
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        channel.send(&Order::Begin(begin), Some(&stdin))?;
        let alarm = SystemClock.alarm()?;
        let max_hold_at = job.max_hold.map(|limit| now() + limit);
        let (group, cause) = (None, None);
        Ok(Self { job, guard, progress, channel, guardian, group, cause, alarm, max_hold_at })
    }

    async fn supervise(&mut self, signals: &mut Signals) -> Result<u8, Failure> {
        let mut deadline = self.guard.watch_deadline();
        deadline.mark_changed();
        loop {
            self.look_at_the_lease();
            let (next, alarm) = (self.next_moment(), &mut self.alarm);
            tokio::select! {
                biased;
                report = self.channel.receive() => match report {
                    Ok(Some((Report::Started(group), _))) => self.group = Pid::from_raw(group),
                    Ok(Some((Report::NotStarted { errno, message }, _))) => {
                        return Err(self.not_started(errno, &message));
                    }
                    Ok(Some((Report::Lingers, _))) => self.progress.note(
                        "the command has ended; waiting for processes that it left running",
                    ),
                    Ok(Some((Report::Ended(ended), _))) => return self.verdict(ended),
                    Ok(None) | Err(_) => return Err(self.guardian_is_gone().await),
                },
                () = poll_fn(|cx| alarm.poll_at(next, cx)) => self.ring(),
                reason = self.guard.lost(), if self.cause.is_none() => self.lose(reason),
                () = self.guard.revoked(), if self.cause.is_none() => self.revoke(),
                Ok(()) = deadline.changed() => {
                    let deadline = deadline.borrow_and_update().as_nanos();
                    self.order(&Order::Deadline(deadline));
                }
                signal = signals.next() => self.pass_on(signal),
            }
        }
    }

    fn look_at_the_lease(&mut self) {
        if self.cause.is_none()
            && let State::Lost(reason) = self.guard.state()
        {
            self.lose(reason);
        }
    }

    fn lose(&mut self, reason: LossReason) {
        self.end(Cause::Lost(reason));
        if self.job.on_lost == OnLost::Warn {
            let told = format!("LOST: {reason}. The command runs on without the lock");
            self.progress.warn(&told);
        }
    }

    fn revoke(&mut self) {
        // It completes at a loss, too.
        if let State::Lost(reason) = self.guard.state() {
            return self.lose(reason);
        }
        self.end(Cause::Revoked);
        if self.job.on_lost == OnLost::Warn {
            let left = text::seconds(self.guard.remaining());
            let told =
                format!("an operator asks for it back; it passes on in {left} at the latest");
            self.progress.warn(&told);
        }
    }

    fn end(&mut self, cause: Cause) {
        self.cause = Some(cause);
        if self.job.on_lost != OnLost::Warn || matches!(cause, Cause::MaxHold) {
            self.order(&Order::Stop);
        }
    }

    /// The next moment at which the clock alone makes a difference.
    fn next_moment(&self) -> Boottime {
        let never = Boottime::from_nanos(u64::MAX);
        match self.cause {
            None => self.max_hold_at.unwrap_or(never),
            Some(_) if self.job.on_lost == OnLost::Warn || self.group.is_none() => never,
            Some(_) => Boottime::from_nanos(self.guard.deadline_boottime_ns()),
        }
    }

    fn ring(&mut self) {
        match (self.cause, self.group) {
            (None, _) => self.end(Cause::MaxHold),
            // The guardian kills at this very moment. It may have been stopped; then nobody else
            // does. Its child keeps the group's number while it isn't reaped.
            (Some(_), Some(group)) => {
                let _ = kill_process_group(group, Signal::KILL);
                self.group = None;
            }
            (Some(_), None) => {}
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        // It may be the one that continues this process: then the lease comes first.
        self.look_at_the_lease();
        if matches!(self.cause, Some(Cause::Lost(_))) && self.job.on_lost != OnLost::Warn {
            return;
        }
        self.order(&Order::Signal(signal.as_raw()));
        if signal == Signal::TSTP {
            self.progress.note(&format!(
                "stopped, and so is the renewal: the lock is lost, and the command killed, in {}",
                text::seconds(self.guard.remaining())
            ));
            stop_self();
        }
    }

    /// Nothing can be done about an order that doesn't arrive: the guardian is gone, which is
    /// noticed, or has been stopped.
    fn order(&self, order: &Order) {
        let _ = self.channel.send(order, None);
    }

    fn verdict(&self, ended: Ended) -> Result<u8, Failure> {
        let Some(stopped) = ended.stopped else { return Ok(ended.code) };
        // The report may be read before the loss is, for instance after a stop of this process.
        let cause = self.cause.or_else(|| match self.guard.state() {
            State::Lost(reason) => Some(Cause::Lost(reason)),
            State::Held | State::Suspended { .. } => None,
        });
        let how = self.how(stopped);
        let (reason, what) = match (cause, stopped.why) {
            (Some(Cause::Lost(reason)), _) => (Reason::Lost, format!("LOST: {reason}")),
            (Some(Cause::Revoked), _) => {
                (Reason::Revoked, "REVOKED: an operator asked for it back".to_owned())
            }
            (Some(Cause::MaxHold), _) => {
                let limit = humantime::format_duration(self.job.max_hold.unwrap_or_default());
                (Reason::MaxHold, format!("held for {limit} (--max-hold)"))
            }
            (None, Why::LeaseRanOut) => {
                let ttl = self.guard.session().ttl;
                let since = text::seconds(ttl.saturating_sub(self.guard.remaining()));
                (Reason::Lost, format!("LOST: no renewal was confirmed for {since}"))
            }
            // Somebody wanted the command to end, and it has.
            (None, Why::Ordered | Why::Orphaned | Why::Signalled) => return Ok(ended.code),
        };
        let ttl = humantime::format_duration(self.guard.session().ttl);
        let lease = if reason == Reason::Lost { format!(" (lease {ttl})") } else { String::new() };
        Err(Failure::new(reason, format!("{what}{lease}. {how}")))
    }

    fn how(&self, stopped: Stopped) -> String {
        let signal = if stopped.killed { "KILL" } else { self.first_signal() };
        format!("Stopped the command ({signal}, {})", text::seconds(stopped.took))
    }

    fn first_signal(&self) -> &'static str {
        match self.job.signal {
            Signal::TERM => "TERM",
            Signal::INT => "INT",
            Signal::HUP => "HUP",
            Signal::QUIT => "QUIT",
            Signal::KILL => "KILL",
            Signal::USR1 => "USR1",
            Signal::USR2 => "USR2",
            _ => "first signal",
        }
    }

    fn not_started(&self, errno: i32, message: &str) -> Failure {
        let program = self.job.command.first().map(|name| name.to_string_lossy().into_owned());
        let program = program.unwrap_or_default();
        let program = text::Printable(&program);
        if errno == 0 {
            let what = format!("the command was not started: {message}");
            return Failure::new(Reason::Lost, what).advise("Use a longer --ttl.");
        }
        let is_absent = NO_COMMAND.contains(&errno);
        let reason = if is_absent { Reason::NoCommand } else { Reason::NotExecutable };
        Failure::new(reason, format!("can't run {program}: {message}"))
    }

    /// The guardian was killed: its children are this process's now.
    async fn guardian_is_gone(&mut self) -> Failure {
        let _ = self.guardian.wait().await;
        if let Some(group) = self.group {
            kill_orphaned_group(group);
        }
        let what = "the guardian of the command is gone. Killed the command";
        Failure::new(Reason::Internal, what)
            .advise("Kill `lockkeeper lock` rather than its guardian: it stops the command first.")
    }
}
