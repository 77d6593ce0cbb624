//! Three servers, real processes: what must hold when they, or those who hold locks, are killed.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::home::{LOCKKEEPER, PATIENCE, wait_for};
use crate::servers::Servers;

/// Runs the program to its end.
fn lockkeeper(arguments: &[&str]) -> std::process::Output {
    Command::new(LOCKKEEPER)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

/// Starts the program, to be killed at the latest when the test ends.
fn start(arguments: &[&str]) -> Running {
    let child = Command::new(LOCKKEEPER)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    Running(child)
}

struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the process can be signalled");
    }

    fn exit_code(&mut self) -> Option<i32> {
        wait_for("the program ends", || self.0.try_wait().expect("its status")).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `who` says of a lock; `None` while nobody holds it or waits for it.
fn who(url: &str, lock: &str) -> Option<Value> {
    let output = lockkeeper(&["who", lock, "-o", "json", "--url", url]);
    serde_json::from_slice(&output.stdout).ok()
}

fn holder_token(url: &str, lock: &str) -> Option<u64> {
    who(url, lock)?["holders"].get(0)?["token"].as_u64()
}

fn waiter_count(url: &str, lock: &str) -> usize {
    who(url, lock).map_or(0, |lock| lock["waiters"].as_array().map_or(0, Vec::len))
}

#[test]
fn a_killed_holder_is_followed_by_the_next_in_line() {
    let servers = Servers::start();
    let url = servers.url();
    let files = TempDir::new().expect("a directory");
    let report = files.path().join("second");

    let first = start(&["lock", "batch", "--url", &url, "--ttl", "60s", "--", "sleep", "1000"]);
    let token = wait_for("the first holds", || holder_token(&url, "batch"));
    let script = format!("echo $LOCKKEEPER_TOKEN > {}", report.display());
    let mut second = start(&["lock", "batch", "--url", &url, "--", "sh", "-c", &script]);
    wait_for("the second waits", || (waiter_count(&url, "batch") == 1).then_some(()));

    // The lease is a minute: what ends it is the guardian of the killed holder.
    let killed = Instant::now();
    first.signal(Signal::KILL);
    assert_eq!(second.exit_code(), Some(0));
    assert!(killed.elapsed() < Duration::from_secs(50), "the lease had to run out");
    let next: u64 = std::fs::read_to_string(report).expect("the report").trim().parse().unwrap();
    assert!(next > token, "the token grew from {token} to {next}");
}

#[test]
fn a_stopped_holder_loses_the_lock_and_its_old_token_is_refused() {
    let servers = Servers::start();
    let url = servers.url();
    let files = TempDir::new().expect("a directory");
    let newest = files.path().join("newest");
    // A resource that compares tokens: it takes a write only if the token isn't older.
    let write = format!(
        "old=$(cat {0} 2>/dev/null || echo 0); [ \"$LOCKKEEPER_TOKEN\" -ge \"$old\" ] || exit 42; \
         echo $LOCKKEEPER_TOKEN > {0}",
        newest.display()
    );

    let mut first = start(&["lock", "batch", "--url", &url, "--ttl", "6s", "--", "sleep", "1000"]);
    let token = wait_for("the first holds", || holder_token(&url, "batch"));
    first.signal(Signal::STOP);
    let second = lockkeeper(&["lock", "batch", "--url", &url, "--", "sh", "-c", &write]);
    assert_eq!(second.status.code(), Some(0), "{}", String::from_utf8_lossy(&second.stderr));

    first.signal(Signal::CONT);
    assert_eq!(first.exit_code(), Some(76), "the stopped holder is told that it lost the lock");
    let late = Command::new("sh")
        .args(["-c", &write])
        .env("LOCKKEEPER_TOKEN", token.to_string())
        .status()
        .expect("sh runs");
    assert_eq!(late.code(), Some(42), "the late write is refused");
}

/// Tasks that take a few locks in turn through all servers, and judge: holds of one lock never
/// overlap, as their holders see them, and its tokens grow.
struct Load {
    stop: Arc<AtomicBool>,
    runtime: tokio::runtime::Runtime,
    tasks: Vec<tokio::task::JoinHandle<Vec<Held>>>,
    counted: Arc<std::sync::atomic::AtomicU64>,
}

struct Held {
    lock: usize,
    token: u64,
    from: Instant,
    to: Instant,
}

impl Load {
    fn start(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let stop = Arc::new(AtomicBool::new(false));
        let counted = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let tasks = (0..8)
            .map(|_| {
                let (url, stop, counted) = (url.to_owned(), stop.clone(), counted.clone());
                runtime.spawn(async move {
                    let client = Client::builder()
                        .url(url)
                        .ttl(Duration::from_secs(20))
                        .connect_timeout(PATIENCE)
                        .connect()
                        .await
                        .expect("a server can be reached");
                    let mut held = Vec::new();
                    for turn in 0_usize.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let lock = turn % 3;
                        let name = format!("load/{lock}");
                        let guard = client.lock(&name).acquire().await.expect("the lock comes");
                        let from = Instant::now();
                        tokio::task::yield_now().await;
                        let token = guard.token();
                        held.push(Held { lock, token, from, to: Instant::now() });
                        guard.release().await.expect("it is given back");
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    client.close().await;
                    held
                })
            })
            .collect();
        Self { stop, runtime, tasks, counted }
    }

    /// Waits until the load has got `more` locks from now on: it is alive.
    fn wait_for_progress(&self, more: u64) {
        let target = self.counted.load(Ordering::Relaxed) + more;
        wait_for("the load goes on", || {
            (self.counted.load(Ordering::Relaxed) >= target).then_some(())
        });
    }

    fn judge(self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut all: Vec<Held> = Vec::new();
        for task in self.tasks {
            all.extend(self.runtime.block_on(task).expect("no task failed"));
        }
        assert!(!all.is_empty());
        all.sort_by_key(|held| (held.lock, held.token));
        for pair in all.windows(2).filter(|pair| pair[0].lock == pair[1].lock) {
            assert!(pair[0].token < pair[1].token, "token {} came twice", pair[0].token);
            assert!(
                pair[0].to <= pair[1].from,
                "holds {} and {} of load/{} overlap",
                pair[0].token,
                pair[1].token,
                pair[0].lock
            );
        }
    }
}

#[test]
fn servers_killed_under_load_lose_nothing() {
    let mut servers = Servers::start();
    let url = servers.url();
    let mut keeper = start(&["lock", "kept", "--url", &url, "--ttl", "30s", "--", "sleep", "1000"]);
    let token = wait_for("the keeper holds", || holder_token(&url, "kept"));
    let load = Load::start(&url);
    load.wait_for_progress(100);
    for round in 0..4 {
        let leader = servers.wait_for_leader();
        let victim = if round % 2 == 0 { leader } else { (leader + 1) % 3 };
        servers.kill(victim);
        load.wait_for_progress(100);
        servers.start_one(victim);
        wait_for("the server is back", || {
            servers.status(victim).filter(|status| status["leader"] != 0)
        });
        load.wait_for_progress(100);
    }
    assert_eq!(holder_token(&url, "kept"), Some(token), "the held lock was kept throughout");
    assert!(keeper.0.try_wait().expect("its status").is_none(), "and its command still runs");
    load.judge();
}

#[test]
fn locks_queues_tokens_and_sessions_survive_a_restart_of_all_servers() {
    let mut servers = Servers::start();
    let url = servers.url();
    let files = TempDir::new().expect("a directory");
    let go = files.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let holding = ["lock", "batch", "--url", &url, "--ttl", "60s", "--", "sh", "-c", &script];
    let mut first = start(&holding);
    let token = wait_for("the first holds", || holder_token(&url, "batch"));
    let mut second = start(&["lock", "batch", "--url", &url, "--ttl", "60s", "--", "true"]);
    wait_for("the second waits", || (waiter_count(&url, "batch") == 1).then_some(()));

    for index in 0..3 {
        servers.kill(index);
    }
    for index in 0..3 {
        servers.start_one(index);
    }
    servers.wait_for_leader();
    let after = wait_for("the lock is seen again", || who(&url, "batch"));
    assert_eq!(after["holders"][0]["token"].as_u64(), Some(token));
    assert_eq!(after["waiters"].as_array().map(Vec::len), Some(1));

    std::fs::write(&go, "").expect("the sign to go on");
    assert_eq!(first.exit_code(), Some(0), "the holder noticed nothing");
    assert_eq!(second.exit_code(), Some(0), "and the next in line got its turn");
    let third = lockkeeper(&["lock", "batch", "--url", &url, "--", "sh", "-c", "exit 7"]);
    assert_eq!(third.status.code(), Some(7));
}

#[test]
fn a_minority_of_one_grants_nothing_and_says_so() {
    let mut servers = Servers::start();
    servers.kill(0);
    servers.kill(1);
    let url = servers.url_of(&[2]);
    let output = lockkeeper(&["try", "batch", "--url", &url, "--", "echo", "granted"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(output.stdout.is_empty(), "the command didn't run");
    assert!(said.contains("[LK-NO-QUORUM]"), "{said}");

    servers.start_one(0);
    servers.wait_for_leader();
    let output = lockkeeper(&["try", "batch", "--url", &url, "--", "echo", "granted"]);
    assert_eq!(output.stdout, b"granted\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn members_come_and_go_while_locks_are_held() {
    let mut servers = Servers::start();
    let url = servers.url();
    let load = Load::start(&url);
    load.wait_for_progress(50);
    servers.start_joining(3);
    let added =
        lockkeeper(&["cluster", "add", &format!("4={}", servers.peer_address(3)), "--url", &url]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    load.wait_for_progress(50);
    let leader = servers.wait_for_leader();
    let removed = lockkeeper(&[
        "cluster",
        "remove",
        &(leader + 1).to_string(),
        "--url",
        &servers.url_of(&[3]),
    ]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    servers.kill(leader);
    load.wait_for_progress(50);
    let next = servers.wait_for_leader();
    let status = servers.status(next).expect("a status");
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    load.judge();
}

#[test]
fn the_demo_goes_as_it_is_told() {
    let output = lockkeeper(&["demo"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complaint}");
    assert!(said.contains("refuse the late write"), "{said}");
}
