//! The `lockkeeper` program: locks around commands, an operator's view of them, and the servers.
//!
//! `main` reads the command line, runs one command on one runtime, and says how it ended; each
//! command has a file of its name. [`flags`] is the table of everything that can be said, [`exit`]
//! that of every way to end. [`supervisor`] and [`guardian`] are the two processes around a command
//! that runs under a lock.
//!
//! **Invariant.** The program touches a cluster only as a client.

mod bench;
mod cluster;
mod connect;
mod demo;
mod embedded;
mod exit;
mod flags;
mod guardian;
mod json;
mod lock;
mod logs;
mod ls;
mod output;
mod progress;
mod server;
mod session;
mod signals;
mod supervisor;
mod text;
mod unlock;
mod watch;
mod who;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::exit::{Failure, Reason};
use crate::flags::{Cli, Command};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<u8, Failure> {
    let Cli { global, command } = cli;
    // Servers say in their own configuration what they log.
    let is_server = matches!(command, Command::Server(_) | Command::Dev(_) | Command::EmbeddedNode);
    let _logs = if is_server { None } else { logs::start_for_client(&global)? };
    // One thread is enough: a client waits most of the time, and a node is made for one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Lock(flags) => lock::run(&global, flags.into()).await,
            Command::Try(flags) => lock::run(&global, flags.into()).await,
            Command::Sem(flags) => lock::run(&global, flags.into()).await,
            Command::Rw(flags) => lock::run(&global, flags.into()).await,
            Command::Ls(flags) => ls::run(&global, flags).await,
            Command::Who(flags) => who::run(&global, flags).await,
            Command::Watch(flags) => watch::run(&global, flags).await,
            Command::Session(command) => session::run(&global, command).await,
            Command::Unlock(flags) => unlock::run(&global, flags).await,
            Command::Cluster(command) => cluster::run(&global, command).await,
            Command::Status => cluster::status(&global).await,
            Command::Bench(flags) => bench::run(&global, flags).await,
            Command::Demo => demo::run().await,
            Command::Server(flags) => server::run(&global, flags).await,
            Command::Dev(flags) => server::run_dev(&global, flags).await,
            Command::Completion { shell } => completion(shell),
            Command::Guardian(flags) => guardian::run(&flags.command).await,
            Command::EmbeddedNode => embedded::run().await,
        }
    })
}

fn completion(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockkeeper", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end()).map(|()| 0)
}

/// A command line that isn't understood; or one that asks for help.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return ExitCode::SUCCESS,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {}
        // `flock` and `env` take a command without them.
        ErrorKind::UnknownArgument => eprint(&format!(
            "A command to be run stands behind two dashes: lockkeeper lock NAME -- CMD. [{}]",
            Reason::Usage.code()
        )),
        _ => eprint(&format!("[{}]", Reason::Usage.code())),
    }
    ExitCode::from(Reason::Usage.exit_code())
}

/// Nobody can be told that stderr is gone.
fn eprint(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
