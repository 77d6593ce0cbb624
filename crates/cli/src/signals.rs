//! The signals that a process which holds or waits for a lock takes notice of.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// Signals as they come. Those that were ignored when the process was started (by `nohup`, or by a
/// shell for its background jobs) stay ignored, for the command as well.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Everything that concerns a command in the foreground.
    pub(crate) fn of_the_supervisor() -> io::Result<Self> {
        Self::of(&[
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
            Signal::WINCH,
            Signal::TSTP,
            Signal::CONT,
        ])
    }

    /// What asks a process to end.
    pub(crate) fn of_the_guardian() -> io::Result<Self> {
        Self::of(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT])
    }

    /// What asks a server to end.
    pub(crate) fn of_a_server() -> io::Result<Self> {
        Self::of(&[Signal::INT, Signal::TERM])
    }

    fn of(wanted: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let is_ignored = |signal: Signal| ignored & (1 << (signal.as_raw() - 1)) != 0;
        let streams = wanted
            .iter()
            .filter(|signal| !is_ignored(**signal))
            .map(|signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()?;
        Ok(Self { streams })
    }

    /// The next one. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that asks the process to end. On the way, Ctrl-Z stops it as usual.
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::TSTP => stop_self(),
                signal @ (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT) => {
                    return signal;
                }
                _ => {}
            }
        }
    }
}

/// Stops this process, as Ctrl-Z would. Returns when it is continued.
pub(crate) fn stop_self() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// The set of ignored signals, as the system tells it: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
