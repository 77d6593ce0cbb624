//! Every no that a client may hear, in one table: its code, and what, where, and what to do.
//!
//! Names that came from a client are shown quoted, with control characters escaped.

use std::fmt;

use lockkeeper_core::{Limit, Refusal, SessionId, Stamp, StateMachine};
use lockkeeper_node::{MembershipError, Unavailable};
use lockkeeper_wire::native::{self as wire, refused::Code, response::Body, unavailable::Outcome};

use crate::limits::WATCH_BACKLOG_BYTES_MAX;
use crate::native::{hold, wire_mode};

/// A no, on its way to the client.
pub(crate) type No = Box<Body>;

/// What a refused request was about, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subject<'a> {
    /// Whose request, or which session it named.
    pub(crate) session: Option<SessionId>,
    /// Which lock.
    pub(crate) lock: Option<&'a str>,
    /// The request's number.
    pub(crate) number: u64,
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.lock, self.session) {
            (Some(lock), _) => write!(f, "lock {lock:?}"),
            (None, Some(session)) => write!(f, "session {session}"),
            (None, None) => write!(f, "request {}", self.number),
        }
    }
}

/// The replicated no, in words.
pub(crate) fn refused(
    refusal: &Refusal,
    subject: Subject<'_>,
    state: &StateMachine,
    now: Stamp,
) -> wire::Refused {
    let (code, words) = row(refusal);
    let place = match refusal {
        Refusal::UnknownSession | Refusal::WrongSecret | Refusal::Revoked => {
            Subject { lock: None, ..subject }
        }
        Refusal::TooOld | Refusal::NumberReused | Refusal::AlreadyCancelled => {
            Subject { lock: None, session: None, ..subject }
        }
        _ => subject,
    };
    let mut refused = answer(code, format!("{place}: {words}"));
    match refusal {
        Refusal::Busy => {
            let lock = subject.lock.and_then(|name| state.lock(name, 1));
            refused.holder = lock.and_then(|lock| Some(hold(lock.holds.first()?, state, now)));
        }
        Refusal::StaleToken { current } => {
            refused.current_token = current.map_or(0, |token| token.0);
        }
        Refusal::LimitReached { limit, max } => {
            refused.limit = limit_name(*limit).to_owned();
            refused.limit_max = *max;
        }
        Refusal::ModeConflict { current } => refused.current_mode = Some(wire_mode(*current)),
        _ => {}
    }
    refused
}

/// The table: the code, what is the matter, and what to do.
fn row(refusal: &Refusal) -> (Code, String) {
    let (code, words) = match refusal {
        Refusal::UnknownSession => (
            Code::UnknownSession,
            "it has ended, or never was; open a new session, and acquire again",
        ),
        Refusal::WrongSecret => (
            Code::WrongSecret,
            "it exists with another secret; only the client that opened it may use it, and a new \
             client chooses a new random id",
        ),
        Refusal::TooOld => (
            Code::TooOld,
            "its number is below a floor that its client has named, so no answer to it is kept; it \
             was not executed. A client must not repeat what it has an answer to",
        ),
        Refusal::NumberReused => (
            Code::NumberReused,
            "its number was used for another request, or lies below its own floor: a fault in the \
             client, which must count its requests upwards from 1",
        ),
        Refusal::AlreadyCancelled => {
            (Code::AlreadyCancelled, "it was cancelled before it arrived; acquire anew")
        }
        Refusal::InvalidName => (
            Code::InvalidName,
            "this is no lock name; it must not be empty, and must have neither an empty segment (a \
             slash at its start, its end or next to another), nor the segments `.` and `..`, nor a \
             control character",
        ),
        Refusal::LimitReached { limit, max } => return (Code::LimitReached, beyond(*limit, *max)),
        Refusal::Busy => {
            (Code::Busy, "somebody else has it, and the request said not to wait; try again later")
        }
        Refusal::ModeConflict { .. } => (
            Code::ModeConflict,
            "it is in use with another family of modes or another number of permits; ask for it \
             as it is used now, or wait until nobody uses it",
        ),
        Refusal::BadPermits => {
            (Code::BadPermits, "ask for at least 1 permit, and for no more than there are")
        }
        Refusal::NotHeld => (
            Code::NotHeld,
            "the session doesn't hold it (any more) by that request's number; what it guarded \
             must not go on",
        ),
        Refusal::StaleToken { .. } => (
            Code::StaleToken,
            "the hold with that token is gone; look at the lock again before you repeat this",
        ),
        Refusal::Revoked => (
            Code::Revoked,
            "an operator has asked it to end, so it takes nothing new; release what it holds, and \
             open a new session",
        ),
        Refusal::Tree { .. } => (
            Code::InvalidName,
            "it is about the tree of znodes, which this protocol doesn't speak of",
        ),
    };
    (code, words.to_owned())
}

fn beyond(limit: Limit, max: u64) -> String {
    match limit {
        Limit::LockNameBytes => format!("a lock's name has at most {max} bytes"),
        Limit::WaitersPerLock => format!("{max} requests wait for it already; try again later"),
        Limit::HoldsPerLock => format!("it is held {max} times already; try again later"),
        Limit::ItemsPerSession => format!(
            "the session has {max} locks and places already; release some, or open another session"
        ),
        Limit::Sessions => format!("there are {max} sessions already; try again later"),
        Limit::OpenRequests => format!(
            "the request's number is {max} or more above the lowest one that its client has no \
             answer to; wait for answers first"
        ),
        Limit::Permits => format!("a semaphore has at most {max} permits"),
        Limit::TtlMin => format!("the shortest lease is {max} ms"),
        Limit::TtlMax => format!("the longest lease is {max} ms"),
        Limit::OwnerFieldBytes => {
            format!("host, user, program and purpose of a session have at most {max} bytes each")
        }
        Limit::Labels => format!("a session has at most {max} labels"),
        Limit::LabelBytes => format!("a label's key and its value have at most {max} bytes each"),
        Limit::PurposeBytes => format!("an acquire's purpose has at most {max} bytes"),
    }
}

fn limit_name(limit: Limit) -> &'static str {
    match limit {
        Limit::LockNameBytes => "lock_name_bytes",
        Limit::WaitersPerLock => "waiters_per_lock",
        Limit::HoldsPerLock => "holds_per_lock",
        Limit::ItemsPerSession => "items_per_session",
        Limit::Sessions => "sessions",
        Limit::OpenRequests => "open_requests",
        Limit::Permits => "permits",
        Limit::TtlMin => "ttl_min",
        Limit::TtlMax => "ttl_max",
        Limit::OwnerFieldBytes => "owner_field_bytes",
        Limit::Labels => "labels",
        Limit::LabelBytes => "label_bytes",
        Limit::PurposeBytes => "purpose_bytes",
    }
}

/// A limit that is checked before anything is proposed, in the words of the replicated one.
pub(crate) fn beyond_limit(subject: Subject<'_>, limit: Limit, max: u64) -> No {
    let message = format!("{subject}: {}", beyond(limit, max));
    let mut refused = answer(Code::LimitReached, message);
    refused.limit = limit_name(limit).to_owned();
    refused.limit_max = max;
    Box::new(Body::Refused(refused))
}

/// The request makes no sense, or not on this connection.
pub(crate) fn bad_request(message: impl Into<String>) -> No {
    Box::new(Body::Refused(answer(Code::BadRequest, message)))
}

/// A question about something that isn't there.
pub(crate) fn not_found(message: impl Into<String>) -> No {
    Box::new(Body::Refused(answer(Code::NotFound, message)))
}

/// Too much of this connection is in the works.
pub(crate) fn overloaded(message: impl Into<String>) -> No {
    Box::new(Body::Refused(answer(Code::Overloaded, message)))
}

/// The session doesn't hold what it asks about.
pub(crate) fn not_held(subject: Subject<'_>) -> No {
    let (code, words) = row(&Refusal::NotHeld);
    Box::new(Body::Refused(answer(code, format!("{subject}: {words}"))))
}

/// No, to a session that speaks for itself without a state at hand.
pub(crate) fn session_refused(refusal: &Refusal, session: SessionId) -> No {
    let (code, words) = row(refusal);
    let subject = Subject { session: Some(session), ..Subject::default() };
    Box::new(Body::Refused(answer(code, format!("{subject}: {words}"))))
}

/// A change of members or leadership that wasn't made.
pub(crate) fn membership(error: &MembershipError) -> No {
    match error {
        MembershipError::Unavailable(error) => unavailable(error),
        MembershipError::Refused(_) | MembershipError::Unreachable { .. } => {
            Box::new(Body::Refused(answer(Code::Membership, error.to_string())))
        }
    }
}

/// This node can't serve the request now.
pub(crate) fn unavailable(error: &Unavailable) -> No {
    let (outcome, reached, of) = match *error {
        Unavailable::NoQuorum { reached, of } => (Outcome::NotDone, reached, of),
        Unavailable::Unknown => (Outcome::Unknown, 0, 0),
        Unavailable::Overloaded { .. } => {
            return overloaded(error.to_string());
        }
        Unavailable::DiskFull { .. } | Unavailable::Stopping => (Outcome::NotDone, 0, 0),
    };
    Box::new(Body::Unavailable(wire::Unavailable {
        outcome: outcome.into(),
        message: error.to_string(),
        reached,
        of,
    }))
}

/// The same for the metrics, in the form of the protocol's codes.
pub(crate) fn unavailable_name(error: &Unavailable) -> &'static str {
    match error {
        Unavailable::NoQuorum { .. } => "NO_QUORUM",
        Unavailable::Unknown => "OUTCOME_UNKNOWN",
        Unavailable::Overloaded { .. } => "OVERLOADED",
        Unavailable::DiskFull { .. } => "DISK_FULL",
        Unavailable::Stopping => "STOPPING",
    }
}

/// A watch whose client doesn't keep up is ended rather than delayed.
pub(crate) fn watch_lags() -> No {
    Box::new(Body::Unavailable(wire::Unavailable {
        outcome: Outcome::NotDone.into(),
        message: format!(
            "this watch fell behind by more than {WATCH_BACKLOG_BYTES_MAX} bytes and has ended; \
             watch again, then list the locks to see what was missed"
        ),
        ..wire::Unavailable::default()
    }))
}

/// An answer that doesn't fit into a frame: every list is cut to fit, so a fault of ours.
pub(crate) fn too_long() -> No {
    Box::new(Body::Unavailable(wire::Unavailable {
        outcome: Outcome::Unknown.into(),
        message: "the answer is too long for one frame: a fault in the server, please report it; \
                  ask for less at once"
            .to_owned(),
        ..wire::Unavailable::default()
    }))
}

fn answer(code: Code, message: impl Into<String>) -> wire::Refused {
    wire::Refused { code: code.into(), message: message.into(), ..wire::Refused::default() }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use lockkeeper_core::{Mode, Token};

    use super::*;

    /// The whole table as it is printed in `testdata/refusals.txt`; `UPDATE=1` rewrites it.
    #[test]
    fn every_no_reads_well() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/refusals.txt");
        let printed = printed_table();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &printed).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), printed, "{}", path.display());
    }

    #[test]
    fn a_name_is_shown_on_one_line() {
        let subject = Subject { lock: Some("a\nb\u{202e}\"c"), ..Subject::default() };
        assert_eq!(subject.to_string(), r#"lock "a\nb\u{202e}\"c""#);
    }

    fn printed_table() -> String {
        let session = Some(SessionId(0x0123_4567_89ab_cdef));
        let subject = Subject { session, lock: Some("deploy/prod"), number: 7 };
        let mut table = "# What a client hears for each refusal.\n".to_owned();
        for refusal in refusals() {
            let refused = refused(&refusal, subject, &StateMachine::default(), Stamp(0));
            print(&mut table, &Body::Refused(refused));
        }
        let unreachable = MembershipError::Unreachable {
            node: 4,
            address: "10.0.0.4:2380".to_owned(),
            reason: "connection refused".to_owned(),
        };
        let bodies = [
            unavailable(&Unavailable::NoQuorum { reached: 1, of: 3 }),
            unavailable(&Unavailable::NoQuorum { reached: 3, of: 4 }),
            unavailable(&Unavailable::Unknown),
            unavailable(&Unavailable::Overloaded { queued_bytes: 1 << 26 }),
            unavailable(&Unavailable::DiskFull { node: 1, free_bytes: 1 << 20 }),
            unavailable(&Unavailable::Stopping),
            membership(&unreachable),
            watch_lags(),
            too_long(),
        ];
        bodies.iter().for_each(|body| print(&mut table, body));
        table
    }

    fn print(table: &mut String, body: &Body) {
        let (code, message) = match body {
            Body::Refused(refused) => (refused.code().as_str_name(), &refused.message),
            Body::Unavailable(no) => (no.outcome().as_str_name(), &no.message),
            other => panic!("{other:?} is no no"),
        };
        writeln!(table, "\n{code}\n  {message}").unwrap();
    }

    fn refusals() -> Vec<Refusal> {
        let limits = [
            Limit::LockNameBytes,
            Limit::WaitersPerLock,
            Limit::HoldsPerLock,
            Limit::ItemsPerSession,
            Limit::Sessions,
            Limit::OpenRequests,
            Limit::Permits,
            Limit::TtlMin,
            Limit::TtlMax,
            Limit::OwnerFieldBytes,
            Limit::Labels,
            Limit::LabelBytes,
            Limit::PurposeBytes,
        ];
        let limits = limits.map(|limit| Refusal::LimitReached { limit, max: limit.max() });
        let others = [
            Refusal::UnknownSession,
            Refusal::WrongSecret,
            Refusal::TooOld,
            Refusal::NumberReused,
            Refusal::AlreadyCancelled,
            Refusal::InvalidName,
            Refusal::Busy,
            Refusal::ModeConflict { current: Mode::Shared },
            Refusal::BadPermits,
            Refusal::NotHeld,
            Refusal::StaleToken { current: Some(Token(42)) },
            Refusal::Revoked,
        ];
        others.into_iter().chain(limits).collect()
    }
}
