//! Queries: what the tree looks like from outside.

use std::cmp::Ordering::Greater;
use std::sync::Arc;

use super::Tree;
use super::acl::NodeAcl;
use super::node::{Kind, Znode};
use super::path::{Key, Place, ROOT};
use super::terms::{IdRef, NodeKind, Stat};
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

    /// The names of the children of the znode at `path`, in an order that means nothing; none if
    /// it isn't there.
    pub fn children<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a str> {
        self.family(path).map(|(key, _)| key.name())
    }

    fn family<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (&'a Key, &'a Arc<Znode>)> {
        let start = Place::before_children(path);
        let items = self.nodes.iter_from(start.order());
        let near = items.take_while(move |(key, _)| start.is_near(key));
        // The root lies among its own children, but has no name.
        near.filter(move |(key, _)| {
            let place = key.place();
            place.parent == start.parent && !place.name.is_empty()
        })
    }

    /// The paths of all znodes below the one at `path`, parents before their children; none if it
    /// isn't there.
    pub fn descendants(&self, path: &str) -> impl Iterator<Item = &Arc<str>> {
        self.walk(path).skip(1).map(|(path, _)| path)
    }

    /// The paths of a session's ephemeral znodes, in an order that means nothing.
    pub fn ephemerals(&self, session: SessionId) -> impl Iterator<Item = &Arc<str>> {
        let items = self.ephemerals.iter_from(move |(owner, _)| owner.cmp(&session).then(Greater));
        let own = items.take_while(move |((owner, _), ())| *owner == session);
        own.map(|((_, key), ())| key.path())
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

    /// A znode and all below it, parents before their children.
    pub(crate) fn walk<'a>(
        &'a self,
        path: &str,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Znode)> {
        let top = Place::of(path).and_then(|place| self.nodes.get(place.order()));
        let mut parents: Vec<&Arc<str>> = top.iter().map(|(key, _)| key.path()).collect();
        let mut family = parents.pop().map(|path| self.family(path));
        let below = std::iter::from_fn(move || {
            loop {
                if let Some((key, node)) = family.as_mut()?.next() {
                    if node.child_count > 0 {
                        parents.push(key.path());
                    }
                    return Some((key, node));
                }
                family = Some(self.family(parents.pop()?));
            }
        });
        top.into_iter().chain(below).map(|(key, node)| (key.path(), &**node))
    }

    /// Everything, parents before their children: the order of a snapshot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Znode)> {
        self.walk(ROOT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeAcl, Revision};

    #[test]
    fn families_that_lie_among_each_other_are_told_apart() {
        let mut tree = Tree::default();
        let parents: Vec<_> = (0..8).map(|at| format!("/{at}")).collect();
        let children =
            parents.iter().flat_map(|above| (0..9).map(move |at| format!("{above}/{at}")));
        let children: Vec<_> = children.collect();
        for path in parents.iter().chain(&children) {
            let node =
                Znode::new(None, NodeAcl::default(), Kind::Persistent, Revision(1), Stamp(1));
            let key = Key::new(path.as_str().into()).unwrap();
            let above = key.clone();
            tree.put(key, Arc::new(node));
            tree.change(above.place().above().unwrap(), |parent| parent.child_count += 1);
        }
        let of = |path| {
            let mut names: Vec<_> = tree.children(path).collect();
            names.sort_unstable();
            names
        };
        for path in &parents {
            assert_eq!(of(path), ["0", "1", "2", "3", "4", "5", "6", "7", "8"], "{path}");
            assert_eq!(tree.descendants(path).count(), 9);
        }
        assert_eq!(of("/"), ["0", "1", "2", "3", "4", "5", "6", "7", "zookeeper"]);
        for none in ["/0/", "/0/0", "/none"] {
            assert_eq!(of(none), [""; 0], "{none:?}");
        }
        assert_eq!(tree.iter().count(), tree.len());
    }
}
