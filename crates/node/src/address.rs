//! What Raft's entries say of a member besides its vote: one text, kept as openraft's address.
//!
//! It is `host:port` for the peers, and behind a semicolon the member's [`Listing`], if anything is
//! said of it to ZooKeeper's clients. So both change in the entry that changes the members.

use lockkeeper_core::{Listed, Listing};
use openraft::impls::BasicNode;

use crate::NodeId;
use crate::raft::Membership;

/// A member as it is written into the log.
pub(crate) fn node(peer_address: &str, listing: Option<&Listing>) -> BasicNode {
    match listing {
        None => BasicNode::new(peer_address),
        Some(listing) => BasicNode::new(format!("{peer_address};{listing}")),
    }
}

/// Where its peers reach it; empty if they don't.
pub(crate) fn peer(node: &BasicNode) -> &str {
    node.addr.split(';').next().unwrap_or_default()
}

/// What ZooKeeper's clients are shown of it.
pub(crate) fn listing(node: &BasicNode) -> Option<Listing> {
    Listing::parse(node.addr.split_once(';')?.1)
}

/// A member of those who are, or are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleMember {
    /// Its id.
    pub id: NodeId,
    /// `host:port` of its peer listener.
    pub peer_address: String,
    /// What ZooKeeper's clients are shown of it; `None`: nothing was ever said.
    pub listing: Option<Listing>,
    /// Whether it votes.
    pub is_voter: bool,
}

impl EnsembleMember {
    /// As it is listed.
    #[must_use]
    pub fn listed(&self) -> Listed<'_> {
        Listed {
            id: self.id,
            peer_address: &self.peer_address,
            listing: self.listing.as_ref(),
            is_voter: self.is_voter,
        }
    }

    pub(crate) fn node(&self) -> BasicNode {
        node(&self.peer_address, self.listing.as_ref())
    }
}

/// All of them, in order of id. Of a change under way, those who come out of it.
pub(crate) fn members(membership: &Membership) -> Vec<EnsembleMember> {
    let voters = membership.get_joint_config().last();
    let member = |(&id, node): (&NodeId, &BasicNode)| EnsembleMember {
        id,
        peer_address: peer(node).to_owned(),
        listing: listing(node),
        is_voter: voters.is_some_and(|voters| voters.contains(&id)),
    };
    membership.nodes().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_split_where_it_was_put_together() {
        let listing = Listing { election_port: 3888, client: "[::1]:2181".to_owned() };
        let node = node("a:2888", Some(&listing));
        assert_eq!(node.addr, "a:2888;3888;[::1]:2181");
        assert_eq!((peer(&node), super::listing(&node)), ("a:2888", Some(listing)));
        let unlisted = BasicNode::new("[::1]:2888");
        assert_eq!((peer(&unlisted), super::listing(&unlisted)), ("[::1]:2888", None));
    }
}
