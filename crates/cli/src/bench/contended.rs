//! Many workers that want one name: how long a hand-over takes, and whether anybody overtook.
//!
//! A hand-over lasts from the holder's call of `release` to the return of the next holder's
//! `acquire`. Somebody overtook if a request that was *sent* after another had been *told its
//! place* was granted first: that can be seen from outside, with no trust in the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;
use lockkeeper::Client;
use parking_lot::Mutex;

use super::Bench;
use super::processes::{Processes, cpu_between};
use super::report::{Report, new_histogram, record};

const NAME: &str = "bench/contended";

/// What all workers see together; each touches it for an instant, and never across an await.
struct Court {
    begin: Instant,
    end: Instant,
    /// When the newest holder called `release`; `None` while somebody holds.
    released: Option<Instant>,
    newest_token: u64,
    /// Who has been told a place and not been granted yet, the longest-waiting first.
    placed: BTreeSet<(Instant, usize)>,
    hand_overs: Histogram<u64>,
    inversions: u64,
    token_violations: u64,
    errors: u64,
    last_error: Option<String>,
}

pub(crate) async fn run(bench: &Bench, url: &str, processes: &Processes) -> Result<Report> {
    let clients = bench.connect(url).await?;
    let begin = Instant::now() + bench.warm_up;
    let end = begin + bench.duration;
    let court = Arc::new(Mutex::new(Court::new(begin, end)));
    let workers: Vec<_> = (0..bench.workers)
        .map(|worker| {
            let client = clients[worker % clients.len()].clone();
            tokio::spawn(work(client, worker, court.clone(), bench.hold_time))
        })
        .collect();

    tokio::time::sleep_until(begin.into()).await;
    let cpu_before = processes.cpu()?;
    tokio::time::sleep_until(end.into()).await;
    let cpu = cpu_between(&cpu_before, &processes.cpu()?);
    // Thousands may still wait in line; dropping their requests leaves the queue.
    for worker in &workers {
        worker.abort();
    }
    for client in clients {
        client.close().await;
    }

    let court = court.lock();
    let count = court.hand_overs.len();
    let mut report = bench.report();
    report.fraction("pairs_per_s", count as f64 / bench.duration.as_secs_f64());
    report.latency("", &court.hand_overs);
    if !processes.is_empty() {
        report.server_cpu(cpu, 2 * count);
    }
    report.figure("fifo_inversions", court.inversions);
    report.figure("token_violations", court.token_violations);
    report.figure("errors", court.errors);
    if let Some(error) = &court.last_error {
        report.figure("last_error", error.clone());
    }
    anyhow::ensure!(court.inversions == 0, "{} requests were overtaken", court.inversions);
    anyhow::ensure!(court.token_violations == 0, "a token didn't grow");
    Ok(report)
}

async fn work(
    client: Client,
    worker: usize,
    court: Arc<Mutex<Court>>,
    hold_time: std::time::Duration,
) {
    while Instant::now() < court.lock().end {
        let sent = Instant::now();
        let placed = Arc::new(Mutex::new(None));
        let on_wait = {
            let (court, placed) = (court.clone(), placed.clone());
            move |_: &lockkeeper::QueueView| {
                let now = Instant::now();
                if placed.lock().replace(now).is_none() {
                    court.lock().placed.insert((now, worker));
                }
            }
        };
        let result = client.lock(NAME).on_wait(on_wait).acquire().await;
        let placed = *placed.lock();
        match result {
            Ok(guard) => {
                court.lock().granted(worker, sent, placed, guard.token());
                if !hold_time.is_zero() {
                    tokio::time::sleep(hold_time).await;
                }
                court.lock().released = Some(Instant::now());
                if let Err(error) = guard.release().await {
                    court.lock().failed(&error);
                }
            }
            Err(error) => court.lock().failed(&error),
        }
    }
}

impl Court {
    fn new(begin: Instant, end: Instant) -> Self {
        Self {
            begin,
            end,
            released: None,
            newest_token: 0,
            placed: BTreeSet::new(),
            hand_overs: new_histogram(),
            inversions: 0,
            token_violations: 0,
            errors: 0,
            last_error: None,
        }
    }

    /// Judges one grant: its token, its turn, and how long the lock was on its way.
    fn granted(&mut self, worker: usize, sent: Instant, placed: Option<Instant>, token: u64) {
        let now = Instant::now();
        if let Some(placed) = placed {
            self.placed.remove(&(placed, worker));
        }
        if token <= self.newest_token {
            self.token_violations += 1;
        }
        self.newest_token = self.newest_token.max(token);
        if self.placed.first().is_some_and(|&(placed, _)| placed < sent) {
            self.inversions += 1;
        }
        let Some(released) = self.released.take() else { return };
        if released >= self.begin && now <= self.end {
            record(&mut self.hand_overs, now - released);
        }
    }

    fn failed(&mut self, error: &lockkeeper::Error) {
        self.errors += 1;
        self.last_error = Some(error.to_string());
    }
}
