//! `lockkeeper bench`: what a cluster does under a load that this process makes.
//!
//! Every workload goes through the client library and the native protocol, as a user's program
//! would. Latencies are taken at the caller, from call to return, on one clock; percentiles come
//! from histograms with three significant digits. CPU and memory of the servers are read from
//! `/proc` when their process ids are given.
//!
//! Load and servers on one machine compete for its cores: compare systems in one run on one
//! machine, as a ratio, rather than figures of different days.

mod bystander;
mod contended;
mod failover;
mod hold;
mod idle;
mod overload;
mod processes;
mod report;
mod uncontended;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lockkeeper::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::processes::Processes;
use self::report::Report;
use crate::connect::Target;
use crate::exit::Failure;
use crate::flags::{Global, Output};

/// The flags of `bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bench {
    /// What to do
    workload: Workload,

    /// Concurrent callers: lockers of their own names, or waiters on one name
    #[arg(long, default_value_t = 64)]
    workers: usize,

    /// Sessions, each with a connection of its own, that the workers share
    #[arg(long, default_value_t = 16)]
    sessions: usize,

    /// How long to measure, after a warm-up
    #[arg(long, default_value = "10s", value_parser = crate::flags::duration)]
    duration: Duration,

    /// Load before the measurement that isn't counted
    #[arg(long, default_value = "2s", value_parser = crate::flags::duration)]
    warm_up: Duration,

    /// How long a holder keeps the lock (contended)
    #[arg(long, default_value = "0ms", value_parser = crate::flags::duration)]
    hold_time: Duration,

    /// Locks to take (hold, and those held through a failover), or waiters to queue (overload)
    #[arg(long, default_value_t = 100_000)]
    locks: usize,

    /// The lease of every session
    #[arg(long, default_value = "10s", value_parser = crate::flags::duration)]
    ttl: Duration,

    /// Process ids of the servers, to report their CPU and memory
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,

    /// Process id of the leader, to be killed with SIGKILL in the middle (failover)
    #[arg(long)]
    kill: Option<u32>,
}

/// What the load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Each worker locks and unlocks a name of its own, again and again
    Uncontended,
    /// All workers want one name: hand-overs, and whether anybody overtook
    Contended,
    /// Take many locks and keep them: bytes of server memory each
    Hold,
    /// Many sessions that only renew their leases: CPU of the servers
    Idle,
    /// Kill the leader under load: the longest time without a grant, and whether locks were lost
    Failover,
    /// End many sessions and waiters at once, then flood: what a lock beside them notices
    Overload,
    /// Whose lock is looked at in `overload`: a process that is started by it
    #[value(hide = true)]
    Bystander,
}

/// Runs one workload and prints what it found.
pub(crate) async fn run(global: &Global, bench: Bench) -> Result<u8, Failure> {
    raise_file_limit();
    let url = Target::of(global)?.url();
    measure(&bench, &url, global.output == Output::Json).await?;
    Ok(0)
}

/// A connection is a file, and thousands of sessions are wanted: as many as the system allows.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    // Without it, as many sessions as there are files can be opened; the next one says why not.
    let _ = setrlimit(Resource::Nofile, raised);
}

async fn measure(bench: &Bench, url: &str, as_json: bool) -> Result<()> {
    anyhow::ensure!(bench.workers > 0 && bench.sessions > 0, "bench needs a worker and a session");
    let processes = Processes::new(&bench.pids)?;
    let report = match bench.workload {
        Workload::Uncontended => uncontended::run(bench, url, &processes).await?,
        Workload::Contended => contended::run(bench, url, &processes).await?,
        Workload::Hold => hold::run(bench, url, &processes).await?,
        Workload::Idle => idle::run(bench, url, &processes).await?,
        Workload::Failover => failover::run(bench, url, &processes).await?,
        Workload::Overload => overload::run(bench, url, &processes).await?,
        Workload::Bystander => return bystander::run(bench, url).await,
    };
    report.print(as_json)
}

impl Bench {
    /// Opens the sessions, spread over the servers of `url` in turn.
    async fn connect(&self, url: &str) -> Result<Vec<Client>> {
        let endpoints = Endpoints::parse(url);
        let mut clients = Vec::with_capacity(self.sessions);
        for session in 0..self.sessions {
            let client = Client::builder()
                .url(endpoints.starting_with(session))
                .ttl(self.ttl)
                .connect()
                .await
                .with_context(|| format!("session {session} of {}", self.sessions))?;
            clients.push(client);
        }
        Ok(clients)
    }

    /// An empty report of this run.
    fn report(&self) -> Report {
        let name = self.workload.to_possible_value().map(|value| value.get_name().to_owned());
        Report::new(name.unwrap_or_default(), self.workers, self.sessions)
    }
}

/// The servers of a URL, to be rotated so that sessions spread over them.
struct Endpoints {
    scheme: String,
    addresses: Vec<String>,
}

impl Endpoints {
    fn parse(url: &str) -> Self {
        match url.split_once("://") {
            Some((scheme, addresses)) => Self {
                scheme: format!("{scheme}://"),
                addresses: addresses.split(',').map(str::to_owned).collect(),
            },
            None => Self { scheme: String::new(), addresses: vec![url.to_owned()] },
        }
    }

    fn starting_with(&self, first: usize) -> String {
        let mut addresses = self.addresses.clone();
        addresses.rotate_left(first % self.addresses.len());
        format!("{}{}", self.scheme, addresses.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::Endpoints;

    #[test]
    fn sessions_start_at_servers_in_turn() {
        let endpoints = Endpoints::parse("lockkeeper://a:1,b:2,c:3");
        assert_eq!(endpoints.starting_with(0), "lockkeeper://a:1,b:2,c:3");
        assert_eq!(endpoints.starting_with(1), "lockkeeper://b:2,c:3,a:1");
        assert_eq!(endpoints.starting_with(5), "lockkeeper://c:3,a:1,b:2");
        assert_eq!(Endpoints::parse("embedded:").starting_with(3), "embedded:");
    }
}
