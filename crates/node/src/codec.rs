//! Raft's messages and records as bytes: explicit structures of our own, so that a new release of
//! openraft changes neither the disk nor what peers say to each other.
//!
//! The encoding is postcard. Fields are only added at the end of an enum's variants; the version
//! that the handshake and the log's files carry says which are known.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use openraft::entry::{EntryPayload, RaftEntry};
use openraft::impls::BasicNode;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::raft::{
    Batch, EntryOf, LogId, Membership, Payload, SnapshotMeta, StoredMembership, Types, VoteOf,
    log_id, term_of,
};

/// Appends the encoding of `value` to `out`.
pub(crate) fn encode_to(value: &impl Serialize, out: &mut Vec<u8>) {
    let buffer = std::mem::take(out);
    *out = postcard::to_extend(value, buffer).expect("the structures here have encodings");
}

/// The encoding of `value`.
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    encode_to(value, &mut out);
    out
}

/// Reads a value that fills `bytes`.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

/// A log id: term and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Id(u64, u64);

impl From<LogId> for Id {
    fn from(id: LogId) -> Self {
        Self(term_of(&id), id.index)
    }
}

impl From<Id> for LogId {
    fn from(Id(term, index): Id) -> Self {
        log_id(term, index)
    }
}

/// A vote: term, for whom, and whether a quorum has granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ballot {
    term: u64,
    node: u64,
    is_committed: bool,
}

impl From<VoteOf> for Ballot {
    fn from(vote: VoteOf) -> Self {
        let leader = vote.leader_id;
        Self { term: leader.term, node: leader.voted_for, is_committed: vote.committed }
    }
}

impl From<Ballot> for VoteOf {
    fn from(Ballot { term, node, is_committed }: Ballot) -> Self {
        if is_committed { Self::new_committed(term, node) } else { Self::new(term, node) }
    }
}

/// The members, as the log and the snapshots say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    /// One set of voters; two while a change is under way.
    voters: Vec<BTreeSet<u64>>,
    /// Everybody's address.
    addresses: BTreeMap<u64, String>,
}

impl From<&Membership> for Members {
    fn from(membership: &Membership) -> Self {
        let address = |(id, node): (&u64, &BasicNode)| (*id, node.addr.clone());
        Self {
            voters: membership.get_joint_config().clone(),
            addresses: membership.nodes().map(address).collect(),
        }
    }
}

impl Members {
    fn to_membership(&self) -> Option<Membership> {
        let nodes: BTreeMap<u64, BasicNode> =
            self.addresses.iter().map(|(id, addr)| (*id, BasicNode::new(addr))).collect();
        if self.voters.is_empty() && nodes.is_empty() {
            return Some(Membership::default());
        }
        Membership::new(self.voters.clone(), nodes).ok()
    }
}

/// One entry of the log, its commands' bytes apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum EntryHead {
    Blank(Id),
    Batch(Id),
    Members(Id, Members),
}

/// An entry as the log and the peers have it: a short head, then a batch's bytes as they are.
pub(crate) fn encode_entry(entry: &EntryOf) -> Bytes {
    let mut out = Vec::with_capacity(batch_of(entry).len() + HEAD_BYTES);
    encode_entry_to(entry, &mut out);
    out.into()
}

/// More than a head takes, unless it is a change of members.
const HEAD_BYTES: usize = 24;

fn batch_of(entry: &EntryOf) -> &[u8] {
    match &entry.payload {
        EntryPayload::Normal(Batch(bytes)) => bytes,
        EntryPayload::Blank | EntryPayload::Membership(_) => &[],
    }
}

fn encode_entry_to(entry: &EntryOf, out: &mut Vec<u8>) {
    let id = Id::from(entry.log_id());
    let head = match &entry.payload {
        EntryPayload::Blank => EntryHead::Blank(id),
        EntryPayload::Normal(_) => EntryHead::Batch(id),
        EntryPayload::Membership(members) => EntryHead::Members(id, members.into()),
    };
    encode_to(&head, out);
    out.extend_from_slice(batch_of(entry));
}

/// Reads an entry; its batch shares `bytes`.
pub(crate) fn decode_entry(bytes: &Bytes) -> Option<EntryOf> {
    let (head, rest) = postcard::take_from_bytes::<EntryHead>(bytes).ok()?;
    let (id, payload) = match head {
        EntryHead::Batch(id) => (id, Payload::Normal(Batch(bytes.slice_ref(rest)))),
        EntryHead::Blank(id) if rest.is_empty() => (id, Payload::Blank),
        EntryHead::Members(id, members) if rest.is_empty() => {
            (id, Payload::Membership(members.to_membership()?))
        }
        EntryHead::Blank(_) | EntryHead::Members(..) => return None,
    };
    Some(EntryOf::new(id.into(), payload))
}

/// What a snapshot stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    last: Option<Id>,
    members_at: Option<Id>,
    members: Members,
}

impl Default for Meta {
    /// Before the first entry, without members.
    fn default() -> Self {
        Self::new(None, &StoredMembership::default())
    }
}

impl Meta {
    pub(crate) fn new(last: Option<LogId>, members: &StoredMembership) -> Self {
        Self {
            last: last.map(Id::from),
            members_at: members.log_id().map(Id::from),
            members: members.membership().into(),
        }
    }

    pub(crate) fn last_log_id(&self) -> Option<LogId> {
        self.last.map(LogId::from)
    }

    /// The index that it stands for; 0 before the first entry.
    pub(crate) fn index(&self) -> u64 {
        self.last.map_or(0, |id| id.1)
    }

    /// The members; `None` if they contradict themselves, as bytes from outside may.
    pub(crate) fn stored_membership(&self) -> Option<StoredMembership> {
        let members = self.members.to_membership()?;
        Some(StoredMembership::new(self.members_at.map(LogId::from), members))
    }

    pub(crate) fn to_snapshot_meta(&self) -> Option<SnapshotMeta> {
        let last_membership = self.stored_membership()?;
        Some(SnapshotMeta { last_log_id: self.last_log_id(), last_membership })
    }
}

impl From<&SnapshotMeta> for Meta {
    fn from(meta: &SnapshotMeta) -> Self {
        Self::new(meta.last_log_id, &meta.last_membership)
    }
}

// ------------------------------------------------------------------ messages between peers

/// The head of an append request. Its entries follow, each with its length before it, so that
/// their batches are copied once and read in place.
#[derive(Debug, Serialize, Deserialize)]
struct AppendHead {
    vote: Ballot,
    previous: Option<Id>,
    commit: Option<Id>,
}

const LENGTH_BYTES: usize = size_of::<u32>();

/// Appends an append request to `out`.
pub(crate) fn encode_append(request: &AppendEntriesRequest<Types>, out: &mut Vec<u8>) {
    let head = AppendHead {
        vote: request.vote.into(),
        previous: request.prev_log_id.map(Id::from),
        commit: request.leader_commit.map(Id::from),
    };
    encode_to(&head, out);
    for entry in &request.entries {
        let start = out.len() + LENGTH_BYTES;
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        encode_entry_to(entry, out);
        let length = u32::try_from(out.len() - start).expect("entries are small");
        out[start - LENGTH_BYTES..start].copy_from_slice(&length.to_le_bytes());
    }
}

/// Reads an append request; its batches share `bytes`.
pub(crate) fn decode_append(bytes: &Bytes) -> Option<AppendEntriesRequest<Types>> {
    let (head, rest) = postcard::take_from_bytes::<AppendHead>(bytes).ok()?;
    let mut rest = bytes.slice_ref(rest);
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(*rest.first_chunk::<LENGTH_BYTES>()?) as usize;
        rest.advance(LENGTH_BYTES);
        if rest.len() < length {
            return None;
        }
        entries.push(decode_entry(&rest.split_to(length))?);
    }
    Some(AppendEntriesRequest {
        vote: head.vote.into(),
        prev_log_id: head.previous.map(LogId::from),
        entries,
        leader_commit: head.commit.map(LogId::from),
    })
}

/// The answer to an append request, in either of its two forms.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Appended {
    Matching(Option<Id>),
    Conflict(Id),
    HigherVote(Ballot),
}

impl From<StreamAppendResult<Types>> for Appended {
    fn from(result: StreamAppendResult<Types>) -> Self {
        use openraft::raft::StreamAppendError;
        match result {
            Ok(id) => Self::Matching(id.map(Id::from)),
            Err(StreamAppendError::Conflict(id)) => Self::Conflict(id.into()),
            Err(StreamAppendError::HigherVote(vote)) => Self::HigherVote(vote.into()),
        }
    }
}

impl From<Appended> for StreamAppendResult<Types> {
    fn from(appended: Appended) -> Self {
        use openraft::raft::StreamAppendError;
        match appended {
            Appended::Matching(id) => Ok(id.map(LogId::from)),
            Appended::Conflict(id) => Err(StreamAppendError::Conflict(id.into())),
            Appended::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
        }
    }
}

/// The answer to a single append request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AppendedOnce {
    Success,
    Partial(Option<Id>),
    Conflict,
    HigherVote(Ballot),
}

impl From<AppendEntriesResponse<Types>> for AppendedOnce {
    fn from(response: AppendEntriesResponse<Types>) -> Self {
        match response {
            AppendEntriesResponse::Success => Self::Success,
            AppendEntriesResponse::PartialSuccess(id) => Self::Partial(id.map(Id::from)),
            AppendEntriesResponse::Conflict => Self::Conflict,
            AppendEntriesResponse::HigherVote(vote) => Self::HigherVote(vote.into()),
        }
    }
}

impl From<AppendedOnce> for AppendEntriesResponse<Types> {
    fn from(appended: AppendedOnce) -> Self {
        match appended {
            AppendedOnce::Success => Self::Success,
            AppendedOnce::Partial(id) => Self::PartialSuccess(id.map(LogId::from)),
            AppendedOnce::Conflict => Self::Conflict,
            AppendedOnce::HigherVote(vote) => Self::HigherVote(vote.into()),
        }
    }
}

/// A request for a vote, or a question whether one would be given.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteAsked {
    vote: Ballot,
    last: Option<Id>,
    is_transfer: bool,
}

impl From<VoteRequest<Types>> for VoteAsked {
    fn from(request: VoteRequest<Types>) -> Self {
        Self {
            vote: request.vote.into(),
            last: request.last_log_id.map(Id::from),
            is_transfer: request.leadership_transfer,
        }
    }
}

impl From<VoteAsked> for VoteRequest<Types> {
    fn from(asked: VoteAsked) -> Self {
        let mut request = Self::new(asked.vote.into(), asked.last.map(LogId::from));
        request.leadership_transfer = asked.is_transfer;
        request
    }
}

/// The answer to it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Voted {
    vote: Ballot,
    is_granted: bool,
    last: Option<Id>,
}

impl From<VoteResponse<Types>> for Voted {
    fn from(response: VoteResponse<Types>) -> Self {
        Self {
            vote: response.vote.into(),
            is_granted: response.vote_granted,
            last: response.last_log_id.map(Id::from),
        }
    }
}

impl From<Voted> for VoteResponse<Types> {
    fn from(voted: Voted) -> Self {
        Self::new(VoteOf::from(voted.vote), voted.last.map(LogId::from), voted.is_granted)
    }
}

/// The wish of a leader that another takes over.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    from: Ballot,
    to: u64,
    last: Option<Id>,
}

impl From<TransferLeaderRequest<Types>> for Transfer {
    fn from(request: TransferLeaderRequest<Types>) -> Self {
        Self {
            from: (*request.from_leader()).into(),
            to: *request.to_node_id(),
            last: request.last_log_id().copied().map(Id::from),
        }
    }
}

impl From<Transfer> for TransferLeaderRequest<Types> {
    fn from(transfer: Transfer) -> Self {
        Self::new(transfer.from.into(), transfer.to, transfer.last.map(LogId::from))
    }
}

/// One of each message here, for a fuzzer to begin with; `batch` is an entry's.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn samples(batch: &Bytes) -> Vec<Vec<u8>> {
    use crate::peer::message::{Answer, Call, CallAnswer, FromLeader, SnapshotHead};

    let (id, vote) = (Id(3, 17), Ballot { term: 3, node: 2, is_committed: true });
    let voters = vec![BTreeSet::from([1, 2]), BTreeSet::from([1, 2, 3])];
    let addresses = (1..=3).map(|node| (node, format!("10.0.0.{node}:2380"))).collect();
    let members = Members { voters, addresses };
    let meta = Meta { last: Some(id), members_at: Some(id), members: members.clone() };
    let mut entry = encode(&EntryHead::Batch(id));
    entry.extend_from_slice(batch);
    let mut append = encode(&AppendHead { vote, previous: Some(id), commit: None });
    append.extend_from_slice(&(entry.len() as u32).to_le_bytes());
    append.extend_from_slice(&entry);
    vec![
        entry,
        append,
        encode(&EntryHead::Members(id, members)),
        encode(&SnapshotHead { vote, meta: meta.clone(), len: 1_000 }),
        encode(&meta),
        encode(&Call::Vote(VoteAsked { vote, last: Some(id), is_transfer: true })),
        encode(&Call::TransferLeader(Transfer { from: vote, to: 3, last: Some(id) })),
        encode(&CallAnswer::Voted(Voted { vote, is_granted: true, last: None })),
        encode(&FromLeader::Answer { id: 1, answer: Answer::Leases(vec![Some(7), None]) }),
    ]
}
