//! What a caller of a lock of its own notices of three floods: sessions that all end at once,
//! waiters of one lock whose sessions all end, and more callers than the servers have time for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lockkeeper::{Client, Guard};
use rustix::process::setpriority_process;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Bench;
use super::bystander::Bystander;
use super::processes::Processes;
use super::report::Report;

/// How long anything here may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);

/// The priority of the load, the lowest that there is: its thread is this program's only one.
const LOAD_NICENESS: i32 = 19;

/// A lock that everybody waits for.
const QUEUE: &str = "bench/overload/queue";

pub(crate) async fn run(bench: &Bench, url: &str, _: &Processes) -> Result<Report> {
    let mut bystander = Bystander::start(url, bench.ttl).await?;
    // The load of a real cluster doesn't come from the servers' own machines: what this program
    // computes for it must not keep them, or the bystander, from a core. If the system says no,
    // the figures are only worse.
    let _ = setpriority_process(None, LOAD_NICENESS);
    let mut report = bench.report();
    bystander.beside(sleep(bench.warm_up)).await?;
    let (calm, ()) = bystander.beside(sleep(bench.duration)).await?;
    report.latency("calm_", &calm);
    report.figure("calm_pairs", calm.len());

    let clients = bench.connect(url).await?;
    let guards = hold_one_each(&clients).await?;
    let begun = Instant::now();
    let (seen, ()) = bystander.beside(close_all(&clients)).await?;
    report.latency("ending_", &seen);
    report.figure("ending_pairs", seen.len());
    report.fraction("ending_s", begun.elapsed().as_secs_f64());
    drop(guards);

    let first = Client::builder().url(url).ttl(bench.ttl).connect().await?;
    let holder = first.lock(QUEUE).try_acquire().await?;
    let clients = bench.connect(url).await?;
    let waiters = queue_up(bench.locks, &clients).await?;
    let begun = Instant::now();
    let (seen, ()) = bystander.beside(close_all(&clients)).await?;
    report.latency("waiters_ending_", &seen);
    report.figure("waiters_ending_pairs", seen.len());
    report.fraction("waiters_ending_s", begun.elapsed().as_secs_f64());
    report.figure("waiters", bench.locks);
    let granted = end_of(waiters).await?;
    holder.release().await?;
    // Nobody dead is left in the line, nor gets the lock.
    let next = first.lock(QUEUE).try_acquire().await.context("the queue is not empty")?;
    next.release().await?;
    first.close().await;

    let clients = bench.connect(url).await?;
    let (seen, flood) = bystander.beside(flood(bench, &clients)).await?;
    report.latency("flood_", &seen);
    report.figure("flood_pairs", seen.len());
    report.fraction("flood_load_pairs_per_s", flood.pairs as f64 / bench.duration.as_secs_f64());
    close_all(&clients).await;
    report.figure("errors", flood.errors + granted);
    Ok(report)
}

async fn hold_one_each(clients: &[Client]) -> Result<Vec<Guard>> {
    let mut guards = Vec::with_capacity(clients.len());
    for (session, client) in clients.iter().enumerate() {
        guards.push(client.lock(format!("bench/overload/{session}")).try_acquire().await?);
    }
    Ok(guards)
}

/// Ends every session, all at once.
async fn close_all(clients: &[Client]) {
    let mut closing = JoinSet::new();
    for client in clients {
        let client = client.clone();
        closing.spawn(async move { client.close().await });
    }
    closing.join_all().await;
}

/// Has `count` requests wait for one lock, and returns once all have a place. Each says at its end
/// whether it was granted.
async fn queue_up(count: usize, clients: &[Client]) -> Result<JoinSet<bool>> {
    let placed = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for number in 0..count {
        let (client, placed) = (clients[number % clients.len()].clone(), Arc::clone(&placed));
        let is_placed = AtomicBool::new(false);
        waiters.spawn(async move {
            let on_wait = move |_: &lockkeeper::QueueView| {
                if !is_placed.swap(true, Ordering::Relaxed) {
                    placed.fetch_add(1, Ordering::Relaxed);
                }
            };
            client.lock(QUEUE).on_wait(on_wait).acquire().await.is_ok()
        });
    }
    let all_placed = async {
        while placed.load(Ordering::Relaxed) < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, all_placed).await.context("not all waiters got a place")?;
    Ok(waiters)
}

/// Waits for all waiters to hear of their end, and counts those that were granted all the same.
async fn end_of(waiters: JoinSet<bool>) -> Result<u64> {
    let ended = timeout(PATIENCE, waiters.join_all()).await;
    let ended = ended.context("not all waiters have heard of their end")?;
    Ok(ended.into_iter().filter(|was_granted| *was_granted).count() as u64)
}

struct Flood {
    pairs: u64,
    errors: u64,
}

/// Locks and unlocks from every worker for as long as the run is to last. A client asks again by
/// itself when a server says that it is overloaded.
async fn flood(bench: &Bench, clients: &[Client]) -> Flood {
    let end = Instant::now() + bench.duration;
    let (pairs, errors) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut workers = JoinSet::new();
    for worker in 0..bench.workers {
        let client = clients[worker % clients.len()].clone();
        let (pairs, errors) = (Arc::clone(&pairs), Arc::clone(&errors));
        workers.spawn(async move {
            let name = format!("bench/overload/flood/{worker}");
            while Instant::now() < end {
                let pair = async { client.lock(&name).acquire().await?.release().await };
                let count = if pair.await.is_ok() { &pairs } else { &errors };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    workers.join_all().await;
    Flood { pairs: pairs.load(Ordering::Relaxed), errors: errors.load(Ordering::Relaxed) }
}
