//! A session on the wire: locks, events, resuming, questions, operators.

use lockkeeper_wire::native::{
    self as wire, Cancel, GetLock, Release, Released, Revoke, refused::Code, request::Body as Asks,
    response::Body,
};

use crate::harness::{Client, LONG_TTL_MS, Running, SECRET, acquire, fresh_id, resume};

#[test]
fn a_lock_goes_from_hand_to_hand() {
    let server = Running::start();
    let mut holder = server.connect();
    let mut waiter = server.connect();
    let holder_id = fresh_id();
    holder.open(holder_id);
    waiter.open(fresh_id());

    let token = holder.acquire(2, "deploy/prod");
    waiter.ask(2, acquire("deploy/prod"));
    let Body::Queued(queued) = waiter.answer(2) else { panic!("not queued") };
    assert_eq!((queued.place, queued.hold_count), (1, 1));
    let hold = queued.holder.unwrap();
    assert_eq!((hold.session, hold.acquire, hold.token), (holder_id, 2, token));

    holder.ask(3, Asks::Release(Release { acquire: 2 }));
    assert_eq!(holder.answer(3), Body::Released(Released { token, remaining: 0 }));
    let Body::GrantedEvent(granted) = waiter.answer(0) else { panic!("not granted") };
    assert_eq!(granted.acquire, 2);
    assert!(granted.token > token);

    // A release that is repeated now frees nothing of the new holder's.
    holder.ask(3, Asks::Release(Release { acquire: 2 }));
    assert_eq!(holder.answer(3), Body::Released(Released { token, remaining: 0 }));
    assert!(confirm(&mut waiter, 4, 2).is_ok());
    assert_eq!(confirm(&mut holder, 4, 2), Err(Code::NotHeld));
}

#[test]
fn busy_says_who_has_it() {
    let server = Running::start();
    let mut holder = server.connect();
    let holder_id = fresh_id();
    holder.open(holder_id);
    let token = holder.acquire(2, "a");
    let mut other = server.connect();
    other.open(fresh_id());
    let asks = wire::Acquire { lock: "a".to_owned(), ..wire::Acquire::default() };
    other.ask(2, Asks::Acquire(asks));
    let refused = other.refusal(2);
    assert_eq!(refused.code(), Code::Busy);
    let hold = refused.holder.unwrap();
    assert_eq!((hold.session, hold.token), (holder_id, token));
}

#[test]
fn requests_in_one_write_are_answered_in_order() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    let mut bytes = bytes::BytesMut::new();
    for id in 2..1_002 {
        let body =
            if id % 2 == 0 { acquire("a") } else { Asks::Release(Release { acquire: id - 1 }) };
        let request = wire::Request { id, floor: 1, body: Some(body) };
        wire::encode(&request, wire::REQUEST_BYTES_MAX, &mut bytes).unwrap();
    }
    std::io::Write::write_all(&mut client.stream, &bytes).unwrap();
    let mut newest = 0;
    for id in 2..1_002 {
        match client.answer(id) {
            Body::Granted(granted) => {
                assert!(granted.token > newest);
                newest = granted.token;
            }
            Body::Released(released) => assert_eq!(released.token, newest),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_heartbeat_is_confirmed_with_its_number() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    for id in [2, 3] {
        client.ask(id, Asks::Heartbeat(wire::Heartbeat {}));
        assert_eq!(client.answer(id), Body::HeartbeatConfirmed(wire::HeartbeatConfirmed {}));
    }
}

#[test]
fn a_session_moves_to_another_connection_with_all_it_has() {
    let server = Running::start();
    let session = fresh_id();
    let mut first = server.connect();
    first.open(session);
    let token = first.acquire(2, "mine");
    let mut other = server.connect();
    other.open(fresh_id());
    other.acquire(2, "theirs");
    first.ask(3, acquire("theirs"));
    assert!(matches!(first.answer(3), Body::Queued(_)));

    let mut second = server.connect();
    second.ask(4, resume(session, &SECRET));
    let state = second.session_state(4);
    assert_eq!(state.session, session);
    let held = wire::HeldItem { acquire: 2, lock: "mine".to_owned(), token, is_revoked: false };
    assert_eq!(state.holds, [held]);
    let waits = wire::WaitingItem { acquire: 3, lock: "theirs".to_owned(), place: 1 };
    assert_eq!(state.waits, [waits]);
    assert!(state.token_now >= token && !state.more);
    first.goodbye();

    // What happens now is told here.
    other.ask(3, Asks::Release(Release { acquire: 2 }));
    other.answer(3);
    let Body::GrantedEvent(granted) = second.answer(0) else { panic!("not granted") };
    assert_eq!(granted.acquire, 3);
}

#[test]
fn a_session_that_ends_lets_go_of_everything() {
    let server = Running::start();
    let mut holder = server.connect();
    let session = fresh_id();
    holder.open(session);
    holder.acquire(2, "a");
    let mut waiter = server.connect();
    waiter.open(fresh_id());
    waiter.ask(2, acquire("a"));
    waiter.answer(2);

    // A helper ends it, with its secret, from elsewhere.
    let mut helper = server.connect();
    let secret = SECRET.to_vec();
    helper.ask(1, Asks::EndSession(wire::EndSession { session, secret }));
    assert_eq!(helper.answer(1), Body::Done(wire::Done {}));
    let lost = wire::LostEvent { acquire: 2, reason: "closed".to_owned() };
    assert_eq!(holder.answer(0), Body::LostEvent(lost));
    let ended = wire::SessionEndedEvent { reason: "closed".to_owned() };
    assert_eq!(holder.answer(0), Body::SessionEndedEvent(ended));
    assert!(matches!(waiter.answer(0), Body::GrantedEvent(_)));
    // The connection lives on, and may carry another session.
    holder.ask(3, acquire("b"));
    assert_eq!(holder.refusal(3).code(), Code::UnknownSession);
    holder.open(fresh_id());
    holder.acquire(4, "b");
}

#[test]
fn a_place_can_be_given_up() {
    let server = Running::start();
    let mut holder = server.connect();
    holder.open(fresh_id());
    holder.acquire(2, "a");
    let mut waiter = server.connect();
    waiter.open(fresh_id());
    waiter.ask(2, acquire("a"));
    waiter.answer(2);
    waiter.ask(3, Asks::Cancel(Cancel { acquire: 2 }));
    assert_eq!(waiter.answer(3), Body::Done(wire::Done {}));
    let lock = get_lock(&mut waiter, 4, "a");
    assert_eq!((lock.hold_count, lock.waiter_count), (1, 0));
}

#[test]
fn questions_show_who_holds_and_who_waits() {
    let server = Running::start();
    let (holder_id, waiter_id) = (fresh_id(), fresh_id());
    let mut holder = server.connect();
    holder.open(holder_id);
    let token = holder.acquire(2, "deploy/prod");
    holder.acquire(3, "deploy/test");
    holder.acquire(4, "other");
    let mut waiter = server.connect();
    waiter.open(waiter_id);
    waiter.ask(2, acquire("deploy/prod"));
    waiter.answer(2);

    // No session is needed to ask.
    let mut visitor = server.connect();
    let lock = get_lock(&mut visitor, 1, "deploy/prod");
    assert_eq!((lock.holds[0].session, lock.holds[0].token), (holder_id, token));
    assert!(lock.holds[0].lease_left_ms.is_some_and(|left_ms| left_ms <= LONG_TTL_MS));
    assert_eq!((lock.waiters[0].session, lock.waiters[0].place), (waiter_id, 1));
    assert_eq!(get_lock(&mut visitor, 2, "nobody/knows/it").hold_count, 0);

    let list = |after: &str, count_max| {
        let (prefix, after) = ("deploy/".to_owned(), after.to_owned());
        Asks::ListLocks(wire::ListLocks { prefix, after, count_max })
    };
    visitor.ask(3, list("", 1));
    let Body::Locks(page) = visitor.answer(3) else { panic!("no locks") };
    assert_eq!((page.locks[0].name.as_str(), page.more), ("deploy/prod", true));
    visitor.ask(4, list("deploy/prod", 1));
    let Body::Locks(page) = visitor.answer(4) else { panic!("no locks") };
    assert_eq!((page.locks[0].name.as_str(), page.more), ("deploy/test", false));

    visitor.ask(5, Asks::GetSession(wire::GetSession { session: holder_id }));
    let Body::Session(session) = visitor.answer(5) else { panic!("no session") };
    assert_eq!((session.item_count, session.holds.len()), (3, 3));
    visitor.ask(6, Asks::GetSession(wire::GetSession { session: 1 }));
    assert_eq!(visitor.refusal(6).code(), Code::NotFound);
    visitor.ask(7, Asks::ListSessions(wire::ListSessions { after: 0, count_max: 0 }));
    let Body::Sessions(page) = visitor.answer(7) else { panic!("no sessions") };
    assert_eq!(page.sessions.len(), 2);
    // A young cluster gives itself an identity while it serves already.
    let cluster = (8..)
        .map(|id| {
            visitor.ask(id, Asks::ClusterStatus(wire::ClusterStatus {}));
            let Body::Cluster(cluster) = visitor.answer(id) else { panic!("no cluster") };
            cluster
        })
        .find(|cluster| !cluster.cluster_id.is_empty())
        .unwrap();
    assert_eq!(cluster.cluster_id.len(), 32);
    assert_eq!((cluster.node, cluster.leader, cluster.session_count), (1, 1, 2));
    assert_eq!((cluster.hold_count, cluster.waiter_count), (3, 1));
}

#[test]
fn a_watch_tells_every_transition_until_it_is_stopped() {
    let server = Running::start();
    let mut watcher = server.connect();
    watcher.ask(7, Asks::Watch(wire::Watch { prefix: "a/".to_owned() }));
    assert_eq!(watcher.answer(7), Body::Done(wire::Done {}));
    let session = fresh_id();
    let mut client = server.connect();
    client.open(session);
    let token = client.acquire(2, "a/b");
    client.acquire(3, "b/a");
    client.ask(4, Asks::Release(Release { acquire: 2 }));
    client.answer(4);
    for event in ["granted", "released"] {
        let Body::WatchEvent(told) = watcher.answer(7) else { panic!("no event") };
        assert_eq!((told.event.as_str(), told.lock.as_str()), (event, "a/b"));
        assert_eq!((told.session, told.acquire, told.token), (session, 2, token));
    }
    watcher.ask(8, Asks::StopWatch(wire::StopWatch { watch: 7 }));
    assert_eq!(watcher.answer(8), Body::Done(wire::Done {}));
    client.acquire(5, "a/b");
    // Nothing came in between.
    assert_eq!(get_lock(&mut watcher, 9, "a/b").hold_count, 1);
}

#[test]
fn an_operator_asks_a_lock_back() {
    let server = Running::start();
    let mut holder = server.connect();
    holder.open(fresh_id());
    let token = holder.acquire(2, "a");
    let mut operator = server.connect();
    let revoke = |if_token, now| Asks::Revoke(Revoke { lock: "a".to_owned(), if_token, now });

    operator.ask(1, revoke(token - 1, false));
    let refused = operator.refusal(1);
    assert_eq!((refused.code(), refused.current_token), (Code::StaleToken, token));
    operator.ask(2, revoke(token, false));
    assert_eq!(operator.answer(2), Body::Done(wire::Done {}));
    assert_eq!(holder.answer(0), Body::RevokedEvent(wire::RevokedEvent { acquire: 2 }));
    operator.ask(3, revoke(token, true));
    assert_eq!(operator.answer(3), Body::Done(wire::Done {}));
    let lost = wire::LostEvent { acquire: 2, reason: "forced".to_owned() };
    assert_eq!(holder.answer(0), Body::LostEvent(lost));
}

#[test]
fn a_backup_comes_in_chunks() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    client.acquire(2, "a");
    client.ask(3, Asks::TakeBackup(wire::TakeBackup {}));
    let mut bytes = 0;
    loop {
        let Body::BackupChunk(chunk) = client.answer(3) else { panic!("no chunk") };
        bytes += chunk.data.len();
        if chunk.last {
            break;
        }
    }
    assert!(bytes > 0);
}

fn confirm(client: &mut Client, id: u64, acquire: u64) -> Result<u64, Code> {
    client.ask(id, Asks::Confirm(wire::Confirm { acquire }));
    match client.answer(id) {
        Body::Granted(granted) => Ok(granted.token),
        Body::Refused(refused) => Err(refused.code()),
        other => panic!("{other:?}"),
    }
}

fn get_lock(client: &mut Client, id: u64, lock: &str) -> wire::Lock {
    client.ask(id, Asks::GetLock(GetLock { lock: lock.to_owned(), list_max: 0 }));
    match client.answer(id) {
        Body::Lock(lock) => lock,
        other => panic!("{other:?}"),
    }
}
