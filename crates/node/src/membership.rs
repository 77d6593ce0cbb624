//! Changes of members and of leadership. The leader makes them; any node may be asked, and asks it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::impls::BasicNode;
use tokio::time::timeout;

use crate::forward::ask_leader;
use crate::inner::{Inner, Route};
use crate::peer::handshake::{self, Purpose};
use crate::peer::message::{Answer, Question, Trouble};
use crate::raft::Types;
use crate::{MembershipError, NodeId, Unavailable, address, ensemble};

/// How long a new member may take to catch up, and any change to be made.
pub(crate) const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a successor may take to lead.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a member's peers reach it, as far as this node knows.
pub(crate) fn address(inner: &Inner, node: NodeId) -> Option<String> {
    let metrics = inner.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    let node = metrics.membership_config.membership().get_node(&node);
    node.map(|node| address::peer(node).to_owned())
}

/// Has the leader make a change, whoever it is, and waits until it is made.
pub(crate) async fn ask(inner: &Arc<Inner>, question: Question) -> Result<NodeId, MembershipError> {
    ask_for(inner, question).await?.map_err(MembershipError::from)
}

/// The same, with the leader's own words if it refuses.
pub(crate) async fn ask_for(
    inner: &Arc<Inner>,
    mut question: Question,
) -> Result<Result<NodeId, Trouble>, Unavailable> {
    let patience = inner.patience();
    let asking = async {
        let mut route = inner.route.subscribe();
        loop {
            // What it returns is a lock on the route: it must be gone before anything is awaited.
            let known = timeout(patience, route.wait_for(|route| *route != Route::Nowhere));
            let is_known = known.await.is_ok();
            if !is_known {
                return Err(inner.no_quorum());
            }
            match ask_leader(inner, question.clone()).await {
                Some(Answer::Change(Some(done))) => return Ok(done),
                // It leads no longer, or never heard the question: the next leader is asked.
                Some(Answer::Change(None)) | None => {
                    if let Question::RemoveMember { again, .. }
                    | Question::Reconfigure { again, .. } = &mut question
                    {
                        *again = true;
                    }
                    tokio::time::sleep(inner.config.timers.heartbeat).await;
                }
                Some(Answer::ReadIndex(_) | Answer::Leases(_)) => {
                    return Ok(Err(Trouble::Refused("the leader's answer is strange".into())));
                }
            }
        }
    };
    let asked = timeout(CHANGE_TIMEOUT, asking).await;
    asked.unwrap_or_else(|_| Err(inner.no_quorum()))
}

/// The wish that whoever leads now hands over.
pub(crate) fn hand_over(inner: &Inner, to: Option<NodeId>) -> Question {
    Question::TransferLeadership { to, term: inner.leadership().term }
}

/// As the leader: makes a change. `None` if this node leads no longer: the next one is asked.
pub(crate) async fn change(
    inner: &Arc<Inner>,
    question: Question,
) -> Option<Result<NodeId, Trouble>> {
    let leading = inner.leading()?;
    match question {
        Question::AddMember { id, peer_address } => add(inner, id, peer_address, true).await,
        Question::AddLearner { id, peer_address } => add(inner, id, peer_address, false).await,
        Question::RemoveMember { id, again } => remove(inner, id, again).await,
        Question::TransferLeadership { to, term }
            if leading > term && to.is_none_or(|to| to == inner.config.id) =>
        {
            Some(Ok(inner.config.id))
        }
        Question::TransferLeadership { to, .. } => Some(transfer(inner, to).await),
        Question::Reconfigure { base, members, again } => {
            ensemble::reconfigure(inner, base, members, again).await
        }
        Question::List { id, listing } => ensemble::list(inner, id, &listing).await,
        Question::ReadIndex | Question::Leases(_) => None,
    }
}

/// `None` is for the next leader to be asked.
pub(crate) type Change = Option<Result<NodeId, Trouble>>;

fn refused(why: impl Into<String>) -> Change {
    Some(Err(Trouble::Refused(why.into())))
}

async fn add(inner: &Arc<Inner>, id: NodeId, address: String, votes: bool) -> Change {
    let (voters, known) = {
        let metrics = inner.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership();
        let voters: BTreeSet<NodeId> = members.voter_ids().collect();
        (voters, members.get_node(&id).cloned())
    };
    if id == 0 {
        return refused("a node's id is 1 or more");
    }
    match known.as_ref().map(address::peer) {
        Some(known) if known != address => {
            return refused(format!("node {id} is a member already, at {known}"));
        }
        Some(_) if voters.contains(&id) || !votes => return Some(Ok(id)),
        Some(_) | None => {}
    }
    if let Err(error) = handshake::connect(inner, id, &address, Purpose::Probe).await {
        let reason = error.to_string();
        return Some(Err(Trouble::Unreachable { node: id, address, reason }));
    }
    // Blocks until the learner has caught up, so that the new voter's acknowledgements count at
    // once and the cluster is never slower for it.
    let node = known.unwrap_or_else(|| BasicNode::new(&address));
    let learner = inner.raft().add_learner(id, node, true);
    let learned = match timeout(CHANGE_TIMEOUT / 2, learner).await {
        Ok(learned) => learned.map(|_| ()),
        Err(_) => {
            let reason = "it did not catch up with the log in time".to_owned();
            return Some(Err(Trouble::Unreachable { node: id, address, reason }));
        }
    };
    if let Err(error) = learned {
        return outcome(inner, error);
    }
    if !votes {
        return Some(Ok(id));
    }
    let voter = ChangeMembers::AddVoterIds(BTreeSet::from([id]));
    match inner.raft().change_membership(voter, true).await {
        Ok(_) => Some(Ok(id)),
        Err(error) => outcome(inner, error),
    }
}

async fn remove(inner: &Arc<Inner>, id: NodeId, again: bool) -> Change {
    let (voters, is_member) = {
        let metrics = inner.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership();
        (members.voter_ids().collect::<BTreeSet<_>>(), members.get_node(&id).is_some())
    };
    if !is_member && again {
        return Some(Ok(id));
    }
    if !is_member {
        return refused(format!("node {id} is no member"));
    }
    if voters == BTreeSet::from([id]) {
        return refused(format!("node {id} is the only voter: without it there is no cluster"));
    }
    if id == inner.config.id {
        // The next leader removes it.
        return match transfer(inner, None).await {
            Ok(_) => None,
            Err(trouble) => Some(Err(trouble)),
        };
    }
    if voters.contains(&id) {
        let change = ChangeMembers::RemoveVoters(BTreeSet::from([id]));
        if let Err(error) = inner.raft().change_membership(change, true).await {
            return outcome(inner, error);
        }
    }
    // First no voter and then no member, so that it hears that it votes no longer.
    let change = ChangeMembers::RemoveNodes(BTreeSet::from([id]));
    match inner.raft().change_membership(change, false).await {
        Ok(_) => Some(Ok(id)),
        Err(error) => outcome(inner, error),
    }
}

/// Hands leadership over, and waits until somebody else leads.
pub(crate) async fn transfer(inner: &Arc<Inner>, to: Option<NodeId>) -> Result<NodeId, Trouble> {
    let to = match to {
        Some(to) => to,
        None => successor(inner, |_| true).ok_or_else(|| {
            Trouble::Refused("no other voter has caught up with the log".to_owned())
        })?,
    };
    if to == inner.config.id {
        return Ok(to);
    }
    let mut metrics = inner.raft().server_metrics();
    let is_voter = {
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().voter_ids().any(|voter| voter == to)
    };
    if !is_voter {
        return Err(Trouble::Refused(format!("node {to} is no voter")));
    }
    let failed = || Trouble::Refused(format!("node {to} did not take over in time"));
    inner.raft().trigger().transfer_leader(to).await.map_err(|_| failed())?;
    let taken_over = async {
        loop {
            let leader = inner.leadership().leader;
            if let Some(leader) = leader.filter(|&leader| leader != inner.config.id) {
                return leader;
            }
            if metrics.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    timeout(TRANSFER_TIMEOUT, taken_over).await.map_err(|_| failed())
}

/// The voter of these that is heard and has most of the log.
pub(crate) fn successor(inner: &Inner, is_fit: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let metrics = inner.raft().metrics();
    let metrics = metrics.borrow_watched();
    let matched: BTreeMap<NodeId, u64> = metrics
        .replication
        .iter()
        .flatten()
        .filter_map(|(node, matched)| Some((*node, matched.as_ref()?.index)))
        .collect();
    let members = metrics.membership_config.membership();
    let candidates = members.voter_ids().filter(|&voter| voter != inner.config.id);
    let heard = candidates.filter(|&voter| inner.is_heard(voter) && is_fit(voter));
    heard.max_by_key(|voter| matched.get(voter).copied())
}

fn outcome(inner: &Inner, error: RaftError<Types, ClientWriteError<Types>>) -> Change {
    match error {
        RaftError::APIError(
            ClientWriteError::ForwardToLeader(_)
            | ClientWriteError::LogEntryDiscarded(_)
            | ClientWriteError::PreconditionFailed(_),
        ) => None,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => match why {
            // It has just been elected: in a moment it can.
            ChangeMembershipError::UncommittedLeaderLog(_) => None,
            ChangeMembershipError::InProgress(_) => refused(
                "another change of the members is under way: try again when it has ended (`cluster \
                 status` shows the members)"
                    .to_owned(),
            ),
            ChangeMembershipError::EmptyMembership(_) => {
                refused("a cluster can't be without voters".to_owned())
            }
            ChangeMembershipError::LearnerNotFound(_)
            | ChangeMembershipError::UnsupportedMembershipTransition(_)
            | ChangeMembershipError::NodeMetadataChanged(_) => {
                refused(format!("the members have changed meanwhile: {why}"))
            }
        },
        RaftError::Fatal(fatal) => {
            inner.fail_raft(&fatal);
            None
        }
    }
}
