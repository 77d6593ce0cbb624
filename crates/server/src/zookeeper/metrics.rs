//! What Prometheus is told of the ZooKeeper front end.
//!
//! Two sets of names: those of ZooKeeper's own exporter (`znode_count`), which dashboards look for,
//! and those that begin with `zk_`, which say what ZooKeeper's don't: who expired, how many
//! notifications a change costs, and how long operations take. No label comes from outside without
//! a bound.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_wire::jute::OpCode;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::facts::{Sizes, Source, monitored};
use crate::histogram::Histogram;
use crate::limits::{CLASSES_MAX, LINE_NAME_BYTES_MAX};

/// From a read to a disk in trouble, in microseconds.
const OPERATIONS: &[u64] = &[
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// Below it, everything counts that isn't told apart.
const OTHER: &str = "other";

/// What is counted as it happens.
pub(crate) struct Figures {
    sessions_expired: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    authentications_failed: AtomicU64,
    /// TLS handshakes under way.
    handshakes: AtomicU64,
    reply_bytes: Mutex<Sizes>,
    /// Notifications by the first part of their paths.
    notifications: Mutex<BTreeMap<Box<str>, u64>>,
    /// One for each operation, in the order of [`OpCode::ALL`], and one for those unknown.
    operations: Vec<Histogram>,
}

impl Default for Figures {
    fn default() -> Self {
        let operations = std::iter::repeat_with(|| Histogram::new(OPERATIONS));
        Self {
            sessions_expired: AtomicU64::default(),
            received: AtomicU64::default(),
            sent: AtomicU64::default(),
            authentications_failed: AtomicU64::default(),
            handshakes: AtomicU64::default(),
            reply_bytes: Mutex::default(),
            notifications: Mutex::default(),
            operations: operations.take(OpCode::ALL.len() + 1).collect(),
        }
    }
}

impl Figures {
    /// A session of a ZooKeeper client was over because nobody heard of it.
    pub(super) fn session_expired(&self) {
        self.sessions_expired.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has come.
    pub(super) fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// A reply or a notification goes out.
    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that came, and what went out, since the start or the last reset.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed))
    }

    /// Counts requests from 0 again.
    pub(super) fn reset_traffic(&self) {
        self.received.store(0, Ordering::Relaxed);
        self.sent.store(0, Ordering::Relaxed);
        *self.reply_bytes.lock() = Sizes::default();
    }

    /// A reply of so many bytes was made, the four of its length not counted.
    pub(super) fn replied(&self, bytes: usize) {
        self.reply_bytes.lock().add(bytes);
    }

    pub(super) fn reply_bytes(&self) -> Sizes {
        *self.reply_bytes.lock()
    }

    /// A TLS handshake begins, and is over when what is returned is dropped.
    pub(super) fn shakes_hands(&self) -> Handshake<'_> {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        Handshake(self)
    }

    pub(super) fn handshakes(&self) -> u64 {
        self.handshakes.load(Ordering::Relaxed)
    }

    /// Somebody's credentials were refused.
    pub(super) fn authentication_failed(&self) {
        self.authentications_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn authentications_failed(&self) -> u64 {
        self.authentications_failed.load(Ordering::Relaxed)
    }

    /// `count` connections were told of a change at `path`.
    pub(super) fn notified(&self, path: &str, count: u64) {
        if count == 0 {
            return;
        }
        let prefix = first_part(path);
        let prefix = if prefix.len() <= LINE_NAME_BYTES_MAX { prefix } else { OTHER };
        let notifications = &mut *self.notifications.lock();
        if let Some(known) = notifications.get_mut(prefix) {
            *known += count;
        } else if notifications.len() < CLASSES_MAX {
            notifications.insert(prefix.into(), count);
        } else {
            *notifications.entry(OTHER.into()).or_default() += count;
        }
    }

    /// A request was answered.
    pub(super) fn answered(&self, op: OpCode, took: Duration) {
        let known = OpCode::ALL.iter().position(|known| *known == op);
        let at = known.unwrap_or(OpCode::ALL.len());
        if let Some(histogram) = self.operations.get(at) {
            histogram.observe(took);
        }
    }
}

/// A TLS handshake that is under way.
pub(super) struct Handshake<'a>(&'a Figures);

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `/a` of `/a/b/c`.
fn first_part(path: &str) -> &str {
    let inside = path.strip_prefix('/').unwrap_or(path);
    let end = inside.find('/').map_or(path.len(), |end| end + path.len() - inside.len());
    path.get(..end).unwrap_or(path)
}

/// Both sets, read at each scrape.
pub(crate) struct Collected {
    figures: Arc<Figures>,
    source: Arc<dyn Source>,
}

impl Collected {
    pub(crate) fn new(figures: Arc<Figures>, source: Arc<dyn Source>) -> Self {
        Self { figures, source }
    }
}

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collected")
    }
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let facts = self.source.facts();
        for (name, figure) in monitored(&facts, self.source.files()) {
            gauge(&mut encoder, name, "As ZooKeeper calls it", figure)?;
        }
        let help = "Voters that this server hears, itself included";
        gauge(&mut encoder, "zk_quorum_size", help, facts.voters_reached.into())?;
        gauge(&mut encoder, "zk_ensemble_size", "Voters there are", facts.voters.into())?;
        let expired = ConstCounter::new(self.figures.sessions_expired.load(Ordering::Relaxed));
        let help = "Sessions of ZooKeeper clients that were over because nobody heard of them";
        let counter =
            encoder.encode_descriptor("zk_session_expired", help, None, MetricType::Counter)?;
        expired.encode(counter)?;
        self.notifications(&mut encoder)?;
        self.ephemerals(&mut encoder, &facts.settings.metrics_prefixes)?;
        self.operations(&mut encoder)
    }
}

impl Collected {
    fn notifications(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Notifications of watches, by the first part of the path that changed";
        let mut family =
            encoder.encode_descriptor("zk_watch_notifications", help, None, MetricType::Counter)?;
        let notifications = self.figures.notifications.lock().clone();
        for (prefix, count) in notifications {
            let labels = [("prefix", &*prefix)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
        Ok(())
    }

    fn ephemerals(&self, encoder: &mut DescriptorEncoder<'_>, prefixes: &[String]) -> fmt::Result {
        let help = "Ephemeral znodes below each child of the configured prefixes";
        let mut family =
            encoder.encode_descriptor("zk_ephemeral_nodes_total", help, None, MetricType::Gauge)?;
        for prefix in prefixes {
            for (path, count) in self.source.ephemerals_below(prefix) {
                let labels = [("prefix", path.as_str())];
                family.encode_family(&labels)?.encode_gauge(&count)?;
            }
        }
        Ok(())
    }

    fn operations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "From a request's arrival to its answer, in milliseconds";
        let mut family = encoder.encode_descriptor(
            "zk_operation_latency_ms",
            help,
            None,
            MetricType::Histogram,
        )?;
        let names = OpCode::ALL.iter().map(|op| op.name().unwrap_or(OTHER)).chain([OTHER]);
        for (name, histogram) in names.zip(&self.figures.operations) {
            if histogram.is_empty() {
                continue;
            }
            let labels = [("operation", name)];
            histogram.encode_in(family.encode_family(&labels)?, 1_000.0)?;
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: i64) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::super::facts::testing::{Fixed, facts};
    use super::*;

    #[test]
    fn both_sets_of_names() {
        let figures = Arc::new(Figures::default());
        figures.session_expired();
        figures.notified("/dedup/key/a", 2);
        figures.notified("/dedup", 1);
        figures.notified("/", 1);
        figures.notified("/quiet", 0);
        figures.answered(OpCode::GET_DATA, Duration::from_micros(1_500));
        figures.answered(OpCode(77), Duration::from_millis(700));
        let mut facts = facts();
        facts.settings.metrics_prefixes = vec!["/dedup".to_owned()];
        (facts.voters, facts.voters_reached) = (3, 2);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Collected::new(figures, Arc::new(Fixed(facts)))));
        let mut told = String::new();
        text::encode(&mut told, &registry).unwrap();
        for line in [
            "znode_count 5",
            "avg_latency 2",
            "quorum_size 3",
            "zk_quorum_size 2",
            "zk_ensemble_size 3",
            "zk_session_expired_total 1",
            "zk_watch_notifications_total{prefix=\"/dedup\"} 3",
            "zk_watch_notifications_total{prefix=\"/\"} 1",
            "zk_ephemeral_nodes_total{prefix=\"/dedup/key\"} 2",
            "zk_operation_latency_ms_sum{operation=\"getData\"} 1.5",
            "zk_operation_latency_ms_bucket{le=\"2.0\",operation=\"getData\"} 1",
            "zk_operation_latency_ms_count{operation=\"other\"} 1",
        ] {
            assert!(told.lines().any(|it| it == line), "{line} in {told}");
        }
        assert!(!told.contains("/quiet") && !told.contains("operation=\"create\""), "{told}");
    }

    #[test]
    fn prefixes_are_bounded() {
        let figures = Figures::default();
        for number in 0..100 {
            figures.notified(&format!("/{number}/x"), 1);
        }
        let notifications = figures.notifications.lock();
        assert_eq!(notifications.len(), CLASSES_MAX + 1);
        assert_eq!(notifications.values().sum::<u64>(), 100);
        drop(notifications);
        let figures = Figures::default();
        figures.notified(&format!("/{}/x", "x".repeat(LINE_NAME_BYTES_MAX)), 1);
        assert_eq!(
            figures.notifications.lock().keys().map(|key| &**key).collect::<Vec<_>>(),
            [OTHER]
        );
    }
}
