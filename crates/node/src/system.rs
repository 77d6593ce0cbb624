//! The operating system's clock, randomness, disk and network, and the lock on a data directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    BoxFuture, Clock, DirectoryGuard, Disk, DiskFile, Environment, Monotonic, PeerStream, Random,
    StartError, Threads, Transport, TransportListener,
};

impl Environment {
    /// The operating system's.
    #[must_use]
    pub fn system() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
            disk: Arc::new(SystemDisk),
            transport: Arc::new(SystemTransport),
            threads: Threads::Own,
            observer: None,
        }
    }
}

/// Holds a data directory for this process, for as long as it lives. The kernel lets go of it
/// however the process ends, so a stale one can't exist.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Makes `directory` if need be, and takes the lock.
    ///
    /// # Errors
    ///
    /// [`StartError::InUse`] if another process has it, [`StartError::Io`].
    pub(crate) fn take(directory: &Path) -> Result<Self, StartError> {
        let path = directory.join("lock");
        let fail = |error| StartError::Io(format!("can't lock {}: {error}", path.display()));
        fs::create_dir_all(directory).map_err(fail)?;
        let file = open(&path, true).map_err(fail)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(StartError::InUse(directory.display().to_string()))
            }
            Err(error) => Err(fail(error.into())),
        }
    }
}

struct SystemClock;

impl Clock for SystemClock {
    /// Counts suspend, as the clients' deadlines do.
    fn monotonic(&self) -> Monotonic {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        // Both are positive on this clock, and 2^64 ns are 584 years.
        Monotonic(tv_sec.unsigned_abs() * 1_000_000_000 + tv_nsec.unsigned_abs())
    }

    fn wall_ms(&self) -> u64 {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
        // A clock set before 1970 shows 1970; it is for display only.
        u64::try_from(tv_sec).unwrap_or(0) * 1_000 + tv_nsec.unsigned_abs() / 1_000_000
    }
}

struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        // Without it ids and secrets would be guessable: there is nothing sensible to go on with.
        getrandom::u64().expect("the operating system has randomness")
    }
}

struct SystemDisk;

impl Disk for SystemDisk {
    fn take_dir(&self, directory: &Path) -> io::Result<Option<DirectoryGuard>> {
        self.create_dir(directory)?;
        match DirectoryLock::take(directory) {
            Ok(lock) => Ok(Some(Box::new(lock))),
            Err(StartError::InUse(_)) => Ok(None),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    fn open(&self, path: &Path, create: bool) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SystemFile(open(path, create)?)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                paths.push(entry.path());
            }
        }
        paths.sort_unstable();
        Ok(paths)
    }

    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        // A parent first, so that each new name is made durable in a directory that itself is.
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_dir(parent)?;
        }
        match fs::create_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        self.sync_dir(parent.unwrap_or_else(|| Path::new(".")))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        let room = statvfs(directory)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }
}

/// Reading and writing, for the owner only: the log has secrets of sessions in it.
fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(create).mode(0o600).open(path)
}

struct SystemFile(File);

impl DiskFile for SystemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

struct SystemTransport;

impl Transport for SystemTransport {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move { peer_stream(TcpStream::connect(address).await?) })
    }

    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            // It has an address, having been bound to one.
            let address = listener.local_addr()?.to_string();
            Ok(Box::new(SystemListener { listener, address }) as Box<dyn TransportListener>)
        })
    }
}

struct SystemListener {
    listener: TcpListener,
    address: String,
}

impl TransportListener for SystemListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn PeerStream>, String)>> {
        Box::pin(async move {
            let (stream, from) = self.listener.accept().await?;
            Ok((peer_stream(stream)?, from.to_string()))
        })
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}

/// Frames are gathered before they are written, so holding a small one back would only add delay.
fn peer_stream(stream: TcpStream) -> io::Result<Box<dyn PeerStream>> {
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_directory_is_held_by_one_and_let_go_with_it() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b");
        let lock = DirectoryLock::take(&directory).unwrap();
        let refused = DirectoryLock::take(&directory).unwrap_err();
        assert!(matches!(&refused, StartError::InUse(path) if path.ends_with("a/b")), "{refused}");
        drop(lock);
        DirectoryLock::take(&directory).unwrap();
    }

    #[test]
    fn the_disk_keeps_what_is_written_and_reads_short_only_at_the_end() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("deep/down");
        let disk = SystemDisk;
        assert_eq!(disk.list(&directory).unwrap(), Vec::<PathBuf>::new());
        disk.create_dir(&directory).unwrap();
        disk.create_dir(&directory).unwrap();
        let (old, new) = (directory.join("b"), directory.join("a"));
        assert!(disk.open(&old, false).is_err(), "it isn't there yet");
        let file = disk.open(&old, true).unwrap();
        file.write_all_at(b"0123456789", 5).unwrap();
        file.sync_data().unwrap();
        disk.open(&new, true).unwrap();
        disk.rename(&old, &new).unwrap();
        disk.sync_dir(&directory).unwrap();
        assert_eq!(disk.list(&directory).unwrap(), std::slice::from_ref(&new));

        let mut buffer = [0xff; 8];
        assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 5);
        assert_eq!(&buffer[..5], b"56789");
        file.set_len(3).unwrap();
        assert_eq!((file.len().unwrap(), file.read_at(&mut buffer, 3).unwrap()), (3, 0));
        disk.remove(&new).unwrap();
        assert!(disk.free_bytes(&directory).unwrap() > 0);
    }

    #[tokio::test]
    async fn peers_reach_each_other() {
        let world = Environment::system();
        let mut listener = world.transport.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_address();
        let mut out = world.transport.connect(&address).await.unwrap();
        let (mut incoming, _) = listener.accept().await.unwrap();
        out.write_all(b"hello").await.unwrap();
        let mut buffer = [0; 5];
        incoming.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"hello");
        assert!(world.transport.listen(&address).await.is_err(), "the port is in use");
    }

    #[test]
    fn the_clock_goes_on_and_chance_is_not_constant() {
        let world = Environment::system();
        let before = world.clock.monotonic();
        assert!(world.clock.monotonic() >= before);
        assert!(world.clock.wall_ms() > 1_700_000_000_000, "it is after 2023");
        assert_ne!(world.random.next_u64(), world.random.next_u64());
    }
}
