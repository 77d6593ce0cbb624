//! The hold on the data directory: it lasts until the last thread that works there has ended.
//!
//! A node may be dropped while its log's threads, or one that writes a snapshot, are still at work.
//! If the directory were free by then, the next node in it would write the same files at the same
//! time. So whatever works in the directory has a share of the hold, and the directory is free when
//! the last share is gone.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::DirectoryGuard;
use crate::inner::Inner;

/// One share of the hold. Clones are further shares.
#[derive(Clone)]
pub(crate) struct Share {
    _held: Arc<Held>,
}

/// Dropped in this order: whoever waits for the end finds the directory free.
struct Held {
    _guard: DirectoryGuard,
    _ends: oneshot::Sender<Infallible>,
}

/// A node's own share, which it has until it has stopped.
pub(crate) struct Hold {
    own: Mutex<Option<(Share, oneshot::Receiver<Infallible>)>>,
}

impl Hold {
    pub(crate) fn new(guard: DirectoryGuard) -> Self {
        let (ends, ended) = oneshot::channel();
        let share = Share { _held: Arc::new(Held { _guard: guard, _ends: ends }) };
        Self { own: Mutex::new(Some((share, ended))) }
    }

    /// A further share; `None` once the node has given up its own.
    pub(crate) fn share(&self) -> Option<Share> {
        self.own.lock().as_ref().map(|(share, _)| share.clone())
    }

    /// Whether the node has given up its own share: what is still written is for nobody.
    pub(crate) fn is_released(&self) -> bool {
        self.own.lock().is_none()
    }

    /// Gives up the node's share, and waits until the others are gone.
    pub(crate) async fn release(&self) {
        let own = self.own.lock().take();
        if let Some((share, ended)) = own {
            drop(share);
            // Nothing is ever sent: it ends with the last share.
            let _ = ended.await;
        }
    }
}

impl Inner {
    /// [`Environment::run`](crate::Environment::run) for what changes the data directory.
    ///
    /// # Errors
    ///
    /// Those of `work`; an error of kind `Other` if this node has stopped.
    pub(crate) async fn run_held<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let work = self.held(work)?;
        self.environment.run(work).await
    }

    /// [`Environment::run_behind`](crate::Environment::run_behind) for what changes the data
    /// directory.
    ///
    /// # Errors
    ///
    /// Those of [`Inner::run_held`].
    pub(crate) async fn run_held_behind<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let work = self.held(work)?;
        self.environment.run_behind(name, work).await
    }

    fn held<T>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<impl FnOnce() -> io::Result<T> + Send + 'static> {
        let share = self.hold.share();
        let share = share.ok_or_else(|| io::Error::other("this node has stopped"))?;
        Ok(move || {
            let result = work();
            drop(share);
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Says when it is dropped.
    struct Guard(Arc<AtomicBool>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn the_directory_is_free_when_the_last_share_is_gone() {
        let is_free = Arc::new(AtomicBool::new(false));
        let hold = Hold::new(Box::new(Guard(Arc::clone(&is_free))));
        let share = hold.share().unwrap();
        let mut releasing = std::pin::pin!(hold.release());
        tokio::select! {
            biased;
            () = &mut releasing => panic!("somebody still works there"),
            () = std::future::ready(()) => {}
        }
        assert!(!is_free.load(Ordering::Relaxed) && hold.is_released());
        drop(share);
        releasing.await;
        assert!(is_free.load(Ordering::Relaxed));
        // It is released once.
        hold.release().await;
    }
}
