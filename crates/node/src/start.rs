//! How a node begins: whose directory it is, what is on the disk, and then Raft.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{ClusterId, Command};
use openraft::impls::BasicNode;
use openraft::{ChangeMembers, Config, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::applier::Applier;
use crate::batcher::Batcher;
use crate::deadlines::Deadlines;
use crate::forward::{Gate, Link};
use crate::hold::Hold;
use crate::identity::Identity;
use crate::inner::{Inner, RETRY, Route, Snapshots};
use crate::lease::Lease;
use crate::living::Living;
use crate::log::{Log, LogOptions};
use crate::log_store::LogStore;
use crate::peer::{self, network::Network};
use crate::raft::Raft;
use crate::reads::Reads;
use crate::replica::Replica;
use crate::snapshot::SnapshotStore;
use crate::space::Space;
use crate::{
    DirectoryGuard, Environment, Fault, Member, Monotonic, NodeConfig, NodeId, Start, StartError,
    Timers, TransportListener, deadlines, ensemble, forward, living, membership, reads, runtime,
    serving, standing, watchdog,
};

/// Entries before a snapshot that are kept for peers that are a little behind: at 64 KiB each, a
/// quarter of the log between two snapshots at most.
const ENTRIES_KEPT: u64 = 256;

/// Bytes of entries that the log itself keeps in memory.
const LOG_CACHE_BYTES: usize = 256 << 10;

/// Starts a node on the current runtime.
pub(crate) async fn start(
    config: NodeConfig,
    environment: Environment,
) -> Result<Arc<Inner>, StartError> {
    check(&config)?;
    let hold = Hold::new(take_directory(&config, &environment)?);
    let identity = Identity::open(
        &config.data_dir,
        config.id,
        environment.disk.clone(),
        &*environment.random,
    )?;
    let listener = listen(&config, &environment).await?;
    let (inner, store) = open(config, environment, identity, hold)?;
    if let Some(listener) = &listener {
        let _ = inner.peer_address.set(listener.local_address());
    }
    let is_fresh = store.is_fresh() && inner.snapshots.newest().is_none();
    if let Err(error) = run_raft(&inner, store, is_fresh).await {
        // Whoever tries again at once finds the directory free.
        if let Some(raft) = inner.raft.get() {
            let _ = raft.shutdown().await;
        }
        release(&inner).await;
        return Err(error);
    }
    run_tasks(&inner, listener);
    Ok(inner)
}

fn check(config: &NodeConfig) -> Result<(), StartError> {
    let fail = |why: String| Err(StartError::Config(why));
    if config.id == 0 {
        return fail("a node's id is 1 or more".to_owned());
    }
    if let Start::Together(members) = &config.start {
        let ids: BTreeMap<NodeId, &str> =
            members.iter().map(|member| (member.id, &*member.peer_address)).collect();
        if ids.len() < members.len() {
            return fail("two members of the cluster have the same id".to_owned());
        }
        if !ids.contains_key(&config.id) {
            return fail(format!("node {} is not among the cluster's members", config.id));
        }
    }
    let Timers { heartbeat, election_min, election_max } = config.timers;
    if !(heartbeat < election_min && election_min < election_max) {
        return fail(
            "the timers must grow: heartbeat, shortest and longest election time-out".to_owned(),
        );
    }
    Ok(())
}

fn take_directory(
    config: &NodeConfig,
    environment: &Environment,
) -> Result<DirectoryGuard, StartError> {
    let directory = config.data_dir.display().to_string();
    let taken = environment.disk.take_dir(&config.data_dir).map_err(|error| {
        StartError::Io(format!("the data directory {directory} can't be used: {error}"))
    })?;
    taken.ok_or(StartError::InUse(directory))
}

async fn listen(
    config: &NodeConfig,
    environment: &Environment,
) -> Result<Option<Box<dyn TransportListener>>, StartError> {
    let Some(address) = &config.listen_peer else { return Ok(None) };
    let listener = environment.transport.listen(address).await;
    listener
        .map(Some)
        .map_err(|error| StartError::Listen { address: address.clone(), reason: error.to_string() })
}

/// Reads the newest snapshot and opens the log.
fn open(
    config: NodeConfig,
    environment: Environment,
    identity: Identity,
    hold: Hold,
) -> Result<(Arc<Inner>, LogStore), Fault> {
    let disk = Arc::clone(&environment.disk);
    let snapshots = SnapshotStore::new(config.data_dir.join("snapshots"), disk);
    let (newest, state) = snapshots.load()?.unzip();
    let log_directory = config.data_dir.join("log");
    // The newest entries are at hand in the log store.
    let options = LogOptions { segment_bytes: config.segment_bytes, cache_bytes: LOG_CACHE_BYTES };
    let (log, recovered) = Log::open(&log_directory, options, &environment, hold.share())?;
    let snapshot_index = newest.as_ref().map_or(0, |snapshot| snapshot.meta.index());
    if let Some((purged, _)) = &recovered.purged
        && *purged > snapshot_index
    {
        let detail = format!(
            "the log before entry {purged} was given up, but the newest snapshot is of entry \
             {snapshot_index}"
        );
        let what = format!("the data directory {}", config.data_dir.display());
        return Err(Fault::Corrupted { what, detail });
    }
    let store = LogStore::new(log.clone(), &recovered, &environment)?;
    let mut replica = Replica::default();
    replica.state = state.unwrap_or_default();
    if let Some(snapshot) = &newest {
        replica.applied = snapshot.meta.last_log_id();
        replica.membership = snapshot.meta.stored_membership().unwrap_or_default();
    }
    let incarnation = environment.random.next_u64();
    // A disk that can't say it now is looked at again by the watchdog.
    let free_bytes = environment.disk.free_bytes(&config.data_dir).unwrap_or(u64::MAX);
    let inner = Inner {
        batcher: Batcher::new(config.id, incarnation, config.queue_bytes_max),
        snapshots: Snapshots::new(snapshots, newest, config.snapshot_log_bytes),
        space: Space::new(&config, free_bytes),
        config,
        environment,
        identity,
        log,
        replica: Mutex::new(replica),
        deadlines: Deadlines::default(),
        reigns: Notify::new(),
        living: Living::default(),
        reads: Reads::default(),
        route: watch::Sender::new(Route::Nowhere),
        link: Link::default(),
        gate: Mutex::new(Gate::default()),
        heard: Mutex::new(BTreeMap::new()),
        heard_again: Notify::new(),
        serving: watch::Sender::default(),
        round_trips: Mutex::default(),
        complaints: Mutex::new(BTreeMap::new()),
        fault: watch::Sender::new(None),
        is_stopping: AtomicBool::new(false),
        leader_changes: AtomicU64::new(0),
        quiet_until: OnceLock::new(),
        rests_until: Mutex::new(Monotonic(0)),
        lease: Lease::default(),
        changing: Arc::default(),
        receiving: tokio::sync::Mutex::new(()),
        raft: OnceLock::new(),
        peer_address: OnceLock::new(),
        tasks: Mutex::new(JoinSet::new()),
        hold,
    };
    Ok((Arc::new(inner), store))
}

/// Starts openraft on what was opened, and brings a new cluster into being.
async fn run_raft(
    inner: &Arc<Inner>,
    mut store: LogStore,
    is_fresh: bool,
) -> Result<(), StartError> {
    let network = Network { inner: Arc::clone(inner) };
    store.belong_to(inner);
    let applier = Applier::new(Arc::clone(inner));
    let raft_config = raft_config(&inner.config.timers)?;
    runtime::seed(inner.environment.random.next_u64());
    let raft = Raft::build(inner.config.id, Arc::new(raft_config), network, store, applier).await;
    let raft = raft.map_err(|fatal| {
        let detail = fatal.to_string();
        inner.cause(|| Fault::Corrupted { what: "the log".to_owned(), detail })
    })?;
    let _ = inner.raft.set(raft);
    let raft = inner.raft();
    raft.run();
    let id = inner.config.id;
    let is_alone = raft.with_raft_state(move |state| {
        state.membership_state.effective().membership().voter_ids().eq([id])
    });
    let ended = |why: String| inner.cause(|| Fault::Internal(why));
    let is_alone = is_alone.await.map_err(|fatal| ended(fatal.to_string()))?;
    let quiet = inner.config.timers.election_max;
    let remembers_nothing = is_fresh || is_alone;
    let quiet_until = if remembers_nothing { Monotonic(0) } else { inner.now().plus(quiet) };
    let _ = inner.quiet_until.set(quiet_until);
    if is_fresh {
        found(inner);
    } else if is_alone {
        raft.runtime_config().elect(true);
        let elected = raft.trigger().elect(false).await;
        elected.map_err(|fatal| ended(fatal.to_string()))?;
    }
    standing::begin(inner, if remembers_nothing { Duration::ZERO } else { quiet });
    Ok(())
}

fn raft_config(timers: &Timers) -> Result<Config, StartError> {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: "lockkeeper".to_owned(),
        heartbeat_interval: ms(timers.heartbeat),
        election_timeout_min: ms(timers.election_min),
        election_timeout_max: ms(timers.election_max),
        enable_pre_vote: Some(true),
        // A leader that starts again is elected anew, or its reads could miss what it had
        // committed.
        enable_leader_restore: Some(false),
        // Switched on once this node may stand.
        enable_elect: false,
        // Both are decided by bytes of log, which openraft doesn't count.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        // A peer that is behind gets the log for as long as there is one.
        replication_lag_threshold: u64::MAX,
        // Messages are bounded by bytes, in the log store.
        max_payload_entries: 4_096,
        broadcast_submitted_on_append: Some(true),
        backoff: "50ms 100ms 200ms ...500ms".to_owned(),
        ..Config::default()
    };
    config.validate().map_err(|error| StartError::Config(error.to_string()))
}

/// Brings a new cluster into being, if this node is told to. All members say the same first words,
/// so it does no harm that several say them; but one is given the time to be first, lest they all
/// stand for election at once.
fn found(inner: &Arc<Inner>) {
    let members = match &inner.config.start {
        Start::Join => return,
        Start::Together(members) => members.clone(),
        Start::Single => {
            let peer_address = inner.peer_address.get().cloned().unwrap_or_default();
            vec![Member { id: inner.config.id, peer_address }]
        }
    };
    let is_first = members.iter().all(|member| member.id >= inner.config.id);
    let nodes: BTreeMap<NodeId, BasicNode> =
        members.iter().map(|member| (member.id, BasicNode::new(&member.peer_address))).collect();
    let founding = Arc::clone(inner);
    inner.spawn(async move {
        if !is_first {
            sleep(2 * founding.config.timers.election_max).await;
        }
        let raft = founding.raft();
        if !raft.is_initialized().await.unwrap_or(true)
            && let Err(error) = raft.initialize(nodes).await
        {
            // Another member's words came in between, which is as good.
            tracing::debug!(%error, "not initialized by this node");
        }
    });
}

fn run_tasks(inner: &Arc<Inner>, listener: Option<Box<dyn TransportListener>>) {
    if let Some(listener) = listener {
        inner.spawn(peer::server::run(Arc::clone(inner), listener));
    }
    inner.spawn(peer::handshake::meet_members(Arc::clone(inner)));
    inner.spawn(forward::run(Arc::clone(inner)));
    inner.spawn(living::run(Arc::clone(inner)));
    inner.spawn(reads::run(Arc::clone(inner)));
    inner.spawn(deadlines::run(Arc::clone(inner)));
    inner.spawn(serving::run(Arc::clone(inner)));
    inner.spawn(watchdog::run(Arc::clone(inner)));
    inner.spawn(watchdog::watch_space(Arc::clone(inner)));
    inner.spawn(watchdog::take_snapshots(Arc::clone(inner)));
    inner.spawn(greet_reigns(Arc::clone(inner)));
}

/// What a new leader does once: the cluster gets its identity from its first one, and a node that
/// began alone says where it can be reached now.
async fn greet_reigns(inner: Arc<Inner>) {
    loop {
        inner.reigns.notified().await;
        let Some(term) = inner.deadlines.term() else { continue };
        name_cluster(&inner, term).await;
        announce(&inner).await;
        inner.spawn(ensemble::finish(Arc::clone(&inner), term));
    }
}

/// Gives the cluster its id, if it has none yet. If that is refused, the reign is greeted again a
/// little later.
async fn name_cluster(inner: &Arc<Inner>, term: u64) {
    if inner.replica.lock().state.cluster().is_some() {
        return;
    }
    let random = &inner.environment.random;
    let high = u128::from(random.next_u64()) << 64;
    let cluster = ClusterId(high | u128::from(random.next_u64()));
    let refusing = Arc::clone(inner);
    let refused = move || {
        let again = Arc::clone(&refusing);
        refusing.spawn(async move {
            sleep(RETRY).await;
            again.reigns.notify_one();
        });
    };
    inner.propose_own(term, &[Command::FoundCluster { cluster }], refused).await;
}

/// Tells the members this node's address, if it had none when it began.
async fn announce(inner: &Inner) {
    let id = inner.config.id;
    let Some(address) = inner.peer_address.get() else { return };
    if membership::address(inner, id).is_none_or(|known| !known.is_empty()) {
        return;
    }
    // What had no address for peers was shown to nobody either.
    let change = ChangeMembers::SetNodes(BTreeMap::from([(id, BasicNode::new(address))]));
    if let Err(error) = inner.raft().change_membership(change, true).await {
        tracing::warn!(%error, "this node's address could not be told to the members");
    }
}

/// Frees what a node holds that has ended: the log's threads, and then the directory.
pub(crate) async fn release(inner: &Arc<Inner>) {
    // It has no error of its own; what it couldn't write it has answered with a fault.
    inner.log.close().await;
    inner.hold.release().await;
}

/// A node that is opened and doesn't run.
#[cfg(test)]
pub(crate) fn open_for_test(
    config: NodeConfig,
    environment: Environment,
) -> (Arc<Inner>, LogStore) {
    let hold = Hold::new(take_directory(&config, &environment).expect("a directory of its own"));
    let disk = Arc::clone(&environment.disk);
    let identity = Identity::open(&config.data_dir, config.id, disk, &*environment.random);
    let identity = identity.expect("a new identity");
    open(config, environment, identity, hold).expect("nothing is damaged yet")
}
