//! The one place where work leaves the node's thread: what blocks on the disk or is long.
//!
//! A simulated node must have no threads of its own. It replaces these functions, and nothing else.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Runs `work` on a thread of its own, and waits for it without holding up the node.
///
/// # Errors
///
/// Those of `work`; and an error of kind `Other` if it panicked, which is a bug.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failure) => Err(io::Error::other(format!("a thread of the node failed: {failure}"))),
    }
}

/// As [`run`], for what takes long and isn't urgent: on a thread that gives way to every other, so
/// that the node's own isn't kept waiting for a processor.
///
/// # Errors
///
/// Those of [`run`].
pub(crate) async fn run_behind<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Without it the work is done all the same, only less politely.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE_MAX);
        let _ = sender.send(work());
    })?;
    let failed = |_| io::Error::other("a thread of the node failed");
    receiver.await.map_err(failed)?
}

/// The lowest priority that the system knows.
const NICE_MAX: i32 = 19;
