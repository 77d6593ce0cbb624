//! openraft's types, made concrete once. Nothing of them leaves this package, and none of them is
//! serialized by derive: what goes to disk or to a peer is written out in [`crate::codec`].

use std::fmt;

use bytes::Bytes;
use openraft::base::OptionalSend;
use openraft::impls::{BasicNode, BoxedErrorSource, Entry, InlineBatch, Vote};
use openraft::raft::responder::Responder;
use openraft::vote::{RaftLeaderId, leader_id_std};
use openraft::{EntryPayload, RaftTypeConfig};

use crate::applier::Applier;
use crate::runtime::Runtime;

/// The instantiation of openraft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

type LeaderId = leader_id_std::LeaderId<u64, u64>;

impl RaftTypeConfig for Types {
    type D = Batch;
    type R = ();
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote<LeaderId>;
    type Payload = EntryPayload<Batch, u64, BasicNode>;
    type Entry = Entry<<LeaderId as RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Callback<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

pub(crate) type Raft = openraft::Raft<Types, Applier>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub(crate) type VoteOf = openraft::type_config::alias::VoteOf<Types>;
pub(crate) type EntryOf = openraft::type_config::alias::EntryOf<Types>;
pub(crate) type Payload = <Types as RaftTypeConfig>::Payload;
pub(crate) type Membership = openraft::Membership<u64, BasicNode>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;

pub(crate) type SnapshotOf =
    openraft::type_config::alias::SnapshotOf<Types, crate::snapshot::SnapshotFile>;

/// What a proposal says to be valid in one term only.
pub(crate) fn committed_leader(term: u64) -> leader_id_std::CommittedLeaderId<u64> {
    leader_id_std::CommittedLeaderId::new(term)
}

/// A log id from its parts.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(leader_id_std::CommittedLeaderId::new(term), index)
}

/// The term of a log id.
pub(crate) fn term_of(id: &LogId) -> u64 {
    id.committed_leader_id().term
}

/// What one entry of the log carries: a batch (see `entry.rs`), as bytes that log, peers and apply
/// share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch(pub(crate) Bytes);

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Hears what became of a proposal: no channel and no task for each.
pub(crate) struct Callback<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Callback<T> {
    pub(crate) fn new(call: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(call))
    }
}

impl<T: OptionalSend + 'static> Responder<Types, T> for Callback<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}
