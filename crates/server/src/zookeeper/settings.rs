//! What the ZooKeeper front end is told.

use std::sync::Arc;
use std::time::Duration;

use super::{Users, Whitelist};

/// What the ZooKeeper front end is told. The defaults are ZooKeeper's own, but for what says
/// otherwise.
#[derive(Clone, Debug)]
pub struct ZooKeeperSettings {
    /// The unit of time of ZooKeeper's configuration (`tickTime`).
    pub tick: Duration,
    /// The shortest session time-out that is granted; shorter ones are raised to it.
    pub session_timeout_min: Duration,
    /// The longest session time-out that is granted; longer ones are lowered to it.
    pub session_timeout_max: Duration,
    /// Bytes of one request (`jute.maxbuffer`).
    pub frame_bytes_max: usize,
    /// Hard limits of quota nodes are enforced (`enforceQuota`).
    pub enforce_quota: bool,
    /// Nodes with a time to live may be made (`extendedTypesEnabled`); unlike in ZooKeeper they
    /// may unless this is turned off.
    pub ttl_nodes: bool,
    /// Connections from one address (`maxClientCnxns`); 0: any number.
    pub client_connections_max: usize,
    /// `super:<digest>`: who proves this may do everything.
    pub super_digest: Option<String>,
    /// Whose certificate has this subject may do everything, too
    /// (`X509AuthenticationProvider.superUser`).
    pub x509_super: Option<String>,
    /// So may who has logged in by this name (`zookeeper.superUser`).
    pub sasl_super: Option<String>,
    /// Access control lists are stored, and not looked at (`skipACL`).
    pub skip_acl: bool,
    /// Clients that may write `/zookeeper/config` change the members (`reconfigEnabled`).
    pub reconfig: bool,
    /// A server without a majority serves clients that are content to read (`readonlymode`).
    pub read_only: bool,
    /// How often empty containers and nodes whose time is up are looked for.
    pub collect_interval: Duration,
    /// How many of them are removed a minute.
    pub collected_per_minute_max: u32,
    /// The words of four letters that are answered (`4lw.commands.whitelist`).
    pub words: Whitelist,
    /// A connection must have shown one of these schemes before anything but its credentials is
    /// looked at (`enforce.auth.schemes`, `sessionRequireClientSASLAuth`); empty: none.
    pub required_schemes: Vec<String>,
    /// Who may log in by DIGEST-MD5; `None`: there are no such logins.
    pub sasl_users: Option<Arc<Users>>,
    /// Paths whose children are counted by their ephemerals, for the metrics.
    pub metrics_prefixes: Vec<String>,
}

impl Default for ZooKeeperSettings {
    fn default() -> Self {
        let tick = Duration::from_millis(3_000);
        Self {
            tick,
            session_timeout_min: 2 * tick,
            session_timeout_max: 20 * tick,
            frame_bytes_max: 0xf_ffff,
            enforce_quota: false,
            ttl_nodes: true,
            client_connections_max: 60,
            super_digest: None,
            x509_super: None,
            sasl_super: None,
            skip_acl: false,
            reconfig: false,
            read_only: false,
            collect_interval: Duration::from_secs(60),
            collected_per_minute_max: 10_000,
            words: Whitelist::default(),
            required_schemes: Vec::new(),
            sasl_users: None,
            metrics_prefixes: Vec::new(),
        }
    }
}
