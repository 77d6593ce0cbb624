//! Three real server processes on loopback, which a test may kill, stop and start again.
//!
//! Each cluster has addresses of its own in 127.0.0.0/8, made from the test's process id, so that
//! its members can be known before they run and no two tests meet.

use std::fs::{self, File};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::home::{LOCKKEEPER, wait_for};

static NEXT_CLUSTER: AtomicU32 = AtomicU32::new(0);

/// Elections that a busy test machine doesn't start: a process may not run for a while there.
const RELAXED: &[(&str, &str)] =
    &[("LOCKKEEPER_HEARTBEAT_INTERVAL", "60ms"), ("LOCKKEEPER_ELECTION_TIMEOUT", "300ms,600ms")];

/// Three servers; killed when dropped.
pub(crate) struct Servers {
    timers: &'static [(&'static str, &'static str)],
    directory: TempDir,
    hosts: Vec<String>,
    running: Vec<Option<Child>>,
}

impl Servers {
    /// Starts three, and waits until they have a leader.
    pub(crate) fn start() -> Self {
        Self::start_with(RELAXED)
    }

    /// Starts three with the defaults, for what is measured.
    pub(crate) fn start_with_defaults() -> Self {
        Self::start_with(&[])
    }

    fn start_with(timers: &'static [(&'static str, &'static str)]) -> Self {
        let cluster = NEXT_CLUSTER.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let host = |member: u32| {
            let last = 1 + (cluster * 8 + member) % 250;
            format!("127.{}.{}.{last}", 1 + (pid >> 8) % 250, pid % 256)
        };
        let mut servers = Self {
            timers,
            directory: tempfile::tempdir().expect("a temporary directory"),
            hosts: (0..5).map(host).collect(),
            running: (0..5).map(|_| None).collect(),
        };
        for member in 0..3 {
            servers.start_one(member);
        }
        servers.wait_for_leader();
        servers
    }

    /// Starts (or starts again) the member at `index`, counted from 0.
    pub(crate) fn start_one(&mut self, index: usize) {
        let members: Vec<_> =
            (0..3).map(|member| format!("{}={}:2380", member + 1, self.hosts[member])).collect();
        self.spawn(index, &["--cluster", &members.join(",")]);
    }

    /// Starts a new member at `index` (3 or 4), to be added to the cluster.
    pub(crate) fn start_joining(&mut self, index: usize) {
        self.spawn(index, &["--join"]);
    }

    fn spawn(&mut self, index: usize, more: &[&str]) {
        let host = &self.hosts[index];
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join(format!("server-{}.log", index + 1)))
            .expect("a log file");
        let child = Command::new(LOCKKEEPER)
            .envs(self.timers.iter().copied())
            .args(["server", "--id", &(index + 1).to_string()])
            .args(["--listen", &format!("{host}:2379"), "--listen-peer", &format!("{host}:2380")])
            .arg("--data-dir")
            .arg(self.directory.path().join(format!("data-{}", index + 1)))
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        self.running[index] = Some(child);
        let host = self.hosts[index].clone();
        wait_for(&format!("server {} listens", index + 1), || {
            self.assert_runs(index);
            TcpStream::connect((host.as_str(), 2379)).ok()
        });
        // Clients are listened to first, and before they are served.
        wait_for(&format!("server {} listens to its peers", index + 1), || {
            self.assert_runs(index);
            TcpStream::connect((host.as_str(), 2380)).ok()
        });
    }

    fn assert_runs(&mut self, index: usize) {
        let child = self.running[index].as_mut().expect("the server was started");
        if let Some(status) = child.try_wait().expect("the server's status") {
            panic!("server {} ended with {status}:\n{}", index + 1, self.log(index));
        }
    }

    /// What the server has logged so far.
    pub(crate) fn log(&self, index: usize) -> String {
        let path = self.directory.path().join(format!("server-{}.log", index + 1));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// `host:port` of the clients' listener.
    pub(crate) fn client_address(&self, index: usize) -> String {
        format!("{}:2379", self.hosts[index])
    }

    /// `host:port` of the peer listener.
    pub(crate) fn peer_address(&self, index: usize) -> String {
        format!("{}:2380", self.hosts[index])
    }

    /// The URL of the given members.
    pub(crate) fn url_of(&self, indexes: &[usize]) -> String {
        let hosts: Vec<_> =
            indexes.iter().map(|&index| format!("{}:2379", self.hosts[index])).collect();
        format!("lockkeeper://{}", hosts.join(","))
    }

    /// The URL of the first three members.
    pub(crate) fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }

    /// The process id of a running server.
    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.running[index].as_ref().expect("the server runs").id()
    }

    /// `kill -9`, and waits for the process to be gone.
    pub(crate) fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.running[index].take() {
            child.kill().expect("the server can be killed");
            child.wait().expect("the server ends");
        }
    }

    /// The index of the leader, as the running members know it.
    pub(crate) fn wait_for_leader(&self) -> usize {
        wait_for("a leader", || {
            (0..self.running.len()).filter(|&index| self.running[index].is_some()).find_map(
                |index| {
                    let status = self.status(index)?;
                    let leader = usize::try_from(status["leader"].as_u64()?).ok()?;
                    (leader > 0 && self.running[leader - 1].is_some()).then(|| leader - 1)
                },
            )
        })
    }

    /// `cluster status -o json` of one member; `None` if it can't say.
    pub(crate) fn status(&self, index: usize) -> Option<Value> {
        let output = Command::new(LOCKKEEPER)
            .args(["cluster", "status", "-o", "json", "--url", &self.url_of(&[index])])
            .stdin(Stdio::null())
            .output()
            .expect("the program runs");
        serde_json::from_slice(&output.stdout).ok()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for index in 0..self.running.len() {
            if std::thread::panicking() && self.running[index].is_some() {
                eprintln!("--- log of server {}\n{}", index + 1, self.log(index));
            }
            self.kill(index);
        }
    }
}
