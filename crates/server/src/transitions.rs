//! One log line, and its share of the metrics, for each transition of a lock.
//!
//! The lines are `info` under the target `lockkeeper::lock`, and come from the leader alone, so
//! that a cluster tells each transition once (around a change of leaders perhaps twice, or not at
//! all: the state is what counts). What is lost or asked back is a `warn`: who has too many lines
//! sets the log level to `info,lockkeeper::lock=warn`.
//!
//! Every node counts what it applies.

use std::sync::Arc;

use lockkeeper_core::{Event, Reply, Stamp, StateMachine};
use lockkeeper_node::{NodeHandle, Sink, Unavailable, WatchId};

use crate::metrics::Metrics;
use crate::native::{end_reason, loss_reason};

/// A watch of all locks, for the operator.
pub(crate) struct Transitions {
    node: NodeHandle,
    metrics: Arc<Metrics>,
}

impl Transitions {
    /// Follows everything that the node applies from now on.
    pub(crate) fn follow(node: &NodeHandle, metrics: &Arc<Metrics>) {
        let sink: Arc<dyn Sink> =
            Arc::new(Self { node: node.clone(), metrics: Arc::clone(metrics) });
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

impl Transitions {
    fn count(&self, event: &Event) {
        match event {
            Event::Granted { lock, waited_ms, .. } => {
                self.metrics.granted(lock, waited_ms.unwrap_or(0));
            }
            Event::Released { lock, held_ms, .. } => self.metrics.released(lock, *held_ms),
            Event::Lost { lock, held_ms, reason, .. } => {
                self.metrics.lost(lock, *held_ms, loss_reason(*reason));
            }
            Event::Queued { .. }
            | Event::Cancelled { .. }
            | Event::Revoked { .. }
            | Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::SessionRevoked { .. } => {}
        }
    }
}

/// Whether the log level lets the event's line through.
fn is_read(event: &Event) -> bool {
    match event {
        Event::Revoked { .. } | Event::Lost { .. } | Event::SessionRevoked { .. } => true,
        Event::SessionOpened { .. } | Event::SessionEnded { .. } => {
            tracing::enabled!(target: "lockkeeper::session", tracing::Level::DEBUG)
        }
        Event::Queued { .. }
        | Event::Granted { .. }
        | Event::Released { .. }
        | Event::Cancelled { .. } => {
            tracing::enabled!(target: "lockkeeper::lock", tracing::Level::INFO)
        }
    }
}

fn log(event: &Event) {
    match event {
        Event::Queued { lock, session, place, .. } => {
            line!(info, "queued", lock, session, place);
        }
        Event::Granted { lock, session, token, waited_ms, .. } => {
            let waited_ms = waited_ms.unwrap_or(0);
            line!(info, "granted", lock, session, token = token.0, waited_ms);
        }
        Event::Released { lock, session, token, held_ms, .. } => {
            line!(info, "released", lock, session, token = token.0, held_ms);
        }
        Event::Cancelled { lock, session, waited_ms, ended, .. } => {
            let reason = ended.map_or("", end_reason);
            line!(info, "cancelled", lock, session, waited_ms, reason);
        }
        Event::Revoked { lock, session, token, .. } => {
            line!(warn, "revoked", lock, session, token = token.0);
        }
        Event::Lost { lock, session, token, held_ms, reason, .. } => {
            let reason = loss_reason(*reason);
            line!(warn, "lost", lock, session, token = token.0, held_ms, reason);
        }
        Event::SessionOpened { session } => {
            tracing::debug!(target: "lockkeeper::session", %session, event = "opened");
        }
        Event::SessionEnded { session, reason } => {
            let reason = end_reason(*reason);
            tracing::debug!(target: "lockkeeper::session", %session, event = "ended", reason);
        }
        Event::SessionRevoked { session } => {
            tracing::warn!(target: "lockkeeper::session", %session, event = "revoked");
        }
    }
}

impl Sink for Transitions {
    fn event(&self, _: Option<WatchId>, event: &Event, _: &StateMachine, _: Stamp) {
        self.count(event);
        // Asking who leads costs more than asking whether anybody would read the line.
        if is_read(event) && self.node.leads() {
            log(event);
        }
    }

    fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}

    fn confirmed(&self, _: u64) {}

    fn flush(&self) {}

    fn close(&self, _: &'static str) {}
}
