//! What a session's task does because time goes by: heartbeats, patience, and giving up silent
//! connections.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::native::{self, request};

use super::{Driver, Link, end_session};
use crate::clock::{Boottime, Moment};
use crate::error::Error;
use crate::session::{Phase, State};
use crate::socket::{Socket, write_frame};

/// Heartbeats per lease. Two may be lost before it is.
const HEARTBEATS_PER_TTL: u32 = 3;
/// The longest time between two heartbeats: under a lease of hours, a dead connection must still be
/// found soon.
const BEAT_MAX: Duration = Duration::from_secs(10);
/// How long a server has at least to open a session, which takes a majority's disks. One that has
/// lost the majority says so after 1 to 1.25 s within a data centre: that must be heard, or the
/// caller is told of a silent server instead of a missing majority.
const OPENING_MIN: Duration = Duration::from_secs(2);

impl Driver {
    /// Does everything whose time has come, and sets the alarm for what comes next.
    pub(super) fn keep(&mut self, state: &mut State, now: Moment) {
        if let Phase::Closing { since } = state.phase {
            self.keep_closing(since, state, now);
        }
        if matches!(state.phase, Phase::Over(_)) {
            return;
        }
        self.keep_link(state, now);
        self.keep_lease(state, now);
        let patience = self.keep_patience(state, now);
        if matches!(state.phase, Phase::Over(_)) {
            return;
        }
        if self.resend_at.is_some_and(|at| now.boottime >= at) {
            self.resend_at = None;
            if state.is_bound {
                state.requests.write_postponed(&mut state.out);
            }
        }
        self.take_output(state);
        self.wake_at = self.next_alarm(state, now, patience);
    }

    fn keep_link(&mut self, state: &mut State, now: Moment) {
        if state.requests.any_revoked() {
            self.excused = now.boottime;
        }
        if now.boottime >= self.silence_ends(state) {
            self.lost_link("it confirms nothing", state, now);
        }
        if let Link::Down(until) = self.link
            && now.boottime >= until
        {
            let settings = Arc::clone(&self.shared.settings);
            let endpoint = self.endpoint;
            let dial = async move {
                let endpoint = &settings.target.endpoints[endpoint];
                Socket::dial(&settings, endpoint, settings.dial_limit()).await
            };
            self.link = Link::Dialing(Box::pin(dial));
        }
    }

    /// When the connection has had its chance: a heartbeat (or the handshake) is then as old as the
    /// time between two, and there is no answer.
    fn silence_ends(&self, state: &State) -> Boottime {
        let Link::Up(up) = &self.link else { return Boottime::MAX };
        match self.unconfirmed.front() {
            Some((_, sent)) => self.excused.max(*sent) + self.beat_interval(),
            None if state.is_bound => Boottime::MAX,
            None if matches!(state.phase, Phase::Opening) => {
                up.since + self.beat_interval().max(OPENING_MIN)
            }
            None => up.since + self.beat_interval(),
        }
    }

    pub(super) fn beat_interval(&self) -> Duration {
        (self.shared.settings.ttl / HEARTBEATS_PER_TTL).min(BEAT_MAX)
    }

    fn keep_lease(&mut self, state: &mut State, now: Moment) {
        let Some(lease) = &state.lease else { return };
        if state.is_bound
            && matches!(state.phase, Phase::Open)
            && (now.boottime >= self.next_beat() || lease.wants_heartbeat(self.beaten))
        {
            self.beat(state, now);
        }
    }

    fn next_beat(&self) -> Boottime {
        self.beaten + self.beat_interval()
    }

    pub(super) fn beat(&mut self, state: &mut State, now: Moment) {
        let heartbeat = state.unnumbered(request::Body::Heartbeat(native::Heartbeat {}));
        write_frame(&heartbeat, &mut state.out);
        self.unconfirmed.push_back((heartbeat.id, now.boottime));
        self.beaten = now.boottime;
    }

    /// Tells callers who have waited in vain for long enough; returns when it is the next one's
    /// turn.
    fn keep_patience(&mut self, state: &mut State, now: Moment) -> Option<Boottime> {
        if state.is_bound && !state.requests.has_postponed() {
            return None;
        }
        let patience = self.shared.settings.connect_timeout;
        let trouble = (!state.is_bound).then(|| state.trouble.clone());
        let deliveries = &mut self.deliveries;
        let next = state.requests.expire(now.boottime, patience, trouble.as_ref(), deliveries);
        // Nothing hangs on a session that couldn't be opened for so long, and nobody waits for it.
        let is_stale = now.boottime >= self.born + patience;
        if matches!(state.phase, Phase::Opening) && is_stale && !state.requests.has_callers() {
            state.finish(state.trouble.clone(), deliveries);
        }
        next
    }

    fn keep_closing(&mut self, since: Boottime, state: &mut State, now: Moment) {
        let never_opened = self.opened.is_none();
        let is_late = now.boottime >= since + self.shared.settings.connect_timeout;
        if never_opened || is_late {
            state.finish(Error::Closed, &mut self.deliveries);
            return;
        }
        if let Link::Up(up) = &mut self.link
            && !up.is_ending
        {
            up.is_ending = true;
            let request = state.unnumbered(end_session(&self.shared));
            up.handshake = request.id;
            up.since = now.boottime;
            write_frame(&request, &mut state.out);
        }
    }

    fn next_alarm(&self, state: &State, now: Moment, patience: Option<Boottime>) -> Boottime {
        let link = match &self.link {
            Link::Down(until) => *until,
            Link::Dialing(_) => Boottime::MAX,
            Link::Up(_) => self.silence_ends(state),
        };
        let lease = match (&state.phase, &state.lease) {
            (Phase::Open, Some(lease)) => {
                let beat = if state.is_bound { self.next_beat() } else { Boottime::MAX };
                lease.next_change(now.boottime).min(beat)
            }
            (Phase::Closing { since }, _) => *since + self.shared.settings.connect_timeout,
            _ => Boottime::MAX,
        };
        let resend = self.resend_at.unwrap_or(Boottime::MAX);
        link.min(lease).min(resend).min(patience.unwrap_or(Boottime::MAX))
    }

    /// Hands what has gathered to the socket, once the last lot is written.
    fn take_output(&mut self, state: &mut State) {
        if let Link::Up(up) = &mut self.link
            && up.output.is_empty()
        {
            std::mem::swap(&mut up.output, &mut state.out);
        }
    }

    /// Tells those who watch.
    pub(super) fn publish(&mut self, state: &mut State, now: Moment) {
        let lease = state.lease_state(now.boottime);
        if std::mem::replace(&mut state.published, lease) != lease {
            state.requests.publish(lease);
            self.shared.revocations.notify_waiters();
        }
        if let Some(lease) = &state.lease {
            let deadline = lease.deadline();
            self.shared
                .deadline
                .send_if_modified(|last| std::mem::replace(last, deadline) != deadline);
        }
    }
}
