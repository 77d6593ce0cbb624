//! One replica: log, snapshots, elections, sessions' deadlines and linearizable reads around a
//! [`lockkeeper_core::StateMachine`].
//!
//! A [`NodeHandle`] is the whole face: cheap to clone, concrete, usable from any thread. openraft's
//! types stop inside this package, and define neither its disk nor its wire format.
//!
//! **Invariant.** Nothing is answered before it is committed; openraft's types don't leave.

mod address;
mod applier;
mod batcher;
mod blocking;
mod codec;
mod config;
mod deadlines;
mod ensemble;
mod entry;
mod env;
mod error;
mod forward;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hold;
mod identity;
mod inner;
mod lease;
mod living;
mod log;
mod log_store;
mod membership;
#[cfg(feature = "mutations")]
pub mod mutation;
mod node;
mod peer;
mod raft;
mod reads;
mod replica;
mod restore;
mod runtime;
mod serving;
mod snapshot;
mod space;
mod standing;
mod start;
mod system;
mod watch;
mod watchdog;

pub use address::EnsembleMember;
pub use config::{Member, NodeConfig, NodeId, Start, Timers};
pub use ensemble::Ensemble;
pub use env::{
    Applied, BoxFuture, Clock, DirectoryGuard, Disk, DiskFile, DiskStep, Environment, Monotonic,
    Observer, PeerStream, Random, Threads, Transport, TransportListener,
};
pub use error::{Fault, MembershipError, ReconfigureError, StartError, Unavailable};
pub use node::{Attached, LeaseMargins, MemberStatus, NodeHandle, Sink, Status, WatchId};
pub use restore::restore;
pub use serving::Serving;
