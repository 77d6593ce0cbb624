//! Nodes on threads, and a network between them that can be cut.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper_node::{
    BoxFuture, Environment, Member, NodeConfig, NodeHandle, NodeId, PeerStream, Start, StartError,
    Timers, Transport, TransportListener,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::disks::{Trouble, TroubledDisk};

/// How long a test waits for what must happen. Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// So little that the machine's own disk has it, and a test's full one hasn't.
pub(crate) const DISK_RESERVE_BYTES: u64 = 1;

/// Some nodes, their directories, and their network.
pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) network: Arc<Network>,
    members: Vec<Member>,
    root: TempDir,
}

/// A running node. Dropping it ends its thread at once, as a killed process ends.
pub(crate) struct Node {
    pub(crate) handle: Option<NodeHandle>,
    runtime: tokio::runtime::Handle,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub(crate) fn handle(&self) -> &NodeHandle {
        self.handle.as_ref().expect("the node runs")
    }

    /// Runs something on the node's own thread, and waits for it.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(NodeHandle) -> T + Send + 'static,
    ) -> T
    where
        for<'a> BoxFuture<'a, T>: Send,
    {
        let handle = self.handle().clone();
        let (sender, receiver) = mpsc::channel();
        let local = self.runtime.clone();
        std::thread::spawn(move || {
            sender.send(local.block_on(work(handle))).ok();
        });
        receiver.recv_timeout(PATIENCE).expect("it must end in time")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.handle = None;
        self.end = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a node's thread doesn't panic");
        }
    }
}

impl Cluster {
    /// `count` nodes that begin together.
    pub(crate) fn together(count: u64) -> Self {
        let members =
            (1..=count).map(|id| Member { id, peer_address: free_address() }).collect::<Vec<_>>();
        let mut cluster = Self {
            nodes: BTreeMap::new(),
            network: Arc::default(),
            members,
            root: tempfile::tempdir().expect("a directory for the test"),
        };
        (1..=count).for_each(|id| cluster.start(id));
        cluster.leader();
        cluster
    }

    /// One node, alone.
    pub(crate) fn single() -> Self {
        let mut cluster = Self::empty();
        cluster.start_with(cluster.config(1), |config| config);
        cluster.leader();
        cluster
    }

    pub(crate) fn empty() -> Self {
        Self {
            nodes: BTreeMap::new(),
            network: Arc::default(),
            members: Vec::new(),
            root: tempfile::tempdir().expect("a directory for the test"),
        }
    }

    pub(crate) fn directory(&self, id: NodeId) -> PathBuf {
        self.root.path().join(id.to_string())
    }

    pub(crate) fn config(&self, id: NodeId) -> NodeConfig {
        let address = self.members.iter().find(|member| member.id == id);
        NodeConfig {
            timers: Timers::RELAXED,
            start: if self.members.is_empty() {
                Start::Single
            } else {
                Start::Together(self.members.clone())
            },
            listen_peer: address.map(|member| member.peer_address.clone()),
            segment_bytes: 1 << 20,
            free_space_bytes_min: DISK_RESERVE_BYTES,
            ..NodeConfig::new(id, self.directory(id))
        }
    }

    pub(crate) fn start(&mut self, id: NodeId) {
        self.start_with(self.config(id), |config| config);
    }

    pub(crate) fn start_with(
        &mut self,
        config: NodeConfig,
        change: impl FnOnce(NodeConfig) -> NodeConfig,
    ) {
        let config = change(config);
        let id = config.id;
        let node = self.try_start(config).expect("the node starts");
        self.nodes.insert(id, node);
    }

    pub(crate) fn try_start(&self, config: NodeConfig) -> Result<Node, StartError> {
        let environment = self.network.environment(config.id);
        start_node(config, environment)
    }

    /// Ends a node as a killed process ends: with all its threads.
    pub(crate) fn kill(&mut self, id: NodeId) {
        self.nodes.remove(&id).expect("the node runs");
        let (disk, directory) = (Environment::system().disk, self.config(id).data_dir);
        eventually("its threads have ended", || disk.take_dir(&directory).unwrap().is_some());
    }

    /// Ends a node in good order.
    pub(crate) fn stop(&mut self, id: NodeId) {
        let node = self.nodes.remove(&id).expect("the node runs");
        node.run(async |node| node.stop().await);
    }

    pub(crate) fn node(&self, id: NodeId) -> &NodeHandle {
        self.nodes[&id].handle()
    }

    /// The node that leads and is ready, once all running nodes agree on one.
    pub(crate) fn leader(&self) -> NodeId {
        let statuses = || self.nodes.values().map(|node| node.handle().status());
        let mut leader = None;
        let what = || format!("a leader that all agree on: {:#?}", statuses().collect::<Vec<_>>());
        eventually_or(what, || {
            leader = statuses().next().and_then(|status| status.leader);
            leader.is_some_and(|leader| self.nodes.contains_key(&leader))
                && statuses().all(|status| status.is_ready && status.leader == leader)
        });
        leader.expect("it was found")
    }

    /// The leader, and the term in which it leads.
    pub(crate) fn reign(&self) -> (NodeId, u64) {
        let leader = self.leader();
        (leader, self.node(leader).status().term)
    }

    /// The running nodes that don't lead.
    pub(crate) fn followers(&self) -> Vec<NodeId> {
        let leader = self.leader();
        self.nodes.keys().copied().filter(|&id| id != leader).collect()
    }
}

pub(crate) fn start_node(config: NodeConfig, environment: Environment) -> Result<Node, StartError> {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (sender, started) = mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("node-{}", config.id));
    let thread = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let handle = NodeHandle::start(config, environment).await;
            let is_started = handle.is_ok();
            sender.send((handle, tokio::runtime::Handle::current())).unwrap();
            if is_started {
                // Its sender is dropped when the node is.
                let _ = ended.await;
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
    });
    let thread = thread.expect("a thread for the node");
    let (handle, runtime) = started.recv_timeout(PATIENCE).expect("it must start in time");
    let handle = Some(handle?);
    Ok(Node { handle, runtime, end: Some(end), thread: Some(thread) })
}

/// Waits until a condition holds; looks again every few milliseconds.
pub(crate) fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_or(|| what.to_owned(), is_so);
}

/// The same, with more to say in the end if it doesn't.
fn eventually_or(what: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An address that nobody else has, also between this look and a start, or two starts: a port alone
/// may be given to another test meanwhile, and two young clusters that meet know no better.
pub(crate) fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);

    let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let host = format!("127.{}.{}.{}", 1 + (pid >> 8) % 250, pid % 256, 1 + next % 250);
    let listener = TcpListener::bind((host.as_str(), 0)).expect("a free port");
    listener.local_addr().expect("it is bound").to_string()
}

/// Loopback, with nodes that can be cut off (what they sent and were sent is held up, and nothing
/// new gets through), and disks that can have trouble.
#[derive(Default)]
pub(crate) struct Network {
    cuts: Mutex<BTreeMap<NodeId, watch::Sender<Cut>>>,
    /// The same for the connections alone that a node began itself.
    outward: Mutex<BTreeMap<NodeId, watch::Sender<Cut>>>,
    homes: Mutex<BTreeMap<String, NodeId>>,
    disks: Mutex<BTreeMap<NodeId, Arc<Trouble>>>,
}

/// What is wrong with a node's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cut {
    #[default]
    None,
    /// What was sent is held up, and comes when it is mended.
    Held,
    /// Connections are broken, and refused.
    Severed,
    /// What is sent takes so long.
    Slow(Duration),
}

impl Network {
    fn switch(&self, id: NodeId) -> watch::Receiver<Cut> {
        self.cuts.lock().entry(id).or_default().subscribe()
    }

    fn cut(&self, id: NodeId, how: Cut) {
        self.cuts.lock().entry(id).or_default().send_replace(how);
    }

    /// Holds up everything from and to a node.
    pub(crate) fn cut_off(&self, id: NodeId) {
        self.cut(id, Cut::Held);
    }

    /// Breaks a node's connections, and refuses new ones.
    pub(crate) fn sever(&self, id: NodeId) {
        self.cut(id, Cut::Severed);
    }

    /// Breaks the connections that a node began, and lets it begin none; others reach it.
    pub(crate) fn keep_in(&self, id: NodeId) {
        self.outward.lock().entry(id).or_default().send_replace(Cut::Severed);
    }

    /// Everything from and to a node takes so long.
    pub(crate) fn slow_down(&self, id: NodeId, delay: Duration) {
        self.cut(id, Cut::Slow(delay));
    }

    pub(crate) fn heal(&self) {
        for cut in self.cuts.lock().values().chain(self.outward.lock().values()) {
            cut.send_replace(Cut::None);
        }
    }

    pub(crate) fn environment(self: &Arc<Self>, id: NodeId) -> Environment {
        let system = Environment::system();
        let wire = Wire { id, network: Arc::clone(self), system: system.transport };
        let disk = TroubledDisk { disk: system.disk, trouble: self.disk_trouble(id) };
        Environment { transport: Arc::new(wire), disk: Arc::new(disk), ..system }
    }

    /// What is wrong with a node's disk: at first nothing.
    pub(crate) fn disk_trouble(&self, id: NodeId) -> Arc<Trouble> {
        Arc::clone(self.disks.lock().entry(id).or_default())
    }
}

struct Wire {
    id: NodeId,
    network: Arc<Network>,
    system: Arc<dyn Transport>,
}

impl Transport for Wire {
    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, std::io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move {
            let target = self.network.homes.lock().get(address).copied();
            let switches = [Some(self.id), target].into_iter().flatten();
            let mut switches: Vec<_> = switches.map(|id| self.network.switch(id)).collect();
            switches.push(self.network.outward.lock().entry(self.id).or_default().subscribe());
            for mut cut in switches.clone() {
                if is_severed(&mut cut).await {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
            }
            let theirs = self.system.connect(address).await?;
            let (ours, inside) = tokio::io::duplex(1 << 20);
            tokio::spawn(carry(inside, theirs, switches));
            Ok(Box::new(ours) as Box<dyn PeerStream>)
        })
    }

    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, std::io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let listener = self.system.listen(address).await?;
            self.network.homes.lock().insert(listener.local_address(), self.id);
            Ok(listener)
        })
    }
}

/// Carries bytes both ways while neither end is cut off.
async fn carry(
    inside: tokio::io::DuplexStream,
    outside: Box<dyn PeerStream>,
    switches: Vec<watch::Receiver<Cut>>,
) {
    let severed = switches.clone().into_iter().map(|mut cut| {
        Box::pin(async move {
            let _ = cut.wait_for(|cut| *cut == Cut::Severed).await;
        })
    });
    let (from_inside, to_inside) = tokio::io::split(inside);
    let (from_outside, to_outside) = tokio::io::split(outside);
    tokio::select! {
        () = carry_one_way(from_inside, to_outside, switches.clone()) => {}
        () = carry_one_way(from_outside, to_inside, switches) => {}
        _ = futures_util::future::select_all(severed) => {}
    }
}

async fn carry_one_way(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mut switches: Vec<watch::Receiver<Cut>>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        for cut in &mut switches {
            if is_severed(cut).await {
                return;
            }
            let now = *cut.borrow();
            if let Cut::Slow(delay) = now {
                tokio::time::sleep(delay).await;
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits while the network is held up; whether it is severed then.
async fn is_severed(cut: &mut watch::Receiver<Cut>) -> bool {
    cut.wait_for(|cut| *cut != Cut::Held).await.is_ok_and(|cut| *cut == Cut::Severed)
}
