//! The one place where work leaves the node's thread: what blocks on the disk or is long.
//!
//! A simulated node must have no threads of its own. It replaces this function, and nothing else.

use std::io;

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
