//! One layer of settings, in which nothing has to be said.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_node::{Member, NodeId};
use toml::de::{DeTable, DeValue};

use super::zookeeper::{self, ZooKeeperKeys};
use super::{ConfigError, units};

/// What one layer (file, environment, or flags) says. `None` leaves a setting to the layer below,
/// and at last to its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// This node's id, 1 or more; 1 if it is alone.
    pub id: Option<NodeId>,
    /// The data directory; `lockkeeper-ID.data` in the working directory.
    pub data_dir: Option<PathBuf>,
    /// `host:port` for clients; 127.0.0.1:2379.
    pub listen: Option<String>,
    /// A Unix socket for clients, besides; none.
    pub listen_unix: Option<PathBuf>,
    /// `host:port` for peers; 127.0.0.1:2380.
    pub listen_peer: Option<String>,
    /// The members that found the cluster together, the same list on each; none.
    pub cluster: Option<Vec<Member>>,
    /// Wait to be added to a cluster that runs already; no.
    pub join: Option<bool>,
    /// How far apart the members are; [`Network::Lan`].
    pub network: Option<Network>,
    /// Between two heartbeats of the leader; what `network` says.
    pub heartbeat_interval: Option<Duration>,
    /// The shortest and the longest election time-out; what `network` says.
    pub election_timeout: Option<(Duration, Duration)>,
    /// Listen for other machines without encryption and authentication; no.
    pub insecure: Option<bool>,
    /// How the log's lines look; [`LogFormat::Text`].
    pub log_format: Option<LogFormat>,
    /// Which lines are logged; `info`.
    pub log_level: Option<String>,
    /// Simultaneous client connections; 20,000.
    pub connections_max: Option<usize>,
    /// How long a client has for its greeting; 5 s.
    pub handshake_timeout: Option<Duration>,
    /// How long a connection may carry neither session nor request; 5 min.
    pub idle_timeout: Option<Duration>,
    /// Bytes of log after which a snapshot is taken; 64 MiB.
    pub snapshot_log_bytes: Option<u64>,
    /// Bytes that stay free on the data directory's disk; 256 MiB.
    pub free_space_bytes_min: Option<u64>,
    /// The longest lease that clients may ask for; 24 h.
    pub ttl_max: Option<Duration>,
    /// What is said of the ZooKeeper front end.
    pub zookeeper: ZooKeeperKeys,
}

/// How far apart the members of a cluster are, which sets Raft's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Within one data centre.
    Lan,
    /// Across data centres.
    Wan,
}

/// How the log's lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// The settings' names, as a file has them; in the environment they are upper case, behind
/// `LOCKKEEPER_`.
const KEYS: [&str; 19] = [
    "id",
    "data_dir",
    "listen",
    "listen_unix",
    "listen_peer",
    "cluster",
    "join",
    "network",
    "heartbeat_interval",
    "election_timeout",
    "insecure",
    "log_format",
    "log_level",
    "connections_max",
    "handshake_timeout",
    "idle_timeout",
    "snapshot_log_bytes",
    "free_space_bytes_min",
    "ttl_max",
];

/// All of them.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter().chain(zookeeper::KEYS)
}

/// All of them, for people.
pub(super) fn all_keys() -> String {
    keys().collect::<Vec<_>>().join(", ")
}

impl Settings {
    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the line.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|reason| ConfigError::File { path: path.to_owned(), reason })?;
        Self::from_toml(&text, &path.display().to_string())
    }

    /// Reads TOML; `file` is how errors call it.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the line.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ConfigError> {
        let place = |offset: usize| {
            let line = text[..offset].matches('\n').count() + 1;
            format!("{file}:{line}")
        };
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            place: place(error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        })?;
        let mut settings = Self::default();
        // In the order of the lines, so that the first mistake is told.
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let place = place(key.span().start);
            let name: &str = key.get_ref();
            let Some(known) = keys().find(|known| *known == name) else {
                return Err(unknown_key(place, name));
            };
            let text = plain(value.get_ref());
            settings.set(known, &text).map_err(|reason| ConfigError::Value {
                place,
                key: known,
                value: text,
                reason,
            })?;
        }
        Ok(settings)
    }

    /// Reads the variables that are settings, and leaves the others alone.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`], with the variable.
    pub fn from_environment(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix("LOCKKEEPER_") else { continue };
            let name = name.to_ascii_lowercase();
            let Some(key) = keys().find(|key| *key == name) else { continue };
            settings.set(key, &value).map_err(|reason| ConfigError::Value {
                place: variable,
                key,
                value,
                reason,
            })?;
        }
        Ok(settings)
    }

    /// This layer over `below`.
    #[must_use]
    pub fn or(self, below: Self) -> Self {
        Self {
            id: self.id.or(below.id),
            data_dir: self.data_dir.or(below.data_dir),
            listen: self.listen.or(below.listen),
            listen_unix: self.listen_unix.or(below.listen_unix),
            listen_peer: self.listen_peer.or(below.listen_peer),
            cluster: self.cluster.or(below.cluster),
            join: self.join.or(below.join),
            network: self.network.or(below.network),
            heartbeat_interval: self.heartbeat_interval.or(below.heartbeat_interval),
            election_timeout: self.election_timeout.or(below.election_timeout),
            insecure: self.insecure.or(below.insecure),
            log_format: self.log_format.or(below.log_format),
            log_level: self.log_level.or(below.log_level),
            connections_max: self.connections_max.or(below.connections_max),
            handshake_timeout: self.handshake_timeout.or(below.handshake_timeout),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
            snapshot_log_bytes: self.snapshot_log_bytes.or(below.snapshot_log_bytes),
            free_space_bytes_min: self.free_space_bytes_min.or(below.free_space_bytes_min),
            ttl_max: self.ttl_max.or(below.ttl_max),
            zookeeper: self.zookeeper.or(below.zookeeper),
        }
    }

    /// Reads one setting from its text, which is the same in a file, a variable and a flag.
    ///
    /// # Errors
    ///
    /// What is expected of it; and for a `key` that is none, that.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "id" => self.id = Some(number(text)?),
            "data_dir" => self.data_dir = Some(path(text)?),
            "listen" => self.listen = Some(text.to_owned()),
            "listen_unix" => self.listen_unix = Some(path(text)?),
            "listen_peer" => self.listen_peer = Some(text.to_owned()),
            "cluster" => self.cluster = Some(members(text)?),
            "join" => self.join = Some(yes_or_no(text)?),
            "network" => self.network = Some(network(text)?),
            "heartbeat_interval" => self.heartbeat_interval = Some(units::duration(text)?),
            "election_timeout" => self.election_timeout = Some(shortest_and_longest(text)?),
            "insecure" => self.insecure = Some(yes_or_no(text)?),
            "log_format" => self.log_format = Some(log_format(text)?),
            "log_level" => self.log_level = Some(text.to_owned()),
            "connections_max" => self.connections_max = Some(number(text)?),
            "handshake_timeout" => self.handshake_timeout = Some(units::duration(text)?),
            "idle_timeout" => self.idle_timeout = Some(units::duration(text)?),
            "snapshot_log_bytes" => self.snapshot_log_bytes = Some(units::bytes(text)?),
            "free_space_bytes_min" => self.free_space_bytes_min = Some(units::bytes(text)?),
            "ttl_max" => self.ttl_max = Some(units::duration(text)?),
            other => match self.zookeeper.set(other, text)? {
                Some(()) => {}
                None => return Err(format!("there is no such setting; there are {}", all_keys())),
            },
        }
        Ok(())
    }
}

fn unknown_key(place: String, key: &str) -> ConfigError {
    /// Below this a suggestion would puzzle more than it helps.
    const LIKENESS_MIN: f64 = 0.8;

    let likeness = |known: &str| strsim::jaro_winkler(known, key);
    let nearest = keys().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let suggestion = nearest.filter(|nearest| likeness(nearest) >= LIKENESS_MIN);
    ConfigError::UnknownKey { place, key: key.to_owned(), suggestion }
}

/// A TOML value as the text that a variable or a flag would have; a list is joined by commas.
fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(items) => {
            items.iter().map(|item| plain(item.get_ref())).collect::<Vec<_>>().join(",")
        }
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Items between commas.
pub(super) fn list(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).filter(|it| !it.is_empty()).collect()
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "write a whole number".to_owned())
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("write a path".to_owned()) } else { Ok(text.into()) }
}

pub(super) fn yes_or_no(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "write true or false".to_owned())
}

fn network(text: &str) -> Result<Network, String> {
    match text {
        "lan" => Ok(Network::Lan),
        "wan" => Ok(Network::Wan),
        _ => Err("write \"lan\" within one data centre, \"wan\" across several".to_owned()),
    }
}

fn shortest_and_longest(text: &str) -> Result<(Duration, Duration), String> {
    let (shortest, longest) = text.split_once(',').ok_or_else(|| {
        "write the shortest and the longest time-out, such as \"300ms\", \"600ms\"".to_owned()
    })?;
    Ok((units::duration(shortest.trim())?, units::duration(longest.trim())?))
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("write \"text\" or \"json\"".to_owned()),
    }
}

fn members(text: &str) -> Result<Vec<Member>, String> {
    let member = |item: &str| {
        let (id, address) = item.trim().split_once('=')?;
        let (_, port) = address.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        Some(Member { id: id.parse().ok()?, peer_address: address.to_owned() })
    };
    text.split(',').map(member).collect::<Option<Vec<_>>>().ok_or_else(|| {
        "write ID=HOST:PORT for each member, such as \"1=10.0.0.1:2380\", with its peer address"
            .to_owned()
    })
}
