//! What comes out of a run: the judges' verdicts, and figures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use lockkeeper_sim::history::TreeSeen;
use lockkeeper_sim::judge::judge_all;
use lockkeeper_sim::{Attempt, History, Nanos, Seen, recipe};

use crate::clock::span;
use crate::forged;
use crate::history::{of_line, to_line};
use crate::world::World;

/// What is owed once all is calm comes within this: an election, a new connection, and the longest
/// lease of a worker, several times over on a busy machine.
pub(crate) const BOUND: Nanos = 12_000_000_000;

/// Judges the run; `stalls` is for how long the machine itself stood still after the last fault. On
/// a violation everything is kept, and the run fails saying where.
pub(crate) fn judge(world: &World, znodes: usize, seed: u64, stalls: Duration) {
    let mut history = world.recorder.history(world.begun);
    history.leaders.clone_from(&world.leaders.lock());
    history.bound = Some(BOUND + Nanos::try_from(stalls.as_nanos()).unwrap_or(0));
    let verdicts = judge_all(&history);
    let figures = Figures::of(&history);
    print_summary(&history, &figures, world);
    println!("{znodes:6} znodes, the same on all servers");
    let mut wrongs = world.wrongs.lock().clone();
    wrongs.extend(verdicts.iter().map(ToString::to_string));
    if figures.zookeeper_acquisitions == 0 {
        wrongs.push("no client of ZooKeeper's protocol ever held a lock".to_owned());
    }
    if wrongs.is_empty() {
        forged::prove(&history);
        return;
    }
    let lines = history.seen.iter().map(|entry| to_line(entry.at, &entry.seen) + "\n");
    let kept = world.directory.join("history");
    fs::write(&kept, lines.collect::<String>()).expect("the history can be kept");
    for wrong in &wrongs {
        println!("VIOLATION {wrong}");
    }
    panic!(
        "{} violations with NEMESIS_SEED={seed}; the servers' logs, their data and the history are \
         kept in {}",
        wrongs.len(),
        world.directory.display()
    );
}

/// Judges a kept history once more.
pub(crate) fn judge_file(path: &Path) {
    let text = fs::read_to_string(path).expect("the history can be read");
    let mut history = History::default();
    for line in text.lines() {
        let (at, seen) = of_line(line).expect("a line of a history");
        history.see(at, seen);
    }
    history.bound = Some(BOUND);
    let verdicts = judge_all(&history);
    verdicts.iter().for_each(|verdict| println!("{verdict}"));
    assert!(verdicts.is_empty(), "{} violations", verdicts.len());
}

fn print_summary(history: &History, figures: &Figures, world: &World) {
    println!("--- faults");
    for (fault, count) in &*world.counts.lock() {
        println!("{count:6} {fault}");
    }
    println!("--- what the clients saw");
    println!(
        "{:6} acquisitions, {} of them by ZooKeeper's recipe",
        figures.acquisitions, figures.zookeeper_acquisitions
    );
    println!(
        "{:6} watches over ZooKeeper's protocol, and {} set anew; {} notifications",
        figures.watches, figures.rewatches, figures.notifications
    );
    println!("{:6} hand-overs from one session to another", figures.hand_overs);
    println!("{:6} guards lost", figures.lost);
    println!("{:6} sessions", figures.sessions);
    println!("{:6} fenced writes, {} of them refused", figures.writes, figures.refused_writes);
    println!("{:6} looks", figures.looks);
    println!("{:6} terms with a leader", terms(history));
    println!("longest time without any acquisition: {:.1} s", figures.longest_gap.as_secs_f64());
}

fn terms(history: &History) -> usize {
    let mut terms: Vec<u64> = history.leaders.iter().map(|leader| leader.term).collect();
    terms.sort_unstable();
    terms.dedup();
    terms.len()
}

/// Counts of what is in a history.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) acquisitions: u64,
    pub(crate) zookeeper_acquisitions: u64,
    pub(crate) watches: u64,
    pub(crate) rewatches: u64,
    pub(crate) notifications: u64,
    pub(crate) hand_overs: u64,
    pub(crate) lost: u64,
    pub(crate) sessions: u64,
    pub(crate) writes: u64,
    pub(crate) refused_writes: u64,
    pub(crate) looks: u64,
    pub(crate) longest_gap: Duration,
}

impl Figures {
    pub(crate) fn of(history: &History) -> Self {
        let mut figures = Self::default();
        let mut asked: BTreeMap<Attempt, (&str, u32)> = BTreeMap::new();
        let mut last_holder: BTreeMap<&str, u32> = BTreeMap::new();
        let mut last_acquisition: Option<Nanos> = None;
        for entry in &history.seen {
            match &entry.seen {
                Seen::Opened { .. } => figures.sessions += 1,
                Seen::Asked { attempt, client, lock, .. } => {
                    asked.insert(*attempt, (lock, client.0));
                }
                Seen::Held { attempt, .. } => {
                    figures.acquisitions += 1;
                    let gap = last_acquisition.map_or(Duration::ZERO, |last| span(last, entry.at));
                    figures.longest_gap = figures.longest_gap.max(gap);
                    last_acquisition = Some(entry.at);
                    let Some(&(lock, client)) = asked.get(attempt) else { continue };
                    figures.zookeeper_acquisitions += u64::from(is_zookeepers(lock));
                    let last = last_holder.insert(lock, client);
                    figures.hand_overs += u64::from(last.is_some_and(|last| last != client));
                }
                Seen::Lost { .. } => figures.lost += 1,
                Seen::Wrote { accepted, .. } => {
                    figures.writes += 1;
                    figures.refused_writes += u64::from(!accepted);
                }
                Seen::Viewed { .. } => figures.looks += 1,
                Seen::Tree { told, .. } => match told {
                    TreeSeen::Watching { .. } => figures.watches += 1,
                    TreeSeen::Rewatching { watches, .. } => {
                        figures.rewatches += watches.len() as u64;
                    }
                    TreeSeen::Notified { .. } => figures.notifications += 1,
                    _ => {}
                },
                _ => {}
            }
        }
        figures
    }
}

/// Whether a lock is one of ZooKeeper's recipe.
pub(crate) fn is_zookeepers(lock: &str) -> bool {
    lock.starts_with(&recipe::lock_name(""))
}
