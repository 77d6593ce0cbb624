//! The program of the simulator: it hunts for a seed that breaks something, and replays one.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Tries to break Lockkeeper.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Task,
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
    match Cli::parse().command {
        Task::Core(core) => run_core(&core),
    }
}

fn run_core(core: &Core) -> anyhow::Result<ExitCode> {
    anyhow::bail!("{core:?}: the hunt in the state machine isn't there yet")
}
