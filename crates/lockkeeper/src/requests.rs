//! The requests of one session: numbered, executed at most once, resent until they are answered.
//!
//! [`Requests`] is a value without a socket. It knows four kinds of thing:
//!
//! - the *window*: requests without an answer. Their numbers are consecutive, and the lowest is
//!   the floor that every request carries. After a reconnect the window is sent again from there;
//! - *waits*: acquires that were answered with a place in line. The servers keep them, so they
//!   don't hold back the floor;
//! - *holds*: what has been granted and not been given back;
//! - the *backlog*: releases and cancels for which the window had no room. They come from `drop`,
//!   which can't wait.
//!
//! # Guarantees
//!
//! - A number names one request for ever, and a request keeps its number however often it is sent.
//! - An acquire whose caller is gone leaves nothing behind: it is followed by a cancel of its
//!   number, which settles it whether it waits, holds, or hasn't arrived.

mod window;

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::native::{self, Request, refused, request, response};
use tokio::sync::{oneshot, watch};

use crate::clock::Boottime;
use crate::error::{Error, LossReason};
use crate::lease::State;
use crate::views::{self, QueueView};
use window::{NumberMap, Open, Window};

/// Numbers that callers may have open at once: half of what the servers allow above the floor.
const WINDOW_MAX: usize = 4_096;

/// What a request that wasn't refused came to.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted { token: u64, lock: String },
    Released { remaining: u32 },
    Done,
}

pub(crate) type ReplyTo = oneshot::Sender<Result<Answer, Error>>;

/// Where a caller that wants to know hears of its place in line.
pub(crate) type NewsTo = watch::Sender<Option<QueueView>>;

/// An answer for a caller, to be sent once the session's mutex has been let go.
pub(crate) struct Delivery {
    to: ReplyTo,
    answer: Result<Answer, Error>,
}

impl Delivery {
    pub(crate) fn deliver(self) {
        // A caller that has gone has seen to what it asked for.
        drop(self.to.send(self.answer));
    }
}

/// Everything that one session has asked for and not finished with.
#[derive(Default)]
pub(crate) struct Requests {
    window: Window,
    /// The first number that hasn't been written to the present connection.
    unsent: u64,
    /// The first number that hasn't been written to any connection.
    never_sent: u64,
    waits: NumberMap<Wait>,
    holds: NumberMap<Hold>,
    /// The tokens of holds with several handles, by the handles' numbers; a number stays until the
    /// last handle is given back, since the servers may name the hold by it meanwhile.
    reentered: NumberMap<u64>,
    backlog: VecDeque<Backlogged>,
    /// Holds that an operator has asked for.
    revoked_count: usize,
    /// An operator has asked the whole session to end.
    is_session_revoked: bool,
    /// Numbers that a server couldn't serve, to be sent again after a pause.
    postponed: Vec<u64>,
}

/// A request without a number yet.
struct Backlogged {
    request: Box<Request>,
    reply: Option<ReplyTo>,
    since: Boottime,
}

/// An acquire with a place in line.
struct Wait {
    reply: Option<ReplyTo>,
    news: Option<NewsTo>,
    view: QueueView,
}

/// A handle on a hold: what one guard has.
struct Hold {
    token: u64,
    /// An operator has asked for it back.
    is_revoked: bool,
    /// It was taken away although the session lives.
    lost: Option<LossReason>,
    /// Made when somebody first watches.
    watch: Option<watch::Sender<State>>,
}

/// A request that gets its number from [`Requests::submit`].
pub(crate) fn unsent(body: request::Body) -> Box<Request> {
    Box::new(Request { id: 0, floor: 0, body: Some(body) })
}

// ------------------------------------------------------------------ what callers ask for

impl Requests {
    /// Whether callers have to wait before they may [`Requests::submit`].
    pub(crate) fn is_full(&self) -> bool {
        self.window.len() >= WINDOW_MAX || !self.backlog.is_empty()
    }

    /// Gives a request its number.
    pub(crate) fn submit(
        &mut self,
        request: Box<Request>,
        reply: Option<ReplyTo>,
        news: Option<NewsTo>,
        since: Boottime,
    ) -> u64 {
        self.window.push(request, reply, news, since)
    }

    /// Settles an acquire whose caller is gone: it leaves its place, or gives back what it got.
    /// `reply` hears of the outcome, and is dropped if there is nothing to settle.
    pub(crate) fn abandon(&mut self, acquire: u64, reply: Option<ReplyTo>, now: Boottime) {
        if acquire >= self.never_sent {
            // No server has heard of it, and none will.
            self.window.take(acquire);
            return;
        }
        let was_item = self.waits.remove(&acquire).is_some() | self.forget(acquire);
        let was_open = self.window.get_mut(acquire).is_some_and(|open| {
            open.reply = None;
            !mem::replace(&mut open.is_abandoned, true)
        });
        if was_item || was_open {
            self.post(request::Body::Cancel(native::Cancel { acquire }), reply, now);
        }
    }

    /// Gives a hold back; `reply` hears of the outcome.
    pub(crate) fn release(&mut self, acquire: u64, reply: Option<ReplyTo>, now: Boottime) {
        self.forget(acquire);
        self.post(request::Body::Release(native::Release { acquire }), reply, now);
    }

    /// A hold is its guard's no more. Whether it was there.
    pub(crate) fn forget(&mut self, acquire: u64) -> bool {
        let Some(hold) = self.holds.remove(&acquire) else { return false };
        self.revoked_count -= usize::from(hold.is_revoked);
        hold.publish(State::Lost(LossReason::Released));
        if let Some(&token) = self.reentered.get(&acquire)
            && !self.handles(token).any(|handle| self.holds.contains_key(&handle))
        {
            self.reentered.retain(|_, other| *other != token);
        }
        true
    }

    /// The numbers of the handles on a hold that has, or had, several.
    fn handles(&self, token: u64) -> impl Iterator<Item = u64> {
        let is_same = move |(&number, &other): (&u64, &u64)| (other == token).then_some(number);
        self.reentered.iter().filter_map(is_same)
    }

    /// The numbers of all handles on the hold that a server names by one of them.
    fn all_handles(&self, acquire: u64) -> Vec<u64> {
        match self.reentered.get(&acquire) {
            Some(&token) => self.handles(token).collect(),
            None => vec![acquire],
        }
    }

    /// The place and the holder that a waiting acquire was last told.
    pub(crate) fn queue_view(&self, acquire: u64) -> Option<&QueueView> {
        self.waits.get(&acquire).map(|wait| &wait.view)
    }

    /// Numbers a request now or as soon as there is room.
    fn post(&mut self, body: request::Body, reply: Option<ReplyTo>, since: Boottime) {
        let request = unsent(body);
        if self.is_full() {
            self.backlog.push_back(Backlogged { request, reply, since });
        } else {
            self.submit(request, reply, None, since);
        }
    }
}

// ------------------------------------------------------------------ holds

impl Requests {
    /// What there is to say of one hold, given the state of the session's lease.
    pub(crate) fn state_of(&self, acquire: u64, lease: State) -> State {
        match self.holds.get(&acquire) {
            None => match lease {
                State::Lost(_) => lease,
                State::Held | State::Suspended { .. } => State::Lost(LossReason::Released),
            },
            Some(hold) => hold.state(self.why(lease)),
        }
    }

    /// A lease that wasn't renewed because of an operator was revoked.
    const fn why(&self, lease: State) -> State {
        match lease {
            State::Lost(LossReason::Expired { .. }) if self.any_revoked() => {
                State::Lost(LossReason::Revoked)
            }
            lease => lease,
        }
    }

    pub(crate) fn is_revoked(&self, acquire: u64) -> bool {
        self.is_session_revoked || self.holds.get(&acquire).is_some_and(|hold| hold.is_revoked)
    }

    /// Whether an operator waits for this session: its lease is then confirmed no more.
    pub(crate) const fn any_revoked(&self) -> bool {
        self.is_session_revoked || self.revoked_count > 0
    }

    /// The changes of one hold's state, from now on.
    pub(crate) fn watch(&mut self, acquire: u64, lease: State) -> watch::Receiver<State> {
        let state = self.state_of(acquire, lease);
        match self.holds.get_mut(&acquire) {
            Some(hold) => hold.watch.get_or_insert_with(|| watch::Sender::new(state)).subscribe(),
            // It is over: nothing will change any more.
            None => watch::Sender::new(state).subscribe(),
        }
    }

    /// Tells those who watch a hold what has become of the lease. Linear in the holds.
    pub(crate) fn publish(&self, lease: State) {
        let lease = self.why(lease);
        for hold in self.holds.values() {
            hold.publish(lease);
        }
    }
}

impl Hold {
    const fn new(token: u64) -> Self {
        Self { token, is_revoked: false, lost: None, watch: None }
    }

    fn state(&self, lease: State) -> State {
        self.lost.map_or(lease, State::Lost)
    }

    fn publish(&self, lease: State) {
        if let Some(watch) = &self.watch {
            let state = self.state(lease);
            watch.send_if_modified(|last| mem::replace(last, state) != state);
        }
    }
}

// ------------------------------------------------------------------ to the server

impl Requests {
    /// A new connection knows of nothing: all that is open goes out again, in order.
    pub(crate) fn restart(&mut self) {
        self.unsent = self.window.floor();
        self.postponed.clear();
    }

    /// Appends every request that this connection hasn't seen.
    pub(crate) fn write_unsent(&mut self, out: &mut BytesMut) {
        while self.window.len() < WINDOW_MAX
            && let Some(next) = self.backlog.pop_front()
        {
            self.submit(next.request, next.reply, None, next.since);
        }
        let end = self.window.end();
        for number in self.unsent.max(self.window.floor())..end {
            self.window.write(number, out);
        }
        self.unsent = end;
        self.never_sent = self.never_sent.max(end);
    }

    /// Appends again what a server couldn't serve.
    pub(crate) fn write_postponed(&mut self, out: &mut BytesMut) {
        for number in mem::take(&mut self.postponed) {
            self.window.write(number, out);
        }
    }

    /// Whether something waits to be sent again after a pause.
    pub(crate) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }
}

// ------------------------------------------------------------------ from the server

/// What an answer means for the session.
pub(crate) enum Verdict {
    /// The request is answered.
    Settled,
    /// The server can't serve it now: it goes out again with [`Requests::write_postponed`].
    Postponed(Error),
    /// The session is gone.
    SessionGone,
}

impl Requests {
    /// Takes the answer to a numbered request. By reference, because the largest answer is thirty
    /// times as large as the usual ones.
    pub(crate) fn answer(
        &mut self,
        number: u64,
        body: &mut response::Body,
        out: &mut Vec<Delivery>,
    ) -> Verdict {
        // A number that isn't open was sent twice, and this is its second answer.
        let Some(open) = self.window.get_mut(number) else { return Verdict::Settled };
        let not_now = match body {
            response::Body::Unavailable(why) => Some(views::unavailable(why)),
            response::Body::Refused(no) => match no.code() {
                refused::Code::UnknownSession => return Verdict::SessionGone,
                refused::Code::Overloaded => {
                    Some(Error::Unavailable { message: mem::take(&mut no.message) })
                }
                _ => None,
            },
            _ => None,
        };
        if let Some(why) = not_now {
            open.unavailable = Some(why.clone());
            self.postponed.push(number);
            return Verdict::Postponed(why);
        }
        if let Some(open) = self.window.take(number) {
            self.settle(number, open, body, out);
        }
        Verdict::Settled
    }

    fn settle(
        &mut self,
        number: u64,
        mut open: Open,
        body: &mut response::Body,
        out: &mut Vec<Delivery>,
    ) {
        let answer = match body {
            response::Body::Granted(granted) => {
                return self.granted(number, granted.token, open, out);
            }
            response::Body::Queued(queued) => return self.queued(number, mem::take(queued), open),
            response::Body::Released(released) => {
                Ok(Answer::Released { remaining: released.remaining })
            }
            response::Body::Done(_) => Ok(Answer::Done),
            response::Body::Refused(no) => Err(views::refused(mem::take(no), open.take_lock())),
            other => Err(Error::Unknown { message: format!("unexpected answer: {other:?}") }),
        };
        out.extend(open.reply.map(|to| Delivery { to, answer }));
    }

    /// A waiting acquire has been granted.
    pub(crate) fn granted_event(&mut self, acquire: u64, token: u64, out: &mut Vec<Delivery>) {
        if let Some(wait) = self.waits.remove(&acquire) {
            self.hold(acquire, token, wait.view.lock, wait.reply, out);
        } else if let Some(open) = self.window.take(acquire) {
            // Its place in line was answered on a connection that broke.
            self.granted(acquire, token, open, out);
        }
    }

    /// An operator asks for a hold back, or (0) for the whole session.
    pub(crate) fn revoked_event(&mut self, acquire: u64) {
        self.is_session_revoked |= acquire == 0;
        for handle in self.all_handles(acquire) {
            if let Some(hold) = self.holds.get_mut(&handle)
                && !mem::replace(&mut hold.is_revoked, true)
            {
                self.revoked_count += 1;
            }
        }
    }

    /// A hold or a place was taken away, while the session lives.
    pub(crate) fn lost_event(&mut self, acquire: u64, reason: LossReason, out: &mut Vec<Delivery>) {
        for handle in self.all_handles(acquire) {
            self.lose_hold(handle, reason);
        }
        if let Some(wait) = self.waits.remove(&acquire) {
            out.extend(wait.reply.map(|to| Delivery { to, answer: Err(Error::Lost(reason)) }));
        }
    }

    /// A hold is lost, though its guard is still there.
    pub(crate) fn lose_hold(&mut self, acquire: u64, reason: LossReason) {
        if let Some(hold) = self.holds.get_mut(&acquire) {
            hold.lost = Some(reason);
            hold.publish(State::Lost(reason));
        }
    }

    /// Compares what the client believes with what the servers say after a reconnect. Events that
    /// were lost with the old connection show as differences.
    pub(crate) fn reconcile(&mut self, session: &native::SessionState, out: &mut Vec<Delivery>) {
        let held: NumberMap<_> = session.holds.iter().map(|item| (item.acquire, item)).collect();
        let waiting: NumberMap<_> = session.waits.iter().map(|item| (item.acquire, item)).collect();

        let is_gone = |number: &u64| !held.contains_key(number);
        let lost: Vec<_> = self.holds.keys().copied().filter(is_gone).collect();
        for acquire in lost {
            self.lost_event(acquire, LossReason::Forced, out);
        }
        let waited: Vec<_> = self.waits.keys().copied().collect();
        for acquire in waited {
            match (held.get(&acquire), waiting.get(&acquire)) {
                (Some(item), _) => self.granted_event(acquire, item.token, out),
                (None, Some(item)) => self.placed(acquire, item.place),
                (None, None) => self.lost_event(acquire, LossReason::Forced, out),
            }
        }
        for item in held.values().filter(|item| item.is_revoked) {
            self.revoked_event(item.acquire);
        }
        self.is_session_revoked |= session.is_revoked;
    }

    /// The session is over: every caller is told, and nothing is left.
    pub(crate) fn end(&mut self, error: &Error, out: &mut Vec<Delivery>) {
        let open = self.window.drain().filter_map(|open| open.reply);
        let waiting = self.waits.drain().filter_map(|(_, wait)| wait.reply);
        out.extend(open.chain(waiting).map(|to| Delivery { to, answer: Err(error.clone()) }));
        let unnumbered = self.backlog.drain(..).filter_map(|next| next.reply);
        out.extend(unnumbered.map(|to| Delivery { to, answer: Err(error.clone()) }));
        self.postponed.clear();
    }

    /// Whether anybody waits for an answer. Linear in the window.
    pub(crate) fn has_callers(&self) -> bool {
        self.window.iter().any(|open| open.reply.is_some())
    }

    /// Tells callers whose patience is over why they weren't served. Their requests stay open, and
    /// are settled in the background. `trouble` is what keeps the connection down; while it is up,
    /// only those wait in vain that a server couldn't serve.
    ///
    /// Returns when the next caller's patience will be over.
    pub(crate) fn expire(
        &mut self,
        now: Boottime,
        patience: Duration,
        trouble: Option<&Error>,
        out: &mut Vec<Delivery>,
    ) -> Option<Boottime> {
        let mut next: Option<Boottime> = None;
        for open in self.window.iter_mut().filter(|open| open.reply.is_some()) {
            let Some(why) = open.unavailable.as_ref().or(trouble).cloned() else { continue };
            let until = open.since + patience;
            if now < until {
                next = Some(next.map_or(until, |next| next.min(until)));
                continue;
            }
            let is_release = matches!(open.request.body, Some(request::Body::Release(_)));
            let why = if is_release { Error::Unknown { message: why.to_string() } } else { why };
            out.extend(open.reply.take().map(|to| Delivery { to, answer: Err(why) }));
        }
        next
    }

    fn granted(&mut self, number: u64, token: u64, mut open: Open, out: &mut Vec<Delivery>) {
        // The cancel of an abandoned acquire gives it back.
        if open.is_abandoned {
            return;
        }
        if let Some(request::Body::Reenter(_)) = open.request.body {
            let is_same = |(&handle, hold): (_, &Hold)| (hold.token == token).then_some(handle);
            let others: Vec<u64> = self.holds.iter().filter_map(is_same).collect();
            self.reentered.extend(others.into_iter().chain([number]).map(|handle| (handle, token)));
        }
        let lock = open.take_lock();
        self.hold(number, token, lock, open.reply, out);
    }

    fn hold(
        &mut self,
        number: u64,
        token: u64,
        lock: String,
        reply: Option<ReplyTo>,
        out: &mut Vec<Delivery>,
    ) {
        self.holds.insert(number, Hold::new(token));
        out.extend(reply.map(|to| Delivery { to, answer: Ok(Answer::Granted { token, lock }) }));
    }

    fn queued(&mut self, number: u64, queued: native::Queued, mut open: Open) {
        if open.is_abandoned {
            return;
        }
        let view = QueueView {
            lock: open.take_lock(),
            place: queued.place,
            holder: queued.holder.map(Into::into),
            hold_count: queued.hold_count,
        };
        let wait = Wait { reply: open.reply, news: open.news, view };
        wait.tell();
        self.waits.insert(number, wait);
    }

    fn placed(&mut self, acquire: u64, place: u32) {
        if let Some(wait) = self.waits.get_mut(&acquire)
            && mem::replace(&mut wait.view.place, place) != place
        {
            wait.tell();
        }
    }
}

impl Wait {
    fn tell(&self) {
        if let Some(news) = &self.news {
            news.send_replace(Some(self.view.clone()));
        }
    }
}
