//! The servers under test: real processes of this very binary, behind proxies.
//!
//! Each run has addresses of its own in 127.0.0.0/8, made from the test's process id. A server
//! listens on an address that nobody is told; the others and the clients know that of its proxy.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper::views;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::proxy::{End, Net, WORKERS, ZOOKEEPER_WORKERS};
use crate::sites;
use crate::workers::signal;

const LOCKKEEPER: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// Where Debian puts the library that makes a process' wall clock wrong.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// How long strace has for letting go of a process that was killed.
const TRACER_TIMEOUT: Duration = Duration::from_secs(5);

/// The founders of a cluster.
pub(crate) const FOUNDERS: [End; 3] = [1, 2, 3];

/// One server, running or not.
struct Server {
    child: Option<Child>,
    is_paused: bool,
    /// It waits to be added, rather than founding a cluster with the others.
    joins: bool,
    /// It isn't to run: it was stopped on purpose.
    is_stopped: bool,
}

/// How servers are run.
pub(crate) struct Plan {
    /// Where the run keeps its files.
    pub(crate) directory: PathBuf,
    /// The second server's data directory is on a small disk of its own, which can be filled.
    pub(crate) small_disk: bool,
    /// The third server's wall clock can be made wrong.
    pub(crate) fake_clock: bool,
}

/// All servers of a run.
pub(crate) struct Servers {
    plan: Plan,
    servers: BTreeMap<End, Server>,
}

/// The server whose disk is small.
pub(crate) const SMALL_DISK: End = 2;
/// The server whose clock can be wrong.
pub(crate) const FAKE_CLOCK: End = 3;

impl Servers {
    /// None is started yet.
    pub(crate) fn new(plan: Plan) -> Self {
        let servers = Self { plan, servers: BTreeMap::new() };
        if servers.plan.small_disk {
            let at = servers.data_dir(SMALL_DISK);
            fs::create_dir_all(&at).expect("a directory");
            run("mount", &["-t", "tmpfs", "-o", "size=96m", "lockkeeper-nemesis", path(&at)])
                .expect("a small disk");
        }
        servers
    }

    /// Starts the server for the first time.
    pub(crate) fn add(&mut self, id: End, joins: bool) {
        let server = Server { child: None, is_paused: false, joins, is_stopped: true };
        self.servers.insert(id, server);
        self.start(id);
    }

    /// Starts it, or starts it again.
    pub(crate) fn start(&mut self, id: End) {
        let founders = FOUNDERS.map(|id| format!("{id}={}", peer_proxy(id)));
        let server = self.servers.get(&id).expect("it was added");
        if server.child.is_some() {
            return;
        }
        let mut command = if sites::are_used() {
            let mut inside = Command::new("nsenter");
            inside.arg(format!("--net=/run/netns/{}", sites::namespace(id))).arg(LOCKKEEPER);
            // Nobody else is on these cables.
            inside.env("LOCKKEEPER_INSECURE", "true").env("LOCKKEEPER_NETWORK", "wan");
            inside
        } else {
            Command::new(LOCKKEEPER)
        };
        command
            .args(["server", "--id", &id.to_string(), "--listen", &listener(id).to_string()])
            .args(["--listen-peer", &peer_listener(id).to_string(), "--data-dir"])
            .arg(self.data_dir(id))
            // Snapshots and purges happen all the time.
            .env("LOCKKEEPER_SNAPSHOT_LOG_BYTES", "256KiB")
            .env("LOCKKEEPER_FREE_SPACE_BYTES_MIN", "1MiB")
            .env("LOCKKEEPER_ZOOKEEPER_LISTEN", zookeeper_listener(id).to_string())
            // All clients have one address here.
            .env("LOCKKEEPER_ZOOKEEPER_MAX_CLIENT_CONNECTIONS", "0")
            // About as short as native leases.
            .env("LOCKKEEPER_ZOOKEEPER_MIN_SESSION_TIMEOUT", session_timeout_min());
        match server.joins {
            true => command.arg("--join"),
            false => command.args(["--cluster", &founders.join(",")]),
        };
        if self.plan.fake_clock && id == FAKE_CLOCK {
            self.set_clock("+0").expect("the run's own directory");
            command
                .env("LD_PRELOAD", FAKETIME)
                .env("FAKETIME_TIMESTAMP_FILE", self.clock_file())
                .env("FAKETIME_NO_CACHE", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        let log = File::options().create(true).append(true).open(self.log_file(id));
        let log = log.expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        let server = self.servers.get_mut(&id).expect("it was added");
        (server.child, server.is_stopped, server.is_paused) = (Some(child), false, false);
    }

    /// `kill -9`, and waits for the process to be gone.
    pub(crate) fn kill(&mut self, id: End) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        server.is_stopped = true;
        if let Some(mut child) = server.child.take() {
            child.kill().expect("it can be killed");
            wait_for_end(&mut child);
            forget_clock(&child);
        }
    }

    /// Asks it to end. Returns whether it has ended by now.
    pub(crate) fn stop(&mut self, id: End) -> bool {
        let Some(server) = self.servers.get_mut(&id) else { return true };
        server.is_stopped = true;
        let Some(child) = &mut server.child else { return true };
        signal(child, Signal::TERM);
        let has_ended = child.try_wait().expect("its status").is_some();
        if has_ended {
            forget_clock(child);
            server.child = None;
        }
        has_ended
    }

    /// Never to be started again.
    pub(crate) fn forget(&mut self, id: End) {
        self.kill(id);
        self.servers.remove(&id);
    }

    pub(crate) fn pause(&mut self, id: End) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        if let Some(child) = &server.child {
            signal(child, Signal::STOP);
            server.is_paused = true;
        }
    }

    pub(crate) fn go_on(&mut self, id: End) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        if let Some(child) = server.child.as_ref().filter(|_| server.is_paused) {
            signal(child, Signal::CONT);
            server.is_paused = false;
        }
    }

    /// Starts again whatever has ended by itself, as a supervisor would, and says what that was.
    pub(crate) fn supervise(&mut self) -> Vec<(End, ExitStatus)> {
        let mut ended = Vec::new();
        for (&id, server) in &mut self.servers {
            let Some(child) = &mut server.child else { continue };
            if let Some(status) = child.try_wait().expect("its status") {
                forget_clock(child);
                server.child = None;
                ended.push((id, status));
            }
        }
        ended
    }

    /// Those that are to run and don't.
    pub(crate) fn missing(&self) -> Vec<End> {
        let missing = |server: &Server| !server.is_stopped && server.child.is_none();
        self.servers.iter().filter(|(_, server)| missing(server)).map(|(&id, _)| id).collect()
    }

    pub(crate) fn ids(&self) -> Vec<End> {
        self.servers.keys().copied().collect()
    }

    pub(crate) fn pid(&self, id: End) -> Option<u32> {
        self.servers.get(&id)?.child.as_ref().map(Child::id)
    }

    /// What the kernel says of the process: whether it runs, stands still, or is traced.
    pub(crate) fn process_state(&self, id: End) -> String {
        let Some(pid) = self.pid(id) else { return "no process".to_owned() };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let is_told = |line: &&str| line.starts_with("State:") || line.starts_with("TracerPid:");
        status.lines().filter(is_told).collect::<Vec<_>>().join(", ")
    }

    /// Fills the small disk to the last byte, or frees it.
    pub(crate) fn fill_disk(&self, full: bool) -> io::Result<()> {
        let filler = self.data_dir(SMALL_DISK).join("filler");
        if !full {
            return fs::remove_file(filler);
        }
        let mut file = File::create(filler)?;
        let zeros = vec![0; 1 << 16];
        while io::Write::write(&mut file, &zeros).is_ok_and(|written| written > 0) {}
        Ok(())
    }

    /// Sets the wrong clock, as libfaketime reads it: `+3600` is an hour ahead.
    pub(crate) fn set_clock(&self, offset: &str) -> io::Result<()> {
        fs::write(self.clock_file(), format!("{offset}\n"))
    }

    pub(crate) fn has_small_disk(&self) -> bool {
        self.plan.small_disk
    }

    pub(crate) fn has_fake_clock(&self) -> bool {
        self.plan.fake_clock
    }

    /// Lines in the servers' logs that no server may ever write.
    pub(crate) fn disgraces(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.plan.directory).expect("the run's own directory");
        let logs = entries.flatten().map(|entry| entry.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
        let mut found = Vec::new();
        for path in logs {
            let text = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines = text.lines().filter(|line| line.contains("panicked at"));
            found.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
        found
    }

    fn data_dir(&self, id: End) -> PathBuf {
        self.plan.directory.join(format!("data-{id}"))
    }

    fn log_file(&self, id: End) -> PathBuf {
        self.plan.directory.join(format!("server-{id}.log"))
    }

    fn clock_file(&self) -> PathBuf {
        self.plan.directory.join("clock")
    }
}

/// Waits until a process that was killed is gone. If strace was just attaching to it, it may hold
/// one of its threads for ever: then strace is ended, too.
fn wait_for_end(child: &mut Child) {
    let begin = Instant::now();
    while child.try_wait().expect("its status").is_none() {
        std::thread::sleep(Duration::from_millis(5));
        if begin.elapsed() > TRACER_TIMEOUT
            && let Some(tracer) = tracer_of(child.id())
        {
            // It may have ended meanwhile.
            let _ = kill_process(tracer, Signal::KILL);
        }
    }
}

fn tracer_of(pid: u32) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

/// Removes what libfaketime leaves of a process that didn't end by itself.
fn forget_clock(ended: &Child) {
    for kind in ["faketime_shm", "sem.faketime_sem"] {
        // Most servers have the right clock.
        let _ = fs::remove_file(format!("/dev/shm/{kind}_{}", ended.id()));
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for id in self.ids() {
            self.kill(id);
        }
        if KEEP.load(Ordering::Relaxed) {
            println!("logs and data are kept in {}", self.plan.directory.display());
        }
        if self.plan.small_disk {
            // What holds it can only be a process of ours that is about to end.
            drop(run("umount", &["-l", path(&self.data_dir(SMALL_DISK))]));
        }
        if !KEEP.load(Ordering::Relaxed) {
            drop(fs::remove_dir_all(&self.plan.directory));
        }
    }
}

/// The present run has failed: its files are worth keeping.
pub(crate) static KEEP: AtomicBool = AtomicBool::new(false);

/// Whether a file system can be mounted here, and whether clocks can be made wrong.
pub(crate) fn abilities() -> (bool, bool) {
    (rustix::process::geteuid().is_root(), Path::new(FAKETIME).exists())
}

/// Runs a program of the system.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), said.trim()))
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// The run's own address number `last`.
fn address(last: End, port: u16) -> SocketAddr {
    let pid = std::process::id();
    let byte = |number: u32| u8::try_from(number % 256).unwrap_or(0);
    let ip = Ipv4Addr::new(127, 1 + byte((pid >> 8) % 250), byte(pid), byte(1 + last));
    SocketAddr::new(IpAddr::V4(ip), port)
}

/// Where a server listens for clients.
pub(crate) fn listener(id: End) -> SocketAddr {
    server_address(id, 2_379)
}

/// An election across data centres takes longer than a second.
fn session_timeout_min() -> &'static str {
    if sites::are_used() { "3s" } else { "1s" }
}

/// Where a server listens for clients of ZooKeeper's protocol.
pub(crate) fn zookeeper_listener(id: End) -> SocketAddr {
    server_address(id, 2_181)
}

/// Where a server listens for its peers.
pub(crate) fn peer_listener(id: End) -> SocketAddr {
    server_address(id, 2_380)
}

fn server_address(id: End, port: u16) -> SocketAddr {
    match sites::are_used() {
        true => SocketAddr::new(sites::server(id), port),
        false => address(id, port),
    }
}

/// Where a server's peers reach it.
pub(crate) fn peer_proxy(id: End) -> SocketAddr {
    match sites::are_used() {
        true => SocketAddr::new(sites::proxy(id), 12_380),
        false => address(id, 12_380),
    }
}

/// Where one worker reaches a server.
fn client_proxy(worker: End, id: End) -> SocketAddr {
    address(id, 20_000 + u16::try_from(worker - WORKERS).unwrap_or(0))
}

/// The URL of the founders for one worker (an end), behind proxies of its own: by its scheme a
/// worker knows which protocol it speaks.
pub(crate) async fn url_for(net: &Arc<Net>, worker: End) -> String {
    let is_zookeeper = worker >= ZOOKEEPER_WORKERS;
    let mut hosts = Vec::new();
    for id in FOUNDERS {
        let at = client_proxy(worker, id);
        let target = if is_zookeeper { zookeeper_listener(id) } else { listener(id) };
        net.client(at, worker, id, target).await.expect("a free port");
        hosts.push(at.to_string());
    }
    let scheme = if is_zookeeper { "zookeeper" } else { "lockkeeper" };
    format!("{scheme}://{}", hosts.join(","))
}

/// A client of some servers, without any proxy: the operator.
pub(crate) async fn operator(ids: &[End]) -> Option<Client> {
    let hosts: Vec<_> = ids.iter().map(|&id| listener(id).to_string()).collect();
    let url = format!("lockkeeper://{}", hosts.join(","));
    let limit = Duration::from_millis(800);
    Client::builder().url(url).connect_timeout(limit).connect().await.ok()
}

/// What one server says of the cluster.
pub(crate) async fn status(id: End) -> Option<views::Cluster> {
    operator(&[id]).await?.admin().cluster_status().await.ok()
}

/// Who leads, as itself says.
pub(crate) async fn leader(ids: &[End]) -> Option<End> {
    for &id in ids {
        let is_leader = |status: views::Cluster| status.leader == Some(u64::from(id));
        if status(id).await.is_some_and(is_leader) {
            return Some(id);
        }
    }
    None
}

/// What a server says of its health.
pub(crate) async fn health(id: End, path: &str) -> String {
    let mut answer = String::new();
    let asking = async {
        let mut stream = TcpStream::connect(listener(id)).await?;
        let question = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await?;
        stream.read_to_string(&mut answer).await
    };
    match asking.await {
        Ok(_) => answer,
        Err(error) => error.to_string(),
    }
}
