//! The hunt in the state machine alone: replicas of one log, without a network.
//!
//! One seed is one short life of a cluster, as its log sees it: some clients with their sessions
//! and numbered requests, which get lost, come late and come again; operators who revoke; entries
//! of several commands; a replica that lags, applies in chunks of its own, and is sometimes so far
//! behind that it needs a snapshot; restarts from snapshots; a restore with its silence. What the
//! replicas are told, and what happens, is compared command by command, and then judged as every
//! history is. Clients also work on the tree of znodes, where they own ephemeral ones, do several
//! things at once or not at all, move between connections, and are told what the tree does; a book
//! is kept of that, by events alone.
//!
//! A seed is short, so that many of them are tried: most faults need few commands, but the right
//! ones. Each seed draws its own weights, so that some do nothing but cancel, and others nothing
//! but share.

mod answers;
mod clients;
mod replicas;
mod trace;
mod tree;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lockkeeper_core::{Event, NodeChange};

pub use trace::Trace;

use world::World;

/// A seed that broke something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub seed: u64,
    /// What is wrong: one line for each finding.
    pub what: Vec<String>,
}

/// What one seed, or many, came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Seeds run to their end.
    pub seeds: u64,
    /// Commands applied by the first replica.
    pub commands: u64,
    /// Of those, commands that had been delivered before.
    pub repeated: u64,
    /// Of those, commands that were refused.
    pub refused: u64,
    /// Snapshots that a replica went on from.
    pub snapshots: u64,
    /// Purges of the log that left a replica behind.
    pub purges: u64,
    /// Restores.
    pub restores: u64,
    /// Transitions, by the kinds of [`TRANSITIONS`].
    pub transitions: [u64; TRANSITIONS.len()],
}

/// The kinds of transitions, as [`Tally::transitions`] counts them.
pub const TRANSITIONS: [&str; 12] = [
    "opened",
    "ended",
    "session revoked",
    "queued",
    "granted",
    "released",
    "left",
    "lost",
    "session moved",
    "znode made",
    "znode gone",
    "znode set",
];

impl Tally {
    fn count(&mut self, event: &Event) {
        let kind = match event {
            Event::SessionOpened { .. } => 0,
            Event::SessionEnded { .. } => 1,
            Event::SessionRevoked { .. } | Event::Revoked { .. } => 2,
            Event::Queued { .. } => 3,
            Event::Granted { .. } => 4,
            Event::Released { .. } => 5,
            Event::Cancelled { .. } => 6,
            Event::Lost { .. } => 7,
            Event::SessionMoved { .. } => 8,
            Event::Node { change: NodeChange::Created, .. } => 9,
            Event::Node { change: NodeChange::Deleted, .. } => 10,
            Event::Node { change: NodeChange::DataChanged, .. } => 11,
        };
        self.transitions[kind] += 1;
    }

    /// Adds another's figures.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.commands += other.commands;
        self.repeated += other.repeated;
        self.refused += other.refused;
        self.snapshots += other.snapshots;
        self.purges += other.purges;
        self.restores += other.restores;
        for (sum, count) in self.transitions.iter_mut().zip(other.transitions) {
            *sum += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} commands ({} repeated, {} refused), {} snapshots, {} purges, {} restores",
            self.seeds,
            self.commands,
            self.repeated,
            self.refused,
            self.snapshots,
            self.purges,
            self.restores
        )?;
        for (kind, count) in TRANSITIONS.iter().zip(self.transitions) {
            write!(f, ", {count} {kind}")?;
        }
        Ok(())
    }
}

/// Lives one seed's life.
///
/// # Errors
///
/// What is wrong, if something is. A panic of the state machine is a finding too, where panics can
/// be caught.
pub fn run(seed: u64, trace: &mut Trace) -> Result<Tally, Failure> {
    let lived = catch_unwind(AssertUnwindSafe(|| World::new(seed).live(trace)));
    let lived = lived.unwrap_or_else(|panic| Err(vec![format!("panic: {}", words_of(&*panic))]));
    lived.map_err(|what| Failure { seed, what })
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(seed: u64) -> u64 {
        let mut trace = Trace::digest();
        run(seed, &mut trace).expect("a lawful seed");
        trace.value()
    }

    #[test]
    fn a_seed_has_one_trace() {
        let first: Vec<u64> = (0..50).map(digest).collect();
        let again: Vec<u64> = (0..50).map(digest).collect();
        assert_eq!(first, again);
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn some_seeds_find_nothing_and_do_everything() {
        let mut tally = Tally::default();
        for seed in 0..400 {
            match run(seed, &mut Trace::off()) {
                Ok(seed) => tally.add(&seed),
                Err(failure) => panic!("{failure:#?}"),
            }
        }
        assert!(tally.transitions.iter().all(|&count| count > 100), "{tally}");
        assert!(tally.repeated > 1_000 && tally.refused > 1_000, "{tally}");
        assert!(tally.snapshots > 100 && tally.purges > 20 && tally.restores > 10, "{tally}");
    }
}
