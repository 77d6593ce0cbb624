//! Every byte of a small log cut off, and every bit of it turned.
//!
//! What must hold: a batch that another one followed is never lost in silence, and no byte is
//! returned that wasn't written. The newest batch may go: it looks like one that a crash cut.

use super::super::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use super::*;

/// A log of one segment, with what it held after each batch, and where each batch ends in it.
struct Story {
    disk: TestDisk,
    chapters: Vec<(Contents, usize)>,
}

/// One batch a change, of every kind and several shapes; `is_committed` adds a note of the commit.
fn story(is_committed: bool) -> Story {
    let disk = TestDisk::default();
    let (log, mut recovered) = open(&disk);
    let mut chapters = vec![(Contents::default(), SEGMENT_HEADER_BYTES as usize)];
    for chapter in 0..7 {
        let before = disk.operations();
        let vote = Bytes::from(format!("vote {chapter}"));
        match chapter {
            0 => append(&log, entries(0..3, 20, "a")).unwrap(),
            1 | 5 => {
                wait(|done| log.save_vote(vote.clone(), done)).unwrap();
                recovered.vote = Some(vote);
            }
            2 => append(&log, entries(3..4, 81, "a")).unwrap(),
            3 => wait(|done| log.truncate_after(Some(2), done)).unwrap(),
            4 => {
                wait(|done| log.purge(0, vote.clone(), done)).unwrap();
                recovered.purged = Some((0, vote));
            }
            _ => {
                if is_committed {
                    log.note_committed(4, Bytes::from_static(b"four"));
                }
                append(&log, entries(3..5, 20, "b")).unwrap();
            }
        }
        let end = disk.writes_since(before).last().expect("a batch").end;
        chapters.push((Contents::of(&log, &recovered), end));
    }
    // As a crash leaves it: closing would add a batch that vouches for the last one.
    let crashed = disk.copy();
    log.close_now();
    Story { disk: crashed, chapters }
}

impl Story {
    fn len(&self) -> usize {
        self.chapters[self.chapters.len() - 1].1
    }

    /// What a copy of the log holds after a change to its file, if it opens.
    fn outcome(&self, change: impl FnOnce(&mut Vec<u8>)) -> Result<Contents, Fault> {
        let disk = self.disk.copy();
        disk.damage(&segment(1), change);
        let found = contents(&disk)?;
        // What opened once opens again, with nothing come back.
        assert_eq!(contents(&disk).expect("it opened before"), found);
        Ok(found)
    }

    /// What the log held after a number of batches.
    fn contents(&self, chapter: usize) -> &Contents {
        &self.chapters[chapter].0
    }
}

#[test]
fn every_bit_turned() {
    let story = story(false);
    let last = story.chapters.len() - 1;
    for byte in 0..story.len() + RECORD_HEADER_BYTES {
        for bit in 0..8 {
            let outcome = story.outcome(|bytes| bytes[byte] ^= 1 << bit);
            match outcome {
                Err(Fault::Corrupted { .. }) => assert!(byte < story.chapters[last - 1].1),
                Ok(found) if byte >= story.len() => assert_eq!(found, *story.contents(last)),
                Ok(found) => {
                    assert!(byte >= story.chapters[last - 1].1, "byte {byte}, bit {bit}");
                    assert_eq!(found, *story.contents(last - 1));
                }
                Err(other) => panic!("byte {byte}, bit {bit}: {other}"),
            }
        }
    }
}

#[test]
fn every_bit_turned_in_the_newest_batch_of_a_closed_log() {
    let story = story(false);
    let disk = story.disk.copy();
    let whole = contents(&disk).unwrap();
    for byte in story.chapters[story.chapters.len() - 2].1..story.len() {
        for bit in 0..8 {
            let damaged = disk.copy();
            damaged.damage(&segment(1), |bytes| bytes[byte] ^= 1 << bit);
            assert!(matches!(contents(&damaged), Err(Fault::Corrupted { .. })), "byte {byte}");
        }
    }
    assert_eq!(contents(&disk).unwrap(), whole);
}

#[test]
fn every_suffix_lost() {
    let story = story(false);
    for cut in SEGMENT_HEADER_BYTES as usize..=story.len() {
        let whole = story.chapters.iter().rposition(|(_, end)| *end <= cut).expect("the header");
        let outcome = story.outcome(|bytes| bytes[cut..].fill(0)).expect("a torn tail");
        let is_next = |(next, end): &(Contents, usize)| {
            // Zeros at its end, which are padding, may be cut without loss.
            outcome == *next && end - cut < 8
        };
        let expected = story.contents(whole);
        assert!(outcome == *expected || story.chapters.get(whole + 1).is_some_and(is_next));
    }
}

#[test]
fn a_file_shorter_than_it_was_made_is_refused() {
    let story = story(false);
    for len in 0..SEGMENT_BYTES_MIN as usize {
        let fault = story.outcome(|bytes| bytes.truncate(len)).expect_err("something is lost");
        assert!(matches!(fault, Fault::Corrupted { .. }), "{fault}");
    }
}

#[test]
fn a_cut_below_the_recorded_commit_is_refused() {
    let story = story(true);
    // The last batch has the two committed entries, the note of them behind, and nothing after it.
    let last = story.chapters.len() - 1;
    assert_eq!(story.outcome(|_| {}).unwrap(), *story.contents(last));

    let disk = story.disk.copy();
    let (log, _) = open(&disk);
    wait(|done| log.save_vote(Bytes::from_static(b"v"), done)).unwrap();
    log.truncate_after(Some(3), |_| {});
    log.close_now();
    let fault = contents(&disk).expect_err("entry 4 was committed");
    assert!(fault.to_string().contains("entries up to 4 were committed"), "{fault}");
}

#[test]
fn damage_says_where_it_is_and_what_shows_it() {
    let story = story(false);
    let (_, start) = story.chapters[2];
    let fault = story.outcome(|bytes| bytes[start + 50] ^= 1).expect_err("damage");
    let text = fault.to_string();
    let (file, offset) = (segment(1).display().to_string(), format!("at offset {start}"));
    for part in [&*file, &*offset, "batch 3 (index 3", "a record of batch 4"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
}

#[test]
fn a_length_that_lies_is_never_followed() {
    let story = story(false);
    let (_, start) = story.chapters[6];
    for length in [0, 1, 4_000, 1 << 20, 1 << 24, u32::MAX] {
        let forged = story.outcome(|bytes| {
            bytes[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
            let checksum = crc32c::crc32c(&bytes[start + 4..start + RECORD_HEADER_BYTES]);
            bytes[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        });
        assert_eq!(forged.expect("the newest batch may go"), *story.contents(6), "{length}");
    }
}

#[test]
fn a_bit_turned_in_any_older_segment_is_refused() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    for index in 0..30 {
        append(&log, vec![entry(index, 350, "a")]).unwrap();
        wait(|done| log.save_vote(Bytes::from(index.to_string()), done)).unwrap();
    }
    log.close_now();
    let whole = contents(&disk).unwrap();
    assert!(disk.names().contains(&segment(3)));
    for number in 1..3 {
        for byte in 0..SEGMENT_BYTES_MIN as usize {
            let damaged = disk.copy();
            damaged.damage(&segment(number), |bytes| bytes[byte] ^= 1 << (byte % 8));
            match contents(&damaged) {
                Err(Fault::Corrupted { .. }) => {}
                // The rest of a segment, too short for the next record, says nothing.
                Ok(found) => assert!(found == whole && byte > 3_000, "byte {byte} of {number}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_missing_segment_is_refused() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    for index in 0..60 {
        append(&log, vec![entry(index, 350, "a")]).unwrap();
    }
    wait(|done| log.purge(15, Bytes::new(), done)).unwrap();
    append(&log, entries(60..62, 10, "a")).unwrap();
    log.close_now();
    let segments = disk.names().into_iter().filter(|path| path.extension() == Some("log".as_ref()));
    let segments: Vec<_> = segments.collect();
    assert!(segments.len() >= 4 && !segments.contains(&segment(1)), "{segments:?}");
    let needed = &segments[..segments.len() - 2];
    for path in needed {
        let damaged = disk.copy();
        crate::Disk::remove(&damaged, path).unwrap();
        let fault = contents(&damaged).expect_err("entries are missing");
        assert!(fault.to_string().contains("missing"), "{fault}");
    }
}

#[test]
fn a_log_whose_beginning_was_given_up_is_never_empty() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..30, 350, "a")).unwrap();
    wait(|done| log.purge(29, Bytes::new(), done)).unwrap();
    log.close_now();
    let only = disk.names().into_iter().find(|path| path.extension() == Some("log".as_ref()));
    let only = only.expect("the newest segment");
    assert_ne!(only, segment(1));
    disk.damage(&only, |bytes| bytes[SEGMENT_HEADER_BYTES as usize..].fill(0));
    let fault = contents(&disk).expect_err("its first batch was durable");
    assert!(fault.to_string().contains("the first batch is bad"), "{fault}");
}

#[test]
fn another_format_version_is_named() {
    let story = story(false);
    let fault = story.outcome(|bytes| bytes[0] = 9).expect_err("from the future");
    assert!(fault.to_string().contains("version 9, and this program reads version 1"), "{fault}");
}
