//! A directory of segments made of any bytes, opened as at a start.
//!
//! The bytes are a script: records with sound checksums and any figures, raw bytes, further
//! segments, and at its end damage to what it has written. A log that opens has been repaired, and
//! opens again the same.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::format::{self, Kind, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::recovery;
use crate::{Disk, DiskFile};

const DIRECTORY: &str = "/log";

/// Bytes that a script may write, so that a short one can't ask for much.
const SCRIPT_BYTES_MAX: usize = 64 << 10;

/// Follows the script, and opens what it has made, twice.
pub(crate) fn recover(script: &[u8]) {
    let disk = MemoryDisk::default();
    for (number, bytes) in Script::new(script).write() {
        let path = Path::new(DIRECTORY).join(format!("{number:020}.log"));
        disk.files.lock().insert(path, Arc::new(Mutex::new(bytes)));
    }
    let directory = Path::new(DIRECTORY);
    let Ok(first) = recovery::recover(directory, &disk) else { return };
    let second = recovery::recover(directory, &disk).expect("it was sound, and is repaired");
    assert_eq!(second.batch, first.batch);
    assert_eq!(second.offset, first.offset);
    let (first, second) = (first.persisted, second.persisted);
    assert_eq!((second.first(), second.next()), (first.first(), first.next()));
    for index in first.first()..first.next() {
        assert!(first.place(index).is_some() && first.place(index) == second.place(index));
    }
    assert_eq!((second.vote, second.committed), (first.vote, first.committed));
    assert_eq!(second.purged, first.purged);
}

/// The script, and what it has written.
struct Script<'a> {
    rest: &'a [u8],
    segments: Vec<(u64, Vec<u8>)>,
    written: usize,
    batch: u64,
    index: u64,
}

impl<'a> Script<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest, segments: Vec::new(), written: 0, batch: 1, index: 1 }
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn write(mut self) -> Vec<(u64, Vec<u8>)> {
        self.begin_segment(1);
        while let Some(step) = self.byte()
            && self.written < SCRIPT_BYTES_MAX
        {
            match step % 8 {
                0..=4 => self.record(step),
                5 => {
                    let count = usize::from(self.byte().unwrap_or(0));
                    let raw = self.take(count);
                    self.append(raw);
                }
                6 => {
                    let ahead = u64::from(self.byte().unwrap_or(0) % 4 == 3);
                    let number = self.segments.last().map_or(1, |(number, _)| number + 1);
                    self.begin_segment(number + ahead);
                }
                _ => self.damage(),
            }
        }
        self.segments
    }

    fn begin_segment(&mut self, number: u64) {
        // A segment may be short, and may say of itself what isn't so.
        let odd = self.byte().unwrap_or(0);
        let header = SegmentHeader {
            number: if odd == 255 { number + 1 } else { number },
            epoch: 5 + number % 2,
            bytes: if odd == 254 { 1 << 20 } else { SEGMENT_HEADER_BYTES },
        };
        self.segments.push((number, header.encode().to_vec()));
        self.written += SEGMENT_HEADER_BYTES as usize;
    }

    fn append(&mut self, bytes: &[u8]) {
        self.written += bytes.len();
        if let Some((_, segment)) = self.segments.last_mut() {
            segment.extend_from_slice(bytes);
        }
    }

    /// A record: mostly the next one that fits, else one with odd figures.
    fn record(&mut self, step: u8) {
        let kinds = [
            Kind::Entry,
            Kind::Entry,
            Kind::Vote,
            Kind::Committed,
            Kind::Truncate,
            Kind::Purge,
            Kind::Closed,
        ];
        let kind = kinds[usize::from(step / 8) % kinds.len()];
        let how = self.byte().unwrap_or(0);
        let number = self.segments.len() as u64;
        let epoch = if how & 1 == 0 { 5 + number % 2 } else { 5 };
        let index = match (how >> 1) & 7 {
            0..=4 => self.index,
            5 => self.index.wrapping_sub(u64::from(self.byte().unwrap_or(0) % 8)),
            6 => self.index.wrapping_add(u64::from(self.byte().unwrap_or(0) % 8)),
            _ => [0, u64::MAX, u64::MAX - 1, 1 << 63][usize::from(self.byte().unwrap_or(0)) % 4],
        };
        let count = usize::from(self.byte().unwrap_or(0)) % 64;
        let body = self.take(count);
        let mut record = Vec::new();
        format::encode(&mut record, (kind, index), (epoch, self.batch), body);
        if kind == Kind::Entry {
            self.index = index.wrapping_add(1);
        }
        if how & 0x10 == 0 {
            format::end_batch(&mut record);
            let skipped = u64::from(how & 0x60 == 0x60);
            self.batch = self.batch.wrapping_add(1 + skipped);
        }
        self.append(&record);
    }

    /// Changes a byte of the last segment, or cuts it short.
    fn damage(&mut self) {
        let (how, low, high) = (self.byte(), self.byte(), self.byte());
        let at = usize::from(u16::from_le_bytes([low.unwrap_or(0), high.unwrap_or(0)]));
        let Some((_, segment)) = self.segments.last_mut() else { return };
        let at = at % segment.len().max(1);
        match how {
            Some(0) => segment.truncate(at),
            Some(how) if at < segment.len() => segment[at] ^= how,
            _ => {}
        }
    }
}

/// A sound log of two segments, one with a torn end, and one with figures at the edge.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let entry = [0, 0, 5, b'e', b'n', b't', b'r', b'y'];
    let vote = [16, 0, 2, b'v', b'1'];
    let committed = [24, 0, 1, b'c'];
    let purge = [40, 0x0a, 1, 1, b'p'];
    let closed = [48, 0, 0];
    let begin = [6, 0, 0];
    let torn = [8, 0x10, 3, b'a', b'b', b'c'];
    let last = [0, 0x0e, 1, 0];
    let sound = [&[0][..], &vote, &entry, &entry, &committed, &begin, &entry, &purge, &closed];
    let cut = [&[0][..], &vote, &entry, &entry, &torn, &[7, 0, 0x90, 2]];
    let edge = [&[0][..], &last, &last, &entry];
    vec![sound.concat(), cut.concat(), edge.concat()]
}

/// Files in memory, under one name each.
#[derive(Default)]
struct MemoryDisk {
    files: Mutex<BTreeMap<PathBuf, Arc<Mutex<Vec<u8>>>>>,
}

struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, _: bool) -> io::Result<Box<dyn DiskFile>> {
        let file = self.files.lock().get(path).cloned();
        Ok(Box::new(MemoryFile(file.ok_or(io::ErrorKind::NotFound)?)))
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.0.lock();
        let rest = file.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut file = self.0.lock();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let longer = file.len().max(end);
        file.resize(longer, 0);
        file[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(len as usize, 0);
        Ok(())
    }
}
