//! The leader is killed under load: how long nobody was granted anything, and whether a lock that
//! was held through it is held still.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lockkeeper::Client;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::Bench;
use super::hold;
use super::processes::Processes;
use super::report::Report;

/// After this long nobody will be granted a lock any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// When somebody was last granted a lock, and the longest time without.
struct Grants {
    last: Instant,
    longest_gap: Duration,
    /// When the leader was killed; `None` before.
    killed: Option<Instant>,
    /// Somebody has been granted a lock that was asked for after that.
    is_over: bool,
    count: u64,
    errors: u64,
}

pub(crate) async fn run(bench: &Bench, url: &str, _: &Processes) -> Result<Report> {
    let leader = bench.kill.context("failover needs --kill PID, the leader's process id")?;
    let pid = i32::try_from(leader).ok().and_then(Pid::from_raw).context("no such process id")?;
    let clients = bench.connect(url).await?;
    let held = hold::take(bench.locks.min(1_000), bench.workers, &clients, "bench/kept").await?;

    let begin = Instant::now() + bench.warm_up;
    let end = begin + bench.duration;
    let grants = Grants {
        last: Instant::now(),
        longest_gap: Duration::ZERO,
        killed: None,
        is_over: false,
        count: 0,
        errors: 0,
    };
    let grants = Arc::new(Mutex::new(grants));
    let workers: Vec<_> = (0..bench.workers)
        .map(|worker| {
            let client = clients[worker % clients.len()].clone();
            tokio::spawn(work(client, format!("bench/own/{worker:014}"), end, grants.clone()))
        })
        .collect();

    tokio::time::sleep_until(begin.into()).await;
    kill_process(pid, Signal::KILL).with_context(|| format!("killing process {leader}"))?;
    let calm = {
        let mut grants = grants.lock();
        grants.killed = Some(Instant::now());
        std::mem::take(&mut grants.longest_gap)
    };
    for worker in workers {
        worker.await?;
    }
    let mut kept = 0_usize;
    for guard in &held {
        kept += usize::from(guard.confirm().await.is_ok());
    }

    let mut report = bench.report();
    {
        let grants = grants.lock();
        report.fraction("longest_gap_ms", grants.longest_gap.as_secs_f64() * 1e3);
        report.fraction("longest_gap_before_ms", calm.as_secs_f64() * 1e3);
        report.figure("grants", grants.count);
        report.figure("errors", grants.errors);
    }
    report.figure("held", held.len());
    report.figure("kept", kept);
    anyhow::ensure!(kept == held.len(), "{} held locks were lost", held.len() - kept);
    for client in clients {
        client.close().await;
    }
    Ok(report)
}

async fn work(client: Client, name: String, end: Instant, grants: Arc<Mutex<Grants>>) {
    // Until the gap has ended, however short the measurement was meant to be.
    let at_the_latest = end + PATIENCE;
    while Instant::now() < end || !grants.lock().is_over && Instant::now() < at_the_latest {
        let asked = Instant::now();
        match client.lock(&name).acquire().await {
            Ok(guard) => {
                grants.lock().granted(asked);
                if guard.release().await.is_err() {
                    grants.lock().errors += 1;
                }
            }
            Err(_) => {
                grants.lock().errors += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

impl Grants {
    fn granted(&mut self, asked: Instant) {
        let now = Instant::now();
        self.longest_gap = self.longest_gap.max(now - self.last);
        self.last = now;
        self.is_over |= self.killed.is_some_and(|killed| asked >= killed);
        self.count += 1;
    }
}
