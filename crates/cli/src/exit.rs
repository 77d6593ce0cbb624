//! How the program ends: every exit code, every stable code of an error, in one table.
//!
//! A command's own exit code passes through (128+N for signal N). The program's own failures use
//! numbers of `sysexits.h`, so that they rarely collide with it.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use lockkeeper::views::Hold;
use lockkeeper::{Error, LossReason, RefusedCode};

use crate::text::{Printable, person, rounded};

/// Why the program failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The command line can't be meant.
    Usage,
    /// A name or a number that the cluster refuses.
    BadRequest,
    /// What was named isn't there.
    NotFound,
    /// The lock wasn't free in time.
    Timeout,
    /// The lock is held, and waiting wasn't asked for.
    Busy,
    /// The lock is in use in another way.
    ModeConflict,
    /// A limit of the cluster.
    Limit,
    /// The hold that was named is gone.
    StaleToken,
    /// The members can't be changed so, now.
    Membership,
    /// No server can be reached.
    Unreachable,
    /// A server was reached, but no majority.
    NoQuorum,
    /// A server was reached, but can't serve now.
    Unavailable,
    /// The session was lost while it waited.
    PlaceLost,
    /// It isn't known whether something was done.
    UnknownOutcome,
    /// Something else listens there.
    Protocol,
    /// The lock was lost while the command ran.
    Lost,
    /// An operator took the lock away.
    Revoked,
    /// `--max-hold` is over.
    MaxHold,
    /// The command isn't executable.
    NotExecutable,
    /// There is no such command.
    NoCommand,
    /// A wrong secret.
    Denied,
    /// Settings that can't be used.
    Config,
    /// No servers are configured, and nobody looks on.
    NoUrl,
    /// An address can't be listened on.
    Listen,
    /// Another process has the data directory.
    InUse,
    /// A file can't be had.
    Io,
    /// The node became unfit.
    Fault,
    /// A fault of the program.
    Internal,
    /// Whoever read our answers has gone, as `head` does. That needs no message.
    ReaderGone,
    /// A signal while it waited; holds its number.
    Interrupted(u8),
}

impl Reason {
    /// The exit code, and the stable code at the end of the message.
    const fn codes(self) -> (u8, &'static str) {
        match self {
            Self::Usage => (64, "LK-USAGE"),
            Self::BadRequest => (64, "LK-BAD-REQUEST"),
            Self::NotFound => (64, "LK-NOT-FOUND"),
            Self::Unreachable => (69, "LK-UNREACHABLE"),
            Self::NoQuorum => (69, "LK-NO-QUORUM"),
            Self::Unavailable => (69, "LK-UNAVAILABLE"),
            Self::PlaceLost => (69, "LK-PLACE-LOST"),
            Self::UnknownOutcome => (69, "LK-UNKNOWN-OUTCOME"),
            Self::Protocol => (69, "LK-PROTOCOL"),
            Self::Listen => (69, "LK-LISTEN"),
            Self::InUse => (69, "LK-IN-USE"),
            Self::Internal => (70, "LK-INTERNAL"),
            Self::Io => (74, "LK-IO"),
            Self::Fault => (74, "LK-FAULT"),
            Self::Timeout => (75, "LK-TIMEOUT"),
            Self::Busy => (75, "LK-BUSY"),
            Self::ModeConflict => (75, "LK-MODE-CONFLICT"),
            Self::Limit => (75, "LK-LIMIT"),
            Self::StaleToken => (75, "LK-STALE-TOKEN"),
            Self::Membership => (75, "LK-MEMBERSHIP"),
            Self::Lost => (76, "LK-LOST"),
            Self::Revoked => (76, "LK-REVOKED"),
            Self::MaxHold => (76, "LK-MAX-HOLD"),
            Self::Denied => (77, "LK-DENIED"),
            Self::Config => (78, "LK-CONFIG"),
            Self::NoUrl => (78, "LK-NO-URL"),
            Self::NotExecutable => (126, "LK-NOT-EXECUTABLE"),
            Self::NoCommand => (127, "LK-NO-COMMAND"),
            Self::ReaderGone => (141, "LK-READER-GONE"),
            Self::Interrupted(signal) => (128 + signal, "LK-INTERRUPTED"),
        }
    }
}

impl Reason {
    /// The stable code of this reason.
    pub(crate) const fn code(self) -> &'static str {
        self.codes().1
    }

    pub(crate) const fn exit_code(self) -> u8 {
        self.codes().0
    }
}

/// A failure as people read it: what happened, to which lock, the evidence, what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    /// What happened, with the evidence; a sentence without its full stop.
    what: String,
    /// What to do; empty if there is nothing.
    advice: String,
    /// Another exit code than the reason's.
    exit_code: Option<u8>,
}

impl Failure {
    pub(crate) fn new(reason: Reason, what: impl Into<String>) -> Self {
        Self { reason, what: what.into(), advice: String::new(), exit_code: None }
    }

    /// What to do about it, in a sentence.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    /// Ends with this code (`-E`).
    pub(crate) const fn with_exit_code(mut self, code: u8) -> Self {
        self.exit_code = Some(code);
        self
    }

    /// Whether the lock just wasn't to be had, for `-E`.
    pub(crate) const fn is_conflict(&self) -> bool {
        matches!(self.reason, Reason::Timeout | Reason::Busy | Reason::ModeConflict)
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_code.unwrap_or_else(|| self.reason.exit_code()))
    }

    /// Says it on stderr, if that is needed.
    pub(crate) fn print(&self) {
        if self.reason != Reason::ReaderGone {
            // Nobody can be told that stderr is gone.
            let _ = writeln!(io::stderr(), "{self}");
        }
    }

    /// Puts the lock's name before what happened.
    pub(crate) fn about(mut self, lock: &str) -> Self {
        self.what = format!("{}: {}", Printable(lock), self.what);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.reason.code();
        let what = self.what.trim_end_matches('.');
        if self.advice.is_empty() {
            write!(f, "lockkeeper: {what}. [{code}]")
        } else {
            write!(f, "lockkeeper: {what}.\n  {} [{code}]", self.advice)
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::new(Reason::Internal, format!("{error:#}")),
        }
    }
}

/// Waiting for a signal or writing to a terminal has failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let is_reader_gone = error.kind() == io::ErrorKind::BrokenPipe;
        let reason = if is_reader_gone { Reason::ReaderGone } else { Reason::Io };
        Self::new(reason, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let reason = reason_of(&error);
        match &error {
            Error::TimedOut { lock, waited, place, holder } => {
                let (lock, by) = (Printable(lock), by(holder.as_deref()));
                let waited = humantime::format_duration(rounded(*waited));
                let place =
                    place.map_or_else(String::new, |place| format!(" (place {place} in line)"));
                let what = format!("not acquired: {lock} is still held{by} after {waited}{place}");
                Self::new(reason, what)
                    .advise(format!("See `lockkeeper who {lock}`; or use a longer --wait."))
            }
            Error::Busy { lock, holder } => {
                let (lock, by) = (Printable(lock), by(holder.as_deref()));
                Self::new(reason, format!("not acquired: {lock} is held{by}"))
                    .advise(format!("See `lockkeeper who {lock}`; to wait, use --wait 10m."))
            }
            Error::NoQuorum { reached, of } => {
                let what =
                    format!("no majority: the server that answered reaches {reached} of {of}");
                Self::new(reason, what)
                    .advise("Nothing was acquired or changed. Look at the other servers.")
            }
            Error::Unreachable { .. } => Self::new(reason, error.to_string()).advise(
                "Nothing was acquired or changed. Is the URL right (--url, LOCKKEEPER_URL), and \
                 does a server run there?",
            ),
            Error::Unknown { .. } => {
                Self::new(reason, error.to_string()).advise("Look before trying again.")
            }
            _ => Self::new(reason, error.to_string()),
        }
    }
}

/// ` by alice@build-7 (pid 4121)`, if that is known.
fn by(holder: Option<&Hold>) -> String {
    holder.map_or_else(String::new, |hold| format!(" by {}", person(hold)))
}

fn reason_of(error: &Error) -> Reason {
    match error {
        Error::TimedOut { .. } => Reason::Timeout,
        Error::Busy { .. } => Reason::Busy,
        Error::Lost(LossReason::Revoked) => Reason::Revoked,
        Error::Lost(_) => Reason::Lost,
        Error::NoQuorum { .. } => Reason::NoQuorum,
        Error::Unreachable { .. } => Reason::Unreachable,
        Error::Unavailable { .. } => Reason::Unavailable,
        Error::Unknown { .. } => Reason::UnknownOutcome,
        Error::Protocol { .. } => Reason::Protocol,
        Error::Config(_) => Reason::Config,
        Error::Refused(refused) => match refused.code {
            RefusedCode::InvalidName | RefusedCode::BadPermits | RefusedCode::BadRequest => {
                Reason::BadRequest
            }
            RefusedCode::UnknownSession | RefusedCode::NotFound => Reason::NotFound,
            RefusedCode::WrongSecret => Reason::Denied,
            RefusedCode::LimitReached => Reason::Limit,
            RefusedCode::ModeConflict => Reason::ModeConflict,
            RefusedCode::NotHeld => Reason::Lost,
            RefusedCode::StaleToken => Reason::StaleToken,
            RefusedCode::Revoked => Reason::Revoked,
            RefusedCode::Membership => Reason::Membership,
            _ => Reason::Internal,
        },
        _ => Reason::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_happened_then_what_to_do_then_its_code() {
        let failure = Failure::new(Reason::NoUrl, "no servers are configured").advise("Set one.");
        assert_eq!(
            failure.to_string(),
            "lockkeeper: no servers are configured.\n  Set one. [LK-NO-URL]"
        );
        let failure = Failure::from(Error::Config("bad".to_owned())).about("a\u{1b}[2Jb");
        assert_eq!(failure.to_string(), "lockkeeper: a\\u{1b}[2Jb: bad. [LK-CONFIG]");
    }
}
