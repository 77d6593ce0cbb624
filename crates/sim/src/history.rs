//! What happened, as it is judged: the clients' side by true time, and the log's side by index.
//!
//! *True time* is one clock for the whole history: the simulator's, or `CLOCK_MONOTONIC` of the
//! machine on which all processes run. No process under test ever reads it for a decision.

use std::fmt;

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
    /// it; empty where it can't be had (real processes: the clients' side has to do). If it is not
    /// empty it is complete: a grant that isn't in it has never been made.
    pub log: Vec<Transition>,
    /// Stretches of the log in which nothing is granted: the silence after a restore.
    pub silences: Vec<Silence>,
    /// What replicas' states were, at some index each. Any order.
    pub digests: Vec<Digest>,
    /// Who was seen to lead. Any order.
    pub leaders: Vec<Leadership>,
    /// Which entries each node knew to be committed. Any order; a node may say one again, and does
    /// when it has restarted.
    pub commits: Vec<Commit>,
    /// How long the cluster may take, once all is calm, for what it owes: see `judge::liveness`.
    /// `None` for the default. Longer than the longest lease in the history.
    pub bound: Option<Nanos>,
}

/// A stretch of the log in which nothing is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The first index of it.
    pub from: u64,
    /// The index of the entry that ended it, whose own grants are lawful; `u64::MAX` if none did.
    pub until: u64,
}

/// What a replica's state was after it had applied the log up to an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Which replica.
    pub node: u64,
    /// The index.
    pub index: u64,
    /// A digest of its snapshot's bytes.
    pub digest: u64,
}

/// Somebody was seen to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// When.
    pub at: Nanos,
    /// Who.
    pub node: u64,
    /// In which term.
    pub term: u64,
}

/// An entry that a node knew to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Who knew it.
    pub node: u64,
    /// The entry's index.
    pub index: u64,
    /// The entry's term.
    pub term: u64,
    /// A digest of the entry's bytes.
    pub digest: u64,
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
    /// An operator is about to pass a hold on at once, and takes the risk: what its holder still
    /// believes after this is exempt. Seen before the command is sent, not when it is answered.
    Forced {
        /// Which lock.
        lock: String,
        /// The token of the hold that was taken away.
        token: Token,
    },
    /// A resource that checks tokens answered a write made under a hold. Several of one lock stand
    /// in the order in which the resource decided them.
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
    /// Something came over a connection of ZooKeeper's protocol, in this order.
    Tree {
        /// Whose connection.
        client: ClientId,
        /// What.
        told: TreeSeen,
    },
    /// All faults have ended: from here on the liveness bound counts.
    Calm,
    /// The run is over; what was open is open.
    Over,
}

/// What a client of ZooKeeper's protocol was told. Revisions are its zxids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeSeen {
    /// A connection was accepted. Nothing is watched over it yet.
    Connected {
        /// The newest revision that the client had seen, and said so.
        zxid: u64,
    },
    /// Something came that showed a revision.
    Told {
        /// Which.
        zxid: u64,
    },
    /// The reply to a read came that leaves a watch.
    Watching {
        /// On which znode.
        path: String,
        /// What of it.
        watch: Watch,
        /// The revision that was read.
        zxid: u64,
    },
    /// The client is about to ask for its watches to be set anew.
    Rewatching {
        /// The newest revision that it had seen.
        since: u64,
        /// Which.
        watches: Vec<(String, Watch)>,
    },
    /// That was answered.
    Rewatched {
        /// At which revision.
        zxid: u64,
    },
    /// A notification came.
    Notified {
        /// Of which znode.
        path: String,
        /// What happened to it.
        change: Change,
        /// The revision that it came with.
        zxid: u64,
    },
    /// The reply to a write of its own came.
    Changed {
        /// Of which znode.
        path: String,
        /// What has happened to it.
        change: Change,
        /// The write's revision.
        zxid: u64,
    },
    /// Something that no server may say.
    Nonsense {
        /// In words.
        what: String,
    },
}

/// What is watched of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// That it comes to be.
    Exists,
    /// Its data.
    Data,
    /// Its children.
    Children,
}

/// What happened to a znode, in the words of notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was made.
    Created,
    /// It was deleted.
    Deleted,
    /// Its data was set.
    DataChanged,
    /// A child was made or deleted.
    ChildrenChanged,
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

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {}", self.0)
    }
}
