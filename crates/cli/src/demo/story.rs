//! The acts, in order.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lockkeeper::{Client, Error, State};
use lockkeeper_node::{Environment, Member, Start, Timers};
use lockkeeper_server::{Server, ServerConfig};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::batch::Trucks;
use super::network::Network;
use super::teller::Teller;

/// The lock that both data centres want.
const LOCK: &str = "nightly-batch";

/// The lease of the batches: short, so that the story is.
const TTL: Duration = Duration::from_secs(2);

/// Longer than anything here may take: the story fails rather than hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The servers: two in the west, one in the east.
const SERVERS: [&str; 3] = ["west-1", "west-2", "east-1"];

/// Tells the whole story on servers of its own, and cleans up.
pub(crate) async fn tell() -> Result<()> {
    let teller = Teller::new();
    let directory = std::env::temp_dir().join(format!("lockkeeper-demo-{}", std::process::id()));
    let cluster = Cluster::start(&directory).await.context("starting the three servers");
    let told = match cluster {
        Ok(cluster) => {
            let told = acts(&teller, &cluster).await;
            let stopped = cluster.stop();
            told.and(stopped)
        }
        Err(error) => Err(error),
    };
    let _ = std::fs::remove_dir_all(&directory);
    told?;
    teller.act("Every line above was checked. The trucks were assigned once a night.")
}

async fn acts(teller: &Teller, cluster: &Cluster) -> Result<()> {
    teller.tell("servers", "west-1 and west-2 in the west, east-1 in the east, are up")?;
    let stage = Stage { teller: *teller, cluster, trucks: Arc::new(Trucks::default()) };
    stage.both_start_at_three().await?;
    stage.the_network_splits().await?;
    stage.the_holder_is_killed().await?;
    stage.the_holder_is_paused().await
}

/// What every act uses.
struct Stage<'a> {
    teller: Teller,
    cluster: &'a Cluster,
    trucks: Arc<Trucks>,
}

impl Stage<'_> {
    async fn both_start_at_three(&self) -> Result<()> {
        self.teller.act("1. At 3:00 both data centres start the same nightly batch.")?;
        let west = connect(&self.cluster.west()).await?;
        let east = connect(&self.cluster.east()).await?;
        let (first, second) =
            tokio::join!(west.lock(LOCK).try_acquire(), east.lock(LOCK).try_acquire());
        let (winner, guard, loser, refusal) = match (first, second) {
            (Ok(guard), Err(refusal)) => ("west", guard, "east", refusal),
            (Err(refusal), Ok(guard)) => ("east", guard, "west", refusal),
            (Ok(_), Ok(_)) => bail!("both data centres got the lock"),
            (Err(west), Err(east)) => bail!("nobody got the lock: {west}; {east}"),
        };
        self.teller
            .tell(winner, &format!("has the lock, token {}: its batch runs", guard.token()))?;
        ensure!(matches!(refusal, Error::Busy { .. }), "the other was told: {refusal}");
        self.teller.tell(loser, "is told that it is busy, and by whom: its batch doesn't run")?;
        self.trucks.assign(winner, guard.token())?;
        guard.release().await?;
        ensure!(self.trucks.written_by() == [winner], "the trucks were assigned more than once");
        self.teller.tell(winner, "is done, and gives the lock back")?;
        west.close().await;
        east.close().await;
        Ok(())
    }

    async fn the_network_splits(&self) -> Result<()> {
        self.teller.act("2. The next night the cable between the data centres breaks.")?;
        self.cluster.network.cut("east-1");
        self.teller
            .tell("network", "east-1 is cut off; the west still has two of three servers")?;
        let west = connect(&self.cluster.west()).await?;
        let east = Client::builder()
            .url(self.cluster.east())
            .ttl(TTL)
            .connect_timeout(Duration::from_secs(3))
            .connect()
            .await?;
        let guard = timeout(PATIENCE, west.lock(LOCK).try_acquire()).await?;
        let guard = guard.context("the west has a majority, and must get the lock")?;
        self.teller.tell("west", &format!("has the lock, token {}", guard.token()))?;
        match timeout(PATIENCE, east.lock(LOCK).try_acquire()).await? {
            Ok(_) => bail!("the side without a majority granted the lock"),
            Err(error @ Error::NoQuorum { .. }) => {
                self.teller.tell("east", &format!("gets nothing: {error}"))?;
            }
            Err(error) => bail!("the east should have been told of the majority: {error}"),
        }
        self.trucks.assign("west", guard.token())?;
        guard.release().await?;
        self.cluster.network.mend();
        self.teller.tell("network", "the cable is mended")?;
        west.close().await;
        east.close().await;
        Ok(())
    }

    async fn the_holder_is_killed(&self) -> Result<()> {
        self.teller.act("3. The holder is killed, and gives nothing back.")?;
        let victim = Actor::start(&self.cluster.west())?;
        let token = victim.acquired.await.context("the first holder")?;
        self.teller.tell("west", &format!("has the lock, token {token}"))?;
        let east = connect(&self.cluster.east()).await?;
        let (told, place) = oneshot::channel();
        let told = std::sync::Mutex::new(Some(told));
        let request = east.lock(LOCK).on_wait(move |queue| {
            if let Some(told) = told.lock().ok().and_then(|mut told| told.take()) {
                let _ = told.send(queue.place);
            }
        });
        let next = tokio::spawn(request.acquire());
        let place = timeout(PATIENCE, place).await??;
        self.teller.tell("east", &format!("waits in line, place {place}"))?;
        let _ = victim.order.send(Order::Die);
        self.teller.tell("west", "is killed")?;
        let killed = Instant::now();
        let guard = timeout(PATIENCE, next).await???;
        let seconds = killed.elapsed().as_secs_f64();
        ensure!(guard.token() > token, "the token didn't grow");
        self.teller.tell(
            "east",
            &format!(
                "has the lock after {seconds:.1} s (the lease is {} s), token {}",
                TTL.as_secs(),
                guard.token()
            ),
        )?;
        self.trucks.assign("east", guard.token())?;
        guard.release().await?;
        east.close().await;
        Ok(())
    }

    async fn the_holder_is_paused(&self) -> Result<()> {
        self.teller
            .act("4. The holder is paused longer than its lease, as by a garbage collector.")?;
        let sleeper = Actor::start(&self.cluster.west())?;
        let old = sleeper.acquired.await.context("the sleeper")?;
        self.teller.tell("west", &format!("has the lock, token {old}, and falls asleep"))?;
        let east = connect(&self.cluster.east()).await?;
        let next = tokio::spawn(east.lock(LOCK).acquire());
        let (wake, woken) = mpsc::channel();
        sleeper.order.send(Order::Pause(woken)).ok().context("the sleeper is gone")?;
        let guard = timeout(PATIENCE, next).await???;
        ensure!(guard.token() > old, "the token didn't grow");
        self.teller
            .tell("east", &format!("has the lock, token {}: its batch runs", guard.token()))?;
        self.trucks.assign("east", guard.token())?;

        wake.send(()).ok().context("the sleeper is gone")?;
        let state = timeout(PATIENCE, sleeper.awake).await??;
        self.teller.tell("west", "wakes, and believes that it is still the same night")?;
        match self.trucks.assign("west", old) {
            Ok(()) => bail!("the sleeper's late write went through"),
            Err(refused) => {
                self.teller.tell("trucks", &format!("refuse the late write: {refused}"))?
            }
        }
        let State::Lost(reason) = state else { bail!("the sleeper's guard says {state:?}") };
        self.teller.tell("west", &format!("looks at its guard, which says: lost, {reason}"))?;
        guard.release().await?;
        east.close().await;
        Ok(())
    }
}

async fn connect(url: &str) -> Result<Client> {
    Ok(Client::builder().url(url).ttl(TTL).connect().await?)
}

/// A holder on a thread of its own, so that it can be killed or paused with everything it has.
struct Actor {
    acquired: oneshot::Receiver<u64>,
    order: oneshot::Sender<Order>,
    awake: oneshot::Receiver<State>,
}

enum Order {
    /// Vanish: no release, no goodbye.
    Die,
    /// Stand still until told otherwise: no heartbeat leaves, no timer runs.
    Pause(mpsc::Receiver<()>),
}

impl Actor {
    fn start(url: &str) -> Result<Self> {
        let (acquired_sender, acquired) = oneshot::channel();
        let (order, order_receiver) = oneshot::channel();
        let (awake_sender, awake) = oneshot::channel();
        let url = url.to_owned();
        thread::Builder::new().name("actor".to_owned()).spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (guard, order) = runtime.block_on(async {
                let client = connect(&url).await?;
                let guard = client.lock(LOCK).acquire().await?;
                let _ = acquired_sender.send(guard.token());
                anyhow::Ok((guard, order_receiver.await?))
            })?;
            match order {
                Order::Die => runtime.shutdown_background(),
                Order::Pause(woken) => {
                    woken.recv()?;
                    let _ = awake_sender.send(guard.state());
                }
            }
            Ok(())
        })?;
        Ok(Self { acquired, order, awake })
    }
}

/// Three servers, each on a thread and a disk directory of its own.
struct Cluster {
    network: Network,
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    threads: Vec<thread::JoinHandle<Result<()>>>,
}

impl Cluster {
    async fn start(directory: &std::path::Path) -> Result<Self> {
        let network = Network::new();
        let stop = watch::Sender::new(false);
        let mut threads = Vec::new();
        let mut addresses = Vec::new();
        for (index, name) in SERVERS.iter().enumerate() {
            let mut config = ServerConfig::loopback(1 + index as u64, directory.join(name));
            config.node.listen_peer = Some((*name).to_owned());
            config.node.timers = Timers::LAN;
            config.node.start = Start::Together(members());
            let environment =
                Environment { transport: Arc::new(network.uplink(name)), ..Environment::system() };
            let (ready, is_ready) = oneshot::channel();
            let mut stopped = stop.subscribe();
            let thread = thread::Builder::new().name((*name).to_owned()).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let server = Server::start(config, environment).await?;
                    let _ = ready.send(server.tcp_address());
                    tokio::select! {
                        _ = stopped.wait_for(|stop| *stop) => server.stop().await,
                        fault = server.fault() => bail!(fault),
                    }
                    Ok(())
                })
            })?;
            threads.push(thread);
            addresses.push(is_ready);
        }
        let mut ready = Vec::new();
        for address in addresses {
            ready.push(timeout(PATIENCE, address).await??.context("a server without an address")?);
        }
        Ok(Self { network, addresses: ready, stop, threads })
    }

    /// The servers of the west, for its clients.
    fn west(&self) -> String {
        format!("lockkeeper://{},{}", self.addresses[0], self.addresses[1])
    }

    /// The server of the east, for its clients.
    fn east(&self) -> String {
        format!("lockkeeper://{}", self.addresses[2])
    }

    fn stop(self) -> Result<()> {
        self.stop.send_replace(true);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a server panicked"))??;
        }
        Ok(())
    }
}

fn members() -> Vec<Member> {
    (1_u64..).zip(SERVERS).map(|(id, name)| Member { id, peer_address: name.to_owned() }).collect()
}
