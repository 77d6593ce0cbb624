//! What happened, for subscribers, watchers and the operator's log. Events are not state.
//!
//! A hold that was entered again has several numbers. An event names it by the lowest that is
//! left, and its token names it in any case.

use std::sync::Arc;

use crate::{EndReason, LockName, Mode, NodeAcl, NodeChange, Number, Revision, SessionId, Token};

/// One transition, as every replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session was opened.
    SessionOpened {
        /// Which.
        session: SessionId,
    },
    /// A session ended, after the [`Event::Lost`] and [`Event::Cancelled`] of all that hung on it.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// Why.
        reason: EndReason,
    },
    /// A session is asked to end by an operator.
    SessionRevoked {
        /// Which.
        session: SessionId,
    },
    /// A request waits in line.
    Queued {
        /// Which lock.
        lock: LockName,
        /// Who waits.
        session: SessionId,
        /// The acquire's number.
        number: Number,
        /// 1 for the next in line.
        place: u32,
    },
    /// A lock was granted.
    Granted {
        /// Which lock.
        lock: LockName,
        /// To whom.
        session: SessionId,
        /// The acquire's number.
        number: Number,
        /// The fencing token.
        token: Token,
        /// How.
        mode: Mode,
        /// `None` if it was granted by the acquire itself, whose reply says so; else milliseconds
        /// in line, by the log's stamps.
        waited_ms: Option<u64>,
    },
    /// A holder gave its hold back (its last handle).
    Released {
        /// Which lock.
        lock: LockName,
        /// Who held it.
        session: SessionId,
        /// The acquire's number.
        number: Number,
        /// The token of the hold.
        token: Token,
        /// Milliseconds held, by the log's stamps.
        held_ms: u64,
    },
    /// A place in a queue was given up.
    Cancelled {
        /// Which lock.
        lock: LockName,
        /// Who waited.
        session: SessionId,
        /// The acquire's number.
        number: Number,
        /// Milliseconds in line, by the log's stamps.
        waited_ms: u64,
        /// Why, if its session ended; `None` if the client asked.
        ended: Option<EndReason>,
    },
    /// An operator asks for a hold back.
    Revoked {
        /// Which lock.
        lock: LockName,
        /// Who holds it.
        session: SessionId,
        /// The acquire's number.
        number: Number,
        /// The token of the hold.
        token: Token,
    },
    /// A hold was taken away.
    Lost {
        /// Which lock.
        lock: LockName,
        /// Who held it.
        session: SessionId,
        /// The acquire's number.
        number: Number,
        /// The token of the hold.
        token: Token,
        /// Milliseconds held, by the log's stamps.
        held_ms: u64,
        /// Why.
        reason: LossReason,
    },
    /// A session goes on over another connection.
    SessionMoved {
        /// Which.
        session: SessionId,
        /// Over which.
        connection: u64,
    },
    /// Something happened to a znode. Of a command's, those come in the order of its operations.
    Node {
        /// Where.
        path: Arc<str>,
        /// What.
        change: NodeChange,
        /// On whose life it hangs, or hung.
        session: Option<SessionId>,
        /// The revision of the command.
        zxid: Revision,
        /// Who might read it then: what the same command did next doesn't count.
        acl: NodeAcl,
        /// Who might read the znode above then, if that gained or lost this child; else `None`.
        acl_above: Option<NodeAcl>,
    },
}

/// Why a hold was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// Its session ended.
    SessionEnded(EndReason),
    /// An operator passed the lock on at once.
    Forced,
}
