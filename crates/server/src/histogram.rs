//! A histogram that costs two additions to observe: no lock, no allocation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// From a lock's round trip to a long night's batch, in microseconds.
pub(crate) const WAITS: &[u64] = &[
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
    7_200_000_000,
    28_800_000_000,
];

/// From one fsync to a disk or a network in trouble, in microseconds.
pub(crate) const COMMITS: &[u64] = &[
    250, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// Leases from the shortest to the longest, in microseconds.
pub(crate) const LEASES: &[u64] = &[
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
    7_200_000_000,
    86_400_000_000,
];

/// Durations, counted in buckets. Clones share one.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The greatest duration of each bucket but the last, in microseconds.
    bounds: &'static [u64],
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        let counts = std::iter::repeat_with(AtomicU64::default).take(bounds.len() + 1).collect();
        Self { inner: Arc::new(Inner { bounds, counts, sum: AtomicU64::new(0) }) }
    }

    pub(crate) fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let Inner { bounds, counts, sum } = &*self.inner;
        let bucket = bounds.partition_point(|bound| *bound < micros);
        counts[bucket].fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(micros, Ordering::Relaxed);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl Histogram {
    /// Whether nothing was observed yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }

    /// Encodes it in a unit of so many microseconds.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people: 53 bits are plenty")]
    pub(crate) fn encode_in(&self, mut encoder: MetricEncoder<'_>, unit: f64) -> fmt::Result {
        let Inner { bounds, counts, sum } = &*self.inner;
        let bounds = bounds.iter().map(|bound| *bound as f64 / unit).chain([f64::INFINITY]);
        let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = sum.load(Ordering::Relaxed) as f64 / unit;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.encode_in(encoder, SECOND)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Microseconds of a second.
const SECOND: f64 = 1_000_000.0;

/// Prometheus counts in seconds.
#[expect(clippy::cast_precision_loss, reason = "a figure for people: 53 bits are plenty")]
pub(crate) fn seconds(micros: u64) -> f64 {
    micros as f64 / SECOND
}
