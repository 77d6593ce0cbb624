//! The log against a disk that keeps only its promises.

mod basics;
mod crashes;
mod damage;
mod failures;

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use super::testing::TestDisk;
use super::*;

const SMALL: LogOptions = LogOptions { segment_bytes: SEGMENT_BYTES_MIN, cache_bytes: 512 };

/// Everything that a caller can see of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Contents {
    vote: Option<Bytes>,
    purged: Option<(u64, Bytes)>,
    /// The index of the first entry, or of the next.
    first: u64,
    entries: Vec<Bytes>,
}

impl Contents {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn of(log: &Log, recovered: &Recovered) -> Self {
        let LogState { first, next, .. } = log.state();
        let entries = log.read(0..u64::MAX, usize::MAX).expect("intact");
        assert_eq!(entries.len() as u64, next - first, "as many entries as indexes");
        for (entry, index) in entries.iter().zip(first..) {
            assert_eq!(entry.index, index);
        }
        Self {
            vote: recovered.vote.clone(),
            purged: recovered.purged.clone(),
            first,
            entries: entries.into_iter().map(|entry| entry.body).collect(),
        }
    }
}

fn directory() -> &'static Path {
    Path::new("/log")
}

fn segment(number: u64) -> PathBuf {
    directory().join(format!("{number:020}.log"))
}

fn open(disk: &TestDisk) -> (Log, Recovered) {
    Log::open(directory(), SMALL, &disk.environment(), ()).expect("a sound log")
}

/// Opens, reads everything, closes.
fn contents(disk: &TestDisk) -> Result<Contents, Fault> {
    let (log, recovered) = Log::open(directory(), SMALL, &disk.environment(), ())?;
    let contents = Contents::of(&log, &recovered);
    log.close_now();
    Ok(contents)
}

/// An entry whose body tells it from others of the same index.
fn entry(index: u64, bytes: usize, text: &str) -> LogEntry {
    let mut body = format!("{text} {index} ").into_bytes();
    body.resize(bytes.max(body.len()), b'.');
    LogEntry { index, body: body.into() }
}

fn entries(range: Range<u64>, bytes: usize, text: &str) -> Vec<LogEntry> {
    range.map(|index| entry(index, bytes, text)).collect()
}

/// Makes a change and waits for its callback.
fn wait(change: impl FnOnce(Done)) -> Result<(), Fault> {
    let (sender, receiver) = mpsc::channel();
    change(Box::new(move |outcome| {
        // The test may have given up waiting.
        let _ = sender.send(outcome);
    }));
    receiver.recv().expect("every change is answered")
}

fn append(log: &Log, entries: Vec<LogEntry>) -> Result<(), Fault> {
    wait(|done| log.append(entries, done))
}
