//! The same load through a client library, as an application has it: the crate zookeeper-client.
//!
//! The lean program next door answers all that a socket has in one write, which spares a server
//! most of its reading; a library writes what it is asked when it is asked. Each worker is a task,
//! and workers share connections, as threads of an application share its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::load::SETTLE;
use crate::servers::Servers;

/// The pairs' times in µs, and how many requests failed.
pub fn measure(
    servers: &Servers,
    connections: usize,
    workers: usize,
    locks: usize,
    duration: Duration,
) -> Result<(Vec<u32>, u32), String> {
    let ports = servers.ports();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut clients = Vec::new();
        for connection in 0..connections.min(workers) {
            let address = format!("127.0.0.1:{}", ports[connection % ports.len()]);
            let connector = Client::connector().with_session_timeout(Duration::from_secs(30));
            let client = connector.connect(&address).await;
            clients.push(client.map_err(|error| format!("no session: {error}"))?);
        }
        let ended = Arc::new(AtomicBool::new(false));
        let from = Instant::now() + SETTLE;
        let counted = from..from + duration;
        let tasks: Vec<_> = (0..workers)
            .map(|worker| {
                let client = clients[worker % clients.len()].clone();
                let (ended, counted) = (Arc::clone(&ended), counted.clone());
                let directory = format!("/load/{}", worker % locks);
                tokio::spawn(async move {
                    let (mut pairs, mut errors) = (Vec::new(), 0);
                    while !ended.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        let done = pair(&client, &directory).await;
                        let now = Instant::now();
                        match done {
                            Ok(()) if counted.contains(&now) => {
                                let took = (now - began).as_micros().min(u128::from(u32::MAX));
                                pairs.push(took as u32);
                            }
                            Ok(()) => {}
                            Err(_) => errors += 1,
                        }
                    }
                    (pairs, errors)
                })
            })
            .collect();
        tokio::time::sleep(SETTLE + duration).await;
        ended.store(true, Ordering::Relaxed);
        let (mut pairs, mut errors) = (Vec::new(), 0);
        for task in tasks {
            let (more, failed) = task.await.map_err(|error| error.to_string())?;
            pairs.extend(more);
            errors += failed;
        }
        Ok((pairs, errors))
    })
}

/// Takes a lock and releases it.
async fn pair(client: &Client, directory: &str) -> Result<(), Error> {
    let prefix = format!("{directory}/lock-");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create(&prefix, b"", &options).await?;
    let own = format!("lock-{sequence}");
    loop {
        let children = client.list_children(directory).await?;
        let Some(before) = children.iter().filter(|name| **name < own).max() else { break };
        let (stat, watcher) = client.check_and_watch_stat(&format!("{directory}/{before}")).await?;
        if stat.is_some() {
            watcher.changed().await;
        }
    }
    client.delete(&format!("{directory}/{own}"), None).await
}
