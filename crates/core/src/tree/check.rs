//! The invariants of the tree.

use std::collections::BTreeMap;

use super::acl::bytes;
use super::node::{Kind, Znode};
use super::path::{FIXED, Key, Place, ROOT, check_znode_path};
use super::{Tree, ephemeral_order, path_order, quota, session_order};
use crate::{
    EPHEMERALS_PER_SESSION_MAX, Revision, Stamp, ZNODE_ACL_BYTES_MAX, ZNODE_DATA_BYTES_MAX,
    ZNODE_TTL_MS_MAX,
};

/// More is damage: nobody lives to see it, and counting on from it must not overflow.
const CREATED_MAX: u64 = 1 << 62;

/// What is counted on a walk over all znodes.
#[derive(Default)]
struct Counted {
    nodes: usize,
    /// Znodes with children by their own count, and by those that were seen.
    parents: usize,
    families: usize,
    ephemerals: usize,
    in_line: usize,
    lines: usize,
    transient: usize,
    quotas: usize,
    bytes: u64,
}

impl Tree {
    /// Walks all invariants, but for those that concern sessions.
    ///
    /// # Errors
    ///
    /// The first that doesn't hold, in words.
    pub(crate) fn check(&self, revision: Revision, stamp: Stamp) -> Result<(), String> {
        for path in FIXED {
            let node = Place::of(path).and_then(|place| self.at(place));
            let is_fixed = node.is_some_and(|node| node.kind == Kind::Persistent);
            ensure(is_fixed, &format!("{path} is missing, or another kind of znode"))?;
        }
        let mut counted = Counted::default();
        let mut previous: Option<&Key> = None;
        // Those whose parents share a hash lie among each other.
        let mut families = BTreeMap::new();
        for (key, node) in self.nodes.iter() {
            let place = key.place();
            let named = |broken: String| format!("znode {:?}: {broken}", key.path());
            let is_ordered = previous.is_none_or(|previous| previous.place() < place);
            ensure(is_ordered, "znodes are not in order")?;
            if previous.is_some_and(|previous| !place.is_near(previous)) {
                self.check_families(&mut families, &mut counted)?;
            }
            previous = Some(key);
            self.check_node(key, node, &mut counted).map_err(named)?;
            check_moments(node, revision, stamp).map_err(named)?;
            if !place.is_root() {
                *families.entry(place.parent).or_default() += 1;
            }
        }
        self.check_families(&mut families, &mut counted)?;
        self.check_counts(&counted)
    }

    fn check_node(&self, key: &Key, node: &Znode, counted: &mut Counted) -> Result<(), String> {
        let path = key.path();
        ensure(check_znode_path(path).is_ok(), "the path is none")?;
        ensure(self.at(key.place()).is_some(), "it isn't found where it is")?;
        ensure(node.data_len() <= ZNODE_DATA_BYTES_MAX, "more data than allowed")?;
        ensure(bytes(node.acl.iter()) <= ZNODE_ACL_BYTES_MAX, "the access list is too long")?;
        counted.nodes += 1;
        counted.bytes += (path.len() + node.data_len()) as u64;
        counted.parents += usize::from(node.child_count > 0);
        counted.lines += usize::from(node.line.is_listed());
        match node.kind {
            Kind::Persistent => {}
            Kind::Ephemeral(session) => {
                counted.ephemerals += 1;
                ensure(node.child_count == 0, "it is ephemeral and has children")?;
                let known = self.ephemerals.get(ephemeral_order(session, key.place()));
                ensure(known.is_some(), "its owner doesn't know it")?;
            }
            Kind::Container | Kind::Ttl { .. } => {
                counted.transient += 1;
                let known = self.transient.get(path_order(path));
                ensure(known.is_some(), "it would never be collected")?;
            }
        }
        if let Some(is_known) = self.is_in_line(key, node) {
            counted.in_line += 1;
            ensure(is_known, "it isn't in its line")?;
        }
        if let Kind::Ttl { ms } = node.kind {
            ensure((1..=ZNODE_TTL_MS_MAX).contains(&ms), "its time to live is out of range")?;
        }
        if let Some(of) = quota::path_of_limits(path) {
            counted.quotas += 1;
            ensure(self.quotas.get(path_order(of)).is_some(), "its quota isn't known")?;
        }
        // Those that are there from the beginning were never made.
        let fixed = match &**path {
            ROOT => 1,
            "/zookeeper" => 2,
            _ => 0,
        };
        let most = node.created.saturating_add(fixed);
        ensure(node.created <= CREATED_MAX, "children were made too often")?;
        ensure(u64::from(node.child_count) <= most, "more children than were ever made")
    }

    /// Compares the children that were seen, by their parents' paths, with what these count.
    fn check_families(
        &self,
        families: &mut BTreeMap<&str, u32>,
        counted: &mut Counted,
    ) -> Result<(), String> {
        while let Some((path, count)) = families.pop_first() {
            counted.families += 1;
            let place = Place::of(if path.is_empty() { ROOT } else { path });
            let parent = place.and_then(|place| self.at(place));
            let parent = parent.ok_or_else(|| format!("the parent {path:?} is missing"))?;
            ensure(parent.owner().is_none(), &format!("{path:?} is ephemeral and has children"))?;
            let is_counted = parent.child_count == count;
            ensure(is_counted, &format!("the children of {path:?} are miscounted"))?;
        }
        Ok(())
    }

    fn check_counts(&self, counted: &Counted) -> Result<(), String> {
        ensure(counted.families == counted.parents, "parents are miscounted")?;
        let is_counted = counted.nodes == self.nodes.len()
            && counted.ephemerals == self.ephemerals.len()
            && counted.in_line == self.in_line.len()
            && counted.transient == self.transient.len()
            && counted.quotas == self.quotas.len()
            && counted.bytes == self.bytes;
        ensure(is_counted, "znodes or their bytes are miscounted")?;
        let mut owned = 0;
        for (&session, &count) in self.owners.iter() {
            let is_counted = count > 0 && self.ephemerals(session).count() == count;
            ensure(is_counted, "a session's ephemeral znodes are miscounted")?;
            ensure(count <= EPHEMERALS_PER_SESSION_MAX, "more ephemeral znodes than allowed")?;
            ensure(self.owners.get(session_order(session)).is_some(), "an owner is misplaced")?;
            owned += count;
        }
        ensure(owned == counted.ephemerals, "an owner of ephemeral znodes is forgotten")?;
        let mut in_line = 0;
        for (path, count) in self.lines("") {
            let is_counted = count > 0 && self.line(path).count() == count;
            ensure(is_counted, "a line is miscounted")?;
            in_line += count;
        }
        let is_known = in_line == counted.in_line && counted.lines == self.lines.len();
        ensure(is_known, "a line is forgotten")
    }
}

fn check_moments(node: &Znode, revision: Revision, stamp: Stamp) -> Result<(), String> {
    let newest = node.czxid.max(node.mzxid).max(node.pzxid);
    ensure(newest <= revision, "a zxid is ahead of the revision")?;
    let is_first = node.czxid <= node.mzxid && node.czxid <= node.pzxid;
    ensure(is_first, "it was changed before it was made")?;
    let is_past = node.ctime <= node.mtime && node.mtime <= stamp;
    ensure(is_past, "it was made or set after the newest stamp")
}

fn ensure(holds: bool, broken: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{A, busy_state};

    type Forgery = (fn(&mut Tree), &'static str);

    /// A way to break each invariant, and the words in which it is found.
    const FORGERIES: &[Forgery] = &[
        (|tree| change(tree, "/own", have_one_more), "are miscounted"),
        (|tree| change(tree, "/own/brief", have_one_more), "parents are miscounted"),
        (|tree| change(tree, "/queue", |node| node.created = 1), "than were ever made"),
        (|tree| change(tree, "/queue", |node| node.created = u64::MAX), "made too often"),
        (|tree| change(tree, "/own", |node| node.czxid.0 = 1 << 40), "ahead of the revision"),
        (|tree| change(tree, "/own", |node| node.pzxid.0 = 1), "before it was made"),
        (|tree| change(tree, "/own", |node| node.mtime.0 = 1 << 40), "after the newest stamp"),
        (|tree| change(tree, "/own", |node| node.kind = Kind::Container), "never be collected"),
        (|tree| change(tree, "/own/brief", |node| node.kind = Kind::Persistent), "miscounted"),
        (|tree| change(tree, "/own/brief", |node| node.kind = Kind::Ttl { ms: 0 }), "out of range"),
        (|tree| change(tree, "/own", |node| node.kind = Kind::Ephemeral(A)), "has children"),
        (|tree| change(tree, "/zookeeper", |node| node.kind = Kind::Container), "another kind"),
        (|tree| tree.bytes += 1, "their bytes are miscounted"),
        (|tree| drop(tree.quotas.remove(path_order("/own"))), "its quota isn't known"),
        (|tree| _ = tree.owners.remove(session_order(A)), "is forgotten"),
        (|tree| *tree.owners.get_mut(session_order(A)).unwrap() += 1, "a session's ephemeral"),
        (|tree| drop(tree.lines.remove(path_order("/queue"))), "a line is forgotten"),
        (|tree| change(tree, "/queue", |node| node.line.join(true)), "a line is miscounted"),
        (leave_the_line, "it isn't in its line"),
        (lose_a_parent, "the parent \"/own\" is missing"),
        (|tree| put(tree, "/own/b//c"), "the path is none"),
        (|tree| put(tree, "/queue/lock-0000000000/x"), "is ephemeral and has children"),
    ];

    #[test]
    fn a_forged_violation_is_named() {
        let state = busy_state();
        state.check().unwrap();
        for (forge, named) in FORGERIES {
            let mut tree = state.tree.clone();
            forge(&mut tree);
            let broken = tree.check(state.revision, state.stamp).expect_err(named);
            assert!(broken.contains(named), "forged {named:?}, found {broken:?}");
        }
        assert!(state.tree.check(state.revision, state.stamp).is_ok(), "a clone changed it");
    }

    fn change(tree: &mut Tree, path: &str, change: impl FnOnce(&mut Znode)) {
        tree.change(Place::of(path).unwrap(), change);
    }

    fn have_one_more(node: &mut Znode) {
        node.created += 1;
        node.child_count += 1;
    }

    fn put(tree: &mut Tree, path: &str) {
        tree.put(Key::new(path.into()).unwrap(), Arc::new(Znode::fixed()));
    }

    fn leave_the_line(tree: &mut Tree) {
        let first = tree.line("/queue").next().unwrap().clone();
        tree.in_line.remove(super::super::line::order(Place::of(&first).unwrap()));
    }

    fn lose_a_parent(tree: &mut Tree) {
        tree.take(Place::of("/own").unwrap());
        change(tree, "/", |root| root.child_count -= 1);
    }
}
