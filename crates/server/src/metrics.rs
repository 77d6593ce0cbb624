//! What this node tells Prometheus.
//!
//! No label comes from outside without a bound: a lock counts for the class of its name, which is
//! the first segment, and only the first [`CLASSES_MAX`] classes are told apart.
//!
//! Every replica applies every entry, so what is counted from the state and its transitions is
//! nearly the same on each node of a cluster: look at one, or take the greatest, never the sum.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use lockkeeper_node::NodeHandle;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::connections::Connections;
use crate::limits::CLASSES_MAX;

/// The class of every lock whose own isn't told apart.
const OTHER: &str = "other";

/// Everything that is measured.
pub(crate) struct Metrics {
    registry: Registry,
    classes: Mutex<HashMap<Box<str>, Class>>,
    acquire_seconds: Family<ClassLabel, Histogram, Buckets>,
    hold_seconds: Family<ClassLabel, Histogram, Buckets>,
    lost: Family<LossLabels, Counter>,
}

/// The figures of one class, found without making labels anew for each event.
#[derive(Clone)]
struct Class {
    acquire_seconds: Histogram,
    hold_seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LossLabels {
    class: String,
    reason: &'static str,
}

#[derive(Clone)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        /// From a lock's round trip to a long night's batch, in seconds.
        const SECONDS: [f64; 14] = [
            0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0,
            28_800.0,
        ];
        Histogram::new(SECONDS)
    }
}

impl Metrics {
    pub(crate) fn new(node: NodeHandle, connections: Arc<Connections>) -> Self {
        let mut registry = Registry::with_prefix("lockkeeper");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "What this server is", version);
        let acquire_seconds = Family::new_with_constructor(Buckets);
        registry.register(
            "acquire_seconds",
            "From request to grant, by the log's stamps",
            acquire_seconds.clone(),
        );
        let hold_seconds = Family::new_with_constructor(Buckets);
        registry.register(
            "hold_seconds",
            "From grant to release or loss, by the log's stamps",
            hold_seconds.clone(),
        );
        let lost = Family::default();
        registry.register("lost", "Holds that were taken away", lost.clone());
        registry.register_collector(Box::new(OfNode { node, connections }));
        Self { registry, classes: Mutex::default(), acquire_seconds, hold_seconds, lost }
    }

    /// All of it in the OpenMetrics text format.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("a string takes all that is written");
        text
    }

    pub(crate) fn granted(&self, lock: &str, waited_ms: u64) {
        self.class(lock).acquire_seconds.observe(seconds(waited_ms));
    }

    pub(crate) fn released(&self, lock: &str, held_ms: u64) {
        self.class(lock).hold_seconds.observe(seconds(held_ms));
    }

    pub(crate) fn lost(&self, lock: &str, held_ms: u64, reason: &'static str) {
        self.released(lock, held_ms);
        let class = self.class_name(lock).to_owned();
        self.lost.get_or_create(&LossLabels { class, reason }).inc();
    }

    fn class(&self, lock: &str) -> Class {
        let mut classes = self.classes.lock();
        let name = class_of(lock);
        if let Some(class) = classes.get(name) {
            return class.clone();
        }
        let name = if classes.len() < CLASSES_MAX { name } else { OTHER };
        let class = ClassLabel { class: name.to_owned() };
        let class = Class {
            acquire_seconds: self.acquire_seconds.get_or_create(&class).clone(),
            hold_seconds: self.hold_seconds.get_or_create(&class).clone(),
        };
        classes.entry(name.into()).or_insert(class).clone()
    }

    /// The name under which a lock is counted.
    fn class_name<'a>(&self, lock: &'a str) -> &'a str {
        let name = class_of(lock);
        if self.classes.lock().contains_key(name) { name } else { OTHER }
    }
}

fn class_of(lock: &str) -> &str {
    lock.split_once('/').map_or(lock, |(class, _)| class)
}

#[expect(clippy::cast_precision_loss, reason = "a duration in milliseconds, for a histogram")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// What the node and the connections know, read at each scrape.
struct OfNode {
    node: NodeHandle,
    connections: Arc<Connections>,
}

impl fmt::Debug for OfNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfNode")
    }
}

impl Collector for OfNode {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures(encoder);
        self.of_connections(&mut figures)?;
        self.of_state(&mut figures)?;
        self.of_raft(&mut figures)
    }
}

impl OfNode {
    fn of_connections(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let connections = &self.connections;
        figures.gauge("connections", "Open client connections", connections.open_count() as u64)?;
        figures.counter(
            "connections_admitted",
            "Client connections accepted",
            connections.admitted_count(),
        )?;
        figures.counter(
            "connections_turned_away",
            "Client connections refused for want of room",
            connections.turned_away_count(),
        )
    }

    fn of_state(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let (counts, revision, is_silent) =
            self.node.query(|state, _| (state.counts(), state.revision(), state.is_silent()));
        figures.gauge("sessions", "Live sessions", counts.sessions as u64)?;
        figures.gauge("locks", "Locks that are held or waited for", counts.locks as u64)?;
        figures.gauge("holds", "Holds", counts.holds as u64)?;
        figures.gauge("waiters", "Places in queues", counts.waiters as u64)?;
        figures.counter("revision", "The state's counter, from which tokens come", revision.0)?;
        figures.gauge("is_silent", "1 while grants are withheld after a restore", is_silent.into())
    }

    fn of_raft(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let status = self.node.status();
        let voters = status.members.iter().filter(|member| member.is_voter).count();
        let leads = status.leader == Some(status.id);
        figures.gauge(
            "ready",
            "1 if linearizable requests can be served",
            status.is_ready.into(),
        )?;
        figures.gauge("raft_is_leader", "1 on the leader", leads.into())?;
        figures.gauge("raft_term", "Raft's term", status.term)?;
        figures.gauge("raft_applied_index", "The last applied log index", status.applied_index)?;
        figures.gauge("raft_voters", "Voters there are", voters as u64)?;
        let reached = status.voters_reached.into();
        figures.gauge("raft_voters_reached", "Voters heard, this node included", reached)?;
        figures.counter("raft_leader_changes", "Elections seen to end", status.leader_changes)?;
        let queued = status.queued_bytes as u64;
        figures.gauge("log_queued_bytes", "Bytes of commands that wait for the log", queued)?;
        figures.counter("log_fsyncs", "Fsyncs of the log", status.fsyncs)?;
        figures.counter(
            "log_fsync_microseconds",
            "Microseconds spent in fsyncs of the log",
            status.fsync_micros,
        )
    }
}

struct Figures<'a>(DescriptorEncoder<'a>);

impl Figures<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }
}
