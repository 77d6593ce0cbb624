//! The program of the simulator: it hunts for a seed that breaks something, and replays one.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Parser, Subcommand};
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
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli { command, clusters } = Cli::parse();
    match command {
        Some(Task::Core(core)) => run_core(&core),
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
    anyhow::bail!("{core:?}: the hunt in the state machine isn't there yet")
}
