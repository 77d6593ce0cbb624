//! The node as the front ends see it.

use std::sync::Arc;

use lockkeeper_core::{
    Command, Event, Refusal, Reply, Secret, SessionId, SessionView, Stamp, StateMachine,
};

use crate::{
    Environment, Fault, Member, MembershipError, NodeConfig, NodeId, StartError, Unavailable,
};

/// One replica. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct NodeHandle {
    _inner: Arc<()>,
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
        let _ = (config, environment);
        Err(StartError::Config("not built yet".to_owned()))
    }

    /// Queues a command for the log; `sink.reply(id, …)` tells what became of it. Never blocks.
    ///
    /// An answered [`Command::OpenSession`] attaches the session to `sink` at that same entry.
    pub fn propose(&self, command: &Command<'_>, id: u64, sink: &Arc<dyn Sink>) {
        let _ = (command, id, sink);
    }

    /// A heartbeat of a session that is attached here; `sink.confirmed(id)` when a quorum has
    /// confirmed it. An ended or revoked session is never confirmed.
    pub fn heartbeat(&self, session: SessionId, id: u64, sink: &Arc<dyn Sink>) {
        let _ = (session, id, sink);
    }

    /// Any frame of this session was read: it lives. Costs nothing but a note for the next report.
    pub fn heard(&self, session: SessionId) {
        let _ = session;
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
        let _ = (session, secret, sink);
        Err(Unavailable::Stopping)
    }

    /// Forgets a sink: its session is no longer attached here (it lives on until its lease ends),
    /// its watches end, replies to it are dropped.
    pub fn detach(&self, sink: &Arc<dyn Sink>) {
        let _ = sink;
    }

    /// Waits until this node has applied everything that was committed anywhere before the call.
    /// Calls of one loop turn share one round.
    ///
    /// # Errors
    ///
    /// [`Unavailable::NoQuorum`], [`Unavailable::Stopping`].
    pub async fn read_index(&self) -> Result<(), Unavailable> {
        Err(Unavailable::Stopping)
    }

    /// Looks at the applied state and the newest stamp. Linearizable only after
    /// [`NodeHandle::read_index`]. Keep it short: the node's thread waits meanwhile.
    pub fn query<R>(&self, look: impl FnOnce(&StateMachine, Stamp) -> R) -> R {
        look(&StateMachine::default(), Stamp(0))
    }

    /// Milliseconds left of each session's lease, as the leader knows it; `None` entries for those
    /// it doesn't know, or if the leader can't be asked.
    pub async fn leases_left(&self, sessions: &[SessionId]) -> Vec<Option<u32>> {
        vec![None; sessions.len()]
    }

    /// Sends every event of locks whose name starts with `prefix` to `sink`, from the next entry
    /// on, until [`NodeHandle::unwatch`] or [`NodeHandle::detach`].
    pub fn watch(&self, prefix: &str, id: WatchId, sink: &Arc<dyn Sink>) {
        let _ = (prefix, id, sink);
    }

    /// Ends one watch.
    pub fn unwatch(&self, id: WatchId, sink: &Arc<dyn Sink>) {
        let _ = (id, sink);
    }

    /// What this node knows of itself and its cluster, without asking anybody.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::default()
    }

    /// Adds a node that was started with [`crate::Start::Join`]: first as a learner, then, once it
    /// has caught up, as a voter. Any node may be asked.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn add_member(&self, member: Member) -> Result<(), MembershipError> {
        let _ = member;
        Err(Unavailable::Stopping.into())
    }

    /// Removes a member. A leader that is removed hands over first. Any node may be asked.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn remove_member(&self, node: NodeId) -> Result<(), MembershipError> {
        let _ = node;
        Err(Unavailable::Stopping.into())
    }

    /// Hands leadership to `to`, or to the best caught-up voter. Any node may be asked.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, MembershipError> {
        let _ = to;
        Err(Unavailable::Stopping.into())
    }

    /// Takes a snapshot now (and gives up the log before it), whatever the log's size.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Stopping`].
    pub async fn snapshot(&self) -> Result<(), Unavailable> {
        Err(Unavailable::Stopping)
    }

    /// A backup: a file image in the snapshot format, of a linearizable moment.
    ///
    /// # Errors
    ///
    /// [`Unavailable`].
    pub async fn backup(&self) -> Result<Vec<u8>, Unavailable> {
        Err(Unavailable::Stopping)
    }

    /// Ends the node: hands leadership over if it has it, lets what is in flight be answered for a
    /// short while, closes the sinks and the log.
    pub async fn stop(&self) {}

    /// Completes when the node has become unfit; the process should say why and exit.
    pub async fn fault(&self) -> Fault {
        std::future::pending().await
    }
}

/// Makes a data directory for a new cluster out of a backup. Nothing may be in the directory.
///
/// # Errors
///
/// [`StartError`].
pub fn restore(
    backup: &[u8],
    config: &NodeConfig,
    environment: &Environment,
    clients_are_stopped: bool,
) -> Result<lockkeeper_core::ClusterId, StartError> {
    let _ = (backup, config, environment, clients_are_stopped);
    Err(StartError::Config("not built yet".to_owned()))
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
    /// with a live quorum, or hears one.
    pub is_ready: bool,
    /// Voters that this node hears, itself included.
    pub voters_reached: u32,
    /// Where its peer listener listens; `None` if there is none.
    pub peer_address: Option<String>,
    /// Commands' bytes that wait for the log.
    pub queued_bytes: usize,
    /// Elections that this node has seen end since it started.
    pub leader_changes: u64,
    /// Log fsyncs since the start, and their time in microseconds.
    pub fsyncs: u64,
    /// Microseconds spent in them.
    pub fsync_micros: u64,
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
    /// What is known to be on its disk: the leader's view.
    pub matched_index: Option<u64>,
}
