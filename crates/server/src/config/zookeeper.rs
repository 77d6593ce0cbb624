//! Settings of the ZooKeeper front end: how they are written, and what they come to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::settings::{list, path, yes_or_no};
use super::{ConfigError, host_and_port, units};
use crate::limits::ZOOKEEPER_FRAME_BYTES_MAX;
use crate::zookeeper::{ClientAuth, TlsSettings, Users, Whitelist, ZooKeeperSettings};

/// What one layer says of the ZooKeeper front end. `None` as in [`Settings`](super::Settings).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZooKeeperKeys {
    /// `host:port` for ZooKeeper's clients; none.
    pub listen: Option<String>,
    /// The same, within TLS; none.
    pub tls_listen: Option<String>,
    /// A PEM file with the server's certificate; needed for TLS.
    pub tls_certificate: Option<PathBuf>,
    /// A PEM file with its key; the certificate's.
    pub tls_key: Option<PathBuf>,
    /// A PEM file with the authorities of clients' certificates; none.
    pub tls_authorities: Option<PathBuf>,
    /// Whether clients show certificates; needed if there are authorities.
    pub tls_client_auth: Option<ClientAuth>,
    /// Those files are read again when they have changed; no.
    pub tls_reload: Option<bool>,
    /// The words that are answered; `srvr`.
    pub words: Option<Whitelist>,
    /// ZooKeeper's unit of time; 3 s.
    pub tick_time: Option<Duration>,
    /// The shortest session time-out; two ticks.
    pub min_session_timeout: Option<Duration>,
    /// The longest session time-out; twenty ticks.
    pub max_session_timeout: Option<Duration>,
    /// Bytes of one request; 1 MiB less one.
    pub max_buffer: Option<u64>,
    /// Connections from one address; 60, and 0 for any number.
    pub max_client_connections: Option<usize>,
    /// `super:<digest>` of whoever may do everything; none.
    pub super_digest: Option<String>,
    /// The subject of a certificate that may do everything; none.
    pub x509_super: Option<String>,
    /// The name of a login that may do everything; none.
    pub sasl_super: Option<String>,
    /// Nodes with a time to live may be made; yes.
    pub ttl_nodes: Option<bool>,
    /// How often empty containers and nodes whose time is up are looked for; 1 min.
    pub container_check_interval: Option<Duration>,
    /// Hard quotas are enforced; no.
    pub enforce_quota: Option<bool>,
    /// Access control lists aren't looked at; no.
    pub skip_acl: Option<bool>,
    /// Schemes of which a connection must have shown one; none.
    pub require_auth: Option<Vec<String>>,
    /// A JAAS file with the users of DIGEST-MD5; none.
    pub jaas: Option<PathBuf>,
    /// Clients may change the members; no.
    pub reconfig: Option<bool>,
    /// Clients that only read are served without a majority; no.
    pub read_only: Option<bool>,
    /// Paths whose children's ephemerals are counted; none.
    pub metrics_prefixes: Option<Vec<String>>,
}

pub(super) const KEYS: [&str; 25] = [
    "zookeeper_listen",
    "zookeeper_tls_listen",
    "zookeeper_tls_certificate",
    "zookeeper_tls_key",
    "zookeeper_tls_authorities",
    "zookeeper_tls_client_auth",
    "zookeeper_tls_reload",
    "zookeeper_words_whitelist",
    "zookeeper_tick_time",
    "zookeeper_min_session_timeout",
    "zookeeper_max_session_timeout",
    "zookeeper_max_buffer",
    "zookeeper_max_client_connections",
    "zookeeper_super_digest",
    "zookeeper_x509_super",
    "zookeeper_sasl_super",
    "zookeeper_ttl_nodes",
    "zookeeper_container_check_interval",
    "zookeeper_enforce_quota",
    "zookeeper_skip_acl",
    "zookeeper_require_auth",
    "zookeeper_jaas",
    "zookeeper_reconfig",
    "zookeeper_read_only",
    "zookeeper_metrics_prefixes",
];

impl ZooKeeperKeys {
    pub(super) fn or(self, below: Self) -> Self {
        Self {
            listen: self.listen.or(below.listen),
            tls_listen: self.tls_listen.or(below.tls_listen),
            tls_certificate: self.tls_certificate.or(below.tls_certificate),
            tls_key: self.tls_key.or(below.tls_key),
            tls_authorities: self.tls_authorities.or(below.tls_authorities),
            tls_client_auth: self.tls_client_auth.or(below.tls_client_auth),
            tls_reload: self.tls_reload.or(below.tls_reload),
            words: self.words.or(below.words),
            tick_time: self.tick_time.or(below.tick_time),
            min_session_timeout: self.min_session_timeout.or(below.min_session_timeout),
            max_session_timeout: self.max_session_timeout.or(below.max_session_timeout),
            max_buffer: self.max_buffer.or(below.max_buffer),
            max_client_connections: self.max_client_connections.or(below.max_client_connections),
            super_digest: self.super_digest.or(below.super_digest),
            x509_super: self.x509_super.or(below.x509_super),
            sasl_super: self.sasl_super.or(below.sasl_super),
            ttl_nodes: self.ttl_nodes.or(below.ttl_nodes),
            container_check_interval: self
                .container_check_interval
                .or(below.container_check_interval),
            enforce_quota: self.enforce_quota.or(below.enforce_quota),
            skip_acl: self.skip_acl.or(below.skip_acl),
            require_auth: self.require_auth.or(below.require_auth),
            jaas: self.jaas.or(below.jaas),
            reconfig: self.reconfig.or(below.reconfig),
            read_only: self.read_only.or(below.read_only),
            metrics_prefixes: self.metrics_prefixes.or(below.metrics_prefixes),
        }
    }

    /// `None`: it is no key of these.
    pub(super) fn set(&mut self, key: &str, text: &str) -> Result<Option<()>, String> {
        // A table.
        match key {
            "zookeeper_listen" => self.listen = Some(text.to_owned()),
            "zookeeper_tls_listen" => self.tls_listen = Some(text.to_owned()),
            "zookeeper_tls_certificate" => self.tls_certificate = Some(path(text)?),
            "zookeeper_tls_key" => self.tls_key = Some(path(text)?),
            "zookeeper_tls_authorities" => self.tls_authorities = Some(path(text)?),
            "zookeeper_tls_client_auth" => self.tls_client_auth = Some(client_auth(text)?),
            "zookeeper_tls_reload" => self.tls_reload = Some(yes_or_no(text)?),
            "zookeeper_words_whitelist" => self.words = Some(Whitelist::parse(text)?),
            "zookeeper_tick_time" => self.tick_time = Some(units::duration(text)?),
            "zookeeper_min_session_timeout" => {
                self.min_session_timeout = Some(units::duration(text)?);
            }
            "zookeeper_max_session_timeout" => {
                self.max_session_timeout = Some(units::duration(text)?);
            }
            "zookeeper_max_buffer" => self.max_buffer = Some(units::bytes(text)?),
            "zookeeper_max_client_connections" => {
                self.max_client_connections = Some(connections(text)?);
            }
            "zookeeper_super_digest" => self.super_digest = Some(super_digest(text)?),
            "zookeeper_x509_super" => self.x509_super = Some(subject(text)?),
            "zookeeper_sasl_super" => self.sasl_super = Some(text.to_owned()),
            "zookeeper_ttl_nodes" => self.ttl_nodes = Some(yes_or_no(text)?),
            "zookeeper_container_check_interval" => {
                self.container_check_interval = Some(units::duration(text)?);
            }
            "zookeeper_enforce_quota" => self.enforce_quota = Some(yes_or_no(text)?),
            "zookeeper_skip_acl" => self.skip_acl = Some(yes_or_no(text)?),
            "zookeeper_require_auth" => self.require_auth = Some(schemes(text)?),
            "zookeeper_jaas" => self.jaas = Some(path(text)?),
            "zookeeper_reconfig" => self.reconfig = Some(yes_or_no(text)?),
            "zookeeper_read_only" => self.read_only = Some(yes_or_no(text)?),
            "zookeeper_metrics_prefixes" => self.metrics_prefixes = Some(prefixes(text)?),
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// What the front end is told, and how it speaks TLS, if it does.
    pub(super) fn settle(self) -> Result<(ZooKeeperSettings, Option<TlsSettings>), ConfigError> {
        let tls = self.tls()?;
        let defaults = ZooKeeperSettings::default();
        let tick = self.tick_time.unwrap_or(defaults.tick);
        let sasl_users = match &self.jaas {
            None => None,
            Some(path) => Some(Arc::new(users(path)?)),
        };
        let settings = ZooKeeperSettings {
            tick,
            session_timeout_min: self.min_session_timeout.unwrap_or(2 * tick),
            session_timeout_max: self.max_session_timeout.unwrap_or(20 * tick),
            frame_bytes_max: match self.max_buffer {
                None => defaults.frame_bytes_max,
                Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            },
            enforce_quota: self.enforce_quota.unwrap_or(defaults.enforce_quota),
            ttl_nodes: self.ttl_nodes.unwrap_or(defaults.ttl_nodes),
            client_connections_max: self
                .max_client_connections
                .unwrap_or(defaults.client_connections_max),
            super_digest: self.super_digest,
            x509_super: self.x509_super,
            sasl_super: self.sasl_super,
            skip_acl: self.skip_acl.unwrap_or(defaults.skip_acl),
            reconfig: self.reconfig.unwrap_or(defaults.reconfig),
            read_only: self.read_only.unwrap_or(defaults.read_only),
            collect_interval: self.container_check_interval.unwrap_or(defaults.collect_interval),
            words: self.words.unwrap_or_default(),
            required_schemes: self.require_auth.unwrap_or_default(),
            sasl_users,
            metrics_prefixes: self.metrics_prefixes.unwrap_or_default(),
            ..defaults
        };
        Ok((settings, tls))
    }

    fn tls(&self) -> Result<Option<TlsSettings>, ConfigError> {
        let client_auth = self.tls_client_auth.unwrap_or(match self.tls_authorities {
            Some(_) => ClientAuth::Need,
            None => ClientAuth::None,
        });
        let asks = client_auth != ClientAuth::None;
        match (&self.tls_listen, &self.tls_certificate) {
            (None, _) => Ok(None),
            (Some(_), None) => Err(ConfigError::ZooKeeper {
                reason: "`zookeeper_tls_listen` needs a certificate: write \
                         `zookeeper_tls_certificate = \"server.pem\"`"
                    .to_owned(),
            }),
            (Some(_), Some(_)) if asks && self.tls_authorities.is_none() => {
                Err(ConfigError::ZooKeeper {
                    reason: "to ask clients for certificates, say whose: write \
                             `zookeeper_tls_authorities = \"ca.pem\"`"
                        .to_owned(),
                })
            }
            (Some(_), Some(certificate)) => Ok(Some(TlsSettings {
                certificate: certificate.clone(),
                key: self.tls_key.clone().unwrap_or_else(|| certificate.clone()),
                authorities: self.tls_authorities.clone(),
                client_auth,
                reload: self.tls_reload.unwrap_or(false),
            })),
        }
    }
}

/// Checks what belongs together.
pub(super) fn check(settings: &ZooKeeperSettings) -> Result<(), ConfigError> {
    let wrong = |reason: String| Err(ConfigError::ZooKeeper { reason });
    let ZooKeeperSettings { tick, session_timeout_min, session_timeout_max, .. } = settings;
    if tick.is_zero() || session_timeout_min > session_timeout_max {
        let text = |it: &Duration| humantime::format_duration(*it).to_string();
        return wrong(format!(
            "session time-outs from {} to {} with ticks of {} can't be; the shortest is \
             `zookeeper_min_session_timeout`, the longest `zookeeper_max_session_timeout`",
            text(session_timeout_min),
            text(session_timeout_max),
            text(tick),
        ));
    }
    if settings.collect_interval.is_zero() {
        return Err(ConfigError::Zero { key: "zookeeper_container_check_interval" });
    }
    let bytes = settings.frame_bytes_max;
    if !(FRAME_BYTES_LEAST..=ZOOKEEPER_FRAME_BYTES_MAX).contains(&bytes) {
        let most = ZOOKEEPER_FRAME_BYTES_MAX;
        return wrong(format!(
            "zookeeper_max_buffer = {bytes} is not right: it must lie between \
             {FRAME_BYTES_LEAST} and {most} bytes, for a request must fit in one entry of the log"
        ));
    }
    let wants_sasl = settings.required_schemes.iter().any(|scheme| scheme == "sasl");
    if wants_sasl && settings.sasl_users.is_none() {
        return wrong(
            "`zookeeper_require_auth` wants `sasl`, and there are no users: write \
             `zookeeper_jaas = \"jaas.conf\"`"
                .to_owned(),
        );
    }
    Ok(())
}

/// Whether an address can be listened on, and by whom it would be reached without TLS.
pub(super) fn check_tls_listener(address: &str) -> Result<(), ConfigError> {
    let key = "zookeeper_tls_listen";
    match host_and_port(address) {
        Some(_) => Ok(()),
        None => Err(ConfigError::Address { key, address: address.to_owned() }),
    }
}

/// A handshake fits, and a short path.
const FRAME_BYTES_LEAST: usize = 1_024;

fn users(path: &std::path::Path) -> Result<Users, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|reason| ConfigError::File { path: path.to_owned(), reason })?;
    Users::from_jaas(&text).map_err(|reason| ConfigError::ZooKeeper {
        reason: format!("zookeeper_jaas: {}: {reason}", path.display()),
    })
}

fn client_auth(text: &str) -> Result<ClientAuth, String> {
    match text {
        "none" => Ok(ClientAuth::None),
        "want" => Ok(ClientAuth::Want),
        "need" => Ok(ClientAuth::Need),
        _ => Err("write \"none\", \"want\" or \"need\"".to_owned()),
    }
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "write how many there may be, or 0 for any number".to_owned())
}

/// As it is compared: to the letter.
fn subject(text: &str) -> Result<String, String> {
    if text.contains('=') {
        Ok(text.to_owned())
    } else {
        Err("write a certificate's subject as whoAmI shows it, such as \"CN=admin,O=example\""
            .to_owned())
    }
}

/// The name is fixed: ZooKeeper knows no other.
fn super_digest(text: &str) -> Result<String, String> {
    match text.strip_prefix("super:") {
        Some(digest) if !digest.is_empty() => Ok(text.to_owned()),
        _ => Err("write \"super:\" and the digest, which is the base64 of the SHA-1 of \
                  \"super:PASSWORD\""
            .to_owned()),
    }
}

fn schemes(text: &str) -> Result<Vec<String>, String> {
    let schemes = list(text);
    let known = |scheme: &String| matches!(scheme.as_str(), "digest" | "sasl" | "x509" | "ip");
    if schemes.iter().all(known) {
        Ok(schemes)
    } else {
        Err("write some of \"digest\", \"sasl\", \"x509\" and \"ip\"".to_owned())
    }
}

fn prefixes(text: &str) -> Result<Vec<String>, String> {
    /// Each costs something at every scrape.
    const PREFIXES_MAX: usize = 8;

    let prefixes = list(text);
    let is_path = |path: &String| path.starts_with('/') && (path == "/" || !path.ends_with('/'));
    if prefixes.len() <= PREFIXES_MAX && prefixes.iter().all(is_path) {
        Ok(prefixes)
    } else {
        Err(format!("write up to {PREFIXES_MAX} paths, such as \"/dedup\""))
    }
}
