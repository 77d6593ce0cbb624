//! What one client does that is long, and how long others wait for it at worst.
//!
//! Beside each server an onlooker writes and reads a znode of its own, a millisecond after its
//! last answer. Meanwhile one client sets `--watches` watches, an operator asks for them, that
//! client goes; and one makes `--ephemerals` ephemeral znodes in one directory, which is listed,
//! and closes its session.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Flags;
use crate::client::{Client, Greeting};
use crate::full::{CREATE, MULTI, ask, make, put_create};
use crate::jute::Out;
use crate::servers::Servers;

const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const SET_WATCHES: i32 = 101;
const CLOSE_SESSION: i32 = -11;

/// Watches, and ephemeral znodes, of one request: about as much as a client library sends.
const WATCHES: usize = 5_000;
const EPHEMERALS: usize = 500;

/// What the onlookers wait at worst, in microseconds, and whether one of them lost its connection.
#[derive(Default)]
struct Seen {
    worst: AtomicU64,
    is_lost: AtomicBool,
    is_over: AtomicBool,
}

pub fn run(flags: &Flags) -> Result<bool, String> {
    let command = std::env::var("ZK_SERVER_CMD").map_err(|_| "ZK_SERVER_CMD names no server")?;
    let servers = Servers::start(&command, flags.number("servers", 3)? as usize, "stalls")?;
    let watches = flags.number("watches", 200_000)? as usize;
    let ephemerals = flags.number("ephemerals", 100_000)? as usize;
    let ports = servers.ports();
    let seen = Seen::default();
    println!("what                        took ms  others wait at worst ms");
    thread::scope(|scope| {
        for (at, &port) in ports.iter().enumerate() {
            let (own, seen) = (format!("/onlooker-{at}"), &seen);
            scope.spawn(move || look_on(port, &own, seen));
        }
        let outcome = disturb(&ports, watches, ephemerals, &seen);
        seen.is_over.store(true, Ordering::Relaxed);
        outcome.map(|()| true)
    })
}

fn disturb(ports: &[u16], watches: usize, ephemerals: usize, seen: &Seen) -> Result<(), String> {
    let port = ports[0];
    row("nothing", seen, || Ok(thread::sleep(Duration::from_secs(1))))?;
    let mut watcher = connect(port)?;
    row(&format!("{watches} watches"), seen, || set_watches(&mut watcher, watches))?;
    for word in ["wchs", "wchc", "wchp", "dump"] {
        row(word, seen, || ask_word(port, word))?;
    }
    row("the watcher goes", seen, || Ok(drop(watcher)))?;
    make(&mut connect(port)?, "/crowd", &[])?;
    let mut owner = connect(port)?;
    row(&format!("{ephemerals} ephemerals"), seen, || fill(&mut owner, ephemerals))?;
    row("dump", seen, || ask_word(port, "dump"))?;
    for _ in 0..2 {
        row("getChildren", seen, || {
            let mut out = Out::default();
            out.string("/crowd").bool(false);
            done(connect(port)?, GET_CHILDREN, &out)
        })?;
    }
    // ZooKeeper doesn't survive it where the list of their paths is longer than its frames.
    row("their session ends", seen, || {
        done(owner, CLOSE_SESSION, &Out::default()).or_else(|error| Ok(println!("{error}")))
    })
}

/// Does something, and says how long it and the onlookers took.
fn row(what: &str, seen: &Seen, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    seen.worst.store(0, Ordering::Relaxed);
    let began = Instant::now();
    work()?;
    let took = began.elapsed();
    // What it has set off shows in what the onlookers ask after it.
    thread::sleep(Duration::from_secs(1));
    let worst = Duration::from_micros(seen.worst.load(Ordering::Relaxed));
    let lost = if seen.is_lost.swap(false, Ordering::Relaxed) { "  a connection was lost" } else { "" };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!("{what:<26} {:>8.0} {:>24.1}{lost}", ms(took), ms(worst));
    Ok(())
}

/// Writes and reads a znode, again and again, on one connection after the other.
fn look_on(port: u16, own: &str, seen: &Seen) {
    let mut client = None;
    while !seen.is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let outcome = match &mut client {
            None => connect(port).and_then(|mut new| {
                // It may be there already.
                let _ = make(&mut new, own, &[]);
                client = Some(new);
                Ok(())
            }),
            Some(client) => touch(client, own),
        };
        if outcome.is_err() {
            seen.is_lost.store(true, Ordering::Relaxed);
            client = None;
        }
        let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        seen.worst.fetch_max(took, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
}

fn touch(client: &mut Client, own: &str) -> Result<(), String> {
    let mut out = Out::default();
    out.string(own).buffer(Some(&[])).i32(-1);
    ask(client, SET_DATA, &out.0)?;
    let mut out = Out::default();
    out.string(own).bool(false);
    ask(client, GET_DATA, &out.0).map(drop)
}

fn connect(port: u16) -> Result<Client, String> {
    Client::connect(port, &Greeting::default()).map_err(|silence| format!("no session: {silence:?}"))
}

fn done(mut client: Client, op: i32, body: &Out) -> Result<(), String> {
    match ask(&mut client, op, &body.0)?.0 {
        0 => Ok(()),
        code => Err(format!("operation {op}: {code}")),
    }
}

/// On znodes that are not there, as a client sets them that has come back.
fn set_watches(client: &mut Client, watches: usize) -> Result<(), String> {
    for first in (0..watches).step_by(WATCHES) {
        let part = first..watches.min(first + WATCHES);
        let mut out = Out::default();
        out.i64(client.last_zxid).i32(0).i32(part.len() as i32);
        for at in part {
            out.string(&format!("/absent/{at:08}"));
        }
        out.i32(0);
        ask(client, SET_WATCHES, &out.0)?;
    }
    Ok(())
}

fn fill(client: &mut Client, ephemerals: usize) -> Result<(), String> {
    for first in (0..ephemerals).step_by(EPHEMERALS) {
        let mut out = Out::default();
        for at in first..ephemerals.min(first + EPHEMERALS) {
            out.i32(CREATE).bool(false).i32(-1);
            put_create(&mut out, &format!("/crowd/lock-{at:010}"), &[], 1);
        }
        out.i32(-1).bool(true).i32(-1);
        if ask(client, MULTI, &out.0)?.0 != 0 {
            return Err("a multi failed".to_owned());
        }
    }
    Ok(())
}

/// Asks as an operator does, and reads all of the answer.
fn ask_word(port: u16, word: &str) -> Result<(), String> {
    let answer = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map(drop)
    };
    answer().map_err(|error| format!("{word}: {error}"))
}
