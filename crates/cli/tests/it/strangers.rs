//! Strangers at the ports of real servers: memory doesn't move, and the cluster goes on.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::home::{LOCKKEEPER, wait_for};
use crate::servers::Servers;

/// What a native client says first, as the protocol's page has it.
const GREETING: [u8; 12] = *b"\x89LOCKKPR\0\0\0\x01";

/// What a peer says first.
const PEER_MAGIC: [u8; 8] = *b"LKPEER\0\x01";

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("more files");
}

fn connect(address: &str, first: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    // Whoever is dropped at once can't say it all, which is fine.
    let _ = stream.write_all(first);
    stream
}

/// Resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kilobytes << 10
}

/// Locks and unlocks by way of any server.
fn assert_locks(servers: &Servers) {
    let status = Command::new(LOCKKEEPER)
        .args(["lock", "beside-strangers", "--url", &servers.url(), "--", "true"])
        .stdin(Stdio::null())
        .status()
        .expect("the program runs");
    assert!(status.success());
}

/// Case LI-1: a length of -1, 0 or 2^31 - 1, and then silence, on both ports.
#[test]
fn li_1_promised_lengths_do_not_move_memory() {
    raise_file_limit();
    let servers = Servers::start();
    assert_locks(&servers);
    let (clients, peers) = (servers.client_address(0), servers.peer_address(0));
    let before = memory(servers.pid(0));
    let mut crowd = Vec::new();
    for stranger in 0..1_000_usize {
        let length: u32 = [u32::MAX, 0, 0x7fff_ffff, 0xffff][stranger % 4];
        crowd.push(connect(&clients, &[&GREETING[..], &length.to_be_bytes()].concat()));
        let head = [length.to_le_bytes(), [0; 4]].concat();
        crowd.push(connect(&peers, &[&PEER_MAGIC[..], &head].concat()));
    }
    assert_locks(&servers);
    let grown = memory(servers.pid(0)).saturating_sub(before);
    // A connection has its few kilobytes; what the lengths promise would be two terabytes.
    assert!(grown < 32 << 20, "{grown} bytes for {} connections", crowd.len());
    drop(crowd);
    assert_locks(&servers);
}

/// Peers that connect anew, as after the loss of a leader, find a place among the strangers.
#[test]
fn two_thousand_strangers_at_the_peers_ports_keep_no_peer_out() {
    raise_file_limit();
    let mut servers = Servers::start();
    let mut crowd = Vec::new();
    let mut press = |servers: &Servers| {
        for stranger in 0..2_000 {
            let said = [&b""[..], &PEER_MAGIC[..3], &PEER_MAGIC[..], b"GET / HTTP"][stranger % 4];
            crowd.push(connect(&servers.peer_address(stranger % 3), said));
        }
    };
    press(&servers);
    assert_locks(&servers);
    let leader = servers.wait_for_leader();
    servers.kill(leader);
    assert_locks(&servers);
    servers.start_one(leader);
    press(&servers);
    wait_for("all three hear each other", || {
        let status = servers.status(servers.wait_for_leader())?;
        let heard = |member: &serde_json::Value| {
            member["heard_ms_ago"].as_u64().is_none_or(|ago| ago < 1_000)
        };
        let members = status["members"].as_array()?;
        (members.len() == 3 && members.iter().all(heard)).then_some(())
    });
    assert_locks(&servers);
}

/// Case OV-1: a hundred watches that never read. Each costs its server what waits for it, which is
/// bounded, and then ends.
#[test]
fn ov_1_watches_that_never_read_cost_a_bounded_amount() {
    const WATCHES: u64 = 100;
    raise_file_limit();
    let servers = Servers::start();
    let before = memory(servers.pid(0));
    // A request: field 1 (id) is 1, and field 35 an empty watch, of every lock.
    let watch = [&GREETING[..], &[0, 0, 0, 5], &[0x08, 0x01, 0x9a, 0x02, 0x00]].concat();
    let crowd: Vec<_> = (0..WATCHES).map(|_| connect(&servers.client_address(0), &watch)).collect();
    let bench = Command::new(LOCKKEEPER)
        .args(["bench", "uncontended", "--workers", "64", "--sessions", "4"])
        .args(["--duration", "3s", "--warm-up", "1s", "--url", &servers.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .expect("the program runs");
    assert!(bench.success());
    let grown = memory(servers.pid(0)).saturating_sub(before);
    // 1 MiB that waits, as much on its way out, and what growing leaves behind.
    assert!(grown < WATCHES * (4 << 20), "{grown} bytes for {WATCHES} watches");
    assert_locks(&servers);
    drop(crowd);
}
