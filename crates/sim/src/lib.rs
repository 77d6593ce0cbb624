//! What tries to break Lockkeeper, and what judges whether it did.
//!
//! A [`History`] is what clients saw and did, by true time, and what the replicated log says. It
//! comes from a simulated cluster, where a seed decides everything, or from real processes; the
//! judges in [`judge`] read it without knowing which.
//!
//! **Invariant.** A seed and a commit decide everything.

pub mod chance;
pub mod core_hunt;
pub mod history;
pub mod hunt;
pub mod judge;
pub mod recipe;
pub mod recorder;
pub mod workload;
pub mod world;

pub use chance::Chance;
pub use history::{
    Attempt, ClientId, Commit, Digest, Entry, GiveUp, History, Leadership, Nanos, Seen, Silence,
    Transition,
};
