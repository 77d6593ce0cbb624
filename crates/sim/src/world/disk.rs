//! A machine's disk: it keeps what was synced, and of the rest what it likes.
//!
//! Programs see what they have written at once. What a power cut leaves is decided sector by
//! sector: a sector that was written and not synced is lost, kept, or torn. Names that no directory
//! sync covers survive as a prefix of their changes, as on a journaling file system. After a failed
//! sync the data counts as clean without being on the disk, as in a kernel's page cache.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_node::{Disk, DiskFile, DiskStep};
use parking_lot::{Mutex, MutexGuard};

use crate::chance::Chance;

/// What survives a power cut as a whole.
const SECTOR_BYTES: usize = 512;

/// Bytes on the disk while it isn't small.
const ROOM_BYTES: u64 = 1 << 30;

/// Reading and writing needs this handle to be of the process that runs now.
type Life = u64;

/// The disk of one machine. Clones are the same disk.
#[derive(Clone)]
pub(crate) struct Machine {
    state: Arc<Mutex<State>>,
}

struct State {
    chance: Chance,
    life: Life,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<Rename>,
    files: Vec<Content>,
    /// Bytes that all files may have together.
    room: u64,
    /// The next write or sync fails, with this error of the system.
    failing: Option<(DiskStep, i32)>,
    /// The next steps take at least this long.
    stall: Duration,
    /// And so long they take even when everything is well.
    slowness: Duration,
}

#[derive(Clone)]
enum Rename {
    Create(PathBuf, usize),
    Move(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Clone, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: BTreeSet<usize>,
}

impl Machine {
    pub(crate) fn new(chance: Chance) -> Self {
        let state = State {
            chance,
            life: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            files: Vec::new(),
            room: ROOM_BYTES,
            failing: None,
            stall: Duration::ZERO,
            slowness: Duration::ZERO,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The disk as the next process sees it; earlier processes can't reach it any more.
    pub(crate) fn mount(&self) -> Arc<dyn Disk> {
        let mut state = self.state.lock();
        state.life += 1;
        Arc::new(Mounted { state: Arc::clone(&self.state), life: state.life })
    }

    /// The process is gone; what it wrote is still in the system's cache.
    pub(crate) fn unmount(&self) {
        self.state.lock().life += 1;
    }

    /// The power is gone: of what wasn't synced, chance decides what is there afterwards.
    pub(crate) fn lose_power(&self) {
        let mut state = self.state.lock();
        state.life += 1;
        state.lose_power();
    }

    /// The next write or sync of the log fails with this error.
    pub(crate) fn fail_next(&self, step: DiskStep, error: i32) {
        self.state.lock().failing = Some((step, error));
    }

    /// It is no better a disk: every step takes this long and more, for good.
    pub(crate) fn be_slow(&self, slowness: Duration) {
        self.state.lock().slowness = slowness;
    }

    /// Every step takes this long and more, until told otherwise.
    pub(crate) fn stall(&self, duration: Duration) {
        self.state.lock().stall = duration;
    }

    /// Leaves only this many bytes free; `None` for plenty.
    pub(crate) fn leave_room(&self, free_bytes: Option<u64>) {
        let mut state = self.state.lock();
        state.room = free_bytes.map_or(ROOM_BYTES, |free| state.used() + free);
    }

    /// Everything is well with it from now on.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock();
        state.room = ROOM_BYTES;
        state.failing = None;
        state.stall = Duration::ZERO;
    }
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().map(|&file| self.files[file].seen.len() as u64).sum()
    }

    fn lose_power(&mut self) {
        for change in std::mem::take(&mut self.unsynced_names) {
            if self.chance.one_in(2) {
                break;
            }
            rename(&mut self.durable_names, &change);
        }
        self.names.clone_from(&self.durable_names);
        let keeps_all = self.chance.one_in(4);
        let keeps_none = self.chance.one_in(4);
        for content in &mut self.files {
            for sector in std::mem::take(&mut content.unsynced) {
                match self.chance.below(3) {
                    _ if keeps_all => content.keep(sector, SECTOR_BYTES),
                    _ if keeps_none => {}
                    0 => content.keep(sector, SECTOR_BYTES),
                    1 => content.keep(sector, self.chance.below(SECTOR_BYTES as u64) as usize),
                    _ => {}
                }
            }
            content.seen.clone_from(&content.durable);
        }
    }

    fn change_names(&mut self, change: Rename) {
        rename(&mut self.names, &change);
        self.unsynced_names.push(change);
    }

    /// Whether the step that is about to be made is the one to fail.
    fn fails(&mut self, step: DiskStep) -> Option<io::Error> {
        let (failing, error) = self.failing?;
        (failing == step).then(|| {
            self.failing = None;
            io::Error::from_raw_os_error(error)
        })
    }
}

fn rename(names: &mut BTreeMap<PathBuf, usize>, change: &Rename) {
    match change {
        Rename::Create(path, file) => {
            names.insert(path.clone(), *file);
        }
        Rename::Move(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Rename::Remove(path) => {
            names.remove(path);
        }
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

    /// Makes the first `bytes` of a sector durable as they are seen.
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

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.unsynced) {
            self.keep(sector, SECTOR_BYTES);
        }
    }
}

/// The disk of one process.
struct Mounted {
    state: Arc<Mutex<State>>,
    life: Life,
}

impl Mounted {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        alive(&self.state, self.life)
    }
}

fn alive(state: &Mutex<State>, life: Life) -> io::Result<MutexGuard<'_, State>> {
    let state = state.lock();
    if state.life == life { Ok(state) } else { Err(io::Error::other("this process is dead")) }
}

impl Disk for Mounted {
    fn open(&self, path: &Path, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state()?;
        let file = match state.names.get(path) {
            Some(&file) => file,
            None if create => {
                let file = state.files.len();
                state.files.push(Content::default());
                state.change_names(Rename::Create(path.to_owned(), file));
                file
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(OpenFile {
            state: Arc::clone(&self.state),
            life: self.life,
            file,
            is_log: is_log(path),
        }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.state()?;
        let names = state.names.keys();
        Ok(names.filter(|path| path.parent() == Some(directory)).cloned().collect())
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        self.state().map(|_| ())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(Rename::Move(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(Rename::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        state.unsynced_names.clear();
        let State { names, durable_names, .. } = &mut *state;
        durable_names.clone_from(names);
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        let state = self.state()?;
        Ok(state.room.saturating_sub(state.used()))
    }

    fn latency(&self, step: DiskStep) -> Duration {
        let mut state = self.state.lock();
        let usual = match step {
            DiskStep::LogWrite => 0,
            DiskStep::LogSync | DiskStep::Other => state.chance.below(4),
        };
        Duration::from_millis(usual) + state.stall.max(state.slowness)
    }
}

/// Whether a file belongs to the log: only those fail on demand.
fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log" || extension == "spare")
}

struct OpenFile {
    state: Arc<Mutex<State>>,
    life: Life,
    file: usize,
    is_log: bool,
}

impl OpenFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        alive(&self.state, self.life)
    }
}

impl DiskFile for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.files[self.file].seen.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state()?;
        let seen = &state.files[self.file].seen;
        let rest = &seen[seen.len().min(offset as usize)..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let (file, offset) = (self.file, offset as usize);
        let end = (offset + bytes.len()) as u64;
        let grows_by = end.saturating_sub(state.files[file].seen.len() as u64);
        let failure = if self.is_log { state.fails(DiskStep::LogWrite) } else { None };
        let failure = failure.or_else(|| {
            let is_full = grows_by > 0 && state.used() + grows_by > state.room;
            is_full.then(|| io::Error::from(io::ErrorKind::StorageFull))
        });
        if let Some(error) = failure {
            // As a system does: part of it may have been written.
            if grows_by == 0 {
                state.files[file].write(offset, &bytes[..bytes.len() / 2]);
            }
            return Err(error);
        }
        state.files[file].write(offset, bytes);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let failure = if self.is_log { state.fails(DiskStep::LogSync) } else { None };
        if let Some(error) = failure {
            state.files[self.file].unsynced.clear();
            return Err(error);
        }
        state.files[self.file].sync();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let content = &mut state.files[self.file];
        content.seen.resize(len as usize, 0);
        content.durable.resize(len as usize, 0);
        Ok(())
    }
}
