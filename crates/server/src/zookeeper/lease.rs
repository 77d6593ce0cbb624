//! For how long a connection may speak for its session.
//!
//! A client believes in its session for as long as its server talks to it. So a server says nothing
//! of a session that the others may have ended meanwhile: replies and events wait once two thirds
//! of the time-out have passed since the session last was confirmed, and if it isn't confirmed any
//! more, the connection is closed without them. Confirmed it is by a heartbeat that the leader has
//! heard and a quorum acknowledged, as of the moment when that was asked for. A write that the log
//! has taken says nothing: it moves no deadline of the leader's. Nor does a session's coming to
//! another connection: the leader may have decided on its end before, and only wait for the end to
//! be taken by the log. So the first words to whoever resumes a session wait for a confirmation,
//! too. All this by the node's clock, which goes on while the machine is suspended, as the leader's
//! does: whoever wakes up late has to ask first.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_node::Monotonic;

#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};

/// Heartbeats that wait for their confirmation; with more, a newer one says the same.
const OPEN_MAX: usize = 64;

/// What one connection knows of its session.
pub(super) struct Lease {
    /// The session was alive at this moment, or later; `None` as long as nobody has said so.
    confirmed: Option<Monotonic>,
    /// Heartbeats under way since then, oldest first, and when they were asked for.
    open: VecDeque<(u64, Monotonic)>,
    /// The newest of all.
    asked: Option<Monotonic>,
    timeout: Duration,
}

impl Lease {
    /// A new session that was asked for `asked_at`, and that the log has.
    pub(super) fn new(timeout: Duration, asked_at: Monotonic) -> Self {
        Self { confirmed: Some(asked_at), ..Self::resumed(timeout) }
    }

    /// A session that was there before this connection.
    pub(super) fn resumed(timeout: Duration) -> Self {
        Self { confirmed: None, open: VecDeque::new(), asked: None, timeout }
    }

    /// Whether anything may be sent.
    pub(super) fn is_current(&self, now: Monotonic) -> bool {
        #[cfg(feature = "mutations")]
        if mutated(Mutation::AnswerUnconfirmed) {
            return true;
        }
        self.confirmed.is_some_and(|confirmed| now.since(confirmed) < self.timeout * 2 / 3)
    }

    /// Whether a word of the client is to be sent as a heartbeat that wants a confirmation: a few
    /// in each time-out are enough.
    pub(super) fn wants_beat(&self, now: Monotonic) -> bool {
        let newest = self.asked.max(self.confirmed);
        newest.is_none_or(|newest| now.since(newest) >= self.patience())
    }

    /// Nobody confirms the session any more, although it was asked for in time.
    pub(super) fn is_forsaken(&self, now: Monotonic) -> bool {
        let waits = self.open.front().map(|(_, asked)| now.since(*asked));
        !self.is_current(now) && waits.is_some_and(|waits| waits >= self.patience())
    }

    /// How long a confirmation may take.
    pub(super) fn patience(&self) -> Duration {
        self.timeout / 6
    }

    /// The heartbeat `id` is sent.
    pub(super) fn beat(&mut self, id: u64, now: Monotonic) {
        self.asked = Some(now);
        if self.open.len() < OPEN_MAX {
            self.open.push_back((id, now));
        }
    }

    /// The heartbeat `id` was confirmed, and so were those before it.
    pub(super) fn confirm(&mut self, id: u64) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == id) else { return };
        let asked = self.open.drain(..=at).map(|(_, asked)| asked).next_back();
        if let Some(asked) = asked {
            self.confirmed = self.confirmed.max(Some(asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(6);

    fn seconds(start: Monotonic, seconds: u64) -> Monotonic {
        start.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn it_counts_from_the_question_and_not_from_the_answer() {
        let start = Monotonic(7);
        let mut lease = Lease::new(TIMEOUT, start);
        assert!(lease.is_current(seconds(start, 3)) && !lease.is_current(seconds(start, 4)));
        lease.beat(1, seconds(start, 2));
        // Confirmed a second later, or a minute.
        lease.confirm(1);
        assert!(lease.is_current(seconds(start, 5)) && !lease.is_current(seconds(start, 6)));
        // What is confirmed twice says nothing new.
        lease.confirm(1);
        assert!(lease.is_current(seconds(start, 5)) && !lease.is_current(seconds(start, 6)));
    }

    #[test]
    fn a_resumed_session_is_asked_for_before_anything_is_said_of_it() {
        let start = Monotonic(1 << 40);
        let mut lease = Lease::resumed(TIMEOUT);
        assert!(!lease.is_current(start) && lease.wants_beat(start) && !lease.is_forsaken(start));
        lease.beat(1, start);
        assert!(!lease.is_current(start) && !lease.wants_beat(start));
        let later = seconds(start, 1);
        assert!(lease.is_forsaken(later), "its end may have been decided on");
        lease.confirm(1);
        assert!(lease.is_current(later) && !lease.is_forsaken(later));
    }

    #[test]
    fn a_confirmation_holds_for_those_before_it_and_not_for_those_behind() {
        let start = Monotonic(7);
        let mut lease = Lease::new(TIMEOUT, start);
        (1..=3).for_each(|id| lease.beat(id, seconds(start, id)));
        lease.confirm(2);
        assert!(lease.is_current(seconds(start, 5)) && !lease.is_current(seconds(start, 6)));
        lease.confirm(1);
        assert!(!lease.is_current(seconds(start, 6)));
        lease.confirm(3);
        assert!(lease.is_current(seconds(start, 6)) && !lease.is_current(seconds(start, 7)));
    }

    #[test]
    fn a_client_that_says_much_asks_a_few_times_and_one_that_was_silent_at_once() {
        let start = Monotonic(7);
        let mut lease = Lease::new(TIMEOUT, start);
        let mut beats = 0;
        for millis in (0..6_000).step_by(10) {
            let now = start.plus(Duration::from_millis(millis));
            if lease.wants_beat(now) {
                beats += 1;
                lease.beat(beats, now);
                lease.confirm(beats);
            }
        }
        assert_eq!(beats, 5);
        assert!(lease.wants_beat(seconds(start, 60)) && !lease.is_current(seconds(start, 60)));
    }

    #[test]
    fn who_asks_in_vain_is_forsaken_and_who_has_not_asked_is_not() {
        let start = Monotonic(7);
        let mut lease = Lease::new(TIMEOUT, start);
        assert!(!lease.is_forsaken(seconds(start, 60)), "nobody was asked");
        lease.beat(1, seconds(start, 1));
        assert!(!lease.is_forsaken(seconds(start, 3)), "it may still speak");
        assert!(lease.is_forsaken(seconds(start, 4)));
        // Asking anew is no answer.
        lease.beat(2, seconds(start, 5));
        assert!(lease.is_forsaken(seconds(start, 5)));
        lease.confirm(2);
        assert!(!lease.is_forsaken(seconds(start, 6)));
    }

    #[test]
    fn a_suspension_leaves_nothing_of_it() {
        let start = Monotonic(7);
        let mut lease = Lease::new(TIMEOUT, start);
        lease.beat(1, seconds(start, 1));
        // The clock jumps by an hour, and only then is the answer read.
        let now = seconds(start, 3_600);
        lease.confirm(1);
        assert!(!lease.is_current(now) && lease.wants_beat(now) && !lease.is_forsaken(now));
        lease.beat(2, now);
        lease.confirm(2);
        assert!(lease.is_current(now));
    }

    #[test]
    fn heartbeats_that_nobody_confirms_are_few() {
        let start = Monotonic(7);
        let mut lease = Lease::new(TIMEOUT, start);
        (0..10_000).for_each(|id| lease.beat(id, start));
        assert_eq!(lease.open.len(), OPEN_MAX);
    }
}
