//! openraft's log over our own [`Log`]: what openraft calls a vote, an entry and a purge become
//! bytes, and its wishes become calls.
//!
//! The newest entries are kept here as openraft knows them, sharing their bytes with what was
//! proposed or received: replication and apply mostly want these, and find them without a copy.
//! Older ones come from the disk, on a thread of their own.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::base::OptionalSend;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::codec::{self, Ballot, Id};
use crate::inner::Inner;
use crate::log::{Log, LogEntry, Recovered};
use crate::raft::{Batch, EntryOf, LogId, Types, VoteOf};
use crate::{Environment, Fault, standing};

/// The most bytes of entries in one message to a peer.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The log as openraft sees it. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: Log,
    environment: Environment,
    marks: Arc<Mutex<Marks>>,
    tail: Arc<Mutex<Tail>>,
    /// Whose log it is, once it runs.
    node: Weak<Inner>,
}

/// Bytes of the newest entries that are kept in memory: what replication to a peer in good health
/// has not acknowledged yet, many times over.
const TAIL_BYTES: usize = 8 << 20;

/// What an entry counts for in memory besides its batch.
const ENTRY_BYTES: usize = 128;

/// The newest entries, without a gap.
#[derive(Default)]
struct Tail {
    entries: VecDeque<EntryOf>,
    bytes: usize,
}

fn bytes_of(entry: &EntryOf) -> usize {
    ENTRY_BYTES
        + match &entry.payload {
            EntryPayload::Normal(Batch(bytes)) => bytes.len(),
            EntryPayload::Blank | EntryPayload::Membership(_) => 0,
        }
}

impl Tail {
    fn push(&mut self, entry: EntryOf) {
        self.bytes += bytes_of(&entry);
        self.entries.push_back(entry);
        while self.bytes > TAIL_BYTES && self.entries.len() > 1 {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.entries.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, bytes_of);
    }

    /// Forgets the entries from `index` on.
    fn truncate(&mut self, index: u64) {
        while self.entries.back().is_some_and(|newest| newest.index() >= index) {
            let newest = self.entries.pop_back();
            self.bytes -= newest.as_ref().map_or(0, bytes_of);
        }
    }

    /// Forgets the entries up to and with `index`.
    fn purge(&mut self, index: u64) {
        while self.entries.front().is_some_and(|oldest| oldest.index() <= index) {
            self.forget_oldest();
        }
    }

    /// The entries of the range up to about `bytes_max` bytes; `None` if it begins before them.
    fn read(&self, range: &Range<u64>, bytes_max: usize) -> Option<Vec<EntryOf>> {
        let first = self.entries.front()?.index();
        let skipped = usize::try_from(range.start.checked_sub(first)?).ok()?;
        let mut bytes = 0;
        let fits = |entry: &&EntryOf| {
            let is_wanted = entry.index() < range.end && bytes < bytes_max;
            bytes += bytes_of(entry);
            is_wanted
        };
        Some(self.entries.iter().skip(skipped).take_while(fits).cloned().collect())
    }
}

/// What openraft asks for again and again, at hand.
#[derive(Clone, Copy, Default)]
struct Marks {
    vote: Option<VoteOf>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
}

impl LogStore {
    /// The store over a log that was just opened.
    ///
    /// # Errors
    ///
    /// [`Fault::Corrupted`] if the marks or the newest entry aren't what this program writes.
    pub(crate) fn new(
        log: Log,
        recovered: &Recovered,
        environment: &Environment,
    ) -> Result<Self, Fault> {
        let mark = |bytes: &Bytes| codec::decode::<Id>(bytes).map(LogId::from);
        let vote = read_mark("vote", recovered.vote.as_ref(), |bytes| {
            codec::decode::<Ballot>(bytes).map(VoteOf::from)
        })?;
        // A leader that starts again must be elected anew: with its old term it would serve reads
        // before it knows that the last entries of its earlier life are committed. The vote as
        // such stays: nobody else is voted for in that term.
        let vote = vote.map(|vote| VoteOf { committed: false, ..vote });
        let committed = read_mark("commit mark", recovered.committed.as_ref(), mark)?;
        let purged = recovered.purged.as_ref().map(|(_, bytes)| bytes);
        let purged = read_mark("purge mark", purged, mark)?;
        let newest = match log.state().last() {
            None => None,
            Some(last) => {
                let entries = log.read(last..last + 1, 1).map_err(|error| unreadable(&error))?;
                let body = entries.first().map(|entry| &entry.body);
                read_mark("newest entry", body, |bytes| {
                    codec::decode_entry(bytes).map(|entry| entry.log_id())
                })?
            }
        };
        let marks = Marks { vote, committed, purged, last: newest.or(purged) };
        let environment = environment.clone();
        let (marks, node) = (Arc::new(Mutex::new(marks)), Weak::new());
        Ok(Self { log, environment, marks, tail: Arc::default(), node })
    }

    /// From now on the node is told how long votes take to write.
    pub(crate) fn belong_to(&mut self, node: &Arc<Inner>) {
        self.node = Arc::downgrade(node);
    }

    /// Whether nothing was ever written here.
    pub(crate) fn is_fresh(&self) -> bool {
        let marks = self.marks.lock();
        marks.vote.is_none() && marks.last.is_none()
    }

    async fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<EntryOf>> {
        if let Some(entries) = self.tail.lock().read(&range, bytes_max) {
            return Ok(entries);
        }
        let log = self.log.clone();
        self.environment.run(move || read_from(&log, range, bytes_max)).await
    }
}

fn read_from(log: &Log, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<EntryOf>> {
    let decode = |entry: LogEntry| {
        codec::decode_entry(&entry.body).ok_or_else(|| {
            let what = format!("entry {} of the log is in no known form", entry.index);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    };
    log.read(range, bytes_max)?.into_iter().map(decode).collect()
}

fn read_mark<T>(
    what: &str,
    bytes: Option<&Bytes>,
    read: impl FnOnce(&Bytes) -> Option<T>,
) -> Result<Option<T>, Fault> {
    let Some(bytes) = bytes else { return Ok(None) };
    let detail = || format!("its {what} is in no known form; was it written by a newer version?");
    match read(bytes) {
        Some(mark) => Ok(Some(mark)),
        None => Err(Fault::Corrupted { what: "the log".to_owned(), detail: detail() }),
    }
}

fn unreadable(error: &io::Error) -> Fault {
    Fault::Corrupted { what: "the log".to_owned(), detail: error.to_string() }
}

fn as_io(fault: &Fault) -> io::Error {
    io::Error::other(fault.to_string())
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<EntryOf>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start..end, usize::MAX).await
    }

    async fn read_vote(&mut self) -> Result<Option<VoteOf>, io::Error> {
        Ok(self.marks.lock().vote)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<EntryOf>, io::Error> {
        self.read(start..end, MESSAGE_BYTES_MAX).await
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let marks = self.marks.lock();
        Ok(LogState { last_purged_log_id: marks.purged, last_log_id: marks.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf) -> Result<(), io::Error> {
        self.marks.lock().vote = Some(*vote);
        let bytes = codec::encode(&Ballot::from(*vote)).into();
        let start = self.environment.clock.monotonic();
        durably(|done| self.log.save_vote(bytes, done)).await?;
        let took = self.environment.clock.monotonic().since(start);
        if let Some(node) = self.node.upgrade() {
            standing::note_vote(&node, took);
        }
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(id) = committed {
            self.marks.lock().committed = committed;
            self.log.note_committed(id.index, codec::encode(&Id::from(id)).into());
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.marks.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = EntryOf> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut last = None;
        let mut tail = self.tail.lock();
        let entries: Vec<_> = entries
            .into_iter()
            .map(|entry| {
                last = Some(entry.log_id());
                let index = entry.index();
                let body = codec::encode_entry(&entry);
                tail.push(entry);
                LogEntry { index, body }
            })
            .collect();
        drop(tail);
        if let Some(last) = last {
            self.marks.lock().last = Some(last);
        }
        self.log.append(entries, move |result| {
            done.io_completed(result.map_err(|fault| as_io(&fault)));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        if last.is_some_and(|last| last.index + 1 >= self.log.state().next) {
            // There is nothing behind it.
            return Ok(());
        }
        {
            let mut marks = self.marks.lock();
            marks.last = last.or(marks.purged);
        }
        self.tail.lock().truncate(last.map_or(0, |last| last.index + 1));
        durably(|done| self.log.truncate_after(last.map(|id| id.index), done)).await
    }

    async fn purge(&mut self, up_to: LogId) -> Result<(), io::Error> {
        {
            let mut marks = self.marks.lock();
            marks.purged = Some(up_to);
            marks.last = marks.last.max(Some(up_to));
        }
        self.tail.lock().purge(up_to.index);
        let marker = codec::encode(&Id::from(up_to)).into();
        durably(|done| self.log.purge(up_to.index, marker, done)).await
    }
}

/// Starts a change of the log, and waits until it is on the disk.
async fn durably(
    start: impl FnOnce(Box<dyn FnOnce(Result<(), Fault>) + Send>),
) -> Result<(), io::Error> {
    let (sender, receiver) = oneshot::channel();
    start(Box::new(move |result| drop(sender.send(result))));
    let result = receiver.await.map_err(|_| io::Error::other("the log has been closed"))?;
    result.map_err(|fault| as_io(&fault))
}

#[cfg(test)]
mod tests {
    use openraft::StorageError;
    use openraft::testing::log::{StoreBuilder, Suite};
    use tempfile::TempDir;

    use super::*;
    use crate::applier::Applier;
    use crate::{Environment, NodeConfig, start};

    struct OnDisk;

    impl StoreBuilder<Types, LogStore, Applier, TempDir> for OnDisk {
        async fn build(&self) -> Result<(TempDir, LogStore, Applier), StorageError<Types>> {
            let directory = tempfile::tempdir().unwrap();
            let config = NodeConfig::new(1, directory.path().to_owned());
            let (inner, store) = start::open_for_test(config, Environment::system());
            Ok((directory, store, Applier::new(inner)))
        }
    }

    #[tokio::test]
    async fn openrafts_own_suite_passes() {
        Suite::test_all(OnDisk).await.unwrap();
    }
}
