//! What a client was told when it was made, shared by its sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::embedded::Starter;
use crate::error::Error;
use crate::url::Target;
use crate::views::Owner;

/// The lease of a session unless another is asked for.
pub(crate) const TTL_DEFAULT: Duration = Duration::from_secs(10);
/// The shortest lease: below it, a heartbeat and its confirmation don't fit on a real network.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(200);
/// The longest lease, one day.
pub(crate) const TTL_MAX: Duration = Duration::from_secs(86_400);
/// How long a call looks for a server that can serve it unless told otherwise.
pub(crate) const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The longest time to look for one; more means this.
pub(crate) const CONNECT_TIMEOUT_MAX: Duration = TTL_MAX;

/// Everything a client was told.
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) target: Target,
    pub(crate) ttl: Duration,
    pub(crate) owner: Owner,
    pub(crate) connect_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) starter: Option<Arc<dyn Starter>>,
}

impl Settings {
    /// The endpoints as people know them.
    pub(crate) fn endpoint_names(&self) -> Vec<String> {
        self.target.endpoints.iter().map(ToString::to_string).collect()
    }

    /// The error of having reached no server.
    pub(crate) fn unreachable(&self, last: String) -> Error {
        Error::Unreachable { endpoints: self.endpoint_names(), last }
    }

    /// How long one attempt to connect may take: a retransmission of the first packet fits in, and
    /// a short lease still leaves time to try the others.
    pub(crate) fn dial_limit(&self) -> Duration {
        (self.ttl / 4).clamp(Duration::from_millis(250), Duration::from_secs(2))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("url", &self.url).field("ttl", &self.ttl).finish()
    }
}

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Config(format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}
