//! Writes and syncs that fail, syncs that don't return, and disks that are full.

use std::io::Write;
use std::process::Command;

use rustix::io::Errno;

use super::super::testing::{Failure, Fate};
use super::*;

#[test]
fn the_first_failed_write_or_sync_is_final() {
    for failure in [Failure::Write(1), Failure::Write(3), Failure::Sync(1), Failure::Sync(4)] {
        for error in [Errno::IO, Errno::NOSPC] {
            let disk = TestDisk::default();
            let (log, _) = open(&disk);
            append(&log, entries(0..5, 100, "a")).unwrap();
            disk.fail(failure, error);
            let mut called_back = 5;
            let fault = loop {
                match append(&log, vec![entry(called_back, 10, "a")]) {
                    Ok(()) => called_back += 1,
                    Err(fault) => break fault,
                }
            };
            assert!(matches!(&fault, Fault::Disk(_)), "{fault}");
            let operations = disk.operations();
            for index in 0..3 {
                let entry = vec![entry(called_back + 1 + index, 10, "a")];
                assert_eq!(append(&log, entry).unwrap_err().to_string(), fault.to_string());
            }
            assert!(wait(|done| log.save_vote(Bytes::new(), done)).is_err());
            assert_eq!(log.stats().fault.unwrap().to_string(), fault.to_string());
            assert_eq!(disk.operations(), operations, "nothing is tried again");
            assert_eq!(log.read(0..3, 1_000).unwrap(), entries(0..3, 100, "a"));
            log.close_now();

            let disk = disk.after_power_cut(disk.operations(), &mut || Fate::Lost);
            let found = contents(&disk).unwrap();
            assert_eq!(found.next(), called_back, "exactly what was called back");
        }
    }
}

#[test]
fn everything_that_waits_behind_a_failure_hears_of_it_in_order() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    disk.stall();
    let (sender, receiver) = mpsc::channel();
    for index in 0..20 {
        let sender = sender.clone();
        log.append(vec![entry(index, 10, "a")], move |outcome| {
            sender.send((index, outcome.is_ok())).unwrap();
        });
        if index == 0 {
            disk.wait_for_stalled();
            disk.fail(Failure::Sync(2), Errno::IO);
        }
    }
    disk.release();
    let heard: Vec<_> = receiver.iter().take(20).collect();
    assert_eq!(heard, (0..20).map(|index| (index, index == 0)).collect::<Vec<_>>());
    log.close_now();
}

/// After a failed fsync the kernel shows the data and counts it as clean: a process that starts
/// again reads what isn't on the disk.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_made_durable_before_it_is_believed() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    append(&log, entries(0..2, 100, "a")).unwrap();
    disk.fail(Failure::Sync(1), Errno::IO);
    append(&log, entries(2..4, 700, "a")).unwrap_err();
    log.close_now();

    let seen = contents(&disk).unwrap();
    assert_eq!(seen.next(), 4, "the cache has it");
    let disk = disk.after_power_cut(disk.operations(), &mut || Fate::Lost);
    assert_eq!(contents(&disk).unwrap(), seen);
}

#[test]
fn a_sync_that_does_not_return_shows_its_age() {
    let disk = TestDisk::default();
    let (log, _) = open(&disk);
    disk.stall();
    let (sender, receiver) = mpsc::channel();
    log.append(entries(0..1, 10, "a"), move |outcome| sender.send(outcome).unwrap());
    disk.wait_for_stalled();
    let first = log.stats().sync_age.unwrap();
    let mut later = first;
    while later <= first {
        later = log.stats().sync_age.unwrap();
    }
    assert!(receiver.try_recv().is_err(), "it isn't durable");
    disk.release();
    receiver.recv().unwrap().unwrap();
    log.close_now();
}

#[test]
fn a_full_disk_is_a_fault_and_nothing_is_lost() {
    let disk = TestDisk::default();
    disk.set_capacity(5 * SEGMENT_BYTES_MIN);
    let (log, _) = open(&disk);
    let fill = |log: &Log| {
        let mut called_back = log.state().next;
        loop {
            match append(log, vec![entry(called_back, 333, "a")]) {
                Ok(()) => called_back += 1,
                Err(fault) => return (called_back, fault),
            }
        }
    };
    let (called_back, fault) = fill(&log);
    assert!(fault.to_string().contains("No space left"), "{fault}");
    log.close_now();
    assert_eq!(contents(&disk).unwrap().entries.len() as u64, called_back);
    assert_eq!(disk.environment().disk.free_bytes(directory()).unwrap(), 0);

    // With room again, the log goes on where it was.
    disk.set_capacity(7 * SEGMENT_BYTES_MIN);
    let (log, _) = open(&disk);
    assert!(fill(&log).0 > called_back);
    log.close_now();
}

#[test]
fn a_purge_makes_room_on_a_disk_that_was_too_full_for_another_segment() {
    let disk = TestDisk::default();
    disk.set_capacity(3 * SEGMENT_BYTES_MIN);
    let (log, _) = open(&disk);
    for index in 0..200 {
        append(&log, vec![entry(index, 333, "a")]).unwrap();
        wait(|done| log.purge(index.saturating_sub(3), Bytes::new(), done)).unwrap();
    }
    log.close_now();
}

/// A file system of 8 MiB in memory, mounted for as long as this lives.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    /// `None` where mounting isn't permitted.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let options = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"];
        let output = Command::new("mount").args(options).arg(directory.path()).output();
        output.is_ok_and(|output| output.status.success()).then(|| Self(directory))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Should it fail, the directory can't be removed either, and says so.
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn a_real_file_system_runs_full() {
    let Some(small) = SmallFileSystem::mount() else {
        let text = "mounting isn't permitted: only the disk in memory was filled, by another test";
        assert!(std::env::var_os("CI").is_none(), "{text}: CI runs as root");
        writeln!(io::stderr(), "{text}").unwrap();
        return;
    };
    let directory = small.0.path().join("log");
    let options = LogOptions { segment_bytes: 1 << 20, cache_bytes: 1 << 20 };
    let open = || Log::open(&directory, options, &Environment::system(), ());
    let (log, _) = open().unwrap();
    let mut called_back = 0;
    let fault = loop {
        match append(&log, vec![entry(called_back, 5_000, "a")]) {
            Ok(()) => called_back += 1,
            Err(fault) => break fault,
        }
    };
    assert!(fault.to_string().contains("No space left"), "{fault}");
    log.close_now();

    let (log, _) = open().unwrap();
    let found = log.read(0..u64::MAX, usize::MAX).unwrap();
    assert_eq!(found, entries(0..called_back, 5_000, "a"));
    assert!(called_back > 1_200, "{called_back} entries of 5 KB in 8 MiB");
    log.close_now();
}
