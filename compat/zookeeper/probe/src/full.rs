//! A full tree and many watches: what they cost in memory, and those who have nothing to do with
//! them in time.
//!
//! One client takes and releases a lock of its own again and again, on an empty server, beside
//! `--znodes` znodes of 100 bytes, and beside `--watches` watches on those.

use std::time::{Duration, Instant};

use crate::Flags;
use crate::client::{Client, Greeting};
use crate::jute::{In, Out};
use crate::servers::Servers;

pub const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
pub const MULTI: i32 = 14;
const PING: i32 = 11;

/// Znodes of one directory, and of one multi.
const DIRECTORY: usize = 1_000;
const PART: usize = 200;
const DATA: [u8; 100] = [b'x'; 100];

pub fn run(flags: &Flags) -> Result<bool, String> {
    let command = std::env::var("ZK_SERVER_CMD").map_err(|_| "ZK_SERVER_CMD names no server")?;
    let servers = Servers::start(&command, flags.number("servers", 3)? as usize, "full")?;
    let znodes = flags.number("znodes", 1_000_000)? as usize;
    let watches = flags.number("watches", 200_000)? as usize;
    let seconds = Duration::from_secs(flags.number("seconds", 5)?);
    if watches > znodes {
        return Err("a watch is on a znode of its own".to_owned());
    }
    let mut clients = Vec::new();
    for connection in 0..flags.number("connections", 16)? as usize {
        let port = servers.ports()[connection % servers.ports().len()];
        let client = Client::connect(port, &Greeting::default());
        clients.push(client.map_err(|silence| format!("no session: {silence:?}"))?);
    }
    make(&mut clients[0], "/own", &[])?;
    make(&mut clients[0], "/full", &[])?;
    println!("beside                pairs/s  p50 ms  p99 ms  max ms  MiB of servers  took");
    row("nothing", &servers, &mut clients, seconds, Duration::ZERO)?;
    let began = Instant::now();
    fill(&mut clients, znodes)?;
    let took = began.elapsed();
    row(&format!("{znodes} znodes"), &servers, &mut clients, seconds, took)?;
    let began = Instant::now();
    watch(&mut clients, watches)?;
    let took = began.elapsed();
    row(&format!("{watches} watches, too"), &servers, &mut clients, seconds, took)?;
    Ok(true)
}

/// Takes and releases a lock for a while.
fn row(
    beside: &str,
    servers: &Servers,
    clients: &mut [Client],
    seconds: Duration,
    took: Duration,
) -> Result<(), String> {
    clients.iter_mut().try_for_each(ping)?;
    // What is still going on of what was done before isn't what is measured.
    std::thread::sleep(Duration::from_secs(2));
    let client = &mut clients[0];
    let end = Instant::now() + seconds;
    let mut pairs = Vec::new();
    while Instant::now() < end {
        let began = Instant::now();
        let mut out = Out::default();
        put_create(&mut out, "/own/lock-", &[], 3);
        let (code, answer) = ask(client, CREATE, &out.0)?;
        let path = In(&answer).string().filter(|_| code == 0).ok_or("a create failed")?;
        let mut out = Out::default();
        out.string(&path).i32(-1);
        if ask(client, DELETE, &out.0)?.0 != 0 {
            return Err("a delete failed".to_owned());
        }
        pairs.push(began.elapsed());
    }
    pairs.sort_unstable();
    let at = |part: f64| {
        let index = ((pairs.len() as f64 * part) as usize).min(pairs.len() - 1);
        pairs[index].as_secs_f64() * 1000.0
    };
    println!(
        "{beside:<20} {:>8.0} {:>7.2} {:>7.2} {:>7.2} {:>15} {:>4.1} s",
        pairs.len() as f64 / seconds.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0),
        servers.memory_mib(),
        took.as_secs_f64(),
    );
    Ok(())
}

fn fill(clients: &mut [Client], znodes: usize) -> Result<(), String> {
    for directory in 0..znodes.div_ceil(DIRECTORY) {
        make(&mut clients[0], &format!("/full/{directory}"), &[])?;
    }
    each(
        clients,
        |client, mut share| {
            let mut next = share.next();
            while next.is_some() {
                let mut out = Out::default();
                for _ in 0..PART {
                    let Some(znode) = next else { break };
                    out.i32(CREATE).bool(false).i32(-1);
                    put_create(&mut out, &path(znode), &DATA, 0);
                    next = share.next();
                }
                out.i32(-1).bool(true).i32(-1);
                if ask(client, MULTI, &out.0)?.0 != 0 {
                    return Err("a multi failed".to_owned());
                }
            }
            Ok(())
        },
        znodes,
    )
}

fn watch(clients: &mut [Client], watches: usize) -> Result<(), String> {
    each(
        clients,
        |client, mut share| {
            loop {
                let part: Vec<usize> = share.by_ref().take(PART).collect();
                if part.is_empty() {
                    return Ok(());
                }
                let mut frames = Vec::new();
                for &znode in &part {
                    let mut out = Out::default();
                    out.i32(client.xid()).i32(EXISTS).string(&path(znode)).bool(true);
                    frames.extend_from_slice(&(out.0.len() as i32).to_be_bytes());
                    frames.extend_from_slice(&out.0);
                }
                client.send_bytes(&frames);
                for _ in &part {
                    let frame =
                        client.frame().map_err(|silence| format!("no reply: {silence:?}"))?;
                    let mut input = In(&frame);
                    let (_, _, code) = (input.i32(), input.i64(), input.i32());
                    if code != Some(0) {
                        return Err(format!("a watch could not be set: {code:?}"));
                    }
                }
            }
        },
        watches,
    )
}

/// Gives every client its share of the numbers up to `count`, on threads.
fn each(
    clients: &mut [Client],
    work: impl Fn(&mut Client, std::iter::StepBy<std::ops::Range<usize>>) -> Result<(), String> + Sync,
    count: usize,
) -> Result<(), String> {
    let all = clients.len();
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(at, client)| scope.spawn(move || work(client, (at..count.max(at)).step_by(all))))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

fn path(znode: usize) -> String {
    format!("/full/{}/{znode:07}", znode / DIRECTORY)
}

pub fn put_create(out: &mut Out, path: &str, data: &[u8], flags: i32) {
    out.string(path).buffer(Some(data)).i32(1).i32(31).string("world").string("anyone").i32(flags);
}

pub fn make(client: &mut Client, path: &str, data: &[u8]) -> Result<(), String> {
    let mut out = Out::default();
    put_create(&mut out, path, data, 0);
    match ask(client, CREATE, &out.0)?.0 {
        0 => Ok(()),
        code => Err(format!("create {path}: {code}")),
    }
}

pub fn ask(client: &mut Client, op: i32, body: &[u8]) -> Result<(i32, Vec<u8>), String> {
    client.ask(op, body).map_err(|silence| format!("no reply: {silence:?}"))
}

/// Keeps a session alive, and reads the answer.
fn ping(client: &mut Client) -> Result<(), String> {
    let mut out = Out::default();
    out.i32(-2).i32(PING);
    client.send(&out.0);
    client.frame().map(drop).map_err(|silence| format!("no reply to a ping: {silence:?}"))
}
