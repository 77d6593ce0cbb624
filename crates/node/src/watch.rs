//! Who is told what: the connections that sessions are attached to, and the watches of names.
//!
//! Nothing here is state: it is in no snapshot, and ends with the connection. All of it is called
//! on the node's thread with the state locked, so that what a subscriber is told and what it sees
//! belong to the same entry.

use std::collections::btree_map::Entry;
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
    /// In the order in which they began.
    watches: BTreeMap<Begun, Watch>,
    /// The watches of each sink: a crowd that disconnects is not walked once for each of it.
    watches_of: BTreeMap<(SinkKey, WatchId), Begun>,
    /// Who is told of every change of the tree, likewise.
    of_tree: BTreeMap<Begun, Arc<dyn Sink>>,
    tree_of: BTreeMap<SinkKey, Begun>,
    begun: Begun,
}

/// The number of a watch: a later one has a greater one.
type Begun = u64;

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
        let key = key(sink);
        let own = self.watches_of.range((key, WatchId::MIN)..=(key, WatchId::MAX));
        let ids: Vec<WatchId> = own.map(|(&(_, id), _)| id).collect();
        ids.into_iter().for_each(|id| self.unwatch(id, sink));
        if let Some(begun) = self.tree_of.remove(&key) {
            self.of_tree.remove(&begun);
        }
    }

    pub(crate) fn watch_tree(&mut self, sink: &Arc<dyn Sink>) {
        if let Entry::Vacant(vacant) = self.tree_of.entry(key(sink)) {
            self.begun += 1;
            vacant.insert(self.begun);
            self.of_tree.insert(self.begun, Arc::clone(sink));
        }
    }

    pub(crate) fn watch(&mut self, prefix: &str, id: WatchId, sink: &Arc<dyn Sink>) {
        self.unwatch(id, sink);
        self.begun += 1;
        self.watches_of.insert((key(sink), id), self.begun);
        let watch = Watch { prefix: prefix.to_owned(), id, sink: Arc::clone(sink) };
        self.watches.insert(self.begun, watch);
    }

    pub(crate) fn unwatch(&mut self, id: WatchId, sink: &Arc<dyn Sink>) {
        if let Some(begun) = self.watches_of.remove(&(key(sink), id)) {
            self.watches.remove(&begun);
        }
    }

    /// Closes every sink, sessions first: what they were told no longer follows from what they
    /// will be told.
    pub(crate) fn close_all(&mut self, reason: &'static str) {
        let Self { sessions, watches, of_tree, .. } = std::mem::take(self);
        sessions.into_values().for_each(|sink| sink.close(reason));
        watches.into_values().for_each(|watch| watch.sink.close(reason));
        of_tree.into_values().for_each(|sink| sink.close(reason));
    }

    /// Tells the watches of a batch whose events come now.
    pub(crate) fn begin(&self, took: Option<Duration>) {
        self.watches.values().for_each(|watch| watch.sink.batch(took));
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
            for sink in self.of_tree.values() {
                sink.event(None, event, state, now);
                told.add(sink);
            }
        }
        if let Event::Node { .. } = event {
            return;
        }
        if !self.watches.is_empty() && !matches!(event, Event::SessionMoved { .. }) {
            let name = lock_of(event);
            let watches = self.watches.values();
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

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Number, Reply, Token};
    use parking_lot::Mutex;

    use super::*;
    use crate::Unavailable;

    /// Who was told something, and for which of his watches.
    type Heard = Vec<(usize, Option<WatchId>)>;

    struct Listener {
        name: usize,
        heard: Arc<Mutex<Heard>>,
    }

    impl Sink for Listener {
        fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}

        fn event(&self, watch: Option<WatchId>, _: &Event, _: &StateMachine, _: Stamp) {
            self.heard.lock().push((self.name, watch));
        }

        fn confirmed(&self, _: u64) {}

        fn flush(&self) {}

        fn close(&self, _: &'static str) {}
    }

    #[test]
    fn who_has_left_is_told_nothing_and_the_others_in_the_order_in_which_they_came() {
        let heard = Arc::default();
        let listener = |name| {
            let heard = Arc::clone(&heard);
            Arc::new(Listener { name, heard }) as Arc<dyn Sink>
        };
        let crowd: Vec<_> = (0..100).map(listener).collect();
        let mut listeners = Listeners::default();
        for id in [7, 8, 9] {
            crowd.iter().for_each(|sink| listeners.watch("a/", id, sink));
        }
        crowd.iter().for_each(|sink| listeners.unwatch(8, sink));
        crowd.iter().for_each(|sink| listeners.watch_tree(sink));
        crowd.iter().skip(1).step_by(2).for_each(|sink| listeners.detach(sink));
        // Who watches anew comes last.
        listeners.watch("a/", 7, &crowd[0]);
        let (session, number, token) = (SessionId(1), Number(1), Token(1));
        let released = Event::Released { lock: "a/b".into(), session, number, token, held_ms: 1 };
        let mut tell = |event: &Event| {
            let mut told = Told::default();
            listeners.tell(event, &StateMachine::default(), Stamp(0), &mut told);
            std::mem::take(&mut *heard.lock())
        };
        let names = |from| (from..100).step_by(2);
        let mut expected: Vec<_> = names(2).map(|name| (name, Some(7))).collect();
        expected.extend(names(0).map(|name| (name, Some(9))));
        expected.push((0, Some(7)));
        assert_eq!(tell(&released), expected);
        let reason = lockkeeper_core::EndReason::Closed;
        let ended = Event::SessionEnded { session, reason };
        let of_tree: Vec<_> = names(0).map(|name| (name, None)).collect();
        assert_eq!(tell(&ended), of_tree);
    }
}
