//! What the log does while nothing goes wrong.

use std::sync::Barrier;
use std::sync::atomic::AtomicU64;

use super::*;

#[test]
fn a_new_log_is_empty_and_takes_any_first_index() {
    let disk = TestDisk::default();
    let (log, recovered) = open(&disk);
    assert_eq!(recovered, Recovered::default());
    assert_eq!((log.state().first, log.state().last()), (0, None));
    assert_eq!(log.read(0..10, 100).unwrap(), []);
    append(&log, entries(7..9, 10, "a")).unwrap();
    log.close_now();
    assert_eq!(contents(&disk).unwrap().first, 7);
}

#[test]
fn what_was_called_back_is_there_at_the_next_start() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..20, 300, "a")).unwrap();
    wait(|done| log.truncate_after(Some(9), done)).unwrap();
    append(&log, entries(10..15, 5, "b")).unwrap();
    wait(|done| log.save_vote(Bytes::from_static(b"first"), done)).unwrap();
    wait(|done| log.save_vote(Bytes::from_static(b"second"), done)).unwrap();
    log.note_committed(11, Bytes::from_static(b"eleven"));
    wait(|done| log.purge(3, Bytes::from_static(b"three"), done)).unwrap();
    log.close_now();

    let (log, recovered) = open(&disk);
    assert_eq!(recovered.vote.unwrap(), "second");
    assert_eq!(recovered.committed.unwrap(), "eleven");
    assert_eq!(recovered.purged.unwrap(), (3, Bytes::from_static(b"three")));
    assert_eq!((log.state().first, log.state().last()), (4, Some(14)));
    let mut expected = entries(4..10, 300, "a");
    expected.extend(entries(10..15, 5, "b"));
    assert_eq!(log.read(0..u64::MAX, usize::MAX).unwrap(), expected);
    log.close_now();
}

#[test]
fn reads_see_changes_before_they_are_durable() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..10, 100, "a")).unwrap();
    disk.stall();
    log.append(entries(10..20, 100, "a"), |_| {});
    disk.wait_for_stalled();
    log.truncate_after(Some(4), |_| {});
    log.append(entries(5..8, 900, "b"), |_| {});
    log.purge(1, Bytes::new(), |_| {});

    let mut expected = entries(2..5, 100, "a");
    expected.extend(entries(5..8, 900, "b"));
    assert_eq!(log.read(0..100, usize::MAX).unwrap(), expected);
    disk.release();
    log.close_now();
    assert_eq!(log.read(0..100, usize::MAX).unwrap(), expected);
}

#[test]
fn a_read_is_bounded_by_bytes_but_never_empty() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..100, 100, "a")).unwrap();
    for start in [0, 50, 99] {
        let read = log.read(start..100, 1).unwrap();
        assert_eq!(read, entries(start..start + 1, 100, "a"));
    }
    for bytes_max in [200, 450, 1_000, 5_000] {
        let read = log.read(10..100, bytes_max).unwrap();
        // An entry from the disk counts with its header and padding.
        assert!((bytes_max / 144..=bytes_max / 100).contains(&read.len()), "{}", read.len());
        assert_eq!(read, entries(10..10 + read.len() as u64, 100, "a"));
    }
    assert_eq!(log.read(100..200, 1).unwrap(), []);
    log.close_now();
}

#[test]
fn a_purge_beyond_the_newest_entry_moves_the_log_there() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..5, 1_500, "a")).unwrap();
    // A snapshot of 100 is installed: the commit is known before the log has got there.
    log.note_committed(100, Bytes::from_static(b"hundred"));
    wait(|done| log.save_vote(Bytes::from_static(b"v"), done)).unwrap();
    log.close_now();
    assert_eq!(contents(&disk).unwrap().next(), 5);

    let (log, recovered) = open(&disk);
    assert_eq!(recovered.committed, None);
    log.note_committed(100, Bytes::from_static(b"hundred"));
    wait(|done| log.purge(100, Bytes::from_static(b"p"), done)).unwrap();
    assert_eq!((log.state().first, log.state().last()), (101, None));
    append(&log, entries(101..103, 20, "b")).unwrap();
    assert_eq!(log.read(0..200, 1_000).unwrap(), entries(101..103, 20, "b"));
    log.close_now();
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.committed.unwrap(), "hundred");
    assert_eq!(log.read(0..200, 1_000).unwrap(), entries(101..103, 20, "b"));
    log.close_now();
}

#[test]
fn segments_are_used_again_and_keep_what_must_outlive_them() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    wait(|done| log.save_vote(Bytes::from_static(b"early"), done)).unwrap();
    for index in 0..400 {
        append(&log, vec![entry(index, 200, "a")]).unwrap();
        log.note_committed(index, Bytes::from(index.to_string()));
        if index >= 20 && index % 10 == 0 {
            wait(|done| log.purge(index - 20, Bytes::from_static(b"p"), done)).unwrap();
        }
    }
    log.close_now();
    // The two or three in use, one made ahead, two spares.
    assert!(disk.names().len() <= 6, "{:?}", disk.names());
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.vote.unwrap(), "early");
    assert_eq!(log.read(0..u64::MAX, usize::MAX).unwrap(), entries(371..400, 200, "a"));
    log.close_now();
}

#[test]
fn an_entry_larger_than_a_segment_gets_one_of_its_own() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    let large = 5 * SEGMENT_BYTES_MIN as usize;
    let mut expected = entries(0..3, 100, "a");
    expected.push(entry(3, large, "a"));
    expected.extend(entries(4..6, 100, "a"));
    append(&log, expected.clone()).unwrap();
    assert_eq!(log.read(0..10, usize::MAX).unwrap(), expected);
    log.close_now();
    let (log, _) = open(&disk);
    assert_eq!(log.read(0..10, usize::MAX).unwrap(), expected);
    log.close_now();
}

#[test]
fn an_entry_out_of_order_is_a_fault() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..3, 10, "a")).unwrap();
    let fault = append(&log, entries(4..5, 10, "a")).unwrap_err();
    assert!(fault.to_string().contains("entry 4 follows where 3 should"), "{fault}");
    log.close_now();
    assert_eq!(contents(&disk).unwrap().next(), 3);
}

#[test]
fn what_waits_during_one_sync_shares_the_next() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..1, 10, "a")).unwrap();
    let before = log.stats().syncs;
    disk.stall();
    log.append(entries(1..2, 10, "a"), |_| {});
    disk.wait_for_stalled();
    assert!(log.stats().sync_age.is_some());
    let (sender, receiver) = mpsc::channel();
    for index in 2..30 {
        let sender = sender.clone();
        log.append(entries(index..index + 1, 10, "a"), move |_| sender.send(index).unwrap());
    }
    disk.release();
    assert_eq!(receiver.iter().take(28).collect::<Vec<_>>(), (2..30).collect::<Vec<_>>());
    let stats = log.stats();
    assert_eq!((stats.syncs, stats.sync_age), (before + 2, None));
    assert!(stats.sync_time > Duration::ZERO);
    log.close_now();
}

#[test]
fn many_threads_append_and_read_and_each_hears_in_the_order_of_the_log() {
    const THREADS: u64 = 8;
    const EACH: u64 = 200;
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    let (sender, receiver) = mpsc::channel();
    let next = Mutex::new(0);
    let start = Barrier::new(THREADS as usize);
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..EACH {
                    let sender = sender.clone();
                    let mut next = next.lock();
                    let index = *next;
                    *next += 1;
                    log.append(vec![entry(index, 60, "a")], move |outcome| {
                        outcome.unwrap();
                        sender.send(index).unwrap();
                    });
                    drop(next);
                    let back = index.saturating_sub(150);
                    let found = log.read(back..index + 1, usize::MAX).unwrap();
                    assert_eq!(found, entries(back..index + 1, 60, "a"));
                    read.fetch_add(found.len() as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let heard: Vec<_> = receiver.iter().take((THREADS * EACH) as usize).collect();
    assert_eq!(heard, (0..THREADS * EACH).collect::<Vec<_>>());
    assert!(read.into_inner() > 0);
    log.close_now();
}

#[test]
fn an_old_entry_is_read_while_its_segment_is_given_up() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..60, 200, "a")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 60..600 {
                log.append(vec![entry(index, 200, "a")], |outcome| outcome.unwrap());
                log.purge(index - 40, Bytes::new(), |outcome| outcome.unwrap());
            }
        });
        let mut newest = 0;
        while newest < 599 {
            let found = log.read(0..u64::MAX, usize::MAX).unwrap();
            let (first, last) = (found[0].index, found[found.len() - 1].index);
            assert_eq!(found, entries(first..last + 1, 200, "a"));
            newest = last;
        }
    });
    log.close_now();
}

#[test]
fn a_closed_log_refuses_and_still_reads() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..3, 10, "a")).unwrap();
    log.close_now();
    log.close_now();
    assert!(append(&log, entries(3..4, 10, "a")).is_err());
    assert_eq!(log.read(0..9, 1_000).unwrap(), entries(0..3, 10, "a"));
}
