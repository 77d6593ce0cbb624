//! The leader's lease: a majority has answered him lately.
//!
//! openraft refuses what is proposed later than the longest election time-out after a majority's
//! newest answer: somebody else may lead by then. But where this node has stood still itself, or
//! worked on one entry for long, no answer can be new, and the next ones are a round trip away. So
//! what is to be proposed waits for them before it is taken, for as long again at most; that is
//! counted from when their absence was noticed, so that a leader whom nobody hears refuses soon.

use openraft::async_runtime::WatchReceiver;
use openraft_rt::Instant;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::Monotonic;
use crate::inner::Inner;

/// What a leader knows of his majority's silence.
#[derive(Default)]
pub(crate) struct Lease {
    /// Since when he has noticed that its newest answer is too old.
    missed_since: Mutex<Option<Monotonic>>,
}

impl Lease {
    /// Another reign: whatever was noticed in an earlier one is over.
    pub(crate) fn renew(&self) {
        *self.missed_since.lock() = None;
    }
}

impl Inner {
    /// As the leader: completes once a majority has answered lately, which nearly always is at
    /// once, or has had its time to. Whether something may be proposed is openraft's to say.
    pub(crate) async fn await_majority(&self) {
        if self.has_majority() || self.leading().is_none() {
            return;
        }
        let (now, patience) = (self.now(), self.config.timers.election_max);
        let missed_since = *self.lease.missed_since.lock().get_or_insert(now);
        let Some(left) = patience.checked_sub(now.since(missed_since)) else { return };
        let answered = async {
            let mut metrics = self.raft().data_metrics();
            while !self.has_majority() && metrics.changed().await.is_ok() {}
        };
        // Then it is refused.
        let _ = timeout(left, answered).await;
    }

    fn has_majority(&self) -> bool {
        let newest = {
            let metrics = self.raft().data_metrics();
            metrics.borrow_watched().last_quorum_acked
        };
        let is_new = newest.is_some_and(|at| at.elapsed() < self.config.timers.election_max);
        if is_new {
            self.lease.renew();
        }
        is_new || self.is_single_voter()
    }
}
