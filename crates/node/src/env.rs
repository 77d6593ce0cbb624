//! What a node takes from the world: clock, randomness, disk and transport. In production the
//! operating system's; in the simulator a seed's.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Event, StateMachine};
use tokio::io::{AsyncRead, AsyncWrite};

/// Nanoseconds on a clock that never goes back; only differences have meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `duration` after this one.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// Time. Waiting is tokio's business (its clock can be paused); this is for reading.
pub trait Clock: Send + Sync + 'static {
    /// Now, for every timed decision.
    fn monotonic(&self) -> Monotonic;
    /// Milliseconds since the Unix epoch, for display only.
    fn wall_ms(&self) -> u64;
}

/// Chance: ids, jitter, and openraft's election time-outs.
pub trait Random: Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;
}

/// Holds a directory until it is dropped, or its process has ended in whatever way.
pub type DirectoryGuard = Box<dyn Send + Sync>;

/// Where work goes that blocks on the disk, or is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// To threads of the node's own, so that its runtime never waits.
    Own,
    /// Nowhere: it is done on the node's runtime, after the time that [`Disk::latency`] says. For
    /// worlds that live in one thread.
    None,
}

/// What a disk is about to be asked, as far as it takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskStep {
    /// A write of the log.
    LogWrite,
    /// A sync of the log.
    LogSync,
    /// Anything else: a segment is made or put away, a snapshot written or read.
    Other,
}

/// The disk under log and snapshots. All paths are inside the node's data directory.
///
/// Calls block: the log thread and the snapshot thread make them, never the node's own thread
/// after its start, unless there is only that one ([`Threads::None`]).
pub trait Disk: Send + Sync + 'static {
    /// Makes a directory and takes it for this process, for as long as the guard lives; `None` if
    /// another process has it. A disk that nobody shares need not do anything.
    fn take_dir(&self, directory: &Path) -> io::Result<Option<DirectoryGuard>> {
        self.create_dir(directory)?;
        Ok(Some(Box::new(())))
    }
    /// Opens (or makes) a file for reading and writing at offsets.
    fn open(&self, path: &Path, create: bool) -> io::Result<Box<dyn DiskFile>>;
    /// Names of the files in a directory, in order; an absent directory is empty.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes a directory and its parents.
    fn create_dir(&self, directory: &Path) -> io::Result<()>;
    /// Renames atomically, over an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in a directory durable.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
    /// Bytes free for this node.
    fn free_bytes(&self, directory: &Path) -> io::Result<u64>;
    /// How long to wait before the next step's calls are made, where no thread can wait in them.
    /// Asked only under [`Threads::None`].
    fn latency(&self, _step: DiskStep) -> Duration {
        Duration::ZERO
    }
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether it is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes` at `offset`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written durable (data, and the length if it grew).
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts or extends to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection between two peers.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> PeerStream for T {}

/// How peers reach each other.
pub trait Transport: Send + Sync + 'static {
    /// Connects to a peer's listener.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>>;
    /// Listens for peers.
    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>>;
}

/// A listener for peers.
pub trait TransportListener: Send {
    /// The next connection, and who it seems to come from.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn PeerStream>, String)>>;
    /// Where it listens (the port that the system chose, if it was asked to).
    fn local_address(&self) -> String;
}

/// An entry of the log that has just become part of a node's state.
#[derive(Clone, Copy)]
pub struct Applied<'a> {
    /// Its index.
    pub index: u64,
    /// The term in which it was proposed.
    pub term: u64,
    /// Its bytes; empty if it concerns the replicas only.
    pub bytes: &'a [u8],
    /// What it did, in order.
    pub events: &'a [Event],
    /// The state after it.
    pub state: &'a StateMachine,
}

/// Looks on while a node works, as a simulator's judges do. It is called on the node's thread with
/// the state locked, and costs production a look whether there is one.
pub trait Observer: Send + Sync + 'static {
    /// An entry was applied: again, if the node has been restarted.
    fn applied(&self, entry: Applied<'_>);
    /// The node leads in this term, and has applied an entry of it.
    fn leads(&self, term: u64);
}

/// Everything a node takes from the world.
#[derive(Clone)]
pub struct Environment {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub random: Arc<dyn Random>,
    /// Where log and snapshots live.
    pub disk: Arc<dyn Disk>,
    /// The network between peers.
    pub transport: Arc<dyn Transport>,
    /// Where blocking work goes.
    pub threads: Threads,
    /// Who looks on; nobody in production.
    pub observer: Option<Arc<dyn Observer>>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Environment")
    }
}
