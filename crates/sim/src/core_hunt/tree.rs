//! What clients do to the tree of znodes, and the book that is kept of it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use lockkeeper_core::{
    AclRef, Command, Event, IdRef, NodeChange, NodeKind, Reply, SessionId, StateMachine, Tree,
    TreeError, TreeOp, TreeReply,
};

use crate::Chance;

/// A client's next command on the tree: mostly one operation, sometimes several.
pub(super) fn command(
    (session, connection): (SessionId, u64),
    chance: &mut Chance,
    state: &StateMachine,
) -> Command<'static> {
    let tree = state.tree();
    let count = *chance.pick(&[1, 1, 1, 1, 2, 3, 4]);
    Command::Tree {
        session,
        connection,
        ids: if chance.one_in(4) { vec![JO] } else { Vec::new() },
        enforce_quota: chance.one_in(2),
        ops: (0..count).map(|_| operation(chance, tree)).collect(),
    }
}

/// The leader collects what has outlived its use, or believes so.
pub(super) fn collect(chance: &mut Chance, state: &StateMachine) -> Command<'static> {
    let due = state.tree().collectable(state.stamp(), 1);
    let is_due = |path: &&&str| due.first().is_some_and(|due| **due == ***path);
    let path = PLACES.iter().find(is_due).unwrap_or_else(|| chance.pick(&PLACES));
    Command::CollectNode { path }
}

fn operation(chance: &mut Chance, tree: &Tree) -> TreeOp<'static> {
    let version = *chance.pick(&[-1, -1, -1, 0, 1]);
    let data = *chance.pick(&[None, Some(&b""[..]), Some(b"data"), Some(b"some more data")]);
    let path = some_path(chance, tree);
    match chance.below(16) {
        0..=7 => create(chance, tree, data),
        8..=10 => TreeOp::Delete { path, version },
        11 | 12 => TreeOp::SetData { path, data, version },
        13 => TreeOp::SetAcl { path, acl: acl(chance), version },
        14 => TreeOp::Check { path, version },
        _ if chance.one_in(4) => TreeOp::Fail(TreeError::Unimplemented),
        _ => quota(chance),
    }
}

fn create(chance: &mut Chance, tree: &Tree, data: Option<&'static [u8]>) -> TreeOp<'static> {
    let sequential = chance.one_in(3);
    let path = match sequential {
        true => *chance.pick(&["/a/n-", "/a/b/n-", "/q/n-", "/a/", "n-"]),
        // Mostly the first that is missing.
        false if chance.one_in(3) => *chance.pick(&PLACES),
        false => PLACES.iter().find(|path| tree.node(path).is_none()).unwrap_or(&"/a"),
    };
    let ttl = NodeKind::Ttl { ms: *chance.pick(&[1, 50, 5_000, 0]) };
    let kinds =
        [NodeKind::Persistent, NodeKind::Ephemeral, NodeKind::Ephemeral, NodeKind::Container, ttl];
    // What others are to be made below is seldom ephemeral.
    let is_deep = path.matches('/').count() > 1;
    let kind = *chance.pick(if is_deep { &kinds } else { &kinds[..1] });
    TreeOp::Create { path, data, acl: acl(chance), kind, sequential }
}

/// A quota on `/q`: its limits, and what is counted.
fn quota(chance: &mut Chance) -> TreeOp<'static> {
    let path = *chance.pick(&[
        "/zookeeper/quota/q",
        "/zookeeper/quota/q/zookeeper_limits",
        "/zookeeper/quota/q/zookeeper_stats",
    ]);
    if chance.one_in(5) {
        return TreeOp::Delete { path, version: -1 };
    }
    let data = Some(&b"count=1,bytes=5=;byteHardLimit=20;countHardLimit=4"[..]);
    TreeOp::Create { path, data, acl: vec![OPEN], kind: NodeKind::Persistent, sequential: false }
}

fn acl(chance: &mut Chance) -> Vec<AclRef<'static>> {
    match chance.below(16) {
        0 => Vec::new(),
        1 => vec![AclRef { perms: 31, id: JO }],
        2 => vec![AclRef { perms: 1, ..OPEN }, AclRef { perms: 30, id: JO }],
        _ => vec![OPEN],
    }
}

/// Mostly one where there is a znode.
fn some_path(chance: &mut Chance, tree: &Tree) -> &'static str {
    if !chance.one_in(4) {
        let all = PLACES.iter().chain(&**SEQUENCE).copied();
        let there: Vec<_> =
            all.filter(|path| path.len() > 1 && tree.node(path).is_some()).collect();
        if !there.is_empty() {
            return chance.pick::<&str>(&there);
        }
    }
    match chance.one_in(2) {
        true => chance.pick::<&str>(&SEQUENCE),
        false => chance.pick::<&str>(&PLACES),
    }
}

/// What is known of the tree by events and replies alone.
pub(super) struct Book {
    /// Every znode, and its owner.
    nodes: BTreeMap<Arc<str>, Option<SessionId>>,
    /// By parent: the newest sequential number in its life.
    numbers: BTreeMap<String, u64>,
}

impl Default for Book {
    /// Of a new cluster.
    fn default() -> Self {
        let fixed = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
        let nodes = fixed.map(|path| (path.into(), None)).into();
        Self { nodes, numbers: BTreeMap::new() }
    }
}

impl Book {
    /// Takes in a command, or says what can't be.
    pub(super) fn take(
        &mut self,
        command: &Command<'_>,
        reply: &Reply,
        events: &[Event],
        tree: &Tree,
    ) -> Result<(), String> {
        for event in events {
            match event {
                Event::Node { path, change: NodeChange::Created, session, .. } => {
                    if self.nodes.insert(path.clone(), *session).is_some() {
                        return Err(format!("{path} is made twice"));
                    }
                    self.note_number(command, path)?;
                }
                Event::Node { path, change: NodeChange::Deleted, session, .. } => {
                    if self.nodes.remove(path) != Some(*session) {
                        return Err(format!("{path} is gone, but was not there, or another's"));
                    }
                    self.numbers.remove(&**path);
                }
                Event::Node { path, change: NodeChange::DataChanged, session, .. }
                    if self.nodes.get(path) != Some(session) =>
                {
                    return Err(format!("{path} is set, but isn't there, or another's"));
                }
                Event::SessionEnded { session, .. } => {
                    let left = self.nodes.iter().find(|(_, owner)| **owner == Some(*session));
                    if let Some((path, _)) = left {
                        return Err(format!("{path} outlives its session"));
                    }
                    if tree.ephemerals(*session).next().is_some() {
                        return Err("a session that ended owns znodes".to_owned());
                    }
                }
                _ => {}
            }
        }
        match reply {
            Reply::Tree(replies) => judge_replies(command, replies, events),
            _ => Ok(()),
        }
    }

    /// The name of a sequential znode is new in its parent's life, and greater than those before.
    fn note_number(&mut self, command: &Command<'_>, path: &str) -> Result<(), String> {
        let Command::Tree { ops, .. } = command else { return Ok(()) };
        let is_own = |op: &TreeOp<'_>| match *op {
            TreeOp::Create { path: prefix, sequential: true, .. } => {
                path.strip_prefix(prefix).is_some_and(|number| number.len() == DIGITS)
            }
            _ => false,
        };
        if !ops.iter().any(is_own) {
            return Ok(());
        }
        let (parent, _) = path.rsplit_once('/').unwrap_or_default();
        let number = path[path.len() - DIGITS..].parse().map_err(|_| format!("{path}?"))?;
        match self.numbers.insert(parent.to_owned(), number) {
            Some(before) if before >= number => Err(format!("{path} comes after {before}")),
            _ => Ok(()),
        }
    }

    /// The tree is what the book says.
    pub(super) fn compare(&self, tree: &Tree) -> Result<(), String> {
        let missing = self.nodes.iter().find(|(path, owner)| {
            tree.node(path).is_none_or(|node| node.stat.ephemeral_owner != **owner)
        });
        if let Some((path, owner)) = missing {
            return Err(format!("{path} should be there, of {owner:?}"));
        }
        let expected = self.nodes.len();
        if tree.len() == expected {
            Ok(())
        } else {
            Err(format!("{} znodes are there, and {expected} should be", tree.len()))
        }
    }

    /// All sessions are over.
    pub(super) fn restore(&mut self) {
        self.nodes.retain(|_, owner| owner.is_none());
    }
}

/// Each operation that changes something is told, in order, and nothing else is.
fn judge_replies(
    command: &Command<'_>,
    replies: &[TreeReply],
    events: &[Event],
) -> Result<(), String> {
    let Command::Tree { ops, .. } = command else { return Err("nobody asked".to_owned()) };
    let told = events.iter().filter_map(|event| match event {
        Event::Node { path, change, .. } => Some((&**path, *change)),
        _ => None,
    });
    let done = ops.iter().zip(replies).filter_map(|(op, reply)| match (op, reply) {
        (_, TreeReply::Created { path, .. }) => Some((&**path, NodeChange::Created)),
        (TreeOp::Delete { path, .. }, TreeReply::Deleted) => Some((*path, NodeChange::Deleted)),
        (TreeOp::SetData { path, .. }, TreeReply::DataSet { .. }) => {
            Some((*path, NodeChange::DataChanged))
        }
        _ => None,
    });
    let is_told = ops.len() == replies.len() && done.eq(told);
    if is_told { Ok(()) } else { Err(format!("{replies:?} are told as {events:?}")) }
}

const JO: IdRef<'static> = IdRef { scheme: "digest", id: "jo:x" };

const OPEN: AclRef<'static> = AclRef { perms: 31, id: IdRef { scheme: "world", id: "anyone" } };

/// Where clients make znodes.
const PLACES: [&str; 9] =
    ["/a", "/a/b", "/a/b", "/a/b/c", "/q", "/q/x", "/a//b", "/zookeeper/config", "/"];

/// Of a sequential number.
const DIGITS: usize = 10;

/// What sequential znodes are called at first.
static SEQUENCE: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let names = ["/a/n-", "/a/b/n-", "/q/n-"]
        .into_iter()
        .flat_map(|prefix| (0..12).map(move |number| &*format!("{prefix}{number:010}").leak()));
    names.collect()
});
