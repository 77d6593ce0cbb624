//! The table of flags: help, completions and the checks of single values come from here alone.
//!
//! What an option *means* is said once, in its help. Checks that need two options at once (a grace
//! against its lease) belong to the command that uses them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lockkeeper::SessionId;
use rustix::process::Signal;

use crate::bench::Bench;
use crate::guardian::OnLost;

/// Locks that hold, for when only one process in the world may do a thing.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, max_term_width = 100, subcommand_required = true)]
#[command(
    after_help = "The lock around a command:  lockkeeper lock nightly-batch -- ./assign-trucks.sh"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// The servers: lockkeeper://host:port[,…], unix:/path, or embedded: for this machine's own
    /// node [env: LOCKKEEPER_URL]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "local")]
    pub(crate) url: Option<String>,

    /// Use this machine's own node, whatever LOCKKEEPER_URL says; it is started when needed
    #[arg(long, global = true)]
    pub(crate) local: bool,

    /// How answers are printed: table, for people, or json, for programs
    #[arg(short, long, global = true, value_name = "FORM", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub(crate) output: Output,

    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say more
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,

    /// What the program logs about itself: error, warn, info, debug, or a filter by module
    #[arg(long, global = true, value_name = "FILTER", env = "LOCKKEEPER_LOG")]
    #[arg(hide_env_values = true)]
    pub(crate) log: Option<String>,

    /// The form of those logs: text or json
    #[arg(long, global = true, value_name = "FORM", env = "LOCKKEEPER_LOG_FORMAT")]
    #[arg(hide_env_values = true, hide_possible_values = true)]
    pub(crate) log_format: Option<LogFormat>,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Tables, for people
    Table,
    /// JSON, for programs
    Json,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs; without a command, until a signal
    Lock(Lock),
    /// Like lock, but only if it is free now
    Try(Try),
    /// Hold permits of a semaphore while a command runs
    Sem(Sem),
    /// Hold a lock for reading or for writing while a command runs
    Rw(Rw),
    /// List locks in use
    Ls(Ls),
    /// Show who holds a lock, and who waits for it
    Who(Who),
    /// Show every transition of locks as it happens
    Watch(Watch),
    /// List, show and end sessions
    #[command(subcommand)]
    Session(SessionCommand),
    /// Take a lock away from its holder
    Unlock(Unlock),
    /// Show and change the cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Show in a few lines how the servers are
    Status,
    /// Run a server
    Server(Server),
    /// Run one server in a temporary directory, to try things out
    Dev(Dev),
    /// Tell, with real servers, what a lock must survive; in under a minute
    Demo,
    /// Measure what servers do under load
    Bench(Bench),
    /// Print the completions of a shell
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Watches over a command for `lock`
    #[command(name = "guardian", hide = true)]
    Guardian(Guardian),
    /// Serves this user on this machine
    #[command(name = "embedded-node", hide = true)]
    EmbeddedNode,
}

// ------------------------------------------------------------------ commands that hold

/// Options of everything that holds a lock.
#[derive(Args, Clone, Debug)]
pub(crate) struct Holding {
    /// The lease: how long the cluster waits for this process, when it doesn't hear it, before the
    /// lock passes on
    #[arg(long, value_name = "DUR", default_value = "20s", value_parser = duration)]
    pub(crate) ttl: Duration,

    /// Time for the command between the first signal and KILL, when it has to stop before the
    /// lease may pass on; at most a quarter of the lease [default: 5s, or a quarter of the lease]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// The first signal
    #[arg(long, value_name = "SIG", default_value = "TERM", value_parser = signal)]
    pub(crate) signal: Signal,

    /// When the lock is lost while the command runs: kill it (in time); warn and let it run on; or
    /// exec:CMD, a shell command that is run instead of the first signal
    #[arg(long, value_name = "kill|warn|exec:CMD", default_value = "kill", value_parser = on_lost)]
    pub(crate) on_lost: OnLost,

    /// Stop the command, and give the lock back, after this long
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,

    /// What for: shown to those who wait
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) purpose: String,

    /// How waiting is shown, on stderr
    #[arg(long, value_name = "FORM", default_value = "auto")]
    #[arg(env = "LOCKKEEPER_PROGRESS", hide_env_values = true)]
    pub(crate) progress: ProgressForm,

    /// The command and its arguments; it is run without a shell
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// How waiting is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressForm {
    /// One line that is redrawn on a terminal, plain otherwise
    Auto,
    /// A line at the start, at each change, then after 10 s, 1 min, 5 min
    Plain,
    /// One JSON object a line
    Json,
    /// Not at all
    None,
}

/// How long to wait.
#[derive(Args, Clone, Debug)]
pub(crate) struct Waiting {
    /// Give up after this long; 0 doesn't wait [default: wait for as long as it takes]
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Don't wait: the same as --wait 0
    #[arg(short, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
}

impl Waiting {
    /// The longest wait; `None` for as long as it takes.
    pub(crate) fn limit(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Lock {
    /// The lock: a path such as deploy/prod
    pub(crate) name: String,

    /// Together with other sharers (a read lock); without it, alone
    #[arg(short, long)]
    pub(crate) shared: bool,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

#[derive(Args, Debug)]
pub(crate) struct Try {
    /// The lock: a path such as deploy/prod
    pub(crate) name: String,

    /// Together with other sharers (a read lock); without it, alone
    #[arg(short, long)]
    pub(crate) shared: bool,

    #[command(flatten)]
    pub(crate) holding: Holding,
}

#[derive(Args, Debug)]
pub(crate) struct Sem {
    /// The semaphore: a path such as gpu/pool
    pub(crate) name: String,

    /// How many permits there are; the same number for everybody while it is in use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: u32,

    /// How many of them to take
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) take: u32,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("side").required(true))]
pub(crate) struct Rw {
    /// The lock: a path such as catalogue
    pub(crate) name: String,

    /// Together with other readers
    #[arg(long, group = "side")]
    pub(crate) read: bool,

    /// Alone
    #[arg(long, group = "side")]
    pub(crate) write: bool,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

// ------------------------------------------------------------------ commands that look

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Only locks that somebody waits for
    #[arg(long)]
    pub(crate) waiting: bool,

    /// The most locks to list
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) max: usize,
}

#[derive(Args, Debug)]
pub(crate) struct Who {
    /// The lock
    pub(crate) name: String,

    /// The most holders, and the most waiters, to list
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) max: u32,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List live sessions
    Ls {
        /// The most sessions to list
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        max: usize,
    },
    /// Show one session: who it is, what it holds and waits for
    Show {
        /// Its id, as `session ls` and `who` show it
        id: SessionId,
    },
    /// End a session: everything that it holds passes on
    End {
        /// Its id, as `session ls` and `who` show it
        id: SessionId,
        #[command(flatten)]
        consent: Consent,
    },
}

// ------------------------------------------------------------------ commands that change

/// How far an operator has made up their mind.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Consent {
    /// Don't ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Only show what would happen
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    /// Pass it on at once, without waiting for the holder: for up to its lease, two may believe
    /// that they hold the lock
    #[arg(long)]
    pub(crate) now: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Unlock {
    /// The lock
    pub(crate) name: String,

    /// The token of the hold to end, as `who` shows it: a newer hold is left alone
    #[arg(long, value_name = "T")]
    pub(crate) if_token: Option<u64>,

    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the servers, and which of them leads
    Status,
    /// Add a server that was started with --join
    Add {
        /// Its id, and where its peers reach it
        #[arg(value_name = "ID=HOST:PORT", value_parser = member)]
        member: (u64, String),
        /// Let it follow without a vote: it serves clients, and counts for no majority
        #[arg(long)]
        learner: bool,
    },
    /// Remove a server; its id is never used again
    Remove {
        /// Its id
        id: u64,
    },
    /// Hand leadership over
    Transfer {
        /// To whom [default: the best server for it]
        id: Option<u64>,
    },
    /// Write a backup of this moment into a file
    Snapshot {
        /// The file; it must not exist
        file: PathBuf,
    },
    /// Make the data directory of a new cluster out of a backup
    Restore(Restore),
}

#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// The backup, as `cluster snapshot` wrote it
    pub(crate) file: PathBuf,

    /// The new data directory; it must be empty or absent
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,

    /// The id of the server that will run on it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) id: u64,

    /// No client of the old cluster runs any more, so that locks can be granted at once: without
    /// it, nothing is granted for the longest lease that a client can have
    #[arg(long)]
    pub(crate) clients_are_stopped: bool,
}

// ------------------------------------------------------------------ servers

#[derive(Args, Debug, Default)]
pub(crate) struct Server {
    /// The configuration file (TOML); options and LOCKKEEPER_* variables go over it
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,

    /// Where the server keeps its log and snapshots
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// This server's id in its cluster
    #[arg(long, value_name = "N")]
    pub(crate) id: Option<u64>,

    /// Where clients connect
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,

    /// Where the other servers connect
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen_peer: Option<String>,

    /// All servers of a new cluster: the same list on each of them
    #[arg(long, value_name = "ID=HOST:PORT,…", value_delimiter = ',', value_parser = member)]
    pub(crate) cluster: Vec<(u64, String)>,

    /// Wait to be added to a cluster that runs already
    #[arg(long, conflicts_with = "cluster")]
    pub(crate) join: bool,

    /// Serve ZooKeeper clients, too
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = ZOOKEEPER)]
    pub(crate) zookeeper: Option<String>,

    /// Listen for other machines although nothing is encrypted or authenticated
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Only say whether the configuration is right
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Dev {
    /// Where clients connect
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2379")]
    pub(crate) listen: String,

    /// Serve ZooKeeper clients, too
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = ZOOKEEPER)]
    pub(crate) zookeeper: Option<String>,
}

/// Where ZooKeeper's clients look first.
const ZOOKEEPER: &str = "127.0.0.1:2181";

#[derive(Args, Debug)]
pub(crate) struct Guardian {
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

// ------------------------------------------------------------------ single values

/// A duration with a unit; only zero needs none.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok_and(|number| number != 0.0) {
        return Err(format!("a duration needs a unit: did you mean {text}s?"));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; durations look like 200ms, 30s, 5m, 1h30m"))
}

/// A signal by its name, with or without SIG, or by its number.
fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let by_name = match name {
        "HUP" => Some(Signal::HUP),
        "INT" => Some(Signal::INT),
        "QUIT" => Some(Signal::QUIT),
        "TERM" => Some(Signal::TERM),
        "KILL" => Some(Signal::KILL),
        "USR1" => Some(Signal::USR1),
        "USR2" => Some(Signal::USR2),
        "ABRT" => Some(Signal::ABORT),
        _ => name.parse().ok().and_then(Signal::from_named_raw),
    };
    by_name.ok_or_else(|| "one of HUP, INT, QUIT, TERM, KILL, USR1, USR2, ABRT".to_owned())
}

fn on_lost(text: &str) -> Result<OnLost, String> {
    match text.split_once(':') {
        None if text == "kill" => Ok(OnLost::Kill),
        None if text == "warn" => Ok(OnLost::Warn),
        Some(("exec", command)) if !command.trim().is_empty() => {
            Ok(OnLost::Exec(command.to_owned()))
        }
        _ => Err("kill, warn or exec:CMD".to_owned()),
    }
}

/// `ID=HOST:PORT`.
fn member(text: &str) -> Result<(u64, String), String> {
    let form = || format!("{text:?} is not of the form ID=HOST:PORT, as in 2=10.0.0.2:2380");
    let (id, address) = text.split_once('=').ok_or_else(form)?;
    let id = id.parse().ok().filter(|id| *id > 0).ok_or_else(form)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(form());
    }
    Ok((id, address.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_duration_without_a_unit_is_an_error_that_suggests_one() {
        assert_eq!(duration("30"), Err("a duration needs a unit: did you mean 30s?".to_owned()));
        assert_eq!(duration("1.5"), Err("a duration needs a unit: did you mean 1.5s?".to_owned()));
        assert!(duration("soon").unwrap_err().contains("durations look like"));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "sigterm", "15"] {
            assert_eq!(signal(text), Ok(Signal::TERM), "{text}");
        }
        assert!(signal("LOUD").is_err());
        assert!(signal("0").is_err());
    }

    #[test]
    fn members_have_an_id_and_an_address() {
        assert_eq!(member("2=10.0.0.2:2380"), Ok((2, "10.0.0.2:2380".to_owned())));
        assert_eq!(member("3=[::1]:2380"), Ok((3, "[::1]:2380".to_owned())));
        for wrong in ["2", "0=a:1", "x=a:1", "2=a", "2=:1", "2=a:b", "2=a:70000"] {
            assert!(member(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn everything_behind_two_dashes_belongs_to_the_command() {
        let cli = Cli::parse_from(["lockkeeper", "lock", "x", "-n", "--", "ls", "-n", "--ttl"]);
        let Command::Lock(lock) = cli.command else { panic!("lock") };
        assert_eq!(lock.holding.command, ["ls", "-n", "--ttl"]);
        assert_eq!(lock.waiting.limit(), Some(Duration::ZERO));
    }
}
