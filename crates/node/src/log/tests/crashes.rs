//! Power cuts: at every operation, with any subset of what wasn't synced, one after another.

use proptest::prelude::*;

use super::super::testing::Fate;
use super::*;

/// A small generator for fates; the seed stands in every message.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    fn fate(&mut self) -> Fate {
        match self.next() % 5 {
            0 | 1 => Fate::Lost,
            2 | 3 => Fate::Kept,
            _ => Fate::Torn((self.next() % 512) as usize),
        }
    }
}

#[test]
fn any_subset_of_the_last_batch_may_be_missing() {
    for seed in 1..300 {
        let mut chance = Chance(seed);
        let disk = TestDisk::default();
        let (log, _) = open(&disk);
        append(&log, entries(0..3, 100, "a")).unwrap();
        let before = contents_of(&log);
        disk.stall();
        log.append(entries(3..9, 180, "lost"), |_| {});
        disk.wait_for_stalled();
        let all = contents_of(&log);
        let cut = disk.after_power_cut(disk.operations(), &mut || chance.fate());
        disk.release();
        log.close_now();

        let found = contents(&cut).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!(found == before || found == all, "seed {seed}: whole or not at all");
        come_back(&cut, &found, seed, &mut chance);
    }
}

/// Writes something else where the torn batch was, loses power again, and again.
fn come_back(disk: &TestDisk, found: &Contents, seed: u64, chance: &mut Chance) {
    let mut disk = disk.clone();
    let mut known = found.clone();
    for round in 0..4 {
        let (log, _) = open(&disk);
        disk.stall();
        let next = known.next();
        // Of the same shape as the lost one, so that their boundaries meet.
        log.append(entries(next..next + 1 + round % 2, 180, "new"), |_| {});
        disk.wait_for_stalled();
        let all = contents_of(&log);
        let cut = disk.after_power_cut(disk.operations(), &mut || chance.fate());
        disk.release();
        log.close_now();
        let found = contents(&cut).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!(found == known || found == all, "seed {seed}, round {round}: {found:?}");
        (disk, known) = (cut, found);
    }
}

fn contents_of(log: &Log) -> Contents {
    Contents::of(log, &Recovered::default())
}

/// A cut that is itself cut: whatever part of the zeroing survives, the same batch is gone.
#[test]
fn a_power_cut_during_the_cut_changes_nothing() {
    for seed in 1..100 {
        let mut chance = Chance(seed);
        let disk = TestDisk::default();
        let (log, _) = open(&disk);
        append(&log, entries(0..3, 100, "a")).unwrap();
        let before = contents_of(&log);
        disk.stall();
        log.append(entries(3..12, 180, "lost"), |_| {});
        disk.wait_for_stalled();
        // The first sector of the batch is missing, the others are there.
        let mut sectors = 0;
        let torn = disk.after_power_cut(disk.operations(), &mut || {
            sectors += 1;
            if sectors == 2 { Fate::Lost } else { Fate::Kept }
        });
        disk.release();
        log.close_now();

        assert_eq!(contents(&torn).unwrap(), before);
        for operations in 0..=torn.operations() {
            let again = torn.after_power_cut(operations, &mut || chance.fate());
            assert_eq!(contents(&again).unwrap(), before, "seed {seed}, operation {operations}");
        }
    }
}

/// One step of a caller.
#[derive(Clone, Debug)]
enum Step {
    Append {
        count: u8,
        bytes: u16,
    },
    Vote,
    /// Keeps this share of the entries, in 256ths.
    Truncate(u8),
    /// Gives up this share of the entries; 255 goes beyond them.
    Purge(u8),
    Commit(u8),
    /// Waits until everything so far was called back.
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6u8, prop_oneof![5 => 0..400u16, 1 => 0..6_000u16])
            .prop_map(|(count, bytes)| Step::Append { count, bytes }),
        2 => Just(Step::Vote),
        1 => any::<u8>().prop_map(Step::Truncate),
        2 => any::<u8>().prop_map(Step::Purge),
        1 => any::<u8>().prop_map(Step::Commit),
        2 => Just(Step::Wait),
    ]
}

/// What a log may be found to hold, from what was done to it.
struct Model {
    /// What it held after each step of each change: an append of three entries has three.
    history: Vec<Contents>,
    /// The highest index noted as committed; the model, like Raft, cuts off nothing below.
    committed: u64,
    /// Tells bodies of one index from each other.
    serial: u64,
}

/// So many 256ths of the entries.
fn share_of(contents: &Contents, share: u8) -> u64 {
    (contents.entries.len() as u64 * u64::from(share)) >> 8
}

/// How many steps of the history, and operations of the disk, there were when a change was called
/// back.
type Acknowledged = Arc<Mutex<Vec<(usize, usize)>>>;

impl Model {
    fn now(&self) -> Contents {
        self.history[self.history.len() - 1].clone()
    }

    fn push(&mut self, change: impl FnOnce(&mut Contents)) {
        let mut contents = self.now();
        change(&mut contents);
        self.history.push(contents);
    }

    fn perform(&mut self, step: &Step, log: &Log, disk: &TestDisk, heard: &Acknowledged) {
        let now = self.now();
        self.serial += 1;
        match *step {
            Step::Append { count, bytes } => {
                let text = format!("serial {}", self.serial);
                let new = entries(now.next()..now.next() + u64::from(count), bytes.into(), &text);
                for entry in &new {
                    self.push(|contents| contents.entries.push(entry.body.clone()));
                }
                log.append(new, self.done(disk, heard));
            }
            Step::Vote => {
                let vote = Bytes::from(format!("vote {}", self.serial));
                self.push(|contents| contents.vote = Some(vote.clone()));
                log.save_vote(vote, self.done(disk, heard));
            }
            Step::Truncate(share) => {
                let kept = now.first + share_of(&now, share);
                let from = kept.max(self.committed).min(now.next());
                if let Some(newest) = from.checked_sub(1) {
                    self.push(|contents| contents.entries.truncate((from - now.first) as usize));
                    log.truncate_after(Some(newest), self.done(disk, heard));
                }
            }
            Step::Purge(share) => {
                let beyond = if share == 255 { 7 } else { 0 };
                let count = share_of(&now, share) + beyond;
                if let Some(up_to) = (now.first + count).checked_sub(1) {
                    let marker = Bytes::from(format!("purge {}", self.serial));
                    self.push(|contents| {
                        contents.entries.drain(..(count as usize).min(now.entries.len()));
                        contents.first = up_to + 1;
                        contents.purged = Some((up_to, marker.clone()));
                    });
                    log.purge(up_to, marker, self.done(disk, heard));
                }
            }
            Step::Commit(share) => {
                let index = now.first + share_of(&now, share);
                if index < now.next() {
                    self.committed = self.committed.max(index + 1);
                    log.note_committed(index, Bytes::from(index.to_string()));
                }
            }
            Step::Wait => wait(|done| log.append(Vec::new(), done)).expect("a sound disk"),
        }
    }

    fn done(
        &self,
        disk: &TestDisk,
        heard: &Acknowledged,
    ) -> impl FnOnce(Result<(), Fault>) + Send + use<> {
        let (steps, disk, heard) = (self.history.len(), disk.clone(), Arc::clone(heard));
        move |outcome| {
            outcome.expect("a sound disk");
            heard.lock().push((steps, disk.operations()));
        }
    }

    /// Compares with what was found after a power cut, and goes on from there.
    fn found(&mut self, found: &Contents, acknowledged: usize) -> Result<(), TestCaseError> {
        let possible = &self.history[acknowledged.max(1) - 1..];
        prop_assert!(
            possible.contains(found),
            "found {found:#?}\nafter {:#?}\nnow {:#?}",
            possible[0],
            self.now()
        );
        self.history = vec![found.clone()];
        self.committed = self.committed.min(found.next());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 250,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Lives of some steps each, each ended by a power cut at any of its operations.
    #[test]
    fn whatever_happens_the_log_is_what_was_called_back_or_a_later_moment(
        lives in prop::collection::vec((prop::collection::vec(step(), 0..25), any::<u64>()), 1..6),
    ) {
        let mut disk = TestDisk::default();
        let mut model = Model { history: vec![Contents::default()], committed: 0, serial: 0 };
        for (steps, seed) in lives {
            let mut chance = Chance(seed | 1);
            let heard = Acknowledged::default();
            let (log, recovered) = match Log::open(directory(), SMALL, &disk.environment(), ()) {
                Ok(opened) => opened,
                Err(fault) => return Err(TestCaseError::fail(fault.to_string())),
            };
            prop_assert_eq!(Contents::of(&log, &recovered), model.now());
            for step in &steps {
                model.perform(step, &log, &disk, &heard);
            }
            let seen = log.read(0..u64::MAX, usize::MAX).expect("intact");
            let seen: Vec<_> = seen.into_iter().map(|entry| entry.body).collect();
            prop_assert_eq!(&seen, &model.now().entries);
            log.close_now();

            let operations = chance.next() as usize % (disk.operations() + 1);
            let calls = heard.lock();
            let acknowledged = calls.iter().filter(|(_, at)| *at <= operations).map(|(n, _)| *n);
            let acknowledged = acknowledged.max().unwrap_or(0);
            disk = disk.after_power_cut(operations, &mut || chance.fate());
            let found = contents(&disk).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
            model.found(&found, acknowledged)?;
        }
    }
}

/// Every operation of one life with purges and recycled segments, not just a random one.
#[test]
fn a_power_cut_at_any_operation_of_a_log_that_goes_round() {
    let disk = TestDisk::default();
    let heard = Acknowledged::default();
    let mut model = Model { history: vec![Contents::default()], committed: 0, serial: 0 };
    let (log, _) = open(&disk);
    for round in 0..60 {
        model.perform(&Step::Append { count: 3, bytes: 250 }, &log, &disk, &heard);
        model.perform(&Step::Commit(200), &log, &disk, &heard);
        if round % 3 == 2 {
            model.perform(&Step::Vote, &log, &disk, &heard);
            model.perform(&Step::Purge(220), &log, &disk, &heard);
        }
        model.perform(&Step::Wait, &log, &disk, &heard);
    }
    log.close_now();
    let calls = heard.lock().clone();
    let mut chance = Chance(42);
    for operations in 0..=disk.operations() {
        let acknowledged = calls.iter().filter(|(_, at)| *at <= operations).map(|(n, _)| *n);
        let acknowledged = acknowledged.max().unwrap_or(1);
        let cut = disk.after_power_cut(operations, &mut || chance.fate());
        let found = contents(&cut).unwrap_or_else(|fault| panic!("{operations}: {fault}"));
        assert!(model.history[acknowledged - 1..].contains(&found), "operation {operations}");
    }
}
