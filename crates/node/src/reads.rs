//! Linearizable reads: one question to the leader for all that ask meanwhile.

use std::sync::Arc;

use openraft::ReadPolicy;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use crate::Unavailable;
use crate::forward::ask_leader;
use crate::inner::Inner;
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::peer::message::{Answer, Question};

/// Who waits for the next round.
#[derive(Default)]
pub(crate) struct Reads {
    waiting: Mutex<Vec<oneshot::Sender<Result<(), Unavailable>>>>,
    asked: Notify,
}

impl Reads {
    /// Joins the next round. A round that runs already is too old.
    pub(crate) async fn ask(&self) -> Result<(), Unavailable> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().push(sender);
        self.asked.notify_one();
        receiver.await.unwrap_or(Err(Unavailable::Stopping))
    }
}

/// Serves rounds one after the other, for as long as this node lives.
pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        inner.reads.asked.notified().await;
        // Whoever asks in the same turn comes along.
        tokio::task::yield_now().await;
        let waiting = std::mem::take(&mut *inner.reads.waiting.lock());
        if waiting.is_empty() {
            continue;
        }
        let round = timeout(inner.patience(), round(&inner)).await;
        let outcome = round.map_err(|_| inner.no_quorum());
        for waiter in waiting {
            // It may have given up waiting.
            let _ = waiter.send(outcome.clone());
        }
    }
}

/// Waits until everything that was committed anywhere before now is applied here.
async fn round(inner: &Arc<Inner>) {
    loop {
        if let Some(Answer::ReadIndex(Some(index))) = ask_leader(inner, Question::ReadIndex).await {
            inner.applied(index).await;
            return;
        }
        sleep(inner.config.timers.heartbeat).await;
    }
}

/// The leader's answer, once a quorum has said that it still leads.
pub(crate) async fn index(inner: &Inner) -> Option<u64> {
    #[cfg(feature = "mutations")]
    if mutated(Mutation::ReadWithoutQuorum) {
        return inner.leading().and(inner.replica.lock().applied).map(|id| id.index);
    }
    let linearizer = inner.raft().get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
    Some(linearizer.read_log_id().index())
}
