//! Queries: what the state looks like from outside, and the words for it.

use std::ops::Bound;

use crate::lock::{Hold, Lock, Waiter};
use crate::session::{Owner, Session};
use crate::{
    ClusterId, LockName, Mode, Number, Revision, Secret, SessionId, Stamp, StateMachine, Token,
    Tree,
};

impl StateMachine {
    /// The state's counter.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The newest stamp of an applied command.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The cluster's identity; `None` before [`Command::FoundCluster`](crate::Command).
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Whether grants are withheld after a restore, until
    /// [`Command::EndSilence`](crate::Command).
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// One lock, if anybody holds it or waits for it. Waiters are listed from the head, at most
    /// `waiters_max` of them; so are holds, but always the oldest.
    #[must_use]
    pub fn lock(&self, name: &str, waiters_max: usize) -> Option<LockView> {
        let (name, lock) = self.locks.get_key_value(name)?;
        Some(LockView::new(name, lock, waiters_max))
    }

    /// Locks in use whose name starts with `prefix`, in order of name, after the name `after`, at
    /// most `count_max`; with the first holder and no waiters listed.
    ///
    /// Costs some 4,096 searches for where to begin (5 ms with a million locks), and then little
    /// for each lock returned: the locks outside the page are not walked.
    #[must_use]
    pub fn locks(&self, prefix: &str, after: Option<&str>, count_max: usize) -> Vec<LockView> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.locks
            .iter_from(start)
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(count_max)
            .map(|(name, lock)| LockView::new(name, lock, 0))
            .collect()
    }

    /// One live session, with everything that hangs on it.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        let session = self.sessions.get(&id)?;
        let mut view = SessionView::new(id, session, &self.tree);
        view.holds = session
            .handles
            .iter()
            .filter_map(|(&number, handle)| {
                let hold = self.locks.get(&*handle.lock)?.hold(handle.token)?;
                Some((number, HoldView::new(&handle.lock, hold)))
            })
            .collect();
        view.waits = session
            .places
            .values()
            .filter_map(|place| {
                let lock = self.locks.get(&*place.lock)?;
                let waiter = lock.waiter(place.ticket)?;
                Some(WaiterView::new(&place.lock, waiter, lock.place(place.ticket)))
            })
            .collect();
        Some(view)
    }

    /// Who the client of a live session says it is.
    #[must_use]
    pub fn owner(&self, id: SessionId) -> Option<&Owner> {
        self.sessions.get(&id).map(|session| &session.owner)
    }

    /// The token of the hold that a live session has by the acquire or re-entry `number`; `None`
    /// if it holds nothing by that number.
    #[must_use]
    pub fn token(&self, id: SessionId, number: Number) -> Option<Token> {
        Some(self.sessions.get(&id)?.handles.get(&number)?.token)
    }

    /// Whether `secret` is that of the live session `id`; `None` if there is no such session.
    #[must_use]
    pub fn authenticate(&self, id: SessionId, secret: &Secret) -> Option<bool> {
        self.sessions.get(&id).map(|session| session.is_secret(secret))
    }

    /// Live sessions in order of id, after `after`, at most `count_max`; without their items.
    #[must_use]
    pub fn sessions(&self, after: Option<SessionId>, count_max: usize) -> Vec<SessionView> {
        let start = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        self.sessions
            .iter_from(start)
            .take(count_max)
            .map(|(&id, session)| SessionView::new(id, session, &self.tree))
            .collect()
    }

    /// The lease, the number of items, and whether a revocation is pending, of each live session:
    /// what the leader's deadlines need. Constant cost a session; in no order of meaning.
    pub fn leases(&self) -> impl Iterator<Item = Lease> + '_ {
        self.sessions.iter().map(|(&id, session)| Lease::new(id, session, &self.tree))
    }

    /// The lease of one session.
    #[must_use]
    pub fn lease(&self, id: SessionId) -> Option<Lease> {
        self.sessions.get(&id).map(|session| Lease::new(id, session, &self.tree))
    }

    /// The tree of znodes.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The newest connection that speaks for a live session in commands on the tree.
    #[must_use]
    pub fn connection(&self, id: SessionId) -> Option<u64> {
        self.sessions.get(&id).map(|session| session.connection)
    }

    /// Counts for metrics. Constant cost.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            sessions: self.sessions.len(),
            locks: self.locks.len(),
            holds: self.hold_count,
            waiters: self.waiter_count,
        }
    }
}

/// What the leader's deadlines need of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whose.
    pub session: SessionId,
    /// Milliseconds.
    pub ttl_ms: u32,
    /// Locks, places and ephemeral znodes that hang on it.
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
    /// The lowest of its handles' numbers: that of its acquire, until that handle is released.
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
    /// 1 for the next in line. Exact for the first 1,000; further back an upper bound, because
    /// counting costs a walk.
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
    /// How many ephemeral znodes hang on it.
    pub ephemeral_count: usize,
}

impl Lease {
    fn new(id: SessionId, session: &Session, tree: &Tree) -> Self {
        Self {
            session: id,
            ttl_ms: session.ttl_ms,
            item_count: session.item_count() + tree.ephemeral_count_of(id),
            is_revoked: session.is_to_lapse(),
        }
    }
}

impl LockView {
    fn new(name: &LockName, lock: &Lock, items_max: usize) -> Self {
        let queue = lock.waiters().take(items_max);
        let waiters =
            queue.zip(1..).map(|((_, waiter), place)| WaiterView::new(name, waiter, place));
        Self {
            name: name.clone(),
            holds: lock
                .holds()
                .take(items_max.max(1))
                .map(|hold| HoldView::new(name, hold))
                .collect(),
            hold_count: lock.hold_count(),
            waiters: waiters.collect(),
            waiter_count: lock.waiter_count(),
        }
    }
}

impl HoldView {
    fn new(lock: &LockName, hold: &Hold) -> Self {
        Self {
            lock: lock.clone(),
            session: hold.session,
            number: hold.number(),
            token: hold.token,
            mode: hold.mode,
            since: hold.since,
            purpose: hold.purpose().to_owned(),
            is_revoked: hold.is_revoked,
        }
    }
}

impl WaiterView {
    fn new(lock: &LockName, waiter: &Waiter, place: u32) -> Self {
        Self {
            lock: lock.clone(),
            session: waiter.session,
            number: waiter.number,
            mode: waiter.mode,
            since: waiter.since,
            purpose: waiter.purpose.clone().into(),
            place,
        }
    }
}

impl SessionView {
    /// Without what hangs on it.
    fn new(id: SessionId, session: &Session, tree: &Tree) -> Self {
        Self {
            id,
            ttl_ms: session.ttl_ms,
            owner: session.owner.clone(),
            opened: session.opened,
            is_revoked: session.is_revoked,
            holds: Vec::new(),
            waits: Vec::new(),
            item_count: session.item_count(),
            ephemeral_count: tree.ephemeral_count_of(id),
        }
    }
}
