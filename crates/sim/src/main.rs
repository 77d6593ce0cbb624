//! The program of the simulator: it hunts for a seed that breaks something, and replays one.

use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, Parser, Subcommand};
use lockkeeper_sim::core_hunt::{self, Trace};
use lockkeeper_sim::hunt::{Hunt, report, try_seed};
use lockkeeper_sim::world::Options;

/// Tries to break Lockkeeper: whole clusters in one thread, where a seed decides everything.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper-sim", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    clusters: Clusters,
}

#[derive(Debug, Args)]
struct Clusters {
    /// Hunt for so many seconds
    #[arg(long, value_name = "SECONDS")]
    hunt: Option<u64>,
    /// Try so many seeds at most
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Begin with this seed; by default with one that nobody has tried
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Replay this seed alone
    #[arg(long, value_name = "N", conflicts_with_all = ["hunt", "seeds", "from"])]
    seed: Option<u64>,
    /// Worlds at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Say everything that happens in the replayed world
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Hunts in the state machine alone, or replays one of its seeds
    Core(Core),
}

#[derive(Debug, Args)]
struct Core {
    /// How many seeds to try
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Replay this seed alone, and say what happened
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// With --seed: tell each command, its answer and what happened
    #[arg(long, requires = "seed")]
    tell: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli { command, clusters } = Cli::parse();
    match command {
        Some(Task::Core(core)) => {
            name_the_seed_of_a_panic();
            run_core(&core)
        }
        None => Ok(run_clusters(&clusters)),
    }
}

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
fn run_clusters(clusters: &Clusters) -> ExitCode {
    let options = Options { verbose: clusters.verbose, ..Options::default() };
    if let Some(seed) = clusters.seed {
        let outcome = try_seed(seed, &options);
        if let Some(words) = &outcome.words {
            println!("{words}");
        }
        println!("seed {seed}, trace {:016x}: {}", outcome.trace, outcome.counts);
        if outcome.verdicts.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("{}", report(seed, &outcome.verdicts));
        return ExitCode::FAILURE;
    }
    let hunt = Hunt {
        from: clusters.from.unwrap_or_else(fresh_seed),
        seeds: clusters.seeds.unwrap_or(u64::MAX),
        time: clusters.hunt.map(Duration::from_secs),
        threads: clusters.threads,
        options,
    };
    println!("hunting from seed {} on", hunt.from);
    let bag = hunt.run(|line| println!("{line}"));
    println!("{}", bag.progress(bag.took));
    if bag.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A seed by the time of day: another one for each hunt.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000
}

fn run_core(core: &Core) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match core.seed {
        Some(seed) => replay_core(seed, core.tell, &mut out),
        None => hunt_core(core.from, core.seeds, &mut out),
    }
}

fn hunt_core(from: u64, seeds: u64, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut told = Instant::now();
    let mut tally = core_hunt::Tally::default();
    for seed in from..from.saturating_add(seeds) {
        // A panic ends this program: it says at least where.
        LAST_SEED.store(seed, Ordering::Relaxed);
        match core_hunt::run(seed, &mut Trace::off()) {
            Ok(lived) => tally.add(&lived),
            Err(failure) => return fail_core(&failure, out),
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            writeln!(out, "{:.0} seeds/s: {tally}", per_second(tally.seeds, started))?;
        }
    }
    writeln!(out, "{:.0} seeds/s: {tally}", per_second(tally.seeds, started))?;
    writeln!(out, "nothing found in {:.1} s", started.elapsed().as_secs_f64())?;
    Ok(ExitCode::SUCCESS)
}

fn replay_core(seed: u64, tell: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    LAST_SEED.store(seed, Ordering::Relaxed);
    let mut trace = if tell { Trace::text() } else { Trace::digest() };
    let lived = core_hunt::run(seed, &mut trace);
    for line in trace.lines() {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "trace {:016x}", trace.value())?;
    match lived {
        Ok(tally) => {
            writeln!(out, "seed {seed}: nothing found; {tally}")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => fail_core(&failure, out),
    }
}

fn fail_core(failure: &core_hunt::Failure, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    for what in &failure.what {
        writeln!(out, "{what}")?;
    }
    writeln!(out, "{}", replay_line(failure.seed))?;
    Ok(ExitCode::FAILURE)
}

fn replay_line(seed: u64) -> String {
    format!("replay: cargo run --release -p lockkeeper-sim -- core --seed {seed}")
}

fn per_second(count: u64, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64().max(1e-9)
}

/// The release build stops at a panic, so that nobody can catch it: its last words name the seed.
fn name_the_seed_of_a_panic() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        usual(panic);
        _ = writeln!(io::stderr(), "{}", replay_line(LAST_SEED.load(Ordering::Relaxed)));
    }));
}

/// The seed that is being lived.
static LAST_SEED: AtomicU64 = AtomicU64::new(0);

const TELL_EVERY: Duration = Duration::from_secs(10);
