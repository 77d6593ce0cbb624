//! What clients do. Each front end's clients are a file here; the world runs them all.

pub mod native;
pub mod zookeeper;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::ClientId;
use crate::chance::Chance;
use crate::recorder::Recorder;
use crate::world::{ClientNetwork, MachineClock};

/// What a client's process has.
pub struct Surroundings {
    /// Its machine's clock.
    pub clock: Arc<MachineClock>,
    /// Its machine's sockets.
    pub network: ClientNetwork,
    /// Where it says what it sees.
    pub recorder: Recorder,
    /// Its own chance.
    pub chance: Chance,
    /// Its machine's name.
    pub host: String,
    /// The servers, as `host:port,…`.
    pub servers: String,
    /// The same servers where they speak ZooKeeper's protocol.
    pub zookeepers: Vec<(String, u16)>,
    /// Its ZooKeeper clients read all the time and never ping.
    pub only_reads: bool,
    /// Which session the process has now, for whoever kills the process.
    pub current: Arc<Mutex<Option<ClientId>>>,
}
