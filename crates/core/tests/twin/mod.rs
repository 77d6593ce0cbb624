//! The naive twin: two lists and linear scans.

mod tree;

use lockkeeper_core::{
    Command, Counts, EndReason, Event, HoldView, Lease, LockView, LossReason, Mode, NodeKind,
    Number, Owner, Refusal, Reply, Request, Secret, SessionId, SessionView, Stamp, Token,
    TreeError, TreeOp, WaiterView,
};

use self::tree::{Asked as TreeAsked, TreeTwin};

pub(crate) struct Twin {
    pub(crate) revision: u64,
    is_silent: bool,
    has_granted: bool,
    now: Stamp,
    sessions: Vec<Session>,
    /// Of all locks, oldest first.
    holds: Vec<Hold>,
    /// Of all locks, oldest first.
    waiters: Vec<Waiter>,
    pub(crate) tree: TreeTwin,
    events: Vec<Event>,
}

struct Session {
    id: SessionId,
    secret: Secret,
    opened: Stamp,
    is_revoked: bool,
    ttl_ms: u32,
    connection: u64,
    floor: u64,
    /// Number, the target for a release or cancel and which of the two, answer.
    answers: Vec<(u64, Asked, Reply)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Entry,
    Release(u64),
    Cancel(u64),
}

#[derive(Clone)]
struct Hold {
    lock: String,
    session: SessionId,
    /// Ascending.
    handles: Vec<u64>,
    token: u64,
    mode: Mode,
    since: Stamp,
    purpose: String,
    is_revoked: bool,
}

#[derive(Clone)]
struct Waiter {
    lock: String,
    session: SessionId,
    number: u64,
    mode: Mode,
    since: Stamp,
    purpose: String,
}

impl Twin {
    pub(crate) fn new(revision: u64, is_silent: bool) -> Self {
        Self {
            revision,
            is_silent,
            has_granted: false,
            now: Stamp(0),
            sessions: Vec::new(),
            holds: Vec::new(),
            waiters: Vec::new(),
            tree: TreeTwin::new(),
            events: Vec::new(),
        }
    }

    pub(crate) fn apply(&mut self, at: Stamp, command: &Command<'_>) -> (Reply, Vec<Event>) {
        self.revision += 1;
        self.has_granted = false;
        self.now = at;
        let reply = match command {
            Command::Request { session, number, floor, request } => {
                self.request(*session, number.0, floor.0, request)
            }
            Command::OpenSession { session, secret, .. } => self.open(*session, *secret),
            Command::EndSession { session, reason } => self.end(*session, *reason),
            Command::RevokeSession { session } => match self.find(*session) {
                None => Reply::Refused(Refusal::UnknownSession),
                Some(at) => {
                    if !self.sessions[at].is_revoked {
                        self.sessions[at].is_revoked = true;
                        self.events.push(Event::SessionRevoked { session: *session });
                    }
                    Reply::Done
                }
            },
            Command::RevokeHold { lock, if_token, now } => self.revoke(lock, if_token.0, *now),
            Command::FoundCluster { .. } => Reply::Done,
            Command::EndSilence => {
                self.is_silent = false;
                let mut locks: Vec<_> = self.waiters.iter().map(|w| w.lock.clone()).collect();
                locks.sort_unstable();
                for lock in locks {
                    self.serve(&lock);
                }
                Reply::Done
            }
            Command::Tree { session, connection, ids, enforce_quota, ops } => {
                let asked = TreeAsked {
                    session: *session,
                    ids,
                    enforce_quota: *enforce_quota,
                    zxid: self.revision,
                    at,
                };
                self.change_tree(&asked, *connection, ops)
            }
            Command::ResumeSession { session, secret, ttl_ms, connection } => {
                self.resume(*session, *secret, *ttl_ms, *connection)
            }
            Command::CollectNode { path } => {
                let nobody = self.asked(SessionId(0));
                self.tree.collect(path, &nobody, &mut self.events)
            }
        };
        (reply, std::mem::take(&mut self.events))
    }

    fn asked(&self, session: SessionId) -> TreeAsked<'static> {
        let (zxid, at) = (self.revision, self.now);
        TreeAsked { session, ids: &[], enforce_quota: false, zxid, at }
    }

    fn change_tree(&mut self, asked: &TreeAsked<'_>, connection: u64, ops: &[TreeOp<'_>]) -> Reply {
        let Some(at) = self.find(asked.session) else {
            return Reply::Refused(Refusal::UnknownSession);
        };
        let session = &self.sessions[at];
        if session.connection != connection {
            let error = TreeError::SessionMoved;
            return Reply::Refused(Refusal::Tree { index: 0, error });
        }
        let kinds = ops.iter().filter_map(|op| match op {
            TreeOp::Create { kind, .. } => Some(*kind),
            _ => None,
        });
        if session.is_revoked && kinds.into_iter().any(|kind| kind == NodeKind::Ephemeral) {
            return Reply::Refused(Refusal::Revoked);
        }
        self.tree.run(asked, ops, &mut self.events)
    }

    fn resume(&mut self, id: SessionId, secret: Secret, ttl_ms: u32, connection: u64) -> Reply {
        let Some(at) = self.find(id) else { return Reply::Refused(Refusal::UnknownSession) };
        let session = &mut self.sessions[at];
        if session.secret != secret {
            return Reply::Refused(Refusal::WrongSecret);
        }
        (session.ttl_ms, session.connection) = (ttl_ms, connection);
        self.events.push(Event::SessionMoved { session: id, connection });
        Reply::Done
    }

    fn find(&self, id: SessionId) -> Option<usize> {
        self.sessions.iter().position(|session| session.id == id)
    }

    fn request(&mut self, id: SessionId, number: u64, floor: u64, request: &Request<'_>) -> Reply {
        let Some(at) = self.find(id) else { return Reply::Refused(Refusal::UnknownSession) };
        if number == 0 || floor > number {
            return Reply::Refused(Refusal::NumberReused);
        }
        let session = &mut self.sessions[at];
        session.floor = session.floor.max(floor);
        let floor = session.floor;
        session.answers.retain(|(answered, ..)| *answered >= floor);
        if number < floor {
            return Reply::Refused(Refusal::TooOld);
        }
        let (asked, named) = match request {
            Request::Acquire { lock, .. } | Request::Reenter { lock, .. } => (Asked::Entry, *lock),
            Request::Release { acquire } => (Asked::Release(acquire.0), ""),
            Request::Cancel { acquire } => (Asked::Cancel(acquire.0), ""),
        };
        if let Some((_, was, reply)) = session.answers.iter().find(|(n, ..)| *n == number) {
            let is_same = *was == asked;
            return if is_same { reply.clone() } else { Reply::Refused(Refusal::NumberReused) };
        }
        let hold = self.holds.iter().find(|h| h.session == id && h.handles.contains(&number));
        let waiter = self.waiters.iter().find(|w| w.session == id && w.number == number);
        let live = hold.map(|hold| (&hold.lock, Reply::Granted { token: Token(hold.token) }));
        let live = live.or_else(|| {
            waiter.map(|w| (&w.lock, Reply::Queued { place: self.place(&w.lock, id, number) }))
        });
        if let Some((lock, reply)) = live {
            return if lock == named { reply } else { Reply::Refused(Refusal::NumberReused) };
        }
        let reply = match *request {
            Request::Acquire { lock, mode, wait, purpose } => {
                self.acquire(id, number, lock, mode, wait, purpose)
            }
            Request::Reenter { lock, token } => self.reenter(id, number, lock, token.0),
            Request::Release { acquire } | Request::Cancel { acquire } if acquire.0 == number => {
                Reply::Refused(Refusal::NumberReused)
            }
            Request::Release { acquire } => self.release(id, acquire.0, Refusal::NotHeld),
            Request::Cancel { acquire } => self.cancel(id, acquire.0),
        };
        if asked != Asked::Entry || matches!(reply, Reply::Refused(_)) {
            self.keep(id, number, asked, reply.clone());
        }
        reply
    }

    fn keep(&mut self, id: SessionId, number: u64, asked: Asked, reply: Reply) {
        let at = self.find(id).unwrap();
        let session = &mut self.sessions[at];
        if number >= session.floor {
            session.answers.retain(|(answered, ..)| *answered != number);
            session.answers.push((number, asked, reply));
        }
    }

    fn acquire(
        &mut self,
        session: SessionId,
        number: u64,
        lock: &str,
        mode: Mode,
        wait: bool,
        purpose: &str,
    ) -> Reply {
        if let Mode::Permits { take, of } = mode
            && (take == 0 || take > of)
        {
            return Reply::Refused(Refusal::BadPermits);
        }
        if self.sessions[self.find(session).unwrap()].is_revoked {
            return Reply::Refused(Refusal::Revoked);
        }
        let held = self.holds.iter().find(|hold| hold.lock == lock).map(|hold| hold.mode);
        let waited = self.waiters.iter().find(|waiter| waiter.lock == lock).map(|w| w.mode);
        if let Some(current) = held.or(waited)
            && total(current) != total(mode)
        {
            return Reply::Refused(Refusal::ModeConflict { current });
        }
        if !self.is_silent && waited.is_none() && self.fits(lock, mode) {
            let token = self.grant(lock, session, number, mode, purpose, None);
            return Reply::Granted { token: Token(token) };
        }
        if !wait {
            return Reply::Refused(Refusal::Busy);
        }
        let (lock, purpose) = (lock.to_owned(), purpose.to_owned());
        self.waiters.push(Waiter {
            lock: lock.clone(),
            session,
            number,
            mode,
            since: self.now,
            purpose,
        });
        let place = self.place(&lock, session, number);
        let (lock, number) = (lock.as_str().into(), Number(number));
        self.events.push(Event::Queued { lock, session, number, place });
        Reply::Queued { place }
    }

    fn fits(&self, lock: &str, mode: Mode) -> bool {
        let holds: Vec<&Hold> = self.holds.iter().filter(|hold| hold.lock == lock).collect();
        match mode {
            Mode::Exclusive => holds.is_empty(),
            Mode::Shared => holds.iter().all(|hold| hold.mode == Mode::Shared),
            Mode::Permits { take, of } => {
                let taken = |hold: &&Hold| match hold.mode {
                    Mode::Permits { take, .. } => take,
                    Mode::Exclusive | Mode::Shared => of,
                };
                holds.iter().map(taken).sum::<u32>() + take <= of
            }
        }
    }

    fn grant(
        &mut self,
        lock: &str,
        session: SessionId,
        number: u64,
        mode: Mode,
        purpose: &str,
        waited_since: Option<Stamp>,
    ) -> u64 {
        if self.has_granted {
            self.revision += 1;
        }
        self.has_granted = true;
        let token = self.revision;
        self.holds.push(Hold {
            lock: lock.to_owned(),
            session,
            handles: vec![number],
            token,
            mode,
            since: self.now,
            purpose: purpose.to_owned(),
            is_revoked: false,
        });
        self.events.push(Event::Granted {
            lock: lock.into(),
            session,
            number: Number(number),
            token: Token(token),
            mode,
            waited_ms: waited_since.map(|since| self.now.0 - since.0),
        });
        token
    }

    fn serve(&mut self, lock: &str) {
        while !self.is_silent {
            let Some(at) = self.waiters.iter().position(|waiter| waiter.lock == lock) else {
                return;
            };
            if !self.fits(lock, self.waiters[at].mode) {
                return;
            }
            let Waiter { session, number, mode, since, purpose, .. } = self.waiters.remove(at);
            self.grant(lock, session, number, mode, &purpose, Some(since));
        }
    }

    fn reenter(&mut self, session: SessionId, number: u64, lock: &str, token: u64) -> Reply {
        if self.sessions[self.find(session).unwrap()].is_revoked {
            return Reply::Refused(Refusal::Revoked);
        }
        let current = self.current(lock);
        let hold = self.holds.iter_mut().find(|hold| hold.lock == lock && hold.token == token);
        match hold {
            None => Reply::Refused(Refusal::StaleToken { current }),
            Some(hold) if hold.session != session => Reply::Refused(Refusal::NotHeld),
            Some(hold) => {
                hold.handles.push(number);
                hold.handles.sort_unstable();
                Reply::Granted { token: Token(token) }
            }
        }
    }

    fn current(&self, lock: &str) -> Option<Token> {
        self.holds.iter().rfind(|hold| hold.lock == lock).map(|hold| Token(hold.token))
    }

    fn release(&mut self, session: SessionId, acquire: u64, afterwards: Refusal) -> Reply {
        let held = |hold: &Hold| hold.session == session && hold.handles.contains(&acquire);
        let Some(at) = self.holds.iter().position(held) else {
            return Reply::Refused(Refusal::NotHeld);
        };
        self.keep(session, acquire, Asked::Entry, Reply::Refused(afterwards));
        let hold = &mut self.holds[at];
        hold.handles.retain(|handle| *handle != acquire);
        let (token, remaining) = (Token(hold.token), hold.handles.len() as u32);
        if remaining == 0 {
            let hold = self.holds.remove(at);
            self.events.push(Event::Released {
                lock: hold.lock.as_str().into(),
                session,
                number: Number(acquire),
                token,
                held_ms: self.now.0 - hold.since.0,
            });
            self.serve(&hold.lock);
        }
        Reply::Released { token, remaining }
    }

    fn cancel(&mut self, session: SessionId, acquire: u64) -> Reply {
        let held = |hold: &Hold| hold.session == session && hold.handles.contains(&acquire);
        if self.holds.iter().any(held) {
            return self.release(session, acquire, Refusal::AlreadyCancelled);
        }
        let waits = |waiter: &Waiter| waiter.session == session && waiter.number == acquire;
        if let Some(at) = self.waiters.iter().position(waits) {
            let waiter = self.waiters.remove(at);
            let lock = waiter.lock.as_str().into();
            let number = Number(acquire);
            let waited_ms = self.now.0 - waiter.since.0;
            self.events.push(Event::Cancelled { lock, session, number, waited_ms, ended: None });
            self.keep(session, acquire, Asked::Entry, Reply::Refused(Refusal::AlreadyCancelled));
            self.serve(&waiter.lock);
            return Reply::Done;
        }
        let known = &self.sessions[self.find(session).unwrap()].answers;
        if !known.iter().any(|(number, ..)| *number == acquire) {
            self.keep(session, acquire, Asked::Entry, Reply::Refused(Refusal::AlreadyCancelled));
        }
        Reply::Done
    }

    fn open(&mut self, id: SessionId, secret: Secret) -> Reply {
        if let Some(at) = self.find(id) {
            let is_same = self.sessions[at].secret == secret;
            return if is_same { Reply::Done } else { Reply::Refused(Refusal::WrongSecret) };
        }
        let opened = self.now;
        let answers = Vec::new();
        self.sessions.push(Session {
            id,
            secret,
            opened,
            is_revoked: false,
            ttl_ms: 1_000,
            connection: 0,
            floor: 1,
            answers,
        });
        self.events.push(Event::SessionOpened { session: id });
        Reply::Done
    }

    fn end(&mut self, id: SessionId, reason: EndReason) -> Reply {
        let Some(at) = self.find(id) else { return Reply::Refused(Refusal::UnknownSession) };
        self.sessions.remove(at);
        let mut waits: Vec<Waiter> = take_all(&mut self.waiters, |waiter| waiter.session == id);
        let mut holds: Vec<Hold> = take_all(&mut self.holds, |hold| hold.session == id);
        waits.sort_by_key(|waiter| waiter.number);
        holds.sort_by_key(|hold| hold.handles[0]);
        for waiter in &waits {
            let (lock, number) = (waiter.lock.as_str().into(), Number(waiter.number));
            let (session, ended) = (id, Some(reason));
            let waited_ms = self.now.0 - waiter.since.0;
            self.events.push(Event::Cancelled { lock, session, number, waited_ms, ended });
        }
        for hold in &holds {
            self.lose(hold, LossReason::SessionEnded(reason));
        }
        let asked = self.asked(id);
        self.tree.end_session(id, &asked, &mut self.events);
        self.events.push(Event::SessionEnded { session: id, reason });
        for lock in waits.iter().map(|w| &w.lock).chain(holds.iter().map(|hold| &hold.lock)) {
            self.serve(lock);
        }
        Reply::Done
    }

    fn lose(&mut self, hold: &Hold, reason: LossReason) {
        self.events.push(Event::Lost {
            lock: hold.lock.as_str().into(),
            session: hold.session,
            number: Number(hold.handles[0]),
            token: Token(hold.token),
            held_ms: self.now.0 - hold.since.0,
            reason,
        });
    }

    fn revoke(&mut self, lock: &str, token: u64, now: bool) -> Reply {
        let current = self.current(lock);
        let named = |hold: &Hold| hold.lock == lock && hold.token == token;
        let Some(at) = self.holds.iter().position(named) else {
            return Reply::Refused(Refusal::StaleToken { current });
        };
        if now {
            let hold = self.holds.remove(at);
            for handle in &hold.handles {
                let gone = Reply::Refused(Refusal::NotHeld);
                self.keep(hold.session, *handle, Asked::Entry, gone);
            }
            self.lose(&hold, LossReason::Forced);
            self.serve(lock);
        } else if !self.holds[at].is_revoked {
            self.holds[at].is_revoked = true;
            let hold = &self.holds[at];
            let (session, number) = (hold.session, Number(hold.handles[0]));
            let (lock, token) = (lock.into(), Token(token));
            self.events.push(Event::Revoked { lock, session, number, token });
        }
        Reply::Done
    }

    // ------------------------------------------------------------------------------------ views

    fn place(&self, lock: &str, session: SessionId, number: u64) -> u32 {
        let mut queue = self.waiters.iter().filter(|waiter| waiter.lock == lock);
        let at = queue.position(|waiter| waiter.session == session && waiter.number == number);
        at.unwrap() as u32 + 1
    }

    pub(crate) fn lock(&self, name: &str) -> Option<LockView> {
        let holds = self.holds.iter().filter(|hold| hold.lock == name);
        let holds: Vec<_> = holds.map(Hold::view).collect();
        let waiters = self.waiters.iter().filter(|waiter| waiter.lock == name);
        let waiters: Vec<_> = waiters.map(|waiter| self.waiter_view(waiter)).collect();
        let (hold_count, waiter_count) = (holds.len(), waiters.len());
        let view = LockView { name: name.into(), holds, hold_count, waiters, waiter_count };
        (hold_count + waiter_count > 0).then_some(view)
    }

    fn waiter_view(&self, waiter: &Waiter) -> WaiterView {
        WaiterView {
            lock: waiter.lock.as_str().into(),
            session: waiter.session,
            number: Number(waiter.number),
            mode: waiter.mode,
            since: waiter.since,
            purpose: waiter.purpose.clone(),
            place: self.place(&waiter.lock, waiter.session, waiter.number),
        }
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<SessionView> {
        let session = &self.sessions[self.find(id)?];
        let own = self.holds.iter().filter(|hold| hold.session == id);
        let mut holds: Vec<_> = own
            .flat_map(|hold| hold.handles.iter().map(|number| (Number(*number), hold.view())))
            .collect();
        holds.sort_by_key(|(number, _)| *number);
        let own = self.waiters.iter().filter(|waiter| waiter.session == id);
        let mut waits: Vec<_> = own.map(|waiter| self.waiter_view(waiter)).collect();
        waits.sort_by_key(|waiter| waiter.number);
        Some(SessionView {
            id,
            ttl_ms: session.ttl_ms,
            owner: Owner { host: "here".to_owned(), pid: 1, ..Owner::default() },
            opened: session.opened,
            is_revoked: session.is_revoked,
            item_count: holds.len() + waits.len(),
            ephemeral_count: self.tree.ephemerals(id).len(),
            holds,
            waits,
        })
    }

    pub(crate) fn lease(&self, id: SessionId) -> Option<Lease> {
        let view = self.session(id)?;
        let is_revoked = view.is_revoked || view.holds.iter().any(|(_, hold)| hold.is_revoked);
        let item_count = view.item_count + view.ephemeral_count;
        Some(Lease { session: id, ttl_ms: view.ttl_ms, item_count, is_revoked })
    }

    pub(crate) fn counts(&self) -> Counts {
        let held = self.holds.iter().map(|hold| hold.lock.as_str());
        let waited = self.waiters.iter().map(|waiter| waiter.lock.as_str());
        let mut locks: Vec<&str> = held.chain(waited).collect();
        locks.sort_unstable();
        locks.dedup();
        Counts {
            sessions: self.sessions.len(),
            locks: locks.len(),
            holds: self.holds.len(),
            waiters: self.waiters.len(),
        }
    }
}

impl Hold {
    fn view(&self) -> HoldView {
        HoldView {
            lock: self.lock.as_str().into(),
            session: self.session,
            number: Number(self.handles[0]),
            token: Token(self.token),
            mode: self.mode,
            since: self.since,
            purpose: self.purpose.clone(),
            is_revoked: self.is_revoked,
        }
    }
}

/// Exclusive and shared have none, permits their total.
fn total(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Exclusive | Mode::Shared => None,
        Mode::Permits { of, .. } => Some(of),
    }
}

fn take_all<T: Clone>(list: &mut Vec<T>, is_taken: impl Fn(&T) -> bool) -> Vec<T> {
    let taken = list.iter().filter(|item| is_taken(item)).cloned().collect();
    list.retain(|item| !is_taken(item));
    taken
}
