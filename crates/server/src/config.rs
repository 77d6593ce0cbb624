//! What a server is told: a TOML file, then `LOCKKEEPER_*` variables, then flags.
//!
//! Each layer is a [`Settings`], in which nothing has to be said; a later layer wins key by key.
//! [`ServerConfig::load`] puts them together and checks the whole, so that a mistake is found
//! before anything is started, and told with the place where it stands and what to write instead.

mod settings;
mod units;
mod zookeeper;

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::{TTL_MS_MAX, TTL_MS_MIN};
use lockkeeper_node::{Member, NodeConfig, NodeId, Start, Timers};

pub use settings::{LogFormat, Network, Settings};
pub use zookeeper::ZooKeeperKeys;

use crate::limits::{
    CONNECTIONS_MAX, ELECTION_TIMEOUT_MAX, FRAME_TIMEOUT, HANDSHAKE_TIMEOUT,
    HEARTBEAT_INTERVAL_MIN, IDLE_TIMEOUT,
};
use crate::zookeeper::{TlsSettings, ZooKeeperSettings};

const LISTEN: &str = "127.0.0.1:2379";
const LISTEN_PEER: &str = "127.0.0.1:2380";
const LOG_LEVEL: &str = "info";

/// Everything that a server is told.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The node behind the front ends.
    pub node: NodeConfig,
    /// `host:port` for clients; `None` for a node that serves this machine only.
    pub listen: Option<String>,
    /// The path of a Unix socket for clients; `None` if there is none.
    pub listen_unix: Option<PathBuf>,
    /// Listeners may be reached from other machines although nothing is encrypted or authenticated.
    pub insecure: bool,
    /// How the log's lines look.
    pub log_format: LogFormat,
    /// Which lines are logged: a level, or a list of targets with levels.
    pub log_level: String,
    /// Simultaneous client connections.
    pub connections_max: usize,
    /// How long a client has for its greeting.
    pub handshake_timeout: Duration,
    /// How long a frame or an HTTP request that has begun may take to come.
    pub frame_timeout: Duration,
    /// How long a connection may carry neither session nor request.
    pub idle_timeout: Duration,
    /// The server is [idle](crate::Server::idle) after this long without a connection and without a
    /// session; `None`: never.
    pub ends_when_idle_for: Option<Duration>,
    /// Sessions of an earlier boot of this machine are ended at the start, because clients and
    /// server share the machine.
    pub ends_sessions_of_earlier_boots: bool,
    /// `host:port` for ZooKeeper's clients; `None`: they aren't served.
    pub zookeeper_listen: Option<String>,
    /// The same, within TLS.
    pub zookeeper_tls_listen: Option<String>,
    /// How TLS is spoken there.
    pub zookeeper_tls: Option<TlsSettings>,
    /// How they are served.
    pub zookeeper: ZooKeeperSettings,
}

impl ServerConfig {
    /// A server for this machine, on a port that the system chooses: for `dev` and for tests.
    #[must_use]
    pub fn loopback(id: NodeId, data_dir: PathBuf) -> Self {
        Self {
            node: NodeConfig::new(id, data_dir),
            listen: Some("127.0.0.1:0".to_owned()),
            listen_unix: None,
            insecure: false,
            log_format: LogFormat::Text,
            log_level: LOG_LEVEL.to_owned(),
            connections_max: CONNECTIONS_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            frame_timeout: FRAME_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            ends_when_idle_for: None,
            ends_sessions_of_earlier_boots: false,
            zookeeper_listen: None,
            zookeeper_tls_listen: None,
            zookeeper_tls: None,
            zookeeper: ZooKeeperSettings::default(),
        }
    }

    /// The embedded node of one user: on a Unix socket only, and gone when nobody needs it.
    #[must_use]
    pub fn embedded(data_dir: PathBuf, socket: PathBuf, ends_when_idle_for: Duration) -> Self {
        Self {
            listen: None,
            listen_unix: Some(socket),
            ends_when_idle_for: Some(ends_when_idle_for),
            ends_sessions_of_earlier_boots: true,
            ..Self::loopback(1, data_dir)
        }
    }

    /// Puts file, environment and flags together. Variables that aren't settings are left alone:
    /// the client has some of the same prefix.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the place of the mistake and what to write instead.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: Settings,
    ) -> Result<Self, ConfigError> {
        let of_file = file.map(Settings::from_file).transpose()?.unwrap_or_default();
        let of_environment = Settings::from_environment(environment)?;
        let config = Self::from_settings(flags.or(of_environment).or(of_file))?;
        config.check()?;
        Ok(config)
    }

    fn from_settings(settings: Settings) -> Result<Self, ConfigError> {
        let members = settings.cluster.unwrap_or_default();
        let joins = settings.join.unwrap_or(false);
        let id = match settings.id {
            Some(id) => id,
            None if members.is_empty() && !joins => 1,
            None => return Err(ConfigError::MissingId),
        };
        let data_dir = settings.data_dir.unwrap_or_else(|| format!("lockkeeper-{id}.data").into());
        let defaults = NodeConfig::new(id, data_dir);
        let start = match (members.is_empty(), joins) {
            (true, false) => Start::Single,
            (true, true) => Start::Join,
            (false, false) => Start::Together(members),
            (false, true) => return Err(ConfigError::JoinAndCluster),
        };
        let mut timers = settings.network.unwrap_or(Network::Lan).timers();
        timers.heartbeat = settings.heartbeat_interval.unwrap_or(timers.heartbeat);
        if let Some((shortest, longest)) = settings.election_timeout {
            (timers.election_min, timers.election_max) = (shortest, longest);
        }
        let node = NodeConfig {
            listen_peer: Some(settings.listen_peer.unwrap_or_else(|| LISTEN_PEER.to_owned())),
            start,
            timers,
            snapshot_log_bytes: settings.snapshot_log_bytes.unwrap_or(defaults.snapshot_log_bytes),
            free_space_bytes_min: settings
                .free_space_bytes_min
                .unwrap_or(defaults.free_space_bytes_min),
            ttl_max: settings.ttl_max.unwrap_or(defaults.ttl_max),
            ..defaults
        };
        let zookeeper_listen = settings.zookeeper.listen.clone();
        let zookeeper_tls_listen = settings.zookeeper.tls_listen.clone();
        let (zookeeper, zookeeper_tls) = settings.zookeeper.settle()?;
        Ok(Self {
            node,
            listen: Some(settings.listen.unwrap_or_else(|| LISTEN.to_owned())),
            listen_unix: settings.listen_unix,
            insecure: settings.insecure.unwrap_or(false),
            log_format: settings.log_format.unwrap_or(LogFormat::Text),
            log_level: settings.log_level.unwrap_or_else(|| LOG_LEVEL.to_owned()),
            connections_max: settings.connections_max.unwrap_or(CONNECTIONS_MAX),
            handshake_timeout: settings.handshake_timeout.unwrap_or(HANDSHAKE_TIMEOUT),
            frame_timeout: FRAME_TIMEOUT,
            idle_timeout: settings.idle_timeout.unwrap_or(IDLE_TIMEOUT),
            ends_when_idle_for: None,
            ends_sessions_of_earlier_boots: false,
            zookeeper_listen,
            zookeeper_tls_listen,
            zookeeper_tls,
            zookeeper,
        })
    }

    /// Checks everything that can be checked without starting anything.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.node.id == 0 {
            return Err(ConfigError::ZeroId);
        }
        if let Some(address) = &self.listen {
            self.check_listener("listen", address)?;
        }
        if let Some(address) = &self.zookeeper_listen {
            self.check_listener("zookeeper_listen", address)?;
        }
        if let Some(address) = &self.zookeeper_tls_listen {
            zookeeper::check_tls_listener(address)?;
        }
        zookeeper::check(&self.zookeeper)?;
        if let Some(address) = &self.node.listen_peer {
            self.check_peer_listener(address)?;
        }
        if let Start::Together(members) = &self.node.start {
            check_members(self.node.id, members)?;
        }
        check_timers(self.node.timers)?;
        let ttl_max_ms = self.node.ttl_max.as_millis();
        if !(u128::from(TTL_MS_MIN)..=u128::from(TTL_MS_MAX)).contains(&ttl_max_ms) {
            return Err(ConfigError::TtlMax { ttl_max: self.node.ttl_max });
        }
        if self.connections_max == 0 {
            return Err(ConfigError::Zero { key: "connections_max" });
        }
        for (key, duration) in
            [("handshake_timeout", self.handshake_timeout), ("idle_timeout", self.idle_timeout)]
        {
            if duration.is_zero() {
                return Err(ConfigError::Zero { key });
            }
        }
        Ok(())
    }

    fn check_listener(&self, key: &'static str, address: &str) -> Result<(), ConfigError> {
        let (host, _) = host_and_port(address)
            .ok_or_else(|| ConfigError::Address { key, address: address.to_owned() })?;
        if self.insecure || is_loopback(host) {
            return Ok(());
        }
        Err(ConfigError::Insecure { key, address: address.to_owned() })
    }

    /// As for clients, except that names which the simulated network of a demonstration knows are
    /// no business of this check.
    fn check_peer_listener(&self, address: &str) -> Result<(), ConfigError> {
        if host_and_port(address).is_none() && !address.contains(':') {
            return Ok(());
        }
        self.check_listener("listen_peer", address)
    }
}

impl Network {
    fn timers(self) -> Timers {
        match self {
            Self::Lan => Timers::LAN,
            Self::Wan => Timers::WAN,
        }
    }
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

/// Whether a host means this machine alone. A name other than `localhost` may mean anything.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) if host == "localhost" => (host, 0)
            .to_socket_addrs()
            .is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback())),
        Err(_) => false,
    }
}

/// One lost heartbeat must not look like the leader's end.
fn check_timers(timers: Timers) -> Result<(), ConfigError> {
    let Timers { heartbeat, election_min, election_max } = timers;
    let is_right = heartbeat >= HEARTBEAT_INTERVAL_MIN
        && 2 * heartbeat <= election_min
        && election_min < election_max
        && election_max <= ELECTION_TIMEOUT_MAX;
    if is_right { Ok(()) } else { Err(ConfigError::Timers { timers }) }
}

fn check_members(id: NodeId, members: &[Member]) -> Result<(), ConfigError> {
    for (position, member) in members.iter().enumerate() {
        if member.id == 0 {
            return Err(ConfigError::ZeroId);
        }
        let earlier = &members[..position];
        if let Some(twin) = earlier.iter().find(|earlier| earlier.id == member.id) {
            let addresses = [twin.peer_address.clone(), member.peer_address.clone()];
            return Err(ConfigError::TwiceInCluster { id: member.id, addresses });
        }
    }
    if members.iter().all(|member| member.id != id) {
        let ids = members.iter().map(|member| member.id).collect();
        return Err(ConfigError::NotInCluster { id, ids });
    }
    Ok(())
}

/// What is wrong with a configuration. The operator caused it; each says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration file {}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words.
        reason: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{place}: {reason}")]
    Syntax {
        /// File and line.
        place: String,
        /// The parser's words.
        reason: String,
    },
    /// There is no such key.
    #[error("{place}: there is no setting `{key}`{}", suggestion.map_or_else(
        || format!("; the settings are {}", settings::all_keys()),
        |nearest| format!("; did you mean `{nearest}`?"),
    ))]
    UnknownKey {
        /// File and line.
        place: String,
        /// What it says.
        key: String,
        /// The nearest setting, if one is near.
        suggestion: Option<&'static str>,
    },
    /// A value is not of its setting's kind.
    #[error("{place}: {key} = {value:?} is not right: {reason}")]
    Value {
        /// File and line, or variable.
        place: String,
        /// The setting.
        key: &'static str,
        /// What it says.
        value: String,
        /// What is expected, with an example.
        reason: String,
    },
    /// A listening address is none.
    #[error(
        "{key} = {address:?} is not an address to listen on; write host:port, such as \
         \"127.0.0.1:2379\""
    )]
    Address {
        /// Which setting.
        key: &'static str,
        /// What it says.
        address: String,
    },
    /// A listener that other machines reach, without protection.
    #[error(
        "{key} = {address:?} can be reached from other machines, and nothing on it is encrypted or \
         authenticated: whoever reaches it can take and release every lock. If the network keeps \
         strangers out, write `insecure = true` (--insecure, LOCKKEEPER_INSECURE=true); otherwise \
         listen on 127.0.0.1"
    )]
    Insecure {
        /// Which setting.
        key: &'static str,
        /// What it says.
        address: String,
    },
    /// In a cluster each node has a number of its own.
    #[error("in a cluster this node needs an id of its own: write `id = 1` (--id, LOCKKEEPER_ID)")]
    MissingId,
    /// Ids start at 1.
    #[error("a node's id must be 1 or more")]
    ZeroId,
    /// Both ways to begin at once.
    #[error(
        "`join` and `cluster` contradict each other: `cluster` founds a new one together with the \
         members listed, `join` waits to be added to one that runs already; give only one"
    )]
    JoinAndCluster,
    /// This node isn't among the members.
    #[error(
        "this node has id {id}, and `cluster` lists only {ids:?}: add it there with its peer \
         address, or correct the id; every member is given the same list"
    )]
    NotInCluster {
        /// This node.
        id: NodeId,
        /// Those listed.
        ids: Vec<NodeId>,
    },
    /// One id, two members.
    #[error("`cluster` lists node {id} twice, at {} and {}", addresses[0], addresses[1])]
    TwiceInCluster {
        /// The id.
        id: NodeId,
        /// Both addresses.
        addresses: [String; 2],
    },
    /// Elections would come without need, never, or always at once.
    #[error(
        "heartbeat_interval = \"{}\" and election_timeout = [\"{}\", \"{}\"] don't go together: \
         the heartbeat must be {HEARTBEAT_INTERVAL_MIN:?} or more, the shortest election time-out \
         at least twice as long as that, and the longest longer still, but \
         {ELECTION_TIMEOUT_MAX:?} at most; one that isn't given is what `network` says",
        humantime::format_duration(timers.heartbeat),
        humantime::format_duration(timers.election_min),
        humantime::format_duration(timers.election_max)
    )]
    Timers {
        /// What they would be.
        timers: Timers,
    },
    /// The longest lease is not a lease.
    #[error(
        "ttl_max = \"{}\" is not right: the longest lease that clients may ask for must lie \
         between {TTL_MS_MIN} ms and {} hours",
        humantime::format_duration(*ttl_max),
        TTL_MS_MAX / 3_600_000
    )]
    TtlMax {
        /// What it says.
        ttl_max: Duration,
    },
    /// A setting of the ZooKeeper front end is wrong, or is missing another.
    #[error("{reason}")]
    ZooKeeper {
        /// What, and what to write instead.
        reason: String,
    },
    /// Nothing is not enough.
    #[error("{key} must be more than 0")]
    Zero {
        /// Which setting.
        key: &'static str,
    },
}
