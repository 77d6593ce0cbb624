//! What a run found: a table for people, one JSON object a line for programs.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::output;

/// Latencies in nanoseconds, from 1 us to 100 s, with three significant digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 100_000_000_000, 3).expect("the bounds are in order")
}

/// Counts one latency.
pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(nanos);
}

/// The figures of one run, in the order in which they are shown.
pub(crate) struct Report {
    figures: Vec<(String, Value)>,
}

impl Report {
    /// A report that says what was run.
    pub(crate) fn new(workload: String, workers: usize, sessions: usize) -> Self {
        let mut report = Self { figures: Vec::new() };
        report.figure("workload", workload);
        report.figure("workers", workers);
        report.figure("sessions", sessions);
        report
    }

    /// Adds a figure; its unit is in its name.
    pub(crate) fn figure(&mut self, name: &str, value: impl Into<Value>) {
        self.figures.push((name.to_owned(), value.into()));
    }

    /// Adds a figure with a fraction, rounded to what its size makes meaningful.
    pub(crate) fn fraction(&mut self, name: &str, value: f64) {
        let digits = if value.abs() >= 100.0 {
            0
        } else if value.abs() >= 1.0 {
            2
        } else {
            4
        };
        let scale = 10_f64.powi(digits);
        self.figure(name, json!((value * scale).round() / scale));
    }

    /// Adds the percentiles of a latency, in milliseconds, as `{prefix}p50_ms` and so on.
    pub(crate) fn latency(&mut self, prefix: &str, histogram: &Histogram<u64>) {
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
            let nanos = histogram.value_at_quantile(quantile);
            self.fraction(&format!("{prefix}{name}_ms"), nanos as f64 / 1e6);
        }
    }

    /// Adds the servers' CPU time for each of `operations`.
    pub(crate) fn server_cpu(&mut self, used: Duration, operations: u64) {
        if operations > 0 {
            let micros = used.as_secs_f64() * 1e6 / operations as f64;
            self.fraction("server_cpu_us_per_op", micros);
        }
    }

    /// Prints it to standard output.
    pub(crate) fn print(&self, as_json: bool) -> Result<()> {
        self.write(as_json).map_err(|failure| anyhow::anyhow!(failure.to_string()))
    }

    fn write(&self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            return output::object(&self);
        }
        let width = self.figures.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &self.figures {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            output::line(format!("{name:width$}  {value}"))?;
        }
        Ok(())
    }
}

impl Serialize for Report {
    /// One object, its figures in the order in which they were added.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.figures.len()))?;
        for (name, value) in &self.figures {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
