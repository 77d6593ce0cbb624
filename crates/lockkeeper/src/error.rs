//! What can go wrong, sorted by who can do something about it.

use std::fmt;
use std::time::Duration;

use crate::views::{Hold, Mode};

/// Why a call failed. Nothing is guessed: where the outcome isn't known,
/// [`Error::outcome_is_unknown`] says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock wasn't free within `wait_at_most`. The place in the queue has been given up.
    /// Trying again helps when the holder is done.
    #[error("{}", timed_out(.lock, *.waited, *.place, .holder.as_deref()))]
    TimedOut {
        /// Which lock.
        lock: String,
        /// How long this request waited.
        waited: Duration,
        /// Its place in line at the end, 1 for the next; `None` if it never got one.
        place: Option<u32>,
        /// The oldest hold at the end, if the server could still be asked.
        holder: Option<Box<Hold>>,
    },
    /// The lock is held, and waiting wasn't asked for. Trying again helps when the holder is done.
    #[error("{lock} is held{}", by(.holder.as_deref()))]
    Busy {
        /// Which lock.
        lock: String,
        /// The oldest hold.
        holder: Option<Box<Hold>>,
    },
    /// The lease is over: what was held may be held by somebody else, and places in line are gone.
    /// The next `lock` starts with a new session, so trying again helps once servers are reached.
    #[error("lost: {0}")]
    Lost(LossReason),
    /// Servers were reached, but not a majority of them. Nothing was acquired. Trying again helps
    /// when the majority is back.
    #[error("no majority: the server reaches {reached} of {of}. Nothing was acquired")]
    NoQuorum {
        /// Voting servers that the asked one reaches, itself included.
        reached: u32,
        /// Voting servers there are.
        of: u32,
    },
    /// No server could be reached for `connect_timeout`. Nothing was acquired. Trying again helps
    /// when the network or a server is back.
    #[error("no server can be reached ({}): {last}", .endpoints.join(", "))]
    Unreachable {
        /// Where it was tried.
        endpoints: Vec<String>,
        /// What the last attempt ran into.
        last: String,
    },
    /// A server was reached, but couldn't serve the request for `connect_timeout` (no leader yet,
    /// a full disk, overload). Nothing was done. Trying again helps if its message says so.
    #[error("the server can't do it now: {message}")]
    Unavailable {
        /// The server's words.
        message: String,
    },
    /// The cluster said no, and changed nothing. Trying again gives the same answer unless the
    /// cause is removed.
    #[error("{0}")]
    Refused(#[from] Box<Refused>),
    /// The request was sent, and its answer never came: it may have been done or not. Look before
    /// trying again.
    #[error("it isn't known whether this was done: {message}")]
    Unknown {
        /// What happened.
        message: String,
    },
    /// A server answered against the protocol: another program listens there, or its version is
    /// too new. Trying again doesn't help.
    #[error("{endpoint} doesn't speak this protocol: {message}")]
    Protocol {
        /// Which server.
        endpoint: String,
        /// What it said.
        message: String,
    },
    /// The caller's settings can't be used. Trying again doesn't help.
    #[error("{0}")]
    Config(String),
    /// The client was closed.
    #[error("this client is closed")]
    Closed,
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything about it.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TimedOut { .. }
            | Self::Busy { .. }
            | Self::Lost(_)
            | Self::NoQuorum { .. }
            | Self::Unreachable { .. }
            | Self::Unavailable { .. } => true,
            Self::Refused(refused) => refused.code.is_retryable(),
            Self::Unknown { .. } | Self::Protocol { .. } | Self::Config(_) | Self::Closed => false,
        }
    }

    /// Whether the request may have been done, or yet be done, although the call failed. A lock
    /// request never leaves this open: what it might still get is given back.
    #[must_use]
    pub const fn outcome_is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

/// Why a lock isn't held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// No renewal was confirmed in time: the network, the servers or this process stood still for
    /// too long.
    Expired {
        /// From the sending of the last confirmed heartbeat to the end.
        since_last_renewal: Duration,
    },
    /// The cluster ended the session (most often because its lease ran out there), and this client
    /// heard of it only afterwards.
    SessionEnded {
        /// From the sending of the last confirmed heartbeat to the news.
        since_last_renewal: Duration,
    },
    /// An operator asked for it back, and it wasn't given back within the lease.
    Revoked,
    /// An operator passed it on at once.
    Forced,
    /// The machine of the embedded node was booted anew.
    Rebooted,
    /// This client closed its session, or the guard was released.
    Released,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { since_last_renewal } => {
                let seconds = since_last_renewal.as_secs_f64();
                write!(f, "no renewal was confirmed for {seconds:.1} s")
            }
            Self::SessionEnded { since_last_renewal } => {
                let seconds = since_last_renewal.as_secs_f64();
                write!(f, "the cluster ended the session; the last renewal was {seconds:.1} s ago")
            }
            Self::Revoked => f.write_str("an operator asked for it back"),
            Self::Forced => f.write_str("an operator passed it on"),
            Self::Rebooted => f.write_str("the machine was booted anew"),
            Self::Released => f.write_str("it was given back"),
        }
    }
}

/// The cluster's no.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// Why.
    pub code: RefusedCode,
    /// The server's words: what, where, and what to do.
    pub message: String,
    /// [`RefusedCode::StaleToken`]: the newest hold's token, `None` if the lock is free.
    pub current_token: Option<u64>,
    /// [`RefusedCode::LimitReached`]: which limit, and its figure.
    pub limit: Option<(String, u64)>,
    /// [`RefusedCode::ModeConflict`]: how the lock is used now.
    pub current_mode: Option<Mode>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            write!(f, "refused: {:?}", self.code)
        } else {
            write!(f, "refused: {}", self.message)
        }
    }
}

impl std::error::Error for Refused {}

/// Why the cluster said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusedCode {
    /// There is no such session (any more).
    UnknownSession,
    /// The session exists with another secret.
    WrongSecret,
    /// The caller's name isn't a lock's: empty, too long, or with a character that is refused.
    InvalidName,
    /// The caller ran into a limit.
    LimitReached,
    /// The lock is used in another mode family, or with another number of permits. Trying again
    /// helps when its users are done.
    ModeConflict,
    /// The caller asked for no permits, or for more than there are.
    BadPermits,
    /// The session doesn't hold it (any more).
    NotHeld,
    /// The hold that was named by its token is gone.
    StaleToken,
    /// The session has been revoked and takes nothing new.
    Revoked,
    /// The request was malformed.
    BadRequest,
    /// What was asked about isn't there.
    NotFound,
    /// A change of members that can't be made now.
    Membership,
    /// A reason that this version doesn't know, or one that only a fault of the client explains.
    Other,
}

impl RefusedCode {
    const fn is_retryable(self) -> bool {
        matches!(self, Self::ModeConflict | Self::Membership)
    }
}

fn timed_out(lock: &str, waited: Duration, place: Option<u32>, holder: Option<&Hold>) -> String {
    let mut text = format!("{lock} wasn't free within {:.1} s", waited.as_secs_f64());
    if let Some(place) = place {
        text.push_str(&format!(" (place {place} in line)"));
    }
    if let Some(holder) = holder {
        text.push_str(&format!("; it is held{}", by(Some(holder))));
    }
    text
}

fn by(holder: Option<&Hold>) -> String {
    holder.map_or_else(String::new, |hold| format!(" by {}", hold.owner))
}
