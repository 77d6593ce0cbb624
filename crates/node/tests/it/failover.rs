//! Leaders that die, are cut off, or hand over, under load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Command, Event, Number, Reply, Request, Stamp, StateMachine, Token};
use lockkeeper_node::{Applied, NodeHandle, Observer, Sink, Timers, Unavailable, WatchId};

use crate::client::{Client, acquire};
use crate::cluster::{Cluster, eventually, start_node};

#[test]
fn no_hold_is_lost_and_no_request_happens_twice_when_the_leader_dies() {
    let mut cluster = Cluster::together(3);
    let leader = cluster.leader();
    let survivors = cluster.followers();
    let is_over = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = survivors
        .iter()
        .cycle()
        .take(6)
        .enumerate()
        .map(|(worker, &node)| {
            let (node, is_over) = (cluster.node(node).clone(), Arc::clone(&is_over));
            let rounds = Arc::clone(&rounds);
            std::thread::spawn(move || work(&node, worker, &is_over, &rounds))
        })
        .collect();
    let mut holder = Client::open(cluster.node(survivors[0]));
    let (held, token) = holder.take("held-all-the-time");

    let get_on = |count| {
        let goal = rounds.load(Ordering::Relaxed) + count;
        eventually("the workers get on", || rounds.load(Ordering::Relaxed) >= goal);
    };
    get_on(100);
    cluster.kill(leader);
    cluster.leader();
    get_on(100);
    is_over.store(true, Ordering::Relaxed);
    let mut tokens = BTreeSet::new();
    for worker in workers {
        for token in worker.join().expect("a worker's checks hold") {
            assert!(tokens.insert(token), "token {token} was granted twice");
        }
    }
    assert_eq!(holder.request(held, &acquire("held-all-the-time")), Reply::Granted { token });
    assert_eq!(holder.release(held), Reply::Released { token, remaining: 0 });
}

/// Takes one name again and again, repeating what isn't answered. Whatever is answered must be what
/// happened once.
fn work(node: &NodeHandle, worker: usize, is_over: &AtomicBool, rounds: &AtomicU64) -> Vec<Token> {
    let mut client = Client::open(node);
    let name = format!("worker-{worker}");
    let mut tokens = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let (held, token) = client.take(&name);
        assert!(tokens.last().is_none_or(|&last| last < token));
        tokens.push(token);
        assert_eq!(client.release(held), Reply::Released { token, remaining: 0 });
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    tokens
}

#[test]
fn a_leader_that_is_back_at_once_does_not_go_on_in_its_old_term() {
    let mut cluster = Cluster::together(3);
    let mut client = Client::open(cluster.node(1));
    let (held, token) = client.take("kept");
    client.leave();
    // Whoever leads now: on a slow disk leadership is handed over.
    let leader = cluster.leader();
    let term = cluster.node(leader).status().term;
    cluster.kill(leader);
    cluster.start(leader);
    cluster.leader();
    assert!(cluster.node(leader).status().term > term);
    client.go_to(cluster.node(cluster.followers()[0]));
    assert_eq!(client.release(held), Reply::Released { token, remaining: 0 });
}

#[test]
fn waiters_keep_their_order_across_a_change_of_leaders() {
    let mut cluster = Cluster::together(3);
    let leader = cluster.leader();
    let survivors = cluster.followers();
    let mut holder = Client::open(cluster.node(survivors[0]));
    let (mut held, _) = holder.take("line");
    let mut waiters: Vec<_> =
        (0..4).map(|i| Client::open(cluster.node(survivors[i % 2]))).collect();
    let places: Vec<_> = waiters.iter_mut().map(|waiter| waiter.queue("line")).collect();
    cluster.kill(leader);
    for (waiter, place) in waiters.into_iter().zip(places) {
        assert!(matches!(holder.release(held), Reply::Released { .. }));
        waiter.granted(place);
        (holder, held) = (waiter, place);
    }
}

#[test]
fn leadership_goes_round_under_load_and_nothing_is_lost() {
    let cluster = Cluster::together(3);
    let is_over = Arc::new(AtomicBool::new(false));
    let rounds: Vec<_> = (1..=3).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let workers: Vec<_> = rounds
        .iter()
        .zip(1..)
        .map(|(rounds, id)| {
            let (node, is_over) = (cluster.node(id).clone(), Arc::clone(&is_over));
            let rounds = Arc::clone(rounds);
            std::thread::spawn(move || work(&node, id as usize, &is_over, &rounds))
        })
        .collect();
    let count = || rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed)).collect::<Vec<_>>();
    for round in 0..3 {
        let so_far = count();
        eventually("everybody gets on", || count().iter().zip(&so_far).all(|(a, b)| a > b));
        // Asked anywhere, and now and then of the leader itself. A machine that stands still
        // meanwhile may have elected somebody by itself.
        let asked = 1 + round % 3;
        eventually("somebody takes over, and leads", || {
            let before = cluster.leader();
            let to = cluster.nodes[&asked].run(async |node| node.transfer_leadership(None).await);
            to.is_ok_and(|to| to != before && cluster.leader() == to)
        });
    }
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        assert!(!worker.join().expect("a worker's checks hold").is_empty());
    }
}

#[test]
fn batches_that_a_broken_link_swallowed_are_sent_again_and_happen_once() {
    let cluster = Cluster::together(3);
    let follower = cluster.followers()[0];
    let mut client = Client::open(cluster.node(follower));
    for round in 0..5u64 {
        // The follower is cut off while its requests are on their way, for less than an election.
        let first = client.next_number();
        let session = client.session;
        let names: Vec<_> = (0..50).map(|i| format!("round-{round}-{i}")).collect();
        let ids: Vec<_> = (0..50).map(|i| 1_000_000 + round * 1_000 + i).collect();
        for (i, (name, id)) in names.iter().zip(&ids).enumerate() {
            let number = Number(first + i as u64);
            let request = acquire(name);
            let command = Command::Request { session, number, floor: Number(1), request };
            client.node().propose(&command, *id, &client.sink());
            if i == 20 {
                cluster.network.cut_off(follower);
            }
        }
        // Long enough for what was sent to get stuck, which nobody sees, and no election yet.
        std::thread::sleep(Duration::from_millis(200));
        cluster.network.heal();
        (1..50).for_each(|_| {
            client.next_number();
        });
        for (i, name) in names.iter().enumerate() {
            let reply = client.reply(ids[i]);
            let again = client.request(first + i as u64, &acquire(name));
            assert!(matches!(again, Reply::Granted { .. }), "{again:?}");
            if let Ok(reply) = reply {
                assert_eq!(reply, again, "the same answer to the same request");
            }
        }
    }
}

#[test]
fn a_minority_of_one_says_that_there_is_no_quorum() {
    let mut cluster = Cluster::together(3);
    let leader = cluster.leader();
    let followers = cluster.followers();
    let mut client = Client::open(cluster.node(leader));
    followers.into_iter().for_each(|id| cluster.kill(id));
    let session = client.session;
    let number = Number(client.next_number());
    let request = Request::Acquire {
        lock: "alone",
        mode: crate::client::EXCLUSIVE,
        wait: false,
        purpose: "",
    };
    eventually("an answer that says so", || {
        let command =
            Command::Request { session, number, floor: Number(1), request: request.clone() };
        match client.try_ask(&command) {
            Err(Unavailable::NoQuorum { reached, of }) => {
                assert_eq!((reached, of), (1, 3));
                true
            }
            Err(_) => false,
            Ok(reply) => panic!("a minority answered {reply:?}"),
        }
    });
    let status = cluster.node(leader).status();
    assert!(!status.is_ready && status.voters_reached == 1, "{status:?}");
    let read = cluster.nodes[&leader].run(async |node| node.read_index().await);
    assert!(read.is_err(), "a minority can't read");
}

#[test]
fn a_follower_that_reaches_no_leader_says_so_although_it_hears_one() {
    let cluster = Cluster::together(3);
    let (leader, follower) = (cluster.leader(), cluster.followers()[0]);
    let mut client = Client::open(cluster.node(follower));
    cluster.network.keep_in(follower);
    // What left before may still be done.
    eventually("nothing is proposed", || {
        let (session, floor, number) = (client.session, Number(1), Number(client.next_number()));
        let request = acquire("out of reach");
        let answer = client.try_ask(&Command::Request { session, number, floor, request });
        match answer {
            Ok(_) => false,
            Err(why) => {
                assert!(
                    matches!(why, Unavailable::NoQuorum { .. } | Unavailable::Unknown),
                    "{why}"
                );
                why != Unavailable::Unknown
            }
        }
    });
    let status = cluster.node(follower).status();
    assert!(!status.is_ready, "{status:?}");
    assert_eq!(status.leader, Some(leader));
    cluster.network.heal();
    eventually("it is reached again", || cluster.node(follower).status().is_ready);
}

#[test]
fn answers_that_take_longer_than_heartbeats_are_apart_count() {
    let cluster = Cluster::together(3);
    let reign = cluster.reign();
    let client = Client::open(cluster.node(reign.0));
    // There and back it takes longer than a heartbeat's interval, and not as long as an election's.
    let Timers { heartbeat, election_min, .. } = Timers::RELAXED;
    let delay = heartbeat * 3 / 4;
    assert!(heartbeat < delay * 2 && delay * 2 < election_min / 2);
    for id in cluster.followers() {
        cluster.network.slow_down(id, delay);
    }
    for _ in 0..3 {
        client.beat_until_confirmed();
    }
    assert_eq!(cluster.reign(), reign, "nobody else was elected");
}

/// Makes it long to apply what it is told of.
struct Sleeper {
    time: Duration,
    sleeps: AtomicBool,
}

impl Sink for Sleeper {
    fn event(&self, _: Option<WatchId>, _: &Event, _: &StateMachine, _: Stamp) {
        self.sleeps.store(true, Ordering::Relaxed);
        std::thread::sleep(self.time);
    }

    fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}
    fn confirmed(&self, _: u64) {}
    fn flush(&self) {}
    fn close(&self, _: &'static str) {}
}

#[test]
fn an_entry_that_is_long_to_apply_changes_no_leader_and_refuses_nobody() {
    let cluster = Cluster::together(3);
    let reign = cluster.reign();
    let mut clients: Vec<_> = (1..=3).map(|id| Client::open(cluster.node(id))).collect();
    // Longer than anybody waits for a leader, and than a leader proposes without being answered;
    // and for the leader longer still.
    let time = |id| Timers::RELAXED.election_max * if id == reign.0 { 4 } else { 3 } / 2;
    let sleeper = |id| Arc::new(Sleeper { time: time(id), sleeps: AtomicBool::new(false) });
    let sleepers: Vec<_> = (1..=3).map(sleeper).collect();
    for (id, sleeper) in (1..).zip(&sleepers) {
        let sink: Arc<dyn Sink> = sleeper.clone();
        cluster.node(id).watch("long", 1, &sink);
    }
    let mut first = clients.swap_remove(0);
    let taking = std::thread::spawn(move || first.take("long"));
    eventually("all are at it", || {
        sleepers.iter().all(|sleeper| sleeper.sleeps.load(Ordering::Relaxed))
    });
    for client in &mut clients {
        let (session, floor, number) = (client.session, Number(1), Number(client.next_number()));
        let request = acquire("other");
        client.try_ask(&Command::Request { session, number, floor, request }).expect("no refusal");
    }
    taking.join().expect("it is granted");
    assert_eq!(cluster.reign(), reign, "nobody else was elected");
}

/// Makes every entry long to apply.
struct Ponderer(Duration);

impl Observer for Ponderer {
    fn applied(&self, _: Applied<'_>) {
        std::thread::sleep(self.0);
    }
    fn leads(&self, _: u64) {}
}

#[test]
fn entries_that_are_long_to_apply_may_be_applied_again_at_a_start() {
    let mut cluster = Cluster::together(3);
    let mut client = Client::open(cluster.node(1));
    client.take("before");
    client.leave();
    cluster.stop(1);
    let mut environment = cluster.network.environment(1);
    environment.observer = Some(Arc::new(Ponderer(Timers::RELAXED.election_min)));
    let node = start_node(cluster.config(1), environment).expect("it starts");
    cluster.nodes.insert(1, node);
    eventually("it is served", || cluster.node(1).status().is_ready);
}

#[test]
fn who_waits_for_a_majority_to_come_or_go_is_woken() {
    let mut cluster = Cluster::together(3);
    let leader = cluster.leader();
    let other = cluster.followers()[0];
    let becomes = |cluster: &Cluster, id, is_ready| {
        cluster.nodes[&id].run(async move |node| {
            let mut serving = node.serving();
            let became = serving.wait_for(|serving| serving.is_ready == is_ready).await;
            became.expect("the node runs").members_since
        })
    };
    let founded = becomes(&cluster, leader, true);
    for id in cluster.followers() {
        cluster.network.cut_off(id);
    }
    // A leader that hears nobody, and a follower that doesn't hear it.
    becomes(&cluster, leader, false);
    becomes(&cluster, other, false);
    cluster.network.heal();
    assert_eq!(becomes(&cluster, leader, true), founded);
    becomes(&cluster, other, true);
    cluster.leader();

    let removed = cluster.nodes[&leader].run(async move |node| node.remove_member(other).await);
    removed.expect("it is removed");
    cluster.kill(other);
    let changed = cluster.nodes[&leader].run(async move |node| {
        let mut serving = node.serving();
        serving.wait_for(|serving| serving.members_since > founded).await.is_ok()
    });
    assert!(changed);
}
