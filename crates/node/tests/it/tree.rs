//! The tree of znodes across nodes: who is told, in which order, and how large a znode may be.

use lockkeeper_core::{
    AclRef, Command, Event, IdRef, NodeChange, NodeKind, Refusal, Reply, SessionId, TreeError,
    TreeOp,
};

use crate::client::{Client, Told, refused};
use crate::cluster::{Cluster, eventually};

#[test]
fn whoever_watches_the_tree_is_told_before_the_answer() {
    let cluster = Cluster::together(3);
    let client = Client::open(cluster.node(1));
    let elsewhere = Client::open(cluster.node(2));
    cluster.node(1).watch_tree(&client.sink());
    cluster.node(2).watch_tree(&elsewhere.sink());
    let reply = client.ask(|| tree(client.session, 0, vec![create("/a", b""), set("/a", b"x")]));
    assert!(matches!(reply, Reply::Tree(_)), "{reply:?}");
    let heard = client.ear.heard();
    let answered = heard.iter().position(|told| matches!(told, Told::Reply(_, Ok(Reply::Tree(_)))));
    let changed = heard.iter().rposition(|told| change_of(told).is_some());
    assert!(changed < answered, "the answer came first: {heard:?}");
    let is_whole = |client: &Client| {
        let heard = client.ear.heard();
        let changes: Vec<_> = heard.iter().filter_map(change_of).collect();
        changes == [NodeChange::Created, NodeChange::DataChanged]
    };
    eventually("both are told of both changes, in order", || {
        is_whole(&client) && is_whole(&elsewhere)
    });
    cluster.node(2).detach(&elsewhere.sink());
    client.ask(|| tree(client.session, 0, vec![set("/a", b"y")]));
    elsewhere.ask(|| tree(elsewhere.session, 0, vec![check("/a", 2)]));
    assert!(is_whole(&elsewhere), "who has left is told nothing");
}

#[test]
fn a_session_moves_and_its_earlier_connection_is_told() {
    let cluster = Cluster::together(3);
    let first = Client::open(cluster.node(1));
    let (session, secret) = (first.session, first.secret);
    let mut second = Client::open(cluster.node(2));
    second.session = session;
    let resume = Command::ResumeSession { session, secret, ttl_ms: 60_000, connection: 7 };
    assert_eq!(second.ask(|| resume.clone()), Reply::Done);
    let moved =
        |told: &Told| *told == Told::Event(None, Event::SessionMoved { session, connection: 7 });
    first.ear.wait("the news that its session has moved", |told| moved(told).then_some(()));
    let late = first.ask(|| tree(session, 0, vec![create("/late", b"")]));
    assert_eq!(late, refused(Refusal::Tree { index: 0, error: TreeError::SessionMoved }));
    assert!(matches!(second.ask(|| tree(session, 7, vec![create("/a", b"")])), Reply::Tree(_)));

    // The end of the session is told where it is now, and nowhere else.
    second.end();
    let ended = |told: &Told| matches!(told, Told::Event(None, Event::SessionEnded { .. }));
    second.ear.wait("the end of its session", |told| ended(told).then_some(()));
    eventually("the first node has applied it", || {
        cluster.node(1).query(|state, _| state.lease(session).is_none())
    });
    assert!(!first.ear.has(ended), "who has lost its session to another is told of its end");
}

/// What fits into a frame of a ZooKeeper client goes through a follower's link, the logs, and
/// snapshots.
#[test]
fn the_largest_znode_goes_everywhere() {
    let mut cluster = Cluster::together(3);
    let follower = cluster.followers()[0];
    let mut client = Client::open(cluster.node(follower));
    let data = vec![b'x'; FRAME_BYTES_MAX - 100];
    let session = client.session;
    let reply = client.ask(|| tree(session, 0, vec![create("/large", &data)]));
    assert!(is_done(&reply), "refused");
    let reply = client.ask(|| tree(session, 0, vec![create("/e", b""), set("/large", &data)]));
    assert!(is_done(&reply), "refused");
    let is_there = |cluster: &Cluster, id| {
        cluster.node(id).query(|state, _| {
            let node = state.tree().node("/large");
            node.is_some_and(|node| node.data == Some(&data) && node.stat.version == 1)
        })
    };
    eventually("all have it", || (1..=3).all(|id| is_there(&cluster, id)));
    cluster.nodes[&1].run(async |node| node.snapshot().await).unwrap();
    client.leave();
    for id in 1..=3 {
        cluster.kill(id);
    }
    (1..=3).for_each(|id| cluster.start(id));
    cluster.leader();
    eventually("all have it again", || (1..=3).all(|id| is_there(&cluster, id)));
}

/// Now, or when it was asked before: who isn't answered asks again.
fn is_done(reply: &Reply) -> bool {
    let was_done = Refusal::Tree { index: 0, error: TreeError::NodeExists };
    matches!(reply, Reply::Tree(_)) || *reply == refused(was_done)
}

fn tree(session: SessionId, connection: u64, ops: Vec<TreeOp<'_>>) -> Command<'_> {
    Command::Tree { session, connection, ids: Vec::new(), enforce_quota: false, ops }
}

fn create<'a>(path: &'a str, data: &'a [u8]) -> TreeOp<'a> {
    let acl = vec![AclRef { perms: 31, id: IdRef { scheme: "world", id: "anyone" } }];
    let kind = NodeKind::Persistent;
    TreeOp::Create { path, data: Some(data), acl, kind, sequential: false }
}

fn set<'a>(path: &'a str, data: &'a [u8]) -> TreeOp<'a> {
    TreeOp::SetData { path, data: Some(data), version: -1 }
}

fn check(path: &str, version: i32) -> TreeOp<'_> {
    TreeOp::Check { path, version }
}

fn change_of(told: &Told) -> Option<NodeChange> {
    match told {
        Told::Event(None, Event::Node { change, .. }) => Some(*change),
        _ => None,
    }
}

/// Of a request, with all that is in it.
const FRAME_BYTES_MAX: usize = 0xf_ffff;
