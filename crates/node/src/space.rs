//! Room on the disks of the logs: who is short of it, and what is refused then.
//!
//! A log grows by everybody's work, not only by that of the node's own clients. So a node refuses
//! new work at its door when its own disk is short of room, and also when the leader says so: that
//! is when the leader's disk is, or when so many voters' are that those with room are no majority.
//! Followers tell the leader of theirs, and the leader tells them what it makes of it, on the link
//! ([`crate::forward`]); the last word holds until the next one.
//!
//! A leader doesn't refuse what was taken at a door before the word came there: a batch may hold
//! releases too. What comes after the word is at most what was queued at each door,
//! [`NodeConfig::queue_bytes_max`], and goes into the reserve. Nor does a follower refuse what the
//! leader sends: it takes it from its reserve, and when even that is used up it stops, as with any
//! disk that fails, and the others go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockkeeper_core::{Command, Request, TreeOp};
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::inner::Inner;
use crate::{NodeConfig, NodeId, Unavailable};

/// A disk with less room than its reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shortage {
    /// Whose.
    pub(crate) node: NodeId,
    pub(crate) free_bytes: u64,
}

/// What one node knows of it.
pub(crate) struct Space {
    /// What was free on this node's own disk at the last look.
    free_bytes: AtomicU64,
    /// Of this node's own disk.
    own: watch::Sender<Option<Shortage>>,
    /// Of those who follow this node, or did.
    followers: Mutex<BTreeMap<NodeId, Shortage>>,
    /// The leader's word; none of this node itself.
    leaders: Mutex<Option<Shortage>>,
    /// Why new work is refused here, and so the word for those who follow this node.
    reason: watch::Sender<Option<Shortage>>,
    /// Whether there is a reason: all that most requests look at.
    is_refusing: AtomicBool,
}

impl Space {
    /// `free_bytes`: of this node's own disk.
    pub(crate) fn new(config: &NodeConfig, free_bytes: u64) -> Self {
        let own = shortage(config, free_bytes);
        Self {
            free_bytes: AtomicU64::new(free_bytes),
            own: watch::Sender::new(own),
            followers: Mutex::default(),
            leaders: Mutex::default(),
            reason: watch::Sender::new(own),
            is_refusing: AtomicBool::new(own.is_some()),
        }
    }

    /// Whether a command may be taken at the door.
    ///
    /// # Errors
    ///
    /// [`Unavailable::DiskFull`].
    pub(crate) fn admits(&self, command: &Command<'_>) -> Result<(), Unavailable> {
        if !self.is_refusing.load(Ordering::Relaxed) || frees(command) {
            return Ok(());
        }
        self.refusal().map_or(Ok(()), Err)
    }

    /// Why new work is refused here, if it is.
    pub(crate) fn refusal(&self) -> Option<Unavailable> {
        let shortage = self.is_refusing().then(|| *self.reason.borrow()).flatten();
        shortage.map(|Shortage { node, free_bytes }| Unavailable::DiskFull { node, free_bytes })
    }

    /// What was free on this node's own disk at the last look.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_refusing(&self) -> bool {
        self.is_refusing.load(Ordering::Relaxed)
    }

    /// What the leader is to be told of this node's disk.
    pub(crate) fn own(&self) -> watch::Receiver<Option<Shortage>> {
        self.own.subscribe()
    }

    /// What those who follow this node are to be told.
    pub(crate) fn reason(&self) -> watch::Receiver<Option<Shortage>> {
        self.reason.subscribe()
    }
}

fn shortage(config: &NodeConfig, free_bytes: u64) -> Option<Shortage> {
    let is_short = free_bytes < config.free_space_bytes_min;
    is_short.then_some(Shortage { node: config.id, free_bytes })
}

/// This node's disk was looked at.
pub(crate) fn note_own(inner: &Inner, free_bytes: u64) {
    inner.space.free_bytes.store(free_bytes, Ordering::Relaxed);
    let shortage = shortage(&inner.config, free_bytes);
    inner.space.own.send_if_modified(|own| std::mem::replace(own, shortage) != shortage);
    judge(inner);
}

/// A follower's word of its disk.
pub(crate) fn note_follower(inner: &Inner, node: NodeId, free_bytes: Option<u64>) {
    {
        let mut followers = inner.space.followers.lock();
        match free_bytes {
            Some(free_bytes) => followers.insert(node, Shortage { node, free_bytes }),
            None => followers.remove(&node),
        };
    }
    judge(inner);
}

/// The leader's word; `None` also if this node leads now.
pub(crate) fn note_leader(inner: &Inner, shortage: Option<Shortage>) {
    *inner.space.leaders.lock() = shortage;
    judge(inner);
}

fn judge(inner: &Inner) {
    let space = &inner.space;
    let own = *space.own.borrow();
    let reason = own.or_else(|| *space.leaders.lock()).or_else(|| of_too_many_voters(inner));
    let was = *space.reason.borrow();
    space.reason.send_if_modified(|now| std::mem::replace(now, reason) != reason);
    space.is_refusing.store(reason.is_some(), Ordering::Relaxed);
    match reason {
        Some(Shortage { node, free_bytes }) if was.map(|was| was.node) != Some(node) => {
            tracing::error!(node, free_bytes, "the log's disk is nearly full: new work is refused");
        }
        None if was.is_some() => {
            tracing::info!("there is room on the logs' disks again: new work is taken");
        }
        _ => {}
    }
}

/// One of the followers that are short of room, if the voters with room are no majority.
fn of_too_many_voters(inner: &Inner) -> Option<Shortage> {
    let followers = inner.space.followers.lock();
    if followers.is_empty() {
        return None;
    }
    let metrics = inner.raft.get()?.server_metrics();
    let metrics = metrics.borrow_watched();
    let voters: Vec<NodeId> = metrics.membership_config.membership().voter_ids().collect();
    let short: Vec<_> = voters.iter().filter_map(|voter| followers.get(voter)).collect();
    let is_majority = 2 * (voters.len() - short.len()) > voters.len();
    short.first().filter(|_| !is_majority).map(|&&shortage| shortage)
}

/// Whether a command gives something back: it is served from the disks' reserve.
pub(crate) fn frees(command: &Command<'_>) -> bool {
    match command {
        Command::Request { request, .. } => match request {
            Request::Release { .. } | Request::Cancel { .. } => true,
            Request::Acquire { .. } | Request::Reenter { .. } => false,
        },
        Command::EndSession { .. }
        | Command::RevokeSession { .. }
        | Command::RevokeHold { .. }
        | Command::ResumeSession { .. }
        | Command::CollectNode { .. }
        | Command::EndSilence => true,
        Command::Tree { ops, .. } => {
            ops.iter().all(|op| matches!(op, TreeOp::Delete { .. } | TreeOp::Check { .. }))
        }
        Command::OpenSession { .. } | Command::FoundCluster { .. } => false,
    }
}
