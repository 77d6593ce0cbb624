//! Cases of others: what has broken other lock services, tried on this one. Each is named after its
//! id in the list of docs/testing.md, "Cases of others".

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::network::SystemNetwork;
use lockkeeper::{Client, Error, Guard};
use lockkeeper_sim::Chance;
use lockkeeper_sim::workload::zookeeper::{self as zk, Nobody};
use lockkeeper_wire::jute::{CreateOp, ErrorCode, OpCode, Read, Reply, Request, SetData};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::dice::Dice;
use crate::proxy::{End, Flow, Link, WORKERS, ZOOKEEPER_WORKERS};
use crate::runs;
use crate::servers::{FOUNDERS, health, leader, listener, url_for};
use crate::world::World;
use crate::zookeeper::{compare_trees, servers_of, tree_of};

/// A client's end of the network; each case has a world of its own.
const FIRST: End = WORKERS;
const SECOND: End = WORKERS + 1;
const THIRD: End = WORKERS + 2;

async fn world(case: &str) -> Arc<World> {
    World::start(case, &[], &mut Dice::new(1)).await
}

/// A client behind proxies of its own.
async fn client(world: &World, end: End, ttl: Duration) -> Client {
    let url = url_for(&world.net, end).await;
    let builder = Client::builder().url(url).ttl(ttl).connect_timeout(Duration::from_secs(20));
    builder.connect().await.expect("a server is reached")
}

fn set_flows(world: &World, end: End, flow: Flow) {
    for id in FOUNDERS {
        world.net.set_flow(end, id, flow);
        world.net.set_flow(id, end, flow);
    }
}

/// How long a case waits for what must come: the end of a wait in vain, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

async fn acquire(client: &Client, lock: &str) -> Guard {
    let request = client.lock(lock).wait_at_most(PATIENCE);
    request.acquire().await.expect("the lock is free in the end")
}

/// Where a client of ZooKeeper's protocol reaches the servers, behind proxies of its own.
async fn zookeeper_servers(world: &World, end: End) -> Vec<(String, u16)> {
    let url = url_for(&world.net, end).await;
    servers_of(&url).expect("it is a client of ZooKeeper's protocol")
}

/// A session of one.
async fn zookeeper(servers: Vec<(String, u16)>, timeout: Duration, seed: u64) -> zk::Client {
    let network = Arc::new(SystemNetwork);
    let open = zk::Client::open(Arc::new(Nobody), network, servers, timeout, Chance::new(seed));
    open.await.expect("a session")
}

/// Waits until so many wait for the lock.
async fn until_waiting(client: &Client, lock: &str, count: u32) {
    let limit = Instant::now() + PATIENCE;
    while Instant::now() < limit {
        if let Ok(Some(view)) = client.admin().get_lock(lock, 1).await
            && view.waiter_count == count
        {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{lock} never had {count} waiters");
}

/// Waits until nobody holds the lock or waits for it.
async fn until_unused(client: &Client, lock: &str) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Ok(None) = client.admin().get_lock(lock, 1).await {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{lock} stays in use");
}

/// The lease of a waiter runs out while it waits. It never gets the lock, and the next one does.
pub(crate) async fn me_1() {
    let world = world("me-1").await;
    let (long, short) = (Duration::from_secs(60), Duration::from_secs(6));
    let holder = client(&world, FIRST, long).await;
    let waiter = client(&world, SECOND, short).await;
    let guard = acquire(&holder, "x").await;
    let waiting = tokio::spawn(async move { waiter.lock("x").acquire().await });
    until_waiting(&holder, "x", 1).await;
    set_flows(&world, SECOND, Flow::Hold);
    until_waiting(&holder, "x", 0).await;
    let first_token = guard.token();
    guard.release().await.expect("it is held");
    let third = client(&world, THIRD, long).await;
    let next = acquire(&third, "x").await;
    assert!(next.token() > first_token);
    set_flows(&world, SECOND, Flow::Pass);
    let answer = waiting.await.expect("it doesn't panic");
    assert!(matches!(answer, Err(Error::Lost(_))), "{answer:?}");
    next.check().expect("it is held");
}

/// What is granted late is counted from the moment at which it was asked for: a guard whose lease
/// is over is never returned.
pub(crate) async fn me_7() {
    let world = world("me-7").await;
    let slow = client(&world, FIRST, Duration::from_secs(1)).await;
    let other = client(&world, SECOND, Duration::from_secs(10)).await;
    drop(acquire(&slow, "warm").await);
    for (from, to) in FOUNDERS.iter().flat_map(|&id| [(FIRST, id), (id, FIRST)]) {
        world.net.set_flow(from, to, Flow::Delay(Duration::from_millis(1_500)));
        let asked = tokio::spawn({
            let slow = slow.clone();
            async move {
                let asking = timeout(Duration::from_secs(4), slow.lock("x").acquire());
                let guard = asking.await.ok()?.ok()?;
                guard.check().expect("a guard that is returned is held");
                Some(guard)
            }
        });
        // Most of a lease that isn't renewed: then the other one tries.
        sleep(Duration::from_millis(800)).await;
        if let Some(guard) = asked.await.expect("it doesn't panic") {
            let taken = other.lock("x").try_acquire().await;
            assert!(taken.is_err() || guard.check().is_err(), "two hold it");
        }
        world.net.set_flow(from, to, Flow::Pass);
    }
    until_unused(&other, "x").await;
}

/// A try whose answer is swallowed leaves nothing behind once the network is whole again.
pub(crate) async fn st_2() {
    let world = world("st-2").await;
    let holder = client(&world, FIRST, Duration::from_secs(20)).await;
    let trying = client(&world, SECOND, Duration::from_secs(10)).await;
    drop(acquire(&trying, "warm").await);
    let guard = acquire(&holder, "x").await;
    for id in FOUNDERS {
        world.net.set_link(SECOND, id, Link::NoReplies);
    }
    let tried = timeout(Duration::from_millis(700), trying.lock("x").try_acquire()).await;
    assert!(tried.is_err(), "{tried:?}");
    // The client has time to ask again in vain, and then to come to what it has to settle: that
    // nothing comes of it can't be waited for otherwise.
    sleep(Duration::from_millis(1_300)).await;
    world.net.heal();
    sleep(Duration::from_secs(2)).await;
    let view = holder.admin().get_lock("x", 10).await.expect("an answer").expect("it is held");
    assert_eq!((view.hold_count, view.waiter_count), (1, 0));
    guard.release().await.expect("it is held");
    until_unused(&holder, "x").await;
}

/// A release that the network swallowed is made good when it is whole again, with the guard
/// released and with the guard dropped.
pub(crate) async fn st_4() {
    let world = world("st-4").await;
    let holder = client(&world, FIRST, Duration::from_secs(15)).await;
    let next = client(&world, SECOND, Duration::from_secs(15)).await;
    for is_dropped in [false, true] {
        let guard = acquire(&holder, "x").await;
        let session = guard.session().id;
        set_flows(&world, FIRST, Flow::Swallow);
        if is_dropped {
            drop(guard);
        } else {
            let released = timeout(Duration::from_millis(300), guard.release()).await;
            assert!(released.is_err(), "{released:?}");
        }
        // Long enough for it to be sent, and for that to be in vain.
        sleep(Duration::from_millis(1_500)).await;
        set_flows(&world, FIRST, Flow::Pass);
        until_unused(&next, "x").await;
        let lives = next.admin().get_session(session).await.expect("an answer").is_some();
        assert!(lives, "it is free by the end of the session, and not by the release");
    }
}

/// Futures that are dropped at any moment, and renewals under way meanwhile, leave neither place
/// nor hold nor session.
pub(crate) async fn st_5_and_st_6() {
    let world = world("st-5").await;
    let busy = client(&world, FIRST, Duration::from_secs(6)).await;
    let other = client(&world, SECOND, Duration::from_secs(60)).await;
    let session = acquire(&busy, "x").await.session().id;
    let mut dice = Dice::new(5);
    for id in FOUNDERS {
        world.net.set_flow(id, FIRST, Flow::Delay(Duration::from_millis(5)));
    }
    for _ in 0..500 {
        let got = timeout(dice.millis(0, 20), busy.lock("x").acquire()).await;
        if let Ok(Ok(guard)) = got
            && dice.chance(50)
        {
            std::thread::spawn(move || drop(guard));
        }
    }
    until_unused(&other, "x").await;
    let guard = acquire(&busy, "x").await;
    assert_eq!(guard.session().id, session, "nothing of it was freed by the end of a session");
    drop(guard);
    busy.close().await;
    let sessions = other.admin().list_sessions(None, 0).await.expect("an answer").items;
    assert!(sessions.is_empty(), "{sessions:?}");
}

/// A lock goes from hand to hand, and nobody sleeps while it is free.
pub(crate) async fn wk_1() {
    let world = world("wk-1").await;
    let mut players = JoinSet::new();
    for end in [FIRST, SECOND] {
        let player = client(&world, end, PATIENCE).await;
        players.spawn(async move {
            let mut dice = Dice::new(u64::from(end));
            let mut longest = Duration::ZERO;
            for _ in 0..1_000 {
                let asked = Instant::now();
                let guard = acquire(&player, "x").await;
                longest = longest.max(asked.elapsed());
                sleep(dice.millis(0, 2)).await;
                guard.release().await.expect("it is held");
            }
            longest
        });
    }
    while let Some(longest) = players.join_next().await {
        let longest = longest.expect("a player doesn't panic");
        // A lost wake-up lasts until something else happens, which a lease of a minute puts off; a
        // busy machine isn't one.
        assert!(longest < Duration::from_secs(15), "somebody waited for {longest:?}");
    }
}

/// The server that a waiter asked stands still. The waiter goes to another and keeps its place.
pub(crate) async fn wk_5() {
    let world = world("wk-5").await;
    let holder = client(&world, FIRST, Duration::from_secs(20)).await;
    let waiter = client(&world, SECOND, Duration::from_secs(6)).await;
    drop(acquire(&waiter, "warm").await);
    let session = waiter.session().expect("it is open").id;
    let guard = acquire(&holder, "x").await;
    let asked = waiter.clone();
    let waiting = tokio::spawn(async move { acquire(&asked, "x").await });
    until_waiting(&holder, "x", 1).await;
    // Whichever it is connected to: each stands still in turn.
    for id in FOUNDERS {
        world.servers.lock().pause(id);
        // Longer than a client of this lease hears a silent server out, shorter than the lease.
        sleep(Duration::from_millis(2_500)).await;
        world.servers.lock().go_on(id);
        world.wait_for_leader().await;
    }
    guard.release().await.expect("it is held");
    let guard = waiting.await.expect("it doesn't panic");
    assert_eq!(guard.session().id, session);
}

/// Many who wait are cut off at once. The one behind them waits for one lease, not for theirs one
/// after another.
pub(crate) async fn fa_1() {
    let world = world("fa-1").await;
    let ttl = Duration::from_secs(6);
    let holder = client(&world, FIRST, Duration::from_secs(20)).await;
    let live = client(&world, THIRD, Duration::from_secs(20)).await;
    let guard = acquire(&holder, "x").await;
    let url = url_for(&world.net, SECOND).await;
    let mut dead = JoinSet::new();
    for _ in 0..50 {
        let url = url.clone();
        dead.spawn(async move {
            let client = Client::builder().url(url).ttl(ttl).connect().await?;
            client.lock("x").acquire().await
        });
    }
    until_waiting(&holder, "x", 50).await;
    let asking = live.clone();
    let waiting = tokio::spawn(async move { acquire(&asking, "x").await });
    until_waiting(&holder, "x", 51).await;
    set_flows(&world, SECOND, Flow::Hold);
    let died = Instant::now();
    guard.release().await.expect("it is held");
    drop(waiting.await.expect("it doesn't panic"));
    // The first of the dead has been granted it; all of their leases run out together. One after
    // another they would last for five minutes.
    assert!(died.elapsed() < 8 * ttl, "{:?}", died.elapsed());
}

/// A leader that stood still while another took over doesn't answer from the past.
pub(crate) async fn lc_2() {
    let world = world("lc-2").await;
    // A lease that outlives an election, and a client that soon leaves a server that is silent.
    let writer = client(&world, FIRST, Duration::from_secs(9)).await;
    let mut guard = acquire(&writer, "x").await;
    for _ in 0..3 {
        let old = world.wait_for_leader().await.expect("a leader");
        let url = format!("lockkeeper://{}", listener(old));
        let reader = Client::builder().url(url).connect_timeout(PATIENCE);
        let reader = reader.connect().await.expect("it is reached");
        world.servers.lock().pause(old);
        let others: Vec<End> = FOUNDERS.into_iter().filter(|&id| id != old).collect();
        let limit = Instant::now() + PATIENCE;
        while leader(&others).await.is_none() {
            assert!(Instant::now() < limit, "no new leader");
        }
        guard.release().await.expect("it is held");
        guard = acquire(&writer, "x").await;
        world.servers.lock().go_on(old);
        let view = reader.admin().get_lock("x", 10).await.expect("an answer");
        let tokens: Vec<u64> = view.iter().flat_map(|view| &view.holds).map(|h| h.token).collect();
        assert_eq!(tokens, [guard.token()]);
    }
}

/// Everything ends at the first success after an election, and the old leader stays away: what was
/// acknowledged is there.
pub(crate) async fn lc_4() {
    let world = world("lc-4").await;
    let writer = client(&world, FIRST, Duration::from_secs(60)).await;
    let mut held = Vec::new();
    for round in 0..4 {
        held.push(acquire(&writer, &format!("before/{round}")).await);
        let old = world.wait_for_leader().await.expect("a leader");
        world.servers.lock().kill(old);
        held.push(acquire(&writer, &format!("after/{round}")).await);
        for id in FOUNDERS {
            world.servers.lock().kill(id);
        }
        for id in FOUNDERS.into_iter().filter(|&id| id != old) {
            world.servers.lock().start(id);
        }
        world.wait_for_leader().await.expect("a leader");
        for guard in &held {
            guard.confirm().await.expect("what was acknowledged is held");
        }
        world.servers.lock().start(old);
    }
}

/// Killed at any moment of its very first start, a server starts at the next.
pub(crate) async fn di_4() {
    let world = world("di-4").await;
    let mut dice = Dice::new(4);
    for _ in 0..10 {
        let id = world.next_server();
        world.servers.lock().add(id, true);
        sleep(dice.millis(0, 80)).await;
        world.servers.lock().kill(id);
        world.servers.lock().start(id);
        let limit = Instant::now() + PATIENCE;
        while TcpStream::connect(listener(id)).await.is_err() {
            assert!(Instant::now() < limit, "server {id} doesn't start");
            assert_eq!(world.servers.lock().supervise(), [], "server {id} ends");
            sleep(Duration::from_millis(10)).await;
        }
        world.servers.lock().forget(id);
    }
}

/// A server without a majority is alive, and not ready; it says why.
pub(crate) async fn op_1() {
    let world = world("op-1").await;
    let limit = Instant::now() + PATIENCE;
    for id in FOUNDERS {
        // The others may hear of the leader a moment after it leads.
        while !health(id, "/readyz").await.starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < limit, "server {id} isn't ready");
            sleep(Duration::from_millis(50)).await;
        }
    }
    world.servers.lock().kill(1);
    world.servers.lock().kill(2);
    let limit = Instant::now() + PATIENCE;
    loop {
        let ready = health(3, "/readyz").await;
        // The second of the dead may count as heard for a moment longer than the leader.
        if ready.starts_with("HTTP/1.1 503") && ready.contains("no majority") {
            break;
        }
        assert!(Instant::now() < limit, "it isn't cut off: {ready}");
        sleep(Duration::from_millis(50)).await;
    }
    let alive = health(3, "/livez").await;
    assert!(alive.starts_with("HTTP/1.1 200"), "{alive}");
}

/// Candidates of ZooKeeper's recipe are cut off their servers for less and for more than their
/// sessions last, again and again and in any order. Never do two of them lead, and in the end each
/// gets its turn: the judges say so.
pub(crate) async fn me_2() {
    let mut dice = Dice::new(2);
    let candidates = [0, 1, 2].map(|candidate| ZOOKEEPER_WORKERS + candidate);
    let world = World::start("me-2", &candidates, &mut dice).await;
    for _ in 0..25 {
        let mut cut = candidates;
        dice.shuffle(&mut cut);
        let cut = &cut[..1 + usize::try_from(dice.below(3)).unwrap_or(0)];
        let all = |link| {
            for &candidate in cut {
                FOUNDERS.iter().for_each(|&id| world.net.set_link(candidate, id, link));
            }
        };
        all(Link::Cut);
        sleep(dice.millis(100, 1_500)).await;
        all(Link::Open);
        sleep(dice.millis(0, 500)).await;
    }
    runs::end(&world, 2).await;
}

/// Many sessions end while one server after another is killed and comes back. Nothing of them is
/// left on any, and all have the same tree.
pub(crate) async fn se_8() {
    const SESSIONS: u64 = 200;
    let world = world("se-8").await;
    let servers = zookeeper_servers(&world, ZOOKEEPER_WORKERS).await;
    let (may_end, _) = watch::channel(false);
    let mut owners = JoinSet::new();
    for number in 0..SESSIONS {
        let (servers, mut ending) = (servers.clone(), may_end.subscribe());
        owners.spawn(async move {
            let mut own = zookeeper(servers, Duration::from_secs(10), number).await;
            let path = format!("/e-{number}");
            let made = own.call(zk::create(&path, CreateOp::Create, zk::EPHEMERAL)).await;
            let is_made = made.is_ok_and(|answer| answer.header.err == ErrorCode::OK);
            assert!(is_made, "nothing is wrong yet");
            while !*ending.borrow_and_update() {
                own.pass(Duration::from_millis(100), false).await.expect("it lives");
            }
            // Some are over before that.
            let rest = Duration::from_millis(Dice::new(number).below(8_000));
            if own.pass(rest, false).await.is_ok() {
                own.close().await;
            }
        });
    }
    let limit = Instant::now() + PATIENCE;
    loop {
        let tree = tree_of(1).await.unwrap_or_default();
        let own = tree.iter().filter(|(path, _)| path.starts_with("/e-")).count() as u64;
        if own == SESSIONS {
            break;
        }
        assert!(Instant::now() < limit, "{own} of {SESSIONS} are there");
        sleep(Duration::from_millis(100)).await;
    }
    may_end.send_replace(true);
    for id in FOUNDERS.into_iter().cycle().take(9) {
        // While it is away, and while it comes back, sessions go on ending.
        world.servers.lock().kill(id);
        sleep(Duration::from_millis(300)).await;
        world.servers.lock().start(id);
        sleep(Duration::from_millis(700)).await;
    }
    while let Some(ended) = owners.join_next().await {
        ended.expect("an owner doesn't panic");
    }
    world.wait_for_leader().await;
    compare_trees(&world).await;
    assert_eq!(*world.wrongs.lock(), [""; 0]);
}

/// A follower that is cut off the others doesn't serve a client that has seen more; when it has
/// caught up, the session goes on there.
pub(crate) async fn rc_2() {
    let world = world("rc-2").await;
    let end = ZOOKEEPER_WORKERS;
    let servers = zookeeper_servers(&world, end).await;
    let mut client = zookeeper(servers, Duration::from_secs(30), 1).await;
    let new = zk::create("/x", CreateOp::Create, zk::PERSISTENT);
    client.call(new).await.expect("an answer");
    let read = Read { path: Some("/x"), watch: false };
    for round in 0_u8..3 {
        let leader = world.wait_for_leader().await.expect("a leader");
        let lagging = FOUNDERS.into_iter().find(|&id| id != leader).expect("a follower");
        let others: Vec<End> = FOUNDERS.into_iter().filter(|&id| id != lagging).collect();
        let between = |flow| {
            for &other in &others {
                world.net.set_flow(lagging, other, flow);
                world.net.set_flow(other, lagging, flow);
            }
        };
        world.net.set_link(end, lagging, Link::Cut);
        between(Flow::Hold);
        let data = [round];
        let set = SetData { path: Some("/x"), data: Some(&data), version: -1 };
        while client.call(Request::SetData(set)).await.is_err() {}
        others.iter().for_each(|&id| world.net.set_link(end, id, Link::Cut));
        world.net.set_link(end, lagging, Link::Open);
        // While it still takes itself for served, and afterwards.
        let early = timeout(Duration::from_secs(4), client.call(Request::GetData(read))).await;
        assert!(!matches!(early, Ok(Ok(_))), "it shows what it has");
        between(Flow::Pass);
        let answer = loop {
            match client.call(Request::GetData(read)).await {
                Ok(answer) => break answer,
                Err(gone) => assert_eq!(gone, zk::Gone::Link, "the session is kept"),
            }
        };
        let Some(Reply::DataStat(shown, _)) = answer.reply(OpCode::GET_DATA) else {
            panic!("{:?}", answer.header)
        };
        assert_eq!(shown, Some(&data[..]));
        world.net.heal();
    }
}
