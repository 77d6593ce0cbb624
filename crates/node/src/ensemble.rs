//! All members changed at once, and what ZooKeeper's clients are shown of each of them.
//!
//! # Guarantees
//!
//! - The change takes one entry of the log: there is no moment at which half of it holds, or at
//!   which what is shown isn't what is.
//! - It is made to the members that the asker has seen, or not at all.
//! - If it is refused, the members are as they were.
//!
//! Not promised: that those who leave stop at once. They follow without a vote and unlisted until
//! they were told so, and are removed then; if this leader ends first, `cluster remove` does it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockkeeper_core::{ENSEMBLE_PATH, Listing};
use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::impls::BasicNode;
use openraft::raft::Precondition;
use tokio::time::{sleep, timeout};

use crate::address::{self, EnsembleMember};
use crate::inner::Inner;
use crate::membership::{self, CHANGE_TIMEOUT, Change};
use crate::peer::handshake::{self, Purpose};
use crate::peer::message::{Question, Trouble};
use crate::raft::{LogId, Membership, Types};
use crate::{NodeId, ReconfigureError};

/// The members, and the version under which they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// The revision at which they were last shown anew; 0: never.
    pub version: u64,
    /// In order of id.
    pub members: Vec<EnsembleMember>,
}

/// What a node would have ZooKeeper's clients shown of itself.
#[derive(Clone, Debug)]
pub(crate) struct OwnListing {
    /// `host:port` for clients.
    pub(crate) client: String,
    /// Although there is nobody else.
    pub(crate) even_alone: bool,
}

/// What this node has applied.
pub(crate) fn applied(inner: &Inner) -> Ensemble {
    seen(inner).0
}

fn seen(inner: &Inner) -> (Ensemble, Membership, Option<LogId>) {
    let replica = inner.replica.lock();
    let shown = replica.state.tree().node(ENSEMBLE_PATH);
    let version = shown.map_or(0, |node| node.stat.mzxid.0);
    let membership = replica.membership.membership().clone();
    let members = address::members(&membership);
    (Ensemble { version, members }, membership, *replica.membership.log_id())
}

/// Has the leader make a change, whoever it is, and waits until it is made.
pub(crate) async fn ask(
    inner: &Arc<Inner>,
    base: u64,
    members: &[EnsembleMember],
) -> Result<(), ReconfigureError> {
    let members = members.iter().map(|member| (member.id, member.node().addr, member.is_voter));
    let question = Question::Reconfigure { base, members: members.collect(), again: false };
    match membership::ask_for(inner, question).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(trouble)) => Err(match trouble {
            Trouble::Moved => ReconfigureError::Moved,
            Trouble::InProgress => ReconfigureError::InProgress,
            Trouble::Unsynced => ReconfigureError::NoQuorum,
            Trouble::Refused(why) => ReconfigureError::Refused(why),
            Trouble::Unreachable { node, address, reason } => {
                ReconfigureError::Refused(format!("node {node} at {address}: {reason}"))
            }
            Trouble::NoQuorum { .. } | Trouble::Unknown => ReconfigureError::Unknown,
        }),
        // A leader may have heard the question, and nobody has the answer.
        Err(_) => Err(ReconfigureError::Unknown),
    }
}

/// As the leader: changes all members. `again`: it was asked before, and the answer was lost.
pub(crate) async fn reconfigure(
    inner: &Arc<Inner>,
    base: u64,
    members: Vec<(NodeId, String, bool)>,
    again: bool,
) -> Change {
    // One change at a time: a second one finds other members, and is told so.
    let changing = Arc::clone(&inner.changing).lock_owned().await;
    let target = Target::new(members);
    let (now, membership, _) = seen(inner);
    if now.version != base {
        return Some(match again {
            false => Err(Trouble::Moved),
            true if target.is_reached(&membership) => Ok(inner.config.id),
            true => Err(Trouble::Unknown),
        });
    }
    if target.voters.is_empty() || target.nodes.contains_key(&0) {
        return Some(Err(Trouble::Refused("a cluster can't be without voters".to_owned())));
    }
    let Some(here) = target.here(inner, &membership).await else {
        return Some(Err(Trouble::Unsynced));
    };
    if !target.voters.contains(&inner.config.id) {
        // The next leader does it, if any of those who stay can lead.
        let successor = membership::successor(inner, |voter| here.contains(&voter));
        if let Some(successor) = successor {
            return match membership::transfer(inner, Some(successor)).await {
                Ok(_) => None,
                Err(trouble) => Some(Err(trouble)),
            };
        }
    }
    let learned = match learn(inner, &target, &membership, here).await {
        Ok(learned) => learned,
        Err(trouble) => return Some(Err(trouble)),
    };
    let (now, membership, seen_at) = seen(inner);
    if now.version != base {
        forget(inner, learned).await;
        return Some(Err(if again { Trouble::Unknown } else { Trouble::Moved }));
    }
    let leaving = target.leaving(&membership);
    let unlisted = leaving.iter().filter_map(|id| {
        let node = membership.get_node(id)?;
        Some((*id, BasicNode::new(address::peer(node))))
    });
    let nodes = target.nodes.clone().into_iter().chain(unlisted).collect();
    let change = ChangeMembers::Batch(vec![
        ChangeMembers::SetNodes(nodes),
        ChangeMembers::ReplaceAllVoters(target.voters.clone()),
    ]);
    let precondition = Precondition::LastMembershipLogId { last_membership_log_id: seen_at };
    let changed = inner.raft().change_membership_if(change, true, [precondition]).await;
    if let Err(error) = changed {
        let outcome = outcome(inner, &error, again);
        if outcome.is_some() {
            forget(inner, learned).await;
        }
        return outcome;
    }
    // Behind the answer, so that a server that leaves hears it and can tell its clients.
    let forgetting = Arc::clone(inner);
    inner.spawn(async move {
        forget(&forgetting, leaving).await;
        drop(changing);
    });
    Some(Ok(inner.config.id))
}

/// As a new leader: brings a change to its end that an earlier one has left half made, unless
/// somebody asks for it again before.
pub(crate) async fn finish(inner: Arc<Inner>, term: u64) {
    let half = |inner: &Inner| {
        let (_, membership, at) = seen(inner);
        let target = membership.get_joint_config().last().cloned();
        target.filter(|_| membership.get_joint_config().len() > 1).map(|target| (target, at))
    };
    let Some((target, at)) = half(&inner) else { return };
    sleep(5 * inner.config.timers.election_max).await;
    let changing = inner.changing.lock().await;
    let is_same = half(&inner).is_some_and(|(_, now)| now == at);
    if !is_same || inner.leading() != Some(term) {
        return;
    }
    let precondition = Precondition::LastMembershipLogId { last_membership_log_id: at };
    let change = ChangeMembers::ReplaceAllVoters(target);
    if let Err(error) = inner.raft().change_membership_if(change, true, [precondition]).await {
        tracing::warn!(%error, "a change of the members is half made");
    }
    drop(changing);
}

/// Who is to be there.
struct Target {
    nodes: BTreeMap<NodeId, BasicNode>,
    voters: BTreeSet<NodeId>,
}

impl Target {
    fn new(members: Vec<(NodeId, String, bool)>) -> Self {
        let voters = members.iter().filter(|(_, _, votes)| *votes).map(|(id, ..)| *id).collect();
        let nodes = members.into_iter().map(|(id, addr, _)| (id, BasicNode::new(addr))).collect();
        Self { nodes, voters }
    }

    /// Whether the members are these, and nobody else is shown.
    fn is_reached(&self, membership: &Membership) -> bool {
        membership.get_joint_config().len() == 1
            && membership.voter_ids().collect::<BTreeSet<_>>() == self.voters
            && self.nodes.iter().all(|(id, node)| membership.get_node(id) == Some(node))
            && self.leaving(membership).is_empty()
    }

    /// Who is shown as a member now, and is none of these.
    fn leaving(&self, membership: &Membership) -> BTreeSet<NodeId> {
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        let shown = membership
            .nodes()
            .filter(|(id, node)| voters.contains(id) || address::listing(node).is_some());
        shown.map(|(id, _)| *id).filter(|id| !self.nodes.contains_key(id)).collect()
    }

    /// The voters that can be reached, each where it is to be. `None`: they are no majority, or one
    /// that is to have another address doesn't answer there.
    async fn here(&self, inner: &Inner, membership: &Membership) -> Option<BTreeSet<NodeId>> {
        let mut here = BTreeSet::new();
        for (&id, node) in &self.nodes {
            let peer = address::peer(node);
            let known = membership.get_node(&id).map(address::peer);
            let is_here = match known {
                Some(known) if known == peer => inner.is_heard(id),
                None if !self.voters.contains(&id) => false,
                Some(_) | None => handshake::connect(inner, id, peer, Purpose::Probe).await.is_ok(),
            };
            if known.is_some_and(|known| known != peer) && !is_here {
                return None;
            }
            if is_here && self.voters.contains(&id) {
                here.insert(id);
            }
        }
        (2 * here.len() > self.voters.len()).then_some(here)
    }
}

/// Has those who are to vote, and can be reached, catch up with the log, so that the cluster is
/// never slower for them. Nobody is shown any of it. Returns who is new; if too few are left who
/// have caught up, all is as it was.
async fn learn(
    inner: &Arc<Inner>,
    target: &Target,
    membership: &Membership,
    mut here: BTreeSet<NodeId>,
) -> Result<BTreeSet<NodeId>, Trouble> {
    let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
    let mut learned = BTreeSet::new();
    for (&id, node) in &target.nodes {
        if voters.contains(&id) || !here.contains(&id) {
            continue;
        }
        let known = membership.get_node(&id).cloned();
        if known.is_none() {
            learned.insert(id);
        }
        let node = known.unwrap_or_else(|| BasicNode::new(address::peer(node)));
        let learning = inner.raft().add_learner(id, node, true);
        if !matches!(timeout(CHANGE_TIMEOUT / 2, learning).await, Ok(Ok(_))) {
            here.remove(&id);
        }
    }
    if 2 * here.len() > target.voters.len() {
        return Ok(learned);
    }
    forget(inner, learned).await;
    Err(Trouble::Unsynced)
}

/// Lets go of nodes that don't vote and aren't shown.
async fn forget(inner: &Inner, nodes: BTreeSet<NodeId>) {
    if nodes.is_empty() {
        return;
    }
    let change = ChangeMembers::RemoveNodes(nodes.clone());
    if let Err(error) = inner.raft().change_membership(change, true).await {
        tracing::warn!(
            ?nodes, %error,
            "nodes that are no members any more still follow: remove them with `cluster remove`"
        );
    }
}

/// `None`: whoever leads now is asked again, and sees what has become of it.
fn outcome(
    inner: &Inner,
    error: &RaftError<Types, ClientWriteError<Types>>,
    again: bool,
) -> Change {
    match error {
        RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => match why {
            ChangeMembershipError::InProgress(_) if !again => Some(Err(Trouble::InProgress)),
            ChangeMembershipError::InProgress(_)
            | ChangeMembershipError::UncommittedLeaderLog(_) => None,
            ChangeMembershipError::EmptyMembership(_)
            | ChangeMembershipError::LearnerNotFound(_)
            | ChangeMembershipError::UnsupportedMembershipTransition(_)
            | ChangeMembershipError::NodeMetadataChanged(_) => {
                Some(Err(Trouble::Refused(why.to_string())))
            }
        },
        RaftError::APIError(_) => None,
        RaftError::Fatal(fatal) => {
            inner.fail_raft(fatal);
            None
        }
    }
}

// ------------------------------------------------------------------- what each says of itself

/// As the leader: has a member shown otherwise.
pub(crate) async fn list(inner: &Inner, id: NodeId, listing: &str) -> Change {
    let _changing = inner.changing.lock().await;
    let (_, membership, seen_at) = seen(inner);
    let Some(listing) = Listing::parse(listing) else {
        return Some(Err(Trouble::Refused(format!("`{listing}` says nothing of node {id}"))));
    };
    let Some(node) = membership.get_node(&id) else {
        // It may only not be applied yet.
        let is_known = membership::address(inner, id).is_some();
        let refused = Trouble::Refused(format!("node {id} is no member"));
        return (!is_known).then_some(Err(refused));
    };
    let listed = address::node(address::peer(node), Some(&listing));
    if *node == listed {
        return Some(Ok(id));
    }
    let change = ChangeMembers::SetNodes(BTreeMap::from([(id, listed)]));
    let precondition = Precondition::LastMembershipLogId { last_membership_log_id: seen_at };
    match inner.raft().change_membership_if(change, true, [precondition]).await {
        Ok(_) => Some(Ok(id)),
        // Another change is soon over.
        Err(error) => outcome(inner, &error, true),
    }
}

/// Sees to it that ZooKeeper's clients are shown this node, for as long as it lives: whenever it is
/// a member of which nothing is said, and once after a start if it serves them on another port.
pub(crate) async fn keep_listed(inner: Arc<Inner>, own: OwnListing) {
    let mut metrics = inner.raft().server_metrics();
    let mut may_differ = true;
    loop {
        // Changes count as seen from before this look: none is missed.
        let wish = {
            let metrics = metrics.borrow_watched();
            wish(&inner, metrics.membership_config.membership(), &own, may_differ)
        };
        if let Some(listing) = wish {
            tokio::select! {
                changed = metrics.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = answerable(&inner) => {}
            }
            let question = Question::List { id: inner.config.id, listing: listing.to_string() };
            match membership::ask_for(&inner, question).await {
                Ok(Ok(_)) => may_differ = false,
                // It is no member any more. If it becomes one again, that is a change.
                Ok(Err(_)) => {}
                // What has become of it isn't known: whoever can be asked next says so.
                Err(_) => continue,
            }
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

/// Completes once a leader can be asked behind whom a majority stands.
async fn answerable(inner: &Inner) {
    let mut serving = inner.serving.subscribe();
    // Its other end goes only with the node.
    drop(serving.wait_for(|serving| serving.is_ready).await);
}

/// What is to be said of this node; `None`: what is said already will do.
fn wish(
    inner: &Inner,
    membership: &Membership,
    own: &OwnListing,
    may_differ: bool,
) -> Option<Listing> {
    let port = |address: &str| address.rsplit(':').next().map(ToOwned::to_owned);
    let id = inner.config.id;
    let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
    let node = membership.get_node(&id)?;
    let peer = address::peer(node);
    if !voters.contains(&id) || peer.is_empty() || (voters.len() < 2 && !own.even_alone) {
        return None;
    }
    match address::listing(node) {
        None => Some(Listing::of(peer, own.client.clone())),
        Some(listing) if may_differ && port(&listing.client) != port(&own.client) => {
            Some(Listing { client: own.client.clone(), ..listing })
        }
        Some(_) => None,
    }
}
