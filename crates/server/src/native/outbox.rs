//! What waits to be sent on one connection, and the node's way into it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::BytesMut;
use lockkeeper_core::{Event, Refusal, Reply, SessionId, SessionView, Stamp, StateMachine};
use lockkeeper_node::{Sink, Unavailable, WatchId};
use lockkeeper_wire::native::{self as wire, Response, response::Body};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::convert;
use crate::error::{self, No, Subject};
use crate::figures::Figures;
use crate::limits::{REQUESTS_WAITING_MAX, WATCH_BACKLOG_BYTES_MAX};
use crate::unread::Unread;

/// The output of one connection. The node's thread fills it, the connection's task empties it.
#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// There is something to send, or the connection is to be closed.
    filled: Notify,
    /// Something was sent, so that there is room.
    emptied: Notify,
    /// The connection is to be closed.
    closing: Notify,
    /// Where refusals are counted.
    figures: Arc<Figures>,
}

#[derive(Default)]
struct State {
    /// Frames that wait to be sent.
    output: BytesMut,
    /// Events of a session that is being resumed: they follow the answer that says what it held.
    held_back: Option<BytesMut>,
    /// Proposed and not answered, oldest first: what each was about, for the answer's words.
    asked: VecDeque<(u64, Asked)>,
    /// The session that this connection speaks for.
    session: Option<Bound>,
    watches: HashSet<WatchId>,
    /// Watches that fell behind, for the connection's task to take back.
    lagging: Vec<WatchId>,
    /// Questions in the works.
    questions: usize,
    /// Nothing more is taken: the connection ends when the output has been sent.
    is_closing: bool,
    /// Bytes that were taken to be sent, and may wait for the client still.
    sending_bytes: usize,
    /// What is counted of this connection in `unread`.
    counted_bytes: usize,
    unread: Arc<Unread>,
}

#[derive(Clone, Copy)]
struct Bound {
    session: SessionId,
    has_ended: bool,
}

/// What a proposed request was about.
pub(super) enum Asked {
    /// Opens a session, to which the connection is bound if it is granted.
    Open(SessionId),
    /// Something about a lock.
    Lock(String),
    /// Something about a session, its own or another.
    Session(SessionId),
}

/// What the writing half is to do next.
pub(super) enum Turn {
    /// Send what is in the buffer, then come again.
    Send,
    /// Send what is in the buffer, and close.
    Farewell,
}

impl Outbox {
    /// An outbox that sends this side's greeting first.
    pub(super) fn greeting(figures: &Arc<Figures>) -> Self {
        let outbox = Self { figures: Arc::clone(figures), ..Self::default() };
        outbox.state.lock().unread = Arc::clone(&figures.unread);
        wire::greet(&mut outbox.state.lock().output);
        outbox.filled.notify_one();
        outbox
    }

    /// Notes that the request `id` is about to be proposed. False, and nothing noted, if too many
    /// wait already.
    pub(super) fn ask(&self, id: u64, asked: Asked) -> bool {
        let mut state = self.state.lock();
        let has_room = state.asked.len() < REQUESTS_WAITING_MAX;
        if has_room {
            state.asked.push_back((id, asked));
        }
        has_room
    }

    /// Encodes an answer that the node's thread didn't make, and has it sent.
    pub(super) fn answer(&self, id: u64, body: Body) {
        if let Body::Refused(refused) = &body {
            self.figures.refused(refused.code().as_str_name());
        }
        self.state.lock().send(id, body);
        self.flush();
    }

    /// The session that this connection speaks for, ended or not; none any more once the
    /// connection is to be closed, because the session may have moved on.
    pub(super) fn session(&self) -> Option<SessionId> {
        let state = self.state.lock();
        state.session.filter(|_| !state.is_closing).map(|bound| bound.session)
    }

    /// The live session that keeps this connection from taking another one.
    pub(super) fn live_session(&self) -> Option<SessionId> {
        let state = self.state.lock();
        state.session.filter(|bound| !bound.has_ended).map(|bound| bound.session)
    }

    /// From now on the events of the session that is being resumed are held back. False if one is
    /// being resumed already.
    pub(super) fn begin_resume(&self) -> bool {
        let mut state = self.state.lock();
        let is_first = state.held_back.is_none();
        state.held_back.get_or_insert_default();
        is_first
    }

    /// Binds the resumed session and says what it holds, then lets its later events follow.
    pub(super) fn finish_resume(&self, id: u64, resumed: &SessionView, revision: u64) {
        {
            let mut state = self.state.lock();
            let later = state.held_back.take();
            state.session = Some(Bound { session: resumed.id, has_ended: false });
            for part in convert::session_state(resumed, revision) {
                state.send(id, Body::SessionState(part));
            }
            if let Some(later) = later {
                state.output.unsplit(later);
            }
            state.count();
        }
        self.flush();
    }

    /// The session was not resumed: `no` says why.
    pub(super) fn abandon_resume(&self, id: u64, no: No) {
        self.state.lock().held_back = None;
        self.answer(id, *no);
    }

    /// Counts one more question in the works; false if there are `max` already.
    pub(super) fn begin_question(&self, max: usize) -> bool {
        let mut state = self.state.lock();
        let has_room = state.questions < max;
        if has_room {
            state.questions += 1;
        }
        has_room
    }

    /// Counts one question less.
    pub(super) fn finish_question(&self) {
        self.state.lock().questions -= 1;
    }

    /// Takes a watch on; false if there are `max` already, or one of this id.
    pub(super) fn begin_watch(&self, id: WatchId, max: usize) -> bool {
        let mut state = self.state.lock();
        state.watches.len() < max && state.watches.insert(id)
    }

    /// Ends a watch; false if there is none of this id.
    pub(super) fn end_watch(&self, id: WatchId) -> bool {
        self.state.lock().watches.remove(&id)
    }

    /// Whether nothing hangs on this connection: no live session, no request, no watch.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.session.is_none_or(|bound| bound.has_ended)
            && state.asked.is_empty()
            && state.watches.is_empty()
            && state.questions == 0
            && state.held_back.is_none()
    }

    /// Says goodbye, and closes the connection once that is sent.
    pub(super) fn say_goodbye(&self, message: &str) {
        self.finish(Some(message));
    }

    /// Closes the connection once everything is sent, with a farewell if there is one.
    pub(super) fn finish(&self, farewell: Option<&str>) {
        {
            let mut state = self.state.lock();
            if let Some(message) = farewell {
                state.send(0, Body::Goodbye(wire::Goodbye { message: message.to_owned() }));
            }
            state.is_closing = true;
        }
        self.filled.notify_one();
        self.closing.notify_waiters();
    }

    /// Waits until the connection is to be closed.
    pub(super) async fn is_closing(&self) {
        loop {
            let closing = self.closing.notified();
            if self.state.lock().is_closing {
                return;
            }
            closing.await;
        }
    }

    /// The connection is gone: nothing more is encoded, and nobody waits for room.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        state.output = BytesMut::new();
        state.held_back = None;
        state.sending_bytes = 0;
        state.count();
        self.emptied.notify_waiters();
        self.closing.notify_waiters();
    }

    /// Waits until less than `bytes_max` wait to be sent; false if the connection is closing.
    pub(super) async fn has_room(&self, bytes_max: usize) -> bool {
        loop {
            let emptied = self.emptied.notified();
            {
                let state = self.state.lock();
                if state.is_closing || state.output.len() < bytes_max {
                    return !state.is_closing;
                }
            }
            emptied.await;
        }
    }

    /// Waits for something to send and swaps it for the empty `buffer`. Watches that fell behind
    /// are moved to `lagging`.
    pub(super) async fn take(&self, buffer: &mut BytesMut, lagging: &mut Vec<WatchId>) -> Turn {
        loop {
            {
                let mut state = self.state.lock();
                if state.is_closing || !state.output.is_empty() {
                    std::mem::swap(&mut state.output, buffer);
                    state.sending_bytes = buffer.len();
                    state.count();
                    lagging.append(&mut state.lagging);
                    self.emptied.notify_waiters();
                    return if state.is_closing { Turn::Farewell } else { Turn::Send };
                }
                // What was taken before has been sent.
                state.sending_bytes = 0;
                state.count();
            }
            self.filled.notified().await;
        }
    }
}

impl Drop for State {
    /// However the connection ended, nobody else has less room for it.
    fn drop(&mut self) {
        self.unread.change(self.counted_bytes, 0);
    }
}

impl State {
    fn send(&mut self, id: u64, body: Body) {
        if self.is_closing {
            return;
        }
        encode(&mut self.output, id, body);
        self.count();
        let share = self.unread.share();
        if self.output.len() > share {
            tracing::warn!(
                session = self.session.map(|bound| bound.session.to_string()),
                waiting_bytes = self.output.len(),
                share_bytes = share,
                "a client doesn't read its answers: its connection is closed"
            );
            // A goodbye would only join the queue that it doesn't read.
            self.is_closing = true;
        }
    }

    /// Counts what this connection holds for what all may hold together.
    fn count(&mut self) {
        let held_back = self.held_back.as_ref().map_or(0, BytesMut::len);
        let bytes = self.output.len() + held_back + self.sending_bytes;
        self.unread.change(self.counted_bytes, bytes);
        self.counted_bytes = bytes;
    }

    /// Sends an event of the session, or holds it back while that is being resumed.
    fn send_event(&mut self, body: Body) {
        match &mut self.held_back {
            Some(later) if later.len() < self.unread.share() => {
                encode(later, 0, body);
                self.count();
            }
            Some(_) => self.is_closing = true,
            None => self.send(0, body),
        }
    }

    /// What the request `id` was about. Answers come in the order of the requests, except for
    /// those that were never proposed, which are the newest.
    fn settle(&mut self, id: u64) -> Option<Asked> {
        if self.asked.front().is_some_and(|(first, _)| *first == id) {
            return self.asked.pop_front().map(|(_, asked)| asked);
        }
        let position = self.asked.iter().rposition(|(asked, _)| *asked == id)?;
        self.asked.remove(position).map(|(_, asked)| asked)
    }

    fn opened(&mut self, id: u64, session: SessionId, state: &StateMachine) {
        self.session = Some(Bound { session, has_ended: false });
        // A session that an earlier copy of this request opened may hold something by now.
        let Some(view) = state.session(session) else { return };
        for part in convert::session_state(&view, state.revision().0) {
            self.send(id, Body::SessionState(part));
        }
    }

    fn watched(&mut self, watch: WatchId, event: &Event, state: &StateMachine, now: Stamp) {
        if !self.watches.contains(&watch) {
            return;
        }
        // Before it costs the client its connection.
        if self.output.len() > WATCH_BACKLOG_BYTES_MAX.min(self.unread.share() / 4) {
            self.watches.remove(&watch);
            self.lagging.push(watch);
            self.send(watch, *error::watch_lags());
        } else if let Some(event) = convert::watch_event(event, state, now) {
            self.send(watch, Body::WatchEvent(event));
        }
    }

    fn happened(&mut self, event: &Event) {
        let body = match *event {
            // A grant by the acquire itself is told by its reply.
            Event::Granted { number, token, waited_ms: Some(_), .. } => {
                Body::GrantedEvent(wire::GrantedEvent { acquire: number.0, token: token.0 })
            }
            Event::Revoked { number, .. } => {
                Body::RevokedEvent(wire::RevokedEvent { acquire: number.0 })
            }
            Event::SessionRevoked { .. } => Body::RevokedEvent(wire::RevokedEvent { acquire: 0 }),
            Event::Lost { number, reason, .. } => Body::LostEvent(wire::LostEvent {
                acquire: number.0,
                reason: convert::loss_reason(reason).to_owned(),
            }),
            Event::SessionEnded { session, reason } => {
                if let Some(bound) = self.session.as_mut().filter(|bound| bound.session == session)
                {
                    bound.has_ended = true;
                }
                let reason = convert::end_reason(reason).to_owned();
                Body::SessionEndedEvent(wire::SessionEndedEvent { reason })
            }
            Event::SessionOpened { .. }
            | Event::Queued { .. }
            | Event::Granted { waited_ms: None, .. }
            | Event::Released { .. }
            | Event::Cancelled { .. }
            | Event::SessionMoved { .. }
            | Event::Node { .. } => return,
        };
        self.send_event(body);
    }
}

/// Appends a frame. Each list is cut to fit before it comes here, so what doesn't fit is a fault
/// of ours; its client gets an answer all the same.
fn encode(out: &mut BytesMut, id: u64, body: Body) {
    let response = Response { id, body: Some(body) };
    if let Err(error) = wire::encode(&response, wire::RESPONSE_BYTES_MAX, out) {
        tracing::error!(id, %error, "an answer is too long to be sent");
        let body = Some(*error::too_long());
        wire::encode(&Response { id, body }, wire::RESPONSE_BYTES_MAX, out)
            .expect("a short answer fits");
    }
}

impl Sink for Outbox {
    fn reply(
        &self,
        id: u64,
        reply: Result<&Reply, &Unavailable>,
        state: &StateMachine,
        now: Stamp,
    ) {
        let mut own = self.state.lock();
        let asked = own.settle(id);
        let lock = match &asked {
            Some(Asked::Lock(name)) => Some(name.as_str()),
            Some(Asked::Open(_) | Asked::Session(_)) | None => None,
        };
        let body = match reply {
            // What is asked of the tree isn't asked here.
            Ok(Reply::Tree(_)) => Body::Done(wire::Done {}),
            Ok(Reply::Done) => match asked {
                Some(Asked::Open(session)) => return own.opened(id, session, state),
                _ => Body::Done(wire::Done {}),
            },
            Ok(Reply::Granted { token }) => Body::Granted(wire::Granted { token: token.0 }),
            Ok(&Reply::Queued { place }) => Body::Queued(convert::queued(place, lock, state, now)),
            Ok(&Reply::Released { token, remaining }) => {
                Body::Released(wire::Released { token: token.0, remaining })
            }
            Ok(Reply::Refused(refusal)) => {
                let session = match asked {
                    Some(Asked::Open(session) | Asked::Session(session)) => Some(session),
                    _ => own.session.map(|bound| bound.session),
                };
                let subject = Subject { session, lock, number: id };
                let refused = error::refused(refusal, subject, state, now);
                self.figures.refused(refused.code().as_str_name());
                if let (Some(lock), Refusal::Busy) = (lock, refusal) {
                    self.figures.busy(lock);
                }
                Body::Refused(refused)
            }
            Err(unavailable) => {
                self.figures.refused(error::unavailable_name(unavailable));
                *error::unavailable(unavailable)
            }
        };
        own.send(id, body);
    }

    fn event(&self, watch: Option<WatchId>, event: &Event, state: &StateMachine, now: Stamp) {
        let mut own = self.state.lock();
        match watch {
            Some(watch) => own.watched(watch, event, state, now),
            None => own.happened(event),
        }
    }

    fn confirmed(&self, id: u64) {
        self.state.lock().send(id, Body::HeartbeatConfirmed(wire::HeartbeatConfirmed {}));
    }

    fn flush(&self) {
        let is_closing = self.state.lock().is_closing;
        if is_closing {
            self.closing.notify_waiters();
        }
        self.filled.notify_one();
    }

    fn close(&self, reason: &'static str) {
        self.say_goodbye(reason);
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::{OUTPUT_BYTES_MAX, UNREAD_BYTES_FREE};
    use lockkeeper_core::{Command, OwnerRef};
    use lockkeeper_core::{LockName, Mode, Number, Secret, Token};
    use lockkeeper_wire::native::Frames;

    use super::*;

    #[test]
    fn a_watch_that_falls_behind_is_ended_with_its_last_word() {
        let outbox = Outbox::default();
        let state = StateMachine::default();
        assert!(outbox.begin_watch(7, 1));
        let granted = granted(Some(5));
        while outbox.state.lock().lagging.is_empty() {
            outbox.event(Some(7), &granted, &state, Stamp(0));
        }
        let told = sent(&outbox);
        assert!(matches!(told.last(), Some((7, Body::Unavailable(_)))));
        // Nothing follows, and the connection lives.
        outbox.event(Some(7), &granted, &state, Stamp(0));
        outbox.confirmed(1);
        let told = sent(&outbox);
        assert!(matches!(told[..], [(1, Body::HeartbeatConfirmed(_))]), "{told:?}");
        assert!(!outbox.end_watch(7));
    }

    #[test]
    fn a_client_that_reads_nothing_is_closed_at_the_limit() {
        let outbox = Outbox::default();
        while !outbox.state.lock().is_closing {
            outbox.confirmed(1);
        }
        let waiting_bytes = outbox.state.lock().output.len();
        assert!((OUTPUT_BYTES_MAX..OUTPUT_BYTES_MAX + 100).contains(&waiting_bytes));
        outbox.confirmed(2);
        assert_eq!(outbox.state.lock().output.len(), waiting_bytes);
    }

    #[tokio::test]
    async fn all_that_nobody_reads_is_bounded_and_the_largest_goes_first() {
        const BYTES_MAX: usize = 1 << 20;
        let unread = Arc::new(Unread::new(BYTES_MAX));
        let outbox = || {
            let outbox = Outbox::default();
            outbox.state.lock().unread = Arc::clone(&unread);
            outbox
        };
        // One that is being sent to somebody who doesn't read counts on.
        let hoarder = outbox();
        while hoarder.state.lock().output.len() < BYTES_MAX / 4 {
            hoarder.confirmed(1);
        }
        let mut sending = BytesMut::new();
        let _ = hoarder.take(&mut sending, &mut Vec::new()).await;
        assert_eq!(unread.bytes(), sending.len());
        while !hoarder.state.lock().is_closing {
            hoarder.confirmed(1);
        }
        assert!(unread.bytes() < BYTES_MAX * 3 / 4, "half of what was left is enough");
        let many: Vec<_> = std::iter::repeat_with(outbox).take(200).collect();
        for outbox in &many {
            while !outbox.state.lock().is_closing {
                outbox.confirmed(1);
            }
        }
        let bound = BYTES_MAX + many.len() * (UNREAD_BYTES_FREE + 100);
        assert!((BYTES_MAX..bound).contains(&unread.bytes()), "{} bytes", unread.bytes());
        // Who reads is served all the same, and counts for nothing once all is sent.
        let reader = outbox();
        (0..100).for_each(|id| reader.confirmed(id));
        assert!(!reader.state.lock().is_closing);
        let others = unread.bytes() - reader.state.lock().counted_bytes;
        let (mut sent, mut lagging) = (BytesMut::new(), Vec::new());
        let _ = reader.take(&mut sent, &mut lagging).await;
        assert_eq!(unread.bytes(), others + sent.len());
        tokio::select! {
            biased;
            _ = reader.take(&mut sent, &mut lagging) => panic!("there is nothing to send"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(unread.bytes(), others);
        // What is closed gives back what it held, however it ended.
        hoarder.shut();
        many.iter().step_by(2).for_each(Outbox::shut);
        drop((hoarder, many, reader));
        assert_eq!(unread.bytes(), 0);
    }

    #[test]
    fn events_after_the_resumed_state_follow_it() {
        let outbox = Outbox::default();
        let state = with_session(SessionId(9));
        assert!(outbox.begin_resume());
        assert!(!outbox.begin_resume());
        outbox.event(None, &granted(Some(5)), &state, Stamp(0));
        assert!(sent(&outbox).is_empty());
        outbox.finish_resume(3, &state.session(SessionId(9)).unwrap(), 1);
        let told = sent(&outbox);
        assert!(
            matches!(told[..], [(3, Body::SessionState(_)), (0, Body::GrantedEvent(_))]),
            "{told:?}"
        );
    }

    #[test]
    fn a_connection_is_bound_once_its_session_is_open() {
        let outbox = Outbox::default();
        let state = with_session(SessionId(9));
        assert!(outbox.ask(1, Asked::Open(SessionId(9))));
        assert_eq!(outbox.session(), None);
        outbox.reply(1, Ok(&Reply::Done), &state, Stamp(0));
        assert_eq!(outbox.session(), Some(SessionId(9)));
        let reason = lockkeeper_core::EndReason::Expired;
        let ended = Event::SessionEnded { session: SessionId(9), reason };
        outbox.event(None, &ended, &state, Stamp(0));
        assert_eq!(outbox.live_session(), None);
        assert!(outbox.is_idle());
    }

    #[test]
    fn answers_out_of_order_find_their_requests() {
        let outbox = Outbox::default();
        let state = StateMachine::default();
        for id in 1..=3 {
            assert!(outbox.ask(id, Asked::Lock(format!("lock-{id}"))));
        }
        for id in [3, 1, 2] {
            let refused = Reply::Refused(Refusal::Busy);
            outbox.reply(id, Ok(&refused), &state, Stamp(0));
        }
        for (id, body) in sent(&outbox) {
            let Body::Refused(refused) = body else { panic!("{body:?}") };
            assert!(refused.message.contains(&format!("\"lock-{id}\"")), "{}", refused.message);
        }
        assert!(outbox.is_idle());
    }

    #[test]
    fn a_grant_by_the_acquire_itself_is_no_event() {
        let outbox = Outbox::default();
        outbox.event(None, &granted(None), &StateMachine::default(), Stamp(0));
        assert!(sent(&outbox).is_empty());
    }

    fn granted(waited_ms: Option<u64>) -> Event {
        Event::Granted {
            lock: LockName::from("a"),
            session: SessionId(9),
            number: Number(2),
            token: Token(5),
            mode: Mode::Exclusive,
            waited_ms,
        }
    }

    fn with_session(session: SessionId) -> StateMachine {
        let mut state = StateMachine::default();
        let owner = OwnerRef::default();
        let open = Command::OpenSession { session, secret: Secret([0; 16]), ttl_ms: 1_000, owner };
        assert_eq!(state.apply(Stamp(1), &open, &mut Vec::new()), Reply::Done);
        state
    }

    fn sent(outbox: &Outbox) -> Vec<(u64, Body)> {
        let mut frames = Frames::of_responses(outbox.state.lock().output.split());
        std::iter::from_fn(|| frames.next_message().unwrap())
            .map(|response| (response.id, response.body.unwrap()))
            .collect()
    }
}
