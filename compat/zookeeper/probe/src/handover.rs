//! A lock that thousands wait for: how long one hand-over takes, and how many are woken by it.
//!
//! The waiters' nodes stand in one directory, each with a watch on the one before it, and a few
//! connections share them. A hand-over is what Curator makes of it: the holder deletes its node,
//! the next one is told, lists the directory, and finds itself first. The queue is laid by the
//! numbers of the nodes, without a listing for each.

use std::time::{Duration, Instant};

use crate::Flags;
use crate::client::{Client, Greeting};
use crate::jute::{In, Out};
use crate::servers::Servers;

/// How many requests are on their way at once while the queue is laid.
const BATCH: usize = 256;

pub fn run(flags: &Flags) -> Result<bool, String> {
    let command = std::env::var("ZK_SERVER_CMD").map_err(|_| "ZK_SERVER_CMD names no server")?;
    let count = flags.number("servers", 3)? as usize;
    let connections = flags.number("connections", 16)? as usize;
    let rounds = flags.number("rounds", 300)? as usize;
    let warm = flags.number("warm", 1)?;
    let servers = Servers::start(&command, count, "handover")?;
    let sizes = flags.numbers("waiters", &[2, 20_000])?;
    for index in 0..warm {
        measure(&servers, connections, 2, 2000, &format!("/warm{index}"))?;
    }
    println!("waiters  hand-over p50 ms   p99 ms  events per release");
    let mut good = true;
    for (index, waiters) in sizes.into_iter().enumerate() {
        let (mut times, events) =
            measure(&servers, connections, waiters as usize, rounds, &format!("/queue{index}"))?;
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1000.0;
        let each = events as f64 / times.len() as f64;
        println!("{waiters:>7} {:>17.2} {:>8.2} {each:>19.2}", at(50), at(99));
        good &= (each - 1.0).abs() < f64::EPSILON;
    }
    Ok(good)
}

struct Queue {
    clients: Vec<Client>,
    directory: String,
    /// The nodes in order, from the holder's on, and whose connection each is.
    nodes: std::collections::VecDeque<(String, usize)>,
    events: usize,
}

/// The times of `rounds` hand-overs with always as many waiting, and how many events there were.
fn measure(
    servers: &Servers,
    connections: usize,
    waiters: usize,
    rounds: usize,
    directory: &str,
) -> Result<(Vec<Duration>, usize), String> {
    let ports = servers.ports();
    let clients = (0..connections)
        .map(|index| Client::connect(ports[index % ports.len()], &Greeting::default()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|silence| format!("no session: {silence:?}"))?;
    let nodes = std::collections::VecDeque::new();
    let mut queue = Queue { clients, directory: directory.to_owned(), nodes, events: 0 };
    let mut out = Out::default();
    out.string(directory).buffer(Some(b""));
    open_acl(&mut out);
    out.i32(0);
    queue.asked(0, 1, &out)?;
    for client in 1..connections {
        // No server is behind the directory's creation from here on.
        let mut out = Out::default();
        out.string(directory);
        queue.asked(client, 9, &out)?;
    }
    while queue.nodes.len() < waiters + 1 {
        let client = queue.nodes.len() / BATCH % connections;
        queue.join(client, BATCH.min(waiters + 1 - queue.nodes.len()))?;
    }
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        times.push(queue.hand_over()?);
        let client = queue.nodes.back().map_or(0, |(_, client)| (client + 1) % connections);
        queue.join(client, 1)?;
    }
    // Whoever was woken in vain has been told before the answer to this.
    for client in 0..connections {
        let mut out = Out::default();
        out.string("/").bool(false);
        queue.asked(client, 3, &out)?;
    }
    Ok((times, queue.events))
}

impl Queue {
    /// Asks for one thing and waits for the answer, counting the events before it.
    fn asked(&mut self, client: usize, op: i32, body: &Out) -> Result<(i32, Vec<u8>), String> {
        let xid = self.send(client, op, body);
        self.answer(client, xid)
    }

    fn send(&mut self, client: usize, op: i32, body: &Out) -> i32 {
        let xid = self.clients[client].xid();
        let mut out = Out::default();
        out.i32(xid).i32(op);
        out.0.extend_from_slice(&body.0);
        self.clients[client].send(&out.0);
        xid
    }

    fn answer(&mut self, client: usize, xid: i32) -> Result<(i32, Vec<u8>), String> {
        loop {
            let frame = self.clients[client]
                .frame()
                .map_err(|silence| format!("no answer: {silence:?}"))?;
            let mut input = In(&frame);
            let (answered, _zxid, code) = (input.i32(), input.i64(), input.i32());
            if answered == Some(-1) {
                self.events += 1;
            } else if answered == Some(xid) {
                return Ok((code.unwrap_or(-1), input.0.to_vec()));
            }
        }
    }

    /// More waiters of one connection, at the end of the queue.
    fn join(&mut self, client: usize, count: usize) -> Result<(), String> {
        let path = format!("{}/lock-", self.directory);
        let mut create = Out::default();
        create.string(&path).buffer(Some(b""));
        open_acl(&mut create);
        create.i32(3);
        let asked: Vec<i32> = (0..count).map(|_| self.send(client, 1, &create)).collect();
        let mut watched = Vec::new();
        for xid in asked {
            let (code, body) = self.answer(client, xid)?;
            let node = In(&body).string().filter(|_| code == 0).ok_or(format!("create: {code}"))?;
            if let Some((before, _)) = self.nodes.back() {
                let mut exists = Out::default();
                exists.string(before).bool(true);
                watched.push(exists);
            }
            self.nodes.push_back((node, client));
        }
        let asked: Vec<i32> = watched.iter().map(|exists| self.send(client, 3, exists)).collect();
        for xid in asked {
            match self.answer(client, xid)?.0 {
                0 => {}
                code => return Err(format!("the one before isn't there: {code}")),
            }
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<Duration, String> {
        let (node, client) = self.nodes.pop_front().ok_or("nobody holds the lock")?;
        let (next, waiter) = self.nodes.front().cloned().ok_or("nobody waits")?;
        let mut delete = Out::default();
        delete.string(&node).i32(-1);
        let begin = Instant::now();
        let xid = self.send(client, 2, &delete);
        if client == waiter {
            // The event comes before the answer.
            self.answer(client, xid)?;
        } else {
            self.told(waiter)?;
        }
        let mut list = Out::default();
        list.string(&self.directory).bool(false);
        let (_, body) = self.asked(waiter, 8, &list)?;
        let took = begin.elapsed();
        let names = In(&body).strings().flatten().ok_or("no listing")?;
        let first = names.iter().min().map(|name| format!("{}/{name}", self.directory));
        if first.as_ref() != Some(&next) {
            return Err(format!("{next} was woken, and {first:?} is first"));
        }
        if client != waiter {
            self.answer(client, xid)?;
        }
        Ok(took)
    }

    fn told(&mut self, client: usize) -> Result<(), String> {
        let frame = self.clients[client].frame().map_err(|silence| format!("{silence:?}"))?;
        self.events += 1;
        match In(&frame).i32() {
            Some(-1) => Ok(()),
            other => Err(format!("{other:?} instead of an event")),
        }
    }
}

fn open_acl(out: &mut Out) {
    out.i32(1).i32(31).string("world").string("anyone");
}
