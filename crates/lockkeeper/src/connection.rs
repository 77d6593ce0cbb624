//! The task of one session: it owns the socket, the heartbeats and the alarm.
//!
//! One loop, driven by one closed [`Event`]; whatever woke it, it looks at the clock first, so that
//! a task which slept past the lease's end finds that out before it reads what came in meanwhile.
//!
//! - **Connecting.** Endpoints are tried in turn, at once the first time round, then with pauses
//!   that grow and vary. A new connection opens or resumes the session, and then sends everything
//!   without an answer again, under the same numbers.
//! - **Heartbeats** go out every third of the lease, or every 10 s under a long one. If one isn't
//!   confirmed by the time the next is due, the connection is given up for the next endpoint: the
//!   server may be cut off from the others, and only a confirmation counts.
//! - **Patience.** Callers whom no server could serve for `connect_timeout` are told why.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::native::{self, refused, request, response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::{Alarm, Boottime, Moment};
use crate::error::{Error, LossReason};
use crate::lease::{self, Lease};
use crate::requests::{Delivery, Verdict};
use crate::session::{Phase, Shared, State, UNNUMBERED};
use crate::socket::{Input, Socket, write_frame};
use crate::views;

/// Heartbeats per lease. Two may be lost before it is.
const HEARTBEATS_PER_TTL: u32 = 3;
/// The longest time between two heartbeats: under a lease of hours, a dead connection must still be
/// found soon.
const BEAT_MAX: Duration = Duration::from_secs(10);
/// How long a server has at least to open a session, which takes a majority's disks.
const OPENING_MIN: Duration = Duration::from_secs(1);
/// The first pause before an endpoint is tried again; it doubles with each round.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The task. [`Driver::run`] ends when the session is over.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    alarm: Box<dyn Alarm>,
    link: Link,
    /// Index of the endpoint in use, or tried next.
    endpoint: usize,
    /// Connections that failed since a heartbeat was last confirmed.
    failures: u32,
    /// When the task was made.
    born: Boottime,
    /// When opening was first asked for: the lease can't have begun before.
    opened: Option<Boottime>,
    /// Heartbeats of this connection without a confirmation, oldest first.
    unconfirmed: VecDeque<(u64, Boottime)>,
    /// When the newest heartbeat was sent, on any connection.
    beaten: Boottime,
    /// Until when missing confirmations were due to an operator's request, not to the connection.
    excused: Boottime,
    /// When to send again what a server couldn't serve, and how often that has been in a row.
    resend_at: Option<Boottime>,
    postponements: u32,
    /// What the alarm is set to. The loop was held up if it runs much later.
    wake_at: Boottime,
    deliveries: Vec<Delivery>,
}

type Dial = Pin<Box<dyn Future<Output = Result<Socket, String>> + Send>>;

enum Link {
    /// Nothing until then.
    Down(Boottime),
    Dialing(Dial),
    Up(Up),
}

struct Up {
    socket: Socket,
    input: Input,
    output: BytesMut,
    since: Boottime,
    /// The id of the request that opens, resumes or ends the session.
    handshake: u64,
    is_ending: bool,
    /// What the server has told of the session so far: a long answer comes in parts.
    session: native::SessionState,
}

/// What can wake the task.
enum Event {
    /// The alarm rang, or a caller wants something.
    Woken,
    Dialed(Result<Socket, String>),
    Written(io::Result<usize>),
    Read(io::Result<usize>),
}

impl Driver {
    /// Makes the task of a session that hasn't been opened.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the system gives no timer.
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, Error> {
        let clock = &shared.settings.clock;
        let alarm = clock
            .alarm()
            .map_err(|error| Error::Config(format!("the system gives no timer: {error}")))?;
        let now = clock.now().boottime;
        Ok(Self {
            shared,
            alarm,
            link: Link::Down(now),
            endpoint: 0,
            failures: 0,
            born: now,
            opened: None,
            unconfirmed: VecDeque::new(),
            beaten: Boottime::default(),
            excused: Boottime::default(),
            resend_at: None,
            postponements: 0,
            wake_at: now,
            deliveries: Vec::new(),
        })
    }

    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut event = Event::Woken;
        loop {
            let is_over = {
                let (mut state, now) = shared.look();
                self.check_lateness(&mut state, now);
                self.handle(event, &mut state, now);
                self.keep(&mut state, now);
                self.publish(&mut state, now);
                if !state.requests.is_full() {
                    shared.room.notify_one();
                }
                matches!(state.phase, Phase::Over(_))
            };
            self.deliveries.drain(..).for_each(Delivery::deliver);
            if is_over {
                break;
            }
            event = self.next_event().await;
        }
        shared.is_over.send_replace(true);
        shared.room.notify_one();
    }

    async fn next_event(&mut self) -> Event {
        let (alarm, wake_at) = (&mut self.alarm, self.wake_at);
        let alarm = poll_fn(|cx| alarm.poll_at(wake_at, cx));
        let wake = self.shared.wake.notified();
        match &mut self.link {
            Link::Down(_) => tokio::select! {
                biased;
                () = alarm => Event::Woken,
                () = wake => Event::Woken,
            },
            Link::Dialing(dial) => tokio::select! {
                biased;
                () = alarm => Event::Woken,
                () = wake => Event::Woken,
                socket = dial => Event::Dialed(socket),
            },
            Link::Up(up) => tokio::select! {
                biased;
                () = alarm => Event::Woken,
                () = wake => Event::Woken,
                written = up.socket.writer.write_buf(&mut up.output), if !up.output.is_empty() => {
                    Event::Written(written)
                }
                read = up.socket.reader.read_buf(up.input.room()) => Event::Read(read),
            },
        }
    }

    /// A task that runs much later than it meant to may have been stopped: the lease, if it isn't
    /// over by the clock, is doubted until a heartbeat of now is confirmed.
    fn check_lateness(&mut self, state: &mut State, now: Moment) {
        let tolerated = self.beat_interval() / 2;
        if let Some(lease) = &mut state.lease
            && now.boottime > self.wake_at + tolerated
        {
            lease.doubt(now.boottime);
        }
    }

    fn handle(&mut self, event: Event, state: &mut State, now: Moment) {
        // What is over by the clock stays so, whatever has come in.
        if matches!(state.phase, Phase::Over(_)) || self.is_expired(state, now) {
            return;
        }
        match event {
            Event::Woken => {}
            Event::Dialed(Ok(socket)) => self.greet(socket, state, now),
            Event::Dialed(Err(why)) => {
                state.trouble = self.shared.settings.unreachable(why);
                self.hang_up(state, now);
            }
            Event::Read(Ok(bytes)) if bytes > 0 => self.receive(state, now),
            Event::Written(Ok(bytes)) if bytes > 0 => {}
            Event::Read(Ok(_)) | Event::Written(Ok(_)) => {
                self.lost_link("the server closed the connection", state, now);
            }
            Event::Read(Err(error)) | Event::Written(Err(error)) => {
                self.lost_link(&error.to_string(), state, now);
            }
        }
    }

    fn is_expired(&mut self, state: &mut State, now: Moment) -> bool {
        if matches!(state.phase, Phase::Open)
            && let lease::State::Lost(reason) = state.lease_state(now)
        {
            let reason = match reason {
                LossReason::Expired { .. } if state.requests.any_revoked() => LossReason::Revoked,
                reason => reason,
            };
            tracing::warn!(session = %self.shared.id, %reason, "session lost");
            state.finish(Error::Lost(reason), &mut self.deliveries);
            return true;
        }
        false
    }
}

// ------------------------------------------------------------------ keeping up

impl Driver {
    /// Does everything whose time has come, and sets the alarm for what comes next.
    fn keep(&mut self, state: &mut State, now: Moment) {
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

    fn beat_interval(&self) -> Duration {
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

    fn beat(&mut self, state: &mut State, now: Moment) {
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
    fn publish(&mut self, state: &mut State, now: Moment) {
        let lease = state.lease_state(now);
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

// ------------------------------------------------------------------ coming and going

impl Driver {
    /// The first frames on a new connection.
    fn greet(&mut self, socket: Socket, state: &mut State, now: Moment) {
        let is_ending = matches!(state.phase, Phase::Closing { .. });
        let shared = &self.shared;
        let (session, secret) = (shared.id.0, shared.secret.to_vec());
        let body = match &state.phase {
            Phase::Opening => {
                self.opened.get_or_insert(now.boottime);
                request::Body::OpenSession(native::OpenSession {
                    session,
                    secret,
                    ttl_ms: u32::try_from(shared.settings.ttl.as_millis()).unwrap_or(u32::MAX),
                    owner: Some(shared.settings.owner.clone().into()),
                })
            }
            Phase::Closing { .. } => end_session(shared),
            Phase::Open | Phase::Over(_) => {
                request::Body::ResumeSession(native::ResumeSession { session, secret })
            }
        };
        let request = state.unnumbered(body);
        let mut output = BytesMut::new();
        native::greet(&mut output);
        write_frame(&request, &mut output);
        let (input, handshake, since) = (Input::new(), request.id, now.boottime);
        let session = native::SessionState::default();
        self.unconfirmed.clear();
        self.link = Link::Up(Up { socket, input, output, since, handshake, is_ending, session });
    }

    fn lost_link(&mut self, why: &str, state: &mut State, now: Moment) {
        let endpoint = &self.shared.settings.target.endpoints[self.endpoint];
        state.trouble = self.shared.settings.unreachable(format!("{endpoint}: {why}"));
        self.hang_up(state, now);
    }

    /// Gives the connection up and turns to the next endpoint.
    fn hang_up(&mut self, state: &mut State, now: Moment) {
        tracing::debug!(session = %self.shared.id, why = %state.trouble, "connection given up");
        state.unbind();
        self.unconfirmed.clear();
        self.resend_at = None;
        let endpoints = self.shared.settings.target.endpoints.len();
        self.endpoint = (self.endpoint + 1) % endpoints;
        let round = self.failures / u32::try_from(endpoints).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = if round == 0 { Duration::ZERO } else { pause(round) };
        self.link = Link::Down(now.boottime + pause);
    }

    /// The servers know the session, and have tied it to this connection.
    fn attached(&mut self, session: &native::SessionState, state: &mut State, now: Moment) {
        state.is_same_boot = !session.boot_id.is_empty() && session.boot_id == boot_id();
        // Renewing comes before everything else that waited for the connection.
        self.beat(state, now);
        if matches!(state.phase, Phase::Opening) {
            let begun = self.opened.unwrap_or(now.boottime);
            self.open(begun, state, now);
        } else {
            state.requests.reconcile(session, &mut self.deliveries);
            state.bind();
        }
        self.shared.revocations.notify_waiters();
    }

    /// Opens the session here, with a lease that runs from `begun`. If that would be over already
    /// (a server was found late), the heartbeat under way is waited for: its confirmation opens it.
    fn open(&mut self, begun: Boottime, state: &mut State, now: Moment) {
        let mut lease = Lease::new(self.shared.settings.ttl, begun, now);
        if lease.look(now).is_held() {
            state.lease = Some(lease);
            state.phase = Phase::Open;
            state.bind();
        }
    }
}

// ------------------------------------------------------------------ what the server says

/// Why a connection is given up in the middle of what it said.
enum Break {
    /// With what the server or the frame decoder said.
    Link(Error),
    /// The session is over.
    Over(Error),
}

impl Driver {
    /// Takes everything that was read.
    fn receive(&mut self, state: &mut State, now: Moment) {
        let end = loop {
            let Link::Up(up) = &mut self.link else { return };
            match up.input.next_response() {
                Ok(None) => break None,
                Ok(Some(response)) => {
                    let Some(body) = response.body else { continue };
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
            Some(Break::Link(why)) => {
                state.trouble = why;
                self.hang_up(state, now);
            }
            Some(Break::Over(error)) => state.finish(error, &mut self.deliveries),
        }
        state.write_requests();
    }

    fn take(
        &mut self,
        id: u64,
        body: response::Body,
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
            body => state.answer_question(id, body),
        }
        Ok(())
    }

    fn take_event(
        &mut self,
        body: response::Body,
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
                return Err(Break::Link(self.shared.settings.unreachable(goodbye.message)));
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
            self.failures = 0;
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
        body: response::Body,
        state: &mut State,
        now: Moment,
    ) -> Result<(), Break> {
        match body {
            response::Body::SessionState(mut part) => {
                if let Link::Up(up) = &mut self.link {
                    part.holds.splice(..0, up.session.holds.drain(..));
                    part.waits.splice(..0, up.session.waits.drain(..));
                    if part.more {
                        up.session = part;
                        return Ok(());
                    }
                }
                self.attached(&part, state, now);
                Ok(())
            }
            response::Body::Done(_) => Err(Break::Over(Error::Closed)),
            response::Body::Unavailable(why) => Err(Break::Link(views::unavailable(&why))),
            response::Body::Refused(no) => match (no.code(), &state.phase) {
                (refused::Code::Overloaded, _) => {
                    Err(Break::Link(views::refused(no, String::new())))
                }
                (_, Phase::Closing { .. }) => Err(Break::Over(Error::Closed)),
                (_, Phase::Open) => Err(self.session_ended("", state, now)),
                _ => Err(Break::Over(views::refused(no, String::new()))),
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
            self.resend_at = Some(now.boottime + pause(self.postponements));
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

fn end_session(shared: &Shared) -> request::Body {
    let (session, secret) = (shared.id.0, shared.secret.to_vec());
    request::Body::EndSession(native::EndSession { session, secret })
}

/// A pause before attempt `round` (from 1 on): doubling, and varied by half so that clients which
/// lost the same server don't come back in step.
pub(crate) fn pause(round: u32) -> Duration {
    let full = PAUSE_MIN.saturating_mul(1 << round.min(10)).min(PAUSE_MAX);
    // Without random bits the clients come back in step, and no worse.
    let chance = getrandom::u32().unwrap_or(u32::MAX);
    full / 2 + (full / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// The id of this machine's boot; empty where there is none.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
