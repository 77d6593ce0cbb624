//! The log's own task, on a thread of its own: drains what waits, writes it once, syncs it once,
//! and reports in order.
//!
//! Whatever has come in while the last fdatasync ran is the next batch; no timer decides. A batch
//! is one stretch of one segment, and its number stands in each of its records. The first write or
//! sync that fails is final: what the kernel then holds is unknown, so nothing is tried again, and
//! everything from there on is answered with the fault.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::format::{self, BODY_BYTES_MAX, Kind, SEGMENT_HEADER_BYTES};
use super::persisted::{Place, Record};
use super::segment::{MakerLine, Segment, disk_fault};
use super::shared::{Change, Done, Shared, Taken, Work};
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::{DiskStep, Environment, Fault};

/// Bytes after which a batch is written although more waits: bounds the buffer, and how long the
/// first in it waits for the last.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// What the log's thread owns.
pub(super) struct Writer {
    shared: Arc<Shared>,
    environment: Environment,
    maker: MakerLine,
    segment: Arc<Segment>,
    /// Bytes at the segment's beginning that repeat what stood before it.
    repeated_bytes: u64,
    /// Where the next batch begins in the segment's file.
    offset: u64,
    /// The number of the next batch.
    batch: u64,
    /// The next batch: its bytes, its records, and who waits for it.
    buffer: Vec<u8>,
    records: Vec<Record>,
    waiting: Vec<(u64, Done)>,
}

/// Where writing goes on.
pub(super) struct Tail {
    pub segment: Arc<Segment>,
    pub offset: u64,
    pub batch: u64,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        environment: Environment,
        maker: MakerLine,
        tail: Tail,
    ) -> Self {
        let Tail { segment, offset, batch } = tail;
        Self {
            shared,
            environment,
            maker,
            segment,
            repeated_bytes: 0,
            offset,
            batch,
            buffer: Vec::new(),
            records: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Works until the log is closed and nothing is left.
    pub(super) async fn run(mut self) {
        let mut work = VecDeque::new();
        while let Some(Taken { note, fault }) = self.shared.take_work(&mut work).await {
            let outcome = match fault {
                None => self.write_all(&mut work, note).await,
                Some(fault) => Err(fault),
            };
            if let Err(fault) = outcome {
                self.give_up(&mut work, fault);
            }
        }
        self.vouch().await;
        self.maker.close().await;
    }

    /// Writes all that waits, in as few batches as fit.
    async fn write_all(
        &mut self,
        work: &mut VecDeque<Work>,
        note: Option<(u64, Bytes)>,
    ) -> Result<(), Fault> {
        while let Some(Work { number, change, done }) = work.pop_front() {
            let outcome = self.encode(change).await;
            self.waiting.push((number, done));
            outcome?;
        }
        // Behind everything that was asked for before it: then the entries up to it are on disk
        // wherever the note is, and a log that lacks them has lost them.
        if let Some((index, body)) = note {
            self.put(Kind::Committed, index, &body).await?;
        }
        self.flush().await
    }

    async fn encode(&mut self, change: Change) -> Result<(), Fault> {
        match change {
            Change::Append(entries) => {
                for entry in entries {
                    self.put(Kind::Entry, entry.index, &entry.body).await?;
                }
                Ok(())
            }
            Change::Vote(body) => self.put(Kind::Vote, 0, &body).await,
            Change::Truncate(from) => self.put(Kind::Truncate, from, &Bytes::new()).await,
            Change::Purge(up_to, marker) => self.put(Kind::Purge, up_to, &marker).await,
        }
    }

    /// Adds a record to the batch, after writing the batch if the record doesn't fit any more.
    async fn put(&mut self, kind: Kind, index: u64, body: &Bytes) -> Result<(), Fault> {
        if body.len() > BODY_BYTES_MAX {
            let bytes = body.len();
            return Err(Fault::Internal(format!(
                "a record of {bytes} bytes for the log, which takes {BODY_BYTES_MAX}"
            )));
        }
        let bytes = format::record_bytes(body.len());
        if self.buffer.len() + bytes > BATCH_BYTES_MAX {
            self.flush().await?;
        }
        if !self.fits(bytes) {
            self.flush().await?;
            self.go_to_next_segment().await?;
        }
        self.add(kind, index, body);
        Ok(())
    }

    /// Whether the segment takes one more record. It takes one of any size, and grows by it, if it
    /// holds nothing yet but what it repeats.
    fn fits(&self, bytes: usize) -> bool {
        let end = self.offset + self.buffer.len() as u64;
        end + bytes as u64 <= self.segment.header.bytes
            || end == SEGMENT_HEADER_BYTES + self.repeated_bytes
    }

    fn add(&mut self, kind: Kind, index: u64, body: &Bytes) {
        let start = self.buffer.len();
        let epoch = self.segment.header.epoch;
        format::encode(&mut self.buffer, (kind, index), (epoch, self.batch), body);
        let place = Place {
            segment: self.segment.header.number,
            // `Log::open` refuses segments that this couldn't address.
            offset: (self.offset + start as u64) as u32,
            bytes: (self.buffer.len() - start) as u32,
        };
        let body = if kind == Kind::Entry { Bytes::new() } else { body.clone() };
        self.records.push(Record { kind, index, place, body });
    }

    /// Writes the batch, makes it durable, and tells those who wait for it.
    async fn flush(&mut self) -> Result<(), Fault> {
        if let Some(last) = self.records.last() {
            let start = (u64::from(last.place.offset) - self.offset) as usize;
            format::end_batch(&mut self.buffer[start..]);
            self.sync().await?;
            self.publish()?;
        }
        for (_, done) in self.waiting.drain(..) {
            done(Ok(()));
        }
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), Fault> {
        let Segment { file, path, .. } = &*self.segment;
        self.shared.syncs.begin(self.environment.clock.monotonic());
        self.environment.pause(DiskStep::LogWrite).await;
        file.write_all_at(&self.buffer, self.offset)
            .map_err(|error| disk_fault(path, "a write to", &error))?;
        self.environment.pause(DiskStep::LogSync).await;
        #[cfg(feature = "mutations")]
        if mutated(Mutation::AcknowledgeBeforeSync) {
            return Ok(());
        }
        file.sync_data().map_err(|error| disk_fault(path, "an fdatasync of", &error))?;
        self.shared.syncs.end(self.environment.clock.monotonic(), true);
        Ok(())
    }

    /// Lets readers and the next start of the log know what is durable now, and lets go of what
    /// isn't needed any more.
    fn publish(&mut self) -> Result<(), Fault> {
        let bytes = self.buffer.len() as u64;
        let mut state = self.shared.lock();
        for record in self.records.drain(..) {
            state.persisted.play(record).map_err(|contradiction| {
                Fault::Internal(format!("the log wrote a contradiction: {contradiction}"))
            })?;
        }
        if let Some(&(number, _)) = self.waiting.last() {
            state.memory.written(number);
        }
        while let Some(segment) = state.unneeded() {
            self.maker.retire(segment);
        }
        drop(state);

        self.buffer.clear();
        self.offset += bytes;
        self.batch += 1;
        if self.offset > self.segment.header.bytes / 2 {
            self.maker.prepare(self.segment.header.number + 1);
        }
        Ok(())
    }

    /// Goes on in the next segment, which first repeats what must outlive the ones before it.
    async fn go_to_next_segment(&mut self) -> Result<(), Fault> {
        let number = self.segment.header.number + 1;
        self.shared.syncs.begin(self.environment.clock.monotonic());
        let segment =
            self.maker.take(number).await.map_err(|error| {
                disk_fault(&self.segment.path, "making the segment after", &error)
            })?;
        self.shared.syncs.end(self.environment.clock.monotonic(), false);
        self.segment = Arc::new(segment);
        self.offset = SEGMENT_HEADER_BYTES;

        let mut state = self.shared.lock();
        state.segments.push_back(Arc::clone(&self.segment));
        let vote = state.persisted.vote.clone();
        let committed = state.persisted.committed.clone();
        let purged = state.persisted.purged.clone();
        drop(state);
        if let Some(body) = vote {
            self.add(Kind::Vote, 0, &body);
        }
        if let Some((index, body)) = committed {
            self.add(Kind::Committed, index, &body);
        }
        if let Some((index, body)) = purged {
            self.add(Kind::Purge, index, &body);
        }
        self.repeated_bytes = self.buffer.len() as u64;
        Ok(())
    }

    /// Ends the log with a batch that says nothing: damage to the one before it can be told from a
    /// crash from now on.
    async fn vouch(&mut self) {
        let is_needed = {
            let state = self.shared.lock();
            state.fault.is_none() && !state.persisted.closed
        };
        if !is_needed {
            return;
        }
        let outcome = match self.put(Kind::Closed, 0, &Bytes::new()).await {
            Ok(()) => self.flush().await,
            refused => refused,
        };
        if let Err(fault) = outcome {
            self.shared.poison(fault);
        }
    }

    /// Answers everything with the fault, now and from now on.
    fn give_up(&mut self, work: &mut VecDeque<Work>, fault: Fault) {
        let fault = self.shared.poison(fault);
        self.shared.syncs.end(self.environment.clock.monotonic(), false);
        self.buffer.clear();
        self.records.clear();
        let left = work.drain(..).map(|work| work.done);
        for done in mem::take(&mut self.waiting).into_iter().map(|(_, done)| done).chain(left) {
            done(Err(fault.clone()));
        }
    }
}
