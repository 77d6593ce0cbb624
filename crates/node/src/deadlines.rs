//! Who is alive: the leader's memory of when it last heard from each session.
//!
//! No heartbeat enters the log. The leader keeps, by its own monotonic clock, when each session was
//! last heard from; it *confirms* what it heard once a quorum has acknowledged something that was
//! sent afterwards; and it *proposes* the end of a session of which it has heard nothing for a full
//! lease. The ending is valid in that leader's term only.
//!
//! # Guarantees
//!
//! - **A confirmed heartbeat is worth a full lease** from the moment at which its client sent it:
//!   this leader counts from a later moment, and every later leader gives every session a full
//!   lease from the first own entry that it applies, which is later still.
//! - **No word after the last.** A session whose ending has been proposed, or that has been
//!   revoked, is confirmed no more. One that is revoked ends a full lease after the leader learned
//!   of it.
//! - **A stall is nobody's fault.** After this node's own loop stood still, what clients sent
//!   meanwhile may not have been read: every session gets a full lease anew.
//!
//! Not promised: that a dead session ends after its lease exactly. Elections and stalls that come
//! more often than a lease put it off.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Command, EndReason, Event, Lease, SessionId, StateMachine};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::inner::{Inner, RETRY};
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::{LeaseMargins, Monotonic};

/// The deadlines of one node. They are kept only while it leads.
#[derive(Default)]
pub(crate) struct Deadlines {
    reign: Mutex<Option<Reign>>,
    /// The next moment to look at has come nearer, or a reign has begun or ended.
    changed: Notify,
    margins: Margins,
}

/// [`LeaseMargins`] as they are counted.
#[derive(Default)]
struct Margins {
    tenths: [AtomicU64; 10],
    sum_permille: AtomicU64,
}

impl Margins {
    /// A session whose lease lasts `ttl` was heard from `silence` after the last time.
    fn count(&self, ttl: Duration, silence: Duration) {
        let (ttl, silence) = (ttl.as_millis().max(1), silence.as_millis());
        let permille = 1_000 * ttl.saturating_sub(silence) / ttl;
        // It is a share of a thousand.
        let permille = u64::try_from(permille).unwrap_or(0);
        let tenth = usize::try_from(permille / 100).unwrap_or(0).min(9);
        self.tenths[tenth].fetch_add(1, Ordering::Relaxed);
        self.sum_permille.fetch_add(permille, Ordering::Relaxed);
    }
}

/// What a leader knows of the living, from the first entry of its term on.
struct Reign {
    term: u64,
    leases: BTreeMap<SessionId, Heard>,
    /// When to look at whom: never later than the session's deadline, often earlier.
    looks: BinaryHeap<Reverse<(Monotonic, SessionId)>>,
    /// How many sessions are revoked: mostly none, and then nothing is looked up for them.
    revoked_count: usize,
    /// When the silence after a restore ends, if it lasts.
    silent_until: Option<Monotonic>,
}

struct Heard {
    ttl: Duration,
    /// When this session was last heard from; only a later word moves it.
    last: Monotonic,
    /// Since when it is revoked. It then ends a lease later, whatever is heard.
    revoked: Option<Monotonic>,
    ending: Option<Ending>,
}

/// A deadline has passed: there is no way back, whatever is heard.
struct Ending {
    reason: EndReason,
    /// Not so if the proposal was refused: then it is to be made again.
    is_proposed: bool,
}

impl Heard {
    fn new(lease: &Lease, now: Monotonic) -> Self {
        Self {
            ttl: Duration::from_millis(lease.ttl_ms.into()),
            last: now,
            revoked: lease.is_revoked.then_some(now),
            ending: None,
        }
    }

    fn deadline(&self) -> Monotonic {
        self.revoked.map_or(self.last, |revoked| revoked.min(self.last)).plus(self.ttl)
    }

    fn reason(&self) -> EndReason {
        let is_revoked = self.revoked.is_some_and(|revoked| revoked <= self.last);
        if is_revoked { EndReason::Revoked } else { EndReason::Expired }
    }
}

impl Reign {
    fn add(&mut self, lease: &Lease, now: Monotonic) {
        let heard = Heard::new(lease, now);
        self.looks.push(Reverse((heard.deadline(), lease.session)));
        self.revoked_count += usize::from(lease.is_revoked);
        if let Some(earlier) = self.leases.insert(lease.session, heard) {
            self.revoked_count -= usize::from(earlier.revoked.is_some());
        }
    }

    /// The session has another lease, all of it from now. That keeps no revoked one alive.
    fn resume(&mut self, lease: &Lease, now: Monotonic) {
        let Some(heard) = self.leases.get_mut(&lease.session) else { return };
        heard.ttl = Duration::from_millis(lease.ttl_ms.into());
        heard.last = heard.last.max(now);
        self.looks.push(Reverse((heard.deadline(), lease.session)));
    }

    /// A full lease for everybody, from now. A silence that is over ends now: what is due is never
    /// left in the past, or whoever looks for it would take the way there for a stall, for ever.
    fn renew_all(&mut self, now: Monotonic) {
        self.looks.clear();
        self.silent_until = self.silent_until.map(|until| until.max(now));
        for (&session, heard) in &mut self.leases {
            heard.last = now;
            heard.revoked = heard.revoked.map(|_| now);
            self.looks.push(Reverse((heard.deadline(), session)));
        }
    }

    /// Sessions whose deadline has passed, marked as ending. The others are looked at again later.
    fn take_overdue(&mut self, now: Monotonic) -> Vec<(SessionId, EndReason)> {
        let mut overdue = Vec::new();
        while let Some(&Reverse((at, session))) = self.looks.peek()
            && at <= now
        {
            self.looks.pop();
            let Some(heard) = self.leases.get_mut(&session) else { continue };
            if heard.ending.is_none() && heard.deadline() > now {
                self.looks.push(Reverse((heard.deadline(), session)));
                continue;
            }
            let reason = heard.reason();
            let ending = heard.ending.get_or_insert(Ending { reason, is_proposed: false });
            if !std::mem::replace(&mut ending.is_proposed, true) {
                overdue.push((session, ending.reason));
            }
        }
        overdue
    }

    fn next_look(&self) -> Option<Monotonic> {
        let look = self.looks.peek().map(|&Reverse((at, _))| at);
        look.into_iter().chain(self.silent_until).min()
    }
}

impl Deadlines {
    /// The first own entry of `term` has been applied: the reign begins, with a full lease for
    /// everybody.
    pub(crate) fn begin(&self, term: u64, state: &StateMachine, now: Monotonic, silence: Duration) {
        let mut reign = self.reign.lock();
        if reign.as_ref().is_some_and(|reign| reign.term == term) {
            return;
        }
        #[cfg(feature = "mutations")]
        if let Some(old) = reign.as_mut().filter(|_| mutated(Mutation::ExpireInAnyTerm)) {
            old.term = term;
            return;
        }
        let mut new = Reign {
            term,
            leases: BTreeMap::new(),
            looks: BinaryHeap::new(),
            revoked_count: 0,
            silent_until: state.is_silent().then(|| now.plus(silence)),
        };
        state.leases().for_each(|lease| new.add(&lease, now));
        *reign = Some(new);
        self.changed.notify_one();
    }

    /// This node leads no longer.
    pub(crate) fn end(&self) {
        #[cfg(feature = "mutations")]
        if mutated(Mutation::ExpireInAnyTerm) {
            return;
        }
        if self.reign.lock().take().is_some() {
            self.changed.notify_one();
        }
    }

    /// The term in which this node leads and has applied an own entry.
    pub(crate) fn term(&self) -> Option<u64> {
        self.reign.lock().as_ref().map(|reign| reign.term)
    }

    /// These sessions were heard from: a frame of each was read just now, or a little earlier.
    pub(crate) fn heard(&self, sessions: &[SessionId], now: Monotonic) {
        if let Some(reign) = &mut *self.reign.lock() {
            for session in sessions {
                if let Some(heard) = reign.leases.get_mut(session) {
                    self.margins.count(heard.ttl, now.since(heard.last));
                    heard.last = heard.last.max(now);
                }
            }
        }
    }

    /// How near to their end leases were renewed here.
    pub(crate) fn margins(&self) -> LeaseMargins {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Margins { tenths, sum_permille } = &self.margins;
        LeaseMargins { tenths: tenths.each_ref().map(load), sum_permille: load(sum_permille) }
    }

    /// Which of `sessions` are not to be confirmed, although a quorum has been heard.
    pub(crate) fn unconfirmable(&self, sessions: &[SessionId]) -> Vec<SessionId> {
        let reign = self.reign.lock();
        let Some(reign) = &*reign else { return sessions.to_vec() };
        let is_confirmable = |session: &SessionId| {
            let heard = reign.leases.get(session);
            heard.is_some_and(|heard| heard.ending.is_none() && heard.revoked.is_none())
        };
        sessions.iter().copied().filter(|session| !is_confirmable(session)).collect()
    }

    /// Milliseconds left of each lease.
    pub(crate) fn left_ms(&self, sessions: &[SessionId], now: Monotonic) -> Vec<Option<u32>> {
        let reign = self.reign.lock();
        let left = |session: &SessionId| {
            let heard = reign.as_ref()?.leases.get(session)?;
            u32::try_from(heard.deadline().since(now).as_millis()).ok()
        };
        sessions.iter().map(left).collect()
    }

    /// Follows what an applied command did to sessions. `state` is the state after it.
    pub(crate) fn follow(&self, events: &[Event], state: &StateMachine, now: Monotonic) {
        let mut reign = self.reign.lock();
        let Some(reign) = &mut *reign else { return };
        for event in events {
            match event {
                Event::SessionOpened { session } => {
                    if let Some(lease) = state.lease(*session) {
                        let next = reign.next_look();
                        reign.add(&lease, now);
                        if reign.next_look() != next {
                            self.changed.notify_one();
                        }
                    }
                }
                Event::SessionMoved { session, .. } => {
                    if let Some(lease) = state.lease(*session) {
                        reign.resume(&lease, now);
                        self.changed.notify_one();
                    }
                }
                Event::SessionEnded { session, .. } => {
                    let heard = reign.leases.remove(session);
                    reign.revoked_count -=
                        usize::from(heard.is_some_and(|heard| heard.revoked.is_some()));
                }
                Event::Revoked { session, .. } | Event::SessionRevoked { session } => {
                    reign.follow_revocation(*session, state, now);
                    self.changed.notify_one();
                }
                Event::Released { session, .. } | Event::Lost { session, .. }
                    if reign.revoked_count > 0 =>
                {
                    reign.follow_revocation(*session, state, now);
                }
                Event::Released { .. }
                | Event::Lost { .. }
                | Event::Queued { .. }
                | Event::Granted { .. }
                | Event::Cancelled { .. }
                | Event::Node { .. } => {}
            }
        }
    }

    /// The end of the silence was not proposed after all.
    fn silence_again(&self, at: Monotonic) {
        if let Some(reign) = &mut *self.reign.lock() {
            reign.silent_until = Some(at);
        }
        self.changed.notify_one();
    }

    /// Endings that were not proposed after all: they are due again, a little later.
    pub(crate) fn retry(&self, term: u64, sessions: &[SessionId], at: Monotonic) {
        if let Some(reign) = &mut *self.reign.lock()
            && reign.term == term
        {
            for &session in sessions {
                if let Some(ending) = reign.leases.get_mut(&session).and_then(|h| h.ending.as_mut())
                {
                    ending.is_proposed = false;
                    reign.looks.push(Reverse((at, session)));
                }
            }
        }
        self.changed.notify_one();
    }
}

impl Reign {
    /// Whether the session is revoked now, and since when.
    fn follow_revocation(&mut self, session: SessionId, state: &StateMachine, now: Monotonic) {
        let Some(heard) = self.leases.get_mut(&session) else { return };
        let is_revoked = state.lease(session).is_some_and(|lease| lease.is_revoked);
        match (heard.revoked, is_revoked) {
            (None, true) => {
                heard.revoked = Some(now);
                self.revoked_count += 1;
                self.looks.push(Reverse((heard.deadline(), session)));
            }
            (Some(_), false) => {
                heard.revoked = None;
                self.revoked_count -= 1;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
}

/// Ends the sessions of which nothing is heard, for as long as this node lives.
pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        let next = inner.deadlines.reign.lock().as_ref().and_then(Reign::next_look);
        let Some(at) = next else {
            inner.deadlines.changed.notified().await;
            continue;
        };
        tokio::select! {
            biased;
            () = inner.deadlines.changed.notified() => continue,
            () = sleep(at.since(inner.now())) => {}
        }
        // What was sent in time may still be in a socket: read it before judging.
        let tick = inner.config.timers.heartbeat;
        let before = inner.now();
        sleep(tick / 2).await;
        let now = inner.now();
        let has_stalled = before.since(at) > tick || now.since(before) > tick + tick / 2;
        if has_stalled {
            tracing::warn!(
                late_ms = now.since(at).as_millis() as u64,
                "this node stood still: every session gets a full lease"
            );
            renew_all(&inner.deadlines, now);
        } else {
            propose_endings(&inner, now).await;
        }
    }
}

fn renew_all(deadlines: &Deadlines, now: Monotonic) {
    if let Some(reign) = &mut *deadlines.reign.lock() {
        reign.renew_all(now);
    }
}

/// Items that the sessions ended by one entry have together, unless a single one has more: a few
/// milliseconds of the node's thread. Other entries go between.
const ITEMS_PER_ENTRY_MAX: usize = 1_000;

/// Proposes what is due, in entries that each apply in a small part of an election time-out.
async fn propose_endings(inner: &Arc<Inner>, now: Monotonic) {
    let (term, mut overdue, ends_silence) = {
        let mut reign = inner.deadlines.reign.lock();
        let Some(reign) = &mut *reign else { return };
        let ends_silence = reign.silent_until.take_if(|until| *until <= now).is_some();
        (reign.term, reign.take_overdue(now), ends_silence)
    };
    if ends_silence {
        tracing::info!("the silence after the restore is over: locks are granted again");
        let retry = Arc::clone(inner);
        let again = move || retry.deadlines.silence_again(retry.now().plus(RETRY));
        inner.propose_own(term, &[Command::EndSilence], again).await;
    }
    while !overdue.is_empty() {
        let count = inner.replica.lock().fitting(&overdue, ITEMS_PER_ENTRY_MAX);
        let chunk: Vec<_> = overdue.drain(..count).collect();
        let commands: Vec<_> = chunk
            .iter()
            .map(|&(session, reason)| Command::EndSession { session, reason })
            .collect();
        let retry = Arc::clone(inner);
        let sessions: Vec<_> = chunk.iter().map(|&(session, _)| session).collect();
        let again = move || retry.deadlines.retry(term, &sessions, retry.now().plus(RETRY));
        inner.propose_own(term, &commands, again).await;
    }
}
