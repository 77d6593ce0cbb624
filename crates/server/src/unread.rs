//! The answers that wait to be read by clients, all connections together: what they may take.
//!
//! There is no list of the connections, and nobody is looked for: as a connection grows it compares
//! what it holds with what is left for all. The largest therefore meets the limit first, and the
//! more is held by all, the less each may hold.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::limits::{OUTPUT_BYTES_MAX, UNREAD_BYTES_FREE, UNREAD_BYTES_MAX};

/// The bytes that wait in all connections of one server.
#[derive(Debug)]
pub(crate) struct Unread {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// There is room again.
    freed: Notify,
}

impl Unread {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max, freed: Notify::new() }
    }

    /// How many bytes one connection may hold now.
    pub(crate) fn share(&self) -> usize {
        let left = self.bytes_max.saturating_sub(self.bytes.load(Ordering::Relaxed));
        left.clamp(UNREAD_BYTES_FREE, OUTPUT_BYTES_MAX)
    }

    /// A connection holds `after` bytes, and held `before`.
    pub(crate) fn change(&self, before: usize, after: usize) {
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
            self.pass_on();
        }
    }

    /// Whether less waits than may.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < self.bytes_max
    }

    /// Waits until there may be room. Whoever has used it, or not, passes it on.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// If there is room, the next of those who wait for it is woken.
    pub(crate) fn pass_on(&self) {
        if self.has_room() {
            self.freed.notify_one();
        }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Default for Unread {
    fn default() -> Self {
        Self::new(UNREAD_BYTES_MAX)
    }
}
