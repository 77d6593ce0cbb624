//! What the tasks of one node share.
//!
//! Everything here runs on the node's one thread, and [`NodeHandle`](crate::NodeHandle)'s callers
//! come in from any. Where two locks are held, the replica's is taken first; no lock is held across
//! an await.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::{Command, Stamp};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardReason};
use openraft::raft::ClientWriteResult;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::batcher::{Asks, Batcher};
use crate::deadlines::Deadlines;
use crate::entry::{self, BatchId};
use crate::forward::{Gate, Link};
use crate::hold::Hold;
use crate::identity::Identity;
use crate::lease::Lease;
use crate::living::Living;
use crate::log::Log;
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::raft::{Batch, Callback, Raft, Types, committed_leader};
use crate::reads::Reads;
use crate::replica::{Replica, Surroundings};
use crate::serving::Serving;
use crate::snapshot::{SnapshotFile, SnapshotStore};
use crate::space::Space;
use crate::{Environment, Fault, Monotonic, NodeConfig, NodeId, Unavailable};

/// After how long what the leader itself wants is proposed again, if it was refused.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// One node's insides.
pub(crate) struct Inner {
    pub(crate) config: NodeConfig,
    pub(crate) environment: Environment,
    pub(crate) identity: Identity,
    pub(crate) log: Log,
    pub(crate) replica: Mutex<Replica>,
    pub(crate) batcher: Batcher,
    pub(crate) deadlines: Deadlines,
    /// A reign has begun.
    pub(crate) reigns: Notify,
    pub(crate) living: Living,
    pub(crate) reads: Reads,
    pub(crate) snapshots: Snapshots,
    /// Where this node's commands, reports and questions go now.
    pub(crate) route: watch::Sender<Route>,
    pub(crate) link: Link,
    pub(crate) gate: Mutex<Gate>,
    /// When each peer was last heard from.
    pub(crate) heard: Mutex<BTreeMap<NodeId, Monotonic>>,
    /// A peer that was silent has been heard.
    pub(crate) heard_again: Notify,
    pub(crate) serving: watch::Sender<Serving>,
    /// What the newest heartbeat to each peer took, while this node led.
    pub(crate) round_trips: Mutex<BTreeMap<NodeId, Duration>>,
    /// Why a peer was last refused, or refused this node: each reason is logged once.
    pub(crate) complaints: Mutex<BTreeMap<NodeId, String>>,
    /// Why this node is unfit, once it is.
    pub(crate) fault: watch::Sender<Option<Fault>>,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) space: Space,
    pub(crate) leader_changes: AtomicU64,
    /// Until then this node neither votes nor stands: a restart forgets what it promised a leader.
    pub(crate) quiet_until: OnceLock<Monotonic>,
    /// Until then this node doesn't stand.
    pub(crate) rests_until: Mutex<Monotonic>,
    pub(crate) lease: Lease,
    /// As the leader: held while the members are changed all at once, or shown otherwise.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    /// A snapshot is being received.
    pub(crate) receiving: tokio::sync::Mutex<()>,
    /// Set once, right after the start; everything that uses them runs later.
    pub(crate) raft: OnceLock<Raft>,
    pub(crate) peer_address: OnceLock<String>,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// Given up last, when the node has stopped.
    pub(crate) hold: Hold,
}

/// Who leads, as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leadership {
    pub(crate) leader: Option<NodeId>,
    pub(crate) term: u64,
}

/// Where commands, reports and questions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// No leader is known, or it can't be reached.
    Nowhere,
    /// This node leads, in this term.
    Here(u64),
    /// The link to the leader of this term is up.
    There(u64),
}

impl Inner {
    pub(crate) fn raft(&self) -> &Raft {
        self.raft.get().expect("raft is set before any task starts")
    }

    pub(crate) fn now(&self) -> Monotonic {
        self.environment.clock.monotonic()
    }

    /// Runs a task for as long as this node lives.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        if !self.is_stopping.load(Ordering::Relaxed) {
            tasks.spawn(task);
        }
    }

    /// Ends the node with a reason; the first one counts.
    pub(crate) fn fail(&self, fault: Fault) {
        self.fault.send_if_modified(|current| {
            let is_first = current.is_none();
            if is_first {
                tracing::error!(%fault, "this node is unfit and stops");
                *current = Some(fault);
            }
            is_first
        });
    }

    /// Who leads, without asking anybody.
    pub(crate) fn leadership(&self) -> Leadership {
        // While the log is read at the start there is none yet.
        let Some(raft) = self.raft.get() else { return Leadership { leader: None, term: 0 } };
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let vote = &metrics.vote;
        let is_known = vote.committed
            && (vote.leader_id.voted_for != self.config.id || metrics.state == ServerState::Leader);
        let leader = is_known.then_some(vote.leader_id.voted_for);
        Leadership { leader, term: vote.leader_id.term }
    }

    /// The term in which this node leads, if it does.
    pub(crate) fn leading(&self) -> Option<u64> {
        let Leadership { leader, term } = self.leadership();
        (leader == Some(self.config.id)).then_some(term)
    }

    /// The first entry of a newer term has been applied here.
    pub(crate) fn term_began(&self, term: u64) {
        self.batcher.revive(term);
        self.begin_reign();
    }

    /// Begins the reign of this node, if it leads and has applied an entry of its own term.
    ///
    /// Called when either may have become true, since they come in any order.
    pub(crate) fn begin_reign(&self) {
        let Some(term) = self.leading() else { return };
        let replica = self.replica.lock();
        if replica.applied.is_some_and(|id| crate::raft::term_of(&id) == term) {
            self.deadlines.begin(term, &replica.state, self.now(), self.config.ttl_max);
            self.reigns.notify_one();
            if let Some(observer) = &self.environment.observer {
                observer.leads(term);
            }
        }
    }

    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            batcher: &self.batcher,
            deadlines: &self.deadlines,
            now: self.now(),
            is_observed: self.environment.observer.is_some(),
        }
    }

    /// The next batch for the leader of `term`, if there is one and there is room for it.
    pub(crate) fn next_batch(&self, term: u64) -> Option<Bytes> {
        let replica = self.replica.lock();
        let items = |session| replica.state.lease(session).map_or(0, |lease| lease.item_count);
        self.batcher.take(term, items, self.now())
    }

    /// Completes once `index` is applied here.
    pub(crate) async fn applied(&self, index: u64) {
        let waiting = self.replica.lock().wait(index);
        // Its other end goes only with the node.
        let _ = waiting.await;
    }

    /// Proposes a batch as the leader of `term`, and of no other. `refused` is called with the
    /// reason if it was not proposed, and then never will be by this call.
    pub(crate) async fn propose(
        &self,
        term: u64,
        batch: Bytes,
        refused: impl FnOnce(ForwardReason) + Send + 'static,
    ) {
        let stamp = Stamp(self.environment.clock.wall_ms());
        let responder = Callback::new(move |result: ClientWriteResult<Types>| {
            // Any other outcome means that it was appended: then only applying tells.
            if let Err(ClientWriteError::ForwardToLeader(forward)) = result {
                refused(forward.reason);
            }
        });
        let write = self.raft().write(Batch(entry::stamp(batch, stamp)));
        #[cfg(feature = "mutations")]
        let term = if mutated(Mutation::ExpireInAnyTerm) { self.leadership().term } else { term };
        let write = write.with_leader(committed_leader(term)).responder(responder);
        if let Err(fatal) = write.await {
            self.fail_raft(&fatal);
        }
    }

    /// Proposes commands of the leader's own, in one entry: nobody waits for their replies.
    pub(crate) async fn propose_own(
        &self,
        term: u64,
        commands: &[Command<'_>],
        refused: impl FnOnce() + Send + 'static,
    ) {
        let mut batch = entry::begin();
        commands.iter().for_each(|command| command.encode(&mut batch));
        let batch = entry::seal(batch, BatchId::NOBODYS);
        self.propose(term, batch, |_| refused()).await;
    }

    /// openraft has stopped: because this node is stopping, or because of a fault.
    pub(crate) fn fail_raft(&self, fatal: &openraft::errors::Fatal<Types>) {
        if !self.is_stopping.load(Ordering::Relaxed) {
            self.fail(self.cause(|| Fault::Internal(fatal.to_string())));
        }
    }

    /// Why openraft has ended: what this node or its log knows itself is said before `otherwise`.
    pub(crate) fn cause(&self, otherwise: impl FnOnce() -> Fault) -> Fault {
        let own = self.fault.borrow().clone();
        own.or_else(|| self.log.stats().fault).unwrap_or_else(otherwise)
    }

    /// Tells everybody in `asks` why they get no answer.
    pub(crate) fn answer_all(&self, asks: &[Asks], why: &Unavailable) {
        if asks.is_empty() {
            return;
        }
        let mut replica = self.replica.lock();
        for (sink, id) in asks.iter().flat_map(Asks::iter) {
            replica.answer(sink, id, why);
        }
        replica.flush();
    }

    /// How many voters this node hears, itself included, of how many that its log knows: it may
    /// have been cut off before it heard that its first entry was committed.
    pub(crate) fn reached(&self) -> (u32, u32) {
        let metrics = self.raft().server_metrics();
        let voters: Vec<NodeId> =
            metrics.borrow_watched().membership_config.membership().voter_ids().collect();
        let reached = voters.iter().filter(|&&voter| self.is_heard(voter)).count();
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (count(reached), count(voters.len()))
    }

    /// Whether a node has said anything lately; this one always has.
    pub(crate) fn is_heard(&self, node: NodeId) -> bool {
        let heard = self.heard.lock().get(&node).copied();
        node == self.config.id || heard.is_some_and(|last| self.now().since(last) < self.silence())
    }

    /// After this long without a word a node isn't counted any more.
    pub(crate) fn silence(&self) -> Duration {
        2 * self.config.timers.election_max
    }

    pub(crate) fn hear(&self, peer: NodeId) {
        let now = self.now();
        let last = self.heard.lock().insert(peer, now);
        if last.is_none_or(|last| now.since(last) >= self.silence()) {
            self.heard_again.notify_one();
        }
    }

    pub(crate) fn no_quorum(&self) -> Unavailable {
        let (reached, of) = self.reached();
        Unavailable::NoQuorum { reached, of }
    }

    /// Whether this node is the only voter there is.
    pub(crate) fn is_single_voter(&self) -> bool {
        let replica = self.replica.lock();
        replica.membership.membership().voter_ids().eq([self.config.id])
    }

    /// How long a request may wait for a leader before it is told that there is none: longer than
    /// an election takes that goes well.
    pub(crate) fn patience(&self) -> Duration {
        (5 * self.config.timers.election_max).max(Duration::from_secs(1))
    }
}

/// The snapshots of one node, and when the next one is due.
pub(crate) struct Snapshots {
    pub(crate) store: SnapshotStore,
    newest: Mutex<Option<SnapshotFile>>,
    /// Bytes of entries applied since the last snapshot was begun.
    bytes: AtomicU64,
    bytes_max: u64,
    /// Enough has been applied for the next one.
    pub(crate) due: Notify,
}

impl Snapshots {
    pub(crate) fn new(store: SnapshotStore, newest: Option<SnapshotFile>, bytes_max: u64) -> Self {
        let newest = Mutex::new(newest);
        Self { store, newest, bytes: AtomicU64::new(0), bytes_max, due: Notify::new() }
    }

    pub(crate) fn newest(&self) -> Option<SnapshotFile> {
        self.newest.lock().clone()
    }

    /// A snapshot has been written; an older one than is known doesn't count.
    pub(crate) fn set(&self, snapshot: SnapshotFile) {
        let mut newest = self.newest.lock();
        if newest.as_ref().is_none_or(|newest| newest.meta.index() <= snapshot.meta.index()) {
            *newest = Some(snapshot);
        }
    }

    /// Counts an applied entry.
    pub(crate) fn count(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if before + bytes as u64 >= self.bytes_max {
            self.bytes.store(0, Ordering::Relaxed);
            self.due.notify_one();
        }
    }
}
