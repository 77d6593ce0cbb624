//! What operations do: checked in ZooKeeper's order, done in three strokes, undone if need be.

use std::borrow::Cow;
use std::sync::Arc;

use super::Tree;
use super::acl::{NodeAcl, perms};
use super::ensemble::ENSEMBLE_PATH;
use super::line::stands_in_line;
use super::node::{Kind, Znode};
use super::path::{FIXED, Key, Place, ROOT, check_znode_path, last_slash};
use super::quota::{self, Figures};
use super::terms::{AclRef, IdRef, NodeChange, NodeKind, TreeError, TreeOp, TreeReply};
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::{
    EPHEMERALS_PER_SESSION_MAX, Event, Revision, SessionId, Stamp, ZNODE_DATA_BYTES_MAX,
    ZNODE_PATH_BYTES_MAX, ZNODE_TTL_MS_MAX,
};

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) session: SessionId,
    pub(crate) ids: &'a [IdRef<'a>],
    /// Hard quotas are enforced, and not only counted.
    pub(crate) enforce_quota: bool,
}

/// The tree in the hands of one command.
pub(crate) struct Writer<'a> {
    pub(crate) tree: &'a mut Tree,
    /// The command's revision.
    pub(crate) zxid: Revision,
    pub(crate) at: Stamp,
    pub(crate) events: &'a mut Vec<Event>,
}

/// What was done, in order, for undoing it.
#[derive(Default)]
struct Undo {
    strokes: Vec<Stroke>,
    /// Nothing can fail any more that would need it.
    is_off: bool,
}

enum Stroke {
    Put(Arc<str>),
    Taken(Key, Arc<Znode>),
    Changed(Arc<str>, Arc<Znode>),
}

/// What a new znode is to be.
struct New<'a> {
    path: &'a str,
    data: Option<&'a [u8]>,
    acl: &'a [AclRef<'a>],
    kind: NodeKind,
    sequential: bool,
}

impl Writer<'_> {
    /// Executes operations in order, all of them or none.
    ///
    /// # Errors
    ///
    /// The first that fails, by its place, and why. Then nothing has changed, and there are no
    /// events.
    pub(crate) fn run(
        &mut self,
        ask: Asker<'_>,
        ops: &[TreeOp<'_>],
    ) -> Result<Vec<TreeReply>, (usize, TreeError)> {
        let events_before = self.events.len();
        let mut undo = Undo::default();
        let mut replies = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            // An operation that fails has changed nothing, so the last one needs no undoing.
            undo.is_off = index + 1 == ops.len();
            match self.execute(ask, op, &mut undo) {
                Ok(reply) => replies.push(reply),
                Err(error) => {
                    self.undo(undo);
                    self.events.truncate(events_before);
                    return Err((index, error));
                }
            }
        }
        Ok(replies)
    }

    /// Removes all ephemeral znodes of a session, in the order of their paths.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        let mut undo = Undo { is_off: true, ..Undo::default() };
        let mut paths: Vec<Arc<str>> = self.tree.ephemerals(session).cloned().collect();
        paths.sort_unstable();
        #[cfg(feature = "mutations")]
        let paths: Vec<_> =
            paths.into_iter().skip(usize::from(mutated(Mutation::KeepEphemeral))).collect();
        for path in paths {
            self.remove(Place::of(&path).expect("it is in the tree"), &mut undo);
        }
    }

    /// Puts the list of members into its znode, with its version behind it: the zxid of this very
    /// change. An empty list has none.
    pub(crate) fn set_members(&mut self, lines: &str) {
        let place = Place::of(ENSEMBLE_PATH).expect("it has a slash");
        let (zxid, at) = (self.zxid, self.at);
        let data = match lines {
            "" => String::new(),
            lines => format!("{lines}version={:x}", zxid.0),
        };
        let mut undo = Undo { is_off: true, ..Undo::default() };
        self.change(place, &mut undo, |node| {
            node.data = Some(data.as_bytes().into());
            // To ZooKeeper, the list's version is its zxid, and the znode's says nothing.
            node.version = -1;
            node.mzxid = zxid;
            node.mtime = at;
        });
        let (key, node) = self.tree.nodes.get(place.order()).expect("it is always there");
        let (path, node) = (key.path().clone(), Arc::clone(node));
        self.tell(&path, NodeChange::DataChanged, &node, None);
    }

    /// Removes a container or a znode with a time to live, if its time has come.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoNode`]; [`TreeError::NotEmpty`]; [`TreeError::BadVersion`] if it is another
    /// kind of znode, or is still of use.
    pub(crate) fn collect(&mut self, path: &str) -> Result<(), TreeError> {
        let place = Place::of(path).ok_or(TreeError::NoNode)?;
        let node = self.tree.at(place).ok_or(TreeError::NoNode)?;
        if node.child_count > 0 {
            return Err(TreeError::NotEmpty);
        }
        if !node.is_collectable(self.at) {
            return Err(TreeError::BadVersion);
        }
        self.remove(place, &mut Undo { is_off: true, ..Undo::default() });
        Ok(())
    }

    fn execute(
        &mut self,
        ask: Asker<'_>,
        op: &TreeOp<'_>,
        undo: &mut Undo,
    ) -> Result<TreeReply, TreeError> {
        match *op {
            TreeOp::Create { path, data, ref acl, kind, sequential } => {
                self.create(ask, &New { path, data, acl, kind, sequential }, undo)
            }
            TreeOp::Delete { path, version } => self.delete(ask, path, version, undo),
            TreeOp::SetData { path, data, version } => {
                self.set_data(ask, path, data, version, undo)
            }
            TreeOp::SetAcl { path, ref acl, version } => {
                self.set_acl(ask, path, acl, version, undo)
            }
            TreeOp::Check { path, version } => {
                check_znode_path(path)?;
                let node = self.find(path)?;
                allow(node, ask, perms::READ)?;
                expect_version(node.version, version)?;
                Ok(TreeReply::Checked)
            }
            TreeOp::Fail(error) => Err(error),
        }
    }

    fn create(
        &mut self,
        ask: Asker<'_>,
        new: &New<'_>,
        undo: &mut Undo,
    ) -> Result<TreeReply, TreeError> {
        check_ttl(new.kind)?;
        check_size(new.path, new.data)?;
        let above = place_above(new.path)?;
        let parent = self.tree.at(above);
        // The list's own form is looked at before the parent is.
        let like = parent.map(|parent| parent.acl.clone()).unwrap_or_default();
        let acl = NodeAcl::new(new.acl, &like)?;
        let parent = parent.ok_or(TreeError::NoNode)?;
        allow(parent, ask, perms::CREATE)?;
        let path = if new.sequential {
            Cow::Owned(format!("{}{:010}", new.path, sequence_number(parent)))
        } else {
            Cow::Borrowed(new.path)
        };
        check_znode_path(&path)?;
        let place = Place::of(&path).ok_or(TreeError::BadArguments)?;
        if self.tree.at(place).is_some() {
            return Err(TreeError::NodeExists);
        }
        if parent.owner().is_some() {
            return Err(TreeError::NoChildrenForEphemerals);
        }
        if ask.enforce_quota {
            self.tree.check_quota(&path, 1, len(new.data))?;
        }
        let is_ephemeral = new.kind == NodeKind::Ephemeral;
        if is_ephemeral && self.tree.ephemeral_count_of(ask.session) >= EPHEMERALS_PER_SESSION_MAX {
            return Err(TreeError::QuotaExceeded);
        }

        let kind = Kind::of(new.kind, ask.session);
        let node = Znode::new(new.data, acl, kind, self.zxid, self.at);
        let stat = node.stat();
        let path: Arc<str> = path.into();
        self.tell(&path, NodeChange::Created, &node, Some(like));
        let key = Key::new(path.clone()).expect("a path that was checked has a slash");
        let stands = stands_in_line(key.name(), &node);
        undo.note(|| Stroke::Put(path.clone()));
        self.tree.put(key, Arc::new(node));
        let zxid = self.zxid;
        self.change(above, undo, |parent| {
            parent.created += 1;
            parent.child_count += 1;
            parent.line.join(stands);
            parent.pzxid = zxid;
        });
        self.count_new(&path, len(new.data), undo);
        Ok(TreeReply::Created { path, stat })
    }

    fn delete(
        &mut self,
        ask: Asker<'_>,
        path: &str,
        version: i32,
        undo: &mut Undo,
    ) -> Result<TreeReply, TreeError> {
        let above = place_above(path)?;
        if FIXED.contains(&path) {
            return Err(TreeError::BadArguments);
        }
        let parent = self.tree.at(above).ok_or(TreeError::NoNode)?;
        allow(parent, ask, perms::DELETE)?;
        let place = Place::of(path).ok_or(TreeError::NoNode)?;
        let node = self.tree.at(place).ok_or(TreeError::NoNode)?;
        expect_version(node.version, version)?;
        if node.child_count > 0 {
            return Err(TreeError::NotEmpty);
        }
        self.remove(place, undo);
        Ok(TreeReply::Deleted)
    }

    fn set_data(
        &mut self,
        ask: Asker<'_>,
        path: &str,
        data: Option<&[u8]>,
        version: i32,
        undo: &mut Undo,
    ) -> Result<TreeReply, TreeError> {
        check_znode_path(path)?;
        check_size(path, data)?;
        let node = self.find(path)?;
        allow(node, ask, perms::WRITE)?;
        let growth = len(data) - node.data_len() as i64;
        if ask.enforce_quota {
            self.tree.check_quota(path, 0, growth)?;
        }
        expect_version(node.version, version)?;
        let place = Place::of(path).expect("it was found");
        let (zxid, at) = (self.zxid, self.at);
        self.change(place, undo, |node| {
            node.data = data.map(Into::into);
            node.version = node.version.wrapping_add(1);
            node.mzxid = zxid;
            node.mtime = at;
        });
        self.count(path, 0, growth, undo);
        let (key, node) = self.tree.nodes.get(place.order()).expect("it was found");
        let (path, node) = (key.path().clone(), Arc::clone(node));
        self.tell(&path, NodeChange::DataChanged, &node, None);
        Ok(TreeReply::DataSet { stat: node.stat() })
    }

    fn set_acl(
        &mut self,
        ask: Asker<'_>,
        path: &str,
        list: &[AclRef<'_>],
        version: i32,
        undo: &mut Undo,
    ) -> Result<TreeReply, TreeError> {
        check_znode_path(path)?;
        let place = Place::of(path).ok_or(TreeError::BadArguments)?;
        let parent = place.above().and_then(|above| self.tree.at(above));
        let like = parent.map(|parent| parent.acl.clone()).unwrap_or_default();
        let acl = NodeAcl::new(list, &like)?;
        let node = self.find(path)?;
        allow(node, ask, perms::ADMIN)?;
        expect_version(node.aversion, version)?;
        self.change(place, undo, |node| {
            node.acl = acl;
            node.aversion = node.aversion.wrapping_add(1);
        });
        Ok(TreeReply::AclSet { stat: self.find(path)?.stat() })
    }

    // ------------------------------------------------------------------------------------- parts

    fn find(&self, path: &str) -> Result<&Arc<Znode>, TreeError> {
        let place = Place::of(path).ok_or(TreeError::NoNode)?;
        self.tree.at(place).ok_or(TreeError::NoNode)
    }

    /// Removes a znode that is there and has no children.
    fn remove(&mut self, place: Place<'_>, undo: &mut Undo) {
        let above = place.above().expect("only the root has none, and it stays");
        let (key, node) = self.tree.take(place);
        let (path, bytes) = (key.path().clone(), node.data_len() as i64);
        let (stood, zxid) = (stands_in_line(key.name(), &node), self.zxid);
        let mut acl_above = None;
        self.change(above, undo, |parent| {
            parent.child_count -= 1;
            parent.line.leave(stood);
            parent.pzxid = zxid;
            acl_above = Some(parent.acl.clone());
        });
        self.tell(&path, NodeChange::Deleted, &node, acl_above);
        undo.note(|| Stroke::Taken(key, node));
        self.count(&path, -1, -bytes, undo);
    }

    fn change(&mut self, place: Place<'_>, undo: &mut Undo, change: impl FnOnce(&mut Znode)) {
        if !undo.is_off {
            let (key, node) = self.tree.nodes.get(place.order()).expect("the caller found it");
            undo.strokes.push(Stroke::Changed(key.path().clone(), Arc::clone(node)));
        }
        self.tree.change(place, change);
    }

    /// A znode was made: it may be a quota's.
    fn count_new(&mut self, path: &str, bytes: i64, undo: &mut Undo) {
        if let Some(of) = quota::path_of_stats(path) {
            let (count, bytes) = self.tree.sum_below(of);
            let place = Place::of(path).expect("it was just made");
            self.change(place, undo, |node| node.data = Some(Figures::text(count, bytes)));
        }
        self.count(path, 1, bytes, undo);
    }

    /// Counts towards the quota above `path`, if there is one.
    fn count(&mut self, path: &str, count: i64, bytes: i64, undo: &mut Undo) {
        let Some(of) = self.tree.quota_above(path) else { return };
        let stats = quota::stats(of);
        let place = Place::of(&stats).expect("it has a slash");
        let Some(node) = self.tree.at(place) else { return };
        let now = Figures::read(node.data.as_deref());
        let text = Figures::text(now.count.saturating_add(count), now.bytes.saturating_add(bytes));
        self.change(place, undo, |node| node.data = Some(text));
    }

    fn tell(
        &mut self,
        path: &Arc<str>,
        change: NodeChange,
        node: &Znode,
        acl_above: Option<NodeAcl>,
    ) {
        self.events.push(Event::Node {
            path: path.clone(),
            change,
            session: node.owner(),
            zxid: self.zxid,
            acl: node.acl.clone(),
            acl_above,
        });
    }

    fn undo(&mut self, undo: Undo) {
        #[cfg(feature = "mutations")]
        if mutated(Mutation::KeepHalfOfMulti) {
            return;
        }
        for stroke in undo.strokes.into_iter().rev() {
            match stroke {
                Stroke::Put(path) => {
                    self.tree.take(Place::of(&path).expect("it was put there"));
                }
                Stroke::Taken(key, node) => self.tree.put(key, node),
                Stroke::Changed(path, before) => {
                    let place = Place::of(&path).expect("it was found there");
                    self.tree.restore(place, before);
                }
            }
        }
    }
}

impl Undo {
    fn note(&mut self, stroke: impl FnOnce() -> Stroke) {
        if !self.is_off {
            self.strokes.push(stroke());
        }
    }
}

fn allow(node: &Znode, ask: Asker<'_>, perms: i32) -> Result<(), TreeError> {
    if node.acl.allows(ask.ids, perms) { Ok(()) } else { Err(TreeError::NoAuth) }
}

fn expect_version(current: i32, version: i32) -> Result<(), TreeError> {
    if version == -1 || version == current { Ok(()) } else { Err(TreeError::BadVersion) }
}

fn check_ttl(kind: NodeKind) -> Result<(), TreeError> {
    match kind {
        NodeKind::Ttl { ms } if !(1..=ZNODE_TTL_MS_MAX).contains(&ms) => {
            Err(TreeError::BadArguments)
        }
        _ => Ok(()),
    }
}

fn check_size(path: &str, data: Option<&[u8]>) -> Result<(), TreeError> {
    let is_small = path.len() <= ZNODE_PATH_BYTES_MAX
        && data.is_none_or(|data| data.len() <= ZNODE_DATA_BYTES_MAX);
    if is_small { Ok(()) } else { Err(TreeError::BadArguments) }
}

/// Where the parent of the znode at `path` is, which need not be a sound path otherwise.
fn place_above(path: &str) -> Result<Place<'_>, TreeError> {
    let slash = last_slash(path).ok_or(TreeError::BadArguments)?;
    if path.as_bytes().contains(&0) {
        return Err(TreeError::BadArguments);
    }
    let parent = if slash == 0 { ROOT } else { &path[..slash] };
    Place::of(parent).ok_or(TreeError::NoNode)
}

/// What the next sequential child is called by: how many children were made before, of any kind.
/// It wraps into negative figures, as ZooKeeper's documentation has it.
#[expect(clippy::cast_possible_truncation, reason = "it wraps")]
fn sequence_number(parent: &Znode) -> i32 {
    #[cfg(feature = "mutations")]
    if mutated(Mutation::ReuseNumbers) {
        return i32::try_from(parent.child_count).unwrap_or_default();
    }
    parent.created as i32
}

fn len(data: Option<&[u8]>) -> i64 {
    data.map_or(0, |data| data.len() as i64)
}
