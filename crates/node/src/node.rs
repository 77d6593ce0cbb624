//! The node as the front ends see it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{
    Command, Event, Refusal, Reply, Secret, SessionId, SessionView, Stamp, StateMachine,
};
use openraft::async_runtime::WatchReceiver;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::ensemble::OwnListing;
use crate::forward::ask_leader;
use crate::inner::Inner;
use crate::peer::message::{Answer, Question};
use crate::snapshot::write_image;
use crate::{
    Ensemble, EnsembleMember, Environment, Fault, Member, MembershipError, NodeConfig, NodeId,
    ReconfigureError, Serving, StartError, Unavailable, address, ensemble, membership, space,
    start,
};

/// One replica. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct NodeHandle {
    inner: Arc<Inner>,
}

/// Where a connection receives what concerns it. The node calls it from its own thread, once an
/// entry has been applied; it must not block, only encode and queue.
///
/// Calls that belong to one entry are followed by one [`Sink::flush`], so that a connection
/// writes once per entry and not once per reply.
pub trait Sink: Send + Sync + 'static {
    /// The answer to the request `id` given to [`NodeHandle::propose`]. `state` is the state right
    /// after the command, at `now`.
    fn reply(&self, id: u64, reply: Result<&Reply, &Unavailable>, state: &StateMachine, now: Stamp);
    /// An event of the session that is attached here, or of a watch.
    fn event(&self, watch: Option<WatchId>, event: &Event, state: &StateMachine, now: Stamp);
    /// To whoever watches: what comes until the next call of this is of one batch, and `took` is
    /// how long ago the first of its commands was given to this node; `None`: not to this one.
    fn batch(&self, took: Option<Duration>) {
        let _ = took;
    }
    /// The heartbeat `id` is confirmed by a quorum.
    fn confirmed(&self, id: u64);
    /// Everything of this turn has been said.
    fn flush(&self);
    /// The connection is to be closed: its session was attached elsewhere, or the node can't tell
    /// any more what became of its requests.
    fn close(&self, reason: &'static str);
}

/// Names a watch among those of one [`Sink`]: the id of the request that made it.
pub type WatchId = u64;

/// What [`NodeHandle::attach`] found.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The session, at the very index from which the sink gets its events.
    pub session: SessionView,
    /// The state's revision at that index.
    pub revision: u64,
}

impl NodeHandle {
    /// Starts a node on the current tokio runtime, which should be a `current_thread` one of its
    /// own: opens the log, recovers, listens for peers. Returns once it can take commands (not
    /// necessarily with a leader).
    ///
    /// # Errors
    ///
    /// [`StartError`], each with what to do.
    pub async fn start(config: NodeConfig, environment: Environment) -> Result<Self, StartError> {
        let inner = start::start(config, environment).await?;
        Ok(Self { inner })
    }

    /// Queues a command for the log; `sink.reply(id, …)` tells what became of it. Never blocks.
    ///
    /// An answered [`Command::OpenSession`] or [`Command::ResumeSession`] attaches the session to
    /// `sink` at that same entry.
    pub fn propose(&self, command: &Command<'_>, id: u64, sink: &Arc<dyn Sink>) {
        if let Err(why) = self.try_propose(command, id, sink) {
            let mut replica = self.inner.replica.lock();
            replica.answer(sink, id, &why);
            replica.flush();
        }
    }

    fn try_propose(
        &self,
        command: &Command<'_>,
        id: u64,
        sink: &Arc<dyn Sink>,
    ) -> Result<(), Unavailable> {
        let inner = &*self.inner;
        if inner.is_stopping.load(Ordering::Relaxed) {
            return Err(Unavailable::Stopping);
        }
        inner.space.admits(command)?;
        inner.batcher.push(command, id, sink, inner.now(), space::frees(command))
    }

    /// A heartbeat of a session that is attached here; `sink.confirmed(id)` when a quorum has
    /// confirmed it. An ended or revoked session is never confirmed.
    pub fn heartbeat(&self, session: SessionId, id: u64, sink: &Arc<dyn Sink>) {
        self.inner.living.beat(session, id, sink);
    }

    /// Any frame of this session was read: it lives. Costs nothing but a note for the next report.
    pub fn heard(&self, session: SessionId) {
        self.inner.living.heard(session);
    }

    /// Attaches a live session to `sink`, behind a linearizable read: from the returned index on,
    /// its events go there, and an earlier sink of the session is closed.
    ///
    /// # Errors
    ///
    /// `Ok(Err(..))`: unknown session, wrong secret. `Err(..)`: the node can't say now.
    pub async fn attach(
        &self,
        session: SessionId,
        secret: &Secret,
        sink: &Arc<dyn Sink>,
    ) -> Result<Result<Attached, Refusal>, Unavailable> {
        self.read_index().await?;
        let mut replica = self.inner.replica.lock();
        match replica.state.authenticate(session, secret) {
            None => return Ok(Err(Refusal::UnknownSession)),
            Some(false) => return Ok(Err(Refusal::WrongSecret)),
            Some(true) => {}
        }
        let Some(view) = replica.state.session(session) else {
            return Ok(Err(Refusal::UnknownSession));
        };
        replica.listeners.attach(session, sink);
        Ok(Ok(Attached { session: view, revision: replica.state.revision().0 }))
    }

    /// Forgets a sink: its session is no longer attached here (it lives on until its lease ends),
    /// and its watches end. Replies to what it has asked may still come.
    pub fn detach(&self, sink: &Arc<dyn Sink>) {
        self.inner.replica.lock().listeners.detach(sink);
    }

    /// Waits until this node has applied everything that was committed anywhere before the call.
    /// Calls of one loop turn share one round.
    ///
    /// # Errors
    ///
    /// [`Unavailable::NoQuorum`], [`Unavailable::Stopping`].
    pub async fn read_index(&self) -> Result<(), Unavailable> {
        if self.inner.is_stopping.load(Ordering::Relaxed) {
            return Err(Unavailable::Stopping);
        }
        self.inner.reads.ask().await
    }

    /// Looks at the applied state and the newest stamp. Linearizable only after
    /// [`NodeHandle::read_index`]. Keep it short: the node's thread waits meanwhile.
    pub fn query<R>(&self, look: impl FnOnce(&StateMachine, Stamp) -> R) -> R {
        let replica = self.inner.replica.lock();
        look(&replica.state, replica.state.stamp())
    }

    /// Milliseconds left of each session's lease, as the leader knows it; `None` entries for those
    /// it doesn't know, or if the leader can't be asked.
    pub async fn leases_left(&self, sessions: &[SessionId]) -> Vec<Option<u32>> {
        let question = Question::Leases(sessions.to_vec());
        match timeout(self.inner.patience(), ask_leader(&self.inner, question)).await {
            Ok(Some(Answer::Leases(left))) if left.len() == sessions.len() => left,
            _ => vec![None; sessions.len()],
        }
    }

    /// Sends every event of locks whose name starts with `prefix` to `sink`, from the next entry
    /// on, until [`NodeHandle::unwatch`] or [`NodeHandle::detach`].
    pub fn watch(&self, prefix: &str, id: WatchId, sink: &Arc<dyn Sink>) {
        self.inner.replica.lock().listeners.watch(prefix, id, sink);
    }

    /// Sends every change of the tree, and every end of a session behind those that it made, to
    /// `sink`, from the next entry on, until [`NodeHandle::detach`]. It comes before the answer to
    /// the command that made it.
    pub fn watch_tree(&self, sink: &Arc<dyn Sink>) {
        self.inner.replica.lock().listeners.watch_tree(sink);
    }

    /// Ends one watch.
    pub fn unwatch(&self, id: WatchId, sink: &Arc<dyn Sink>) {
        self.inner.replica.lock().listeners.unwatch(id, sink);
    }

    /// Whether this node leads, as far as it knows. Cheap, and may be asked by a [`Sink`].
    #[must_use]
    pub fn leads(&self) -> bool {
        self.inner.leading().is_some()
    }

    /// What this node knows of itself and its cluster, without asking anybody.
    #[must_use]
    pub fn status(&self) -> Status {
        status(&self.inner)
    }

    /// Changes when a majority begins or ceases to serve this node, as far as it knows, and when
    /// the members are others.
    #[must_use]
    pub fn serving(&self) -> watch::Receiver<Serving> {
        self.inner.serving.subscribe()
    }

    /// Adds a node that was started with [`crate::Start::Join`]: first as a learner, then, once it
    /// has caught up, as a voter. Any node may be asked.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn add_member(&self, member: Member) -> Result<(), MembershipError> {
        membership::ask(&self.inner, member.into()).await.map(|_| ())
    }

    /// Adds such a node as one that follows without a vote: it serves reads, and passes on what
    /// its clients write.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn add_learner(&self, member: Member) -> Result<(), MembershipError> {
        let Member { id, peer_address } = member;
        let question = Question::AddLearner { id, peer_address };
        membership::ask(&self.inner, question).await.map(|_| ())
    }

    /// The members, and since when they are shown to ZooKeeper's clients, as this node has applied
    /// it.
    #[must_use]
    pub fn ensemble(&self) -> Ensemble {
        ensemble::applied(&self.inner)
    }

    /// Makes these the members, all at once, if those that are shown since the revision `base` are
    /// still there. Who votes, and can be reached, catches up with the log before. Any node may be
    /// asked. Dropping the future doesn't stop what has begun.
    ///
    /// # Errors
    ///
    /// [`ReconfigureError`].
    pub async fn reconfigure(
        &self,
        base: u64,
        members: Vec<EnsembleMember>,
    ) -> Result<(), ReconfigureError> {
        let (done, told) = oneshot::channel();
        let inner = Arc::clone(&self.inner);
        self.inner.spawn(async move {
            // Whoever asked may have given up waiting.
            let _ = done.send(ensemble::ask(&inner, base, &members).await);
        });
        told.await.unwrap_or(Err(ReconfigureError::Unknown))
    }

    /// Has ZooKeeper's clients shown that this node serves them at `client`, once it is a voter;
    /// if `even_alone`, also while there is nobody else. To be called once, on the node's runtime.
    pub fn keep_listed(&self, client: String, even_alone: bool) {
        let own = OwnListing { client, even_alone };
        self.inner.spawn(ensemble::keep_listed(Arc::clone(&self.inner), own));
    }

    /// Removes a member. A leader that is removed hands over first. Any node may be asked.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn remove_member(&self, node: NodeId) -> Result<(), MembershipError> {
        membership::ask(&self.inner, Question::RemoveMember { id: node, again: false })
            .await
            .map(|_| ())
    }

    /// Hands leadership to `to`, or to the best caught-up voter. Any node may be asked.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, MembershipError> {
        let question = membership::hand_over(&self.inner, to);
        membership::ask(&self.inner, question).await
    }

    /// Takes a snapshot now (and gives up the log before it), whatever the log's size.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Stopping`].
    pub async fn snapshot(&self) -> Result<(), Unavailable> {
        let stopping = |_| Unavailable::Stopping;
        let raft = self.inner.raft();
        let applied = self.inner.replica.lock().applied;
        let mut metrics = raft.data_metrics();
        raft.trigger().snapshot().await.map_err(stopping)?;
        while metrics.borrow_watched().snapshot < applied {
            metrics.changed().await.map_err(|_| Unavailable::Stopping)?;
        }
        let Some(applied) = applied else { return Ok(()) };
        raft.trigger().purge_log(applied.index).await.map_err(stopping)
    }

    /// A backup: a file image in the snapshot format, of a linearizable moment.
    ///
    /// # Errors
    ///
    /// [`Unavailable`].
    pub async fn backup(&self) -> Result<Vec<u8>, Unavailable> {
        self.read_index().await?;
        let (meta, state) = {
            let replica = self.inner.replica.lock();
            (replica.meta(), replica.state.clone())
        };
        let image = self.inner.environment.run_behind("backup", move || {
            let mut image = Vec::new();
            write_image(&mut image, &meta, &state)?;
            Ok(image)
        });
        // Writing to memory doesn't fail; the node may end meanwhile.
        image.await.map_err(|_| Unavailable::Stopping)
    }

    /// Ends the node: hands leadership over if it has it, lets what is in flight be answered for a
    /// short while, closes the sinks and the log.
    pub async fn stop(&self) {
        let inner = &self.inner;
        if inner.leading().is_some() && !inner.is_single_voter() {
            // If nobody takes over, the others elect somebody when this node is gone.
            let handing = self.transfer_leadership(None);
            let _ = timeout(Duration::from_secs(2), handing).await;
        }
        inner.is_stopping.store(true, Ordering::Relaxed);
        let answered = async {
            while inner.batcher.queued_bytes() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = timeout(Duration::from_secs(1), answered).await;
        inner.answer_all(&inner.batcher.forget_waiting(), &Unavailable::Stopping);
        inner.answer_all(&inner.batcher.forget_flights(), &Unavailable::Unknown);
        inner.replica.lock().listeners.close_all("this node is stopping");
        // It has ended in whatever way.
        let _ = inner.raft().shutdown().await;
        let mut tasks = std::mem::take(&mut *inner.tasks.lock());
        tasks.shutdown().await;
        start::release(inner).await;
    }

    /// Completes when the node has become unfit; the process should say why and exit.
    pub async fn fault(&self) -> Fault {
        let mut fault = self.inner.fault.subscribe();
        loop {
            if let Some(fault) = &*fault.borrow_and_update() {
                return fault.clone();
            }
            if fault.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

fn status(inner: &Inner) -> Status {
    let leadership = inner.leadership();
    let (voters_reached, _) = inner.reached();
    let raft = inner.raft().metrics();
    let raft = raft.borrow_watched();
    let now = inner.now();
    let heard = inner.heard.lock().clone();
    let round_trips = match leadership.leader {
        Some(leader) if leader == inner.config.id => inner.round_trips.lock().clone(),
        _ => BTreeMap::new(),
    };
    let members = raft.membership_config.membership();
    let voter_ids: BTreeSet<NodeId> = members.voter_ids().collect();
    let members = members.nodes().map(|(&id, node)| MemberStatus {
        member: Member { id, peer_address: address::peer(node).to_owned() },
        is_voter: voter_ids.contains(&id),
        heard_ms_ago: heard
            .get(&id)
            .map(|&last| u64::try_from(now.since(last).as_millis()).unwrap_or(u64::MAX)),
        round_trip_micros: round_trips
            .get(&id)
            .map(|round_trip| u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX)),
        matched_index: raft
            .replication
            .as_ref()
            .and_then(|matched| Some(matched.get(&id)?.as_ref()?.index)),
    });
    let log = inner.log.stats();
    Status {
        id: inner.config.id,
        leader: inner.leader_heard(),
        term: leadership.term,
        applied_index: raft.last_applied.map_or(0, |id| id.index),
        members: members.collect(),
        is_ready: inner.is_served(),
        refusal: inner.space.refusal(),
        voters_reached,
        peer_address: inner.peer_address.get().cloned(),
        queued_bytes: inner.batcher.queued_bytes(),
        disk_free_bytes: inner.space.free_bytes(),
        is_refusing_for_space: inner.space.is_refusing(),
        lease_margins: inner.deadlines.margins(),
        leader_changes: inner.leader_changes.load(Ordering::Relaxed),
        fsyncs: log.syncs,
        fsync_micros: u64::try_from(log.sync_time.as_micros()).unwrap_or(u64::MAX),
    }
}

/// What a node knows of itself and its cluster.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// This node.
    pub id: NodeId,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// Raft's term.
    pub term: u64,
    /// The last applied log index.
    pub applied_index: u64,
    /// The members, in order of id.
    pub members: Vec<MemberStatus>,
    /// Whether this node can serve linearizable requests now, as far as it knows: it is a leader
    /// with a live quorum, or hears one and can reach it.
    pub is_ready: bool,
    /// Why new work is refused although there is a majority: the disks are nearly full.
    pub refusal: Option<Unavailable>,
    /// Voters that this node hears, itself included.
    pub voters_reached: u32,
    /// Where its peer listener listens; `None` if there is none.
    pub peer_address: Option<String>,
    /// Commands' bytes that wait for the log.
    pub queued_bytes: usize,
    /// Bytes free on the log's disk, at the last look.
    pub disk_free_bytes: u64,
    /// New work is refused here, for want of room on this node's disk, the leader's, or too many
    /// voters'.
    pub is_refusing_for_space: bool,
    /// How near to their end leases were renewed while this node led.
    pub lease_margins: LeaseMargins,
    /// Elections that this node has seen end since it started.
    pub leader_changes: u64,
    /// Log fsyncs since the start, and their time in microseconds.
    pub fsyncs: u64,
    /// Microseconds spent in them.
    pub fsync_micros: u64,
}

impl Status {
    /// Whether a lock could be taken here now, as far as this node knows.
    #[must_use]
    pub const fn takes_locks(&self) -> bool {
        self.is_ready && self.refusal.is_none()
    }
}

/// How much of each lease was left whenever its session was heard from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseMargins {
    /// How often it was less than a tenth, less than two tenths, and so on.
    pub tenths: [u64; 10],
    /// The sum of all the shares, in thousandths.
    pub sum_permille: u64,
}

/// A member as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Who, and where.
    pub member: Member,
    /// It votes (a learner doesn't, yet).
    pub is_voter: bool,
    /// Milliseconds since the answering node heard from it; `None`: never.
    pub heard_ms_ago: Option<u64>,
    /// Microseconds that the newest heartbeat took to it and back, if the answering node leads.
    pub round_trip_micros: Option<u64>,
    /// What is known to be on its disk: the leader's view.
    pub matched_index: Option<u64>,
}
