//! A whole cluster and its clients in one thread, where a seed decides everything.
//!
//! Machines take turns: true time moves a millisecond, what has arrived is delivered, and each
//! process works until its own clock has caught up. Nodes are the real ones, with the real front
//! end before them, and clients are the real library; only clock, chance, disk and network are the
//! world's.

mod disk;
mod faults;
mod network;
mod process;
mod server;
mod time;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_node::{Member, NodeId};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use self::faults::Faults;
use self::network::{MachineId, Net, Sockets};
use self::process::{Condition, Machine};
use self::server::Server;
use self::time::TrueTime;
pub use self::time::{ClientClock, MachineClock};
use crate::chance::Chance;
use crate::judge::{self, Verdict};
use crate::recorder::{Record, Recorder};
use crate::workload::{self, Surroundings};
use crate::{ClientId, Nanos, Seen};

const MILLI: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MILLI;

/// The most members that a cluster may have in a world, those added later included.
const NODES_MAX: usize = 7;

/// By this a seed says whether its world has a client that only reads, aside from all else that it
/// decides: worlds without one are what they were before there was such a client. It is chosen so
/// that those of `seeds.txt` are among them.
const READER: u64 = 0x7c47;

/// By this, whether all disks of its world are slow.
const SLOW_DISKS: u64 = 0x510d;

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long faults happen, in true time.
    pub troubled: Duration,
    /// How long it is calm then: what is owed must come.
    pub calm: Duration,
    /// Keep the trace in words.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { troubled: Duration::from_secs(30), calm: Duration::from_secs(20), verbose: false }
    }
}

/// What became of a world.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What is wrong; empty if nothing is.
    pub verdicts: Vec<Verdict>,
    /// A digest of everything that happened.
    pub trace: u64,
    /// The trace in words, if it was asked for.
    pub words: Option<String>,
    /// What happened, in numbers.
    pub counts: Counts,
}

/// What happened in a world, in numbers.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// True time that passed.
    pub simulated: Duration,
    /// Faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Locks that clients came to hold.
    pub held: u64,
    /// Holds that clients lost.
    pub lost: u64,
    /// Entries of the log.
    pub entries: u64,
    /// Terms in which somebody led.
    pub terms: u64,
}

impl Counts {
    /// Adds another world's.
    pub fn add(&mut self, other: &Self) {
        self.simulated += other.simulated;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        self.held += other.held;
        self.lost += other.lost;
        self.entries += other.entries;
        self.terms += other.terms;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3_600.0;
        write!(
            f,
            "{hours:.1} simulated hours, {} entries, {} terms, {} holds, {} of them lost; faults:",
            self.entries, self.terms, self.held, self.lost
        )?;
        self.faults.iter().try_for_each(|(kind, count)| write!(f, " {kind} {count}"))
    }
}

/// Lives one world, and judges it.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Outcome {
    World::new(seed, options).live(options)
}

/// The world.
struct World {
    now: Nanos,
    truth: TrueTime,
    chance: Chance,
    net: Net,
    recorder: Recorder,
    machines: Vec<Machine>,
    servers: Vec<Server>,
    clients: Vec<ClientMachine>,
    faults: Faults,
    /// What went wrong that no judge of histories would see.
    complaints: Vec<String>,
}

/// A machine with a client on it.
struct ClientMachine {
    machine: MachineId,
    /// Its programs speak ZooKeeper's protocol.
    is_zookeeper: bool,
    /// And they read all the time and never ping.
    only_reads: bool,
    current: Arc<Mutex<Option<ClientId>>>,
}

impl World {
    fn new(seed: u64, options: &Options) -> Self {
        let mut chance = Chance::new(seed);
        let net = Net::new(chance.fork());
        let recorder = if options.verbose { Recorder::verbose() } else { Recorder::default() };
        let node_count = if chance.one_in(4) { 5 } else { 3 };
        let members: Vec<Member> = (1..=node_count).map(server::member).collect();
        let settings = server::Settings::choose(&mut chance);
        let truth = TrueTime::default();
        let mut machines = Vec::new();
        let mut add = |name: String, chance: &mut Chance| {
            let id = machines.len();
            net.name(id, &name);
            machines.push(Machine::new(name, chance.fork(), truth.clone()));
            id
        };
        let servers: Vec<Server> = (1..=NODES_MAX as NodeId)
            .map(|node| {
                let machine = add(server::host(node), &mut chance);
                let founders = (node <= node_count).then(|| members.clone());
                Server::new(node, machine, founders, settings.clone(), chance.fork())
            })
            .collect();
        let (natives, zookeepers) = (chance.between(2, 4), chance.below(3));
        // With others that want the same locks; otherwise there is nothing to be seen.
        let has_reader = zookeepers > 0 && Chance::new(seed ^ READER).one_in(2);
        let clients = (0..natives + zookeepers + u64::from(has_reader))
            .map(|count| {
                let machine = add(format!("c{count}"), &mut chance);
                let (is_zookeeper, only_reads) = (count >= natives, count >= natives + zookeepers);
                ClientMachine { machine, is_zookeeper, only_reads, current: Arc::default() }
            })
            .collect();
        let mut faults = Faults::new(chance.fork());
        let mut slow = Chance::new(seed ^ SLOW_DISKS);
        if slow.one_in(8) {
            // A write and a sync of it take longer than a follower may wait for its leader, and at
            // times longer than a second.
            let slowness = Duration::from_millis(slow.between(30, 150) * slow.pick(&[1, 4, 1]));
            servers.iter().for_each(|server| server.disk.be_slow(slowness));
            faults.count("slow-disks");
        }
        Self {
            now: 0,
            truth,
            chance,
            net,
            recorder,
            machines,
            servers,
            clients,
            faults,
            complaints: Vec::new(),
        }
    }

    fn live(mut self, options: &Options) -> Outcome {
        let calm_at = options.troubled.as_nanos() as Nanos;
        let over_at = calm_at + options.calm.as_nanos() as Nanos;
        let mut is_calm = false;
        while self.now < over_at {
            self.now += MILLI;
            self.truth.set(self.now);
            if self.now >= calm_at && !is_calm {
                is_calm = true;
                self.calm();
            }
            if !is_calm {
                self.trouble();
            }
            self.net.advance(self.now);
            self.turn();
        }
        self.finish(options)
    }

    /// Every machine has its turn.
    fn turn(&mut self) {
        // Who comes first varies, for what they find in each other's hands.
        let first = self.chance.below(self.machines.len() as u64) as usize;
        for offset in 0..self.machines.len() {
            let id = (first + offset) % self.machines.len();
            match self.machines[id].condition {
                Condition::Down(at) if at <= self.now => self.start(id),
                Condition::Paused { until, .. } if until <= self.now => {
                    self.machines[id].resume(self.now)
                }
                _ => {}
            }
            let has_mail = self.net.take_mail(id);
            self.machines[id].step(self.now, has_mail);
        }
        self.bury();
    }

    /// Processes that have ended by themselves are started again in a while.
    fn bury(&mut self) {
        for index in 0..self.servers.len() {
            let server = &self.servers[index];
            if !server.is_wanted() && self.machines[server.machine].is_up() {
                let machine = server.machine;
                self.kill(machine, false, Nanos::MAX - self.now);
                continue;
            }
            let Some(last_words) = self.servers[index].ended() else { continue };
            let machine = self.servers[index].machine;
            self.recorder
                .note(self.now, &format!("{} ends: {last_words}", self.machines[machine].name));
            if !self.servers[index].may_end(&last_words) {
                let node = self.servers[index].node;
                self.complaints.push(format!("node {node} ended by itself: {last_words}"));
            }
            let rest = self.chance.between(100, 3_000) * MILLI;
            self.kill(machine, false, rest);
        }
    }

    /// Starts the process of a machine.
    fn start(&mut self, id: MachineId) {
        let now = self.now;
        if let Some(server) = self.servers.iter_mut().find(|server| server.machine == id) {
            let sockets = self.net.boot(id);
            let recorder = self.recorder.clone();
            match server.prepare(sockets, recorder) {
                Some(main) => self.machines[id].start(now, main),
                None => self.machines[id].condition = Condition::Down(Nanos::MAX),
            }
            return;
        }
        let Some(client) = self.clients.iter().find(|client| client.machine == id) else { return };
        let network = ClientNetwork::new(self.net.boot(id), self.chance.fork());
        let (recorder, chance) = (self.recorder.clone(), self.chance.fork());
        let (host, current) = (self.machines[id].name.clone(), Arc::clone(&client.current));
        let mut servers: Vec<String> =
            (1..=NODES_MAX as NodeId).map(server::client_address).collect();
        let first = self.chance.below(servers.len() as u64) as usize;
        servers.rotate_left(first);
        let servers = servers.join(",");
        let zookeepers = (1..=NODES_MAX as NodeId).map(server::zookeeper_address).collect();
        let (is_zookeeper, only_reads) = (client.is_zookeeper, client.only_reads);
        self.machines[id].start(now, move |clock| {
            let around = Surroundings {
                clock,
                network,
                recorder,
                chance,
                host,
                servers,
                zookeepers,
                only_reads,
                current,
            };
            async move {
                if is_zookeeper {
                    workload::zookeeper::run(around).await;
                } else {
                    workload::native::run(around).await;
                }
            }
        });
    }

    /// Ends the process of a machine. `is_silent`: the whole machine is gone.
    fn kill(&mut self, id: MachineId, is_silent: bool, rest: Nanos) {
        self.net.halt(id, is_silent);
        if let Some(client) = self.clients.iter().find(|client| client.machine == id)
            && let Some(client) = client.current.lock().take()
        {
            // A process that stood still has done nothing since.
            let ended = match self.machines[id].condition {
                Condition::Paused { since, .. } => since,
                Condition::Running | Condition::Down(_) => self.now,
            };
            self.recorder.see(ended, Seen::Ended { client });
        }
        self.machines[id].kill(self.now, self.now + rest);
        if let Some(server) = self.servers.iter_mut().find(|server| server.machine == id) {
            server.forget();
        }
    }

    /// All faults end: whatever is down comes back, and every link is whole.
    fn calm(&mut self) {
        self.faults.end_all();
        self.net.heal();
        for server in &self.servers {
            server.disk.heal();
        }
        for machine in &mut self.machines {
            match &mut machine.condition {
                Condition::Running => {}
                Condition::Paused { until, .. } => *until = self.now,
                Condition::Down(at) => *at = (*at).min(self.now),
            }
        }
        for server in &self.servers {
            if !server.is_wanted() {
                self.machines[server.machine].condition = Condition::Down(Nanos::MAX);
            }
        }
        if self.chance.one_in(3) {
            self.break_one_link();
        }
        self.recorder.see(self.now, Seen::Calm);
    }

    /// One link between two nodes stays broken for good: what is owed must come all the same.
    fn break_one_link(&mut self) {
        let wanted: Vec<MachineId> =
            self.servers.iter().filter(|s| s.is_wanted()).map(|server| server.machine).collect();
        let (one, other) = (*self.chance.pick(&wanted), *self.chance.pick(&wanted));
        if one != other {
            let names = [one, other].map(|machine| self.machines[machine].name.clone());
            self.recorder.note(self.now, &format!("for good: no link between {names:?}"));
            self.net.set_link(one, other, true, Duration::ZERO);
            self.net.set_link(other, one, self.chance.one_in(2), Duration::ZERO);
        }
    }

    fn finish(mut self, options: &Options) -> Outcome {
        self.recorder.see(self.now, Seen::Over);
        let delivered = self.net.delivered();
        self.recorder.note(self.now, &format!("{delivered} bytes delivered"));
        for machine in 0..self.machines.len() {
            self.net.halt(machine, true);
            self.machines[machine].kill(self.now, Nanos::MAX);
        }
        let Record { mut history, contradictions, trace, words } = self.recorder.finish();
        history.bound = Some(options.calm.as_nanos() as Nanos * 3 / 4);
        let mut verdicts = judge::judge_all(&history);
        let others = contradictions.into_iter().map(|what| Verdict { judge: "replicas", what });
        verdicts.extend(others);
        let complaints = self.complaints.drain(..);
        verdicts.extend(complaints.map(|what| Verdict { judge: "processes", what }));
        let counts = self.faults.counts(&history, self.now);
        Outcome { verdicts, trace, words, counts }
    }
}

/// How a client's process reaches the servers.
pub struct ClientNetwork {
    sockets: Sockets,
    chance: Mutex<Chance>,
}

impl ClientNetwork {
    fn new(sockets: Sockets, chance: Chance) -> Self {
        Self { sockets, chance: Mutex::new(chance) }
    }
}

impl fmt::Debug for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sockets.fmt(f)
    }
}

/// The two halves of a client's connection.
type Halves = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

impl ClientNetwork {
    /// Connects to a server.
    pub(crate) async fn reach(&self, host: &str, port: u16) -> io::Result<Halves> {
        let (reader, writer) = tokio::io::split(self.sockets.connect(host, port).await?);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

impl lockkeeper::network::Network for ClientNetwork {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> lockkeeper::network::Connecting<'a> {
        Box::pin(async move {
            let (reader, writer) = self.reach(host, port).await?;
            Ok(lockkeeper::network::Connection { reader, writer })
        })
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.chance.lock().next_u64())
    }
}
