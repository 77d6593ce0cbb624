//! One holder at a time, in the order of asking, whichever node is asked.

use lockkeeper_core::{Event, Refusal, Reply};

use crate::client::{Client, Told, acquire, refused};
use crate::cluster::{Cluster, eventually};

#[test]
fn a_single_node_grants_queues_and_passes_on() {
    let cluster = Cluster::single();
    let (mut a, mut b) = (Client::open(cluster.node(1)), Client::open(cluster.node(1)));
    let (number, first) = a.take("jobs/nightly");
    let place = b.queue("jobs/nightly");
    assert_eq!(a.release(number), Reply::Released { token: first, remaining: 0 });
    assert!(b.granted(place) > first);
}

#[test]
fn waiters_on_different_nodes_are_served_in_the_order_of_asking() {
    let cluster = Cluster::together(3);
    let mut holder = Client::open(cluster.node(1));
    let (mut held, mut token) = holder.take("one");
    let mut waiters: Vec<_> = (0..6).map(|i| Client::open(cluster.node(1 + i % 3))).collect();
    let places: Vec<_> = waiters.iter_mut().map(|waiter| waiter.queue("one")).collect();
    for (waiter, place) in waiters.into_iter().zip(places) {
        assert!(matches!(holder.release(held), Reply::Released { .. }));
        let next = waiter.granted(place);
        assert!(next > token, "tokens grow");
        (holder, held, token) = (waiter, place, next);
    }
}

#[test]
fn a_reply_comes_from_the_state_of_the_node_that_was_asked() {
    let cluster = Cluster::together(3);
    for follower in cluster.followers() {
        let mut client = Client::open(cluster.node(follower));
        let name = format!("of-{follower}");
        let (_, token) = client.take(&name);
        // No read index: what was answered here is seen here.
        let seen = cluster.node(follower).query(|state, _| state.lock(&name, 1));
        assert_eq!(seen.map(|lock| lock.holds[0].token), Some(token));
    }
}

#[test]
fn a_read_index_on_a_follower_sees_what_was_answered_elsewhere() {
    let cluster = Cluster::together(3);
    let leader = cluster.leader();
    let mut client = Client::open(cluster.node(leader));
    for round in 0..20 {
        let name = format!("round-{round}");
        client.take(&name);
        for follower in cluster.followers() {
            let seen = cluster.nodes[&follower].run({
                let name = name.clone();
                async move |node| {
                    node.read_index().await.unwrap();
                    node.query(|state, _| state.lock(&name, 0).is_some())
                }
            });
            assert!(seen, "{name} on node {follower}");
        }
    }
}

#[test]
fn a_repeated_request_is_answered_the_same_at_any_node() {
    let cluster = Cluster::together(3);
    let mut a = Client::open(cluster.node(1));
    let mut b = Client::open(cluster.node(2));
    let (number, token) = a.take("once");
    let place = b.queue("once");
    for id in 1..=3 {
        a.go_to(cluster.node(id));
        assert_eq!(a.request(number, &acquire("once")), Reply::Granted { token });
    }
    let released = a.release(number);
    let b_token = b.granted(place);
    // The reply was lost, the lock is another's: the repeated release must not free it.
    let release = lockkeeper_core::Request::Release { acquire: lockkeeper_core::Number(number) };
    for id in 1..=3 {
        a.go_to(cluster.node(id));
        assert_eq!(a.request(number + 1, &release), released);
    }
    assert_eq!(b.request(place, &acquire("once")), Reply::Granted { token: b_token });
}

#[test]
fn a_watch_is_told_of_every_lock_below_its_prefix_and_of_no_other() {
    let cluster = Cluster::together(3);
    let watcher = Client::open(cluster.node(2));
    watcher.node().watch("jobs/", 5, &watcher.sink());
    let mut client = Client::open(cluster.node(1));
    let (number, _) = client.take("jobs/a");
    client.take("other/b");
    client.release(number);
    watcher.ear.wait("the release", |told| match told {
        Told::Event(Some(5), Event::Released { lock, .. }) if &**lock == "jobs/a" => Some(()),
        _ => None,
    });
    let is_other = |told: &Told| match told {
        Told::Event(Some(5), Event::Granted { lock, .. }) => &**lock != "jobs/a",
        _ => false,
    };
    assert!(!watcher.ear.has(is_other));
    watcher.node().unwatch(5, &watcher.sink());
}

#[test]
fn a_secret_that_is_wrong_and_a_session_that_is_not_are_refused() {
    let cluster = Cluster::single();
    let client = Client::open(cluster.node(1));
    let sink = client.sink();
    let (session, secret) = (client.session, client.secret);
    let answers = cluster.nodes[&1].run(async move |node| {
        let wrong = lockkeeper_core::Secret([0; 16]);
        let nobody = lockkeeper_core::SessionId(1);
        [
            node.attach(session, &wrong, &sink).await.unwrap().map(|_| ()),
            node.attach(nobody, &secret, &sink).await.unwrap().map(|_| ()),
        ]
    });
    assert_eq!(answers, [Err(Refusal::WrongSecret), Err(Refusal::UnknownSession)]);
    let unknown = client.request(0, &acquire("x"));
    assert_eq!(unknown, refused(Refusal::NumberReused));
    eventually("an answer", || cluster.node(1).status().is_ready);
}
