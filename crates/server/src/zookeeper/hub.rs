//! Who watches what: one table for all connections of a server.
//!
//! Watches are looked up by the path that changed, and those that include what is below by its
//! ancestors, so that a watch costs nothing until its own path changes. Both happen on the node's
//! thread with the state locked: a watch is set with the read that it belongs to, and told of every
//! change after it. Whoever only looks, or forgets what a client that is gone has watched, does so
//! a stretch at a time.
//!
//! # Guarantees
//!
//! - A change is told once to each connection that watches, however many of its watches match.
//! - What is told is in the outbox before any reply that shows the change: the node tells of the
//!   changes of a command first, and answers it then.

use std::collections::{BTreeMap, HashMap, HashSet, hash_set};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use lockkeeper_core::{EndReason, Event, NodeAcl, NodeChange, Reply, Stamp, StateMachine};
use lockkeeper_node::{NodeHandle, Sink, Unavailable, WatchId};
use lockkeeper_wire::jute::{EventType, WatcherEvent, WatcherType, encode_notification};
use parking_lot::Mutex;

use super::journal::Journal;
use super::listings::Listings;
use super::metrics::Figures;
use super::outbox::Outbox;
use crate::limits::{WATCHED_BYTES_MAX, WATCHED_PATHS_MAX};

/// Watches that are walked through before others have their turn: a millisecond.
pub(super) const STRETCH: usize = if cfg!(test) { 4 } else { 4_096 };

/// A connection among those that may watch.
pub(super) type WatcherId = u64;

/// Which of the two tables a watch is in: what is told of the node itself, and of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Data,
    Child,
}

/// Ways to watch one path, as bits: a connection may use several at once.
pub(super) mod mode {
    /// Goes when it fires.
    pub(in super::super) const STANDARD: u8 = 1;
    /// Stays.
    pub(in super::super) const PERSISTENT: u8 = 2;
    /// Stays, and includes what is below.
    pub(in super::super) const RECURSIVE: u8 = 4;
    pub(in super::super) const ALL: u8 = 7;
}

/// The watches of one server.
pub(super) struct Hub {
    tables: Mutex<Tables>,
    pub(super) listings: Listings,
    journal: Journal,
    figures: Arc<Figures>,
    /// Odd while the node tells it of what happens; it grows whenever that begins or ends. Watches
    /// are set only while it is odd.
    subscription: AtomicU64,
}

#[derive(Default)]
struct Tables {
    paths: HashMap<Arc<str>, Watched>,
    watchers: BTreeMap<WatcherId, Watcher>,
    newest: WatcherId,
    /// How many watches include what is below, by the lengths of their paths: others of a path's
    /// ancestors needn't be looked up, of which a hostile one has tens of thousands.
    recursive: BTreeMap<usize, usize>,
    counts: WatchCounts,
}

/// How many watches there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchCounts {
    /// Of nodes themselves.
    pub(crate) data: usize,
    /// Of their children.
    pub(crate) child: usize,
}

/// The watches of a connection that is gone, as far as they are not forgotten.
pub(super) struct Leaving {
    id: WatcherId,
    paths: hash_set::IntoIter<Arc<str>>,
}

struct Watcher {
    outbox: Arc<Outbox>,
    paths: HashSet<Arc<str>>,
    /// Of these.
    bytes: usize,
}

/// Who watches one path.
#[derive(Default)]
struct Watched {
    data: Crowd,
    child: Crowd,
}

impl Watched {
    fn crowd(&mut self, table: Table) -> &mut Crowd {
        match table {
            Table::Data => &mut self.data,
            Table::Child => &mut self.child,
        }
    }

    fn modes(&self, table: Table, watcher: WatcherId) -> u8 {
        match table {
            Table::Data => self.data.modes(watcher),
            Table::Child => self.child.modes(watcher),
        }
    }
}

/// Connections, each with its ways to watch; most often it is one.
#[derive(Default)]
enum Crowd {
    #[default]
    Nobody,
    One(WatcherId, u8),
    Many(BTreeMap<WatcherId, u8>),
}

impl Crowd {
    fn modes(&self, watcher: WatcherId) -> u8 {
        match self {
            Self::Nobody => 0,
            Self::One(one, modes) => {
                if *one == watcher {
                    *modes
                } else {
                    0
                }
            }
            Self::Many(many) => many.get(&watcher).copied().unwrap_or(0),
        }
    }

    /// Sets the ways in which one connection watches; none at all forgets it.
    fn set(&mut self, watcher: WatcherId, modes: u8) {
        match self {
            Self::Nobody if modes == 0 => {}
            Self::Nobody => *self = Self::One(watcher, modes),
            Self::One(one, _) if *one == watcher && modes == 0 => *self = Self::Nobody,
            Self::One(one, old) if *one == watcher => *old = modes,
            Self::One(..) if modes == 0 => {}
            Self::One(one, old) => {
                *self = Self::Many(BTreeMap::from([(*one, *old), (watcher, modes)]));
            }
            Self::Many(many) => {
                if modes == 0 {
                    many.remove(&watcher);
                } else {
                    many.insert(watcher, modes);
                }
                if many.is_empty() {
                    *self = Self::Nobody;
                }
            }
        }
    }

    fn is_nobody(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    /// Appends those that watch in one of `modes`.
    fn gather(&self, modes: u8, into: &mut Vec<WatcherId>) {
        match self {
            Self::Nobody => {}
            Self::One(one, own) => into.extend((own & modes != 0).then_some(*one)),
            Self::Many(many) => {
                into.extend(many.iter().filter(|(_, own)| *own & modes != 0).map(|(id, _)| *id));
            }
        }
    }
}

impl Tables {
    /// Changes the ways in which a connection watches a path. Returns what they were.
    fn change(
        &mut self,
        watcher: WatcherId,
        path: &str,
        table: Table,
        change: impl FnOnce(u8) -> u8,
    ) -> u8 {
        let before = self.paths.get(path).map_or(0, |watched| watched.modes(table, watcher));
        let after = change(before);
        if before == after || !self.watchers.contains_key(&watcher) {
            return before;
        }
        let (shared, is_left) = self.set(watcher, path, table, after);
        if let Some(of_watcher) = self.watchers.get_mut(&watcher) {
            if is_left {
                of_watcher.bytes += if of_watcher.paths.insert(shared) { path.len() } else { 0 };
            } else {
                of_watcher.bytes -= if of_watcher.paths.remove(path) { path.len() } else { 0 };
            }
        }
        before
    }

    /// Sets the ways in which a connection watches a path, but not what is written down with the
    /// connection: the path, as it is shared, and whether it is still to be there.
    fn set(&mut self, watcher: WatcherId, path: &str, table: Table, modes: u8) -> (Arc<str>, bool) {
        let shared = match self.paths.get_key_value(path) {
            Some((shared, _)) => Arc::clone(shared),
            None => Arc::from(path),
        };
        let watched = self.paths.entry(Arc::clone(&shared)).or_default();
        let before = watched.modes(table, watcher);
        watched.crowd(table).set(watcher, modes);
        let is_left =
            watched.modes(Table::Data, watcher) | watched.modes(Table::Child, watcher) != 0;
        if watched.data.is_nobody() && watched.child.is_nobody() {
            self.paths.remove(path);
        }
        self.count(path, table, before, modes);
        (shared, is_left)
    }

    fn count(&mut self, path: &str, table: Table, before: u8, after: u8) {
        let count = match table {
            Table::Data => &mut self.counts.data,
            Table::Child => &mut self.counts.child,
        };
        *count += usize::from(after != 0);
        *count -= usize::from(before != 0);
        let (was, is) = (before & mode::RECURSIVE != 0, after & mode::RECURSIVE != 0);
        if was == is {
            return;
        }
        let recursive = self.recursive.entry(path.len()).or_default();
        *recursive = if is { *recursive + 1 } else { recursive.saturating_sub(1) };
        if *recursive == 0 {
            self.recursive.remove(&path.len());
        }
    }

    /// Who is to be told of a change at `path`, each once; watches that go when they fire are gone.
    fn trigger(&mut self, table: Table, path: &str) -> Vec<WatcherId> {
        let mut told = Vec::new();
        if let Some(watched) = self.paths.get_mut(path) {
            let crowd = watched.crowd(table);
            crowd.gather(mode::ALL, &mut told);
            let mut once = Vec::new();
            crowd.gather(mode::STANDARD, &mut once);
            for watcher in once {
                self.change(watcher, path, table, |modes| modes & !mode::STANDARD);
            }
        }
        if table == Table::Data {
            let exact = told.len();
            for &length in self.recursive.range(..path.len()).map(|(length, _)| length) {
                let Some(ancestor) = ancestor(path, length) else { continue };
                if let Some(watched) = self.paths.get(ancestor) {
                    watched.data.gather(mode::RECURSIVE, &mut told);
                }
            }
            if told.len() > exact {
                told.sort_unstable();
                told.dedup();
            }
        }
        told
    }
}

/// The path above one that is so long, if there is one.
fn ancestor(path: &str, length: usize) -> Option<&str> {
    let is_root = length == 1 && path.starts_with('/');
    let is_above = length > 1 && path.as_bytes().get(length) == Some(&b'/');
    if is_root || is_above { path.get(..length) } else { None }
}

/// The path above one; `None` above the root.
pub(super) fn parent(path: &str) -> Option<&str> {
    match path.rfind('/') {
        Some(0) if path.len() > 1 => Some("/"),
        Some(at) if at > 0 => Some(&path[..at]),
        _ => None,
    }
}

impl Hub {
    pub(super) fn new(journal: Journal, figures: Arc<Figures>) -> Self {
        Self {
            tables: Mutex::default(),
            listings: Listings::default(),
            journal,
            figures,
            subscription: AtomicU64::new(0),
        }
    }

    /// Sees to it that the node tells this hub, `sink`, of what happens from now on.
    pub(super) fn subscribe(&self, node: &NodeHandle, sink: &Arc<dyn Sink>) {
        loop {
            let seen = self.subscription.load(Ordering::Acquire);
            if seen % 2 == 1 {
                return;
            }
            // Two threads may come here at once. Each has the node told before it goes on, which
            // is the same told twice.
            self.listings.forget();
            node.watch_tree(sink);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            // If it fails, another was first, or it has ended again.
            let _ = self.subscription.compare_exchange(seen, seen + 1, order.0, order.1);
        }
    }

    /// A connection comes in.
    pub(super) fn join(&self, outbox: &Arc<Outbox>) -> WatcherId {
        let mut tables = self.tables.lock();
        tables.newest += 1;
        let id = tables.newest;
        let watcher = Watcher { outbox: Arc::clone(outbox), paths: HashSet::new(), bytes: 0 };
        tables.watchers.insert(id, watcher);
        id
    }

    /// A connection is gone: nothing is told to it any more. Its watches are to be forgotten.
    pub(super) fn leave(&self, id: WatcherId) -> Leaving {
        let watcher = self.tables.lock().watchers.remove(&id);
        let paths = watcher.map(|watcher| watcher.paths).unwrap_or_default();
        Leaving { id, paths: paths.into_iter() }
    }

    /// Forgets watches of a connection that is gone, a stretch of them. False if these were the
    /// last.
    pub(super) fn forget(&self, leaving: &mut Leaving) -> bool {
        let mut tables = self.tables.lock();
        for path in leaving.paths.by_ref().take(STRETCH) {
            for table in [Table::Data, Table::Child] {
                tables.set(leaving.id, &path, table, 0);
            }
        }
        leaving.paths.len() > 0
    }

    /// The connections, in the order in which they came.
    pub(super) fn connections(&self) -> Vec<Arc<Outbox>> {
        let tables = self.tables.lock();
        tables.watchers.values().map(|watcher| Arc::clone(&watcher.outbox)).collect()
    }

    pub(super) fn watch_counts(&self) -> WatchCounts {
        self.tables.lock().counts
    }

    /// The paths that a connection watches for the nodes themselves.
    ///
    /// Nobody waits for more than a stretch of them, or, if it watches hundreds of thousands, for
    /// as long as it takes to copy a pointer to each: what changes meanwhile may be missed.
    pub(super) fn data_watches(&self, id: WatcherId) -> Vec<Arc<str>> {
        let paths: Vec<Arc<str>> = match self.tables.lock().watchers.get(&id) {
            Some(watcher) => watcher.paths.iter().cloned().collect(),
            None => Vec::new(),
        };
        let mut kept = Vec::new();
        for stretch in paths.chunks(STRETCH) {
            let tables = self.tables.lock();
            let is_watched = |path: &&Arc<str>| {
                tables.paths.get(*path).is_some_and(|watched| watched.data.modes(id) != 0)
            };
            kept.extend(stretch.iter().filter(is_watched).cloned());
        }
        kept
    }

    /// Whether a connection may watch so many more paths, of so many bytes together.
    pub(super) fn has_room(&self, id: WatcherId, count: usize, bytes: usize) -> bool {
        let tables = self.tables.lock();
        tables.watchers.get(&id).is_none_or(|watcher| {
            watcher.paths.len() + count <= WATCHED_PATHS_MAX
                && watcher.bytes + bytes <= WATCHED_BYTES_MAX
        })
    }

    /// Sets a watch; setting it again changes nothing.
    pub(super) fn watch(&self, id: WatcherId, path: &str, table: Table, mode: u8) {
        self.tables.lock().change(id, path, table, |modes| modes | mode);
    }

    /// Whether a connection watches a path in such a way.
    pub(super) fn is_watched(&self, id: WatcherId, path: &str, kind: WatcherType) -> bool {
        let tables = self.tables.lock();
        let Some(watched) = tables.paths.get(path) else { return false };
        let data = watched.data.modes(id);
        let child = watched.child.modes(id);
        0 != match kind {
            WatcherType::Children => child & mode::STANDARD,
            WatcherType::Data => data & mode::STANDARD,
            WatcherType::Any => data | child,
            WatcherType::Persistent => data & mode::PERSISTENT,
            WatcherType::PersistentRecursive => data & mode::RECURSIVE,
        }
    }

    /// Removes watches of a path; false if there were none such.
    pub(super) fn unwatch(&self, id: WatcherId, path: &str, kind: WatcherType) -> bool {
        let (data, child) = match kind {
            WatcherType::Children => (0, mode::STANDARD),
            WatcherType::Data => (mode::STANDARD, 0),
            WatcherType::Any => (mode::ALL, mode::ALL),
            WatcherType::Persistent => (mode::PERSISTENT, mode::PERSISTENT),
            WatcherType::PersistentRecursive => (mode::RECURSIVE, 0),
        };
        let mut tables = self.tables.lock();
        let had_data = tables.change(id, path, Table::Data, |modes| modes & !data) & data;
        let had_child = tables.change(id, path, Table::Child, |modes| modes & !child) & child;
        had_data | had_child != 0
    }

    /// Tells whoever watches `path` in `table` and may read it, but those in `except`. Returns who
    /// it was to be told.
    fn fire(&self, table: Table, news: &News<'_>, except: &[WatcherId]) -> Vec<WatcherId> {
        let (matched, outboxes) = {
            let mut tables = self.tables.lock();
            if tables.paths.is_empty() {
                return Vec::new();
            }
            let matched = tables.trigger(table, news.path);
            let told = matched.iter().filter(|id| except.binary_search(id).is_err());
            let outboxes: Vec<Arc<Outbox>> = told
                .filter_map(|id| tables.watchers.get(id))
                .map(|watcher| Arc::clone(&watcher.outbox))
                .collect();
            (matched, outboxes)
        };
        if !outboxes.is_empty() {
            let frame = notification(news.zxid, news.kind, news.path);
            let mut count = 0;
            for outbox in outboxes {
                let told = outbox.notify(&frame, news.zxid, news.acl);
                count += u64::from(told.is_some());
                if let Some(session) = told.filter(|_| news.kind == EventType::NodeDeleted) {
                    self.journal.watch_fired(news.path, session);
                }
            }
            self.figures.notified(news.path, count);
        }
        matched
    }

    fn node_changed(
        &self,
        path: &str,
        change: NodeChange,
        zxid: i64,
        acl: &NodeAcl,
        acl_above: Option<&NodeAcl>,
    ) {
        let news = |kind| News { kind, path, zxid, acl };
        match change {
            NodeChange::DataChanged => {
                self.fire(Table::Data, &news(EventType::NodeDataChanged), &[]);
                return;
            }
            NodeChange::Created => {
                self.fire(Table::Data, &news(EventType::NodeCreated), &[]);
            }
            NodeChange::Deleted => {
                let deleted = news(EventType::NodeDeleted);
                let told = self.fire(Table::Data, &deleted, &[]);
                self.fire(Table::Child, &deleted, &told);
            }
        }
        if let (Some(parent), Some(acl)) = (parent(path), acl_above) {
            let kind = EventType::NodeChildrenChanged;
            self.fire(Table::Child, &News { kind, path: parent, zxid, acl }, &[]);
        }
    }
}

impl Sink for Hub {
    fn event(&self, _: Option<WatchId>, event: &Event, state: &StateMachine, _: Stamp) {
        match event {
            Event::Node { path, change, session, zxid, acl, acl_above } => {
                let zxid = zxid.0.cast_signed();
                self.listings.follow(path, *change, zxid);
                self.node_changed(path, *change, zxid, acl, acl_above.as_ref());
                self.journal.follow(path, *change, *session, state);
            }
            Event::SessionEnded { session, reason } => {
                if *reason == EndReason::Expired {
                    self.figures.session_expired();
                }
                self.journal.ended(*session, *reason);
            }
            _ => {}
        }
    }

    fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}

    fn confirmed(&self, _: u64) {}

    fn flush(&self) {}

    fn close(&self, reason: &'static str) {
        // What was told no longer leads to what is: everybody begins anew.
        self.listings.forget();
        // To the next even number.
        let next = |seen: u64| Some((seen | 1).wrapping_add(1));
        let _ = self.subscription.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        for outbox in self.connections() {
            outbox.close(reason);
        }
    }
}

/// What is told of one path.
struct News<'a> {
    kind: EventType,
    path: &'a str,
    zxid: i64,
    /// Who may be told: whoever may read.
    acl: &'a NodeAcl,
}

/// A notification as it is sent.
pub(super) fn notification(zxid: i64, kind: EventType, path: &str) -> Bytes {
    let event = WatcherEvent { kind, state: WatcherEvent::CONNECTED, path: Some(path) };
    let mut frame = BytesMut::new();
    // A path has come in a frame itself.
    let _ = encode_notification(zxid, &event, &mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_ancestors_that_it_has() {
        let path = "/a/bc/d";
        let found: Vec<_> = (0..path.len()).filter_map(|length| ancestor(path, length)).collect();
        assert_eq!(found, ["/", "/a", "/a/bc"]);
        assert_eq!(parent(path), Some("/a/bc"));
        assert_eq!((0..9).find_map(|length| ancestor("", length)), None);
        assert_eq!((0..1).find_map(|length| ancestor("/", length)), None);
        // A letter of two bytes ends where no path above does.
        assert_eq!((2..4).find_map(|length| ancestor("/äb", length)), None);
    }
}
