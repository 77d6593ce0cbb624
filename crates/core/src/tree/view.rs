//! Queries: what the tree looks like from outside.

use std::sync::Arc;

use super::acl::NodeAcl;
use super::node::{Kind, Znode};
use super::path::{Place, ROOT};
use super::terms::{IdRef, NodeKind, Stat};
use super::{Tree, ephemeral_order};
use crate::{SessionId, Stamp};

/// One znode as a query shows it.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Where it is, as it is stored, for sharing.
    pub path: &'a Arc<str>,
    /// Its data; `None`: null.
    pub data: Option<&'a [u8]>,
    /// What else is known of it.
    pub stat: Stat,
    /// Who may what.
    pub acl: &'a NodeAcl,
    /// What ends it.
    pub kind: NodeKind,
}

impl Tree {
    /// The znode at `path`. No path is refused: where there can be none, there is none.
    #[must_use]
    pub fn node(&self, path: &str) -> Option<NodeView<'_>> {
        let (key, node) = self.nodes.get(Place::of(path)?.order())?;
        Some(NodeView {
            path: key.path(),
            data: node.data.as_deref(),
            stat: node.stat(),
            acl: &node.acl,
            kind: match node.kind {
                Kind::Persistent => NodeKind::Persistent,
                Kind::Ephemeral(_) => NodeKind::Ephemeral,
                Kind::Container => NodeKind::Container,
                Kind::Ttl { ms } => NodeKind::Ttl { ms },
            },
        })
    }

    /// Whether somebody with these ids may do (one of) `perms` with the znode at `path`; `None` if
    /// there is none.
    #[must_use]
    pub fn may(&self, path: &str, ids: &[IdRef<'_>], perms: i32) -> Option<bool> {
        let node = self.at(Place::of(path)?)?;
        Some(node.acl.allows(ids, perms))
    }

    /// The names of the children of the znode at `path`, in order; none if it isn't there.
    pub fn children<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let start = Place::before_children(path);
        let items = self.nodes.iter_from(start.order());
        let children = items.take_while(move |(key, _)| key.place().parent == start.parent);
        // The root is listed among its own children, but has no name.
        children.map(|(key, _)| key.name()).filter(|name| !name.is_empty())
    }

    /// How many znodes there are below the one at `path`. Linear in them, but for the root.
    #[must_use]
    pub fn descendants(&self, path: &str) -> usize {
        if path == ROOT {
            return self.len() - 1;
        }
        let mut count = 0_usize;
        self.walk(path, |_| count += 1);
        count.saturating_sub(1)
    }

    /// The paths of a session's ephemeral znodes, in their order as text.
    pub fn ephemerals(&self, session: SessionId) -> impl Iterator<Item = &Arc<str>> {
        let items = self.ephemerals.iter_from(ephemeral_order(session, ""));
        let own = items.take_while(move |((owner, _), ())| *owner == session);
        own.map(|((_, path), ())| path)
    }

    /// How many ephemeral znodes a session has.
    #[must_use]
    pub fn ephemeral_count_of(&self, session: SessionId) -> usize {
        self.owners.get(super::session_order(session)).map_or(0, |(_, count)| *count)
    }

    /// The sessions that have ephemeral znodes, and how many, in the order of their ids.
    pub fn owners(&self) -> impl Iterator<Item = (SessionId, usize)> {
        self.owners.iter().map(|(&session, &count)| (session, count))
    }

    /// Ephemeral znodes of all sessions.
    #[must_use]
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.len()
    }

    /// All znodes, the root among them.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of all data and paths.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.bytes
    }

    /// Containers and znodes with a time to live that have outlived their use, at most `count_max`:
    /// what is to be given to [`Command::CollectNode`](crate::Command::CollectNode). Linear in the
    /// number of such znodes, used or not.
    #[must_use]
    pub fn collectable(&self, now: Stamp, count_max: usize) -> Vec<Arc<str>> {
        let is_over = |path: &&Arc<str>| {
            let node = Place::of(path).and_then(|place| self.at(place));
            node.is_some_and(|node| node.is_collectable(now))
        };
        let paths = self.transient.iter().map(|(path, ())| path);
        paths.filter(is_over).take(count_max).cloned().collect()
    }

    /// Shows a znode and all below it. Parents come before their children.
    pub(crate) fn walk(&self, path: &str, mut show: impl FnMut(&Znode)) {
        let Some((key, node)) = Place::of(path).and_then(|place| self.nodes.get(place.order()))
        else {
            return;
        };
        show(node);
        let mut parents = vec![key.path()];
        while let Some(parent) = parents.pop() {
            let start = Place::before_children(parent);
            let items = self.nodes.iter_from(start.order());
            for (key, node) in items.take_while(|(key, _)| key.place().parent == start.parent) {
                if key.place().is_root() {
                    continue;
                }
                show(node);
                if node.child_count > 0 {
                    parents.push(key.path());
                }
            }
        }
    }

    /// Everything, parents before their children: the order of a snapshot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Znode)> {
        self.nodes.iter().map(|(key, node)| (key.path(), &**node))
    }
}
