//! What a session's task makes of what the server says.

use std::mem;
use std::time::Duration;

use lockkeeper_wire::native::{refused, response};

use super::{Driver, Link};
use crate::clock::Moment;
use crate::error::Error;
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::requests::Verdict;
use crate::session::{Phase, State, UNNUMBERED};
use crate::views;

/// Why a connection is given up in the middle of what it said.
enum Break {
    /// With what the server or the frame decoder said.
    Link(Error),
    /// The session is over.
    Over(Error),
}

impl Driver {
    /// Takes everything that was read.
    pub(super) fn receive(&mut self, state: &mut State, now: Moment) {
        let end = loop {
            let Link::Up(up) = &mut self.link else { return };
            match up.input.next_response() {
                Ok(None) => break None,
                Ok(Some(mut response)) => {
                    let Some(body) = &mut response.body else { continue };
                    if let Err(end) = self.take(response.id, body, state, now) {
                        break Some(end);
                    }
                }
                Err(message) => {
                    let endpoint = &self.shared.settings.target.endpoints[self.endpoint];
                    let endpoint = endpoint.to_string();
                    break Some(Break::Link(Error::Protocol { endpoint, message }));
                }
            }
        };
        match end {
            None => {}
            Some(Break::Link(why)) => self.hang_up(why, state, now),
            Some(Break::Over(error)) => state.finish(error, &mut self.deliveries),
        }
        state.write_requests();
    }

    fn take(
        &mut self,
        id: u64,
        body: &mut response::Body,
        state: &mut State,
        now: Moment,
    ) -> Result<(), Break> {
        if id == 0 {
            return self.take_event(body, state, now);
        }
        if id < UNNUMBERED {
            return match state.requests.answer(id, body, &mut self.deliveries) {
                Verdict::Settled => {
                    self.postponements = 0;
                    Ok(())
                }
                Verdict::Postponed(why) => self.postponed(why, state, now),
                Verdict::SessionGone => Err(self.session_ended("", state, now)),
            };
        }
        match body {
            response::Body::HeartbeatConfirmed(_) => self.confirmed(id, state, now),
            body if self.is_handshake(id) => return self.shake_hands(body, state, now),
            body => state.answer_question(id, body.clone()),
        }
        Ok(())
    }

    fn take_event(
        &mut self,
        body: &mut response::Body,
        state: &mut State,
        now: Moment,
    ) -> Result<(), Break> {
        match body {
            response::Body::GrantedEvent(event) => {
                state.requests.granted_event(event.acquire, event.token, &mut self.deliveries);
            }
            response::Body::RevokedEvent(event) => {
                state.requests.revoked_event(event.acquire);
                self.shared.revocations.notify_waiters();
            }
            response::Body::LostEvent(event) => {
                let reason = views::loss_reason(&event.reason, since_renewal(state, now));
                state.requests.lost_event(event.acquire, reason, &mut self.deliveries);
                self.shared.revocations.notify_waiters();
            }
            response::Body::SessionEndedEvent(event) => {
                return Err(self.session_ended(&event.reason, state, now));
            }
            response::Body::Goodbye(goodbye) => {
                return Err(Break::Link(
                    self.shared.settings.unreachable(mem::take(&mut goodbye.message)),
                ));
            }
            other => tracing::debug!(?other, "unknown event"),
        }
        Ok(())
    }

    fn confirmed(&mut self, id: u64, state: &mut State, now: Moment) {
        // Confirming one confirms those before it.
        while let Some(&(heartbeat, sent)) = self.unconfirmed.front()
            && heartbeat <= id
        {
            self.unconfirmed.pop_front();
            #[cfg(feature = "mutations")]
            let sent = if mutated(Mutation::CountFromReceipt) { now.boottime } else { sent };
            (self.failures, self.told) = (0, None);
            match &mut state.lease {
                Some(lease) => lease.confirm(sent),
                None if matches!(state.phase, Phase::Opening) => self.open(sent, state, now),
                None => {}
            }
        }
    }

    fn is_handshake(&self, id: u64) -> bool {
        matches!(&self.link, Link::Up(up) if up.handshake == id)
    }

    /// The answer to the request that opens, resumes or ends the session.
    fn shake_hands(
        &mut self,
        body: &mut response::Body,
        state: &mut State,
        now: Moment,
    ) -> Result<(), Break> {
        match body {
            response::Body::SessionState(part) => {
                if let Link::Up(up) = &mut self.link {
                    part.holds.splice(..0, up.session.holds.drain(..));
                    part.waits.splice(..0, up.session.waits.drain(..));
                    if part.more {
                        up.session = mem::take(part);
                        return Ok(());
                    }
                }
                self.attached(part, state, now);
                Ok(())
            }
            response::Body::Done(_) => Err(Break::Over(Error::Closed)),
            response::Body::Unavailable(why) => Err(Break::Link(views::unavailable(why))),
            response::Body::Refused(no) => match (no.code(), &state.phase) {
                (refused::Code::Overloaded, _) => {
                    Err(Break::Link(views::refused(mem::take(no), String::new())))
                }
                (_, Phase::Closing { .. }) => Err(Break::Over(Error::Closed)),
                (_, Phase::Open) => Err(self.session_ended("", state, now)),
                _ => Err(Break::Over(views::refused(mem::take(no), String::new()))),
            },
            other => {
                let endpoint = &self.shared.settings.target.endpoints[self.endpoint];
                let message = format!("unexpected answer to the handshake: {other:?}");
                Err(Break::Link(Error::Protocol { endpoint: endpoint.to_string(), message }))
            }
        }
    }

    /// A server can't serve a request now. If it is cut off from the majority, another may not be;
    /// otherwise the same one is asked again after a pause.
    fn postponed(&mut self, why: Error, state: &State, now: Moment) -> Result<(), Break> {
        debug_assert!(state.requests.has_postponed());
        if matches!(why, Error::NoQuorum { .. }) && self.shared.settings.target.endpoints.len() > 1
        {
            return Err(Break::Link(why));
        }
        if self.resend_at.is_none() {
            self.postponements = self.postponements.saturating_add(1);
            self.resend_at = Some(now.boottime + self.shared.settings.pause(self.postponements));
        }
        Ok(())
    }

    fn session_ended(&self, reason: &str, state: &State, now: Moment) -> Break {
        if matches!(state.phase, Phase::Closing { .. }) {
            return Break::Over(Error::Closed);
        }
        let reason = views::loss_reason(reason, since_renewal(state, now));
        tracing::warn!(session = %self.shared.id, %reason, "session lost");
        Break::Over(Error::Lost(reason))
    }
}

fn since_renewal(state: &State, now: Moment) -> Duration {
    state.lease.as_ref().map_or(Duration::ZERO, |lease| lease.since_renewal(now.boottime))
}
