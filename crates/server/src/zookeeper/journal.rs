//! One log line for each transition of what looks like a lock: an ephemeral child with a number.
//!
//! The lines are `info` under the target `lockkeeper::zookeeper::lock`, and come from the leader
//! alone, as those of native locks do. `acquired` follows the recipe that all clients share, in
//! which the child with the lowest number is next; what the numbers are for is the clients' own
//! affair, so for a lock that readers share, or a queue, the line says less than it seems to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockkeeper_core::{EndReason, NodeChange, SessionId, StateMachine, sequence_number};
use lockkeeper_node::NodeHandle;
use parking_lot::Mutex;

use super::hub::parent;
use crate::limits::JOURNAL_CHILDREN_MAX;

/// What is needed to tell who is next.
pub(super) struct Journal {
    node: NodeHandle,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// By the parent's path: the numbered ephemeral children, by number and name.
    by_parent: BTreeMap<Arc<str>, BTreeSet<(u64, Arc<str>)>>,
    children: usize,
    /// Children that have gone with their session, whose end is told next.
    gone: Vec<Arc<str>>,
}

macro_rules! line {
    ($event:literal, $path:expr, $session:expr) => {
        tracing::info!(
            target: "lockkeeper::zookeeper::lock",
            idempotency_key = %key(&$path).escape_debug(),
            znode_path = %$path.escape_debug(),
            session_id = format_args!("0x{:x}", $session.0),
            event = $event,
        )
    };
}

/// What the lock is for: the last component of its own path.
fn key(path: &str) -> &str {
    parent(path).and_then(|parent| parent.rsplit('/').next()).unwrap_or("")
}

fn is_read() -> bool {
    tracing::enabled!(target: "lockkeeper::zookeeper::lock", tracing::Level::INFO)
}

impl Journal {
    pub(super) fn new(node: NodeHandle) -> Self {
        Self { node, queues: Mutex::default() }
    }

    /// A watch of a lock's child was told to a connection of `session` here.
    pub(super) fn watch_fired(&self, path: &str, session: SessionId) {
        if sequence_number(path).is_some() && is_read() {
            line!("watch_fired", path, session);
        }
    }

    pub(super) fn follow(
        &self,
        path: &Arc<str>,
        change: NodeChange,
        owner: Option<SessionId>,
        state: &StateMachine,
    ) {
        let (Some(owner), Some(number)) = (owner, sequence_number(path)) else { return };
        if change == NodeChange::DataChanged || !is_read() {
            return;
        }
        let queues = &mut *self.queues.lock();
        if !self.node.leads() {
            *queues = Queues::default();
            return;
        }
        let Some(above) = parent(path) else { return };
        match change {
            NodeChange::Created => line!("created", path, owner),
            // Why its session ended is told behind all that hung on it.
            NodeChange::Deleted if state.lease(owner).is_none() => {
                queues.gone.push(Arc::clone(path));
            }
            NodeChange::Deleted | NodeChange::DataChanged => line!("released", path, owner),
        }
        let Some(first) = queues.follow(above, (number, path), change, state) else { return };
        let owner = state.tree().node(&first).and_then(|node| node.stat.ephemeral_owner);
        if let Some(owner) = owner {
            line!("acquired", first, owner);
        }
    }

    /// A session has ended, and what hung on it is gone.
    pub(super) fn ended(&self, session: SessionId, reason: EndReason) {
        for path in std::mem::take(&mut self.queues.lock().gone) {
            match reason {
                EndReason::Closed => line!("released", path, session),
                EndReason::Expired
                | EndReason::Revoked
                | EndReason::Forced
                | EndReason::Rebooted => line!("session_expired", path, session),
            }
        }
    }
}

impl Queues {
    /// Who is first now, if that is news.
    fn follow(
        &mut self,
        above: &str,
        (number, path): (u64, &Arc<str>),
        change: NodeChange,
        state: &StateMachine,
    ) -> Option<Arc<str>> {
        let is_known = self.by_parent.contains_key(above);
        if !is_known {
            // What is learnt is the state after the whole command.
            self.learn(above, state);
        }
        let queue = self.by_parent.get_mut(above)?;
        let entry = (number, Arc::clone(path));
        let before = queue.first().cloned();
        let was = queue.len();
        if change == NodeChange::Created {
            queue.insert(entry.clone());
        } else {
            queue.remove(&entry);
        }
        self.children = self.children + queue.len() - was;
        let first = queue.first().cloned();
        if queue.is_empty() {
            self.by_parent.remove(above);
        }
        let is_news = match change {
            NodeChange::Created => first.as_ref() == Some(&entry),
            _ => before != first || (!is_known && first.as_ref().is_some_and(|f| *f > entry)),
        };
        first.filter(|_| is_news).map(|(_, path)| path)
    }

    fn learn(&mut self, above: &str, state: &StateMachine) {
        let tree = state.tree();
        if self.children + tree.line_len(above) > JOURNAL_CHILDREN_MAX {
            return;
        }
        let numbered = |path: &Arc<str>| Some((sequence_number(path)?, Arc::clone(path)));
        let queue: BTreeSet<_> = tree.line(above).filter_map(numbered).collect();
        self.children += queue.len();
        self.by_parent.insert(Arc::from(above), queue);
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        AclRef, Command, IdRef, NodeKind, OwnerRef, Reply, Secret, Stamp, TreeOp, perms,
    };

    use super::*;

    const SESSION: SessionId = SessionId(7);

    fn apply(state: &mut StateMachine, command: &Command<'_>) -> Reply {
        state.apply(Stamp(1), command, &mut Vec::new())
    }

    fn tree(state: &mut StateMachine, op: TreeOp<'_>) {
        let (session, ids) = (SESSION, Vec::new());
        let command =
            Command::Tree { session, connection: 0, ids, enforce_quota: false, ops: vec![op] };
        let reply = apply(state, &command);
        assert!(matches!(reply, Reply::Tree(_)), "{reply:?}");
    }

    fn create(state: &mut StateMachine, path: &str, kind: NodeKind) {
        let anyone = IdRef { scheme: "world", id: "anyone" };
        let acl = vec![AclRef { perms: perms::ALL, id: anyone }];
        tree(state, TreeOp::Create { path, data: None, acl, kind, sequential: false });
    }

    #[test]
    fn the_lowest_number_is_first_and_news_once() {
        let mut state = StateMachine::default();
        let (secret, owner) = (Secret([1; 16]), OwnerRef::default());
        let open = Command::OpenSession { session: SESSION, secret, ttl_ms: 5_000, owner };
        assert_eq!(apply(&mut state, &open), Reply::Done);
        create(&mut state, "/l", NodeKind::Persistent);
        create(&mut state, "/l/config0000000000", NodeKind::Persistent);
        let mut queues = Queues::default();
        let mut step = |state: &mut StateMachine, name: &str, change| {
            let path: Arc<str> = Arc::from(format!("/l/{name}"));
            if change == NodeChange::Created {
                create(state, &path, NodeKind::Ephemeral);
            } else {
                tree(state, TreeOp::Delete { path: &path, version: -1 });
            }
            let number = sequence_number(&path).unwrap();
            queues.follow("/l", (number, &path), change, state).map(|first| first[3..].to_owned())
        };
        let (created, deleted) = (NodeChange::Created, NodeChange::Deleted);
        let (a, b, c) = ("z-0000000001", "y-0000000002", "x-0000000003");
        assert_eq!(step(&mut state, a, created).as_deref(), Some(a));
        assert_eq!(step(&mut state, b, created), None);
        assert_eq!(step(&mut state, c, created), None);
        assert_eq!(step(&mut state, b, deleted), None);
        assert_eq!(step(&mut state, a, deleted).as_deref(), Some(c));
        assert_eq!(step(&mut state, c, deleted), None);
        assert_eq!(step(&mut state, a, created).as_deref(), Some(a));
    }

    #[test]
    fn a_key_is_the_name_of_the_parent() {
        assert_eq!(key("/locks/job/x-0000000001"), "job");
        assert_eq!(key("/x-0000000001"), "");
    }
}
