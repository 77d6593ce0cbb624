//! One log line, and its share of the metrics, for each transition of a lock.
//!
//! What an operator should see (a hold lost, one asked back) is logged as `info`, the daily traffic
//! as `debug`, both under the target `lockkeeper::lock`: turn it on with the log level
//! `info,lockkeeper::lock=debug`. Every node of a cluster logs every transition, as it applies it.

use std::sync::Arc;

use lockkeeper_core::{Event, Reply, Stamp, StateMachine};
use lockkeeper_node::{NodeHandle, Sink, Unavailable, WatchId};

use crate::metrics::Metrics;
use crate::native::{end_reason, loss_reason};

/// A watch of all locks, for the operator.
pub(crate) struct Transitions {
    metrics: Arc<Metrics>,
}

impl Transitions {
    /// Follows everything that the node applies from now on.
    pub(crate) fn follow(node: &NodeHandle, metrics: &Arc<Metrics>) {
        let sink: Arc<dyn Sink> = Arc::new(Self { metrics: Arc::clone(metrics) });
        node.watch("", 0, &sink);
    }
}

/// A transition's line. The name is escaped, because it comes from a client.
macro_rules! line {
    ($level:ident, $event:literal, $lock:expr, $session:expr, $($field:tt)*) => {
        tracing::$level!(
            target: "lockkeeper::lock",
            lock = %$lock.escape_debug(), session = %$session, event = $event, $($field)*
        )
    };
}

impl Sink for Transitions {
    fn event(&self, _: Option<WatchId>, event: &Event, _: &StateMachine, _: Stamp) {
        match event {
            Event::Queued { lock, session, place, .. } => {
                line!(debug, "queued", lock, session, place);
            }
            Event::Granted { lock, session, token, waited_ms, .. } => {
                let waited_ms = waited_ms.unwrap_or(0);
                self.metrics.granted(lock, waited_ms);
                line!(debug, "granted", lock, session, token = token.0, waited_ms);
            }
            Event::Released { lock, session, token, held_ms, .. } => {
                self.metrics.released(lock, *held_ms);
                line!(debug, "released", lock, session, token = token.0, held_ms);
            }
            Event::Cancelled { lock, session, ended, .. } => {
                let reason = ended.map_or("", end_reason);
                line!(debug, "cancelled", lock, session, reason);
            }
            Event::Revoked { lock, session, token, .. } => {
                line!(info, "revoked", lock, session, token = token.0);
            }
            Event::Lost { lock, session, token, held_ms, reason, .. } => {
                let reason = loss_reason(*reason);
                self.metrics.lost(lock, *held_ms, reason);
                line!(info, "lost", lock, session, token = token.0, held_ms, reason);
            }
            Event::SessionOpened { session } => {
                tracing::debug!(target: "lockkeeper::session", %session, event = "opened");
            }
            Event::SessionEnded { session, reason } => {
                let reason = end_reason(*reason);
                tracing::debug!(target: "lockkeeper::session", %session, event = "ended", reason);
            }
            Event::SessionRevoked { session } => {
                tracing::info!(target: "lockkeeper::session", %session, event = "revoked");
            }
        }
    }

    fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}

    fn confirmed(&self, _: u64) {}

    fn flush(&self) {}

    fn close(&self, _: &'static str) {}
}
