//! Who is told what: the connections that sessions are attached to, and the watches of names.
//!
//! Nothing here is state: it is in no snapshot, and ends with the connection. All of it is called
//! on the node's thread with the state locked, so that what a subscriber is told and what it sees
//! belong to the same entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Event, SessionId, Stamp, StateMachine};

use crate::{Sink, WatchId};

/// The subscribers of one node.
#[derive(Default)]
pub(crate) struct Listeners {
    sessions: BTreeMap<SessionId, Arc<dyn Sink>>,
    /// The sessions of each sink, so that a sink is forgotten without a walk.
    attached: BTreeMap<SinkKey, BTreeSet<SessionId>>,
    watches: Vec<Watch>,
    /// Who is told of every change of the tree.
    of_tree: Vec<Arc<dyn Sink>>,
}

struct Watch {
    prefix: String,
    id: WatchId,
    sink: Arc<dyn Sink>,
}

/// The address of a sink: only for telling sinks apart, never for an order that shows.
type SinkKey = usize;

fn key(sink: &Arc<dyn Sink>) -> SinkKey {
    Arc::as_ptr(sink).addr()
}

impl Listeners {
    /// Sends a session's events to `sink` from now on, and closes the one that had them before.
    pub(crate) fn attach(&mut self, session: SessionId, sink: &Arc<dyn Sink>) {
        let earlier = self.sessions.insert(session, Arc::clone(sink));
        if let Some(earlier) = earlier
            && !Arc::ptr_eq(&earlier, sink)
        {
            self.forget(session, &earlier);
            earlier.close("its session was resumed on another connection");
        }
        self.attached.entry(key(sink)).or_default().insert(session);
    }

    pub(crate) fn detach(&mut self, sink: &Arc<dyn Sink>) {
        for session in self.attached.remove(&key(sink)).unwrap_or_default() {
            self.sessions.remove(&session);
        }
        self.watches.retain(|watch| !Arc::ptr_eq(&watch.sink, sink));
        self.of_tree.retain(|watching| !Arc::ptr_eq(watching, sink));
    }

    pub(crate) fn watch_tree(&mut self, sink: &Arc<dyn Sink>) {
        if !self.of_tree.iter().any(|watching| Arc::ptr_eq(watching, sink)) {
            self.of_tree.push(Arc::clone(sink));
        }
    }

    pub(crate) fn watch(&mut self, prefix: &str, id: WatchId, sink: &Arc<dyn Sink>) {
        self.unwatch(id, sink);
        self.watches.push(Watch { prefix: prefix.to_owned(), id, sink: Arc::clone(sink) });
    }

    pub(crate) fn unwatch(&mut self, id: WatchId, sink: &Arc<dyn Sink>) {
        self.watches.retain(|watch| watch.id != id || !Arc::ptr_eq(&watch.sink, sink));
    }

    /// Closes every sink, sessions first: what they were told no longer follows from what they
    /// will be told.
    pub(crate) fn close_all(&mut self, reason: &'static str) {
        let Self { sessions, watches, of_tree, .. } = std::mem::take(self);
        sessions.into_values().for_each(|sink| sink.close(reason));
        watches.into_iter().for_each(|watch| watch.sink.close(reason));
        of_tree.into_iter().for_each(|sink| sink.close(reason));
    }

    /// Tells the watches of a batch whose events come now.
    pub(crate) fn begin(&self, took: Option<Duration>) {
        self.watches.iter().for_each(|watch| watch.sink.batch(took));
    }

    /// Tells an event to the session that it concerns, and to whoever watches the lock's name or
    /// the tree.
    pub(crate) fn tell(
        &mut self,
        event: &Event,
        state: &StateMachine,
        now: Stamp,
        told: &mut Told,
    ) {
        if let Some(session) = addressee(event)
            && let Some(sink) = self.sessions.get(&session)
        {
            sink.event(None, event, state, now);
            told.add(sink);
        }
        if let Event::Node { .. } | Event::SessionEnded { .. } = event {
            for sink in &self.of_tree {
                sink.event(None, event, state, now);
                told.add(sink);
            }
        }
        if let Event::Node { .. } = event {
            return;
        }
        if !self.watches.is_empty() && !matches!(event, Event::SessionMoved { .. }) {
            let name = lock_of(event);
            let watches = self.watches.iter();
            // The watch of everything is told of sessions, too.
            for watch in watches.filter(|watch| name.unwrap_or("").starts_with(&watch.prefix)) {
                watch.sink.event(Some(watch.id), event, state, now);
                told.add(&watch.sink);
            }
        }
        // Whoever goes on with a session is attached by the reply, right after this.
        if let Event::SessionEnded { session, .. } | Event::SessionMoved { session, .. } = event
            && let Some(sink) = self.sessions.remove(session)
        {
            self.forget(*session, &sink);
        }
    }

    fn forget(&mut self, session: SessionId, sink: &Arc<dyn Sink>) {
        if let Some(sessions) = self.attached.get_mut(&key(sink)) {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.attached.remove(&key(sink));
            }
        }
    }
}

/// The session whose connection is told of an event. What the reply to its own request says
/// already is no news.
fn addressee(event: &Event) -> Option<SessionId> {
    match event {
        Event::Granted { session, waited_ms: Some(_), .. }
        | Event::Revoked { session, .. }
        | Event::Lost { session, .. }
        | Event::SessionRevoked { session }
        | Event::SessionEnded { session, .. }
        | Event::SessionMoved { session, .. } => Some(*session),
        Event::SessionOpened { .. }
        | Event::Queued { .. }
        | Event::Granted { .. }
        | Event::Released { .. }
        | Event::Cancelled { .. }
        | Event::Node { .. } => None,
    }
}

fn lock_of(event: &Event) -> Option<&str> {
    match event {
        Event::Queued { lock, .. }
        | Event::Granted { lock, .. }
        | Event::Released { lock, .. }
        | Event::Cancelled { lock, .. }
        | Event::Revoked { lock, .. }
        | Event::Lost { lock, .. } => Some(lock),
        Event::SessionOpened { .. }
        | Event::SessionEnded { .. }
        | Event::SessionRevoked { .. }
        | Event::SessionMoved { .. }
        | Event::Node { .. } => None,
    }
}

/// Who was told something in this entry, and is to write it out at its end: each once.
#[derive(Default)]
pub(crate) struct Told {
    sinks: Vec<Arc<dyn Sink>>,
    keys: BTreeSet<SinkKey>,
}

impl Told {
    pub(crate) fn add(&mut self, sink: &Arc<dyn Sink>) {
        // What concerns one connection mostly comes in runs.
        let is_last = self.sinks.last().is_some_and(|last| Arc::ptr_eq(last, sink));
        if !is_last && self.keys.insert(key(sink)) {
            self.sinks.push(Arc::clone(sink));
        }
    }

    /// Flushes them in the order in which they were first told something.
    pub(crate) fn flush(&mut self) {
        self.keys.clear();
        self.sinks.drain(..).for_each(|sink| sink.flush());
    }
}
