//! The files of the log, and the thread that has the next one ready before it is needed.
//!
//! A file goes through three lives. As `N.spare` it holds nothing, whatever its bytes say. It
//! becomes `N.log` once its header is durable, and so a `.log` file without a sound header is
//! damaged, never unfinished. When nothing in it is needed any more it is a spare again, or
//! removed if there are enough.
//!
//! All blocks of a file are written before its first use, 1 MiB at a time: an fdatasync of a record
//! then changes no length and no block map, which makes it about a third faster, and a full
//! disk shows here, not under a record.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::format::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::{Disk, DiskFile, DiskStep, Environment, Fault};

/// Spares that are kept; a log that is purged as fast as it grows needs one.
const SPARES_MAX: usize = 2;

/// How much is written between two fdatasyncs while a file is made, in bytes: records written
/// meanwhile wait behind no more than this.
const STEP_BYTES: usize = 1 << 20;

/// One file of the log.
pub(super) struct Segment {
    pub header: SegmentHeader,
    pub path: PathBuf,
    pub file: Box<dyn DiskFile>,
}

/// What a file's name says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A segment that may hold records.
    Log(u64),
    /// A file that holds nothing.
    Spare(u64),
}

impl Name {
    /// Reads a file's name; `None` for a file that is none of ours.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let number = path.file_stem()?.to_str()?;
        let is_plain = number.len() == 20 && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_plain.then(|| number.parse().ok())??;
        match path.extension()?.to_str()? {
            "log" => Some(Self::Log(number)),
            "spare" => Some(Self::Spare(number)),
            _ => None,
        }
    }

    fn within(self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Self::Log(number) => format!("{number:020}.log"),
            Self::Spare(number) => format!("{number:020}.spare"),
        })
    }
}

/// Makes segments, from spares where there are any. Works on the thread that it is on.
pub(super) struct Maker {
    directory: PathBuf,
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// The upper half of every epoch: clients can't know it, so nothing that they write into an
    /// entry can look like a record to the search behind damage.
    salt: u32,
    spares: Vec<(PathBuf, Box<dyn DiskFile>)>,
}

impl Maker {
    pub(super) fn new(
        directory: &Path,
        disk: Arc<dyn Disk>,
        segment_bytes: u64,
        salt: u32,
    ) -> Self {
        Self { directory: directory.to_owned(), disk, segment_bytes, salt, spares: Vec::new() }
    }

    /// Takes over a spare that an earlier process left, if it is good for anything.
    pub(super) fn adopt_spare(&mut self, path: PathBuf) -> io::Result<()> {
        let file = self.disk.open(&path, false)?;
        if self.spares.len() < SPARES_MAX && file.len()? == self.segment_bytes {
            self.spares.push((path, file));
            return Ok(());
        }
        drop(file);
        self.disk.remove(&path)
    }

    /// A segment without records, durable in all respects.
    pub(super) fn make(&mut self, number: u64) -> io::Result<Segment> {
        let (spare, file) = match self.spares.pop() {
            Some(spare) => spare,
            None => self.make_spare(number)?,
        };
        let epoch = u64::from(self.salt) << 32 | (number & u64::from(u32::MAX));
        let header = SegmentHeader { number, epoch, bytes: self.segment_bytes };
        file.write_all_at(&header.encode(), 0)?;
        file.sync_data()?;
        let path = Name::Log(number).within(&self.directory);
        self.disk.rename(&spare, &path)?;
        self.disk.sync_dir(&self.directory)?;
        Ok(Segment { header, path, file })
    }

    /// Puts away a segment of which nothing is needed. Call it in the order of their numbers: each
    /// step is made durable before the next, so that a crash never leaves a hole among them.
    pub(super) fn retire(&mut self, segment: Arc<Segment>) -> io::Result<()> {
        let path = segment.path.clone();
        let spare = Name::Spare(segment.header.number).within(&self.directory);
        let is_wanted = self.spares.len() < SPARES_MAX
            && segment.file.len()? == self.segment_bytes
            && self.spares.iter().all(|(other, _)| *other != spare);
        // A reader may still hold the segment: then the file keeps its bytes for as long, and only
        // its name goes.
        match Arc::into_inner(segment) {
            Some(Segment { file, .. }) if is_wanted => {
                self.disk.rename(&path, &spare)?;
                self.spares.push((spare, file));
            }
            _ => self.disk.remove(&path)?,
        }
        self.disk.sync_dir(&self.directory)
    }

    fn make_spare(&self, number: u64) -> io::Result<(PathBuf, Box<dyn DiskFile>)> {
        let path = Name::Spare(number).within(&self.directory);
        let file = self.disk.open(&path, true)?;
        match self.fill(&*file) {
            Ok(()) => Ok((path, file)),
            Err(error) => {
                drop(file);
                // Half a spare helps nobody, least of all on a full disk. Should this fail too,
                // the next start removes it.
                let _ = self.disk.remove(&path);
                Err(error)
            }
        }
    }

    fn fill(&self, file: &dyn DiskFile) -> io::Result<()> {
        let zeros = vec![0; STEP_BYTES.min(self.segment_bytes as usize)];
        let mut offset = 0;
        while offset < self.segment_bytes {
            let step = zeros.len().min((self.segment_bytes - offset) as usize);
            file.write_all_at(&zeros[..step], offset)?;
            file.sync_data()?;
            offset += step as u64;
        }
        Ok(())
    }
}

/// The line to a [`Maker`] that works on a thread of its own. Both queues are short: one segment is
/// asked for at a time, and those to put away are in the log already.
pub(super) struct MakerLine {
    tasks: mpsc::UnboundedSender<Task>,
    made: mpsc::UnboundedReceiver<io::Result<Segment>>,
    /// The number of the segment that was asked for and not taken yet.
    asked: Option<u64>,
}

enum Task {
    Make(u64),
    Retire(Arc<Segment>),
}

impl MakerLine {
    /// Starts it. `ready` is a segment without records that an earlier process left;
    /// `on_fault` hears of a failure to put a segment away.
    pub(super) fn start(
        mut maker: Maker,
        ready: Option<Segment>,
        environment: &Environment,
        on_fault: impl Fn(Fault) + Send + 'static,
    ) -> io::Result<Self> {
        let (tasks, mut received) = mpsc::unbounded_channel();
        let (sender, made) = mpsc::unbounded_channel();
        let asked = ready.as_ref().map(|segment| segment.header.number);
        if let Some(segment) = ready {
            // Its receiver is in this very function.
            let _ = sender.send(Ok(segment));
        }
        let world = environment.clone();
        let work = async move {
            while let Some(task) = received.recv().await {
                world.pause(DiskStep::Other).await;
                match task {
                    // Nobody receives it once the log is closed: the next start finds the file.
                    Task::Make(number) => drop(sender.send(maker.make(number))),
                    Task::Retire(segment) => {
                        let path = segment.path.clone();
                        if let Err(error) = maker.retire(segment) {
                            on_fault(disk_fault(&path, "putting the segment away", &error));
                            return;
                        }
                    }
                }
            }
        };
        environment.run_apart("log-segments", work)?;
        Ok(Self { tasks, made, asked })
    }

    /// Asks for a segment ahead of need. Asking again for the same one is free.
    pub(super) fn prepare(&mut self, number: u64) {
        if self.asked.is_none() {
            self.asked = Some(number);
            self.send(Task::Make(number));
        }
    }

    /// Waits for a segment. If it couldn't be made ahead of need because the disk was full, that is
    /// tried once more: a purge may have made room since.
    pub(super) async fn take(&mut self, number: u64) -> io::Result<Segment> {
        self.prepare(number);
        let first = self.receive().await;
        self.asked = None;
        match first {
            Err(error) if is_full(&error) => {
                self.send(Task::Make(number));
                self.receive().await
            }
            made => made,
        }
    }

    /// Puts a segment away, in time.
    pub(super) fn retire(&self, segment: Arc<Segment>) {
        self.send(Task::Retire(segment));
    }

    /// Ends the maker, once it has done what it was asked.
    pub(super) async fn close(mut self) {
        drop(self.tasks);
        while self.made.recv().await.is_some() {}
    }

    fn send(&self, task: Task) {
        // The maker ends early only after reporting a fault, which the next write finds.
        let _ = self.tasks.send(task);
    }

    async fn receive(&mut self) -> io::Result<Segment> {
        let ended = || Err(io::Error::other("the maker of segments has ended"));
        self.made.recv().await.unwrap_or_else(ended)
    }
}

/// Whether an error says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The fault that an error of the disk is.
pub(super) fn disk_fault(path: &Path, what: &str, error: &io::Error) -> Fault {
    Fault::Disk(format!("{what} {}: {error}", path.display()))
}

const _: () = assert!(STEP_BYTES as u64 >= SEGMENT_HEADER_BYTES);
