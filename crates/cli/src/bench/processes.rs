//! CPU time and memory of the servers, read from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The servers whose use of the machine is reported; none if no process ids were given.
pub(crate) struct Processes {
    ids: Vec<u32>,
    ticks_per_second: u64,
}

impl Processes {
    /// The processes `ids`, which must exist.
    pub(crate) fn new(ids: &[u32]) -> Result<Self> {
        let processes =
            Self { ids: ids.to_vec(), ticks_per_second: rustix::param::clock_ticks_per_second() };
        processes.cpu()?;
        Ok(processes)
    }

    /// Whether there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// CPU time of each so far: user and system. A process that has ended counts as zero.
    pub(crate) fn cpu(&self) -> Result<Vec<Duration>> {
        self.ids.iter().map(|&id| self.cpu_of(id)).collect()
    }

    /// Resident memory of each, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<Vec<u64>> {
        self.ids.iter().map(|&id| resident_bytes_of(id)).collect()
    }

    fn cpu_of(&self, id: u32) -> Result<Duration> {
        let path = format!("/proc/{id}/stat");
        let stat = fs::read_to_string(&path)
            .with_context(|| format!("process {id} isn't there: reading {path}"))?;
        // The second field is the program's name in parentheses, and may hold anything.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let mut fields = fields.split_ascii_whitespace().skip(11);
        let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok());
        let (user, system) = ticks().zip(ticks()).context("an unknown form of /proc/PID/stat")?;
        Ok(Duration::from_micros((user + system) * 1_000_000 / self.ticks_per_second))
    }
}

fn resident_bytes_of(id: u32) -> Result<u64> {
    let path = format!("/proc/{id}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .context("an unknown form of /proc/PID/status")?;
    Ok(kilobytes * 1_024)
}

/// What was used between two readings, all processes together.
pub(crate) fn cpu_between(before: &[Duration], after: &[Duration]) -> Duration {
    before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).sum()
}
