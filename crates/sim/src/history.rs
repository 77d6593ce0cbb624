//! What happened, as it is judged: the clients' side by true time, and the log's side by index.
//!
//! *True time* is one clock for the whole history: the simulator's, or `CLOCK_MONOTONIC` of the
//! machine on which all processes run. No process under test ever reads it for a decision.

use lockkeeper_core::{Event, Mode, SessionId, Token};

/// Nanoseconds of true time since the history began.
pub type Nanos = u64;

/// One session's life at one client: a client that opens a new session is a new `ClientId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// One wish for a lock, from the call to its end; unique in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Everything that is known of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What clients saw and did, in the order of true time.
    pub seen: Vec<Entry>,
    /// What the log says happened to locks and sessions, in the log's order. Replicas must agree on
    /// it; empty where it can't be had (real processes: the clients' side has to do).
    pub log: Vec<Transition>,
}

/// One observation and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Nanos,
    /// What.
    pub seen: Seen,
}

/// One transition in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The index of the log's entry.
    pub index: u64,
    /// What happened.
    pub event: Event,
}

/// What a client saw or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A session was opened: the server's answer arrived.
    Opened {
        /// By whom.
        client: ClientId,
        /// The session in the log, where it is known.
        session: Option<SessionId>,
    },
    /// The session is over as its client knows it: told, its lease run out, or closed on purpose
    /// (then from the moment at which the close was sent).
    Ended {
        /// Whose.
        client: ClientId,
    },
    /// A lock was asked for: the request is about to be sent.
    Asked {
        /// Which wish.
        attempt: Attempt,
        /// By whom.
        client: ClientId,
        /// Which lock.
        lock: String,
        /// How.
        mode: Mode,
        /// Whether it waits in line.
        wait: bool,
    },
    /// The answer came that the wish waits in line.
    Queued {
        /// Which wish.
        attempt: Attempt,
    },
    /// From now on the client believes that it holds the lock, and works under it.
    Held {
        /// Which wish.
        attempt: Attempt,
        /// The fencing token.
        token: Token,
    },
    /// The client stops working under the lock and is about to send the release.
    Releasing {
        /// Which wish.
        attempt: Attempt,
    },
    /// The release was acknowledged.
    Released {
        /// Which wish.
        attempt: Attempt,
    },
    /// The client learnt that it holds the lock no more, without having released it.
    Lost {
        /// Which wish.
        attempt: Attempt,
        /// Since when it has believed so, at the latest: the moment at which its own deadline
        /// passed. A client that was paused learns of it later than it stopped counting on it.
        since: Nanos,
    },
    /// The wish has come to nothing.
    GaveUp {
        /// Which wish.
        attempt: Attempt,
        /// How.
        why: GiveUp,
    },
    /// An operator passed a hold on at once, and took the risk: what its holder still believes
    /// after this is exempt.
    Forced {
        /// Which lock.
        lock: String,
        /// The token of the hold that was taken away.
        token: Token,
    },
    /// A resource that checks tokens answered a write made under a hold.
    Wrote {
        /// Which lock guards it.
        lock: String,
        /// How the writer holds it. Only exclusive grants make older tokens stale.
        mode: Mode,
        /// The token that came with the write.
        token: Token,
        /// Whether it was let in.
        accepted: bool,
    },
    /// A linearizable read of one lock was answered.
    Viewed {
        /// Which lock.
        lock: String,
        /// When the question was sent; the answer's time is the entry's.
        asked: Nanos,
        /// The tokens of its holds, oldest first, complete.
        holders: Vec<Token>,
        /// How many wait.
        waiters: usize,
    },
    /// All faults have ended: from here on the liveness bound counts.
    Calm,
    /// The run is over; what was open is open.
    Over,
}

/// How a wish came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Refused, or not free and it didn't want to wait: it never held the lock.
    Refused,
    /// Cancelled by the client (a time-out, a dropped future) and the cancel was acknowledged.
    Cancelled,
    /// Its session ended first.
    SessionEnded,
    /// Nobody knows: it may hold or wait until its session has ended.
    Unknown,
}

impl History {
    /// Adds an observation. Call it in the order of time.
    pub fn see(&mut self, at: Nanos, seen: Seen) {
        self.seen.push(Entry { at, seen });
    }
}
