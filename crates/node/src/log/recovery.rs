//! Opening the log: what is on disk, where it ends, and whether that end is an honest one.
//!
//! Batches are read in order, each whole or not at all, until one is not there. What lies behind
//! that point decides what it was:
//!
//! - **Nothing intact, or records of that very batch**: the write that a crash interrupted. Nobody
//!   was told that it was durable. It is cut off.
//! - **An intact record of a later batch**: that one was written only after an fdatasync of the
//!   missing one had succeeded, so the disk has lost something that it had confirmed. A [`Fault`].
//!
//! The cut is made so that what was cut can't come back: every intact record header behind the end
//! is zeroed and synced before anything new is written there, and until then a further crash finds
//! the same torn batch again. The last whole batch is written once more and synced, because what
//! was read may be in the kernel's cache only: left by a process that died before its fdatasync
//! returned, or whose fdatasync failed.
//!
//! Not promised: that damage to the last batch is noticed, be it by a crash or years later. Nothing
//! behind it can tell. The recorded commit limits the harm: a log that ends before it is refused.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::format::{
    ALIGNMENT, Header, Kind, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use super::persisted::{Persisted, Place, Record};
use super::segment::{Name, Segment, disk_fault};
use crate::{Disk, DiskFile, Fault};

/// What is read at once, in bytes. With the longest record, all the memory that opening takes
/// besides the places of entries.
const WINDOW_BYTES: usize = 1 << 20;

/// How much is compared with zeros at once in the search behind the end, in bytes.
static BLANK: [u8; 4 << 10] = [0; 4 << 10];

/// What was found.
pub(super) struct Recovery {
    /// The outcome of all whole batches.
    pub persisted: Persisted,
    /// The segments up to the one that is written to next; empty for a new log.
    pub segments: VecDeque<Arc<Segment>>,
    /// Where the last of them goes on.
    pub offset: u64,
    /// The number of the next batch.
    pub batch: u64,
    /// A segment without records that was made ahead of need.
    pub ready: Option<Segment>,
    /// Files that hold nothing.
    pub spares: Vec<PathBuf>,
}

/// Reads the log in `directory`, checks it, and makes what was read and its end durable.
pub(super) fn recover(directory: &Path, disk: &dyn Disk) -> Result<Recovery, Fault> {
    let (mut segments, spares) = open_files(directory, disk)?;
    let mut chain = Chain::default();
    let mut ends = Vec::new();
    for segment in &segments {
        ends.push(chain.follow(segment)?);
    }
    // Writing goes on behind the last whole batch. A segment after that one was made ahead of need.
    let tail = ends.iter().rposition(|end| end.offset > SEGMENT_HEADER_BYTES).unwrap_or(0);
    if let Some(segment) = segments.get(tail) {
        chain.check(segment, ends[tail].offset, segments[0].header.number)?;
    }
    for (segment, end) in segments.iter().zip(&ends).skip(tail) {
        chain.make_durable(segment, end).map_err(|e| disk_fault(&segment.path, "writing", &e))?;
    }
    disk.sync_dir(directory).map_err(|error| disk_fault(directory, "syncing", &error))?;

    let mut unused = segments.split_off(segments.len().min(tail + 1)).into_iter();
    let ready = unused.next();
    if let Some(unexpected) = unused.next() {
        let detail = "it and the one before it hold nothing, and only one is made ahead of need";
        return Err(corrupted(&unexpected, SEGMENT_HEADER_BYTES, detail));
    }
    Ok(Recovery {
        persisted: chain.persisted,
        segments: segments.into_iter().map(Arc::new).collect(),
        offset: ends.get(tail).map_or(SEGMENT_HEADER_BYTES, |end| end.offset),
        batch: chain.batch + 1,
        ready,
        spares,
    })
}

/// Opens the segments, oldest first, and checks that none is missing between two others.
fn open_files(directory: &Path, disk: &dyn Disk) -> Result<(Vec<Segment>, Vec<PathBuf>), Fault> {
    let listed = disk.list(directory).map_err(|e| disk_fault(directory, "reading", &e))?;
    let mut spares = Vec::new();
    let mut numbered = Vec::new();
    for path in listed {
        match Name::of(&path) {
            Some(Name::Log(number)) => numbered.push((number, path)),
            Some(Name::Spare(_)) => spares.push(path),
            None => {}
        }
    }
    numbered.sort_unstable();
    let mut segments: Vec<Segment> = Vec::new();
    for (number, path) in numbered {
        let segment = open_segment(path, number, disk)?;
        if let Some(before) = segments.last()
            && before.header.number + 1 != number
        {
            let detail = format!("segment {number} is there, and the one before it is missing");
            return Err(corrupted(&segment, 0, &detail));
        }
        segments.push(segment);
    }
    Ok((segments, spares))
}

fn open_segment(path: PathBuf, number: u64, disk: &dyn Disk) -> Result<Segment, Fault> {
    let read = |error| disk_fault(&path, "reading", &error);
    let file = disk.open(&path, false).map_err(read)?;
    let mut sector = [0; SEGMENT_HEADER_BYTES as usize];
    let length = file.len().map_err(read)?;
    let fault = |detail| Fault::Corrupted { what: path.display().to_string(), detail };
    if length < SEGMENT_HEADER_BYTES {
        return Err(fault(format!("it has {length} bytes, fewer than its header")));
    }
    read_exact_at(&*file, &mut sector, 0).map_err(read)?;
    let header = SegmentHeader::decode(&sector).map_err(fault)?;
    if header.number != number {
        return Err(fault(format!("it says that it is segment {}", header.number)));
    }
    if length < header.bytes || length > u64::from(u32::MAX) {
        let made = header.bytes;
        return Err(fault(format!(
            "it has {length} bytes, and was made with {made} before its use"
        )));
    }
    Ok(Segment { header, path, file })
}

/// Where the batches of a segment end.
struct End {
    /// Behind the last whole one.
    offset: u64,
    /// Behind the last intact header after that; the same if there is none.
    leftovers: u64,
}

/// The batches read so far, and what lies behind them.
#[derive(Default)]
struct Chain {
    persisted: Persisted,
    /// The number of the last whole batch; 0 before the first.
    batch: u64,
    /// The segment of the last whole batch, and the stretch of it.
    last: Option<(u64, Range<u64>)>,
    /// The segment with leftovers of the batch after the last whole one.
    torn: Option<u64>,
    /// An intact record that shows that the batch after the last whole one was durable: what it
    /// is, and where.
    witness: Option<String>,
}

impl Chain {
    /// Plays the batches of a segment that continue the chain, and looks at what is behind them.
    fn follow(&mut self, segment: &Segment) -> Result<End, Fault> {
        let mut window = Window::new(segment)?;
        let mut offset = SEGMENT_HEADER_BYTES;
        // Once a batch is torn, nothing further can continue the chain.
        while self.torn.is_none()
            && let Some(batch) = self.read_batch(&mut window, offset)?
        {
            for record in batch.records {
                let at = u64::from(record.place.offset);
                self.persisted.play(record).map_err(|what| corrupted(segment, at, &what))?;
            }
            self.batch = batch.number;
            self.last = Some((segment.header.number, offset..batch.end));
            offset = batch.end;
        }
        let leftovers = self.look_behind(&mut window, offset)?;
        Ok(End { offset, leftovers })
    }

    /// The whole batch at `start`, if it is there and continues the chain.
    fn read_batch(&self, window: &mut Window<'_>, start: u64) -> Result<Option<Batch>, Fault> {
        let SegmentHeader { number: segment, epoch, .. } = window.segment.header;
        // Only a log whose first segments were given up may begin with any number.
        let begins = self.last.is_none() && segment > 1;
        let mut expected = (!begins).then_some(self.batch + 1);
        let mut records = Vec::new();
        let mut offset = start;
        loop {
            let Some(bytes) = window.at(offset, RECORD_HEADER_BYTES)? else { return Ok(None) };
            let Some(header) = Header::decode(bytes) else { return Ok(None) };
            let number = *expected.get_or_insert(header.batch);
            if header.epoch != epoch || header.batch != number {
                return Ok(None);
            }
            // Only a length whose checksum holds gets here, and the window checks it against the
            // file's length before it makes room.
            let Some(record) = window.at(offset, header.record_bytes())? else { return Ok(None) };
            let padded = &record[RECORD_HEADER_BYTES..];
            if !header.owns(padded) {
                return Ok(None);
            }
            let body = match header.kind {
                Kind::Entry => Bytes::new(),
                _ => Bytes::copy_from_slice(&padded[..header.body_bytes as usize]),
            };
            let bytes = header.record_bytes() as u32;
            let place = Place { segment, offset: offset as u32, bytes };
            records.push(Record { kind: header.kind, index: header.index, place, body });
            offset += u64::from(bytes);
            if header.ends_batch {
                return Ok(Some(Batch { number, records, end: offset }));
            }
        }
    }

    /// Looks for intact headers behind `end`, and returns where the last one ends.
    fn look_behind(&mut self, window: &mut Window<'_>, end: u64) -> Result<u64, Fault> {
        let segment = window.segment;
        let mut leftovers = end;
        let mut offset = end;
        while let Some(stretch) = window.up_to(offset, BLANK.len())? {
            let starts = (stretch.len() - RECORD_HEADER_BYTES) / ALIGNMENT + 1;
            // Most of what there is was made ahead and never written to.
            let is_blank = stretch == &BLANK[..stretch.len()];
            for start in (0..starts).filter(|_| !is_blank).map(|start| start * ALIGNMENT) {
                let header = &stretch[start..];
                if Header::may_begin(header, segment.header.epoch)
                    && let Some(header) = Header::decode(header)
                {
                    let at = offset + start as u64;
                    leftovers = at + RECORD_HEADER_BYTES as u64;
                    self.found_behind(segment, at, header.batch);
                }
            }
            offset += (starts * ALIGNMENT) as u64;
        }
        Ok(leftovers)
    }

    /// Judges an intact header behind the last whole batch: it belongs to the batch that a crash
    /// interrupted, or it shows that there is more to it.
    fn found_behind(&mut self, segment: &Segment, offset: u64, batch: u64) {
        let number = segment.header.number;
        let is_torn = batch == self.batch + 1 && *self.torn.get_or_insert(number) == number;
        if !is_torn && self.witness.is_none() {
            let path = segment.path.display();
            self.witness = Some(format!("a record of batch {batch} at offset {offset} of {path}"));
        }
    }

    /// Checks that the end is an honest one. `segment` is where the last whole batch is, which ends
    /// at `offset`; `first` is the number of the first segment.
    fn check(&self, segment: &Segment, offset: u64, first: u64) -> Result<(), Fault> {
        let Self { persisted, batch, .. } = self;
        let next = persisted.next();
        let missing = batch + 1;
        if let Some(witness) = &self.witness {
            let detail = format!(
                "batch {missing} (index {next} and after) is damaged or missing, but {witness} was \
                 written after it had been made durable"
            );
            return Err(corrupted(segment, offset, &detail));
        }
        if first > 1 && self.last.is_none() {
            let detail = "the log goes on here from segments given up, but the first batch is bad";
            return Err(corrupted(segment, offset, detail));
        }
        let (wanted, found) = (persisted.lowest(), persisted.first());
        if first > 1 && found > wanted {
            let detail = format!("entries from {wanted} to before {found} are missing");
            return Err(corrupted(segment, offset, &detail));
        }
        match &persisted.committed {
            Some((committed, _)) if *committed >= next => {
                let detail = format!(
                    "the log ends before index {next}, but entries up to {committed} were committed"
                );
                Err(corrupted(segment, offset, &detail))
            }
            _ => Ok(()),
        }
    }

    /// Writes the last whole batch once more, zeroes the leftovers behind it, and syncs.
    fn make_durable(&self, segment: &Segment, end: &End) -> io::Result<()> {
        let file = &*segment.file;
        if let Some((number, stretch)) = &self.last
            && *number == segment.header.number
        {
            let mut batch = vec![0; (stretch.end - stretch.start) as usize];
            read_exact_at(file, &mut batch, stretch.start)?;
            file.write_all_at(&batch, stretch.start)?;
        }
        let zeros = vec![0; WINDOW_BYTES.min((end.leftovers - end.offset) as usize)];
        let mut offset = end.offset;
        while offset < end.leftovers {
            let bytes = zeros.len().min((end.leftovers - offset) as usize);
            file.write_all_at(&zeros[..bytes], offset)?;
            offset += bytes as u64;
        }
        file.sync_data()
    }
}

/// A batch as it was read.
struct Batch {
    number: u64,
    records: Vec<Record>,
    /// Where it ends.
    end: u64,
}

/// A stretch of a segment in memory, moved along as it is read.
struct Window<'a> {
    segment: &'a Segment,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(segment: &'a Segment) -> Result<Self, Fault> {
        let file_bytes =
            segment.file.len().map_err(|error| disk_fault(&segment.path, "reading", &error))?;
        Ok(Self { segment, file_bytes, start: 0, bytes: Vec::new() })
    }

    /// `count` bytes at `offset`; `None` if the file doesn't have as many.
    fn at(&mut self, offset: u64, count: usize) -> Result<Option<&[u8]>, Fault> {
        let left = self.file_bytes.saturating_sub(offset);
        if (count as u64) > left {
            return Ok(None);
        }
        let is_loaded =
            offset >= self.start && offset + count as u64 <= self.start + self.bytes.len() as u64;
        if !is_loaded {
            let bytes = left.min(count.max(WINDOW_BYTES) as u64) as usize;
            self.start = offset;
            self.bytes.resize(bytes, 0);
            read_exact_at(&*self.segment.file, &mut self.bytes, offset)
                .map_err(|error| disk_fault(&self.segment.path, "reading", &error))?;
        }
        let from = (offset - self.start) as usize;
        Ok(Some(&self.bytes[from..from + count]))
    }

    /// Up to `count` bytes at `offset`; `None` if what is left is shorter than a header.
    fn up_to(&mut self, offset: u64, count: usize) -> Result<Option<&[u8]>, Fault> {
        let left = self.file_bytes.saturating_sub(offset).min(count as u64);
        self.at(offset, RECORD_HEADER_BYTES.max(left as usize))
    }
}

fn read_exact_at(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    if file.read_at(buffer, offset)? == buffer.len() {
        return Ok(());
    }
    let end = offset + buffer.len() as u64;
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("it ends before byte {end}")))
}

fn corrupted(segment: &Segment, offset: u64, detail: &str) -> Fault {
    let what = segment.path.display().to_string();
    Fault::Corrupted { what, detail: format!("at offset {offset}: {detail}") }
}
