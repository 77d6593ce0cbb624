//! A disk in memory that keeps only its promises.
//!
//! Every operation is written into a journal. A power cut after any of them can be had as a disk of
//! its own, on which each sector that was written and not synced has a fate: lost, kept, or torn.
//! Names (creations, renames, removals) that no directory sync covers survive as a prefix, as on a
//! journaling file system. Writes and syncs can fail or stall on demand; after a failed sync the
//! data counts as clean without being on the disk, as in a kernel's page cache.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{Disk, DiskFile, Environment};

/// What survives a power cut as a whole.
pub(super) const SECTOR_BYTES: usize = 512;

/// What becomes of something that wasn't synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lost,
    Kept,
    /// Only this many bytes of the sector are new.
    Torn(usize),
}

/// What to fail, counted from now on: 1 is the next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Write(usize),
    Sync(usize),
}

/// The disk. Clones are the same disk.
#[derive(Clone, Default)]
pub(super) struct TestDisk {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    platter: Platter,
    /// The disk as it was made, and all that was done to it since.
    origin: Platter,
    journal: Vec<Operation>,
    failure: Option<(Failure, i32)>,
    /// Bytes that all files may have together; `None` is without limit.
    capacity: Option<u64>,
    is_stalled: bool,
    stalled: usize,
}

#[derive(Clone)]
enum Operation {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SyncNames,
    Write { file: usize, offset: usize, bytes: Vec<u8> },
    SetLen { file: usize, len: usize },
    Sync { file: usize },
    FailedSync { file: usize },
}

/// Files and names, as a program sees them and as the disk has them.
#[derive(Clone, Default)]
struct Platter {
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<Operation>,
    files: Vec<Content>,
}

#[derive(Clone, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: BTreeSet<usize>,
}

impl TestDisk {
    /// The rest of the world, around this disk.
    pub(super) fn environment(&self) -> Environment {
        Environment { disk: Arc::new(self.clone()), ..Environment::system() }
    }

    /// How many operations there were.
    pub(super) fn operations(&self) -> usize {
        self.state().journal.len()
    }

    /// The disk after a power cut behind the first `operations`, with `fate` asked for each thing
    /// that wasn't synced.
    pub(super) fn after_power_cut(
        &self,
        operations: usize,
        fate: &mut dyn FnMut() -> Fate,
    ) -> Self {
        let state = self.state();
        let mut platter = state.origin.clone();
        for operation in &state.journal[..operations] {
            platter.apply(operation);
        }
        platter.lose_power(fate);
        Self::with(platter)
    }

    /// The disk as programs see it, for a test to damage.
    pub(super) fn copy(&self) -> Self {
        Self::with(self.state().platter.clone())
    }

    fn with(platter: Platter) -> Self {
        let state = State { origin: platter.clone(), platter, ..State::default() };
        Self { shared: Arc::new((Mutex::new(state), Condvar::new())) }
    }

    /// Fails one operation with an error of the operating system, once.
    pub(super) fn fail(&self, failure: Failure, error: rustix::io::Errno) {
        self.state().failure = Some((failure, error.raw_os_error()));
    }

    /// Limits the bytes of all files together.
    pub(super) fn set_capacity(&self, bytes: u64) {
        self.state().capacity = Some(bytes);
    }

    /// Makes every sync wait until [`TestDisk::release`].
    pub(super) fn stall(&self) {
        self.state().is_stalled = true;
    }

    /// Waits until a sync waits.
    pub(super) fn wait_for_stalled(&self) {
        let mut state = self.state();
        while state.stalled == 0 {
            self.shared.1.wait(&mut state);
        }
    }

    /// Lets the stalled syncs go on.
    pub(super) fn release(&self) {
        self.state().is_stalled = false;
        self.shared.1.notify_all();
    }

    /// The writes to segments since the first `operations`: where, and how many bytes.
    pub(super) fn writes_since(&self, operations: usize) -> Vec<Range<usize>> {
        let writes = |operation: &Operation| match operation {
            Operation::Write { offset, bytes, .. } => Some(*offset..offset + bytes.len()),
            _ => None,
        };
        self.state().journal[operations..].iter().filter_map(writes).collect()
    }

    /// Changes a file behind everybody's back, durably.
    pub(super) fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = state.platter.names[path];
        let content = &mut state.platter.files[file];
        change(&mut content.seen);
        content.durable.clone_from(&content.seen);
    }

    /// Names of the files there are.
    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.state().platter.names.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock()
    }
}

impl State {
    fn perform(&mut self, operation: Operation) {
        self.platter.apply(&operation);
        self.journal.push(operation);
    }

    /// Whether the operation that is about to be made is the one to fail.
    fn fails(&mut self, is_write: bool) -> Option<io::Error> {
        let (failure, error) = self.failure.as_mut()?;
        let left = match failure {
            Failure::Write(left) if is_write => left,
            Failure::Sync(left) if !is_write => left,
            Failure::Write(_) | Failure::Sync(_) => return None,
        };
        *left -= 1;
        if *left > 0 {
            return None;
        }
        let error = io::Error::from_raw_os_error(*error);
        self.failure = None;
        Some(error)
    }

    fn file_at(&self, path: &Path) -> io::Result<usize> {
        self.platter.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Platter {
    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create(..) | Operation::Rename(..) | Operation::Remove(_) => {
                if let Operation::Create(..) = operation {
                    self.files.push(Content::default());
                }
                change_names(&mut self.names, operation);
                self.unsynced_names.push(operation.clone());
            }
            Operation::SyncNames => {
                self.durable_names.clone_from(&self.names);
                self.unsynced_names.clear();
            }
            Operation::Write { file, offset, bytes } => self.files[*file].write(*offset, bytes),
            Operation::SetLen { file, len } => {
                let content = &mut self.files[*file];
                content.seen.resize(*len, 0);
                content.durable.resize(*len, 0);
            }
            Operation::Sync { file } => {
                let content = &mut self.files[*file];
                for sector in std::mem::take(&mut content.unsynced) {
                    content.keep(sector, SECTOR_BYTES);
                }
            }
            Operation::FailedSync { file } => self.files[*file].unsynced.clear(),
        }
    }

    fn lose_power(&mut self, fate: &mut dyn FnMut() -> Fate) {
        for operation in std::mem::take(&mut self.unsynced_names) {
            if fate() == Fate::Lost {
                break;
            }
            change_names(&mut self.durable_names, &operation);
        }
        self.names.clone_from(&self.durable_names);
        for content in &mut self.files {
            for sector in std::mem::take(&mut content.unsynced) {
                match fate() {
                    Fate::Lost => {}
                    Fate::Kept => content.keep(sector, SECTOR_BYTES),
                    Fate::Torn(bytes) => content.keep(sector, bytes),
                }
            }
            content.seen.clone_from(&content.durable);
        }
    }
}

fn change_names(names: &mut BTreeMap<PathBuf, usize>, operation: &Operation) {
    match operation {
        Operation::Create(path, file) => {
            names.insert(path.clone(), *file);
        }
        Operation::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Operation::Remove(path) => {
            names.remove(path);
        }
        _ => unreachable!("not about names"),
    }
}

impl Content {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[offset..end].copy_from_slice(bytes);
        self.unsynced.extend(offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
    }

    /// Makes the first `bytes` of a sector durable as they are seen. Beyond the durable end there
    /// are zeros until a sector comes to it.
    fn keep(&mut self, sector: usize, bytes: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + bytes).min(self.seen.len());
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        if start < end {
            self.durable[start..end].copy_from_slice(&self.seen[start..end]);
        }
    }
}

impl Disk for TestDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if create && !state.platter.names.contains_key(path) {
            let file = state.platter.files.len();
            state.perform(Operation::Create(path.to_owned(), file));
        }
        let file = state.file_at(path)?;
        Ok(Box::new(TestFile { disk: self.clone(), file }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let names = self.names().into_iter();
        Ok(names.filter(|path| path.parent() == Some(directory)).collect())
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.file_at(from)?;
        state.perform(Operation::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.file_at(path)?;
        state.perform(Operation::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.state().perform(Operation::SyncNames);
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.map_or(u64::MAX, |bytes| bytes.saturating_sub(state.used())))
    }
}

impl State {
    fn used(&self) -> u64 {
        let files = self.platter.names.values();
        files.map(|file| self.platter.files[*file].seen.len() as u64).sum()
    }
}

struct TestFile {
    disk: TestDisk,
    file: usize,
}

impl DiskFile for TestFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().platter.files[self.file].seen.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state();
        let seen = &state.platter.files[self.file].seen;
        let rest = &seen[seen.len().min(offset as usize)..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let (file, offset) = (self.file, offset as usize);
        let end = (offset + bytes.len()) as u64;
        let grows_by = end.saturating_sub(state.platter.files[file].seen.len() as u64);
        let failure = state.fails(true).or_else(|| {
            let is_full = state.capacity.is_some_and(|bytes| state.used() + grows_by > bytes);
            is_full.then(|| io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
        });
        if let Some(error) = failure {
            // As a system does: part of it may have been written.
            let bytes = bytes[..bytes.len() / 2].to_vec();
            if grows_by == 0 {
                state.perform(Operation::Write { file, offset, bytes });
            }
            return Err(error);
        }
        state.perform(Operation::Write { file, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.is_stalled {
            state.stalled += 1;
            self.disk.shared.1.notify_all();
            while state.is_stalled {
                self.disk.shared.1.wait(&mut state);
            }
            state.stalled -= 1;
        }
        let file = self.file;
        if let Some(error) = state.fails(false) {
            state.perform(Operation::FailedSync { file });
            return Err(error);
        }
        state.perform(Operation::Sync { file });
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.state().perform(Operation::SetLen { file: self.file, len: len as usize });
        Ok(())
    }
}
