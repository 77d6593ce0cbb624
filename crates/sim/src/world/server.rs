//! A server's process: the real node with the real native front end before it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_node::{
    Environment, Member, NodeConfig, NodeHandle, NodeId, Random, Start, Threads, Timers,
};
use lockkeeper_server::{Native, ZooKeeper, ZooKeeperClient, ZooKeeperSettings};
use parking_lot::Mutex;

use super::disk;
use super::network::{MachineId, Peers, Sockets};
use super::time::MachineClock;
use crate::chance::Chance;
use crate::recorder::Recorder;

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const ZOOKEEPER_PORT: u16 = 2181;

/// The longest lease that servers grant.
const TTL_MAX: Duration = Duration::from_secs(10);

/// The host of a node.
pub(crate) fn host(node: NodeId) -> String {
    format!("n{node}")
}

/// Where a node's clients reach it.
pub(crate) fn client_address(node: NodeId) -> String {
    format!("{}:{CLIENT_PORT}", host(node))
}

/// Where a node speaks ZooKeeper's protocol.
pub(crate) fn zookeeper_address(node: NodeId) -> (String, u16) {
    (host(node), ZOOKEEPER_PORT)
}

/// A node as its peers know it.
pub(crate) fn member(id: NodeId) -> Member {
    Member { id, peer_address: format!("{}:{PEER_PORT}", host(id)) }
}

/// What all nodes of a world are told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    timers: Timers,
    snapshot_log_bytes: u64,
    segment_bytes: u64,
}

impl Settings {
    /// Small segments and frequent snapshots: the edges are where things break.
    pub(crate) fn choose(chance: &mut Chance) -> Self {
        Self {
            timers: if chance.one_in(3) { Timers::RELAXED } else { Timers::LAN },
            snapshot_log_bytes: *chance.pick(&[4 << 10, 16 << 10, 64 << 10, 1 << 20]),
            segment_bytes: *chance.pick(&[4 << 10, 8 << 10, 32 << 10]),
        }
    }
}

/// What a running process can be asked.
#[derive(Default)]
struct Control {
    node: Option<NodeHandle>,
    /// Why it has ended by itself.
    last_words: Option<String>,
}

/// One server and its machine's disk.
pub(crate) struct Server {
    pub(crate) node: NodeId,
    pub(crate) machine: MachineId,
    pub(crate) disk: disk::Machine,
    /// Whether it is or will be a member: others' machines stay off.
    is_wanted: Arc<AtomicBool>,
    /// A failing disk was arranged, and the node may end for it.
    pub(crate) may_fail: bool,
    start: Start,
    settings: Settings,
    chance: Chance,
    control: Arc<Mutex<Control>>,
}

impl Server {
    pub(crate) fn new(
        node: NodeId,
        machine: MachineId,
        founders: Option<Vec<Member>>,
        settings: Settings,
        mut chance: Chance,
    ) -> Self {
        Self {
            node,
            machine,
            disk: disk::Machine::new(chance.fork()),
            is_wanted: Arc::new(AtomicBool::new(founders.is_some())),
            may_fail: false,
            start: founders.map_or(Start::Join, Start::Together),
            settings,
            chance,
            control: Arc::default(),
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// From now on it is to run.
    pub(crate) fn want(&mut self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// What to do once it isn't a member any more.
    pub(crate) fn removal(&self) -> impl FnOnce() + Send + 'static {
        let is_wanted = Arc::clone(&self.is_wanted);
        move || is_wanted.store(false, Ordering::Relaxed)
    }

    /// The main task of the next process; `None` if none is to run.
    pub(crate) fn prepare(
        &mut self,
        sockets: Sockets,
        recorder: Recorder,
    ) -> Option<impl FnOnce(Arc<MachineClock>) -> lockkeeper_node::BoxFuture<'static, ()> + use<>>
    {
        if !self.is_wanted() {
            return None;
        }
        self.control = Arc::default();
        let control = Arc::clone(&self.control);
        let config = NodeConfig {
            listen_peer: Some(member(self.node).peer_address),
            start: self.start.clone(),
            timers: self.settings.timers,
            snapshot_log_bytes: self.settings.snapshot_log_bytes,
            segment_bytes: self.settings.segment_bytes,
            free_space_bytes_min: 64 << 10,
            ttl_max: TTL_MAX,
            ..NodeConfig::new(self.node, PathBuf::from("/data"))
        };
        let random = Arc::new(Seeded(Mutex::new(self.chance.fork())));
        let disk = self.disk.mount();
        let node = self.node;
        Some(move |clock: Arc<MachineClock>| {
            let observer = recorder.at_node(node, Arc::clone(&clock));
            let environment = Environment {
                clock,
                random,
                disk,
                transport: Arc::new(Peers(sockets.clone())),
                threads: Threads::None,
                observer: Some(observer),
            };
            let main = async move {
                let last_words = serve(config, environment, &sockets, &control).await;
                control.lock().last_words = Some(last_words);
            };
            Box::pin(main) as lockkeeper_node::BoxFuture<'static, ()>
        })
    }

    /// The running node, if it has started.
    pub(crate) fn handle(&self) -> Option<NodeHandle> {
        self.control.lock().node.clone()
    }

    /// Whether it leads, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        self.handle().is_some_and(|node| node.leads())
    }

    /// A task that stops the node in good order; the process ends then.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let (control, node) = (Arc::clone(&self.control), self.handle());
        async move {
            if let Some(node) = node {
                node.stop().await;
                control.lock().last_words = Some(STOPPED.to_owned());
            }
        }
    }

    /// Why the process has ended by itself, once.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.control.lock().last_words.take()
    }

    /// Whether the world has done something for which a sound node ends. Nothing that the world
    /// does is a reason to find the log damaged.
    pub(crate) fn may_end(&self, last_words: &str) -> bool {
        last_words == STOPPED || self.may_fail && !last_words.contains("corrupted")
    }

    /// The process is gone.
    pub(crate) fn forget(&mut self) {
        self.disk.unmount();
        self.control = Arc::default();
    }
}

/// The last words of a node that was told to stop.
const STOPPED: &str = "stopped";

async fn serve(
    config: NodeConfig,
    environment: Environment,
    sockets: &Sockets,
    control: &Arc<Mutex<Control>>,
) -> String {
    let ttl_max = config.ttl_max;
    let (clock, random) = (Arc::clone(&environment.clock), Arc::clone(&environment.random));
    let node = match NodeHandle::start(config, environment).await {
        Ok(node) => node,
        Err(error) => return format!("it doesn't start: {error}"),
    };
    control.lock().node = Some(node.clone());
    let native = Arc::new(Native::new(node.clone(), ttl_max));
    let mut accept = match sockets.bind(CLIENT_PORT) {
        Ok(accept) => accept,
        Err(error) => return format!("it can't listen: {error}"),
    };
    let accepting = async {
        while let Ok((stream, _)) = accept.next().await {
            let native = Arc::clone(&native);
            tokio::spawn(async move { native.serve(stream).await });
        }
    };
    let zookeeper = ZooKeeper::new(node.clone(), zookeeper_settings(), clock, random);
    let mut accept_zookeeper = match sockets.bind(ZOOKEEPER_PORT) {
        Ok(accept) => accept,
        Err(error) => return format!("it can't listen for ZooKeeper's clients: {error}"),
    };
    let accepting_zookeeper = async {
        while let Ok((stream, _)) = accept_zookeeper.next().await {
            let zookeeper = zookeeper.clone();
            let address = ([10, 0, 0, 1], 1).into();
            let client = ZooKeeperClient { address, ids: Vec::new() };
            tokio::spawn(async move { zookeeper.serve(stream, client).await });
        }
    };
    tokio::select! {
        biased;
        fault = node.fault() => format!("unfit: {fault}"),
        () = accepting => "its listener ended".to_owned(),
        () = accepting_zookeeper => "its listener for ZooKeeper's clients ended".to_owned(),
    }
}

/// Sessions may be as short as native ones.
fn zookeeper_settings() -> ZooKeeperSettings {
    let session_timeout_min = Duration::from_millis(500);
    ZooKeeperSettings {
        session_timeout_min,
        session_timeout_max: TTL_MAX,
        collect_interval: Duration::from_secs(2),
        ..ZooKeeperSettings::default()
    }
}

struct Seeded(Mutex<Chance>);

impl Random for Seeded {
    fn next_u64(&self) -> u64 {
        self.0.lock().next_u64()
    }
}
