//! The classic lock recipe as a load: each worker takes and releases locks for ever.
//!
//! create EPHEMERAL_SEQUENTIAL, getChildren, and, unless it is first, exists with a watch on the
//! one before it, getChildren again when that is gone; then delete. A pair is one lock taken and
//! released. Workers share a few connections, and all connections one thread: servers and load
//! share the machine, and a thread that has to be woken for each answer costs the servers that
//! wake it, too. What a socket has is answered in one write. No locks are shared unless `--locks`
//! is smaller than `--workers`.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use polling::{Event, Events, PollMode, Poller};

use crate::Flags;
use crate::client::{ANSWER_TIMEOUT, Client, Greeting};
use crate::jute::{In, Out};
use crate::servers::Servers;

pub fn run(flags: &Flags) -> Result<bool, String> {
    let command = std::env::var("ZK_SERVER_CMD").map_err(|_| "ZK_SERVER_CMD names no server")?;
    let count = flags.number("servers", 3)? as usize;
    let connections = flags.number("connections", 16)? as usize;
    let seconds = Duration::from_secs(flags.number("seconds", 10)?);
    let warm = Duration::from_secs(flags.number("warm", 10)?);
    let runs = flags.number("runs", 3)?;
    let servers = Servers::start(&command, count, "load")?;
    let workers = flags.numbers("workers", &[64, 1024])?;
    let most = workers.iter().copied().max().unwrap_or(1) as usize;
    let locks = flags.number("locks", most as u64)? as usize;
    prepare(&servers, locks)?;
    let measure = match flags.texts("client").first().map(String::as_str) {
        None | Some("lean") => measure,
        #[cfg(feature = "library")]
        Some("library") => crate::load_library::measure,
        Some(other) => {
            return Err(format!("--client is lean or library (a feature), not '{other}'"));
        }
    };
    if !warm.is_zero() {
        measure(&servers, connections, most.min(256), locks, warm)?;
    }
    println!("workers  pairs/s     p50 ms   p99 ms  p999 ms  cores of servers  MiB  errors");
    for workers in workers {
        for _ in 0..runs {
            let cpu = servers.cpu();
            let begin = Instant::now();
            let (mut pairs, errors) =
                measure(&servers, connections, workers as usize, locks, seconds)?;
            let cores = (servers.cpu() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
            pairs.sort_unstable();
            let at = |part: f64| {
                let index = ((pairs.len() as f64 * part) as usize).min(pairs.len().max(1) - 1);
                pairs.get(index).copied().unwrap_or(0) as f64 / 1000.0
            };
            println!(
                "{workers:>7} {:>8.0} {:>10.2} {:>8.2} {:>8.2} {cores:>17.2} {:>4} {errors:>7}",
                pairs.len() as f64 / seconds.as_secs_f64(),
                at(0.5),
                at(0.99),
                at(0.999),
                servers.memory_mib(),
            );
        }
    }
    Ok(true)
}

/// Makes the directories of the locks.
fn prepare(servers: &Servers, locks: usize) -> Result<(), String> {
    let mut client = Client::connect(servers.ports()[0], &Greeting::default())
        .map_err(|silence| format!("no session: {silence:?}"))?;
    for path in std::iter::once("/load".to_owned()).chain((0..locks).map(directory)) {
        let mut out = Out::default();
        out.string(&path).buffer(Some(b""));
        open_acl(&mut out);
        out.i32(0);
        match client.ask(1, &out.0) {
            Ok((0 | -110, _)) => {}
            other => return Err(format!("create {path}: {other:?}")),
        }
    }
    Ok(())
}

fn directory(lock: usize) -> String {
    format!("/load/{lock}")
}

fn open_acl(out: &mut Out) {
    out.i32(1).i32(31).string("world").string("anyone");
}

/// What the connections of one measurement share.
struct Run {
    errors: u32,
    /// When the answers that are being read were found.
    now: Instant,
    /// Before it, nothing is counted: sessions are opened and queues fill.
    counted_from: Instant,
    counted_to: Instant,
}

/// Before it, nothing is counted: sessions are opened and queues fill.
pub const SETTLE: Duration = Duration::from_secs(2);

/// The pairs' times in µs, and how many requests failed.
fn measure(
    servers: &Servers,
    connections: usize,
    workers: usize,
    locks: usize,
    duration: Duration,
) -> Result<(Vec<u32>, u32), String> {
    let ports = servers.ports();
    let begin = Instant::now();
    let mut run = Run {
        errors: 0,
        now: begin,
        counted_from: begin + SETTLE,
        counted_to: begin + SETTLE + duration,
    };
    let mut open = Vec::new();
    for connection in 0..connections.min(workers) {
        let own = (connection..workers).step_by(connections).map(|w| w % locks).collect();
        open.push(Connection::open(ports[connection % ports.len()], own)?);
    }
    drive(&mut open, &mut run).map_err(|error| error.to_string())?;
    let pairs = open.into_iter().flat_map(|connection| connection.pairs).collect();
    Ok((pairs, run.errors))
}

/// Lets all workers work until the time is over and each has finished its pair.
fn drive(connections: &mut [Connection], run: &mut Run) -> io::Result<()> {
    let poller = Poller::new()?;
    for (key, connection) in connections.iter_mut().enumerate() {
        // SAFETY: the sockets outlive the poller, which ends with this function.
        unsafe { poller.add_with_mode(&connection.client.stream, Event::readable(key), PollMode::Level)? };
        connection.start()?;
    }
    let mut busy: usize = connections.iter().map(|connection| connection.workers.len()).sum();
    let mut events = Events::new();
    let mut buffer = vec![0; 1 << 18];
    while busy > 0 {
        events.clear();
        if poller.wait(&mut events, Some(ANSWER_TIMEOUT))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        run.now = Instant::now();
        for event in events.iter() {
            busy -= connections[event.key].turn(&mut buffer, run)?;
        }
    }
    for connection in connections.iter_mut() {
        poller.delete(&connection.client.stream)?;
        connection.end()?;
    }
    Ok(())
}

enum State {
    Creating,
    Listing,
    /// Asked whether the one before is still there.
    Looking,
    /// The one before is there, and is watched.
    Waiting,
    Deleting,
    Idle,
}

struct Worker {
    lock: usize,
    state: State,
    node: String,
    began: Instant,
}

struct Connection {
    client: Client,
    workers: Vec<Worker>,
    /// Requests are answered in order: whose they are.
    asked: std::collections::VecDeque<usize>,
    watching: HashMap<String, Vec<usize>>,
    /// The beginning of a frame that isn't whole yet.
    input: Vec<u8>,
    out: Vec<u8>,
    pairs: Vec<u32>,
}

impl Connection {
    fn open(port: u16, locks: Vec<usize>) -> Result<Self, String> {
        let client = Client::connect(port, &Greeting::default())
            .map_err(|silence| format!("no session: {silence:?}"))?;
        if client.session.id == 0 {
            return Err("no session was given".to_owned());
        }
        let began = Instant::now();
        let workers = locks
            .into_iter()
            .map(|lock| Worker { lock, state: State::Idle, node: String::new(), began })
            .collect();
        Ok(Self {
            client,
            workers,
            asked: std::collections::VecDeque::new(),
            watching: HashMap::new(),
            input: Vec::new(),
            out: Vec::new(),
            pairs: Vec::new(),
        })
    }

    fn start(&mut self) -> io::Result<()> {
        for worker in 0..self.workers.len() {
            self.begin(worker, Instant::now());
        }
        self.write()
    }

    /// Answers all that the socket has; how many workers ended with it.
    fn turn(&mut self, buffer: &mut [u8], run: &mut Run) -> io::Result<usize> {
        let count = self.client.stream.read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(&buffer[..count]);
        let (mut at, mut ended) = (0, 0);
        while let Some(length) = input[at..].first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let Some(frame) = input.get(at + 4..at + 4 + length) else { break };
            let answered = self.answer(frame, run);
            ended += answered.ok_or_else(|| io::Error::other("an answer that makes no sense"))?;
            at += 4 + length;
        }
        input.drain(..at);
        self.input = input;
        self.write()?;
        Ok(ended)
    }

    fn write(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.client.stream.write_all(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.ask(-11, 0, |_| ());
        self.write()?;
        let _ = self.client.stream.read(&mut [0; 64]);
        Ok(())
    }

    /// One frame; how many workers ended with it.
    fn answer(&mut self, frame: &[u8], run: &mut Run) -> Option<usize> {
        let mut input = In(frame);
        let (xid, _zxid, code) = (input.i32()?, input.i64()?, input.i32()?);
        if xid == -1 {
            let (_kind, _state, path) = (input.i32()?, input.i32()?, input.string()?);
            for worker in self.watching.remove(&path).unwrap_or_default() {
                // The reply that registered the watch came first.
                self.list(worker);
            }
            return Some(0);
        }
        let worker = self.asked.pop_front()?;
        if code != 0 && !(code == -101 && matches!(self.workers[worker].state, State::Looking)) {
            run.errors += 1;
            return Some(self.next(worker, run));
        }
        match self.workers[worker].state {
            State::Creating => {
                let path = input.string()?;
                self.workers[worker].node = path;
                self.list(worker);
            }
            State::Listing => self.listed(worker, &mut input)?,
            State::Looking if code == 0 => self.workers[worker].state = State::Waiting,
            State::Looking => {
                // Sequential names don't come again: the watch on the missing node never fires.
                self.watching.retain(|_, workers| !workers.contains(&worker));
                self.list(worker);
            }
            State::Deleting => {
                let now = run.now;
                if now >= run.counted_from && now < run.counted_to {
                    let took = now - self.workers[worker].began;
                    self.pairs.push(took.as_micros().min(u128::from(u32::MAX)) as u32);
                }
                return Some(self.next(worker, run));
            }
            State::Waiting | State::Idle => return None,
        }
        Some(0)
    }

    /// Begins the next pair; 1 if there is to be none.
    fn next(&mut self, worker: usize, run: &mut Run) -> usize {
        if run.now >= run.counted_to {
            self.workers[worker].state = State::Idle;
            return 1;
        }
        self.begin(worker, run.now);
        0
    }

    fn begin(&mut self, worker: usize, now: Instant) {
        let path = format!("{}/lock-", directory(self.workers[worker].lock));
        self.workers[worker].began = now;
        self.workers[worker].state = State::Creating;
        self.ask(1, worker, |out| {
            out.string(&path).buffer(Some(b""));
            open_acl(out);
            out.i32(3);
        });
    }

    fn list(&mut self, worker: usize) {
        let path = directory(self.workers[worker].lock);
        self.workers[worker].state = State::Listing;
        self.ask(8, worker, |out| {
            out.string(&path).bool(false);
        });
    }

    /// Finds its place in the queue.
    fn listed(&mut self, worker: usize, input: &mut In<'_>) -> Option<()> {
        let node = self.workers[worker].node.clone();
        let own = node.rsplit('/').next()?;
        let before = input.strings()??.into_iter().filter(|name| name.as_str() < own).max();
        let Some(before) = before else {
            self.workers[worker].state = State::Deleting;
            self.ask(2, worker, |out| {
                out.string(&node).i32(-1);
            });
            return Some(());
        };
        let before = format!("{}/{before}", directory(self.workers[worker].lock));
        self.workers[worker].state = State::Looking;
        self.ask(3, worker, |out| {
            out.string(&before).bool(true);
        });
        self.watching.entry(before).or_default().push(worker);
        Some(())
    }

    fn ask(&mut self, op: i32, worker: usize, body: impl FnOnce(&mut Out)) {
        let xid = self.client.xid();
        let mut out = Out(std::mem::take(&mut self.out));
        let start = out.0.len();
        out.i32(0).i32(xid).i32(op);
        body(&mut out);
        let length = (out.0.len() - start - 4) as u32;
        out.0[start..start + 4].copy_from_slice(&length.to_be_bytes());
        self.out = out.0;
        self.asked.push_back(worker);
    }
}
