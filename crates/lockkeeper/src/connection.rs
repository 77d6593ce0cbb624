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

mod replies;
mod upkeep;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::native::{self, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::{Alarm, Boottime, Moment};
use crate::error::{Error, LossReason};
use crate::lease::{self, Lease};
use crate::requests::Delivery;
use crate::session::{Phase, Shared, State};
use crate::socket::{Input, Socket, write_frame};

/// The task. [`Driver::run`] ends when the session is over.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    alarm: Box<dyn Alarm>,
    link: Link,
    /// Index of the endpoint in use, or tried next.
    endpoint: usize,
    /// Connections that failed since a heartbeat was last confirmed.
    failures: u32,
    /// How many had failed when a server last said why it can't serve.
    told: Option<u32>,
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
    Up(Box<Up>),
}

struct Up {
    socket: Socket,
    input: Input,
    /// What is being written; the next lot gathers in [`State::out`] meanwhile.
    output: BytesMut,
    /// When the handshake was sent.
    since: Boottime,
    /// The id of the request that opens, resumes or ends the session.
    handshake: u64,
    /// The handshake is to end the session.
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
        let now = clock.boottime();
        Ok(Self {
            shared,
            alarm,
            link: Link::Down(now),
            endpoint: 0,
            failures: 0,
            told: None,
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
                let mut state = shared.state.lock();
                let now = shared.settings.clock.now();
                state.compare_clocks(now);
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
                self.hang_up(self.shared.settings.unreachable(why), state, now);
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
            && let lease::State::Lost(reason) = state.lease_state(now.boottime)
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
        let up = Up { socket, input, output, since, handshake, is_ending, session };
        self.link = Link::Up(Box::new(up));
    }

    fn lost_link(&mut self, why: &str, state: &mut State, now: Moment) {
        let endpoint = &self.shared.settings.target.endpoints[self.endpoint];
        self.hang_up(self.shared.settings.unreachable(format!("{endpoint}: {why}")), state, now);
    }

    /// Gives the connection up and turns to the next endpoint.
    fn hang_up(&mut self, why: Error, state: &mut State, now: Moment) {
        tracing::debug!(session = %self.shared.id, %why, "connection given up");
        self.blame(why, state);
        state.unbind();
        self.unconfirmed.clear();
        self.resend_at = None;
        let endpoints = self.shared.settings.target.endpoints.len();
        self.endpoint = (self.endpoint + 1) % endpoints;
        let round = self.failures / u32::try_from(endpoints).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = if round == 0 { Duration::ZERO } else { self.shared.settings.pause(round) };
        self.link = Link::Down(now.boottime + pause);
    }

    /// Notes why nobody is served. What a server says of the cluster tells more than that another
    /// one can't be reached, so it stands until all others have been tried.
    fn blame(&mut self, why: Error, state: &mut State) {
        let is_telling = matches!(why, Error::NoQuorum { .. } | Error::Unavailable { .. });
        if is_telling {
            self.told = Some(self.failures);
        }
        let endpoints = self.shared.settings.target.endpoints.len();
        let has_gone_round = self.told.is_none_or(|told| {
            usize::try_from(self.failures - told).is_ok_and(|tries| tries >= endpoints)
        });
        if is_telling || has_gone_round {
            state.trouble = why;
        }
    }

    /// The servers know the session, and have tied it to this connection.
    fn attached(&mut self, session: &native::SessionState, state: &mut State, now: Moment) {
        let boot_id = self.shared.settings.clock.boot_id();
        state.is_same_boot = !boot_id.is_empty() && session.boot_id == boot_id;
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
        if lease.look(now.boottime).is_held() {
            state.lease = Some(lease);
            state.phase = Phase::Open;
            state.bind();
        }
    }
}

fn end_session(shared: &Shared) -> request::Body {
    let (session, secret) = (shared.id.0, shared.secret.to_vec());
    request::Body::EndSession(native::EndSession { session, secret })
}
