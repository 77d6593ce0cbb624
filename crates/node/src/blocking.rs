//! The one place where work leaves the node's thread: what blocks on the disk, or is long.
//!
//! In a world of one thread ([`Threads::None`]) it doesn't leave: it is done in its place, after
//! the time that the disk says it takes.

use std::future::Future;
use std::io;
use std::thread;

use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::{DiskStep, Environment, Threads};

impl Environment {
    /// Runs `work` on a thread of its own, and waits for it without holding up the node.
    ///
    /// # Errors
    ///
    /// Those of `work`; and an error of kind `Other` if it panicked, which is a bug.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if self.threads == Threads::None {
            self.pause(DiskStep::Other).await;
            return work();
        }
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(failure) => {
                Err(io::Error::other(format!("a thread of the node failed: {failure}")))
            }
        }
    }

    /// As [`Environment::run`], for what takes long and isn't urgent: on a thread that gives way to
    /// every other, so that the node's own isn't kept waiting for a processor.
    ///
    /// # Errors
    ///
    /// Those of [`Environment::run`].
    pub(crate) async fn run_behind<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if self.threads == Threads::None {
            return self.run(work).await;
        }
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Without it the work is done all the same, only less politely.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE_MAX);
            let _ = sender.send(work());
        })?;
        let failed = |_| io::Error::other("a thread of the node failed");
        receiver.await.map_err(failed)?
    }

    /// Runs a task that blocks now and then, on a thread of its own, until it ends by itself.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn run_apart(
        &self,
        name: &str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        if self.threads == Threads::None {
            tokio::spawn(task);
            return Ok(());
        }
        // It has neither sockets nor timers: waiting is parking the thread.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(move || runtime.block_on(task)).map(|_| ())
    }

    /// Lets the time pass that a disk's next step takes where no thread can wait in it.
    pub(crate) async fn pause(&self, step: DiskStep) {
        if self.threads == Threads::None {
            sleep(self.disk.latency(step)).await;
        }
    }
}

/// The lowest priority that the system knows.
const NICE_MAX: i32 = 19;
