//! One log line, and its share of the metrics, for each transition of a lock.
//!
//! The lines are `info` under the target `lockkeeper::lock`, and come from the leader alone, so
//! that a cluster tells each transition once (around a change of leaders perhaps twice, or not at
//! all: the state is what counts). What is lost or asked back is a `warn`: who has too many lines
//! sets the log level to `info,lockkeeper::lock=warn`.
//!
//! Every node counts what it applies.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Event, Reply, Stamp, StateMachine};
use lockkeeper_node::{Clock, NodeHandle, Sink, Unavailable, WatchId};
use tokio::sync::{Notify, watch};

use crate::figures::Figures;
use crate::native::{end_reason, loss_reason};

/// A watch of all locks, for the operator.
pub(crate) struct Transitions {
    node: NodeHandle,
    figures: Arc<Figures>,
    clock: Arc<dyn Clock>,
    /// The node has ended the watch.
    closed: Arc<Notify>,
}

/// Follows everything that the node applies from now on, until `stopping` turns true.
///
/// A node ends all watches when a snapshot takes the place of its state; then this begins anew with
/// that state. To be called on the node's runtime.
pub(crate) fn follow(
    node: &NodeHandle,
    figures: &Arc<Figures>,
    clock: &Arc<dyn Clock>,
    mut stopping: watch::Receiver<bool>,
) {
    let closed = Arc::new(Notify::new());
    let (node, figures) = (node.clone(), Arc::clone(figures));
    let sink: Arc<dyn Sink> = Arc::new(Transitions {
        node: node.clone(),
        figures: Arc::clone(&figures),
        clock: Arc::clone(clock),
        closed: Arc::clone(&closed),
    });
    begin(&node, &figures, &sink);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = stopping.wait_for(|is_stopping| *is_stopping) => return,
                () = closed.notified() => begin(&node, &figures, &sink),
            }
        }
    });
}

/// Nothing is applied between the two looks at the node, because both are on its own thread.
fn begin(node: &NodeHandle, figures: &Arc<Figures>, sink: &Arc<dyn Sink>) {
    let epoch = figures.forget_queues();
    let frozen = node.query(|state, _| (state.counts().waiters > 0).then(|| state.clone()));
    node.watch("", 0, sink);
    let Some(frozen) = frozen else { return };
    let counting = Arc::clone(figures);
    let count = move || counting.add_queues(epoch, &frozen);
    if let Err(error) = thread::Builder::new().name("queues".to_owned()).spawn(count) {
        tracing::warn!(%error, "who waits already isn't counted in the metrics");
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
    /// How long a command of the leader's own that was stamped at `stamp` has been on its way, if
    /// this is the leader: only its clock made the stamp.
    fn took(&self, stamp: Stamp) -> Option<Duration> {
        let took_ms = self.clock.wall_ms().saturating_sub(stamp.0);
        self.node.leads().then_some(Duration::from_millis(took_ms))
    }
}

/// Whether the log level lets the event's line through.
fn is_read(event: &Event) -> bool {
    match event {
        Event::Revoked { .. } | Event::Lost { .. } | Event::SessionRevoked { .. } => true,
        Event::SessionOpened { .. } | Event::SessionEnded { .. } | Event::SessionMoved { .. } => {
            tracing::enabled!(target: "lockkeeper::session", tracing::Level::DEBUG)
        }
        Event::Queued { .. }
        | Event::Granted { .. }
        | Event::Released { .. }
        | Event::Cancelled { .. } => {
            tracing::enabled!(target: "lockkeeper::lock", tracing::Level::INFO)
        }
        // Nobody's log is that of a tree.
        Event::Node { .. } => false,
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
        Event::SessionMoved { session, .. } => {
            tracing::debug!(target: "lockkeeper::session", %session, event = "moved");
        }
        Event::Node { .. } => {}
    }
}

impl Sink for Transitions {
    fn batch(&self, took: Option<Duration>) {
        self.figures.batch(took);
    }

    fn event(&self, _: Option<WatchId>, event: &Event, state: &StateMachine, now: Stamp) {
        self.figures.count(event, state, now, || self.took(now));
        // Asking who leads costs more than asking whether anybody would read the line.
        if is_read(event) && self.node.leads() {
            log(event);
        }
    }

    fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}

    fn confirmed(&self, _: u64) {}

    fn flush(&self) {}

    fn close(&self, _: &'static str) {
        self.closed.notify_one();
    }
}
