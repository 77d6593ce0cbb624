//! What this node tells Prometheus.
//!
//! No label comes from outside without a bound: see [`crate::figures`] for what is counted by
//! class.
//!
//! Every replica applies every entry, so what is counted from the state and its transitions is
//! nearly the same on each node of a cluster: look at one, or take the greatest, never the sum.
//! What is counted of one node's own clients (`refused`, `raft_commit_seconds`) and hand-overs,
//! each of which is counted on one node only, are to be summed.

use std::fmt;
use std::sync::Arc;

use lockkeeper_node::{Clock, NodeHandle, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeMetric, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::connections::Connections;
use crate::figures::{Figures, QueuesNow};
use crate::histogram::seconds;
use crate::zookeeper::Collected;

/// Everything that is measured.
pub(crate) struct Metrics {
    registry: Registry,
    /// What has names of its own.
    unprefixed: Registry,
}

impl Metrics {
    pub(crate) fn new(
        node: NodeHandle,
        connections: Arc<Connections>,
        locks: Arc<Figures>,
        clock: Arc<dyn Clock>,
        zookeeper: Option<Collected>,
    ) -> Self {
        let mut registry = Registry::with_prefix("lockkeeper");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "What this server is", version);
        locks.register(&mut registry);
        registry.register_collector(Box::new(OfNode { node, connections, locks, clock }));
        let mut unprefixed = Registry::default();
        if let Some(zookeeper) = zookeeper {
            unprefixed.register_collector(Box::new(zookeeper));
        }
        Self { registry, unprefixed }
    }

    /// All of it in the OpenMetrics text format.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        let encoded = text::encode_registry(&mut text, &self.registry)
            .and_then(|()| text::encode_registry(&mut text, &self.unprefixed))
            .and_then(|()| text::encode_eof(&mut text));
        encoded.expect("a string takes all that is written");
        text
    }
}

/// What the node and the connections know, read at each scrape.
struct OfNode {
    node: NodeHandle,
    connections: Arc<Connections>,
    locks: Arc<Figures>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for OfNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfNode")
    }
}

impl Collector for OfNode {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        self.of_connections(&mut writer)?;
        self.of_state(&mut writer)?;
        self.of_queues(&mut writer)?;
        let status = self.node.status();
        of_raft(&status, &mut writer)?;
        of_log(&status, &mut writer)?;
        of_peers(&status, &mut writer)?;
        of_leases(&status, &mut writer)
    }
}

impl OfNode {
    fn of_connections(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let connections = &self.connections;
        writer.gauge("connections", "Open client connections", connections.open_count() as u64)?;
        writer.counter(
            "connections_admitted",
            "Client connections accepted",
            connections.admitted_count(),
        )?;
        writer.counter(
            "connections_turned_away",
            "Client connections refused for want of room",
            connections.turned_away_count(),
        )
    }

    fn of_state(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let (counts, revision, is_silent) =
            self.node.query(|state, _| (state.counts(), state.revision(), state.is_silent()));
        writer.gauge("sessions", "Live sessions", counts.sessions as u64)?;
        writer.gauge("locks", "Locks that are held or waited for", counts.locks as u64)?;
        writer.gauge("holds", "Holds", counts.holds as u64)?;
        writer.gauge("waiters", "Places in queues", counts.waiters as u64)?;
        writer.counter("revision", "The state's counter, from which tokens come", revision.0)?;
        writer.gauge("is_silent", "1 while grants are withheld after a restore", is_silent.into())
    }

    /// By the log's stamps, which stand still while nothing happens, and the clock, which may be
    /// another node's idea of the time.
    fn of_queues(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let queues = self.locks.queues();
        let now = self.node.query(|_, now| now).0.max(self.clock.wall_ms());
        let length = |queue: &QueuesNow| (queue.class.clone(), queue.length);
        writer.gauges("queue_length", "Places in queues", "class", queues.iter().map(length))?;
        let age = |queue: &QueuesNow| {
            let waited_ms = queue.oldest.map_or(0, |since| now.saturating_sub(since.0));
            (queue.class.clone(), seconds(1_000 * waited_ms))
        };
        let help = "How long the oldest of those who wait has";
        writer.gauges("queue_oldest_seconds", help, "class", queues.iter().map(age))
    }
}

fn of_raft(status: &Status, writer: &mut Writer<'_>) -> fmt::Result {
    let voters = status.members.iter().filter(|member| member.is_voter).count();
    let leads = status.leader == Some(status.id);
    writer.gauge("ready", "1 if linearizable requests can be served", status.is_ready.into())?;
    writer.gauge("raft_is_leader", "1 on the leader", leads.into())?;
    writer.gauge("raft_term", "Raft's term", status.term)?;
    writer.gauge("raft_applied_index", "The last applied log index", status.applied_index)?;
    writer.gauge("raft_voters", "Voters there are", voters as u64)?;
    let reached = status.voters_reached.into();
    writer.gauge("raft_voters_reached", "Voters heard, this node included", reached)?;
    writer.counter("raft_leader_changes", "Elections seen to end", status.leader_changes)
}

fn of_log(status: &Status, writer: &mut Writer<'_>) -> fmt::Result {
    let queued = status.queued_bytes as u64;
    writer.gauge("log_queued_bytes", "Bytes of commands that wait for the log", queued)?;
    writer.counter("log_fsyncs", "Fsyncs of the log", status.fsyncs)?;
    writer.counter(
        "log_fsync_microseconds",
        "Microseconds spent in fsyncs of the log",
        status.fsync_micros,
    )?;
    writer.gauge("log_disk_free_bytes", "Bytes free on the log's disk", status.disk_free_bytes)?;
    let is_refusing = status.is_refusing_for_space.into();
    let help = "1 while new work is refused because a disk of the cluster is nearly full";
    writer.gauge("disk_full", help, is_refusing)
}

/// Peers are labelled with their ids: as many as there are members.
fn of_peers(status: &Status, writer: &mut Writer<'_>) -> fmt::Result {
    let peers = || status.members.iter().filter(|member| member.member.id != status.id);
    let silence = peers()
        .filter_map(|peer| Some((peer.member.id.to_string(), seconds(1_000 * peer.heard_ms_ago?))));
    writer.gauges("peer_silence_seconds", "Since a peer was last heard", "peer", silence)?;
    let round_trip = peers()
        .filter_map(|peer| Some((peer.member.id.to_string(), seconds(peer.round_trip_micros?))));
    let help = "The newest heartbeat's way to a peer and back; on the leader";
    writer.gauges("peer_rtt_seconds", help, "peer", round_trip)
}

/// On the leader: how much of a lease was left when its session was heard from again.
fn of_leases(status: &Status, writer: &mut Writer<'_>) -> fmt::Result {
    let bounds = (1..).map(|tenths| f64::from(tenths) / 10.0);
    let margins = status.lease_margins;
    let buckets: Vec<(f64, u64)> = bounds.zip(margins.tenths).collect();
    let (last, buckets) = buckets.split_last().expect("there are ten tenths");
    let buckets: Vec<(f64, u64)> =
        buckets.iter().copied().chain([(f64::INFINITY, last.1)]).collect();
    let count = margins.tenths.iter().sum();
    let sum = seconds(1_000 * margins.sum_permille);
    let help = "The share of a lease that was left when its session was heard from again";
    let encoder =
        writer.0.encode_descriptor("lease_margin_ratio", help, None, MetricType::Histogram);
    encoder?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}

struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }

    /// One gauge for each value of a label.
    fn gauges<V: EncodeGaugeValue + Copy>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Iterator<Item = (String, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (value, figure) in values {
            let labels = [(label, value)];
            let mut encoder = family.encode_family(&labels)?;
            encoder.encode_gauge(&figure)?;
        }
        Ok(())
    }
}
