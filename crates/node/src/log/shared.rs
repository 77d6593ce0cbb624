//! What the callers of the log and its thread share: the log as callers see it, the work that
//! waits, and the news about the disk.
//!
//! Two views of one log live here. *Memory* is what callers have asked for; *persisted* is what the
//! disk holds, and lags behind by the work that waits. A read takes from memory what it has, and
//! memory has at least all that isn't on disk yet, so the lag never shows:
//!
//! ```text
//!            first                     cached               next
//!  memory      |  (evicted: on disk)     |  bodies at hand    |
//!  persisted   |  places of records            |  waiting     |
//! ```

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::persisted::{Persisted, Place};
use super::segment::Segment;
use super::{LogEntry, LogState};
use crate::{Fault, Monotonic};

/// Told on the log's thread what became of a change.
pub(super) type Done = Box<dyn FnOnce(Result<(), Fault>) + Send>;

/// Something to be written.
pub(super) enum Change {
    Append(Vec<LogEntry>),
    Vote(Bytes),
    /// From this index on.
    Truncate(u64),
    /// Up to and with this index.
    Purge(u64, Bytes),
}

/// A change, its number among all changes, and who waits for it.
pub(super) struct Work {
    pub number: u64,
    pub change: Change,
    pub done: Done,
}

/// What comes with the work that was taken.
pub(super) struct Taken {
    /// What is committed, of all that was asked for before and with the work.
    pub note: Option<(u64, Bytes)>,
    /// Why nothing may be written.
    pub fault: Option<Fault>,
}

/// Everything shared.
pub(super) struct Shared {
    state: Mutex<State>,
    work_came: Notify,
    pub syncs: SyncCounters,
}

/// Batches made durable, and the wait under way; read by anybody at any time.
#[derive(Default)]
pub(super) struct SyncCounters {
    pub count: AtomicU64,
    pub total_ns: AtomicU64,
    /// When the wait for the disk began, in nanoseconds of the clock; 0 while there is none.
    pub began_ns: AtomicU64,
}

/// What the mutex guards.
pub(super) struct State {
    pub memory: Memory,
    pub persisted: Persisted,
    /// Segments whose records may still be wanted, in order, without a gap; the last is written to.
    pub segments: VecDeque<Arc<Segment>>,
    work: VecDeque<Work>,
    /// The newest note of what is committed, until it is written.
    note: Option<(u64, Bytes)>,
    changes: u64,
    closing: bool,
    pub fault: Option<Fault>,
}

/// The log as its callers see it.
pub(super) struct Memory {
    /// Whether there ever was an entry, a truncation or a purge: until then any index may be first.
    started: bool,
    first: u64,
    next: u64,
    /// The newest bodies, without a gap, up to the newest.
    cache: VecDeque<Cached>,
    cache_bytes: usize,
    cache_bytes_max: usize,
    /// All changes up to this one are on disk, so the entries that they brought may be evicted.
    written: u64,
    appended_bytes: u64,
}

struct Cached {
    body: Bytes,
    /// The change that brought it.
    change: u64,
}

impl Shared {
    /// Begins with what was found on disk.
    pub(super) fn new(
        persisted: Persisted,
        segments: VecDeque<Arc<Segment>>,
        cache_bytes_max: usize,
    ) -> Self {
        let memory = Memory {
            started: persisted.started(),
            first: persisted.first(),
            next: persisted.next(),
            cache: VecDeque::new(),
            cache_bytes: 0,
            cache_bytes_max,
            written: 0,
            appended_bytes: 0,
        };
        let state = State {
            memory,
            persisted,
            segments,
            work: VecDeque::new(),
            note: None,
            changes: 0,
            closing: false,
            fault: None,
        };
        Self { state: Mutex::new(state), work_came: Notify::new(), syncs: SyncCounters::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes a change in memory, and leaves it for the log's thread to write.
    pub(super) fn submit(&self, change: Change, done: Done) {
        let mut state = self.state.lock();
        if state.closing {
            drop(state);
            return done(Err(Fault::Internal("the log is closed".to_owned())));
        }
        state.changes += 1;
        let number = state.changes;
        if state.fault.is_none()
            && let Err(contradiction) = state.memory.change(&change, number)
        {
            // Going on would put a log on disk that the next start refuses.
            state.fault = Some(Fault::Internal(format!("a change to the log: {contradiction}")));
        }
        state.work.push_back(Work { number, change, done });
        // The thread sleeps only while there is no work.
        if state.work.len() == 1 {
            self.work_came.notify_one();
        }
    }

    /// Keeps a note to be written with the next change.
    pub(super) fn note_committed(&self, index: u64, body: Bytes) {
        self.state.lock().note = Some((index, body));
    }

    /// Waits for work and takes all there is. `None` once the log is closed and nothing is left.
    pub(super) async fn take_work(&self, work: &mut VecDeque<Work>) -> Option<Taken> {
        while self.is_idle() {
            self.work_came.notified().await;
        }
        let mut state = self.state.lock();
        mem::swap(&mut state.work, work);
        // A note may run ahead of the entries (a snapshot is installed): it waits for them.
        let next = state.memory.next;
        let note = state.note.take_if(|(index, _)| *index < next);
        let fault = state.fault.clone();
        (!work.is_empty()).then_some(Taken { note, fault })
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.work.is_empty() && !state.closing
    }

    /// Lets the thread end once it has done what waits.
    pub(super) fn close(&self) {
        self.state.lock().closing = true;
        self.work_came.notify_one();
    }

    /// The first fault is the one that stays.
    pub(super) fn poison(&self, fault: Fault) -> Fault {
        self.state.lock().fault.get_or_insert(fault).clone()
    }
}

impl State {
    /// The log as its callers see it.
    pub(super) fn summary(&self) -> LogState {
        LogState {
            first: self.memory.first,
            next: self.memory.next,
            live_bytes: self.persisted.live_bytes(),
            appended_bytes: self.memory.appended_bytes,
        }
    }

    /// The open file of a segment that is still wanted.
    pub(super) fn segment(&self, number: u64) -> Option<Arc<Segment>> {
        let first = self.segments.front()?.header.number;
        let position = usize::try_from(number.checked_sub(first)?).ok()?;
        self.segments.get(position).cloned()
    }

    /// Takes out the segments of which nothing is needed: those before the oldest entry's, and
    /// never the one that is written to.
    pub(super) fn unneeded(&mut self) -> Option<Arc<Segment>> {
        let (oldest, newest) = (self.segments.front()?, self.segments.back()?);
        let needed = self.persisted.first_segment().unwrap_or(newest.header.number);
        let is_needed = oldest.header.number >= needed.min(newest.header.number);
        if is_needed { None } else { self.segments.pop_front() }
    }
}

/// Where the entries of a read are.
pub(super) struct Found {
    /// Those on disk, oldest first, with their indexes.
    pub places: Vec<(u64, Place)>,
    /// Those at hand, which follow.
    pub entries: Vec<LogEntry>,
}

impl State {
    /// Finds the entries of `range` that there are, as many as `bytes_max` allows, and at least one
    /// if there is one.
    pub(super) fn find(&self, range: Range<u64>, bytes_max: usize) -> Found {
        let mut found = Found { places: Vec::new(), entries: Vec::new() };
        let mut left = bytes_max;
        let memory = &self.memory;
        for index in range.start.max(memory.first)..range.end.min(memory.next) {
            let cached = memory.cached(index);
            let place = self.persisted.place(index);
            let bytes = match (cached, place) {
                (Some(body), _) => body.len(),
                (None, Some(place)) => place.bytes as usize,
                (None, None) => unreachable!("entry {index} is neither in memory nor on disk"),
            };
            let is_first = found.places.is_empty() && found.entries.is_empty();
            if bytes > left && !is_first {
                break;
            }
            left = left.saturating_sub(bytes);
            match (cached, place) {
                (Some(body), _) => found.entries.push(LogEntry { index, body: body.clone() }),
                (None, place) => found.places.extend(place.map(|place| (index, place))),
            }
        }
        found
    }
}

impl Memory {
    /// Everything up to the change `number` is on disk.
    pub(super) fn written(&mut self, number: u64) {
        self.written = number;
        self.evict();
    }

    fn cached_from(&self) -> u64 {
        self.next - self.cache.len() as u64
    }

    fn cached(&self, index: u64) -> Option<&Bytes> {
        let position = usize::try_from(index.checked_sub(self.cached_from())?).ok()?;
        self.cache.get(position).map(|cached| &cached.body)
    }

    fn change(&mut self, change: &Change, number: u64) -> Result<(), String> {
        match change {
            Change::Append(entries) => self.append(entries, number),
            Change::Vote(_) => Ok(()),
            Change::Truncate(from) => self.truncate(*from),
            Change::Purge(up_to, _) => {
                self.purge(*up_to);
                Ok(())
            }
        }
    }

    fn append(&mut self, entries: &[LogEntry], change: u64) -> Result<(), String> {
        for entry in entries {
            if !self.started {
                self.started = true;
                self.first = entry.index;
                self.next = entry.index;
            }
            if entry.index != self.next {
                return Err(format!("entry {} follows where {} should", entry.index, self.next));
            }
            self.next += 1;
            self.cache_bytes += entry.body.len();
            self.appended_bytes += entry.body.len() as u64;
            self.cache.push_back(Cached { body: entry.body.clone(), change });
        }
        self.evict();
        Ok(())
    }

    fn truncate(&mut self, from: u64) -> Result<(), String> {
        if !(self.first..=self.next).contains(&from) {
            return Err(format!("entries from {from} on of {} to {}", self.first, self.next));
        }
        self.started = true;
        while self.next > from {
            if let Some(cached) = self.cache.pop_back() {
                self.cache_bytes -= cached.body.len();
            }
            self.next -= 1;
        }
        Ok(())
    }

    fn purge(&mut self, up_to: u64) {
        self.started = true;
        self.first = self.first.max(up_to.saturating_add(1));
        if self.first > self.next {
            // A snapshot reaches beyond the log: the next entry follows the snapshot.
            self.next = self.first;
            self.cache.clear();
            self.cache_bytes = 0;
        }
        while self.cached_from() < self.first {
            let Some(cached) = self.cache.pop_front() else { break };
            self.cache_bytes -= cached.body.len();
        }
    }

    fn evict(&mut self) {
        while self.cache_bytes > self.cache_bytes_max {
            match self.cache.front() {
                Some(oldest) if oldest.change <= self.written => {
                    self.cache_bytes -= oldest.body.len();
                    self.cache.pop_front();
                }
                _ => break,
            }
        }
    }
}

impl SyncCounters {
    /// Notes that the log's thread waits for the disk from now on.
    pub(super) fn begin(&self, now: Monotonic) {
        self.began_ns.store(now.0.max(1), Ordering::Relaxed);
    }

    /// Notes that it doesn't any more; `is_sync` if it was for a batch.
    pub(super) fn end(&self, now: Monotonic, is_sync: bool) {
        let began_ns = self.began_ns.swap(0, Ordering::Relaxed);
        if is_sync {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.total_ns.fetch_add(now.0.saturating_sub(began_ns), Ordering::Relaxed);
        }
    }
}
