//! What a node is told at its start.

use std::path::PathBuf;
use std::time::Duration;

/// A node's id in its cluster: 1 or more, never used again for another data directory.
pub type NodeId = u64;

/// One member and where its peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: NodeId,
    /// `host:port` of its peer listener.
    pub peer_address: String,
}

/// How a node with an empty data directory begins. With a non-empty one it goes on as before, and
/// this is only compared with what the directory says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Alone: a cluster of one, without a peer listener until a member is added.
    Single,
    /// Together: every member is started with this same list.
    Together(Vec<Member>),
    /// As a new member of a cluster that runs already: waits for its leader.
    Join,
}

/// Everything that a node is told.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This node.
    pub id: NodeId,
    /// Its data directory; made if absent.
    pub data_dir: PathBuf,
    /// `host:port` to listen on for peers; `None` for a node that stays alone.
    pub listen_peer: Option<String>,
    /// How an empty directory begins.
    pub start: Start,
    /// Heartbeats and elections.
    pub timers: Timers,
    /// Bytes of log after which a snapshot is taken and the log before it is given up.
    pub snapshot_log_bytes: u64,
    /// Bytes of one log segment.
    pub segment_bytes: u64,
    /// Bytes of free space below which client commands are refused.
    pub free_space_bytes_min: u64,
    /// Bytes of commands that may wait for the log; beyond it a command is refused as overload.
    pub queue_bytes_max: usize,
    /// The longest lease that clients may ask for: how long a restored cluster stays silent.
    pub ttl_max: Duration,
}

/// Raft's timers. `election_max` must be equal on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Between two heartbeats of the leader.
    pub heartbeat: Duration,
    /// The shortest election time-out.
    pub election_min: Duration,
    /// The longest election time-out, and the leader's lease.
    pub election_max: Duration,
}

impl Timers {
    /// Within one data centre: fails over in about 0.4 s.
    pub const LAN: Self = Self {
        heartbeat: Duration::from_millis(40),
        election_min: Duration::from_millis(100),
        election_max: Duration::from_millis(200),
    };

    /// Across data centres with up to about 150 ms between them.
    pub const WAN: Self = Self {
        heartbeat: Duration::from_millis(200),
        election_min: Duration::from_millis(1_000),
        election_max: Duration::from_millis(2_000),
    };

    /// On a busy test machine, where a process may not run for a while.
    pub const RELAXED: Self = Self {
        heartbeat: Duration::from_millis(60),
        election_min: Duration::from_millis(300),
        election_max: Duration::from_millis(600),
    };
}

impl NodeConfig {
    /// The defaults for node `id` in `data_dir`: alone, LAN timers, 64 MiB between snapshots.
    #[must_use]
    pub fn new(id: NodeId, data_dir: PathBuf) -> Self {
        Self {
            id,
            data_dir,
            listen_peer: None,
            start: Start::Single,
            timers: Timers::LAN,
            snapshot_log_bytes: 64 << 20,
            segment_bytes: 16 << 20,
            free_space_bytes_min: 256 << 20,
            queue_bytes_max: 64 << 20,
            ttl_max: Duration::from_millis(u64::from(lockkeeper_core::TTL_MS_MAX)),
        }
    }
}
