//! What a client was told when it was made, shared by its sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::embedded::Starter;
use crate::error::Error;
use crate::network::Network;
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

/// The first pause before an endpoint is tried again; it doubles with each round.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Everything a client was told.
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) target: Target,
    pub(crate) ttl: Duration,
    pub(crate) owner: Owner,
    pub(crate) connect_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) starter: Option<Arc<dyn Starter>>,
}

impl Settings {
    /// The endpoints as people know them.
    pub(crate) fn endpoint_names(&self) -> Vec<String> {
        self.target.endpoints.iter().map(ToString::to_string).collect()
    }

    /// Random bits from the world.
    pub(crate) fn random(&self) -> Result<u64, Error> {
        let none = |error| Error::Config(format!("the system gives no random bits: {error}"));
        self.network.random().map_err(none)
    }

    /// A pause before attempt `round` (from 1 on): doubling, and varied by half so that clients
    /// which lost the same server don't come back in step.
    pub(crate) fn pause(&self, round: u32) -> Duration {
        let full = PAUSE_MIN.saturating_mul(1 << round.min(10)).min(PAUSE_MAX);
        // Without random bits the clients come back in step, and no worse.
        let chance = self.network.random().unwrap_or(u64::MAX) >> 32;
        full / 2 + (full / 2).mul_f64(chance as f64 / f64::from(u32::MAX))
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
