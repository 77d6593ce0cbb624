//! Members that come, go, and come back wrongly.

use std::fs;
use std::time::Duration;

use lockkeeper_core::{ENSEMBLE_PATH, Listing};
use lockkeeper_node::{
    EnsembleMember, Member, MembershipError, NodeConfig, NodeHandle, NodeId, ReconfigureError,
    Start,
};

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
        // A machine that stands still meanwhile may elect another one: then it is told again.
        eventually("it is done, and it leads", || {
            let transfer = async move |node: NodeHandle| node.transfer_leadership(Some(to)).await;
            cluster.nodes[&asked].run(transfer) == Ok(to) && cluster.leader() == to
        });
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
    // A machine that stands still makes elections of its own: then it is tried once more.
    let is_one_election = |round: u64| {
        let leader = cluster.leader();
        let follower = cluster.followers()[0];
        let mut client = Client::open(cluster.node(follower));
        let before = cluster.node(follower).status().term;
        cluster.stop(leader);
        let next = cluster.leader();
        let terms = cluster.node(next).status().term - before;
        client.take(&format!("afterwards-{round}"));
        cluster.start(leader);
        cluster.leader();
        terms == 1
    };
    assert!((0..5).any(is_one_election), "one election is enough");
}

fn listing(port: u16) -> Option<Listing> {
    Some(Listing { election_port: 3888, client: format!("127.0.0.1:{port}") })
}

fn listed(member: Member, port: u16, is_voter: bool) -> EnsembleMember {
    let Member { id, peer_address } = member;
    EnsembleMember { id, peer_address, listing: listing(port), is_voter }
}

/// What ZooKeeper's clients read of the members at a node.
fn shown(cluster: &Cluster, at: NodeId) -> String {
    cluster.node(at).query(|state, _| {
        let node = state.tree().node(ENSEMBLE_PATH).expect("it is always there");
        let version = format!("version={:x}", node.stat.mzxid.0);
        let data = String::from_utf8(node.data.unwrap_or_default().to_vec()).expect("text");
        assert!(data.is_empty() || data.ends_with(&version), "{data:?} {version}");
        data
    })
}

fn reconfigure(
    cluster: &Cluster,
    at: NodeId,
    base: u64,
    members: Vec<EnsembleMember>,
) -> Result<(), ReconfigureError> {
    cluster.nodes[&at].run(async move |node| node.reconfigure(base, members).await)
}

#[test]
fn all_members_change_in_one_step_and_are_shown_as_they_are() {
    let mut cluster = Cluster::together(3);
    let asked = cluster.followers()[0];
    assert_eq!(shown(&cluster, asked), "", "nobody has said anything of itself");
    for id in 1..=3 {
        let client = format!("127.0.0.1:{}", 2180 + id);
        cluster.nodes[&id].run(async move |node| node.keep_listed(client, false));
    }
    eventually("all are shown", || {
        (1..=3).all(|id| shown(&cluster, id).matches(";127").count() == 3)
    });
    let before = cluster.node(asked).ensemble();

    // One comes as a voter, one as an observer that nobody has started, and a voter goes: the
    // leader itself.
    let leader = cluster.leader();
    let (node, joins) = joining(&cluster, 4);
    cluster.nodes.insert(4, node);
    let mut target: Vec<_> =
        before.members.iter().filter(|member| member.id != leader).cloned().collect();
    target.push(listed(joins, 2184, true));
    target.push(listed(Member { id: 9, peer_address: free_address() }, 2189, false));
    reconfigure(&cluster, asked, before.version, target.clone()).expect("it is done");
    let stay = [1, 2, 3, 4].into_iter().filter(|&id| id != leader).collect::<Vec<_>>();
    eventually("it is shown", || {
        stay.iter().all(|&id| {
            let shown = shown(&cluster, id);
            shown.contains("server.4=") && shown.contains(":observer;127.0.0.1:2189\n")
        })
    });
    assert!(stay.iter().all(|&id| voters(&cluster, id) == stay));
    assert!(!shown(&cluster, asked).contains(&format!("server.{leader}=")));
    let texts: Vec<_> = stay.iter().map(|&id| shown(&cluster, id)).collect();
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "{texts:?}");

    // To members that are gone, nothing is done.
    let late = reconfigure(&cluster, asked, before.version, target);
    assert_eq!(late, Err(ReconfigureError::Moved));
    Client::open(cluster.node(4)).take("with-the-new-one");
    // It itself may know of no leader any more.
    eventually("the one that left is forgotten", || {
        let leads = |&id: &NodeId| cluster.node(id).leads();
        stay.iter().copied().find(leads).is_some_and(|id| {
            let members = cluster.node(id).status().members;
            members.iter().all(|member| member.member.id != leader)
        })
    });
}

#[test]
fn whoever_nobody_could_list_is_listed_once_there_is_a_majority() {
    let mut cluster = Cluster::together(3);
    let alone = cluster.leader();
    let others = cluster.followers();
    others.iter().for_each(|&id| cluster.stop(id));
    eventually("it is alone", || !cluster.node(alone).status().is_ready);
    let client = format!("127.0.0.1:{}", 2180 + alone);
    cluster.nodes[&alone].run(async move |node| node.keep_listed(client, false));
    others.iter().for_each(|&id| cluster.start(id));
    let own = format!(";127.0.0.1:{}", 2180 + alone);
    eventually("it is shown", || (1..=3).all(|id| shown(&cluster, id).contains(&own)));
}

#[test]
fn members_that_would_be_no_majority_are_refused_and_nothing_changes() {
    let cluster = Cluster::together(3);
    let asked = cluster.followers()[0];
    eventually("it has seen them", || cluster.node(asked).ensemble().members.len() == 3);
    let before = cluster.node(asked).ensemble();
    let nobody = |id| listed(Member { id, peer_address: free_address() }, 2181, true);
    let mut target = before.members.clone();
    target.extend((4..=7).map(nobody));
    let refused = reconfigure(&cluster, asked, before.version, target);
    assert_eq!(refused, Err(ReconfigureError::NoQuorum));
    let empty = reconfigure(&cluster, asked, before.version, Vec::new());
    assert!(matches!(empty, Err(ReconfigureError::Refused(_))), "{empty:?}");
    assert_eq!(cluster.node(asked).ensemble(), before);

    // What a majority of those who would be there can do without is no hindrance.
    let mut target = before.members.clone();
    target.push(nobody(4));
    reconfigure(&cluster, asked, before.version, target).expect("three of four are there");
    eventually("it votes", || voters(&cluster, asked) == [1, 2, 3, 4]);
    Client::open(cluster.node(asked)).take("without-the-fourth");
}
