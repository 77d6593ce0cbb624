//! What the state machine answers: replies, and the refusals among them.

use serde::{Deserialize, Serialize};

use crate::{Limit, Mode, Token, TreeError, TreeReply};

/// The answer to one command, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, and there is nothing more to say (sessions, cluster, revocations, cancel of a place).
    Done,
    /// The lock is held (acquire, re-entry).
    Granted {
        /// The fencing token.
        token: Token,
    },
    /// The request waits; an [`Event::Granted`](crate::Event::Granted) will tell.
    Queued {
        /// 1 for the next in line.
        place: u32,
    },
    /// The hold was given back (release, cancel of a hold).
    Released {
        /// The token that it had.
        token: Token,
        /// Handles that remain on the hold: 0 unless it was entered again.
        remaining: u32,
    },
    /// No, and nothing was changed.
    Refused(Refusal),
    /// What the operations on the tree are answered, one by one. Never kept for a repetition.
    #[serde(skip)]
    Tree(Vec<TreeReply>),
}

/// Why a command was refused. A refusal changes nothing, and every replica gives the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such session: it ended, or never was. The client must open a new one.
    UnknownSession,
    /// The session exists with another secret: the id was taken, or the caller isn't its client.
    WrongSecret,
    /// The number is below what the client said it has answers for. It was not executed now.
    TooOld,
    /// The number was used for a different request, is 0, is named by its own request, or lies
    /// below the floor given with it: a fault in the client.
    NumberReused,
    /// The acquire was cancelled before it arrived.
    AlreadyCancelled,
    /// The name is no lock name: empty, with an empty segment, or with a control character.
    InvalidName,
    /// A limit would be passed.
    LimitReached {
        /// Which.
        limit: Limit,
        /// Its figure, in the limit's unit.
        max: u64,
    },
    /// The lock can't be had at once, and waiting was not asked for.
    Busy,
    /// The lock is in use with another family of modes, or another number of permits.
    ModeConflict {
        /// How it is used now.
        current: Mode,
    },
    /// A request for no permits, or for more than there are.
    BadPermits,
    /// The session doesn't hold this (any more).
    NotHeld,
    /// The hold that was named by its token is gone.
    StaleToken {
        /// The newest hold's token, if the lock is held.
        current: Option<Token>,
    },
    /// The session has been revoked and takes nothing new.
    Revoked,
    /// An operation on the tree fails, and with it those that came with it.
    Tree {
        /// Its place among them, from 0.
        index: u32,
        /// Why.
        error: TreeError,
    },
}

impl Refusal {
    /// The refusal that names `limit` and its figure.
    pub(crate) fn limit(limit: Limit) -> Self {
        Self::LimitReached { limit, max: limit.max() }
    }
}
