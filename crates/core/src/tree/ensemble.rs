//! The members of the cluster as ZooKeeper's clients read them, in the znode [`ENSEMBLE_PATH`].
//!
//! Who is a member, and where, Raft's own entries say. What ZooKeeper shows of a member besides,
//! its [`Listing`], stands in the same entries, so that both change in one step.

use std::fmt::{self, Write};

/// The znode whose data is the list of members.
pub const ENSEMBLE_PATH: &str = "/zookeeper/config";

/// What ZooKeeper's clients are shown of a member, besides where its peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The second port of ZooKeeper's servers. Lockkeeper's have none: it is kept as it was given.
    pub election_port: u16,
    /// `host:port` for clients; empty if it isn't known.
    pub client: String,
}

/// A member, to be listed.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// Its id.
    pub id: u64,
    /// `host:port` for its peers.
    pub peer_address: &'a str,
    /// `None`: nothing was ever said of it.
    pub listing: Option<&'a Listing>,
    /// Whether it votes.
    pub is_voter: bool,
}

impl Listing {
    /// Reads what its `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (election_port, client) = text.split_once(';')?;
        Some(Self { election_port: election_port.parse().ok()?, client: client.to_owned() })
    }

    /// What is said of a member of which only its address for peers and that for clients are
    /// known.
    #[must_use]
    pub fn of(peer_address: &str, client: String) -> Self {
        let port = peer_address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        // Clients refuse to read a list in which the two ports are one.
        let election_port = match port {
            Some(port @ 0..u16::MAX) => port + 1,
            Some(u16::MAX) | None => u16::MAX - 1,
        };
        Self { election_port, client }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{};{}", self.election_port, self.client)
    }
}

/// The list in ZooKeeper's words, but for its version, which is the zxid of the change. Empty if
/// nothing was said of any member: then no server of the cluster speaks to ZooKeeper's clients.
///
/// Voters are on it, and those of the others of which something was said: a node that only follows
/// is no member to ZooKeeper.
#[must_use]
pub fn list_members(members: &[Listed<'_>]) -> String {
    let mut text = String::new();
    if members.iter().all(|member| member.listing.is_none()) {
        return text;
    }
    for &Listed { id, peer_address, listing, is_voter } in members {
        if !is_voter && listing.is_none() {
            continue;
        }
        let unsaid = Listing::of(peer_address, String::new());
        let Listing { election_port, client } = listing.unwrap_or(&unsaid);
        let role = if is_voter { "participant" } else { "observer" };
        // Writing to a string doesn't fail.
        let _ = write!(text, "server.{id}={peer_address}:{election_port}:{role}");
        if !client.is_empty() {
            let _ = write!(text, ";{client}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Revision, StateMachine};

    #[test]
    fn members_are_listed_as_zookeepers() {
        let said = Listing { election_port: 3888, client: "0.0.0.0:2181".to_owned() };
        let member =
            |id, peer_address, listing, is_voter| Listed { id, peer_address, listing, is_voter };
        let unsaid = [member(1, "a.example:2888", None, true), member(2, "b:2888", None, true)];
        assert_eq!(list_members(&unsaid), "", "nobody speaks to ZooKeeper's clients");
        let members = [
            member(1, "a.example:2888", Some(&said), true),
            member(2, "[::1]:65535", None, true),
            member(3, "c:2888", None, false),
            member(12, "d:2888", Some(&said), false),
        ];
        assert_eq!(
            list_members(&members),
            "server.1=a.example:2888:3888:participant;0.0.0.0:2181\n\
             server.2=[::1]:65535:65534:participant\n\
             server.12=d:2888:3888:observer;0.0.0.0:2181\n"
        );
    }

    #[test]
    fn a_listing_is_read_as_it_is_written() {
        for listing in [
            Listing { election_port: 3888, client: "[::1]:2181".to_owned() },
            Listing::of("a:2888", String::new()),
        ] {
            assert_eq!(Listing::parse(&listing.to_string()), Some(listing));
        }
        for text in ["", "3888", ";a:1", "99999;a:1", "x;a:1"] {
            assert_eq!(Listing::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_changes_with_a_revision_of_its_own_or_not_at_all() {
        let listing = Listing { election_port: 2, client: "a:3".to_owned() };
        let member = |listing| Listed { id: 1, peer_address: "a:1", listing, is_voter: true };
        let mut state = StateMachine::default();
        let mut show = |members: &[Listed<'_>]| {
            let mut events = Vec::new();
            state.set_members(members, &mut events);
            let node = state.tree().node(ENSEMBLE_PATH).expect("it is always there");
            let data = String::from_utf8(node.data.expect("it has some").to_vec()).unwrap();
            let told = events.iter().any(|event| {
                matches!(event, Event::Node { path, zxid, .. }
                    if **path == *ENSEMBLE_PATH && *zxid == state.revision())
            });
            (state.revision(), data, told)
        };
        let nothing = (Revision(0), String::new(), false);
        assert_eq!(show(&[member(None)]), nothing, "nobody speaks to ZooKeeper's clients");
        let one = "server.1=a:1:2:participant;a:3\nversion=1".to_owned();
        assert_eq!(show(&[member(Some(&listing))]), (Revision(1), one.clone(), true));
        assert_eq!(show(&[member(Some(&listing))]), (Revision(1), one, false), "it is no news");
        assert_eq!(show(&[]), (Revision(2), String::new(), true));
    }
}
