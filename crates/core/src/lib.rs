//! The replicated state machine: sessions, lock queues and the tree of znodes as one value with
//! one verb, `apply`.
//!
//! A [`StateMachine`] is driven by [`Command`]s in the order of the replicated log. It answers each
//! with a [`Reply`] and reports what happened as [`Event`]s; somebody else performs them. Replicas
//! that apply the same commands in the same order hold equal states and write bit-identical
//! snapshots.
//!
//! **Invariant.** This package reads no clock, does no I/O, iterates no hash map in an order that
//! shows, and cannot fail except by refusing.

mod check;
mod command;
mod dedup;
mod event;
mod ids;
mod limits;
mod lock;
mod machine;
#[cfg(feature = "mutations")]
mod mutation;
mod name;
mod pages;
mod reply;
mod session;
mod shards;
mod snapshot;
#[cfg(test)]
mod testing;
mod tree;
mod view;

pub use command::{Command, Decoded, EndReason, Mode, OwnerRef, Request};
pub use event::{Event, LossReason};
pub use ids::{ClusterId, LockName, Number, Revision, Secret, SessionId, Stamp, Token};
pub use limits::*;
pub use machine::StateMachine;
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use name::check_lock_name;
pub use reply::{Refusal, Reply};
pub use session::Owner;
pub use tree::{
    AclRef, ENSEMBLE_PATH, IdRef, Listed, Listing, NodeAcl, NodeChange, NodeKind, NodeView, Stat,
    Tree, TreeError, TreeOp, TreeReply, check_znode_path, list_members, perms, sequence_number,
};
pub use view::{Counts, HoldView, Lease, LockView, SessionView, WaiterView};
