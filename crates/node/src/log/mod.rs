//! The log on disk: a segmented write-ahead log that knows nothing of Raft.
//!
//! A [`Log`] takes entries that are bytes with an index, and small marks beside them: a vote, how
//! far the log is committed, up to where it is given up. What they mean is the caller's business.
//!
//! # Guarantees
//!
//! - **Order.** Changes are made in the order of the calls, in memory at once and on disk later;
//!   reads see them at once, and the callbacks come in that order, on the log's own thread.
//! - **Durability.** A callback with `Ok` comes after an fdatasync that covers its change and all
//!   before it. What waits while one fdatasync runs shares the next one; there is no timer.
//! - **Honesty.** What was made durable is there at the next start, or the start is refused with a
//!   [`Fault`] that says where the damage is. The exception is the newest batch of a log that was
//!   not closed, which nothing behind it can vouch for: damage to it looks like a crash.
//! - **Finality.** The first failed write or fdatasync is the last one. Everything from there on is
//!   answered with the same [`Fault`].
//!
//! Not promised: that entries appended but not yet called back survive anything, that the disk
//! answers ([`LogStats::sync_age`] is for whoever watches it), or that the disk tells the truth
//! about it. `docs/log-format.md` lists what is assumed.
//!
//! From the bottom up: `format.rs` has the bytes, `segment.rs` the files, `persisted.rs` what
//! records add up to; `recovery.rs` opens, `writer.rs` is the thread, and `shared.rs` is where it
//! meets the callers.

mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod persisted;
mod recovery;
mod segment;
mod shared;
mod writer;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::format::{Header, Kind, RECORD_HEADER_BYTES};
use self::persisted::Place;
use self::segment::{Maker, MakerLine, Segment, disk_fault};
use self::shared::{Change, Done, Shared};
use self::writer::{Tail, Writer};
use crate::{Clock, Environment, Fault};

/// An entry: its index, and the bytes that the caller made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub index: u64,
    pub body: Bytes,
}

/// How a log is set up. Each start may choose anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// Bytes of one segment, from [`SEGMENT_BYTES_MIN`] to 1 GiB.
    pub segment_bytes: u64,
    /// Bytes of the newest bodies kept at hand for reading; those not yet on disk are kept beyond.
    pub cache_bytes: usize,
}

/// The smallest segments that make sense, in bytes; for tests.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 4 << 10;

const SEGMENT_BYTES_MAX: u64 = 1 << 30;

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, cache_bytes: 8 << 20 }
    }
}

/// What the last process left, in the words that it chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// The newest vote.
    pub vote: Option<Bytes>,
    /// The newest note of what is committed.
    pub committed: Option<Bytes>,
    /// The newest index given up, and its marker.
    pub purged: Option<(u64, Bytes)>,
}

/// Which entries there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    /// The oldest entry; equal to `next` while there is none.
    pub first: u64,
    /// What the next entry's index must be. A log that was always empty takes any.
    pub next: u64,
    /// Bytes on disk of the entries that are not given up: how much a snapshot would save.
    pub live_bytes: u64,
    /// Bytes of bodies appended since the start, never less than before.
    pub appended_bytes: u64,
}

impl LogState {
    /// The newest entry, if there is any.
    pub(crate) fn last(&self) -> Option<u64> {
        (self.first < self.next).then(|| self.next - 1)
    }
}

/// How the disk is doing.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogStats {
    /// Batches written and synced since the start.
    pub syncs: u64,
    /// The time that this took together.
    pub sync_time: Duration,
    /// For how long the log's thread has been waiting for the disk now; `None` while it isn't.
    pub sync_age: Option<Duration>,
    /// Why nothing is written any more, if so.
    pub fault: Option<Fault>,
}

/// The log. Cheap to clone; usable from any thread. Ends with [`Log::close`], or by itself some
/// time after the last handle is gone.
#[derive(Clone)]
pub(crate) struct Log {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    /// Gone once everything is written and the threads have ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Log {
    /// Opens the log in `directory`, or begins one. Reads all of it once, in pieces: takes time
    /// linear in its bytes, and 16 bytes of memory an entry. Its threads have `held` until they
    /// have ended.
    ///
    /// # Errors
    ///
    /// [`Fault::Corrupted`] if what was durable isn't there, [`Fault::Disk`].
    pub(crate) fn open(
        directory: &Path,
        options: LogOptions,
        environment: &Environment,
        held: impl Send + 'static,
    ) -> Result<(Self, Recovered), Fault> {
        let LogOptions { segment_bytes, cache_bytes } = options;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
            return Err(Fault::Internal(format!(
                "segments of {segment_bytes} bytes; {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} work"
            )));
        }
        let disk = &environment.disk;
        let fault = |error| disk_fault(directory, "preparing", &error);
        disk.create_dir(directory).map_err(fault)?;
        let found = recovery::recover(directory, &**disk)?;

        let salt = (environment.random.next_u64() >> 32) as u32;
        let mut maker = Maker::new(directory, Arc::clone(disk), segment_bytes, salt);
        for spare in found.spares {
            maker.adopt_spare(spare).map_err(fault)?;
        }
        let mut segments = found.segments;
        let segment = match segments.back() {
            Some(newest) => Arc::clone(newest),
            None => Arc::new(maker.make(1).map_err(fault)?),
        };
        if segments.is_empty() {
            segments.push_back(Arc::clone(&segment));
        }
        let persisted = found.persisted;
        let recovered = Recovered {
            vote: persisted.vote.clone(),
            committed: persisted.committed.clone().map(|(_, body)| body),
            purged: persisted.purged.clone(),
        };
        let shared = Arc::new(Shared::new(persisted, segments, cache_bytes));
        let poisoned = Arc::clone(&shared);
        let maker = MakerLine::start(maker, found.ready, environment, move |fault| {
            poisoned.poison(fault);
        })
        .map_err(fault)?;

        let clock = Arc::clone(&environment.clock);
        let tail = Tail { segment, offset: found.offset, batch: found.batch };
        let writer = Writer::new(Arc::clone(&shared), environment.clone(), maker, tail);
        let (ends, ended) = oneshot::channel();
        let work = async move {
            writer.run().await;
            drop(held);
            // Nobody waits for it unless the log is being closed.
            let _ = ends.send(());
        };
        environment.run_apart("log", work).map_err(fault)?;
        let inner = Inner { shared, clock, ended: Mutex::new(Some(ended)) };
        Ok((Self { inner: Arc::new(inner) }, recovered))
    }

    /// Appends entries, whose indexes follow the last one's. Never blocks.
    ///
    /// `done` is called on the log's thread, which waits meanwhile; so with all changes.
    pub(crate) fn append(
        &self,
        entries: Vec<LogEntry>,
        done: impl FnOnce(Result<(), Fault>) + Send + 'static,
    ) {
        self.submit(Change::Append(entries), Box::new(done));
    }

    /// Replaces the vote.
    pub(crate) fn save_vote(
        &self,
        vote: Bytes,
        done: impl FnOnce(Result<(), Fault>) + Send + 'static,
    ) {
        self.submit(Change::Vote(vote), Box::new(done));
    }

    /// Makes `index` the newest entry; with `None` there is none left.
    pub(crate) fn truncate_after(
        &self,
        index: Option<u64>,
        done: impl FnOnce(Result<(), Fault>) + Send + 'static,
    ) {
        let from = index.map_or_else(|| self.state().first, |index| index.saturating_add(1));
        self.submit(Change::Truncate(from), Box::new(done));
    }

    /// Gives up the entries up to and with `up_to`, which may be beyond the newest: then the next
    /// one follows `up_to`. The files go once this is durable.
    pub(crate) fn purge(
        &self,
        up_to: u64,
        marker: Bytes,
        done: impl FnOnce(Result<(), Fault>) + Send + 'static,
    ) {
        self.submit(Change::Purge(up_to, marker), Box::new(done));
    }

    /// Notes that entries up to `index` are committed. It is written with the next change that
    /// comes, and is then a promise: a log that is found to end before it is refused. A note of
    /// entries that aren't here yet waits for them.
    pub(crate) fn note_committed(&self, index: u64, note: Bytes) {
        self.inner.shared.note_committed(index, note);
    }

    /// The entries of `range` that there are, oldest first and without a gap, up to about
    /// `bytes_max` bytes, and at least one if there is one. The newest come from memory; older ones
    /// are read from disk, which blocks.
    ///
    /// # Errors
    ///
    /// The disk's own, and [`io::ErrorKind::InvalidData`] if an entry isn't what was written:
    /// this node must not go on.
    pub(crate) fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        let state = self.inner.shared.lock();
        let found = state.find(range, bytes_max);
        let mut runs = Vec::new();
        for run in found.places.chunk_by(|(_, before), (_, after)| before.meets(after)) {
            let segment = state.segment(run[0].1.segment);
            runs.push((segment.ok_or_else(|| io::Error::other("its segment is gone"))?, run));
        }
        drop(state);

        let mut entries = Vec::with_capacity(found.places.len() + found.entries.len());
        for (segment, run) in runs {
            read_run(&segment, run, &mut entries)?;
        }
        entries.extend(found.entries);
        Ok(entries)
    }

    /// Which entries there are.
    pub(crate) fn state(&self) -> LogState {
        self.inner.shared.lock().summary()
    }

    /// How the disk is doing.
    pub(crate) fn stats(&self) -> LogStats {
        let syncs = &self.inner.shared.syncs;
        let began_ns = syncs.began_ns.load(Ordering::Relaxed);
        let now_ns = self.inner.clock.monotonic().0;
        LogStats {
            syncs: syncs.count.load(Ordering::Relaxed),
            sync_time: Duration::from_nanos(syncs.total_ns.load(Ordering::Relaxed)),
            sync_age: (began_ns > 0).then(|| Duration::from_nanos(now_ns.saturating_sub(began_ns))),
            fault: self.inner.shared.lock().fault.clone(),
        }
    }

    /// Writes what waits, and ends the threads; waits until then, so it must not be called from a
    /// callback. Changes after it are answered with a fault.
    pub(crate) async fn close(&self) {
        self.inner.shared.close();
        let ended = self.inner.ended.lock().take();
        if let Some(ended) = ended {
            // It goes without a word only by a bug, and then has said so.
            let _ = ended.await;
        }
    }

    /// [`Log::close`] for callers without a runtime.
    #[cfg(test)]
    fn close_now(&self) {
        self.inner.shared.close();
        let ended = self.inner.ended.lock().take();
        ended.map(oneshot::Receiver::blocking_recv);
    }

    fn submit(&self, change: Change, done: Done) {
        self.inner.shared.submit(change, done);
    }
}

impl Drop for Inner {
    /// Doesn't wait: the last handle may well go in a callback, on the log's own thread.
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Reads entries that lie behind one another, in one go, and checks every byte of them.
fn read_run(
    segment: &Segment,
    run: &[(u64, Place)],
    entries: &mut Vec<LogEntry>,
) -> io::Result<()> {
    let start = u64::from(run[0].1.offset);
    let bytes = run.iter().map(|(_, place)| place.bytes as usize).sum();
    let mut buffer = vec![0; bytes];
    let read = segment.file.read_at(&mut buffer, start)?;
    buffer.truncate(read);
    let mut rest = Bytes::from(buffer);
    for (index, place) in run {
        let mut record = rest.split_to(rest.len().min(place.bytes as usize));
        let is_intact = |header: &Header| {
            (header.kind, header.index) == (Kind::Entry, *index)
                && header.epoch == segment.header.epoch
                && header.owns(&record[RECORD_HEADER_BYTES..])
        };
        let header = Header::decode(&record).filter(is_intact).ok_or_else(|| {
            let (path, offset) = (segment.path.display(), place.offset);
            let what = format!("entry {index} at offset {offset} of {path} is damaged");
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        let mut body = record.split_off(RECORD_HEADER_BYTES);
        body.truncate(header.body_bytes as usize);
        entries.push(LogEntry { index: *index, body });
    }
    Ok(())
}
