//! Everything that runs in one run: servers, workers, the network between, and what is seen.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_sim::{Leadership, Nanos, Seen};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::clock;
use crate::dice::Dice;
use crate::history::Recorder;
use crate::proxy::{End, Net, WORKERS};
use crate::register;
use crate::servers::{
    FOUNDERS, Plan, Servers, abilities, leader, peer_listener, peer_proxy, status, url_for,
};
use crate::sites::{self, Sites};
use crate::worker::Orders;
use crate::workers::WorkerProcess;

/// A run.
pub(crate) struct World {
    pub(crate) directory: PathBuf,
    pub(crate) net: Arc<Net>,
    pub(crate) servers: Mutex<Servers>,
    /// By their end of the network; a killed worker is followed by another on the same end.
    pub(crate) workers: Mutex<BTreeMap<End, WorkerProcess>>,
    urls: Mutex<BTreeMap<End, String>>,
    next_worker: AtomicU32,
    next_server: AtomicU32,
    pub(crate) recorder: Recorder,
    pub(crate) begun: Nanos,
    pub(crate) counts: Mutex<BTreeMap<&'static str, u32>>,
    pub(crate) wrongs: Mutex<Vec<String>>,
    pub(crate) leaders: Mutex<Vec<Leadership>>,
}

/// How long a cluster may take to have a leader once nothing is wrong any more.
const LEADER_LIMIT: Duration = Duration::from_secs(60);

impl World {
    /// Three servers with a leader, and these workers.
    pub(crate) async fn start(name: &str, workers: &[End], dice: &mut Dice) -> Arc<Self> {
        Self::start_in(name, workers, None, dice).await
    }

    /// The same, at some distance from each other.
    pub(crate) async fn start_in(
        name: &str,
        workers: &[End],
        sites: Option<&Sites>,
        dice: &mut Dice,
    ) -> Arc<Self> {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the run");
        let (small_disk, mut fake_clock) = abilities();
        // There the wrapper that enters the namespace would live by the wrong clock as well.
        fake_clock &= !sites::are_used();
        let plan = Plan { directory: directory.clone(), small_disk, fake_clock };
        let net = Arc::new(Net::default());
        if let Some(sites) = sites {
            sites.set_distances(&net, workers);
        }
        let mut servers = Servers::new(plan);
        for id in FOUNDERS {
            net.peers(peer_proxy(id), id, peer_listener(id)).await.expect("free ports");
            servers.add(id, false);
        }
        let recorder = Recorder::default();
        register::serve(&directory.join("register"), &recorder);
        let world = Arc::new(Self {
            directory,
            net,
            servers: Mutex::new(servers),
            workers: Mutex::default(),
            urls: Mutex::default(),
            next_worker: AtomicU32::new(1),
            next_server: AtomicU32::new(4),
            recorder,
            begun: clock::now(),
            counts: Mutex::default(),
            wrongs: Mutex::default(),
            leaders: Mutex::default(),
        });
        world.wait_for_leader().await;
        for &worker in workers {
            world.start_worker(worker, dice).await;
        }
        tokio::spawn(watch_leaders(Arc::clone(&world)));
        world
    }

    /// Starts a worker process on an end of the network that has none.
    pub(crate) async fn start_worker(&self, end: End, dice: &mut Dice) {
        let known = self.urls.lock().get(&end).cloned();
        let url = match known {
            Some(url) => url,
            None => url_for(&self.net, end).await,
        };
        self.urls.lock().insert(end, url.clone());
        let number = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let register = self.directory.join("register");
        // An election across data centres takes longer than the short leases.
        let patience = if sites::are_used() { 2 } else { 1 };
        let orders = Orders { number, url, register, seed: dice.below(u64::MAX), patience };
        let log = self.directory.join(format!("worker-{}.log", end - WORKERS + 1));
        let worker = WorkerProcess::start(&orders, log, &self.recorder);
        self.workers.lock().insert(end, worker);
    }

    /// Ends the servers before what they stand on goes.
    pub(crate) fn stop_servers(&self) {
        for id in self.server_ids() {
            self.servers.lock().kill(id);
        }
    }

    /// An id that no server has had.
    pub(crate) fn next_server(&self) -> End {
        self.next_server.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a server that waits to be added.
    pub(crate) async fn add_server(&self, id: End) -> io::Result<()> {
        self.net.peers(peer_proxy(id), id, peer_listener(id)).await?;
        self.servers.lock().add(id, true);
        let limit = Instant::now() + LEADER_LIMIT;
        while Instant::now() < limit {
            if TcpStream::connect(peer_listener(id)).await.is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    pub(crate) fn count(&self, fault: &'static str) {
        *self.counts.lock().entry(fault).or_default() += 1;
    }

    pub(crate) fn complain(&self, wrong: impl Into<String>) {
        let wrong = wrong.into();
        println!("WRONG: {wrong}");
        self.wrongs.lock().push(wrong);
    }

    pub(crate) fn say(&self, what: &str) {
        println!("{:8.3} {what}", clock::span(self.begun, clock::now()).as_secs_f64());
    }

    pub(crate) fn server_ids(&self) -> Vec<End> {
        self.servers.lock().ids()
    }

    pub(crate) fn worker_ends(&self) -> Vec<End> {
        self.workers.lock().keys().copied().collect()
    }

    /// Waits for a leader; without one in time something is wrong.
    pub(crate) async fn wait_for_leader(&self) -> Option<End> {
        let begun = Instant::now();
        while begun.elapsed() < LEADER_LIMIT {
            self.supervise();
            if let Some(leader) = leader(&self.server_ids()).await {
                return Some(leader);
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.complain(format!("no leader within {LEADER_LIMIT:?}"));
        None
    }

    /// Starts servers again that have ended by themselves.
    pub(crate) fn supervise(&self) {
        let mut servers = self.servers.lock();
        for (id, status) in servers.supervise() {
            self.say(&format!("server {id} has ended by itself: {status}"));
            self.count("servers that ended by themselves");
        }
        for id in servers.missing() {
            servers.start(id);
        }
    }

    /// All faults are over: everything runs, and everybody reaches everybody.
    pub(crate) async fn calm(&self) {
        self.net.heal();
        for id in self.server_ids() {
            let mut servers = self.servers.lock();
            servers.go_on(id);
            servers.start(id);
        }
        self.workers.lock().values_mut().for_each(WorkerProcess::go_on);
        self.wait_for_leader().await;
        self.recorder.see(clock::now(), Seen::Calm);
    }

    /// Lets the workers come to their end, and says that the run is over.
    pub(crate) fn finish(&self) {
        let workers = std::mem::take(&mut *self.workers.lock());
        for (end, worker) in workers {
            if let Some(wrong) = worker.finish() {
                self.complain(format!("worker {}: {wrong}", end - WORKERS + 1));
            }
        }
        self.recorder.see(clock::now(), Seen::Over);
        let disgraces = self.servers.lock().disgraces();
        disgraces.into_iter().for_each(|wrong| self.complain(wrong));
    }
}

/// Notes who says that it leads, and starts again what has ended, for as long as the run lasts.
async fn watch_leaders(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(250)).await;
        for id in world.server_ids() {
            let Some(status) = status(id).await else { continue };
            if status.leader == Some(status.node) {
                let at = clock::now().saturating_sub(world.begun);
                let (node, term) = (status.node, status.term);
                world.leaders.lock().push(Leadership { at, node, term });
            }
        }
        world.supervise();
        world.workers.lock().retain(|_, worker| match worker.has_ended() {
            Some(wrong) => {
                world.complain(wrong);
                false
            }
            None => true,
        });
    }
}
