//! The front ends of a node: the native protocol, and HTTP for health and metrics, on one port.
//!
//! [`Server`] starts a node and its listeners on the current runtime; [`ServerConfig`] is what it
//! is told. Bytes come in as messages of `lockkeeper-wire`, go to the node as commands of
//! `lockkeeper-core`, and what the node says is encoded straight into the connection's output.
//!
//! **Invariant.** A front end holds no state that a restart would miss.

mod boot;
mod config;
mod connections;
mod error;
mod figures;
mod files;
mod histogram;
mod http;
mod limits;
mod metrics;
#[cfg(feature = "mutations")]
pub mod mutation;
mod native;
mod server;
mod socket;
mod transitions;
mod unread;
mod walks;
mod zookeeper;

pub use config::{ConfigError, LogFormat, Network, ServerConfig, Settings, ZooKeeperKeys};
pub use native::Native;
pub use server::{Server, StartError};
pub use zookeeper::{
    Client as ZooKeeperClient, ClientAuth, TlsError, TlsSettings, Users, Whitelist, ZooKeeper,
    ZooKeeperSettings,
};
