//! One replica: log, snapshots, elections, sessions' deadlines and linearizable reads around a
//! [`lockkeeper_core::StateMachine`].
//!
//! A [`NodeHandle`] is the whole face: cheap to clone, concrete, usable from any thread. openraft's
//! types stop inside this package, and define neither its disk nor its wire format.
//!
//! **Invariant.** Nothing is answered before it is committed; openraft's types don't leave.

mod config;
mod env;
mod error;
#[cfg_attr(not(test), expect(dead_code, reason = "the replica that uses it comes next"))]
mod log;
mod node;
#[cfg_attr(not(test), expect(dead_code, reason = "the replica that uses it comes next"))]
mod system;

pub use config::{Member, NodeConfig, NodeId, Start, Timers};
pub use env::{
    BoxFuture, Clock, Disk, DiskFile, Environment, Monotonic, PeerStream, Random, Transport,
    TransportListener,
};
pub use error::{Fault, MembershipError, StartError, Unavailable};
pub use node::{Attached, MemberStatus, NodeHandle, Sink, Status, WatchId, restore};
