//! What operators are told of a server that ZooKeeper's clients use: the facts, without the form.
//!
//! Words of four letters, `/commands` and metrics say the same in different ways, so they all ask a
//! [`Source`]. Nothing here knows a socket.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_wire::jute::OpCode;

use super::ZooKeeperSettings;

/// The version of ZooKeeper that this server behaves like, and its own. Tools read the digits up to
/// the first other letter.
pub(super) const VERSION: &str = concat!("3.9.5-lockkeeper-", env!("CARGO_PKG_VERSION"));

/// When it was made, in the only form that every client's parser takes.
pub(super) const BUILT: &str = "11/29/2026 00:00 GMT";

/// What this server is among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Standalone,
    Leader,
    Follower,
    Observer,
    /// Without a majority, for clients that are content to read.
    ReadOnly,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Observer => "observer",
            Self::ReadOnly => "read-only",
        }
    }
}

/// Figures that cost nothing to have.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// `None` while there is no majority, and clients aren't served at all.
    pub(crate) mode: Option<Mode>,
    pub(crate) server_id: u64,
    pub(crate) leader_id: Option<u64>,
    pub(crate) term: u64,
    /// Members that vote, and how many of them this server hears, itself included.
    pub(crate) voters: u32,
    pub(crate) voters_reached: u32,
    /// Members that don't vote.
    pub(crate) observers: u32,
    /// Since the start of this front end.
    pub(crate) uptime: Duration,
    /// Milliseconds since 1970.
    pub(crate) now_ms: u64,
    pub(crate) zxid: u64,
    pub(crate) latency_ms: MinAvgMax,
    /// The average with its fractions.
    pub(crate) latency_avg_ms: f64,
    /// Bytes of replies.
    pub(crate) reply_bytes: Sizes,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Requests that aren't answered.
    pub(crate) outstanding: u64,
    pub(crate) connections: u64,
    pub(crate) nodes: u64,
    pub(crate) ephemerals: u64,
    pub(crate) data_bytes: u64,
    pub(crate) sessions: u64,
    pub(crate) local_sessions: u64,
    pub(crate) watches: u64,
    pub(crate) authentications_failed: u64,
    /// TLS handshakes under way.
    pub(crate) handshakes: u64,
    /// Where this server listens, for clients as they are and with TLS.
    pub(crate) client_port: Option<u16>,
    pub(crate) secure_client_port: Option<u16>,
    pub(crate) data_dir: String,
    /// The members as `/zookeeper/config` has them.
    pub(crate) members: String,
    pub(crate) settings: ZooKeeperSettings,
}

/// How long requests took, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MinAvgMax {
    pub(crate) min: u64,
    pub(crate) avg: u64,
    pub(crate) max: u64,
}

/// How many bytes; -1 where there was nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) last: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { last: -1, min: -1, max: -1 }
    }
}

impl Sizes {
    pub(super) fn add(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.last = bytes;
        self.max = self.max.max(bytes);
        self.min = if self.min < 0 { bytes } else { self.min.min(bytes) };
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionFacts {
    pub(crate) address: SocketAddr,
    pub(crate) is_secure: bool,
    pub(crate) outstanding: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// `None` before the first frame.
    pub(crate) session: Option<SessionFacts>,
}

/// What its session has done on this connection.
#[derive(Clone, Debug)]
pub(crate) struct SessionFacts {
    pub(crate) id: u64,
    pub(crate) timeout_ms: u64,
    /// Since the connection began, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    pub(crate) last_op: Option<OpCode>,
    pub(crate) last_xid: i32,
    pub(crate) last_zxid: i64,
    /// When the newest reply was made, in milliseconds since 1970; 0 if there was none.
    pub(crate) last_reply_ms: u64,
    pub(crate) last_latency_ms: u64,
    pub(crate) latency_ms: MinAvgMax,
}

/// Sessions, and what goes with them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    /// Each with the time, in milliseconds since 1970, at which it will be over unless it is heard.
    pub(crate) expiries: Vec<(u64, u64)>,
    /// Those that own ephemerals, with their paths.
    pub(crate) ephemerals: Vec<(u64, Vec<String>)>,
}

/// Whoever knows.
pub(crate) trait Source: Send + Sync {
    fn facts(&self) -> Facts;
    /// Files that this process has open, and how many it may have.
    fn files(&self) -> (u64, u64);
    /// Bytes in the data directory.
    fn disk_bytes(&self) -> u64;
    fn connections(&self) -> Vec<ConnectionFacts>;
    fn sessions(&self) -> Sessions;
    /// Each watched path with the sessions that watch its data; sessions are what is shown.
    fn watches(&self) -> Vec<(String, Vec<u64>)>;
    /// The children of `prefix`, a bounded number of them, with their ephemeral children's number.
    fn ephemerals_below(&self, prefix: &str) -> Vec<(String, u64)>;
    /// Counts the server's requests from 0 again.
    fn reset_server(&self);
    /// Counts each connection's requests from 0 again.
    fn reset_connections(&self);
}

/// ZooKeeper's short name of an operation, as `cons` has it.
pub(super) fn short_name(op: Option<OpCode>) -> &'static str {
    // A table.
    match op {
        None => "NA",
        Some(OpCode::PING) => "PING",
        Some(OpCode::CREATE_SESSION) => "SESS",
        Some(OpCode::MULTI) => "MULT",
        Some(OpCode::MULTI_READ) => "MLTR",
        Some(OpCode::CREATE | OpCode::CREATE2 | OpCode::CREATE_CONTAINER | OpCode::CREATE_TTL) => {
            "CREA"
        }
        Some(OpCode::DELETE | OpCode::DELETE_CONTAINER) => "DELE",
        Some(OpCode::SET_DATA) => "SETD",
        Some(OpCode::RECONFIG) => "RECO",
        Some(OpCode::SET_ACL) => "SETA",
        Some(OpCode::CLOSE_SESSION) => "CLOS",
        Some(OpCode::SYNC) => "SYNC",
        Some(OpCode::CHECK) => "CHEC",
        Some(OpCode::EXISTS) => "EXIS",
        Some(OpCode::GET_DATA) => "GETD",
        Some(OpCode::SET_WATCHES) => "SETW",
        Some(OpCode::SET_WATCHES2) => "STW2",
        Some(OpCode::ADD_WATCH) => "ADDW",
        Some(OpCode::GET_ACL) => "GETA",
        Some(OpCode::GET_CHILDREN | OpCode::GET_CHILDREN2) => "GETC",
        Some(OpCode::GET_ALL_CHILDREN_NUMBER) => "GETACN",
        Some(OpCode::CHECK_WATCHES) => "CHKW",
        Some(OpCode::REMOVE_WATCHES) => "REMW",
        Some(OpCode::WHO_AM_I) => "HOMI",
        Some(OpCode::GET_EPHEMERALS) => "GETE",
        Some(_) => "????",
    }
}

/// `mntr`'s figures without their prefix, in order; the same go to `/commands/monitor`.
pub(super) fn monitored(facts: &Facts, files: (u64, u64)) -> Vec<(&'static str, i64)> {
    let mut figures = vec![
        ("avg_latency", facts.latency_ms.avg),
        ("max_latency", facts.latency_ms.max),
        ("min_latency", facts.latency_ms.min),
        ("packets_received", facts.received),
        ("packets_sent", facts.sent),
        ("num_alive_connections", facts.connections),
        ("outstanding_requests", facts.outstanding),
        ("znode_count", facts.nodes),
        ("watch_count", facts.watches),
        ("ephemerals_count", facts.ephemerals),
        ("approximate_data_size", facts.data_bytes),
        ("open_file_descriptor_count", files.0),
        ("max_file_descriptor_count", files.1),
        ("uptime", millis(facts.uptime)),
        ("global_sessions", facts.sessions),
        ("local_sessions", facts.local_sessions),
        ("auth_failed_count", facts.authentications_failed),
        // Whoever finds no room is turned away before it is a connection; nobody by chance.
        ("connection_drop_probability", 0),
        ("outstanding_tls_handshake", facts.handshakes),
    ];
    if facts.mode == Some(Mode::Leader) {
        let others = u64::from(facts.voters_reached.saturating_sub(1));
        figures.extend([
            ("learners", others + u64::from(facts.observers)),
            ("synced_followers", others),
            // What it was called before ZooKeeper 3.6.
            ("followers", others),
            ("synced_observers", u64::from(facts.observers)),
            ("synced_non_voting_followers", 0),
            ("pending_syncs", 0),
        ]);
    }
    if facts.voters > 1 {
        figures.push(("quorum_size", facts.voters.into()));
    }
    let signed = |figure| i64::try_from(figure).unwrap_or(i64::MAX);
    let counted = figures.into_iter().map(|(name, figure)| (name, signed(figure)));
    let Sizes { last, min, max } = facts.reply_bytes;
    let sizes = [
        ("last_client_response_size", last),
        ("max_client_response_size", max),
        ("min_client_response_size", min),
    ];
    counted.chain(sizes).collect()
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// One server, as it might be.
    pub(in super::super) struct Fixed(pub(in super::super) Facts);

    impl Source for Fixed {
        fn facts(&self) -> Facts {
            self.0.clone()
        }

        fn files(&self) -> (u64, u64) {
            (40, 1_024)
        }

        fn disk_bytes(&self) -> u64 {
            4_096
        }

        fn connections(&self) -> Vec<ConnectionFacts> {
            let address = "127.0.0.1:40000".parse().unwrap();
            let new = ConnectionFacts {
                address,
                is_secure: false,
                outstanding: 0,
                received: 0,
                sent: 0,
                session: None,
            };
            let session = SessionFacts {
                id: 0x0100_0000_0000_00ab,
                timeout_ms: 30_000,
                since_ms: 1_700_000_000_000,
                last_op: Some(OpCode::PING),
                last_xid: 12,
                last_zxid: -1,
                last_reply_ms: 1_700_000_000_123,
                last_latency_ms: 1,
                latency_ms: MinAvgMax { min: 0, avg: 1, max: 9 },
            };
            let busy = ConnectionFacts {
                address: "127.0.0.1:40001".parse().unwrap(),
                outstanding: 2,
                received: 14,
                sent: 15,
                session: Some(session),
                ..new.clone()
            };
            vec![new, busy]
        }

        fn sessions(&self) -> Sessions {
            let day = 1_700_000_000_000;
            Sessions {
                expiries: vec![(0xab, day + 100), (0xac, day + 900), (0xad, day + 6_000)],
                ephemerals: vec![(0xab, vec!["/a/b".to_owned(), "/a/c".to_owned()])],
            }
        }

        fn watches(&self) -> Vec<(String, Vec<u64>)> {
            vec![("/a".to_owned(), vec![0xab, 0xac]), ("/b".to_owned(), vec![0xab])]
        }

        fn ephemerals_below(&self, prefix: &str) -> Vec<(String, u64)> {
            vec![(format!("{prefix}/key"), 2)]
        }

        fn reset_server(&self) {}

        fn reset_connections(&self) {}
    }

    pub(in super::super) fn facts() -> Facts {
        Facts {
            mode: Some(Mode::Standalone),
            server_id: 1,
            leader_id: Some(1),
            term: 3,
            voters: 1,
            voters_reached: 1,
            observers: 0,
            uptime: Duration::from_millis(12_345),
            now_ms: 1_700_000_000_000,
            zxid: 0x1f,
            latency_ms: MinAvgMax { min: 0, avg: 2, max: 31 },
            latency_avg_ms: 2.25,
            reply_bytes: Sizes { last: 20, min: 16, max: 900 },
            received: 101,
            sent: 102,
            outstanding: 3,
            connections: 2,
            nodes: 5,
            ephemerals: 2,
            data_bytes: 27,
            sessions: 2,
            local_sessions: 0,
            watches: 3,
            authentications_failed: 0,
            handshakes: 0,
            client_port: Some(2_181),
            secure_client_port: None,
            data_dir: "/var/lib/lockkeeper".to_owned(),
            members: String::new(),
            settings: ZooKeeperSettings::default(),
        }
    }
}
