//! Locks of ZooKeeper's clients, as the operator's questions show them.

use lockkeeper_wire::native::{
    self as wire, Owner, lock::Kind, mode, request::Body as Asks, response::Body,
};

use super::client::Zk;
use super::{connect, start};
use crate::harness::{Client, Running, fresh_id};

/// Asks on connections of its own.
struct Operator<'a>(&'a Running);

impl Operator<'_> {
    fn ask(&self, body: Asks) -> Body {
        let mut client: Client = self.0.connect();
        client.ask(1, body);
        client.answer(1)
    }

    fn lock(&self, lock: &str) -> wire::Lock {
        let question = wire::GetLock { lock: lock.to_owned(), list_max: 0 };
        let Body::Lock(lock) = self.ask(Asks::GetLock(question)) else { panic!("a lock") };
        lock
    }

    fn locks(&self, prefix: &str, after: &str, count_max: u32) -> wire::Locks {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        let question = wire::ListLocks { prefix, after, count_max };
        let Body::Locks(locks) = self.ask(Asks::ListLocks(question)) else { panic!("locks") };
        locks
    }

    fn session(&self, session: i64) -> wire::Session {
        let question = wire::GetSession { session: session.cast_unsigned() };
        let Body::Session(session) = self.ask(Asks::GetSession(question)) else {
            panic!("a session")
        };
        session
    }
}

/// An ephemeral sequential child.
fn stand(zk: &mut Zk, stem: &str) -> String {
    zk.create(stem, 3)
}

fn sessions<'a>(of: impl IntoIterator<Item = &'a u64>) -> Vec<i64> {
    of.into_iter().map(|session| session.cast_signed()).collect()
}

#[test]
fn a_lock_is_shown_with_holder_queue_session_address_and_time() {
    let server = start();
    let operator = Operator(&server);
    let (mut first, mut second) = (connect(&server), connect(&server));
    first.create("/l", 0);
    assert_eq!(operator.lock("/l").kind(), Kind::Native, "nobody stands in line");
    // The second's name comes first in the listing of the children.
    let held = stand(&mut first, "/l/_c_ffff-lock-");
    let waiting = stand(&mut second, "/l/_c_0000-lock-");
    first.create("/l/not-in-line", 1);

    let lock = operator.lock("/l");
    assert_eq!((lock.kind(), lock.name.as_str()), (Kind::Zookeeper, "/l"));
    assert_eq!((lock.hold_count, lock.waiter_count), (1, 1));
    let (hold, waiter) = (&lock.holds[0], &lock.waiters[0]);
    let stat = first.stat(&held).unwrap();
    assert_eq!(hold.session.cast_signed(), first.session);
    assert_eq!(hold.token, stat.czxid.cast_unsigned());
    assert_eq!(hold.since_stamp_ms, stat.ctime.cast_unsigned());
    assert_eq!(format!("/l/{}", hold.znode), held);
    assert_eq!((hold.acquire, hold.ttl_ms), (0, 30_000));
    assert!(hold.lease_left_ms.is_some_and(|left| left <= 30_000), "{hold:?}");
    let owner = Some(Owner {
        host: "127.0.0.1".to_owned(),
        program: "zookeeper".to_owned(),
        ..Owner::default()
    });
    assert_eq!((&hold.owner, &waiter.owner), (&owner, &owner));
    assert_eq!((waiter.session.cast_signed(), waiter.place), (second.session, 1));
    assert_eq!(format!("/l/{}", waiter.znode), waiting);

    let session = operator.session(second.session);
    assert_eq!((session.item_count, session.holds.len(), session.waits.len()), (1, 0, 1));
    first.delete(&held);
    let lock = operator.lock("/l");
    assert_eq!(sessions(lock.holds.iter().map(|hold| &hold.session)), [second.session]);
    assert!(lock.holds[0].token > stat.czxid.cast_unsigned());
    let session = operator.session(second.session);
    assert_eq!((session.holds[0].lock.as_str(), session.waits.len()), ("/l", 0));
    second.close();
    let lock = operator.lock("/l");
    assert_eq!((lock.hold_count, lock.waiter_count), (0, 0));
    first.close();
}

#[test]
fn readers_and_writers_are_told_apart() {
    let server = start();
    let operator = Operator(&server);
    let mut zk: Vec<_> = (0..4).map(|_| connect(&server)).collect();
    zk[0].create("/rw", 0);
    for (zk, kind) in zk.iter_mut().zip(["__READ__", "__READ__", "__WRIT__", "__READ__"]) {
        stand(zk, &format!("/rw/_c_0b13-{kind}"));
    }
    let lock = operator.lock("/rw");
    let holders = sessions(lock.holds.iter().map(|hold| &hold.session));
    assert_eq!(holders, [zk[0].session, zk[1].session]);
    let waiters = sessions(lock.waiters.iter().map(|waiter| &waiter.session));
    assert_eq!(waiters, [zk[2].session, zk[3].session]);
    let is_shared = |mode: &Option<wire::Mode>| {
        matches!(mode.as_ref().and_then(|mode| mode.kind.as_ref()), Some(mode::Kind::Shared(_)))
    };
    assert!(lock.holds.iter().all(|hold| is_shared(&hold.mode)));
    assert!(!is_shared(&lock.waiters[0].mode) && is_shared(&lock.waiters[1].mode));
}

#[test]
fn locks_of_both_kinds_come_in_one_list_page_by_page() {
    let server = start();
    let operator = Operator(&server);
    let mut zk = connect(&server);
    let mut names = vec!["!a".to_owned(), "b".to_owned(), "c/d".to_owned()];
    let mut native = server.connect();
    native.open(fresh_id());
    for (id, name) in (2..).zip(&names) {
        native.acquire(id, name);
    }
    zk.create("/locks", 0);
    for number in 0..20 {
        let path = format!("/locks/{number:02}");
        zk.create(&path, 0);
        stand(&mut zk, &format!("{path}/x-"));
        names.push(path);
    }
    // In a directory without a line, and not walked through for each page.
    zk.create("/locks/none", 0);
    names.sort_unstable();
    let (mut listed, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = operator.locks("", &after, 4);
        pages += 1;
        listed.extend(page.locks.iter().map(|lock| lock.name.clone()));
        after = listed.last().unwrap().clone();
        let is_kind = |lock: &wire::Lock| {
            let kind = if lock.name.starts_with('/') { Kind::Zookeeper } else { Kind::Native };
            lock.kind() == kind && lock.hold_count == 1 && lock.holds[0].lease_left_ms.is_some()
        };
        assert!(page.locks.iter().all(is_kind), "{page:?}");
        if !page.more {
            break;
        }
    }
    assert_eq!((listed, pages), (names, 6));
    let few = operator.locks("/locks/1", "", 0);
    assert_eq!((few.locks.len(), few.more), (10, false));
    zk.close();
    assert_eq!(operator.locks("/", "", 0), wire::Locks::default());
}

#[test]
fn such_a_lock_is_taken_away_with_its_session_alone() {
    let server = start();
    let operator = Operator(&server);
    let (mut zk, mut other) = (connect(&server), connect(&server));
    zk.create("/l", 0);
    stand(&mut zk, "/l/x-");
    stand(&mut other, "/l/x-");
    let if_token = operator.lock("/l").holds[0].token;
    let revoke = wire::Revoke { lock: "/l".to_owned(), if_token, now: true };
    let Body::Refused(refused) = operator.ask(Asks::Revoke(revoke)) else { panic!("a refusal") };
    assert_eq!(refused.code(), wire::refused::Code::BadRequest);
    assert!(refused.message.contains("end the holder's session"), "{}", refused.message);

    let session = zk.session.cast_unsigned();
    let end = wire::RevokeSession { session, now: true };
    assert_eq!(operator.ask(Asks::RevokeSession(end)), Body::Done(wire::Done {}));
    let lock = operator.lock("/l");
    assert_eq!(sessions(lock.holds.iter().map(|hold| &hold.session)), [other.session]);
    zk.assert_closed();
    other.close();
}
