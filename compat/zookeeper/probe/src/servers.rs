//! Servers of a command, started on free ports and ended by their ids.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::{Client, Greeting};

const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Ports below those that Linux takes for outgoing connections (32768 and up).
const FIXED_PORTS: Range<u16> = 15_000..32_000;

/// What random steps lean on: a super user, TTL nodes, and containers that nobody collects.
const PROPERTIES: &str = "-Dzookeeper.DigestAuthenticationProvider.superDigest=\
    super:D/InIHSb7yEEbrWz8b9l71RjZJU= -Dzookeeper.extendedTypesEnabled=true \
    -Dznode.container.checkIntervalMs=3600000";

pub struct Servers {
    nodes: Vec<Node>,
}

struct Node {
    port: u16,
    directory: PathBuf,
    process: Child,
}

impl Servers {
    pub fn start(command: &str, count: usize, name: &str) -> Result<Self, String> {
        let work = std::env::var("COMPAT_WORK").unwrap_or_else(|_| "/tmp".to_owned());
        let ports = free_ports(3 * count)?;
        let mut peers = String::new();
        if count > 1 {
            for id in 0..count {
                let (quorum, election) = (ports[3 * id + 1], ports[3 * id + 2]);
                peers += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", id + 1);
            }
        }
        let mut servers = Self { nodes: Vec::new() };
        for id in 0..count {
            let directory =
                PathBuf::from(format!("{work}/probe-{name}-{}-{}", std::process::id(), id + 1));
            fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
            let log = File::create(directory.join("log")).map_err(|e| e.to_string())?;
            let process = Command::new("sh")
                .arg("-c")
                .arg(format!("exec {command}"))
                .env("SRV_PORT", ports[3 * id].to_string())
                .env("SRV_DIR", &directory)
                .env("SRV_ID", (id + 1).to_string())
                .env("SRV_PEERS", &peers)
                .env("SRV_CFG", "")
                .env("SRV_JVM", PROPERTIES)
                .env("SRV_TICK", "2000")
                .stdin(Stdio::null())
                .stdout(log.try_clone().map_err(|e| e.to_string())?)
                .stderr(log)
                .spawn()
                .map_err(|e| format!("{command}: {e}"))?;
            servers.nodes.push(Node { port: ports[3 * id], directory, process });
        }
        let end = Instant::now() + START_TIMEOUT;
        for node in &mut servers.nodes {
            while !srvr(node.port).contains("Mode:") && !has_session(node.port) {
                let log = node.directory.join("log");
                if let Some(status) = node.process.try_wait().map_err(|e| e.to_string())? {
                    // It goes with its directory.
                    let log = fs::read_to_string(&log).unwrap_or_default();
                    return Err(format!("the server of '{command}' ended ({status}):\n{log}"));
                }
                if Instant::now() > end {
                    let log = fs::read_to_string(&log).unwrap_or_default();
                    return Err(format!("the server of '{command}' isn't ready:\n{log}"));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(servers)
    }

    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.port).collect()
    }

    /// The processor time of all servers so far.
    pub fn cpu(&self) -> Duration {
        let of = |node: &Node| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", node.process.id())).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let ticks: u64 =
                fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
            Some(Duration::from_millis(ticks * 10))
        };
        self.nodes.iter().filter_map(of).sum()
    }

    /// The resident memory of all servers, in MiB.
    pub fn memory_mib(&self) -> u64 {
        let of = |node: &Node| {
            let status = fs::read_to_string(format!("/proc/{}/status", node.process.id())).ok()?;
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        self.nodes.iter().filter_map(of).sum::<u64>() / 1024
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if matches!(node.process.try_wait(), Ok(None)) {
                let _ = Command::new("kill").arg(node.process.id().to_string()).status();
            }
        }
        for node in &mut self.nodes {
            let end = Instant::now() + Duration::from_secs(10);
            while matches!(node.process.try_wait(), Ok(None)) {
                if Instant::now() > end {
                    let _ = node.process.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if std::env::var_os("PROBE_KEEP").is_none() {
                let _ = fs::remove_dir_all(&node.directory);
            }
        }
    }
}

fn srvr(port: u16) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = stream.write_all(b"srvr");
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

/// For servers that don't answer `srvr`.
fn has_session(port: u16) -> bool {
    let Ok(mut client) = Client::connect(port, &Greeting::default()) else { return false };
    let opened = client.session.id != 0;
    let _ = client.ask(-11, &[]);
    opened
}

/// Ports that nobody has, and that the system gives to no connection before the server has them.
fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    let mut bound = Vec::new();
    for _ in 0..1_000 {
        if bound.len() == count {
            break;
        }
        let chance = RandomState::new().build_hasher().finish();
        let port = FIXED_PORTS.start + (chance % FIXED_PORTS.len() as u64) as u16;
        bound.extend(TcpListener::bind(("127.0.0.1", port)));
    }
    if bound.len() < count {
        return Err(format!("no free ports among {FIXED_PORTS:?}"));
    }
    bound.iter().map(|l| l.local_addr().map(|a| a.port()).map_err(|e| e.to_string())).collect()
}
