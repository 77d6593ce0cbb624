//! Looks after the node itself: a disk that doesn't answer or is nearly full, requests that wait
//! too long, snapshots that are due, openraft's own end.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::inner::Inner;
use crate::{Fault, Monotonic, Unavailable, membership, space};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// A look that comes later than this after the one before it shows that the process stood still.
const LATE: Duration = Duration::from_secs(1);

/// Between two questions for the free space.
const LOOK_AT_SPACE: Duration = Duration::from_secs(2);

/// After an fsync has taken this long, another node should lead, if the others' disks are faster.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// For so long they have to have been ahead then. Where all disks are slow, one is ahead of the
/// other by turns, and a change of leaders costs several syncs.
const AHEAD: Duration = Duration::from_millis(500);

/// After an fsync has taken this long, the others are better off without this node.
const STUCK_SYNC: Duration = Duration::from_secs(5);

/// Between two warnings of a slow disk.
const WARN_AGAIN: Duration = Duration::from_secs(10);

/// Looks around, for as long as the node lives.
pub(crate) async fn run(inner: Arc<Inner>) {
    let now = inner.now();
    let mut watch = Watch { last: now, awake_since: now, outpaced_since: None, warned_at: None };
    loop {
        sleep(LOOK).await;
        watch.look(&inner);
    }
}

/// What a look knows from those before.
struct Watch {
    last: Monotonic,
    /// Since then this process has been seen to run without a pause.
    awake_since: Monotonic,
    /// Since then the others' disks have been ahead of a leader's own.
    outpaced_since: Option<Monotonic>,
    /// When the disk was last said to be slow.
    warned_at: Option<Monotonic>,
}

impl Watch {
    fn look(&mut self, inner: &Arc<Inner>) {
        let now = inner.now();
        if now.since(self.last) > LATE {
            // The log's thread stood still, too: that is not the disk's fault.
            self.awake_since = now;
        }
        self.last = now;
        self.outpaced_since = is_outpaced(inner).then(|| self.outpaced_since.unwrap_or(now));
        self.look_at_disk(inner);
        look_at_requests(inner);
    }

    /// Heartbeats don't wait for the disk, so a leader whose disk is stuck would go on leading, and
    /// would itself never have what is committed.
    fn look_at_disk(&mut self, inner: &Arc<Inner>) {
        let fatal = inner.raft().metrics().borrow_watched().running_state.clone().err();
        if let Some(fatal) = fatal {
            inner.fail_raft(&fatal);
        }
        let stats = inner.log.stats();
        if let Some(fault) = stats.fault {
            inner.fail(fault);
        }
        let Some(age) = stats.sync_age else { return };
        // It can't have been waited for while the process stood still.
        let age = age.min(self.last.since(self.awake_since));
        if age <= SLOW_SYNC {
            return;
        }
        let ahead = self.outpaced_since.map_or(Duration::ZERO, |since| self.last.since(since));
        if age > STUCK_SYNC && !inner.is_single_voter() {
            inner.fail(Fault::StuckDisk { seconds: age.as_secs() });
        } else if ahead >= AHEAD && inner.leading().is_some() && !inner.is_single_voter() {
            tracing::warn!(seconds = age.as_secs(), "an fsync is slow: handing leadership over");
            let handing = Arc::clone(inner);
            inner.spawn(async move {
                // If nobody can take over now, the next look tries again.
                let _ = membership::change(&handing, membership::hand_over(&handing, None)).await;
            });
        } else if self.warned_at.is_none_or(|at| self.last.since(at) >= WARN_AGAIN) {
            self.warned_at = Some(self.last);
            tracing::warn!(seconds = age.as_secs(), "an fsync is slow: what is asked waits for it");
        }
    }
}

/// As the leader: whether the others' disks, a majority, have more than this one's.
fn is_outpaced(inner: &Inner) -> bool {
    let metrics = inner.raft().metrics();
    let metrics = metrics.borrow_watched();
    let Some(written) = &metrics.replication else { return false };
    let own = written.get(&inner.config.id).and_then(Option::as_ref);
    own.map(|id| id.index) < metrics.cluster_committed.map(|id| id.index)
}

/// Looks at the free space, for as long as the node lives. Apart from the other looks: a disk that
/// is stuck may not answer this question either.
pub(crate) async fn watch_space(inner: Arc<Inner>) {
    loop {
        sleep(LOOK_AT_SPACE).await;
        look_at_space(&inner).await;
    }
}

/// Nobody waits for ever: not for a leader, and not for an outcome that may never be known. While a
/// majority serves this node there is no more to it than slow disks, and what is on its way comes.
fn look_at_requests(inner: &Inner) {
    let is_slow = inner.is_served();
    let patience = inner.patience();
    let patience = if is_slow { patience.max(STUCK_SYNC) } else { patience };
    let queued_bytes = inner.batcher.queued_bytes();
    let (unproposed, unknown) = inner.batcher.give_up(inner.now(), patience);
    let why = match is_slow {
        true => Unavailable::Overloaded { queued_bytes },
        false => inner.no_quorum(),
    };
    inner.answer_all(&unproposed, &why);
    inner.answer_all(&unknown, &Unavailable::Unknown);
}

/// Keeps a reserve, in which locks can still be released and sessions ended.
async fn look_at_space(inner: &Inner) {
    let (disk, directory) = (Arc::clone(&inner.environment.disk), inner.config.data_dir.clone());
    let asking = inner.environment.run(move || disk.free_bytes(&directory));
    let Ok(free_bytes) = asking.await else { return };
    space::note_own(inner, free_bytes);
}

/// Takes a snapshot whenever enough has been applied, and lets openraft give up the log before it.
pub(crate) async fn take_snapshots(inner: Arc<Inner>) {
    loop {
        inner.snapshots.due.notified().await;
        if let Err(fatal) = inner.raft().trigger().snapshot().await {
            inner.fail_raft(&fatal);
        }
    }
}
