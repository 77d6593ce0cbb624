//! Members that come, go, and come back wrongly.

use std::fs;
use std::time::Duration;

use lockkeeper_node::{Member, MembershipError, NodeConfig, NodeId, Start};

use crate::client::Client;
use crate::cluster::{Cluster, Node, eventually, free_address};

/// A node that waits to be added.
fn joining(cluster: &Cluster, id: NodeId) -> (Node, Member) {
    let peer_address = free_address();
    let config = NodeConfig {
        start: Start::Join,
        listen_peer: Some(peer_address.clone()),
        ..cluster.config(id)
    };
    let node = cluster.try_start(config).expect("it starts and waits");
    (node, Member { id, peer_address })
}

fn voters(cluster: &Cluster, at: NodeId) -> Vec<NodeId> {
    let members = cluster.node(at).status().members;
    members.iter().filter(|member| member.is_voter).map(|member| member.member.id).collect()
}

#[test]
fn a_cluster_of_one_grows_to_three_and_shrinks_again() {
    let mut cluster = Cluster::empty();
    let listen_peer = Some(free_address());
    cluster.start_with(cluster.config(1), |config| NodeConfig { listen_peer, ..config });
    cluster.leader();
    let mut client = Client::open(cluster.node(1));
    let (held, token) = client.take("kept");
    for id in [2, 3] {
        let (node, member) = joining(&cluster, id);
        cluster.nodes.insert(id, node);
        // The first one asks the leader itself, the second one its follower.
        let added = cluster.nodes[&(id - 1)].run(async |node| node.add_member(member).await);
        added.expect("it is added");
    }
    eventually("all know all", || (1..=3).all(|id| voters(&cluster, id) == [1, 2, 3]));
    cluster.leader();
    client.go_to(cluster.node(3));
    let again = client.request(held, &crate::client::acquire("kept"));
    assert_eq!(again, lockkeeper_core::Reply::Granted { token });

    // The leader removes itself when it is told to: it hands over first.
    let leader = cluster.leader();
    let asked = cluster.followers()[0];
    let removed = cluster.nodes[&asked].run(async move |node| node.remove_member(leader).await);
    removed.expect("it is removed");
    cluster.kill(leader);
    let left: Vec<_> = cluster.nodes.keys().copied().collect();
    cluster.leader();
    eventually("two are left", || left.iter().all(|&id| voters(&cluster, id) == left));
    Client::open(cluster.node(left[0])).take("with-two");
}

#[test]
fn a_change_that_makes_no_sense_is_refused() {
    let cluster = Cluster::single();
    let outcomes = cluster.nodes[&1].run(async |node| {
        let nowhere = Member { id: 2, peer_address: free_address() };
        [
            node.add_member(nowhere).await,
            node.remove_member(1).await,
            node.remove_member(9).await,
            node.transfer_leadership(Some(9)).await.map(|_| ()),
        ]
    });
    assert!(
        matches!(
            &outcomes,
            [
                Err(MembershipError::Unreachable { node: 2, .. }),
                Err(MembershipError::Refused(_)),
                Err(MembershipError::Refused(_)),
                Err(MembershipError::Refused(_)),
            ]
        ),
        "{outcomes:?}"
    );
}

#[test]
fn leadership_goes_where_it_is_told_to() {
    let cluster = Cluster::together(3);
    for to in cluster.followers() {
        let asked = cluster.followers()[0];
        let led =
            cluster.nodes[&asked].run(async move |node| node.transfer_leadership(Some(to)).await);
        assert_eq!(led, Ok(to));
        eventually("it leads", || cluster.leader() == to);
    }
}

#[test]
fn a_voter_that_lost_its_directory_is_let_in_nowhere() {
    let mut cluster = Cluster::together(3);
    let lost = cluster.followers()[0];
    // Everybody has met everybody, also those that don't lead.
    for id in 1..=3 {
        Client::open(cluster.node(id)).take(&format!("met-{id}"));
    }
    cluster.stop(lost);
    fs::remove_dir_all(cluster.directory(lost)).unwrap();
    cluster.start(lost);
    // That nobody lets it in is seen nowhere but in the logs: several elections' worth of tries.
    std::thread::sleep(Duration::from_secs(3));
    let status = cluster.node(lost).status();
    assert!(!status.is_ready, "{status:?}");
    assert_eq!(status.applied_index, 0, "it was told nothing");

    // Two of three are still a quorum, but not with its help: one more down, and nothing goes.
    cluster.kill(lost);
    Client::open(cluster.node(cluster.leader())).take("with-two");
}

#[test]
fn a_node_of_another_cluster_is_let_in_nowhere() {
    let cluster = Cluster::together(3);
    let mut other = Cluster::empty();
    let peer_address = free_address();
    let listen_peer = Some(peer_address.clone());
    other.start_with(other.config(7), |config| NodeConfig { listen_peer, ..config });
    other.leader();
    Client::open(other.node(7)).take("of-another-cluster");
    let member = Member { id: 7, peer_address };
    let added = cluster.nodes[&1].run(async |node| node.add_member(member).await);
    assert!(matches!(added, Err(MembershipError::Unreachable { node: 7, .. })), "{added:?}");
    let state = other.node(7).query(|state, _| state.lock("of-another-cluster", 1));
    assert!(state.is_some(), "its state is its own");
}

#[test]
fn a_leader_that_stops_in_good_order_hands_over_first() {
    let mut cluster = Cluster::together(3);
    let leader = cluster.leader();
    let follower = cluster.followers()[0];
    let mut client = Client::open(cluster.node(follower));
    let before = cluster.node(follower).status().term;
    cluster.stop(leader);
    let next = cluster.leader();
    assert_eq!(cluster.node(next).status().term, before + 1, "one election was enough");
    client.take("afterwards");
    cluster.start(leader);
    cluster.leader();
}
