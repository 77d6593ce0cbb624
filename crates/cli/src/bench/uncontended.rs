//! Workers that each lock and unlock a name of their own: the cost of a lock that nobody wants.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use lockkeeper::Client;

use super::Bench;
use super::processes::{Processes, cpu_between};
use super::report::{Report, new_histogram, record};

/// What one worker saw inside the measured window.
pub(crate) struct Seen {
    /// One count a call: an acquire, or a release.
    operations: Histogram<u64>,
    /// Acquires and releases that both succeeded.
    pairs: u64,
    /// Calls that failed, and the last one's words.
    errors: u64,
    last_error: Option<String>,
}

pub(crate) async fn run(bench: &Bench, url: &str, processes: &Processes) -> Result<Report> {
    let clients = bench.connect(url).await?;
    let begin = Instant::now() + bench.warm_up;
    let end = begin + bench.duration;
    let workers: Vec<_> = (0..bench.workers)
        .map(|worker| {
            let client = clients[worker % clients.len()].clone();
            tokio::spawn(work(client, format!("bench/own/{worker:014}"), begin, end))
        })
        .collect();

    tokio::time::sleep_until(begin.into()).await;
    let cpu_before = processes.cpu()?;
    tokio::time::sleep_until(end.into()).await;
    let cpu = cpu_between(&cpu_before, &processes.cpu()?);

    let mut all = Seen::default();
    for worker in workers {
        all.add(&worker.await?)?;
    }
    let mut report = bench.report();
    report.fraction("pairs_per_s", all.pairs as f64 / bench.duration.as_secs_f64());
    report.latency("", &all.operations);
    if !processes.is_empty() {
        report.server_cpu(cpu, all.operations.len());
    }
    report.figure("errors", all.errors);
    if let Some(error) = all.last_error {
        report.figure("last_error", error);
    }
    for client in clients {
        client.close().await;
    }
    Ok(report)
}

/// Locks and unlocks `name` until `end`, and counts what happens after `begin`.
async fn work(client: Client, name: String, begin: Instant, end: Instant) -> Seen {
    let mut seen = Seen::default();
    while Instant::now() < end {
        let asked = Instant::now();
        let result = client.lock(&name).acquire().await;
        let granted = Instant::now();
        let result = match result {
            Ok(guard) => guard.release().await.map(drop),
            Err(error) => Err(error),
        };
        let released = Instant::now();
        let is_counted = asked >= begin && released <= end;
        match result {
            Ok(()) if is_counted => {
                record(&mut seen.operations, granted - asked);
                record(&mut seen.operations, released - granted);
                seen.pairs += 1;
            }
            Ok(()) => {}
            Err(error) => {
                seen.errors += 1;
                seen.last_error = Some(error.to_string());
                // A failing server must not be hammered: the figure is spoilt anyway.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    seen
}

impl Default for Seen {
    fn default() -> Self {
        Self { operations: new_histogram(), pairs: 0, errors: 0, last_error: None }
    }
}

impl Seen {
    fn add(&mut self, other: &Self) -> Result<()> {
        self.operations.add(&other.operations)?;
        self.pairs += other.pairs;
        self.errors += other.errors;
        self.last_error = other.last_error.clone().or_else(|| self.last_error.take());
        Ok(())
    }
}
