//! Several operations in one request.

use lockkeeper_wire::jute::{
    Acls, Check, CreateOp, Delete, ErrorCode, Multi, Op, Read, ReadOp, Request, SetData,
};

use super::client::{Zk, exists, new_node, results};
use super::start;

fn create(path: &str, flags: i32) -> Op<'_> {
    Op::Create(new_node(CreateOp::Create, path, flags))
}

fn delete(path: &str) -> Op<'_> {
    Op::Delete(Delete { path: Some(path), version: -1 })
}

fn set(path: &str, version: i32) -> Op<'_> {
    Op::SetData(SetData { path: Some(path), data: Some(b"x"), version })
}

fn check(path: &str, version: i32) -> Op<'_> {
    Op::Check(Check { path: Some(path), version })
}

fn multi<'a>(ops: impl IntoIterator<Item = Op<'a>>) -> Request<'a> {
    Request::Multi(Multi::of(ops))
}

fn run<'a>(zk: &mut Zk, ops: impl IntoIterator<Item = Op<'a>>) -> Vec<String> {
    results(&zk.done(&multi(ops)))
}

#[test]
fn all_happen_at_once() {
    let server = start();
    let mut zk = Zk::new(&server);
    let mut container = new_node(CreateOp::Container, "/c", 4);
    container.data = Some(b"four");
    let mut ttl = new_node(CreateOp::Ttl, "/t", 5);
    ttl.ttl_ms = 60_000;
    let done = run(
        &mut zk,
        [
            create("/a", 0),
            create("/a/s", 2),
            create("/a/s", 2),
            set("/a", 0),
            check("/a", 1),
            Op::Create(new_node(CreateOp::Create2, "/b", 1)),
            Op::Create(container),
            Op::Create(ttl),
            delete("/b"),
            create("/b", 0),
        ],
    );
    assert_eq!(
        done,
        [
            "create /a",
            "create /a/s0000000000",
            "create /a/s0000000001",
            "set 1",
            "check",
            "create2 /b 0",
            "create2 /c 4",
            "create2 /t 0",
            "delete",
            "create /b",
        ]
    );
    let (a, b) = (zk.stat("/a").unwrap(), zk.stat("/b").unwrap());
    assert_eq!((a.czxid, a.mzxid, a.pzxid), (b.czxid, b.czxid, b.czxid), "one zxid");
    assert_eq!(a.ctime, b.ctime);
    assert_eq!((a.version, a.cversion, a.num_children), (1, 2, 2));
}

#[test]
fn none_happens_if_one_fails() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/x", 0);
    zk.fails(&exists("/a", true));
    let good = || [create("/a", 0), set("/x", -1), create("/x/s", 2), check("/x", 1)];
    for at in 0..=4 {
        for (bad, error) in [
            (create("/x", 0), -110),
            (create("/q/q", 0), -101),
            (create("bad", 0), -8),
            (delete("/no"), -101),
            (set("/x", 9), -103),
            (check("/x", 9), -103),
        ] {
            let mut ops = good().to_vec();
            ops.insert(at, bad);
            let mut expected = vec!["error 0".to_owned(); at];
            expected.push(format!("error {error}"));
            expected.resize(5, "error -2".to_owned());
            assert_eq!(run(&mut zk, ops), expected, "{error} at {at}");
        }
    }
    assert_eq!(zk.stat("/x").unwrap().version, 0);
    assert_eq!(zk.events(), [""; 0], "nothing was told");
    // The counter of children has not moved either.
    assert_eq!(zk.create("/x/s", 2), "/x/s0000000000");
}

#[test]
fn none_of_nothing_is_nothing() {
    let server = start();
    let mut zk = Zk::new(&server);
    let body = zk.done(&multi([]));
    assert_eq!(body, [0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff]);
    let body = zk.done(&Request::MultiRead(Multi::of([])));
    assert_eq!(results(&body), [""; 0]);
}

#[test]
fn reads_fail_by_themselves() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    zk.create("/a/b", 0);
    let read = |path| Read { path: Some(path), watch: true };
    let body = zk.done(&Request::MultiRead(Multi::of([
        ReadOp::GetData(read("/a")),
        ReadOp::GetData(read("/no")),
        ReadOp::GetChildren(read("/a")),
        ReadOp::GetChildren(read("/no")),
        ReadOp::GetChildren(read("/a/b")),
    ])));
    assert_eq!(results(&body), ["data  0", "error -101", "children b", "error -101", "children "]);
    zk.set("/a", "x");
    zk.create("/a/c", 0);
    assert_eq!(zk.events(), [""; 0], "such reads leave no watches");
}

#[test]
fn what_can_not_be_part_of_one_is_not_done_at_all() {
    let server = start();
    let mut zk = Zk::new(&server);
    // A create with flags that there aren't, as the whole would be refused for.
    let error = zk.fails(&multi([create("/a", 0), create("/b", 7)]));
    assert_eq!(error, ErrorCode::MARSHALLING_ERROR);
    let nowhere = Op::SetData(SetData { path: None, data: None, version: -1 });
    assert_eq!(zk.fails(&multi([create("/a", 0), nowhere])), ErrorCode::MARSHALLING_ERROR);
    assert!(zk.stat("/a").is_none());
}

#[test]
fn a_create_within_one_is_read_by_its_flags() {
    let server = start();
    let mut zk = Zk::new(&server);
    let node = |op, path, flags, ttl_ms| {
        let mut new = new_node(op, path, flags);
        new.ttl_ms = ttl_ms;
        Op::Create(new)
    };
    let done = run(
        &mut zk,
        [
            node(CreateOp::Create, "/container", 4, -1),
            node(CreateOp::Container, "/another", 0, -1),
            node(CreateOp::Ttl, "/plain", 0, 9),
        ],
    );
    assert_eq!(done, ["create2 /container 0", "create2 /another 0", "create /plain"]);
    assert_eq!(run(&mut zk, [node(CreateOp::Ttl, "/x", 7, 9)]), ["error -8"]);
    let mut no_acl = new_node(CreateOp::Create, "/x", 0);
    no_acl.acl = Acls::NULL;
    for unreadable in [node(CreateOp::Create, "/x", 5, -1), Op::Create(no_acl)] {
        assert_eq!(zk.fails(&multi([unreadable])), ErrorCode::MARSHALLING_ERROR);
    }
}
