//! The lease of a session, as its client counts it: held, suspended or lost.
//!
//! A [`Lease`] is a value: it reads no clock and sends nothing. Whoever wants to know the state
//! says what time it is, and the clock decides before anything else does.
//!
//! # Guarantees
//!
//! - **Never too long.** The lease runs from the moment at which the newest *confirmed* heartbeat
//!   was sent, and ends a margin early. The servers count a full lease from a later moment, so it
//!   is over here before another can be granted anything.
//! - **Final.** A lease that was seen lost stays lost, whatever confirmation comes in late.
//! - **Doubted after a gap.** If the process didn't run, or the machine's clock stood still while
//!   the wall's went on, the lease is suspended until a heartbeat sent after that is confirmed.
//!
//! Not promised: that a process paused past its deadline does nothing in its first moment awake.
//! What it writes to must compare tokens.

use std::time::Duration;

use crate::clock::{Boottime, Moment};
use crate::error::LossReason;

/// What a holder may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Held: the lease is being renewed.
    Held,
    /// Still held, and nobody else can be, but the last renewal is overdue (two thirds of the
    /// lease are gone), or the process was stopped for a while. One confirmation makes it
    /// [`State::Held`] again; without one it is lost at `until`. Finish nothing new.
    Suspended {
        /// When it will be lost.
        until: Boottime,
    },
    /// Lost, for ever: somebody else may hold it, now or soon.
    Lost(LossReason),
}

impl State {
    /// Whether it is held or suspended: nobody else holds the lock.
    #[must_use]
    pub const fn is_held(self) -> bool {
        !matches!(self, Self::Lost(_))
    }
}

/// The lease of one open session.
#[derive(Debug)]
pub(crate) struct Lease {
    ttl: Duration,
    /// When the newest confirmed heartbeat was sent; at first, when opening was first asked for,
    /// before which no server can have begun to count.
    renewed: Boottime,
    /// How far the wall clock was ahead of the boot clock at the last look.
    wall_ahead_nanos: i128,
    /// Set after a gap: only a heartbeat sent at or after this moment ends the suspension.
    doubted: Option<Boottime>,
    lost: Option<LossReason>,
}

impl Lease {
    /// A lease that runs from `begun`.
    pub(crate) fn new(ttl: Duration, begun: Boottime, now: Moment) -> Self {
        Self { ttl, renewed: begun, wall_ahead_nanos: wall_ahead(now), doubted: None, lost: None }
    }

    /// What a holder may believe at `now`. It comes before anything else that is done then.
    pub(crate) fn look(&mut self, now: Boottime) -> State {
        if let Some(reason) = self.lost {
            return State::Lost(reason);
        }
        if now >= self.deadline() {
            let since_last_renewal = now.since(self.renewed);
            return State::Lost(self.end(LossReason::Expired { since_last_renewal }));
        }
        if self.doubted.is_some() || now >= self.suspension() {
            return State::Suspended { until: self.deadline() };
        }
        State::Held
    }

    /// A heartbeat that was sent at `sent` has been confirmed. Call [`Lease::look`] first.
    pub(crate) fn confirm(&mut self, sent: Boottime) {
        self.renewed = self.renewed.max(sent);
        if self.doubted.is_some_and(|since| sent >= since) {
            self.doubted = None;
        }
    }

    /// The process may not have run for a while before `now`.
    pub(crate) fn doubt(&mut self, now: Boottime) {
        self.doubted = Some(now);
    }

    /// Doubts the lease if the wall clock has gone further than this one since the last comparison:
    /// a hypervisor may have stopped the machine, and its clocks with it.
    pub(crate) fn compare_clocks(&mut self, now: Moment) {
        let wall_ahead = wall_ahead(now);
        let jump = wall_ahead - self.wall_ahead_nanos;
        self.wall_ahead_nanos = wall_ahead;
        // A clock that was set by hand looks the same as a hypervisor's pause. Then the suspension
        // lasts one round trip and does no harm.
        if jump > i128::try_from(margin(self.ttl).as_nanos()).unwrap_or(i128::MAX) {
            self.doubt(now.boottime);
        }
    }

    /// Ends the lease, unless it was over already; returns why it is.
    pub(crate) fn end(&mut self, reason: LossReason) -> LossReason {
        *self.lost.get_or_insert(reason)
    }

    /// When it is lost, unless it is renewed.
    pub(crate) fn deadline(&self) -> Boottime {
        self.renewed + self.ttl.saturating_sub(margin(self.ttl))
    }

    /// When it will look different by itself, if nothing is confirmed.
    pub(crate) fn next_change(&self, now: Boottime) -> Boottime {
        if now < self.suspension() { self.suspension() } else { self.deadline() }
    }

    /// Whether it is doubted, and the newest heartbeat, sent at `beaten`, can't end that.
    pub(crate) fn wants_heartbeat(&self, beaten: Boottime) -> bool {
        self.doubted.is_some_and(|since| beaten < since)
    }

    /// Why it is over; `None` if it wasn't at the last look.
    pub(crate) fn lost(&self) -> Option<LossReason> {
        self.lost
    }

    pub(crate) fn since_renewal(&self, now: Boottime) -> Duration {
        now.since(self.renewed)
    }

    fn suspension(&self) -> Boottime {
        self.renewed + self.ttl * 2 / 3
    }
}

/// By how much a lease ends earlier at the client than at the servers: for clocks that don't run
/// at quite the same speed, and for the time it takes to act on the end.
pub(crate) fn margin(ttl: Duration) -> Duration {
    ttl / 50 + Duration::from_millis(10)
}

fn wall_ahead(now: Moment) -> i128 {
    i128::from(now.wall_nanos) - i128::from(now.boottime.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(1_000);

    fn at(ms: u64) -> Moment {
        both(ms, ms)
    }

    fn both(boot_ms: u64, wall_ms: u64) -> Moment {
        let boottime = Boottime::from_nanos(boot_ms * 1_000_000);
        Moment { boottime, wall_nanos: (1_000_000 + wall_ms) * 1_000_000 }
    }

    /// What a holder sees who looks at both clocks.
    fn look(lease: &mut Lease, now: Moment) -> State {
        lease.compare_clocks(now);
        lease.look(now.boottime)
    }

    fn lease() -> Lease {
        Lease::new(TTL, at(0).boottime, at(0))
    }

    #[test]
    fn it_is_lost_a_margin_before_its_end_and_stays_lost() {
        let mut lease = lease();
        assert_eq!(look(&mut lease, at(666)), State::Held);
        assert_eq!(look(&mut lease, at(667)), State::Suspended { until: at(970).boottime });
        assert_eq!(look(&mut lease, at(969)), State::Suspended { until: at(970).boottime });
        let lost = LossReason::Expired { since_last_renewal: Duration::from_millis(970) };
        assert_eq!(look(&mut lease, at(970)), State::Lost(lost));
        lease.confirm(at(900).boottime);
        assert_eq!(look(&mut lease, at(971)), State::Lost(lost));
    }

    #[test]
    fn it_runs_from_the_send_time_of_what_was_confirmed() {
        let mut lease = lease();
        lease.confirm(at(300).boottime);
        assert_eq!(lease.deadline(), at(1_270).boottime);
        // A confirmation that overtook another doesn't shorten the lease.
        lease.confirm(at(200).boottime);
        assert_eq!(lease.deadline(), at(1_270).boottime);
    }

    #[test]
    fn after_a_gap_only_a_heartbeat_sent_since_ends_the_suspension() {
        let mut lease = lease();
        lease.doubt(at(500).boottime);
        assert_eq!(look(&mut lease, at(500)), State::Suspended { until: at(970).boottime });
        lease.confirm(at(499).boottime);
        assert_eq!(look(&mut lease, at(510)), State::Suspended { until: at(1_469).boottime });
        lease.confirm(at(505).boottime);
        assert_eq!(look(&mut lease, at(511)), State::Held);
    }

    #[test]
    fn a_wall_clock_that_ran_ahead_is_a_gap_and_one_that_went_back_is_not() {
        let mut lease = lease();
        assert_eq!(look(&mut lease, both(100, 60)), State::Held);
        assert_eq!(
            look(&mut lease, both(110, 70 + 31)),
            State::Suspended { until: at(970).boottime }
        );
        lease.confirm(at(120).boottime);
        assert_eq!(look(&mut lease, both(130, 121)), State::Held);
    }

    #[test]
    fn a_gap_longer_than_the_lease_is_its_end() {
        let mut lease = lease();
        assert!(matches!(look(&mut lease, both(5_000, 9_000)), State::Lost(_)));
    }
}
