//! Who lives, and for how long: heartbeats, confirmations, expiry, revocation, moving house.

use std::time::{Duration, Instant};

use lockkeeper_core::{Command, EndReason, Event, LossReason, Reply, Request, Secret};

use lockkeeper_node::NodeHandle;

use crate::client::{Client, Told};
use crate::cluster::{Cluster, eventually};

/// Leases in these tests: longer than a machine stands still whose disk or processors stall,
/// shorter than anybody's patience.
const TTL_MS: u32 = 6_000;

#[test]
fn a_single_voter_confirms() {
    let cluster = Cluster::single();
    let client = Client::open(cluster.node(1));
    client.beat_until_confirmed();
}

#[test]
fn heartbeats_are_confirmed_at_every_node_of_three() {
    let cluster = Cluster::together(3);
    for id in 1..=3 {
        let client = Client::open(cluster.node(id));
        client.beat_until_confirmed();
    }
}

#[test]
fn a_silent_session_ends_and_its_lock_passes_on() {
    let cluster = Cluster::together(3);
    let begin = |id| {
        let name = format!("lock-{id}");
        let mut waiter = Client::open(cluster.node(1 + id % 3));
        let begun = Instant::now();
        let mut silent = Client::open_with_ttl(cluster.node(id), TTL_MS);
        let (_, token) = silent.take(&name);
        let place = waiter.queue(&name);
        (silent, token, waiter, place, begun)
    };
    // All at once: the leases run out side by side.
    let all: Vec<_> = (1..=3).map(begin).collect();
    for (silent, token, waiter, place, begun) in all {
        assert!(waiter.granted(place) > token);
        assert!(begun.elapsed() > Duration::from_millis(u64::from(TTL_MS) * 8 / 10), "too early");
        let reason = LossReason::SessionEnded(EndReason::Expired);
        silent.ear.wait("the loss", |told| match told {
            Told::Event(None, Event::Lost { reason: told, .. }) if *told == reason => Some(()),
            _ => None,
        });
        silent.ear.wait("the end", |told| {
            matches!(told, Told::Event(None, Event::SessionEnded { .. })).then_some(())
        });
    }
}

#[test]
fn a_session_that_is_heard_of_lives_on() {
    let cluster = Cluster::together(3);
    let clients: Vec<_> =
        (1..=3).map(|id| Client::open_with_ttl(cluster.node(id), TTL_MS)).collect();
    // The time that passes is what is tested.
    let end = Instant::now() + Duration::from_millis(u64::from(TTL_MS) * 3 / 2);
    while Instant::now() < end {
        for client in &clients {
            client.node().heard(client.session);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for client in &clients {
        client.beat_until_confirmed();
    }
}

#[test]
fn a_node_that_is_cut_off_confirms_nothing_and_grants_nothing() {
    let cluster = Cluster::together(3);
    let leader = cluster.leader();
    let mut inside = Client::open(cluster.node(leader));
    inside.take("before");
    inside.beat_until_confirmed();

    cluster.network.cut_off(leader);
    // What is on its way may still arrive; afterwards nothing does.
    eventually("it hears nobody", || !cluster.node(leader).status().is_ready);
    let beats: Vec<_> = (0..10).map(|_| inside.beat()).collect();
    let number = inside.next_number();
    let session = inside.session;
    let lone = inside.try_ask(&Command::Request {
        session,
        number: lockkeeper_core::Number(number),
        floor: lockkeeper_core::Number(1),
        request: crate::client::acquire("minority"),
    });
    // This answer takes longer than any confirmation may.
    assert!(lone.is_err(), "a minority of one answered {lone:?}");
    assert!(!beats.iter().any(|beat| inside.is_confirmed(*beat)), "confirmed without a quorum");

    // The others go on, and the lock of the minority's client is still its own.
    let other = if leader == 1 { 2 } else { 1 };
    let mut outside = Client::open(cluster.node(other));
    outside.queue("before");
    outside.take("minority");
    cluster.network.heal();
    cluster.leader();
    inside.beat_until_confirmed();
}

#[test]
fn a_new_leader_gives_every_session_a_full_lease() {
    let mut cluster = Cluster::together(3);
    // A machine that stands still makes elections of its own: then it begins once more.
    for round in 0..5 {
        let name = format!("kept-{round}");
        let leader = cluster.leader();
        let survivor = cluster.followers()[0];
        let term = cluster.node(survivor).status().term;
        let mut other = Client::open(cluster.node(survivor));
        let mut client = Client::open_with_ttl(cluster.node(survivor), 8_000);
        let (held, token) = client.take(&name);
        let place = other.queue(&name);
        // Much of the lease passes in silence, which is what is tested; then the leader dies.
        std::thread::sleep(Duration::from_secs(3));
        if cluster.node(survivor).status().term != term {
            continue;
        }
        let begun = Instant::now();
        cluster.kill(leader);
        let next = other.granted(place);
        assert!(next > token);
        // The old leader would have ended it after five more seconds.
        assert!(begun.elapsed() > Duration::from_millis(6_400), "{:?}", begun.elapsed());
        let released = client.release(held);
        assert!(matches!(released, Reply::Refused(_)), "{released:?}");
        return;
    }
    panic!("there was never one leader for three seconds");
}

#[test]
fn a_session_moves_to_another_node_with_its_subscription() {
    let cluster = Cluster::together(3);
    let mut holder = Client::open(cluster.node(1));
    let (held, _) = holder.take("moving");
    let mut waiter = Client::open(cluster.node(2));
    let place = waiter.queue("moving");
    let first = std::sync::Arc::clone(&waiter.ear);

    waiter.resume(cluster.node(2), |waiter| attach(&cluster, 2, waiter));
    first.wait("its end", |told| (*told == Told::Closed).then_some(()));
    waiter.resume(cluster.node(3), |waiter| attach(&cluster, 3, waiter));
    holder.release(held);
    waiter.granted(place);
}

fn attach(cluster: &Cluster, node: u64, client: &Client) {
    let (session, secret, sink) = (client.session, client.secret, client.sink());
    let attached = cluster.nodes[&node]
        .run(async move |node| node.attach(session, &secret, &sink).await)
        .expect("the node can say")
        .expect("the session lives");
    assert_eq!(attached.session.id, session);
}

#[test]
fn a_wrong_secret_moves_nothing() {
    let cluster = Cluster::single();
    let client = Client::open(cluster.node(1));
    let (session, sink) = (client.session, client.sink());
    let stranger = cluster.nodes[&1]
        .run(async move |node| node.attach(session, &Secret([9; 16]), &sink).await)
        .expect("the node can say");
    assert!(stranger.is_err());
    assert!(!client.ear.has(|told| *told == Told::Closed));
}

#[test]
fn a_revoked_session_is_confirmed_no_more_and_ends_after_a_lease() {
    let cluster = Cluster::together(3);
    let follower = cluster.followers()[0];
    let mut client = Client::open_with_ttl(cluster.node(follower), TTL_MS);
    let (_, token) = client.take("asked-back");
    client.beat_until_confirmed();
    let begun = Instant::now();
    let revoked = client.ask(|| Command::RevokeSession { session: client.session });
    assert_eq!(revoked, Reply::Done);
    // It goes on beating, in vain.
    let mut beats = Vec::new();
    eventually("the end of the session", || {
        beats.push(client.beat());
        // Much more often than a client beats, and not as often as it could.
        std::thread::sleep(Duration::from_millis(50));
        client.ear.has(|told| {
            matches!(told, Told::Event(None, Event::SessionEnded { reason, .. })
                if *reason == EndReason::Revoked)
        })
    });
    assert!(begun.elapsed() > Duration::from_millis(u64::from(TTL_MS) * 8 / 10), "too early");
    assert!(!beats.iter().any(|beat| client.is_confirmed(*beat)));
    let mut next = Client::open(cluster.node(follower));
    assert!(next.take("asked-back").1 > token);
}

#[test]
fn who_gives_a_revoked_hold_back_is_confirmed_again() {
    let cluster = Cluster::together(3);
    let mut client = Client::open(cluster.node(1));
    let (held, if_token) = client.take("asked-back");
    let revoke = client.ask(|| Command::RevokeHold { lock: "asked-back", if_token, now: false });
    assert_eq!(revoke, Reply::Done);
    client.ear.wait("the request", |told| {
        matches!(told, Told::Event(None, Event::Revoked { .. })).then_some(())
    });
    assert!(matches!(client.release(held), Reply::Released { .. }));
    client.beat_until_confirmed();
}

#[test]
fn the_leases_left_are_known_everywhere() {
    let cluster = Cluster::together(3);
    let client = Client::open_with_ttl(cluster.node(1), 50_000);
    let (session, nobody) = (client.session, lockkeeper_core::SessionId(1));
    for id in 1..=3 {
        // Without a leader nobody knows.
        eventually("it is known", || {
            let asking = async move |node: NodeHandle| node.leases_left(&[session, nobody]).await;
            matches!(cluster.nodes[&id].run(asking)[..], [Some(1..=50_000), None])
        });
    }
}

#[test]
fn an_operator_who_passes_a_lock_on_at_once_does() {
    let cluster = Cluster::together(3);
    let mut holder = Client::open(cluster.node(1));
    let (held, if_token) = holder.take("forced");
    let mut waiter = Client::open(cluster.node(2));
    let place = waiter.queue("forced");
    let forced = waiter.ask(|| Command::RevokeHold { lock: "forced", if_token, now: true });
    assert_eq!(forced, Reply::Done);
    assert!(waiter.granted(place) > if_token);
    let number = holder.next_number();
    let acquire = lockkeeper_core::Number(held);
    let released = holder.request(number, &Request::Release { acquire });
    assert!(matches!(released, Reply::Refused(_)));
}
