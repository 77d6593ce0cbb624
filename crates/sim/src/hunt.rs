//! Hunting: one world after the other, until a seed breaks something or the time is up.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::judge::Verdict;
use crate::world::{self, Counts, Options, Outcome};

/// Between two lines about how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// What is to be hunted.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The first seed.
    pub from: u64,
    /// How many seeds at most.
    pub seeds: u64,
    /// For how long at most.
    pub time: Option<Duration>,
    /// Worlds at a time.
    pub threads: usize,
    /// How each world is made.
    pub options: Options,
}

/// A seed that broke something.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which.
    pub seed: u64,
    /// What is wrong.
    pub verdicts: Vec<Verdict>,
}

/// What a hunt has come to.
#[derive(Clone, Debug, Default)]
pub struct Bag {
    /// Seeds tried.
    pub seeds: u64,
    /// What happened in them.
    pub counts: Counts,
    /// Seeds that broke something, in the order in which they were found.
    pub broken: Vec<Broken>,
    /// How long it took.
    pub took: Duration,
}

thread_local! {
    /// The seed whose world this thread lives, and what panicked in it.
    static LIVED: RefCell<(u64, Vec<String>)> = const { RefCell::new((0, Vec::new())) };
}

/// Lives one world. A panic in it is a finding, also one that a task's runtime has caught; in a
/// build that aborts at panics, the line that replays it is the last thing said.
#[must_use]
pub fn try_seed(seed: u64, options: &Options) -> Outcome {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(listen_to_panics);
    LIVED.replace((seed, Vec::new()));
    let mut outcome = catch_unwind(AssertUnwindSafe(|| world::run(seed, options)))
        .unwrap_or_else(|_| Outcome::default());
    let panics = LIVED.take().1;
    outcome.verdicts.extend(panics.into_iter().map(|what| Verdict { judge: "panic", what }));
    outcome
}

fn listen_to_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_lived = LIVED.with_borrow_mut(|(seed, panics)| {
            panics.push(panic.to_string());
            *seed
        });
        let verdict = Verdict { judge: "panic", what: panic.to_string() };
        if cfg!(panic = "abort") {
            tell(&report(is_lived, &[verdict]));
        }
        usual(panic);
    }));
}

#[expect(clippy::print_stderr, reason = "the process ends right after it")]
fn tell(what: &str) {
    eprintln!("{what}");
}

impl Hunt {
    /// Hunts. `say` hears of each seed that breaks something, and now and then how far it is.
    #[must_use]
    pub fn run(&self, say: impl Fn(&str) + Send + Sync) -> Bag {
        let began = Instant::now();
        let next = AtomicU64::new(self.from);
        let is_over = AtomicBool::new(false);
        let bag = Mutex::new(Bag::default());
        let said = Arc::new(Mutex::new(Instant::now()));
        let work = || {
            while !is_over.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed - self.from >= self.seeds {
                    return;
                }
                let outcome = try_seed(seed, &self.options);
                let mut bag = bag.lock();
                bag.seeds += 1;
                bag.counts.add(&outcome.counts);
                if !outcome.verdicts.is_empty() {
                    say(&report(seed, &outcome.verdicts));
                    bag.broken.push(Broken { seed, verdicts: outcome.verdicts });
                }
                if said.lock().elapsed() > PROGRESS {
                    *said.lock() = Instant::now();
                    say(&bag.progress(began.elapsed()));
                }
                if self.time.is_some_and(|time| began.elapsed() > time) {
                    is_over.store(true, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(work);
            }
            work();
        });
        let mut bag = bag.into_inner();
        bag.took = began.elapsed();
        bag
    }
}

impl Bag {
    /// How far it is, in one line.
    #[must_use]
    pub fn progress(&self, took: Duration) -> String {
        let per_second = self.seeds as f64 / took.as_secs_f64().max(0.001);
        let Self { seeds, counts, broken, .. } = self;
        format!("{seeds} seeds, {per_second:.1}/s, {} broken; {counts}", broken.len())
    }
}

/// What a person needs to know of a broken seed; the first line replays it.
#[must_use]
pub fn report(seed: u64, verdicts: &[Verdict]) -> String {
    let mut lines = vec![format!("broken: cargo run --release -p lockkeeper-sim -- --seed {seed}")];
    lines.extend(verdicts.iter().map(|verdict| format!("  {verdict}")));
    lines.join("\n")
}
