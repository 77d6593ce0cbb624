//! Whether a majority serves this node, as an event.
//!
//! It changes when the leader or the members do, when the way to the leader opens or breaks, when
//! somebody who was silent is heard again, and when somebody has been silent for too long. Each of
//! these wakes the one task that looks.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::NodeId;
use crate::inner::{Inner, Route};

/// What a node has learnt of its cluster, to wait for the next change of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// [`Status::is_ready`](crate::Status::is_ready).
    pub is_ready: bool,
    /// The index of the log entry that made the members what they are.
    pub members_since: u64,
}

/// Keeps the event, for as long as the node lives.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut metrics = inner.raft().server_metrics();
    let mut route = inner.route.subscribe();
    loop {
        route.mark_unchanged();
        let members = metrics.borrow_watched().membership_config.log_id().map(|id| id.index);
        // Before the look: whoever falls silent in between is then seen to be silent.
        let next_silence = inner.next_silence();
        let now = Serving { is_ready: inner.is_served(), members_since: members.unwrap_or(0) };
        inner.serving.send_if_modified(|last| std::mem::replace(last, now) != now);
        let silence = async {
            match next_silence {
                Some(after) => sleep(after).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() {
                // openraft has ended, and with it this node.
                return;
            },
            // Its other end goes only with the node.
            _ = route.changed() => {}
            () = inner.heard_again.notified() => {}
            () = silence => {}
        }
    }
}

impl Inner {
    /// Whether a majority serves this node: it leads one, or hears who does and can reach him.
    pub(crate) fn is_served(&self) -> bool {
        *self.route.borrow() != Route::Nowhere && self.leader_heard().is_some()
    }

    /// Who leads, if that still counts: a leader himself has to hear a majority, a follower him.
    pub(crate) fn leader_heard(&self) -> Option<NodeId> {
        let leader = self.leadership().leader?;
        let is_heard = if leader == self.config.id {
            let (reached, voters) = self.reached();
            2 * reached > voters
        } else {
            self.is_heard(leader)
        };
        is_heard.then_some(leader)
    }

    /// How long until the first of those who are heard now counts as silent, if it stays so.
    fn next_silence(&self) -> Option<Duration> {
        let (now, silence) = (self.now(), self.silence());
        let heard = self.heard.lock();
        let ages = heard.values().map(|&last| now.since(last));
        ages.filter_map(|age| silence.checked_sub(age)).filter(|left| !left.is_zero()).min()
    }
}
