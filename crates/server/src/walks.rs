//! Looks at all of something, however much there is of it: one at a time, and aside from the thread
//! that serves everybody else.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

/// Those who walk through all of something. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walks {
    turn: Arc<Mutex<()>>,
}

impl Walks {
    /// Waits until nobody else walks. First come, first served.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// What `walk` says, which goes on a thread of its own when its turn has come. It keeps its
    /// turn to its end also if nobody waits for it any more: who asks and leaves, again and again,
    /// has one under way.
    pub(crate) async fn aside<T>(&self, walk: impl FnOnce() -> T + Send + 'static) -> T
    where
        T: Default + Send + 'static,
    {
        let turn = self.turn().await;
        let walk = spawn_blocking(move || {
            let _turn = turn;
            walk()
        });
        // It fails only by a bug, which the log tells.
        walk.await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_walk_keeps_nobody_waiting_but_the_next_one() {
        let walks = Walks::default();
        let (begun, has_begun) = oneshot::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let first = walks.aside(move || {
            begun.send(()).unwrap();
            // On the tests' own thread, nobody would let it go on.
            may_go_on.recv_timeout(Duration::from_secs(20)).is_ok()
        });
        // Who has asked for it doesn't wait for its end.
        tokio::select! {
            _ = first => panic!("it can't have come to its end"),
            begun = has_begun => begun.unwrap(),
        }
        let second = walks.aside(|| true);
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = &mut second => panic!("two walk at a time"),
            () = tokio::task::yield_now() => {}
        }
        go_on.send(()).unwrap();
        assert!(second.await);
    }
}
