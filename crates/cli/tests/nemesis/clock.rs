//! True time: one clock for all processes of this machine, which none of them decides by.

use std::time::Duration;

use lockkeeper_sim::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Nanos {
    nanos(ClockId::Monotonic)
}

/// A moment on the clock that leases are counted on, as true time. The two differ by the time that
/// the machine was suspended, which doesn't change while a test runs.
pub(crate) fn of_boottime(boottime: Nanos) -> Nanos {
    let suspended = nanos(ClockId::Boottime).saturating_sub(nanos(ClockId::Monotonic));
    boottime.saturating_sub(suspended)
}

fn nanos(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

/// A span of true time.
pub(crate) fn span(from: Nanos, to: Nanos) -> Duration {
    Duration::from_nanos(to.saturating_sub(from))
}
