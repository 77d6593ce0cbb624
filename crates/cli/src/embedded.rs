//! This user's own node on this machine: started when a client needs it, gone when nobody does.
//!
//! It listens on a Unix socket in a directory that only its user can enter, and its state outlives
//! it. Three files beside the socket keep starters from treading on each other:
//!
//! - `starting`, locked by whoever starts the node, until it listens. Who comes second waits for
//!   that lock, and then just connects.
//! - `running`, locked by the node for as long as it lives, and freed last; it holds the node's
//!   process id and version.
//! - `log`, what the node has to say; `log.old`, what it said before that grew too long.

use std::fs::{self, DirBuilder, File};
use std::future::Future;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::embedded::{directory, socket_path};
use lockkeeper_server::ServerConfig;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};

use crate::exit::{Failure, Reason};
use crate::{logs, server};

/// The node ends itself after this long without anything to do.
const IDLE: Duration = Duration::from_secs(60);
/// A log longer than this is put aside at the next start.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// What the node writes to its starter once it listens.
const READY: &[u8] = b"ready\n";
/// The variable that changes [`IDLE`], for tests and for the impatient.
const IDLE_VARIABLE: &str = "LOCKKEEPER_EMBEDDED_IDLE";

// ------------------------------------------------------------------ the client's side

/// Starts the node for the client library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starter;

impl lockkeeper::Starter for Starter {
    fn start(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async {
            // It waits for locks and for the node; both may take a moment.
            let started = tokio::task::spawn_blocking(start).await;
            started.map_err(|error| error.to_string())?.map_err(|error| format!("{error:#}"))
        })
    }
}

/// Makes sure that a node listens, whoever started it.
pub(crate) fn start() -> anyhow::Result<()> {
    use anyhow::{Context, bail};

    let directory = directory()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).with_context(|| {
        format!("can't make the embedded node's directory {}", directory.display())
    })?;
    let starting = lock_file(&directory, "starting")?;
    flock(&starting, FlockOperation::LockExclusive)?;
    if UnixStream::connect(socket_path()?).is_ok() {
        return Ok(());
    }
    let log = log_file(&directory)?;
    let mut node = Command::new("/proc/self/exe")
        .arg("embedded-node")
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("can't start the embedded node")?;
    let mut said = Vec::new();
    if let Some(stdout) = &mut node.stdout {
        // It ends when the node has closed its side: ready, or dead.
        stdout.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(());
    }
    let log = directory.join("log");
    bail!("this machine's own node didn't start: {} (see {})", last_words(&log), log.display())
}

/// Restarts a node of another version, so that both sides speak the same.
pub(crate) fn replace_other_version() -> Result<(), Failure> {
    let running = directory()?.join("running");
    let Ok(text) = fs::read_to_string(&running) else { return Ok(()) };
    let mut words = text.split_whitespace();
    let (Some(pid), Some(version)) = (words.next(), words.next()) else { return Ok(()) };
    if version == env!("CARGO_PKG_VERSION") {
        return Ok(());
    }
    let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) else { return Ok(()) };
    let node = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        node => node.map_err(io::Error::from)?,
    };
    // Only a node that lives keeps it locked; the process id is nobody else's then.
    if flock(File::open(&running)?, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(());
    }
    pidfd_send_signal(&node, Signal::TERM).map_err(io::Error::from)?;
    // Not for the lock: another client may have started the next node by then.
    poll(&mut [PollFd::new(&node, PollFlags::IN)], None).map_err(io::Error::from)?;
    Ok(())
}

fn lock_file(directory: &Path, name: &str) -> io::Result<File> {
    let path = directory.join(name);
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

fn log_file(directory: &Path) -> io::Result<File> {
    let path = directory.join("log");
    if fs::metadata(&path).is_ok_and(|metadata| metadata.size() > LOG_BYTES_MAX) {
        fs::rename(&path, directory.join("log.old"))?;
    }
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// What the node said last about its own end.
fn last_words(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut words = text.lines().filter_map(|line| line.strip_prefix("lockkeeper: "));
    let last = words.next_back().unwrap_or("it didn't say why");
    // Its code is not this program's.
    last.split(" [LK-").next().unwrap_or_default().trim_end_matches('.').to_owned()
}

// ------------------------------------------------------------------ the node's side

/// The node's whole life, in a process of its own. Its standard output is its starter's pipe, its
/// standard error the log.
pub(crate) async fn run() -> Result<u8, Failure> {
    let directory = directory()?;
    // Whatever happens to the terminal and the client, the node stays for the next one.
    setsid().map_err(io::Error::from)?;
    let mut running = lock_file(&directory, "running")?;
    // One that is just ending has it a little longer.
    flock(&running, FlockOperation::LockExclusive).map_err(io::Error::from)?;
    running.set_len(0)?;
    running.rewind()?;
    write!(running, "{} {}", std::process::id(), env!("CARGO_PKG_VERSION"))?;

    let idle = idle()?;
    let config = ServerConfig::embedded(directory.join("data"), socket_path()?, idle);
    let _logs = logs::start(&config.log_level, false)?;
    server::serve(config, async |server| {
        // With nobody to agree with, it leads in a moment; a question waits for that.
        let _ = server.node().read_index().await;
        // The starter reads to the end of the pipe, so this must be its only writer, and go.
        io::stdout().write_all(READY)?;
        io::stdout().flush()?;
        let null = File::options().write(true).open("/dev/null")?;
        Ok(rustix::stdio::dup2_stdout(&null)?)
    })
    .await?;
    drop(running);
    Ok(0)
}

fn idle() -> Result<Duration, Failure> {
    let Ok(text) = std::env::var(IDLE_VARIABLE) else { return Ok(IDLE) };
    crate::flags::duration(&text)
        .map_err(|error| Failure::new(Reason::Config, format!("{IDLE_VARIABLE}: {error}")))
}
