//! Each operation, with each way in which it fails.

use bytes::BytesMut;
use lockkeeper_wire::jute::{
    Acls, AddWatchMode, CreateOp, Delete, ErrorCode, Input, OpCode, Read, Reconfig, Request,
    SetAcl, Stat, WatcherType,
};

use super::client::{
    Heard, OPEN, Zk, children, create, delete, exists, get_data, new_node, set_data, strings, text,
};
use super::start;
use crate::harness::eventually;

#[test]
fn what_fails_and_how() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    zk.create("/a/b", 0);
    zk.create("/e", 1);
    let acl = |path, acl| Request::SetAcl(SetAcl { path, acl, version: 7 });
    let delete_at = |path, version| Request::Delete(Delete { path: Some(path), version });
    let cases = [
        (create("/a", 0), ErrorCode::NODE_EXISTS),
        (create("/", 0), ErrorCode::NODE_EXISTS),
        (create("/no/a", 0), ErrorCode::NO_NODE),
        (create("/e/a", 0), ErrorCode::NO_CHILDREN_FOR_EPHEMERALS),
        (create("/a/", 0), ErrorCode::BAD_ARGUMENTS),
        (create("/a//c", 0), ErrorCode::NO_NODE),
        (create("/a/../c", 0), ErrorCode::NO_NODE),
        (create("/a/..", 0), ErrorCode::BAD_ARGUMENTS),
        (create("a", 0), ErrorCode::BAD_ARGUMENTS),
        (create("/a/\0", 0), ErrorCode::BAD_ARGUMENTS),
        (create("/x", 7), ErrorCode::BAD_ARGUMENTS),
        (create("/x", -1), ErrorCode::BAD_ARGUMENTS),
        (create("/x", 5), ErrorCode::BAD_ARGUMENTS),
        (delete("/no"), ErrorCode::NO_NODE),
        (delete("/no/no"), ErrorCode::NO_NODE),
        (delete("/a"), ErrorCode::NOT_EMPTY),
        (delete_at("/a", 5), ErrorCode::BAD_VERSION),
        (delete("/"), ErrorCode::BAD_ARGUMENTS),
        (delete("/zookeeper"), ErrorCode::BAD_ARGUMENTS),
        (delete("/zookeeper/quota"), ErrorCode::BAD_ARGUMENTS),
        (delete("no"), ErrorCode::BAD_ARGUMENTS),
        (set_data("/no", None, -1), ErrorCode::NO_NODE),
        (set_data("/a", None, 3), ErrorCode::BAD_VERSION),
        (set_data("/a/", None, -1), ErrorCode::BAD_ARGUMENTS),
        (get_data("/no", true), ErrorCode::NO_NODE),
        (get_data("no way", true), ErrorCode::NO_NODE),
        (children("/no", true), ErrorCode::NO_NODE),
        (exists("/no", false), ErrorCode::NO_NODE),
        (exists("/\0", false), ErrorCode::BAD_ARGUMENTS),
        (Request::GetAcl(Some("/no")), ErrorCode::NO_NODE),
        (acl(Some("/a"), Acls::of([OPEN])), ErrorCode::BAD_VERSION),
        (acl(Some("/no"), Acls::of([OPEN])), ErrorCode::NO_NODE),
        (acl(Some("/no"), Acls::EMPTY), ErrorCode::INVALID_ACL),
        (acl(Some("no"), Acls::EMPTY), ErrorCode::BAD_ARGUMENTS),
        (Request::GetAllChildrenNumber(Some("/no")), ErrorCode::NO_NODE),
        (Request::CheckWatches(Some("/a"), WatcherType::Any), ErrorCode::NO_WATCHER),
        (Request::RemoveWatches(Some("/a"), WatcherType::Any), ErrorCode::NO_WATCHER),
        (
            Request::Reconfig(Reconfig {
                joining: None,
                leaving: None,
                new_members: None,
                current_config: -1,
            }),
            ErrorCode::RECONFIG_DISABLED,
        ),
    ];
    for (request, error) in &cases {
        assert_eq!(zk.fails(request), *error, "{request:?}");
    }
    // None of the failed reads has left a watch.
    zk.create("/no", 0);
    assert_eq!(zk.events(), [""; 0]);
}

#[test]
fn null_and_empty_are_different() {
    let server = start();
    let mut zk = Zk::new(&server);
    for (path, data) in [("/null", None), ("/empty", Some([].as_slice())), ("/x", Some(b"x"))] {
        let mut new = new_node(CreateOp::Create2, path, 0);
        new.data = data;
        let body = zk.done(&Request::Create(new));
        let mut input = Input::new(&body);
        assert_eq!(input.read::<Option<&str>>().unwrap(), Some(path));
        let stat: Stat = input.read().unwrap();
        let length = data.map_or(0, <[u8]>::len);
        assert_eq!(stat.data_length, i32::try_from(length).unwrap());
        assert_eq!(zk.get(path), (data.map(<[u8]>::to_vec), stat));
    }
    zk.done(&set_data("/x", None, 0));
    assert_eq!(zk.get("/x").0, None);
}

#[test]
fn the_kinds_of_nodes() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/d", 0);
    assert_eq!(zk.create("/d/s-", 2), "/d/s-0000000000");
    assert_eq!(zk.create("/d/e-", 3), "/d/e-0000000001");
    zk.delete("/d/s-0000000000");
    assert_eq!(zk.create("/d/", 2), "/d/0000000002");
    let kinds = [
        (CreateOp::Container, "/c", 4, -1),
        (CreateOp::Ttl, "/t", 5, 100_000),
        (CreateOp::Ttl, "/t-", 6, 100_000),
        (CreateOp::Create2, "/p", 4, -1),
    ];
    for (op, path, flags, ttl_ms) in kinds {
        let mut new = new_node(op, path, flags);
        new.ttl_ms = ttl_ms;
        let body = zk.done(&Request::Create(new));
        let mut input = Input::new(&body);
        let made: Option<&str> = input.read().unwrap();
        assert!(made.unwrap().starts_with(path));
        assert_eq!(input.read::<Stat>().unwrap().ephemeral_owner, 0, "{path}");
        zk.create(&format!("{}/child", made.unwrap()), 0);
    }
    for ttl_ms in [-1, 0, 1 << 40] {
        let mut new = new_node(CreateOp::Ttl, "/u", 5);
        new.ttl_ms = ttl_ms;
        assert_eq!(zk.fails(&Request::Create(new)), ErrorCode::BAD_ARGUMENTS, "{ttl_ms}");
    }
    let mut new = new_node(CreateOp::Ttl, "/u", 0);
    new.ttl_ms = 5;
    assert_eq!(zk.fails(&Request::Create(new)), ErrorCode::BAD_ARGUMENTS);
}

#[test]
fn containers_and_nodes_whose_time_is_up_are_collected() {
    let server = super::start_with(|config| {
        config.zookeeper.collect_interval = std::time::Duration::from_millis(20);
        config.zookeeper.collected_per_minute_max = 60_000;
    });
    let mut zk = Zk::new(&server);
    zk.done(&Request::Create(new_node(CreateOp::Container, "/never-used", 4)));
    zk.done(&Request::Create(new_node(CreateOp::Container, "/c", 4)));
    zk.create("/c/a", 0);
    let mut ttl = new_node(CreateOp::Ttl, "/t", 5);
    ttl.ttl_ms = 1;
    zk.fails(&exists("/t", true));
    let watched = zk.send(&exists("/c", true));
    zk.reply(watched);
    zk.delete("/c/a");
    zk.done(&Request::Create(ttl));
    let mut gone = Vec::new();
    eventually("both are gone", || {
        gone.extend(zk.events());
        gone.iter().any(|event| event == "NodeDeleted /c") && zk.stat("/t").is_none()
    });
    assert!(zk.stat("/never-used").is_some());
}

#[test]
fn a_nodes_time_is_up_although_nothing_else_happens() {
    let server = super::start_with(|config| {
        config.zookeeper.collect_interval = std::time::Duration::from_millis(20);
    });
    let mut zk = Zk::new(&server);
    let mut ttl = new_node(CreateOp::Ttl, "/t", 5);
    ttl.ttl_ms = 300;
    zk.done(&Request::Create(ttl));
    eventually("it is gone", || zk.stat("/t").is_none());
}

#[test]
fn trees_lists_and_counts() {
    let server = start();
    let mut zk = Zk::new(&server);
    let count = |zk: &mut Zk, path| {
        let body = zk.done(&Request::GetAllChildrenNumber(Some(path)));
        Input::new(&body).read::<i32>().unwrap()
    };
    assert_eq!(zk.children("/"), ["zookeeper"]);
    assert_eq!(count(&mut zk, "/"), 3);
    zk.create("/a", 0);
    zk.create("/a/b", 1);
    zk.create("/a/bc", 1);
    assert_eq!(count(&mut zk, "/a"), 2);
    let ephemerals = |zk: &mut Zk, prefix| {
        let mut paths = strings(&zk.done(&Request::GetEphemerals(prefix)));
        paths.sort_unstable();
        paths
    };
    for (prefix, all) in [
        (None, ["/a/b", "/a/bc"].as_slice()),
        (Some("/"), &["/a/b", "/a/bc"]),
        (Some("/a/bc"), &["/a/bc"]),
        (Some("/b"), &[]),
    ] {
        assert_eq!(ephemerals(&mut zk, prefix), all, "{prefix:?}");
    }
    let mut other = Zk::new(&server);
    assert_eq!(ephemerals(&mut other, None), [""; 0]);
    let body = zk.done(&Request::GetChildren2(Read { path: Some("/a"), watch: false }));
    assert_eq!(strings(&body), ["b", "bc"]);
    assert_eq!(text(&zk.done(&Request::Sync(Some("whatever")))), "whatever");
    let body = zk.done(&Request::AddWatch(Some("/not/there"), AddWatchMode::Persistent));
    assert_eq!(body, [0; 4]);
    zk.close();
    eventually("they went with the session", || other.children("/a").is_empty());
}

#[test]
fn long_lists_are_kept_and_mended() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/d", 0);
    let mut names: Vec<String> = (0..300).map(|at| format!("c{}", at * 7919 % 1000)).collect();
    names.sort();
    names.dedup();
    for name in &names {
        zk.create(&format!("/d/{name}"), 0);
    }
    assert_eq!(zk.children("/d"), names);
    for at in (0..names.len()).rev().step_by(9) {
        zk.delete(&format!("/d/{}", names.remove(at)));
        assert_eq!(zk.children("/d"), names);
        let new = format!("d{at}");
        zk.create(&format!("/d/{new}"), 0);
        names.push(new);
        names.sort();
        zk.set(&format!("/d/{}", names[0]), "x");
        assert_eq!(zk.children("/d"), names);
    }
    for name in &names {
        zk.delete(&format!("/d/{name}"));
    }
    zk.delete("/d");
    zk.create("/d", 0);
    assert_eq!(zk.children("/d"), [""; 0]);
}

#[test]
fn what_nobody_knows_is_answered_and_ends_the_connection() {
    let server = start();
    for op in [0, 13, 10, 20, -1, -10, 99, 108, i32::MAX] {
        let mut zk = Zk::new(&server);
        zk.send(&create("/a", 2));
        zk.send_as(77, &Request::Unimplemented(OpCode(op)));
        zk.send(&create("/a", 2));
        zk.reply(1);
        let (err, body) = (ErrorCode::UNIMPLEMENTED, Vec::new());
        assert_eq!(zk.hear(), Heard::Reply { xid: 77, zxid: -1, err, body }, "op {op}");
        zk.assert_closed();
        // The session lives.
        zk.resumed(server.zookeeper.unwrap()).unwrap().assert_silent();
    }
}

#[test]
fn a_body_that_is_none_is_answered_and_the_connection_goes_on() {
    let server = start();
    let mut zk = Zk::new(&server);
    let ops =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 16, 17, 18, 19, 21, 22, 101, 103, 104, 105, 106];
    for op in ops {
        for body in [[].as_slice(), &[0xff, 0xff, 0xff, 0xfe], &[0x7f; 12]] {
            // A multi that ends where it begins is one.
            if matches!(op, 14 | 22) && body.len() == 12 {
                continue;
            }
            let mut frame = BytesMut::new();
            frame.extend_from_slice(&i32::try_from(8 + body.len()).unwrap().to_be_bytes());
            frame.extend_from_slice(&500_i32.to_be_bytes());
            frame.extend_from_slice(&i32::to_be_bytes(op));
            frame.extend_from_slice(body);
            zk.write(&frame);
            assert_eq!(zk.reply(500).0, ErrorCode::MARSHALLING_ERROR, "op {op} {body:?}");
        }
    }
    zk.assert_silent();
}
