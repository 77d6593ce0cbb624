//! Cases of others: what has broken other servers of this protocol and their clients, tried on this
//! one. Each is named after its id in the list of docs/testing.md, "Cases of others".

use std::net::Shutdown;

use bytes::BytesMut;
use lockkeeper_node::Timers;
use lockkeeper_wire::jute::{
    Acl, Acls, AddWatchMode, ConnectRequest, CreateOp, ErrorCode, Hidden, Id, Multi, Op, Read,
    ReadOp, Reconfig, Request, SetAcl, SetData, SetWatches, Strings, WatcherType, encode_request,
    perms,
};

use super::client::{
    OPEN, SHORT_MS, Zk, children, create, delete, exists, fresh, get_data, new_node, results,
    set_data,
};
use super::{connect, start};
use crate::harness::{Members, eventually};

const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

/// `user:pass`, as lists have it.
const JO: Acl<'_> = Acl {
    perms: perms::ALL,
    id: Id { scheme: Some("digest"), id: Some("user:smGaoVKd/cQkjm7b88GyorAUz20=") },
};

/// A connection of somebody who has rights.
fn jo(server: &crate::harness::Running) -> Zk {
    let mut jo = Zk::new(server);
    assert_eq!(jo.auth("digest", "user:pass"), ErrorCode::OK);
    jo
}

fn make<'a>(zk: &mut Zk, path: &'a str, flags: i32, acl: Acl<'a>) -> ErrorCode {
    let mut new = new_node(CreateOp::Create, path, flags);
    new.acl = Acls::of([acl]);
    zk.call(&Request::Create(new)).0
}

/// The session of a waiter ends while it waits: it isn't in line any more, and never holds.
#[test]
fn me_1_a_waiter_whose_session_ends_is_passed_over() {
    let server = start();
    let (mut holder, mut next) = (Zk::new(&server), Zk::new(&server));
    holder.create("/lock", 0);
    let mut waiter = Zk::with_timeout(&server, SHORT_MS);
    let places =
        [&mut holder, &mut waiter, &mut next].map(|zk| zk.create("/lock/n-", EPHEMERAL_SEQUENTIAL));
    waiter.assert_closed();
    eventually("the waiter's place is gone", || next.stat(&places[1]).is_none());
    let mut again = Zk::silent(&server);
    assert_eq!(again.greet(&waiter.resuming()).unwrap().session, 0, "it is told");
    holder.close();
    assert_eq!(next.children("/lock"), ["n-0000000002"]);
}

/// Rights are withdrawn while a lock is held: the holder can't give it back any more, but neither
/// does it stay when its session ends.
#[test]
fn me_6_withdrawn_rights_do_not_keep_a_lock() {
    let server = start();
    let mut jo = jo(&server);
    let mut holder = Zk::new(&server);
    holder.create("/lock", 0);
    let own = holder.create("/lock/n-", EPHEMERAL_SEQUENTIAL);
    let acl = SetAcl { path: Some("/lock"), acl: Acls::of([JO]), version: -1 };
    jo.done(&Request::SetAcl(acl));
    assert_eq!(holder.fails(&delete(&own)), ErrorCode::NO_AUTH);
    assert_eq!(jo.children("/lock"), ["n-0000000000"]);
    assert_eq!(jo.stat(&own).unwrap().ephemeral_owner, holder.session);
    holder.close();
    assert!(jo.children("/lock").is_empty());
}

/// A session is never quietly replaced by another one.
#[test]
fn se_1_only_the_own_live_session_is_resumed() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/mine", EPHEMERAL);
    zk.create("/watched", 0);
    let seen = zk.stat("/watched").unwrap().czxid;
    let mut gone = Zk::new(&server);
    gone.close();
    for request in [
        ConnectRequest { session_id: zk.session ^ 1, ..zk.resuming() },
        ConnectRequest { password: Hidden(Some(&[7; 16])), ..zk.resuming() },
        gone.resuming(),
    ] {
        let mut refused = Zk::silent(&server);
        let greeting = refused.greet(&request).expect("a refusal, and not silence");
        assert_eq!((greeting.session, greeting.timeout_ms), (0, 0));
        refused.assert_closed();
    }
    zk.stream.shutdown(Shutdown::Both).unwrap();
    Zk::new(&server).set("/watched", "meanwhile");
    let mut again = zk.resumed(server.zookeeper.unwrap()).unwrap();
    assert_eq!(again.stat("/mine").unwrap().ephemeral_owner, zk.session);
    again.done(&Request::SetWatches(SetWatches {
        relative_zxid: seen,
        data: Strings::of([Some("/watched")]),
        exist: Strings::of([]),
        child: Strings::of([]),
    }));
    assert_eq!(again.events(), ["NodeDataChanged /watched"]);
}

/// A client that claims to have seen what nobody has is not served, with a session or without.
#[test]
fn rc_2_whoever_has_seen_more_is_not_served() {
    let server = start();
    let zk = Zk::new(&server);
    for request in [fresh(), zk.resuming()] {
        let mut ahead = Zk::silent(&server);
        let request = ConnectRequest { last_zxid_seen: 1 << 62, ..request };
        assert_eq!(ahead.greet(&request), None);
    }
    assert!(zk.resumed(server.zookeeper.unwrap()).is_some(), "the session is kept");
}

/// A multi that is taken as a request is taken by the log, and by the followers.
#[test]
fn li_1_what_fits_as_a_request_fits_as_an_entry() {
    const LIMIT: usize = 0xf_ffff;
    let members = Members::three();
    let start = |id| {
        members.start(id, |config| {
            config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
            // Such entries take a busy machine longer than an election.
            config.node.timers = Timers::RELAXED;
        })
    };
    let servers = [1, 2, 3].map(start);
    let mut zks = servers.each_ref().map(connect);
    zks[0].create("/a", 0);
    zks[0].create("/b", 0);
    let data = vec![7; 10 * LIMIT];
    let of = |rest: usize| {
        let set = |path, data| Op::SetData(SetData { path: Some(path), data, version: -1 });
        // As many parts as there may be: what is added to each counts as well.
        let small = (0..20_000).map(|_| set("/a", None));
        Request::Multi(Multi::of(small.chain([set("/b", data.get(..rest))])))
    };
    let mut empty = BytesMut::new();
    encode_request(1, &of(0), &mut empty).unwrap();
    let rest = LIMIT - (empty.len() - 4);
    for taken in [rest - 1, rest] {
        assert_eq!(results(&zks[0].done(&of(taken))).len(), 20_001);
        for zk in &mut zks {
            zk.sync();
            assert_eq!(zk.get("/b").0.unwrap().len(), taken);
        }
    }
    for refused in [rest + 1, 10 * LIMIT] {
        let mut zk = zks[0].resumed(servers[1].zookeeper.unwrap()).unwrap();
        // It may be gone before everything is written.
        let mut bytes = BytesMut::new();
        encode_request(1, &of(refused), &mut bytes).unwrap();
        drop(std::io::Write::write_all(&mut zk.stream, &bytes));
        zk.assert_closed();
        for zk in &mut zks[1..] {
            zk.sync();
            assert_eq!(zk.get("/b").0.unwrap().len(), rest);
        }
    }
    zks[1].set("/b", "and on it goes");
}

/// Lists aren't inherited, and a deletion is the parent's business: as ZooKeeper has it, exactly.
#[test]
fn sc_3_each_level_speaks_for_itself() {
    let server = start();
    let mut jo = jo(&server);
    let mut other = Zk::new(&server);
    // An open parent: whoever likes deletes what is "protected", and nothing else.
    jo.create("/open", 0);
    assert_eq!(make(&mut jo, "/open/closed", 0, JO), ErrorCode::OK);
    assert_eq!(other.fails(&get_data("/open/closed", false)), ErrorCode::NO_AUTH);
    assert_eq!(other.fails(&set_data("/open/closed", None, -1)), ErrorCode::NO_AUTH);
    assert_eq!(other.fails(&create("/open/closed/x", 0)), ErrorCode::NO_AUTH);
    other.delete("/open/closed");
    // Closed on every level, nobody else gets in anywhere.
    for path in ["/a", "/a/b", "/a/b/c"] {
        assert_eq!(make(&mut jo, path, 0, JO), ErrorCode::OK);
    }
    for path in ["/a/b", "/a/b/c"] {
        assert_eq!(other.fails(&delete(path)), ErrorCode::NO_AUTH);
        assert_eq!(other.fails(&set_data(path, None, -1)), ErrorCode::NO_AUTH);
        assert_eq!(other.fails(&create(&format!("{path}-beside"), 0)), ErrorCode::NO_AUTH);
    }
    // An open child of a closed parent is open, and stays.
    assert_eq!(make(&mut jo, "/a/open", 0, OPEN), ErrorCode::OK);
    other.set("/a/open", "x");
    assert_eq!(other.fails(&delete("/a/open")), ErrorCode::NO_AUTH);
    // A list of several kinds is kept whole.
    let local = Acl { perms: perms::READ, id: Id { scheme: Some("ip"), id: Some("10.0.0.1") } };
    let mut new = new_node(CreateOp::Create, "/mixed", 0);
    new.acl = Acls::of([JO, local, Acl { perms: perms::CREATE, ..OPEN }]);
    jo.done(&Request::Create(new));
    let body = jo.done(&Request::GetAcl(Some("/mixed")));
    let list: Acls<'_> = lockkeeper_wire::jute::Input::new(&body).read().unwrap();
    assert!(list.iter().eq([JO, local, Acl { perms: perms::CREATE, ..OPEN }]));
}

/// What a request may do that somebody sends who has no right to a znode.
enum Right {
    /// It is refused.
    Refused,
    /// It does nothing to a znode but what is its own.
    Own,
    /// It is answered, and shows nothing.
    Blind,
}

/// Each request there is, by name: a new one doesn't compile until it stands here.
fn right(request: &Request<'_>) -> Right {
    match request {
        Request::Create(_)
        | Request::Delete(_)
        | Request::Exists(_)
        | Request::GetData(_)
        | Request::SetData(_)
        | Request::GetAcl(_)
        | Request::SetAcl(_)
        | Request::GetChildren(_)
        | Request::GetChildren2(_)
        | Request::GetAllChildrenNumber(_)
        | Request::Reconfig(_)
        | Request::CheckWatches(..)
        | Request::RemoveWatches(..)
        | Request::Unimplemented(_) => Right::Refused,
        Request::Multi(_)
        | Request::MultiRead(_)
        | Request::SetWatches(_)
        | Request::SetWatches2 { .. }
        | Request::AddWatch(..) => Right::Blind,
        Request::Sync(_)
        | Request::Ping
        | Request::Auth(_)
        | Request::Sasl(_)
        | Request::GetEphemerals(_)
        | Request::WhoAmI
        | Request::CloseSession => Right::Own,
    }
}

/// Every request that names a znode to which one has no right.
#[test]
fn sc_4_no_request_forgets_to_ask() {
    // A table, and what is done with each of its lines.
    let server = start();
    let mut jo = jo(&server);
    assert_eq!(make(&mut jo, "/c", 0, JO), ErrorCode::OK);
    assert_eq!(make(&mut jo, "/c/x", 0, JO), ErrorCode::OK);
    assert_eq!(make(&mut jo, "/c/x/y", EPHEMERAL, JO), ErrorCode::OK);
    jo.set("/c/x", "secret");
    let read = Read { path: Some("/c/x"), watch: true };
    let set = SetData { path: Some("/c/x"), data: None, version: -1 };
    let paths = || Strings::of([Some("/c/x")]);
    // Set anew for a moment to come: of an earlier one it is told at once how things are, without a
    // look at any list. That is ZooKeeper's rule.
    let relative_zxid = i64::MAX;
    let none = || Strings::of([]);
    let watches = || SetWatches { relative_zxid, data: paths(), exist: none(), child: paths() };
    let acl = SetAcl { path: Some("/c/x"), acl: Acls::of([OPEN]), version: -1 };
    let creates = [CreateOp::Create, CreateOp::Create2, CreateOp::Container, CreateOp::Ttl];
    let creates = creates.map(|op| {
        let ttl_ms = if op == CreateOp::Ttl { 1_000 } else { -1 };
        let flags = [0, 0, 4, 5][op as usize % 4];
        Request::Create(lockkeeper_wire::jute::Create { ttl_ms, ..new_node(op, "/c/x/new", flags) })
    });
    let others = [
        delete("/c/x/y"),
        Request::Exists(read),
        Request::GetData(read),
        Request::SetData(set),
        Request::GetAcl(Some("/c/x")),
        Request::SetAcl(acl),
        Request::GetChildren(read),
        Request::GetChildren2(read),
        Request::GetAllChildrenNumber(Some("/c/x")),
        Request::Reconfig(Reconfig {
            joining: None,
            leaving: Some("1"),
            new_members: None,
            current_config: -1,
        }),
        Request::CheckWatches(Some("/c/x"), WatcherType::Any),
        Request::RemoveWatches(Some("/c/x"), WatcherType::Any),
        Request::Multi(Multi::of([
            Op::Create(new_node(CreateOp::Create, "/m", 0)),
            Op::SetData(set),
        ])),
        Request::MultiRead(Multi::of([ReadOp::GetData(read), ReadOp::GetChildren(read)])),
        Request::SetWatches(watches()),
        Request::SetWatches2 {
            watches: watches(),
            persistent: paths(),
            persistent_recursive: paths(),
        },
        Request::AddWatch(Some("/c/x"), AddWatchMode::PersistentRecursive),
        Request::Sync(Some("/c/x")),
        Request::GetEphemerals(Some("/c/x")),
        Request::WhoAmI,
    ];
    for request in creates.iter().chain(&others) {
        let mut stranger = Zk::new(&server);
        let (err, body) = stranger.call(request);
        match right(request) {
            Right::Refused => assert_ne!(err, ErrorCode::OK, "{request:?}"),
            Right::Own | Right::Blind => assert_eq!(err, ErrorCode::OK, "{request:?}"),
        }
        if matches!(request, Request::Multi(_) | Request::MultiRead(_)) {
            let results = results(&body);
            assert!(results.contains(&"error -102".to_owned()), "{request:?}: {results:?}");
            assert!(results.iter().all(|result| result.starts_with("error")), "{results:?}");
        }
        assert!(!body.windows(6).any(|part| part == b"secret"), "{request:?}");
        // Nor is it told later.
        let data = format!("{:?}", request.op());
        jo.set("/c/x", &data);
        assert_eq!(stranger.events(), [""; 0], "{request:?}");
    }
    assert_eq!(jo.children("/c/x"), ["y"]);
    assert!(jo.stat("/m").is_none());
    jo.done(&exists("/c/x/y", false));
    jo.done(&children("/c", false));
}
