//! The tree of znodes, as ZooKeeper's clients know it.
//!
//! One map holds all znodes, those of one parent together ([`path`]), so that a listing is a walk
//! along neighbours. It lies in copy-on-write pages: a clone freezes it at once, and no
//! command pays for more than a few pages after that, however many children a znode has.
//!
//! Three rules keep it small:
//!
//! - **Three strokes.** `put`, `take` and `change` are all that writes to the map. What can be
//!   derived (who owns what, who stands in which [`mod@line`], what can be collected, where quotas
//!   are, how many bytes) is kept by them, and so is the means to undo ([`mod@write`]). What a
//!   znode counts of its children is its own, and changed as such.
//! - **All or nothing.** Operations are executed in order, each seeing those before. When one
//!   fails, the strokes of the earlier ones are undone, last first.
//! - **One counter.** The zxid of a change is the revision of its command.
//!
//! What a znode's fields mean, and in which order an operation is checked, is ZooKeeper's, to the
//! letter: clients see the first failure.

mod acl;
mod check;
mod ensemble;
mod line;
mod node;
mod path;
mod quota;
mod record;
mod terms;
mod view;
mod write;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

pub use acl::{NodeAcl, perms};
pub use ensemble::{ENSEMBLE_PATH, Listed, Listing, list_members};
pub use line::sequence_number;
use line::stands_in_line;
pub(crate) use node::{Kind, Znode};
pub use path::check_znode_path;
use path::{FIXED, Key, Place, ROOT};
pub(crate) use record::ZnodeRecord;
pub use terms::{AclRef, IdRef, NodeChange, NodeKind, Stat, TreeError, TreeOp, TreeReply};
pub use view::NodeView;
pub(crate) use write::{Asker, Writer};

use crate::pages::Pages;
use crate::{Revision, SessionId, Stamp};

/// All znodes. Its methods are queries; commands alone change it.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Pages<Key, Arc<Znode>>,
    /// Every ephemeral znode, behind its owner.
    ephemerals: Pages<(SessionId, Key), ()>,
    /// How many ephemeral znodes each session has, if any.
    owners: Pages<SessionId, usize>,
    /// The numbered ephemeral znodes, by parent, number and name.
    in_line: Pages<Key, ()>,
    /// The znodes that have any as children, and some that lately had.
    lines: Pages<Arc<str>, ()>,
    /// Those whose line came to its end, longest ago first.
    ended_lines: VecDeque<Arc<str>>,
    /// Containers, and znodes with a time to live.
    transient: Pages<Arc<str>, ()>,
    /// The paths that have a quota.
    quotas: Pages<Arc<str>, ()>,
    /// Of all paths and data.
    bytes: u64,
}

impl Default for Tree {
    /// The tree of a new cluster.
    fn default() -> Self {
        let mut tree = Self::void();
        for path in FIXED {
            let mut node = Znode::fixed();
            if path == ENSEMBLE_PATH {
                node.acl = NodeAcl::read_only();
                node.aversion = -1;
            }
            tree.put(Key::new(path.into()).expect("it has a slash"), Arc::new(node));
            if path != ROOT {
                let above = Place::of(path).and_then(Place::above).expect("it has a parent");
                tree.change(above, |parent| parent.child_count += 1);
            }
        }
        tree
    }
}

impl Tree {
    /// Without even a root: what a snapshot is read into.
    pub(crate) fn void() -> Self {
        Self {
            nodes: Pages::default(),
            ephemerals: Pages::default(),
            owners: Pages::default(),
            in_line: Pages::default(),
            lines: Pages::default(),
            ended_lines: VecDeque::new(),
            transient: Pages::default(),
            quotas: Pages::default(),
            bytes: 0,
        }
    }

    /// Without what went with its session, as if each had ended.
    pub(crate) fn without_ephemerals(&self, zxid: Revision, at: Stamp) -> Self {
        let mut tree = self.clone();
        let sessions: Vec<SessionId> = tree.owners().map(|(session, _)| session).collect();
        let mut writer = Writer { tree: &mut tree, zxid, at, events: &mut Vec::new() };
        sessions.into_iter().for_each(|session| writer.end_session(session));
        tree
    }

    fn at(&self, place: Place<'_>) -> Option<&Arc<Znode>> {
        self.nodes.get(place.order()).map(|(_, node)| node)
    }

    /// Adds a znode where there is none. Its parent's fields are the caller's to change.
    pub(crate) fn put(&mut self, key: Key, node: Arc<Znode>) {
        if stands_in_line(key.name(), &node) {
            self.in_line.insert(key.clone(), (), line::order(key.place()));
        }
        let copy = key.clone();
        let (place, path) = (copy.place(), copy.path());
        self.bytes += (path.len() + node.data_len()) as u64;
        if node.line.is_listed() {
            self.lines.insert(path.clone(), (), path_order(path));
        }
        match node.kind {
            Kind::Persistent => {}
            Kind::Ephemeral(session) => {
                let order = ephemeral_order(session, place);
                self.ephemerals.insert((session, key.clone()), (), order);
                match self.owners.get_mut(session_order(session)) {
                    Some(count) => *count += 1,
                    None => drop(self.owners.insert(session, 1, session_order(session))),
                }
            }
            Kind::Container | Kind::Ttl { .. } => {
                self.transient.insert(path.clone(), (), path_order(path));
            }
        }
        if let Some(of) = quota::path_of_limits(path) {
            self.quotas.insert(of.into(), (), path_order(of));
        }
        let earlier = self.nodes.insert(key, node, place.order());
        debug_assert!(earlier.is_none(), "a znode is put over another");
    }

    /// Takes a znode out. Its parent's fields are the caller's to change.
    pub(crate) fn take(&mut self, place: Place<'_>) -> (Key, Arc<Znode>) {
        let taken = self.nodes.remove(place.order());
        let (key, node) = taken.expect("only a znode that was found is taken");
        if stands_in_line(key.name(), &node) {
            self.in_line.remove(line::order(key.place()));
        }
        let path = key.path();
        self.bytes -= (path.len() + node.data_len()) as u64;
        if node.line.is_listed() {
            self.lines.remove(path_order(path));
        }
        match node.kind {
            Kind::Persistent => {}
            Kind::Ephemeral(session) => {
                self.ephemerals.remove(ephemeral_order(session, key.place()));
                let count = self.owners.get_mut(session_order(session));
                let count = count.expect("an owner is counted");
                *count -= 1;
                if *count == 0 {
                    self.owners.remove(session_order(session));
                }
            }
            Kind::Container | Kind::Ttl { .. } => {
                self.transient.remove(path_order(path));
            }
        }
        if let Some(of) = quota::path_of_limits(path) {
            self.quotas.remove(path_order(of));
        }
        (key, node)
    }

    /// Changes a znode, but not its kind.
    pub(crate) fn change(&mut self, place: Place<'_>, change: impl FnOnce(&mut Znode)) {
        let found = self.nodes.entry(place.order());
        let (key, node) = found.expect("only a znode that was found is changed");
        let node = Arc::make_mut(node);
        let (bytes, line) = (node.data_len(), node.line);
        change(node);
        self.bytes += node.data_len() as u64;
        self.bytes -= bytes as u64;
        if node.line != line {
            let news = node.line.settle().map(|news| (news, key.path().clone()));
            self.follow_line(news);
        }
    }

    /// Makes a znode again what it was.
    fn restore(&mut self, place: Place<'_>, mut before: Arc<Znode>) {
        let found = self.nodes.entry(place.order());
        let (key, node) = found.expect("what was changed is there until that is undone");
        self.bytes += before.data_len() as u64;
        self.bytes -= node.data_len() as u64;
        if node.line != before.line {
            // Only the count is undone.
            let restored = &mut Arc::make_mut(&mut before).line;
            *restored = restored.listed_as(node.line);
            let news = restored.settle().map(|news| (news, key.path().clone()));
            *node = before;
            self.follow_line(news);
        } else {
            *node = before;
        }
    }
}

fn path_order(sought: &str) -> impl Fn(&Arc<str>) -> Ordering {
    move |path| (**path).cmp(sought)
}

fn session_order(sought: SessionId) -> impl Fn(&SessionId) -> Ordering {
    move |session| session.cmp(&sought)
}

fn ephemeral_order(session: SessionId, place: Place<'_>) -> impl Fn(&(SessionId, Key)) -> Ordering {
    let order = place.order();
    move |(owner, key)| owner.cmp(&session).then_with(|| order(key))
}
