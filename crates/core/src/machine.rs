//! The state machine: one value, changed by one verb.
//!
//! What a command does to one lock stands in `lock.rs`; here it is decided which sessions and
//! locks a command concerns, what it is answered, and what happens in the same entry besides.
//! Three rules keep it small:
//!
//! - **One ending.** Whatever a session holds or waits for ends with it, in `end_session`.
//! - **One way in.** Every hold begins in `grant`, and every removal of a hold or a place is
//!   followed by `serve`, which lets in whoever is next, in the same entry.
//! - **One counter.** The revision advances once per command and once more for each further grant,
//!   so that every grant has a token of its own.

use std::ops::Bound;

use crate::dedup::Asked;
use crate::lock::{Hold, Lock, Ticket, Waiter};
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::session::{Handle, Live, Place, Session, check_ttl};
use crate::shards::Shards;
use crate::tree::{Asker, Writer};
use crate::{
    ClusterId, Command, ENSEMBLE_PATH, EndReason, Event, HOLDS_PER_LOCK_MAX, Limit, Listed,
    LockName, LossReason, Mode, NodeKind, Number, OwnerRef, PERMITS_MAX, PURPOSE_BYTES_MAX,
    Refusal, Reply, Request, Revision, SESSIONS_MAX, Secret, SessionId, Stamp, Token, Tree,
    TreeError, TreeOp, WAITERS_PER_LOCK_MAX, check_lock_name, list_members,
};

/// The whole replicated state: every session, every lock that somebody holds or waits for, and the
/// tree.
///
/// There are three kinds of method. [`StateMachine::apply`] changes the state, and nothing else
/// does, but for [`StateMachine::set_members`]. *Queries* (`lock`, `locks`, `session`, `lease`,
/// `counts` …) look at it. The *snapshot* methods ([`StateMachine::write_snapshot`],
/// [`StateMachine::read_snapshot`], [`StateMachine::restored`]) turn it into bytes and back.
///
/// Cloning it costs some 5,000 reference counts, however large it is, and freezes it: the clone
/// shares all with the original until that is written, one shard at a time.
#[derive(Clone, Debug, Default)]
pub struct StateMachine {
    pub(crate) revision: Revision,
    /// The newest stamp of an applied command: stamps never go back.
    pub(crate) stamp: Stamp,
    pub(crate) cluster: Option<ClusterId>,
    /// Since a restore nothing is granted; then nothing is held either.
    pub(crate) is_silent: bool,
    pub(crate) sessions: Sessions,
    pub(crate) locks: Locks,
    pub(crate) hold_count: usize,
    pub(crate) waiter_count: usize,
    pub(crate) tree: Tree,
}

pub(crate) type Sessions = Shards<SessionId, Session, 1_024>;

/// With a million locks in use, a write after a clone copies a shard of some 250: about 15 µs. More
/// shards would make that cheaper, and listing and cloning dearer.
pub(crate) type Locks = Shards<LockName, Lock, 4_096>;

/// What a command is answered.
type Outcome = Result<Reply, Refusal>;

impl StateMachine {
    /// Applies one command of the log: the way in which the state changes.
    ///
    /// Events are appended to `events` in the order in which they happened. Costs the logarithm
    /// of the state's size, and linear time for what a command ends or grants besides its own.
    pub fn apply(&mut self, at: Stamp, command: &Command<'_>, events: &mut Vec<Event>) -> Reply {
        self.revision.0 += 1;
        self.stamp = self.stamp.max(at);
        let entry = &mut Entry { at: self.stamp, events, has_granted: false };
        let outcome = match *command {
            Command::Request { session, number, floor, ref request } => {
                self.request(session, number, floor, request, entry)
            }
            Command::OpenSession { session, ref secret, ttl_ms, ref owner } => {
                self.open_session(session, secret, ttl_ms, owner, entry)
            }
            Command::EndSession { session, reason } => self.end_session(session, reason, entry),
            Command::RevokeSession { session } => self.revoke_session(session, entry),
            Command::RevokeHold { lock, if_token, now } => {
                self.revoke_hold(lock, if_token, now, entry)
            }
            Command::FoundCluster { cluster } => {
                self.cluster.get_or_insert(cluster);
                Ok(Reply::Done)
            }
            Command::EndSilence => {
                self.end_silence(entry);
                Ok(Reply::Done)
            }
            Command::Tree { session, connection, ref ids, enforce_quota, ref ops } => {
                let ask = Asker { session, ids, enforce_quota };
                self.change_tree(ask, connection, ops, entry)
            }
            Command::ResumeSession { session, ref secret, ttl_ms, connection } => {
                self.resume_session(session, secret, ttl_ms, connection, entry)
            }
            Command::CollectNode { path } => {
                let collected = self.tree_writer(entry).collect(path);
                collected.map_err(|error| Refusal::Tree { index: 0, error }).map(|()| Reply::Done)
            }
        };
        outcome.unwrap_or_else(Reply::Refused)
    }

    /// Shows ZooKeeper's clients other members: what an entry of Raft's own does to the state. It
    /// takes a revision as a command does, unless it shows nothing new.
    pub fn set_members(&mut self, members: &[Listed<'_>], events: &mut Vec<Event>) {
        let lines = list_members(members);
        let shown = self.tree.node(ENSEMBLE_PATH).and_then(|node| node.data).unwrap_or_default();
        let is_same = match shown.strip_prefix(lines.as_bytes()) {
            Some(rest) if !lines.is_empty() => rest.starts_with(b"version="),
            Some(rest) => rest.is_empty(),
            None => false,
        };
        if is_same {
            return;
        }
        self.revision.0 += 1;
        let entry = &mut Entry { at: self.stamp, events, has_granted: false };
        self.tree_writer(entry).set_members(&lines);
    }

    // ------------------------------------------------------------------------- numbered requests

    /// Executes a request once, and answers a repeated one from the record or from what its
    /// acquire is now.
    fn request(
        &mut self,
        session: SessionId,
        number: Number,
        floor: Number,
        request: &Request<'_>,
        entry: &mut Entry<'_>,
    ) -> Outcome {
        let client = self.sessions.get_mut(&session);
        let client = client.ok_or(Refusal::UnknownSession)?;
        if floor > number || number.0 == 0 {
            return Err(Refusal::NumberReused);
        }
        client.answers.raise_floor(floor);
        client.answers.admit(number)?;
        let asked = Asked::from(request);
        if let Some(answer) = client.answers.get(number) {
            let is_repeated = answer.asked == asked;
            return if is_repeated { Ok(answer.reply.clone()) } else { Err(Refusal::NumberReused) };
        }
        if let Some(live) = client.live(number) {
            return self.repeat(&live, request);
        }

        let outcome = match *request {
            Request::Acquire { lock, mode, wait, purpose } => {
                let acquire = Acquire { session, number, lock, mode, wait, purpose };
                self.acquire(&acquire, entry)
            }
            Request::Reenter { lock, token } => self.reenter(session, number, lock, token),
            Request::Release { acquire } | Request::Cancel { acquire } if acquire == number => {
                Err(Refusal::NumberReused)
            }
            Request::Release { acquire } => self.release(session, acquire, entry),
            Request::Cancel { acquire } => self.cancel(session, acquire, entry),
        };
        let reply = outcome.unwrap_or_else(Reply::Refused);
        // What holds or waits answers for itself; see `dedup.rs`.
        let is_live = asked == Asked::Entry && !matches!(reply, Reply::Refused(_));
        if !is_live {
            self.client(session).answers.keep(number, asked, reply.clone());
        }
        Ok(reply)
    }

    /// Answers a repeated acquire or re-entry from what it is now.
    fn repeat(&self, live: &Live, request: &Request<'_>) -> Outcome {
        let (Live::Holds(Handle { lock, .. }) | Live::Waits(Place { lock, .. })) = live;
        match *request {
            Request::Acquire { lock: named, .. } | Request::Reenter { lock: named, .. }
                if named == &**lock => {}
            _ => return Err(Refusal::NumberReused),
        }
        Ok(match live {
            Live::Holds(handle) => Reply::Granted { token: handle.token },
            Live::Waits(place) => {
                let lock = self.locks.get(&*place.lock).expect("a place is in a lock's queue");
                Reply::Queued { place: lock.place(place.ticket) }
            }
        })
    }

    fn acquire(&mut self, ask: &Acquire<'_>, entry: &mut Entry<'_>) -> Outcome {
        check_lock_name(ask.lock)?;
        check_mode(ask.mode)?;
        if ask.purpose.len() > PURPOSE_BYTES_MAX {
            return Err(Refusal::limit(Limit::PurposeBytes));
        }
        self.client(ask.session).admit_item()?;

        let Some((name, lock)) = self.locks.get_key_value(ask.lock) else {
            let name = LockName::from(ask.lock);
            return match (self.is_silent, ask.wait) {
                (false, _) => Ok(self.enter(ask, name, entry)),
                (true, true) => Ok(self.queue(ask, name, entry)),
                (true, false) => Err(Refusal::Busy),
            };
        };
        let current = lock.current_mode().expect("a lock in use is held or waited for");
        if !current.is_family_of(ask.mode) {
            return Err(Refusal::ModeConflict { current });
        }
        // Whoever comes goes behind the queue, even where it would fit in: nobody overtakes.
        if lock.waiter_count() == 0 && lock.admits(ask.mode) && !self.is_silent {
            if lock.hold_count() >= HOLDS_PER_LOCK_MAX {
                return Err(Refusal::limit(Limit::HoldsPerLock));
            }
            let name = name.clone();
            return Ok(self.enter(ask, name, entry));
        }
        if !ask.wait {
            return Err(Refusal::Busy);
        }
        if lock.waiter_count() >= WAITERS_PER_LOCK_MAX {
            return Err(Refusal::limit(Limit::WaitersPerLock));
        }
        let name = name.clone();
        Ok(self.queue(ask, name, entry))
    }

    /// Lets an acquire in at once.
    fn enter(&mut self, ask: &Acquire<'_>, name: LockName, entry: &mut Entry<'_>) -> Reply {
        let token = entry.next_token(&mut self.revision);
        #[cfg(feature = "mutations")]
        let token = match self.locks.get(&*name) {
            None if mutated(Mutation::ReuseTokens) => Token(1),
            _ => token,
        };
        let hold = Hold::new(ask.session, ask.number, token, ask.mode, entry.at);
        self.locks.get_or_default(name.clone()).enter(hold.with_purpose(ask.purpose.into()));
        self.hold_count += 1;
        let handle = Handle { lock: name.clone(), token };
        self.client(ask.session).handles.insert(ask.number, handle);
        entry.events.push(Event::Granted {
            lock: name,
            session: ask.session,
            number: ask.number,
            token,
            mode: ask.mode,
            waited_ms: None,
        });
        Reply::Granted { token }
    }

    /// Puts an acquire at the end of the line.
    fn queue(&mut self, ask: &Acquire<'_>, name: LockName, entry: &mut Entry<'_>) -> Reply {
        let ticket = Ticket::from(self.revision);
        let lock = self.locks.get_or_default(name.clone());
        lock.queue(
            ticket,
            Waiter {
                session: ask.session,
                number: ask.number,
                mode: ask.mode,
                since: entry.at,
                purpose: ask.purpose.into(),
            },
        );
        let place = u32::try_from(lock.waiter_count()).expect("a queue's limit is far below");
        self.waiter_count += 1;
        self.client(ask.session).places.insert(ask.number, Place { lock: name.clone(), ticket });
        entry.events.push(Event::Queued {
            lock: name,
            session: ask.session,
            number: ask.number,
            place,
        });
        Reply::Queued { place }
    }

    /// One more handle on a hold of the same session.
    fn reenter(&mut self, session: SessionId, number: Number, name: &str, token: Token) -> Outcome {
        self.client(session).admit_item()?;
        let held = self.locks.get_key_value(name);
        let (name, lock) = held.ok_or(Refusal::StaleToken { current: None })?;
        let hold = lock.hold(token).ok_or_else(|| stale_token(lock))?;
        if hold.session != session {
            return Err(Refusal::NotHeld);
        }
        let name = name.clone();
        self.hold_mut(&name, token).add_handle(number);
        self.client(session).handles.insert(number, Handle { lock: name, token });
        Ok(Reply::Granted { token })
    }

    /// Gives back one handle, and with the last one the hold.
    fn release(&mut self, session: SessionId, acquire: Number, entry: &mut Entry<'_>) -> Outcome {
        let client = self.client(session);
        let handle = client.handles.remove(&acquire).ok_or(Refusal::NotHeld)?;
        client.answers.settle(acquire, Refusal::NotHeld);
        let Handle { lock: name, token } = handle;

        let remaining = self.hold_mut(&name, token).drop_handle(acquire);
        if remaining == 0 {
            let hold = self.take_hold(&name, token);
            entry.events.push(Event::Released {
                lock: name.clone(),
                session,
                number: acquire,
                token,
                held_ms: entry.at.0 - hold.since.0,
            });
            self.serve(&name, entry);
        }
        let remaining = u32::try_from(remaining).expect("a session's items are limited");
        Ok(Reply::Released { token, remaining })
    }

    /// Settles an acquire, whatever it is now.
    fn cancel(&mut self, session: SessionId, acquire: Number, entry: &mut Entry<'_>) -> Outcome {
        let client = self.client(session);
        if client.handles.contains_key(&acquire) {
            let released = self.release(session, acquire, entry)?;
            self.client(session).answers.settle(acquire, Refusal::AlreadyCancelled);
            return Ok(released);
        }
        if let Some(place) = client.places.remove(&acquire) {
            client.answers.settle(acquire, Refusal::AlreadyCancelled);
            let waiter = self.leave_queue(&place);
            entry.events.push(Event::Cancelled {
                lock: place.lock.clone(),
                session,
                number: acquire,
                waited_ms: entry.at.0 - waiter.since.0,
                ended: None,
            });
            #[cfg(feature = "mutations")]
            if mutated(Mutation::LoseWakeUp) {
                return Ok(Reply::Done);
            }
            self.serve(&place.lock, entry);
            return Ok(Reply::Done);
        }
        // It has ended already, or it has not arrived yet; then it is refused when it does.
        match client.answers.admit(acquire) {
            Ok(()) if client.answers.get(acquire).is_none() => {
                client.answers.settle(acquire, Refusal::AlreadyCancelled);
            }
            Ok(()) | Err(Refusal::TooOld) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(Reply::Done)
    }

    // ---------------------------------------------------------------------------------- sessions

    fn open_session(
        &mut self,
        id: SessionId,
        secret: &Secret,
        ttl_ms: u32,
        owner: &OwnerRef<'_>,
        entry: &mut Entry<'_>,
    ) -> Outcome {
        if let Some(client) = self.sessions.get(&id) {
            return if client.is_secret(secret) {
                Ok(Reply::Done)
            } else {
                Err(Refusal::WrongSecret)
            };
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(Refusal::limit(Limit::Sessions));
        }
        let client = Session::open(*secret, ttl_ms, owner, entry.at)?;
        self.sessions.insert(id, client);
        entry.events.push(Event::SessionOpened { session: id });
        Ok(Reply::Done)
    }

    /// The one ending: everything that hangs on the session goes in this entry, and whoever waits
    /// behind it is let in.
    ///
    /// Linear in the session's items and ephemeral znodes, of which there are at most
    /// [`ITEMS_PER_SESSION_MAX`](crate::ITEMS_PER_SESSION_MAX) and
    /// [`EPHEMERALS_PER_SESSION_MAX`](crate::EPHEMERALS_PER_SESSION_MAX).
    fn end_session(&mut self, id: SessionId, reason: EndReason, entry: &mut Entry<'_>) -> Outcome {
        let client = self.sessions.remove(&id).ok_or(Refusal::UnknownSession)?;
        // First everything goes, and only then is anybody let in: otherwise a place of this very
        // session could be granted to the dead.
        for (&number, place) in &client.places {
            let waiter = self.leave_queue(place);
            entry.events.push(Event::Cancelled {
                lock: place.lock.clone(),
                session: id,
                number,
                waited_ms: entry.at.0 - waiter.since.0,
                ended: Some(reason),
            });
        }
        for (&number, handle) in &client.handles {
            // Each hold once, at its lowest handle: that is the one that names it.
            let lock = self.locks.get(&*handle.lock);
            let hold = lock.and_then(|lock| lock.hold(handle.token));
            if hold.is_some_and(|hold| hold.number() == number) {
                self.lose_hold(id, number, handle, LossReason::SessionEnded(reason), entry);
            }
        }
        self.tree_writer(entry).end_session(id);
        entry.events.push(Event::SessionEnded { session: id, reason });
        let places = client.places.values().map(|place| &place.lock);
        for name in places.chain(client.handles.values().map(|handle| &handle.lock)) {
            self.serve(name, entry);
        }
        Ok(Reply::Done)
    }

    /// Only the newest connection speaks for a session: what an earlier one sent and comes later
    /// must not be done behind its client's back.
    fn resume_session(
        &mut self,
        id: SessionId,
        secret: &Secret,
        ttl_ms: u32,
        connection: u64,
        entry: &mut Entry<'_>,
    ) -> Outcome {
        let client = self.sessions.get_mut(&id).ok_or(Refusal::UnknownSession)?;
        if !client.is_secret(secret) {
            return Err(Refusal::WrongSecret);
        }
        check_ttl(ttl_ms)?;
        client.ttl_ms = ttl_ms;
        client.connection = connection;
        entry.events.push(Event::SessionMoved { session: id, connection });
        Ok(Reply::Done)
    }

    fn revoke_session(&mut self, id: SessionId, entry: &mut Entry<'_>) -> Outcome {
        let client = self.sessions.get_mut(&id);
        let client = client.ok_or(Refusal::UnknownSession)?;
        if !std::mem::replace(&mut client.is_revoked, true) {
            entry.events.push(Event::SessionRevoked { session: id });
        }
        Ok(Reply::Done)
    }

    // -------------------------------------------------------------------------------------- tree

    fn change_tree(
        &mut self,
        ask: Asker<'_>,
        connection: u64,
        ops: &[TreeOp<'_>],
        entry: &mut Entry<'_>,
    ) -> Outcome {
        let client = self.sessions.get(&ask.session).ok_or(Refusal::UnknownSession)?;
        if client.connection != connection {
            return Err(Refusal::Tree { index: 0, error: TreeError::SessionMoved });
        }
        let is_ephemeral =
            |op: &TreeOp<'_>| matches!(op, TreeOp::Create { kind: NodeKind::Ephemeral, .. });
        if client.is_revoked && ops.iter().any(is_ephemeral) {
            return Err(Refusal::Revoked);
        }
        let replies = self.tree_writer(entry).run(ask, ops);
        replies.map(Reply::Tree).map_err(|(index, error)| {
            let index = u32::try_from(index).expect("an entry holds fewer operations");
            Refusal::Tree { index, error }
        })
    }

    /// The tree, to be changed by this command.
    fn tree_writer<'a>(&'a mut self, entry: &'a mut Entry<'_>) -> Writer<'a> {
        let Entry { at, ref mut events, .. } = *entry;
        // Nobody is let in to a lock before the tree has been changed, so this is still the
        // command's own revision.
        Writer { tree: &mut self.tree, zxid: self.revision, at, events }
    }

    // --------------------------------------------------------------------------------- operators

    fn revoke_hold(
        &mut self,
        name: &str,
        token: Token,
        now: bool,
        entry: &mut Entry<'_>,
    ) -> Outcome {
        let held = self.locks.get_key_value(name);
        let (name, lock) = held.ok_or(Refusal::StaleToken { current: None })?;
        let name = name.clone();
        let hold = lock.hold(token).ok_or_else(|| stale_token(lock))?;
        let (session, number) = (hold.session, hold.number());
        if now {
            let handles: Vec<Number> = hold.handles().collect();
            let client = self.client(session);
            for handle in handles {
                client.handles.remove(&handle);
                client.answers.settle(handle, Refusal::NotHeld);
            }
            let handle = Handle { lock: name, token };
            self.lose_hold(session, number, &handle, LossReason::Forced, entry);
            self.serve(&handle.lock, entry);
        } else if !hold.is_revoked {
            self.hold_mut(&name, token).is_revoked = true;
            self.client(session).revoked_hold_count += 1;
            entry.events.push(Event::Revoked { lock: name, session, number, token });
        }
        Ok(Reply::Done)
    }

    /// Lets in everybody whom the silence kept waiting, lock by lock in the order of their names.
    fn end_silence(&mut self, entry: &mut Entry<'_>) {
        if std::mem::replace(&mut self.is_silent, false) {
            let waited_for = self.locks.iter_from(Bound::Unbounded).map(|(name, _)| name.clone());
            for name in waited_for.collect::<Vec<_>>() {
                self.serve(&name, entry);
            }
        }
    }

    // ------------------------------------------------------------------------------------- parts

    /// Lets in whoever is next in line, as many as fit, and forgets the lock if nobody is left.
    ///
    /// To be called, in the same entry, after every removal of a hold or a place.
    fn serve(&mut self, name: &str, entry: &mut Entry<'_>) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        while !self.is_silent
            && let Some(waiter) = lock.admit_head()
        {
            let token = entry.next_token(&mut self.revision);
            let Waiter { session, number, mode, since, purpose } = waiter;
            let hold = Hold::new(session, number, token, mode, entry.at).with_purpose(purpose);
            lock.enter(hold);
            self.waiter_count -= 1;
            self.hold_count += 1;

            let client = self.sessions.get_mut(&session);
            let client = client.expect("whoever waits is alive: an ending removes its places");
            let place = client.places.remove(&number).expect("a place is known to its session");
            client.handles.insert(number, Handle { lock: place.lock.clone(), token });
            entry.events.push(Event::Granted {
                lock: place.lock,
                session,
                number,
                token,
                mode,
                waited_ms: Some(entry.at.0 - since.0),
            });
        }
        if lock.is_unused() {
            self.locks.remove(name);
        }
    }

    /// Takes a hold away from its session, which has forgotten its handles.
    fn lose_hold(
        &mut self,
        session: SessionId,
        number: Number,
        handle: &Handle,
        reason: LossReason,
        entry: &mut Entry<'_>,
    ) {
        let hold = self.take_hold(&handle.lock, handle.token);
        entry.events.push(Event::Lost {
            lock: handle.lock.clone(),
            session,
            number,
            token: handle.token,
            held_ms: entry.at.0 - hold.since.0,
            reason,
        });
    }

    /// Takes a hold out of its lock. The caller lets in whoever is next.
    fn take_hold(&mut self, name: &str, token: Token) -> Hold {
        let lock = self.locks.get_mut(name).expect("a handle's lock is in use");
        let hold = lock.leave(token).expect("a handle has a hold");
        self.hold_count -= 1;
        if hold.is_revoked
            && let Some(client) = self.sessions.get_mut(&hold.session)
        {
            client.revoked_hold_count -= 1;
        }
        hold
    }

    /// Takes a place out of its queue. The caller lets in whoever is next.
    fn leave_queue(&mut self, place: &Place) -> Waiter {
        let lock = self.locks.get_mut(&*place.lock).expect("a place's lock is in use");
        let waiter = lock.unqueue(place.ticket).expect("a place is in its lock's queue");
        self.waiter_count -= 1;
        waiter
    }

    fn hold_mut(&mut self, name: &str, token: Token) -> &mut Hold {
        let lock = self.locks.get_mut(name).expect("a handle's lock is in use");
        lock.hold_mut(token).expect("a handle has a hold")
    }

    /// The session whose request is being executed, or that was found in this entry.
    fn client(&mut self, session: SessionId) -> &mut Session {
        self.sessions.get_mut(&session).expect("only an ending removes a session")
    }
}

/// What the parts of one entry share.
struct Entry<'a> {
    /// The clamped stamp.
    at: Stamp,
    events: &'a mut Vec<Event>,
    /// The command's own revision has been used as a token.
    has_granted: bool,
}

impl Entry<'_> {
    /// A token that no grant has had: the command's own revision, then a further one a grant.
    fn next_token(&mut self, revision: &mut Revision) -> Token {
        if std::mem::replace(&mut self.has_granted, true) {
            revision.0 += 1;
        }
        Token(revision.0)
    }
}

/// An acquire, with who asks.
struct Acquire<'a> {
    session: SessionId,
    number: Number,
    lock: &'a str,
    mode: Mode,
    wait: bool,
    purpose: &'a str,
}

fn check_mode(mode: Mode) -> Result<(), Refusal> {
    match mode {
        Mode::Permits { of, .. } if of > PERMITS_MAX => Err(Refusal::limit(Limit::Permits)),
        Mode::Permits { take, of } if take == 0 || take > of => Err(Refusal::BadPermits),
        Mode::Exclusive | Mode::Shared | Mode::Permits { .. } => Ok(()),
    }
}

fn stale_token(lock: &Lock) -> Refusal {
    Refusal::StaleToken { current: lock.holds().next_back().map(|hold| hold.token) }
}
