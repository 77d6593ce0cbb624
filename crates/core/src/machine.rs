//! The state machine. (Signatures first; being written.)

use serde::{Deserialize, Serialize};

use crate::{
    ClusterId, Command, Event, Limit, LockName, Mode, Number, Revision, Secret, SessionId, Stamp,
    Token,
};

/// The whole replicated state. Cloning it freezes it: shards are shared until they are written.
#[derive(Clone, Debug, Default)]
pub struct StateMachine {}

impl StateMachine {
    /// Applies one command of the log: the only way in which the state changes.
    ///
    /// Events are appended to `events` in the order in which they happened.
    pub fn apply(&mut self, at: Stamp, command: &Command<'_>, events: &mut Vec<Event>) -> Reply {
        let _ = (at, command, events);
        Reply::Done
    }

    /// The state's counter.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision(0)
    }

    /// The cluster's identity; `None` before [`Command::FoundCluster`].
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        None
    }

    /// Whether grants are withheld after a restore, until [`Command::EndSilence`].
    #[must_use]
    pub fn is_silent(&self) -> bool {
        false
    }

    /// One lock, if anybody holds it or waits for it. Waiters are listed from the head, at most
    /// `waiters_max` of them.
    #[must_use]
    pub fn lock(&self, name: &str, waiters_max: usize) -> Option<LockView> {
        let _ = (name, waiters_max);
        None
    }

    /// Locks in use whose name starts with `prefix`, in order of name, after the name `after`, at
    /// most `count_max`; with the first holder and no waiters listed.
    #[must_use]
    pub fn locks(&self, prefix: &str, after: Option<&str>, count_max: usize) -> Vec<LockView> {
        let _ = (prefix, after, count_max);
        Vec::new()
    }

    /// One live session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        let _ = id;
        None
    }

    /// Whether `secret` is that of the live session `id`; `None` if there is no such session.
    #[must_use]
    pub fn authenticate(&self, id: SessionId, secret: &Secret) -> Option<bool> {
        let _ = (id, secret);
        None
    }

    /// Live sessions in order of id, after `after`, at most `count_max`; without their items.
    #[must_use]
    pub fn sessions(&self, after: Option<SessionId>, count_max: usize) -> Vec<SessionView> {
        let _ = (after, count_max);
        Vec::new()
    }

    /// The lease, the number of items, and whether a revocation is pending, of each live session:
    /// what the leader's deadlines need. Constant cost a session.
    pub fn leases(&self) -> impl Iterator<Item = Lease> + '_ {
        std::iter::empty()
    }

    /// The lease of one session.
    #[must_use]
    pub fn lease(&self, id: SessionId) -> Option<Lease> {
        let _ = id;
        None
    }

    /// Counts for metrics: (sessions, locks in use, holds, waiters). Constant cost.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::default()
    }

    /// Writes the state: equal states write equal bytes.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_snapshot(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let _ = out;
        Ok(())
    }

    /// Reads a state written by [`StateMachine::write_snapshot`].
    ///
    /// # Errors
    ///
    /// `InvalidData`, with what is wrong, if the bytes are no snapshot of a known version.
    pub fn read_snapshot(input: &mut impl std::io::Read) -> std::io::Result<Self> {
        let _ = input;
        Ok(Self::default())
    }

    /// The state that a restore from backup starts with: a new cluster, no sessions, the revision
    /// far ahead, silent unless the clients are known to be stopped.
    #[must_use]
    pub fn restored(&self, cluster: ClusterId, silent: bool) -> Self {
        let _ = (cluster, silent);
        self.clone()
    }

    /// Walks all invariants. Linear in the state: for tests, the simulator, and after a snapshot
    /// was read.
    ///
    /// # Errors
    ///
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

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
    /// The request waits; an [`Event::Granted`] will tell.
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
    /// The number was used for a different request, or the floor is above it: a fault in the client.
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
}

/// What the leader's deadlines need of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whose.
    pub session: SessionId,
    /// Milliseconds.
    pub ttl_ms: u32,
    /// Locks and places that hang on it.
    pub item_count: usize,
    /// It, or one of its holds, has been revoked: it is to be confirmed no longer.
    pub is_revoked: bool,
}

/// Counts of the whole state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live sessions.
    pub sessions: usize,
    /// Locks that somebody holds or waits for.
    pub locks: usize,
    /// Holds.
    pub holds: usize,
    /// Places in queues.
    pub waiters: usize,
}

/// Who a session's client says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Host name; empty if not said.
    pub host: String,
    /// Process id; 0 if not said.
    pub pid: u32,
    /// User name; empty if not said.
    pub user: String,
    /// Program or command line; empty if not said.
    pub program: String,
    /// What the session is for; empty if not said.
    pub purpose: String,
    /// Free labels, in the order given.
    pub labels: Vec<(String, String)>,
}

/// One lock as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// Its holds, oldest first (at most the number asked for).
    pub holds: Vec<HoldView>,
    /// How many holds there are.
    pub hold_count: usize,
    /// Its queue from the head (at most the number asked for).
    pub waiters: Vec<WaiterView>,
    /// How many wait.
    pub waiter_count: usize,
}

/// One hold as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// Which lock.
    pub lock: LockName,
    /// Who holds it.
    pub session: SessionId,
    /// The number of the first acquire that made it.
    pub number: Number,
    /// The fencing token.
    pub token: Token,
    /// How.
    pub mode: Mode,
    /// Since when.
    pub since: Stamp,
    /// What for; empty if not said.
    pub purpose: String,
    /// An operator has asked for it back.
    pub is_revoked: bool,
}

/// One place in a queue as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Which lock.
    pub lock: LockName,
    /// Who waits.
    pub session: SessionId,
    /// The acquire's number.
    pub number: Number,
    /// How.
    pub mode: Mode,
    /// Since when.
    pub since: Stamp,
    /// What for; empty if not said.
    pub purpose: String,
    /// 1 for the next in line; counting costs a walk, so it is given only where the walk is short.
    pub place: u32,
}

/// One session as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// Its lease in milliseconds.
    pub ttl_ms: u32,
    /// Who its client says it is.
    pub owner: Owner,
    /// Since when.
    pub opened: Stamp,
    /// An operator has asked it to end.
    pub is_revoked: bool,
    /// What it holds, with the handle numbers that name each hold.
    pub holds: Vec<(Number, HoldView)>,
    /// Where it waits.
    pub waits: Vec<WaiterView>,
    /// How many items (handles and places) hang on it.
    pub item_count: usize,
}
