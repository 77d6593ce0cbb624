//! What waits to be sent on one connection, what waits to be answered, and the node's way in.
//!
//! Requests stand in a line of slots, in the order in which they came. A write is proposed at once
//! and its slot waits for the log; a read is executed when it has come to the front, either as soon
//! as it is read from the socket or, behind a write, with the state in which that write was
//! applied. So replies leave in the order of the requests, a client sees what it wrote, and nothing
//! waits for anybody else's writes.
//!
//! A ping stands outside the line: it is answered when a quorum has confirmed the session's
//! heartbeat, which must neither wait for a request nor hold one up. A client whose server is cut
//! off hears nothing, and goes to another server before its session can end there: whatever is to
//! be sent waits until the session is confirmed (`lease.rs`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_core::{
    Event, IdRef, NodeAcl, Refusal, Reply, SessionId, Stamp, StateMachine, perms,
};
use lockkeeper_node::{Monotonic, Sink, Unavailable, WatchId};
use lockkeeper_wire::jute::{
    self, ConnectResponse, ErrorCode, Hidden, OpCode, ReplyHeader, encode_reply, xids,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Front;
use super::hub::WatcherId;
use super::ids::Id;
use super::lease::Lease;
use super::reads::{self, Reader};
use super::traffic::{ConnectionView, Latency, Traffic};
use super::writes::{self, Asked};
use crate::limits::{
    ASIDE_BYTES_MAX, LONG_REQUEST, OUTPUT_BYTES_MAX, PINGS_WAITING_MAX, PIPELINE_BYTES_MAX,
    PIPELINE_MAX, REPLIES_WAITING_BYTES, TURN_REQUESTS_MAX, UNREAD_BYTES_FREE,
};
use crate::unread::Unread;

/// The id under which a session is opened or resumed; others are those of slots.
pub(super) const HANDSHAKE: u64 = u64::MAX;

/// The number of the connection that opened its session.
pub(super) const OPENING: u64 = 0;

/// In the number of a heartbeat: no ping wants an answer to it.
const SILENT: u64 = 1 << 63;

/// The output of one connection. The node's thread fills it, the connection's task empties it.
pub(super) struct Outbox {
    state: Mutex<State>,
    /// There is something to send, or the connection is to be closed.
    filled: Notify,
    /// A request was answered, so that there may be room for another one.
    answered: Notify,
    /// The connection is to be closed.
    closing: Notify,
    /// The line may have moved.
    moved: Notify,
    pub(super) address: SocketAddr,
    /// Within TLS.
    is_secure: bool,
    pub(super) since: Instant,
}

struct State {
    front: Arc<Front>,
    /// Frames that wait to be sent.
    output: BytesMut,
    /// How much of them nobody has asked for.
    notified_bytes: usize,
    /// How much of them was answered past the line.
    aside_bytes: usize,
    /// Requests that are not answered, oldest first.
    slots: VecDeque<Slot>,
    /// The number of the oldest of them.
    first: u64,
    /// What they count for, all together.
    slot_bytes: usize,
    /// The next reply is long, and there is no room for it among what all clients don't read.
    is_held_back: bool,
    /// For how long the session may be spoken for; `None`: it is nobody's but this server's.
    lease: Option<Lease>,
    silent_beats: u64,
    /// The request that is being proposed right now, and whether there was no room for it.
    proposing: Option<(u64, bool)>,
    pings_asked: u64,
    pings_answered: u64,
    session: Option<Session>,
    handshake: Handshake,
    watcher: WatcherId,
    ids: Arc<Vec<Id>>,
    /// Nothing more is taken: the connection ends when the output has been sent.
    is_closing: bool,
    sending_bytes: usize,
    counted_bytes: usize,
    unread: Arc<Unread>,
    traffic: Traffic,
}

/// The session that a connection speaks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) timeout: Duration,
    /// Tells this connection from others that the session has had.
    pub(super) connection: u64,
    /// It is this server's alone, and only reads.
    pub(super) is_local: bool,
}

/// What the client asked for, and how far that is.
pub(super) enum Handshake {
    /// Nothing has been proposed.
    None,
    /// The log is to say whether there is such a session.
    Proposed(Offer, Monotonic),
    /// It was refused with this.
    Refused(Refusal),
    /// The client has been told its session.
    Done,
}

/// The session that a client is to be told, once it is there.
pub(super) struct Offer {
    pub(super) session: Session,
    pub(super) password: [u8; 16],
    /// As in the request: a client that doesn't say it doesn't understand it.
    pub(super) read_only: Option<bool>,
}

/// A request that is not answered.
struct Slot {
    xid: i32,
    op: OpCode,
    since: Monotonic,
    /// What it counts for: its request, and later its reply.
    bytes: usize,
    work: Work,
}

/// What a request waits for.
enum Work {
    /// For the log.
    Write(Asked),
    /// For its turn.
    Read { frame: Bytes, ids: Arc<Vec<Id>> },
    /// For a change of the members before it; then for the log.
    Held,
    /// For everything that was committed when it came; then for its turn.
    Sync { frame: Bytes, is_done: bool },
    /// For its turn: the frame is made, but for its zxid.
    Answered(BytesMut),
    /// For its turn: it goes wrong.
    Fails(ErrorCode),
    /// For its turn: nobody knows the operation, and the connection ends with the answer.
    Unknown,
}

/// What the writing half is to do next.
pub(super) enum Turn {
    /// Send what is in the buffer, then come again.
    Send,
    /// Have the requests answered that wait for room; there is nothing to send.
    GoOn,
    /// Send what is in the buffer, and close.
    Farewell,
}

impl Outbox {
    pub(super) fn new(
        front: &Arc<Front>,
        address: SocketAddr,
        is_secure: bool,
        ids: Vec<Id>,
    ) -> Arc<Self> {
        let state = State {
            front: Arc::clone(front),
            output: BytesMut::new(),
            notified_bytes: 0,
            aside_bytes: 0,
            slots: VecDeque::new(),
            first: 0,
            slot_bytes: 0,
            is_held_back: false,
            lease: None,
            silent_beats: 0,
            proposing: None,
            pings_asked: 0,
            pings_answered: 0,
            session: None,
            handshake: Handshake::None,
            watcher: 0,
            ids: Arc::new(ids),
            is_closing: false,
            sending_bytes: 0,
            counted_bytes: 0,
            unread: Arc::clone(&front.unread),
            traffic: Traffic::default(),
        };
        let outbox = Arc::new(Self {
            state: Mutex::new(state),
            filled: Notify::new(),
            answered: Notify::new(),
            closing: Notify::new(),
            moved: Notify::new(),
            address,
            is_secure,
            since: Instant::now(),
        });
        let watcher = front.hub.join(&outbox);
        outbox.state.lock().watcher = watcher;
        outbox
    }

    // ------------------------------------------------------------ the handshake

    /// A session is about to be asked for.
    pub(super) fn begin(&self, offer: Offer) {
        let state = &mut *self.state.lock();
        state.handshake = Handshake::Proposed(offer, state.front.clock.monotonic());
    }

    /// Waits until the log has said whether there is such a session: `None` if the connection is
    /// to be closed.
    pub(super) async fn handshake(&self) -> Option<Result<Session, Refusal>> {
        loop {
            let answered = self.answered.notified();
            let closing = self.closing.notified();
            {
                let state = self.state.lock();
                match (&state.handshake, state.session) {
                    (Handshake::Done, Some(session)) => return Some(Ok(session)),
                    (Handshake::Refused(refusal), _) => return Some(Err(refusal.clone())),
                    _ if state.is_closing => return None,
                    _ => {}
                }
            }
            tokio::select! {
                () = answered => {}
                () = closing => {}
            }
        }
    }

    /// Tells a client its session, which no log knows.
    pub(super) fn grant_local(&self, offer: &Offer, zxid: i64) {
        self.state.lock().welcome(offer, zxid);
        self.filled.notify_one();
    }

    /// Tells a client that it has no session, and closes.
    pub(super) fn refuse_session(&self, read_only: Option<bool>) {
        {
            let state = &mut *self.state.lock();
            // Its length is fixed.
            let _ = ConnectResponse::refusal(read_only).encode(&mut state.output);
        }
        self.finish();
    }

    // ------------------------------------------------------------ requests

    /// Whether one more request may be taken.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.slots.len() < PIPELINE_MAX
            && state.slot_bytes < PIPELINE_BYTES_MAX
            && state.aside_bytes < ASIDE_BYTES_MAX
    }

    /// Waits until a request may have been answered, or the connection is to be closed.
    pub(super) async fn change(&self) {
        self.answered.notified().await;
    }

    /// A write of so many bytes is about to be proposed: the number of its slot.
    pub(super) fn ask(&self, xid: i32, op: OpCode, asked: Asked, bytes: usize) -> u64 {
        let state = &mut *self.state.lock();
        let id = state.push(xid, op, bytes, Work::Write(asked));
        state.proposing = Some((id, false));
        id
    }

    /// The proposal has been made. False if there was no room for it.
    pub(super) fn is_proposed(&self) -> bool {
        let proposing = self.state.lock().proposing.take();
        proposing.is_none_or(|(_, was_refused)| !was_refused)
    }

    /// A write stands in line that must not be proposed yet: the number of its slot.
    pub(super) fn hold(&self, xid: i32, op: OpCode, bytes: usize) -> u64 {
        self.state.lock().push(xid, op, bytes, Work::Held)
    }

    /// The write of the slot `id` is about to be proposed after all.
    pub(super) fn ask_late(&self, id: u64, asked: Asked) {
        let state = &mut *self.state.lock();
        state.set_work(id, Work::Write(asked));
        state.proposing = Some((id, false));
    }

    /// Whether the request of the slot `id` was answered.
    pub(super) fn has_answered(&self, id: u64) -> bool {
        self.state.lock().first > id
    }

    /// A read stands in line.
    pub(super) fn read(&self, xid: i32, op: OpCode, frame: Bytes) {
        let state = &mut *self.state.lock();
        let ids = Arc::clone(&state.ids);
        state.push(xid, op, frame.len(), Work::Read { frame, ids });
    }

    /// A request stands in line that waits for something: the number of its slot.
    pub(super) fn wait(&self, xid: i32, op: OpCode, frame: Bytes) -> u64 {
        let state = &mut *self.state.lock();
        state.push(xid, op, frame.len(), Work::Sync { frame, is_done: false })
    }

    /// Completes once the request of the slot `id` is the first in line.
    pub(super) async fn is_first(&self, id: u64) {
        loop {
            let moved = self.moved.notified();
            if self.state.lock().first >= id {
                return;
            }
            moved.await;
        }
    }

    /// A request that has waited fails.
    pub(super) fn fail_waiting(&self, id: u64, error: ErrorCode) {
        self.state.lock().set_work(id, Work::Fails(error));
    }

    /// A request that has waited has its reply, which is made but for its zxid.
    pub(super) fn answer_waiting(&self, id: u64, xid: i32, reply: &jute::Reply<'_>) {
        self.state.lock().set_work(id, Work::Answered(writes::unnumbered(xid, reply)));
    }

    /// Requests whose wait is over.
    pub(super) fn synced(&self, ids: &[u64]) {
        let state = &mut *self.state.lock();
        for id in ids {
            if let Some(Slot { work: Work::Sync { is_done, .. }, .. }) = state.slot(*id) {
                *is_done = true;
            }
        }
    }

    /// A request that nobody knows, in line: the connection ends with its answer.
    pub(super) fn unknown(&self, xid: i32, op: OpCode) {
        self.state.lock().push(xid, op, 0, Work::Unknown);
    }

    /// A request whose reply is made already, but for its zxid, in line.
    pub(super) fn reply_with(&self, xid: i32, op: OpCode, reply: &jute::Reply<'_>) {
        let frame = writes::unnumbered(xid, reply);
        self.state.lock().push(xid, op, frame.len(), Work::Answered(frame));
    }

    /// A request that fails, in line.
    pub(super) fn fail(&self, xid: i32, op: OpCode, error: ErrorCode) {
        self.state.lock().push(xid, op, 0, Work::Fails(error));
    }

    /// Answers at once, past the line, with a zxid of 0.
    pub(super) fn answer(&self, xid: i32, op: OpCode, error: ErrorCode, reply: &jute::Reply<'_>) {
        let state = &mut *self.state.lock();
        state.traffic.received += 1;
        state.front.figures.received();
        state.traffic.last_op = Some(op);
        state.traffic.last_xid = xid;
        state.send_aside(&ReplyHeader { xid, zxid: 0, err: error }, reply);
        self.filled.notify_one();
    }

    /// A ping came: the number of the heartbeat to be sent. `None`: there are too many.
    pub(super) fn ping(&self) -> Option<u64> {
        let state = &mut *self.state.lock();
        state.traffic.received += 1;
        state.front.figures.received();
        state.traffic.last_op = Some(OpCode::PING);
        state.traffic.last_xid = xids::PING;
        state.pings_asked += 1;
        let waiting = state.pings_asked - state.pings_answered;
        let id = (waiting <= PINGS_WAITING_MAX).then_some(state.pings_asked)?;
        if let Some(lease) = &mut state.lease {
            lease.beat(id, state.front.clock.monotonic());
        }
        Some(id)
    }

    /// The client has said something: the number of the heartbeat to be sent, if it is time for
    /// one that wants a confirmation.
    pub(super) fn beat(&self) -> Option<u64> {
        let state = &mut *self.state.lock();
        let now = state.front.clock.monotonic();
        let lease = state.lease.as_mut().filter(|lease| lease.wants_beat(now))?;
        state.silent_beats += 1;
        let id = SILENT | state.silent_beats;
        lease.beat(id, now);
        Some(id)
    }

    /// How long what is to be sent may wait for the session to be confirmed, if it does.
    pub(super) fn is_unconfirmed(&self) -> Option<Duration> {
        let state = self.state.lock();
        let waits = !state.output.is_empty() && !state.may_speak();
        state.lease.as_ref().filter(|_| waits).map(Lease::patience)
    }

    /// Whether nobody confirms the session any more.
    pub(super) fn is_forsaken(&self) -> bool {
        let state = self.state.lock();
        let now = state.front.clock.monotonic();
        state.lease.as_ref().is_some_and(|lease| lease.is_forsaken(now))
    }

    /// The connection has proved more ids.
    pub(super) fn prove(&self, ids: Vec<Id>) {
        let state = &mut *self.state.lock();
        let own = Arc::make_mut(&mut state.ids);
        for id in ids {
            if !own.contains(&id) {
                own.push(id);
            }
        }
    }

    /// What the connection has proved.
    pub(super) fn ids(&self) -> Arc<Vec<Id>> {
        Arc::clone(&self.state.lock().ids)
    }

    /// Whether a request could be answered now, if somebody brought the state.
    pub(super) fn is_runnable(&self) -> bool {
        let state = self.state.lock();
        !state.is_closing && state.has_output_room() && state.is_next_ready()
    }

    /// Answers what has come to its turn.
    pub(super) fn go_on(&self, machine: &StateMachine) {
        self.state.lock().go_on(machine);
        self.after_turn();
    }

    // ------------------------------------------------------------ watches

    /// Something happened that this connection watches, and it may read what has `acl`.
    pub(super) fn notify(&self, frame: &[u8], zxid: i64, acl: &NodeAcl) -> Option<SessionId> {
        let state = &mut *self.state.lock();
        if state.is_closing || !state.may_read(acl) {
            return None;
        }
        state.notify(frame, zxid);
        if state.is_closing {
            self.closing.notify_waiters();
        }
        self.filled.notify_one();
        state.session.map(|session| session.id)
    }

    pub(super) fn watcher(&self) -> WatcherId {
        self.state.lock().watcher
    }

    // ------------------------------------------------------------ the end

    /// Closes the connection once everything is sent.
    pub(super) fn finish(&self) {
        self.state.lock().is_closing = true;
        self.filled.notify_one();
        self.answered.notify_one();
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

    /// The connection is gone: nothing more is encoded, and nothing is kept.
    pub(super) fn shut(&self) {
        let state = &mut *self.state.lock();
        state.is_closing = true;
        state.output = BytesMut::new();
        state.slots = VecDeque::new();
        state.slot_bytes = 0;
        state.sending_bytes = 0;
        state.count();
        self.closing.notify_waiters();
        self.answered.notify_one();
    }

    /// Waits for something to send and swaps it for the empty `buffer`; or for room for a reply
    /// that could not be made yet.
    pub(super) async fn take(&self, buffer: &mut BytesMut, unread: &Unread) -> Turn {
        loop {
            let is_held_back = {
                let state = &mut *self.state.lock();
                let may_speak = state.may_speak();
                if state.is_closing && !may_speak {
                    state.output.clear();
                }
                if state.is_closing || may_speak && !state.output.is_empty() {
                    std::mem::swap(&mut state.output, buffer);
                    state.notified_bytes = 0;
                    if std::mem::take(&mut state.aside_bytes) >= ASIDE_BYTES_MAX {
                        self.answered.notify_one();
                    }
                    state.sending_bytes = buffer.len();
                    state.count();
                    return if state.is_closing { Turn::Farewell } else { Turn::Send };
                }
                // What was taken before has been sent.
                state.sending_bytes = 0;
                state.count();
                state.is_held_back
            };
            if !is_held_back {
                self.filled.notified().await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.filled.notified() => {}
                () = unread.freed() => return Turn::GoOn,
            }
        }
    }

    pub(super) fn view(&self) -> ConnectionView {
        let state = self.state.lock();
        ConnectionView {
            address: self.address,
            is_secure: self.is_secure,
            session: state.session.map(|session| session.id),
            timeout: state.session.map_or(Duration::ZERO, |session| session.timeout),
            is_local: state.session.is_some_and(|session| session.is_local),
            queued: state.slots.len(),
            age: self.since.elapsed(),
            traffic: state.traffic,
        }
    }

    /// Forgets what was counted.
    pub(super) fn reset_traffic(&self) {
        let state = &mut *self.state.lock();
        state.traffic.received = 0;
        state.traffic.sent = 0;
        state.traffic.latency = Latency::default();
    }

    fn after_turn(&self) {
        let (is_closing, has_output) = {
            let state = self.state.lock();
            (state.is_closing, !state.output.is_empty() || state.is_held_back)
        };
        if is_closing {
            self.closing.notify_waiters();
        }
        if is_closing || has_output {
            self.filled.notify_one();
        }
        self.answered.notify_one();
        self.moved.notify_waiters();
    }
}

impl Drop for State {
    /// However the connection ended, nobody else has less room for it.
    fn drop(&mut self) {
        self.unread.change(self.counted_bytes, 0);
    }
}

impl State {
    fn push(&mut self, xid: i32, op: OpCode, bytes: usize, work: Work) -> u64 {
        let id = self.first + self.slots.len() as u64;
        self.traffic.received += 1;
        self.front.figures.received();
        self.traffic.last_op = Some(op);
        self.traffic.last_xid = xid;
        self.slot_bytes += bytes;
        let since = self.front.clock.monotonic();
        self.slots.push_back(Slot { xid, op, since, bytes, work });
        id
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(at)
    }

    fn set_work(&mut self, id: u64, work: Work) {
        if let Some(slot) = self.slot(id) {
            slot.work = work;
        }
    }

    fn is_next_ready(&self) -> bool {
        match self.slots.front().map(|slot| &slot.work) {
            None | Some(Work::Write(_) | Work::Held | Work::Sync { is_done: false, .. }) => false,
            Some(
                Work::Read { .. }
                | Work::Sync { is_done: true, .. }
                | Work::Answered(_)
                | Work::Fails(_)
                | Work::Unknown,
            ) => true,
        }
    }

    /// Whether the session was confirmed lately enough for anything to be sent.
    fn may_speak(&self) -> bool {
        let is_current = |lease: &Lease| lease.is_current(self.front.clock.monotonic());
        self.lease.as_ref().is_none_or(is_current)
    }

    /// Whether the client reads: replies are made when there is room for them.
    fn has_output_room(&self) -> bool {
        self.output.len() < REPLIES_WAITING_BYTES.min(self.unread.share())
    }

    /// Whether the next reply is longer than what may always wait, and all there is room for waits
    /// already: a crowd that lists the same thousands of children at once is answered as it reads.
    fn has_to_wait(&self, machine: &StateMachine) -> bool {
        if self.unread.has_room() {
            return false;
        }
        let bytes = match self.slots.front().map(|slot| &slot.work) {
            Some(Work::Read { frame, .. }) => reads::reply_bytes(frame, machine),
            Some(Work::Answered(frame)) => frame.len(),
            _ => 0,
        };
        bytes > UNREAD_BYTES_FREE
    }

    /// Answers what has come to its turn, but not for so long that others wait. If more could be
    /// answered, there is output now, and the writing half goes on with it.
    fn go_on(&mut self, machine: &StateMachine) {
        let mut left = TURN_REQUESTS_MAX;
        self.is_held_back = false;
        while left > 0 && !self.is_closing && self.has_output_room() && self.is_next_ready() {
            if self.has_to_wait(machine) {
                self.is_held_back = true;
                return;
            }
            let Some(slot) = self.slots.pop_front() else { return };
            left = left.saturating_sub(match slot.op {
                OpCode::MULTI_READ | OpCode::SET_WATCHES | OpCode::SET_WATCHES2 => LONG_REQUEST,
                _ => 1,
            });
            self.first += 1;
            self.slot_bytes -= slot.bytes;
            let is_last = slot.op == OpCode::CLOSE_SESSION;
            self.run(slot, machine);
            self.is_closing |= is_last;
        }
    }

    /// Answers the request whose turn it is.
    fn run(&mut self, slot: Slot, machine: &StateMachine) {
        let Slot { xid, op, since, work, .. } = slot;
        let zxid = machine.revision().0.cast_signed();
        let before = self.output.len() + size_of::<i32>();
        match work {
            Work::Read { frame, ids } => self.execute(&frame, &ids, machine),
            Work::Sync { frame, .. } => self.execute(&frame, &[], machine),
            Work::Answered(mut frame) => {
                if let Some(place) = frame.get_mut(ZXID_AT..ZXID_AT + size_of::<i64>()) {
                    place.copy_from_slice(&zxid.to_be_bytes());
                }
                self.output.extend_from_slice(&frame);
            }
            Work::Unknown => {
                let header = ReplyHeader { xid, zxid: -1, err: ErrorCode::UNIMPLEMENTED };
                self.send(&header, &jute::Reply::Empty);
                self.is_closing = true;
            }
            Work::Fails(err) => self.send(&ReplyHeader { xid, zxid, err }, &jute::Reply::Empty),
            Work::Write(_) | Work::Held => {}
        }
        self.front.figures.replied(self.output.len().saturating_sub(before));
        self.replied(op, since, zxid);
    }

    fn execute(&mut self, frame: &[u8], ids: &[Id], machine: &StateMachine) {
        let reader = Reader {
            front: &self.front,
            watcher: self.watcher,
            session: self.session.map(|session| session.id),
            ids,
            machine,
        };
        if !reader.answer(frame, &mut self.output) {
            self.is_closing = true;
        }
        self.count();
    }

    /// A reply is among the output.
    fn replied(&mut self, op: OpCode, since: Monotonic, zxid: i64) {
        let took = self.front.clock.monotonic().since(since);
        self.traffic.sent += 1;
        self.front.figures.sent();
        self.front.figures.answered(op, took);
        self.traffic.last_reply = Some(Instant::now());
        self.traffic.last_zxid = zxid;
        self.traffic.latency.add(took);
        self.front.latency.lock().add(took);
        self.count();
    }

    /// Answers past the line, where no request has to wait for room.
    fn send_aside(&mut self, header: &ReplyHeader, reply: &jute::Reply<'_>) {
        let before = self.output.len();
        self.send(header, reply);
        self.aside_bytes += self.output.len() - before;
    }

    fn send(&mut self, header: &ReplyHeader, reply: &jute::Reply<'_>) {
        // Only what doesn't fit into 2 GiB can't be sent.
        let _ = encode_reply(header, reply, &mut self.output);
        self.count();
    }

    /// What nobody has asked for joins the output, as long as the client reads.
    fn notify(&mut self, frame: &[u8], zxid: i64) {
        self.output.extend_from_slice(frame);
        self.traffic.last_zxid = self.traffic.last_zxid.max(zxid);
        self.notified_bytes += frame.len();
        self.traffic.sent += 1;
        self.front.figures.sent();
        self.count();
        let share = self.unread.share().min(OUTPUT_BYTES_MAX);
        if self.notified_bytes > share {
            tracing::warn!(
                session = self.session.map(|session| session.id.to_string()),
                waiting_bytes = self.output.len(),
                share_bytes = share,
                "a client doesn't read its notifications: its connection is closed"
            );
            self.output.clear();
            self.is_closing = true;
        }
    }

    /// Counts what this connection holds for what all may hold together.
    fn count(&mut self) {
        let bytes = self.output.len() + self.sending_bytes;
        self.unread.change(self.counted_bytes, bytes);
        self.counted_bytes = bytes;
    }

    fn may_read(&self, acl: &NodeAcl) -> bool {
        self.front.settings.skip_acl || acl.is_open() || {
            let ids: Vec<IdRef<'_>> = self.ids.iter().map(Id::as_ref).collect();
            acl.allows(&ids, perms::READ)
        }
    }

    /// Tells the client its session: the first bytes that it hears.
    fn welcome(&mut self, offer: &Offer, zxid: i64) {
        let Offer { session, password, read_only } = offer;
        let response = ConnectResponse {
            protocol_version: 0,
            timeout_ms: i32::try_from(session.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id: session.id.0.cast_signed(),
            password: Hidden(Some(password)),
            read_only: read_only.map(|_| session.is_local),
        };
        // Its length is fixed.
        let _ = response.encode(&mut self.output);
        self.session = Some(*session);
        self.traffic.last_zxid = zxid;
        self.handshake = Handshake::Done;
        self.count();
    }

    /// The log has answered the proposal that a client's session hangs on.
    fn shake(&mut self, reply: &Reply, machine: &StateMachine) {
        match (std::mem::replace(&mut self.handshake, Handshake::None), reply) {
            (Handshake::Proposed(offer, asked_at), Reply::Done) => {
                let Session { timeout, connection, .. } = offer.session;
                let is_new = connection == OPENING;
                let lease =
                    if is_new { Lease::new(timeout, asked_at) } else { Lease::resumed(timeout) };
                self.lease = Some(lease);
                self.welcome(&offer, machine.revision().0.cast_signed());
            }
            (_, Reply::Refused(refusal)) => self.handshake = Handshake::Refused(refusal.clone()),
            _ => self.is_closing = true,
        }
    }

    /// The log has answered the write of the slot `id`.
    fn settle(&mut self, id: u64, reply: &Reply, machine: &StateMachine) {
        let Some(slot) = self.slot(id) else { return };
        let Work::Write(asked) = &slot.work else { return };
        let zxid = machine.revision().0.cast_signed();
        let mut frame = BytesMut::new();
        if writes::answer(asked, slot.xid, zxid, reply, &mut frame) {
            let before = std::mem::replace(&mut slot.bytes, frame.len());
            let after = slot.bytes;
            slot.work = Work::Answered(frame);
            self.slot_bytes = self.slot_bytes - before + after;
        } else {
            // The session is gone, or is another connection's by now: there is nobody to answer.
            self.is_closing = true;
        }
    }

    fn happened(&mut self, event: &Event) {
        let Some(own) = self.session else { return };
        match event {
            Event::SessionEnded { session, .. } if *session == own.id => {
                let is_close = |slot: &Slot| matches!(slot.work, Work::Write(Asked::Close));
                // Its own wish is answered before the connection ends.
                if !self.slots.iter().any(is_close) {
                    self.is_closing = true;
                }
            }
            Event::SessionMoved { session, connection }
                if *session == own.id && *connection != own.connection =>
            {
                self.is_closing = true;
            }
            _ => {}
        }
    }
}

impl Sink for Outbox {
    fn reply(&self, id: u64, reply: Result<&Reply, &Unavailable>, state: &StateMachine, _: Stamp) {
        let own = &mut *self.state.lock();
        if own.is_closing {
            return;
        }
        match reply {
            Ok(reply) if id == HANDSHAKE => own.shake(reply, state),
            Ok(reply) => own.settle(id, reply, state),
            Err(Unavailable::Overloaded { .. }) if own.proposing == Some((id, false)) => {
                own.proposing = Some((id, true));
            }
            // Nobody may guess what became of it. The client goes on elsewhere, and looks.
            Err(_) => own.is_closing = true,
        }
        own.go_on(state);
    }

    fn event(&self, _: Option<WatchId>, event: &Event, _: &StateMachine, _: Stamp) {
        self.state.lock().happened(event);
    }

    fn confirmed(&self, id: u64) {
        let own = &mut *self.state.lock();
        let zxid = own.traffic.last_zxid;
        if let Some(lease) = &mut own.lease {
            lease.confirm(id);
        }
        if id & SILENT != 0 {
            return;
        }
        // One confirmation is one for every ping before it.
        while own.pings_answered < id && !own.is_closing {
            own.pings_answered += 1;
            own.traffic.sent += 1;
            own.front.figures.sent();
            let header = ReplyHeader { xid: xids::PING, zxid, err: ErrorCode::OK };
            own.send_aside(&header, &jute::Reply::Empty);
        }
    }

    fn flush(&self) {
        self.after_turn();
    }

    fn close(&self, _: &'static str) {
        self.finish();
    }
}

/// Where the zxid is in the frame of a reply: behind its length and its xid.
const ZXID_AT: usize = 2 * size_of::<i32>();
