//! Many locks that are taken and kept: what each costs in the servers' memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use lockkeeper::{Client, Guard};

use super::Bench;
use super::processes::Processes;
use super::report::Report;

/// Takes every lock with a name of 24 bytes, and keeps the guards until the end.
pub(crate) async fn run(bench: &Bench, url: &str, processes: &Processes) -> Result<Report> {
    let clients = bench.connect(url).await?;
    let before = processes.resident_bytes()?;
    let begun = Instant::now();
    let guards = take(bench.locks, bench.workers, &clients, "bench/hold").await?;
    let taken = begun.elapsed();
    // Buffers that the taking filled are let go within a moment; the locks stay.
    tokio::time::sleep(bench.duration).await;
    let after = processes.resident_bytes()?;

    let mut report = bench.report();
    report.figure("locks", guards.len());
    report.fraction("locks_per_s", guards.len() as f64 / taken.as_secs_f64());
    for (server, (before, after)) in before.iter().zip(&after).enumerate() {
        let grown = after.saturating_sub(*before) as f64;
        report.fraction(
            &format!("bytes_per_lock_server_{}", server + 1),
            grown / guards.len() as f64,
        );
    }
    report.figure("errors", 0);
    for client in &clients {
        client.clone().close().await;
    }
    drop(guards);
    Ok(report)
}

/// Takes `count` locks by `workers` tasks over all of `clients`.
pub(crate) async fn take(
    count: usize,
    workers: usize,
    clients: &[Client],
    prefix: &str,
) -> Result<Vec<Guard>> {
    let next = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (next, clients, prefix) = (next.clone(), clients.to_vec(), prefix.to_owned());
            let width = 23_usize.saturating_sub(prefix.len());
            tokio::spawn(async move {
                let mut guards = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return Ok::<_, anyhow::Error>(guards);
                    }
                    // Neighbours in one session: a session's locks fill its limit one by one.
                    let client = &clients[number * clients.len() / count];
                    let name = format!("{prefix}/{number:0width$}");
                    let guard = client.lock(&name).try_acquire().await;
                    guards.push(guard.with_context(|| format!("lock {number} of {count}"))?);
                }
            })
        })
        .collect();
    let mut guards = Vec::with_capacity(count);
    for task in tasks {
        guards.extend(task.await??);
    }
    Ok(guards)
}
