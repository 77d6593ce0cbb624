//! The messages that are ours; Raft's own are in [`crate::codec`].
//!
//! All are postcard. Variants and fields are only added at the end, and what an older version can't
//! read needs a new version in the handshake.

use lockkeeper_core::SessionId;
use serde::{Deserialize, Serialize};

use crate::codec::{AppendedOnce, Ballot, Meta, Transfer, VoteAsked, Voted};
use crate::space::Shortage;
use crate::{Member, MembershipError, NodeId, Unavailable};

/// What a node says to the leader on the forwarding connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToLeader<'a> {
    /// A batch, to be proposed in this term or not at all. Batches come in order.
    Batch {
        term: u64,
        #[serde(borrow)]
        bytes: &'a [u8],
    },
    /// Sessions heard from since the last report.
    Living { term: u64, number: u64, sessions: Vec<SessionId> },
    /// A question that has one answer.
    Ask { id: u64, question: Question },
    /// The room on the sender's disk, if it is short of it; at the beginning, and when it changes.
    Space { free_bytes: Option<u64> },
}

/// What the leader says back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromLeader {
    /// The batch of this number was not proposed, and won't be.
    Refused {
        number: u64,
    },
    /// A quorum has been heard since the report came; but these sessions are not confirmed.
    Confirmed {
        number: u64,
        except: Vec<SessionId>,
    },
    /// A report is not confirmed: the sender leads no longer, or not with a quorum.
    Unconfirmed {
        number: u64,
    },
    Answer {
        id: u64,
        answer: Answer,
    },
    /// Why new work is to be refused, if it is; at the beginning, and when it changes.
    Space(Option<Shortage>),
}

/// What only the leader can say or do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// How far a read of now must have applied.
    ReadIndex,
    /// Milliseconds left of these leases.
    Leases(Vec<SessionId>),
    AddMember {
        id: NodeId,
        peer_address: String,
    },
    /// `again`: it was asked before, and the answer was lost; it may have been done.
    RemoveMember {
        id: NodeId,
        again: bool,
    },
    /// To be done by the leader of this term or an older one: a later leader has the office because
    /// it was done, or by chance, and that will do.
    TransferLeadership {
        to: Option<NodeId>,
        term: u64,
    },
    /// All members at once: each with what the log is to say of it, and whether it votes. To be
    /// done to the members that are shown since the revision `base`, or not at all.
    Reconfigure {
        base: u64,
        members: Vec<(NodeId, String, bool)>,
        again: bool,
    },
    /// What ZooKeeper's clients are to be shown of a member.
    List {
        id: NodeId,
        listing: String,
    },
    /// To follow, without a vote.
    AddLearner {
        id: NodeId,
        peer_address: String,
    },
}

/// The leader's word. `None`: it isn't the leader any more, or has no quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    ReadIndex(Option<u64>),
    Leases(Vec<Option<u32>>),
    /// What became of a change of members or leadership; `None`: ask the next leader.
    Change(Option<Result<NodeId, Trouble>>),
}

/// [`MembershipError`] as peers say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Trouble {
    Refused(String),
    NoQuorum {
        reached: u32,
        of: u32,
    },
    Unreachable {
        node: NodeId,
        address: String,
        reason: String,
    },
    /// The members aren't those that the asker has seen.
    Moved,
    /// Another change of all members is under way.
    InProgress,
    /// Too few of those who would vote are there.
    Unsynced,
    /// It was asked before, and other changes came since: nobody can tell.
    Unknown,
}

impl From<Trouble> for MembershipError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(why) => Self::Refused(why),
            Trouble::NoQuorum { reached, of } => Unavailable::NoQuorum { reached, of }.into(),
            Trouble::Unreachable { node, address, reason } => {
                Self::Unreachable { node, address, reason }
            }
            Trouble::Moved | Trouble::InProgress | Trouble::Unsynced | Trouble::Unknown => {
                Self::Refused("the members have changed meanwhile".to_owned())
            }
        }
    }
}

impl From<Member> for Question {
    fn from(Member { id, peer_address }: Member) -> Self {
        Self::AddMember { id, peer_address }
    }
}

/// A call and its answer, on a calling connection. Heartbeats are calls of their own form: see
/// [`crate::codec::encode_append`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Vote(VoteAsked),
    PreVote(VoteAsked),
    TransferLeader(Transfer),
}

/// What a call is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum CallAnswer {
    Appended(AppendedOnce),
    Voted(Voted),
    /// The wish of the leader was heard; `Some`: why it can't be followed.
    Transfer(Option<String>),
    /// This node doesn't vote now.
    Silent,
}

/// The head of a snapshot, before its blocks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotHead {
    pub(crate) vote: Ballot,
    pub(crate) meta: Meta,
    pub(crate) len: u64,
}

/// What a received snapshot is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SnapshotAnswer {
    /// Installed, or not needed; with the receiver's vote.
    Vote(Ballot),
    /// It can't be received now.
    Refused(String),
}
