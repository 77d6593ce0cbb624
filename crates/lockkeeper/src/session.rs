//! One session: a lease, and the requests made under it.
//!
//! Callers hold a [`Session`] and change its [`State`] under a short mutex: they number a request
//! and write it into the outgoing buffer themselves, so that the connection's task sends all that
//! has gathered with one write, and nothing but the reply's own channel is made per request. The
//! task ([`crate::connection`]) owns the socket and the clock's alarm.
//!
//! A session is opened by its first connection and ends once: when its lease is over, when a
//! server says so, or when it is closed. Then a client makes a new one; nothing is carried over.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::native::{Request, request, response};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use crate::clock::{Boottime, Moment};
use crate::error::{Error, LossReason};
use crate::lease::{self, Lease};
use crate::requests::{Answer, Delivery, NewsTo, ReplyTo, Requests};
use crate::settings::Settings;
use crate::socket::write_frame;
use crate::views::{QueueView, SessionId};

/// Ids of requests that aren't numbered by the session (heartbeats, questions, the handshake) have
/// this bit, so that the two kinds never meet and those don't hold back the floor.
pub(crate) const UNNUMBERED: u64 = 1 << 63;

/// Questions that callers may have open at once on a session's connection; a server takes 64.
const QUESTIONS_MAX: usize = 32;

/// A caller's share of a session. When the last one is dropped the session is closed.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
}

/// What another process must know to watch over a session and, with
/// [`end_session`](crate::end_session), to end it.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// What proves that somebody speaks for it. Who knows it can end the session.
    pub secret: [u8; 16],
    /// Its lease.
    pub ttl: Duration,
    /// The client's URL.
    pub url: String,
    /// The server of the present connection runs on this machine since the same boot, so that both
    /// count the lease on the very same clock.
    pub is_same_boot: bool,
}

impl fmt::Debug for SessionInfo {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionInfo({} at {}, ttl {:?})", self.id, self.url, self.ttl)
    }
}

/// What callers and the connection's task share.
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) secret: [u8; 16],
    pub(crate) settings: Arc<Settings>,
    pub(crate) state: Mutex<State>,
    /// For the task: there is something to write, or to end.
    pub(crate) wake: Notify,
    /// For one caller that waits for room in the window; it passes the word on.
    pub(crate) room: Notify,
    /// One permit for each question that may be asked now.
    questions: Semaphore,
    /// For guards: something was revoked or lost.
    pub(crate) revocations: Notify,
    /// When the lease is lost unless it is renewed; boot itself before the session is open.
    pub(crate) deadline: watch::Sender<Boottime>,
    pub(crate) is_over: watch::Sender<bool>,
}

/// Where a session is in its life.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// No server has confirmed it yet.
    Opening,
    Open,
    /// It is to be ended at the servers, too. Its guards are lost already.
    Closing {
        since: Boottime,
    },
    /// Later calls get this error.
    Over(Error),
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    /// `None` until the session is open.
    pub(crate) lease: Option<Lease>,
    pub(crate) requests: Requests,
    /// Unnumbered questions without an answer, resent like the numbered ones.
    pub(crate) questions: Vec<Question>,
    pub(crate) next_unnumbered: u64,
    /// Frames for the present connection.
    pub(crate) out: BytesMut,
    /// The present connection speaks for the session: requests may be written to it.
    pub(crate) is_bound: bool,
    /// Why there is no connection that serves, while there is none.
    pub(crate) trouble: Error,
    /// The server runs on this machine since the same boot, so both use the very same clock.
    pub(crate) is_same_boot: bool,
    /// The lease's state as those who watch were last told.
    pub(crate) published: lease::State,
}

pub(crate) struct Question {
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<response::Body>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({})", self.id)
    }
}

// ------------------------------------------------------------------ for callers

impl Session {
    /// A share for those who only look: it doesn't keep the session open.
    pub(crate) fn share(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// A new session, with an id that no other has. Nothing is sent before its task runs.
    pub(crate) fn new(settings: &Arc<Settings>) -> Result<(Self, Arc<Shared>), Error> {
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&settings.random()?.to_ne_bytes());
        secret[8..].copy_from_slice(&settings.random()?.to_ne_bytes());
        let shared = Arc::new(Shared {
            // 0 means "not said" in the protocol.
            id: SessionId(settings.random()?.max(1)),
            secret,
            settings: Arc::clone(settings),
            state: Mutex::new(State {
                phase: Phase::Opening,
                lease: None,
                requests: Requests::default(),
                questions: Vec::new(),
                next_unnumbered: UNNUMBERED,
                out: BytesMut::new(),
                is_bound: false,
                trouble: settings.unreachable("nothing has been tried yet".to_owned()),
                is_same_boot: false,
                published: lease::State::Held,
            }),
            wake: Notify::new(),
            room: Notify::new(),
            questions: Semaphore::new(QUESTIONS_MAX),
            revocations: Notify::new(),
            deadline: watch::Sender::new(Boottime::default()),
            is_over: watch::Sender::new(false),
        });
        Ok((Self { shared: Arc::clone(&shared) }, shared))
    }
}

impl Deref for Session {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    pub(crate) fn info(&self) -> SessionInfo {
        let settings = &self.settings;
        SessionInfo {
            id: self.id,
            secret: self.secret,
            ttl: settings.ttl,
            url: settings.url.clone(),
            is_same_boot: self.state.lock().is_same_boot,
        }
    }

    /// Why requests can't be sent now; `None` if they can.
    pub(crate) fn trouble(&self) -> Option<Error> {
        let state = self.state.lock();
        (!state.is_bound).then(|| state.trouble.clone())
    }

    /// Whether a new request can still be made under this session, by the clock.
    pub(crate) fn is_usable(&self) -> bool {
        self.look().0.usable().is_ok()
    }

    /// Numbers a request and sends it as soon as there is a connection; waits for room first if
    /// too many are open. Dropped before it returns, it has asked for nothing.
    pub(crate) async fn request(
        &self,
        request: Box<Request>,
        news: Option<NewsTo>,
    ) -> Result<(u64, oneshot::Receiver<Result<Answer, Error>>), Error> {
        let mut has_waited = false;
        loop {
            {
                let (mut state, now) = self.look();
                let usable = state.usable();
                if usable.is_err() || !state.requests.is_full() {
                    if has_waited {
                        self.room.notify_one();
                    }
                    usable?;
                    let (to, reply) = oneshot::channel();
                    let number = state.requests.submit(request, Some(to), news, now);
                    self.send(&mut state);
                    return Ok((number, reply));
                }
            }
            has_waited = true;
            self.room.notified().await;
        }
    }

    /// Asks something that isn't numbered, on the session's own connection.
    ///
    /// # Errors
    ///
    /// The session's, if it is over before there is an answer.
    pub(crate) async fn ask(&self, body: request::Body) -> Result<response::Body, Error> {
        let _one_of_few = self.questions.acquire().await;
        let reply = {
            let (mut state, _) = self.look();
            state.usable()?;
            let (to, reply) = oneshot::channel();
            let request = state.unnumbered(body);
            if state.is_bound {
                write_frame(&request, &mut state.out);
            }
            state.questions.push(Question { request, reply: to });
            self.wake.notify_one();
            reply
        };
        reply.await.map_err(|_| match &self.state.lock().phase {
            Phase::Over(error) => error.clone(),
            Phase::Opening | Phase::Open | Phase::Closing { .. } => Error::Closed,
        })
    }

    /// Settles an acquire whose caller is gone. `reply` is dropped if there is nothing to settle.
    pub(crate) fn abandon(&self, acquire: u64, reply: Option<ReplyTo>) {
        let (mut state, now) = self.look();
        if matches!(state.phase, Phase::Opening | Phase::Open) {
            state.requests.abandon(acquire, reply, now);
            self.send(&mut state);
        }
    }

    /// Gives a hold back, if it is still held by the clock.
    pub(crate) fn release(&self, acquire: u64, reply: Option<ReplyTo>) -> Result<(), LossReason> {
        let (mut state, lease, now) = self.look_at_lease();
        match state.requests.state_of(acquire, lease) {
            lease::State::Lost(reason) => {
                // Its end released it, or will.
                state.requests.forget(acquire);
                Err(reason)
            }
            lease::State::Held | lease::State::Suspended { .. } => {
                state.requests.release(acquire, reply, now);
                self.send(&mut state);
                Ok(())
            }
        }
    }

    /// What a guard may believe now.
    pub(crate) fn state_of(&self, acquire: u64) -> lease::State {
        let mut state = self.state.lock();
        let now = self.settings.clock.now();
        state.compare_clocks(now);
        let lease = state.lease_state(now.boottime);
        state.requests.state_of(acquire, lease)
    }

    /// The cluster has said that a hold isn't held: returns why, as far as that is known.
    pub(crate) fn not_held(&self, acquire: u64) -> LossReason {
        let (mut state, lease, _) = self.look_at_lease();
        match state.requests.state_of(acquire, lease) {
            lease::State::Lost(reason) => reason,
            // The event that says so is still on its way.
            lease::State::Held | lease::State::Suspended { .. } => {
                state.requests.lose_hold(acquire, LossReason::Forced);
                LossReason::Forced
            }
        }
    }

    pub(crate) fn watch(&self, acquire: u64) -> watch::Receiver<lease::State> {
        let (mut state, lease, _) = self.look_at_lease();
        state.requests.watch(acquire, lease)
    }

    pub(crate) fn is_revoked(&self, acquire: u64) -> bool {
        self.state.lock().requests.is_revoked(acquire)
    }

    pub(crate) fn queue_view(&self, acquire: u64) -> Option<QueueView> {
        self.state.lock().requests.queue_view(acquire).cloned()
    }

    /// Ends the session at the servers; its guards are lost from now on.
    pub(crate) fn close(&self) {
        let (mut state, now) = self.look();
        if matches!(state.phase, Phase::Opening | Phase::Open) {
            state.phase = Phase::Closing { since: now };
            if let Some(lease) = &mut state.lease {
                lease.end(LossReason::Released);
            }
            self.wake.notify_one();
        }
    }

    /// Waits until the session is over, at the servers too if they could be told.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as this.
        let _ = self.is_over.subscribe().wait_for(|is_over| *is_over).await;
    }
}

// ------------------------------------------------------------------ for both sides

impl Shared {
    /// Locks the state and looks at the clock before anything else is done with it.
    pub(crate) fn look(&self) -> (MutexGuard<'_, State>, Boottime) {
        let mut state = self.state.lock();
        let now = self.settings.clock.boottime();
        if let Some(lease) = &mut state.lease {
            lease.look(now);
        }
        (state, now)
    }

    fn look_at_lease(&self) -> (MutexGuard<'_, State>, lease::State, Boottime) {
        let mut state = self.state.lock();
        let now = self.settings.clock.boottime();
        let lease = state.lease_state(now);
        (state, lease, now)
    }

    /// Writes what was just submitted into the outgoing buffer and wakes the task if it may be
    /// asleep: with bytes in the buffer it has been woken already.
    fn send(&self, state: &mut State) {
        let was_empty = state.out.is_empty();
        state.write_requests();
        if !state.is_bound || (was_empty && !state.out.is_empty()) {
            self.wake.notify_one();
        }
    }
}

impl State {
    /// What those who hold something under this session may believe.
    pub(crate) fn lease_state(&mut self, now: Boottime) -> lease::State {
        match &mut self.lease {
            Some(lease) => lease.look(now),
            None => match &self.phase {
                Phase::Opening | Phase::Open => lease::State::Held,
                Phase::Over(Error::Lost(reason)) => lease::State::Lost(*reason),
                Phase::Over(_) | Phase::Closing { .. } => lease::State::Lost(LossReason::Released),
            },
        }
    }

    /// Doubts the lease if the wall clock has seen a gap that the boot-time clock hasn't.
    pub(crate) fn compare_clocks(&mut self, now: Moment) {
        if let Some(lease) = &mut self.lease {
            lease.compare_clocks(now);
        }
    }

    /// Whether requests can be made.
    fn usable(&self) -> Result<(), Error> {
        match (&self.phase, self.lease.as_ref().and_then(Lease::lost)) {
            (Phase::Over(error), _) => Err(error.clone()),
            (Phase::Closing { .. }, _) => Err(Error::Closed),
            (Phase::Opening | Phase::Open, Some(reason)) => Err(Error::Lost(reason)),
            (Phase::Opening | Phase::Open, None) => Ok(()),
        }
    }

    /// A request outside the session's numbers.
    pub(crate) fn unnumbered(&mut self, body: request::Body) -> Request {
        self.next_unnumbered += 1;
        Request { id: self.next_unnumbered, floor: 0, body: Some(body) }
    }

    pub(crate) fn write_requests(&mut self) {
        if self.is_bound {
            self.requests.write_unsent(&mut self.out);
        }
    }

    /// A new connection speaks for the session: all that is unanswered goes out again.
    pub(crate) fn bind(&mut self) {
        self.is_bound = true;
        self.requests.restart();
        self.requests.write_unsent(&mut self.out);
        self.questions.retain(|question| !question.reply.is_closed());
        for question in &self.questions {
            write_frame(&question.request, &mut self.out);
        }
    }

    /// The connection is gone.
    pub(crate) fn unbind(&mut self) {
        self.is_bound = false;
        self.out.clear();
    }

    /// The answer to a question, if its asker still waits.
    pub(crate) fn answer_question(&mut self, id: u64, body: response::Body) {
        if let Some(index) = self.questions.iter().position(|question| question.request.id == id) {
            // An asker that has gone doesn't want it.
            drop(self.questions.swap_remove(index).reply.send(body));
        }
    }

    /// Ends the session here. `error` is what callers get, now and later.
    pub(crate) fn finish(&mut self, error: Error, out: &mut Vec<Delivery>) {
        if let Some(lease) = &mut self.lease {
            lease.end(match &error {
                Error::Lost(reason) => *reason,
                _ => LossReason::Released,
            });
        }
        self.unbind();
        self.questions.clear();
        self.requests.end(&error, out);
        self.phase = Phase::Over(error);
    }
}
