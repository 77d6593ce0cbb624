//! ZooKeeper's clients, as raw frames: what they are promised, and what they must not do.

mod acls;
mod cases;
mod client;
mod handshake;
mod hostile;
mod leases;
mod locks;
mod members;
mod multi;
mod operators;
mod ops;
mod pipeline;
mod tls;
mod watches;

use client::{Zk, fresh};
use lockkeeper_server::ServerConfig;

use crate::harness::{Running, eventually};

/// A server that ZooKeeper's clients may come to.
fn start() -> Running {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Running {
    let server = Running::start_with(|config| {
        config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
        config.zookeeper.session_timeout_min = std::time::Duration::from_millis(500);
        change(config);
    });
    connect(&server).close();
    server
}

/// To a server that may not have found its leader yet, and sends clients on until then.
fn connect(server: &Running) -> Zk {
    let mut connected = None;
    eventually("a session", || {
        let mut zk = Zk::silent(server);
        let has_session = zk.greet(&fresh()).is_some();
        connected = has_session.then_some(zk);
        has_session
    });
    connected.unwrap()
}
