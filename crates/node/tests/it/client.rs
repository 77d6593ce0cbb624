//! A client as a front end has it: a sink that collects what it is told.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{
    Command, Event, Mode, Number, OwnerRef, Refusal, Reply, Request, Secret, SessionId, Stamp,
    StateMachine, Token,
};
use lockkeeper_node::{NodeHandle, Sink, Unavailable, WatchId};
use parking_lot::{Condvar, Mutex};

use crate::cluster::{PATIENCE, eventually};

/// What a sink was told, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Reply(u64, Result<Reply, Unavailable>),
    Event(Option<WatchId>, Event),
    Confirmed(u64),
    Closed,
}

#[derive(Default)]
pub(crate) struct Ear {
    told: Mutex<Vec<Told>>,
    news: Condvar,
}

impl Ear {
    fn hear(&self, told: Told) {
        self.told.lock().push(told);
        self.news.notify_all();
    }

    /// Waits for the first thing that `pick` picks.
    pub(crate) fn wait<T>(&self, what: &str, mut pick: impl FnMut(&Told) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut told = self.told.lock();
        loop {
            if let Some(found) = told.iter().find_map(&mut pick) {
                return found;
            }
            let is_late = self.news.wait_until(&mut told, deadline).timed_out();
            assert!(!is_late, "in vain: {what}; told so far: {told:?}");
        }
    }

    /// All of it so far.
    pub(crate) fn heard(&self) -> Vec<Told> {
        self.told.lock().clone()
    }

    pub(crate) fn has(&self, mut is_it: impl FnMut(&Told) -> bool) -> bool {
        self.told.lock().iter().any(&mut is_it)
    }
}

impl Sink for Ear {
    fn reply(&self, id: u64, reply: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {
        self.hear(Told::Reply(id, reply.cloned().map_err(Clone::clone)));
    }

    fn event(&self, watch: Option<WatchId>, event: &Event, _: &StateMachine, _: Stamp) {
        self.hear(Told::Event(watch, event.clone()));
    }

    fn confirmed(&self, id: u64) {
        self.hear(Told::Confirmed(id));
    }

    fn flush(&self) {}

    fn close(&self, _: &'static str) {
        self.hear(Told::Closed);
    }
}

static IDS: AtomicU64 = AtomicU64::new(1);

fn next_id() -> u64 {
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// A session, and the connection that it has now.
pub(crate) struct Client {
    /// `None` while it knows no node; a node that is to be killed must be known to nobody.
    node: Option<NodeHandle>,
    pub(crate) session: SessionId,
    pub(crate) secret: Secret,
    pub(crate) ear: Arc<Ear>,
    number: u64,
}

pub(crate) const EXCLUSIVE: Mode = Mode::Exclusive;

impl Client {
    /// Opens a session that outlives any test, although it may not be heard of.
    pub(crate) fn open(node: &NodeHandle) -> Self {
        Self::open_with_ttl(node, 600_000)
    }

    pub(crate) fn open_with_ttl(node: &NodeHandle, ttl_ms: u32) -> Self {
        let session = SessionId(next_id() << 32);
        let client = Self {
            node: Some(node.clone()),
            session,
            secret: Secret([7; 16]),
            ear: Arc::default(),
            number: 0,
        };
        let (session, secret) = (client.session, client.secret);
        let reply = client.ask(|| Command::OpenSession {
            session,
            secret,
            ttl_ms,
            owner: OwnerRef::default(),
        });
        assert_eq!(reply, Reply::Done);
        client
    }

    pub(crate) fn node(&self) -> &NodeHandle {
        self.node.as_ref().expect("it knows a node")
    }

    /// Asks another node from now on, with the same sink.
    pub(crate) fn go_to(&mut self, node: &NodeHandle) {
        self.node = Some(node.clone());
    }

    /// Knows no node for a while.
    pub(crate) fn leave(&mut self) {
        self.node = None;
    }

    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.ear) as Arc<dyn Sink>
    }

    /// The same session on another connection.
    pub(crate) fn resume(&mut self, node: &NodeHandle, attach: impl FnOnce(&Self)) {
        self.go_to(node);
        self.ear = Arc::default();
        attach(self);
    }

    /// Proposes a command, again and again while the cluster can't serve it, and returns the reply.
    pub(crate) fn ask<'a>(&self, command: impl Fn() -> Command<'a>) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_ask(&command()) {
                Ok(reply) => return reply,
                Err(why) => assert!(Instant::now() < deadline, "in vain: {why}"),
            }
        }
    }

    pub(crate) fn try_ask(&self, command: &Command<'_>) -> Result<Reply, Unavailable> {
        let id = next_id();
        self.node().propose(command, id, &self.sink());
        self.reply(id)
    }

    pub(crate) fn reply(&self, id: u64) -> Result<Reply, Unavailable> {
        self.ear.wait("a reply", |told| match told {
            Told::Reply(answered, reply) if *answered == id => Some(reply.clone()),
            _ => None,
        })
    }

    pub(crate) fn request(&self, number: u64, request: &Request<'_>) -> Reply {
        let (session, floor) = (self.session, Number(1));
        let number = Number(number);
        self.ask(|| Command::Request { session, number, floor, request: request.clone() })
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Asks for a lock; the number names the hold or the place.
    pub(crate) fn acquire(&mut self, lock: &str) -> (u64, Reply) {
        let number = self.next_number();
        (number, self.request(number, &acquire(lock)))
    }

    /// Acquires a lock that is free.
    pub(crate) fn take(&mut self, lock: &str) -> (u64, Token) {
        match self.acquire(lock) {
            (number, Reply::Granted { token }) => (number, token),
            (_, other) => panic!("{lock} is not free: {other:?}"),
        }
    }

    /// Queues for a lock that is held.
    pub(crate) fn queue(&mut self, lock: &str) -> u64 {
        match self.acquire(lock) {
            (number, Reply::Queued { .. }) => number,
            (_, other) => panic!("{lock} is not held: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, acquire: u64) -> Reply {
        let number = self.next_number();
        self.request(number, &Request::Release { acquire: Number(acquire) })
    }

    /// Ends the session. An ending of which it isn't known whether it was done is asked for again,
    /// and finds the session ended if it was.
    pub(crate) fn end(&self) -> Reply {
        let session = self.session;
        let reason = lockkeeper_core::EndReason::Closed;
        let times = Cell::new(0);
        let reply = self.ask(|| {
            times.set(times.get() + 1);
            Command::EndSession { session, reason }
        });
        let was_done = times.get() > 1 && reply == refused(Refusal::UnknownSession);
        if was_done { Reply::Done } else { reply }
    }

    /// Waits until a place becomes a hold.
    pub(crate) fn granted(&self, acquire: u64) -> Token {
        self.ear.wait("a grant", |told| match told {
            Told::Event(None, Event::Granted { number, token, .. }) if number.0 == acquire => {
                Some(*token)
            }
            _ => None,
        })
    }

    /// Sends a heartbeat; its id.
    pub(crate) fn beat(&self) -> u64 {
        let id = next_id();
        self.node().heartbeat(self.session, id, &self.sink());
        id
    }

    /// Beats until it is confirmed: one that meets a change of leaders may never be.
    pub(crate) fn beat_until_confirmed(&self) {
        eventually("a confirmation", || {
            let beat = self.beat();
            let soon = Instant::now() + Duration::from_secs(1);
            while !self.is_confirmed(beat) && Instant::now() < soon {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.is_confirmed(beat)
        });
    }

    pub(crate) fn is_confirmed(&self, id: u64) -> bool {
        self.ear.has(|told| *told == Told::Confirmed(id))
    }
}

pub(crate) fn acquire(lock: &str) -> Request<'_> {
    Request::Acquire { lock, mode: EXCLUSIVE, wait: true, purpose: "" }
}

/// A refusal, for comparing.
pub(crate) fn refused(refusal: Refusal) -> Reply {
    Reply::Refused(refusal)
}
