//! Many sessions that hold one lock each and do nothing: what keeping them alive costs.

use anyhow::Result;
use lockkeeper::State;

use super::Bench;
use super::processes::Processes;
use super::report::Report;

pub(crate) async fn run(bench: &Bench, url: &str, processes: &Processes) -> Result<Report> {
    let clients = bench.connect(url).await?;
    let mut guards = Vec::with_capacity(clients.len());
    // Several processes may do this at a time, where one may not have enough files.
    let process = std::process::id();
    for (session, client) in clients.iter().enumerate() {
        guards.push(client.lock(format!("bench/idle/{process}/{session}")).try_acquire().await?);
    }
    tokio::time::sleep(bench.warm_up).await;
    let before = processes.cpu()?;
    tokio::time::sleep(bench.duration).await;
    let after = processes.cpu()?;

    let mut report = bench.report();
    for (server, (before, after)) in before.iter().zip(&after).enumerate() {
        let percent =
            after.saturating_sub(*before).as_secs_f64() * 100.0 / bench.duration.as_secs_f64();
        report.fraction(&format!("cpu_percent_server_{}", server + 1), percent);
    }
    let lost = guards.iter().filter(|guard| matches!(guard.state(), State::Lost(_))).count();
    report.figure("lost", lost);
    report.figure("errors", lost);
    for client in clients {
        client.close().await;
    }
    Ok(report)
}
