//! Who is told what, and when.

use lockkeeper_wire::jute::{
    AddWatchMode, Delete, ErrorCode, EventType, Multi, Op, Request, SetWatches, Strings,
    WatcherType,
};

use super::client::{Heard, Zk, children, create, delete, exists, get_data, new_node, set_data};
use super::start;

fn add(zk: &mut Zk, path: &str, mode: AddWatchMode) {
    zk.done(&Request::AddWatch(Some(path), mode));
}

#[test]
fn each_kind_of_watch_sees_its_changes() {
    let server = start();
    let mut actor = Zk::new(&server);
    actor.create("/p", 0);
    let set = |zk: &mut Zk, kind: &str| match kind {
        "data" => drop(zk.call(&get_data("/p/c", true))),
        "exist" => drop(zk.call(&exists("/p/c", true))),
        "child" => drop(zk.call(&children("/p/c", true))),
        "children of the parent" => drop(zk.call(&children("/p", true))),
        "persistent" => add(zk, "/p/c", AddWatchMode::Persistent),
        "recursive" => add(zk, "/p/c", AddWatchMode::PersistentRecursive),
        _ => add(zk, "/", AddWatchMode::PersistentRecursive),
    };
    for (kind, expected) in [
        ("data", ["", "changed", "", "deleted", ""]),
        ("exist", ["created", "changed", "", "deleted", ""]),
        ("child", ["", "", "children", "deleted", ""]),
        ("children of the parent", ["parent", "", "", "parent", ""]),
        ("persistent", ["created", "changed", "children", "deleted", "created"]),
        ("recursive", ["created", "changed", "below", "deleted", "created"]),
        ("of the root", ["created", "changed", "below", "deleted", "created"]),
    ] {
        let mut zk = Zk::new(&server);
        let acts = [
            create("/p/c", 0),
            set_data("/p/c", None, -1),
            create("/p/c/d", 0),
            Request::Multi(Multi::of([
                Op::Delete(Delete { path: Some("/p/c/d"), version: -1 }),
                Op::Delete(Delete { path: Some("/p/c"), version: -1 }),
            ])),
            create("/p/c", 0),
        ];
        for (act, told) in acts.iter().zip(expected) {
            // One that lasts is set once. The last step is watched by what is left.
            let lasts = matches!(kind, "persistent" | "recursive" | "of the root");
            if !told.is_empty()
                && (!lasts || matches!(act, Request::Create(new) if new.path == Some("/p/c")))
            {
                set(&mut zk, kind);
            }
            actor.done(act);
            zk.sync();
            let heard = zk.events();
            let expected: &[&str] = match (told, kind) {
                ("created", _) => &["NodeCreated /p/c"],
                ("changed", _) => &["NodeDataChanged /p/c"],
                ("children", _) => &["NodeChildrenChanged /p/c"],
                ("below", _) => &["NodeCreated /p/c/d"],
                ("parent", _) => &["NodeChildrenChanged /p"],
                ("deleted", "persistent") => &["NodeChildrenChanged /p/c", "NodeDeleted /p/c"],
                ("deleted", "child") => &["NodeChildrenChanged /p/c"],
                ("deleted", "recursive" | "of the root") => {
                    &["NodeDeleted /p/c/d", "NodeDeleted /p/c"]
                }
                ("deleted", _) => &["NodeDeleted /p/c"],
                _ => &[],
            };
            assert_eq!(heard, expected, "{kind} at {act:?}");
        }
        actor.delete("/p/c");
        zk.close();
    }
}

#[test]
fn a_writer_hears_of_its_own_write_first() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    zk.done(&get_data("/a", true));
    zk.done(&children("/a", true));
    zk.done(&children("/", true));
    let xid = zk.send(&delete("/a"));
    let Heard::Event { kind, path, zxid } = zk.hear() else { panic!("not an event") };
    assert_eq!((kind, &*path), (EventType::NodeDeleted, "/a"), "once, for both watches");
    let told = Heard::Event { kind: EventType::NodeChildrenChanged, path: "/".to_owned(), zxid };
    assert_eq!(zk.hear(), told, "of the same change");
    let Heard::Reply { xid: of, zxid: seen, .. } = zk.hear() else { panic!("not the reply") };
    assert_eq!(of, xid);
    assert!(seen >= zxid && zxid > 0);
    // All of them are gone.
    zk.create("/a", 0);
    assert_eq!(zk.events(), [""; 0]);
}

#[test]
fn a_reader_hears_of_a_change_before_it_sees_it() {
    let server = start();
    let mut actor = Zk::new(&server);
    let mut zk = Zk::new(&server);
    actor.create("/a", 0);
    for round in 1..200 {
        zk.done(&get_data("/a", true));
        let written = actor.send(&set_data("/a", Some(&[round]), -1));
        // Asked again and again: the first reply that shows the change comes behind the event.
        let mut was_told = false;
        let mut has_seen = false;
        while !has_seen {
            let xid = zk.send(&get_data("/a", false));
            loop {
                match zk.hear() {
                    Heard::Event { .. } => was_told = true,
                    Heard::Reply { xid: of, body, .. } => {
                        assert_eq!(of, xid);
                        has_seen = body[4] == round;
                        break;
                    }
                    Heard::End => panic!("closed"),
                }
            }
            assert!(!has_seen || was_told, "seen before it was told");
        }
        actor.reply(written);
    }
}

#[test]
fn a_closing_client_hears_of_its_own_ephemerals() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 1);
    zk.create("/b", 1);
    for path in ["/a", "/b"] {
        zk.done(&get_data(path, true));
    }
    let xid = zk.send(&Request::CloseSession);
    for path in ["/a", "/b"] {
        let Heard::Event { kind, path: of, .. } = zk.hear() else { panic!("not an event") };
        assert_eq!((kind, &*of), (EventType::NodeDeleted, path));
    }
    zk.reply(xid);
    zk.assert_closed();
}

#[test]
fn an_exists_watch_waits_for_what_is_not_there() {
    let server = start();
    let mut zk = Zk::new(&server);
    for _ in 0..3 {
        assert_eq!(zk.fails(&exists("/a", true)), ErrorCode::NO_NODE);
    }
    zk.create("/a", 0);
    assert_eq!(zk.events(), ["NodeCreated /a"], "once");
    zk.set("/a", "x");
    assert_eq!(zk.events(), [""; 0], "it has gone");
}

#[test]
fn watches_are_set_again_and_what_was_missed_is_told() {
    let server = start();
    let mut zk = Zk::new(&server);
    for path in ["/same", "/changed", "/gone", "/p", "/q", "/r"] {
        zk.create(path, 0);
    }
    let seen = zk.stat("/r").unwrap().czxid;
    zk.set("/changed", "x");
    zk.delete("/gone");
    zk.create("/p/child", 0);
    zk.create("/new", 0);
    let paths = |paths: &[&'static str]| Strings::of(paths.iter().copied().map(Some));
    let watches = SetWatches {
        relative_zxid: seen,
        data: paths(&["/same", "/changed", "/gone"]),
        exist: paths(&["/not", "/new"]),
        child: paths(&["/p", "/q", "/gone"]),
    };
    let missed = [
        (EventType::NodeDataChanged, "/changed"),
        (EventType::NodeDeleted, "/gone"),
        (EventType::NodeCreated, "/new"),
        (EventType::NodeChildrenChanged, "/p"),
        (EventType::NodeDeleted, "/gone"),
    ];
    let request = Request::SetWatches2 {
        watches,
        persistent: paths(&["/r"]),
        persistent_recursive: paths(&["/p"]),
    };
    zk.send_as(-8, &request);
    for (kind, path) in missed {
        assert_eq!(zk.hear(), Heard::Event { kind, path: path.to_owned(), zxid: -1 });
    }
    zk.reply(-8);
    let mut actor = Zk::new(&server);
    actor.set("/same", "x");
    actor.create("/not", 0);
    actor.create("/q/child", 0);
    actor.set("/r", "x");
    actor.set("/p/child", "x");
    actor.set("/changed", "y");
    zk.sync();
    assert_eq!(
        zk.events(),
        [
            "NodeDataChanged /same",
            "NodeCreated /not",
            "NodeChildrenChanged /q",
            "NodeDataChanged /r",
            "NodeDataChanged /p/child",
        ]
    );
}

#[test]
fn watches_are_checked_and_removed() {
    use WatcherType::{Any, Children, Data, Persistent, PersistentRecursive};
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    let types = [Children, Data, Any, Persistent, PersistentRecursive];
    let found = |zk: &mut Zk| {
        types.map(|kind| zk.call(&Request::CheckWatches(Some("/a"), kind)).0 == ErrorCode::OK)
    };
    let remove = |zk: &mut Zk, kind| zk.call(&Request::RemoveWatches(Some("/a"), kind)).0;
    assert_eq!(found(&mut zk), [false; 5]);
    zk.done(&get_data("/a", true));
    assert_eq!(found(&mut zk), [false, true, true, false, false]);
    zk.done(&children("/a", true));
    add(&mut zk, "/a", AddWatchMode::Persistent);
    add(&mut zk, "/a", AddWatchMode::PersistentRecursive);
    assert_eq!(found(&mut zk), [true; 5]);
    assert_eq!(remove(&mut zk, Data), ErrorCode::OK);
    assert_eq!(remove(&mut zk, Data), ErrorCode::NO_WATCHER);
    assert_eq!(found(&mut zk), [true, false, true, true, true]);
    assert_eq!(remove(&mut zk, Persistent), ErrorCode::OK);
    assert_eq!(found(&mut zk), [true, false, true, false, true]);
    assert_eq!(remove(&mut zk, Any), ErrorCode::OK);
    assert_eq!(found(&mut zk), [false; 5]);
    // One above isn't one here.
    add(&mut zk, "/", AddWatchMode::PersistentRecursive);
    assert_eq!(found(&mut zk), [false; 5]);
    for kind in types {
        assert_eq!(remove(&mut zk, kind), ErrorCode::NO_WATCHER);
    }
    zk.set("/a", "x");
    assert_eq!(zk.events(), ["NodeDataChanged /a"]);
}

#[test]
fn a_watch_that_may_not_read_hears_nothing() {
    use lockkeeper_wire::jute::{Acl, Acls, CreateOp, Id};
    let server = start();
    let mut zk = Zk::new(&server);
    assert_eq!(zk.auth("digest", "jo:secret"), ErrorCode::OK);
    let mut other = Zk::new(&server);
    other.call(&exists("/secret", true));
    add(&mut other, "/", AddWatchMode::PersistentRecursive);
    let mut secret = new_node(CreateOp::Create, "/secret", 0);
    let jo = Acl { perms: 31, id: Id { scheme: Some("auth"), id: None } };
    secret.acl = Acls::of([jo]);
    zk.done(&Request::Create(secret));
    zk.set("/secret", "x");
    add(&mut other, "/secret", AddWatchMode::Persistent);
    add(&mut zk, "/secret", AddWatchMode::Persistent);
    zk.create("/secret/child", 0);
    let delete = |path| Op::Delete(Delete { path: Some(path), version: -1 });
    zk.done(&Request::Multi(Multi::of(["/secret/child", "/secret"].map(delete))));
    let told = ["NodeChildrenChanged", "NodeChildrenChanged", "NodeDeleted"];
    assert_eq!(zk.events(), told.map(|kind| format!("{kind} /secret")));
    zk.create("/open", 0);
    other.sync();
    // Whoever may read the child is told of that: its own list says nothing of its parent's.
    assert_eq!(
        other.events(),
        ["NodeCreated /secret/child", "NodeDeleted /secret/child", "NodeCreated /open"]
    );
}

#[test]
fn children_are_told_of_by_the_list_that_their_parent_had_then() {
    use lockkeeper_wire::jute::{Acl, Acls, CreateOp, Id};
    let server = start();
    let mut zk = Zk::new(&server);
    assert_eq!(zk.auth("digest", "jo:secret"), ErrorCode::OK);
    zk.create("/p", 0);
    let mut other = Zk::new(&server);
    add(&mut other, "/p", AddWatchMode::Persistent);
    let mut make_anew = |new| {
        zk.create("/p/c", 0);
        let delete = |path| Op::Delete(Delete { path: Some(path), version: -1 });
        zk.done(&Request::Multi(Multi::of([delete("/p/c"), delete("/p"), Op::Create(new)])));
        other.sync();
        other.events()
    };
    let open = new_node(CreateOp::Create, "/p", 0);
    let jo = Acl { perms: 31, id: Id { scheme: Some("auth"), id: None } };
    let mut secret = open.clone();
    secret.acl = Acls::of([jo]);
    let children = "NodeChildrenChanged /p";
    assert_eq!(make_anew(secret), [children, children, "NodeDeleted /p"]);
    assert_eq!(make_anew(open), ["NodeCreated /p"]);
}

/// However they are set, and though nothing need be there.
#[test]
fn watched_paths_are_bounded() {
    let server = start();
    let mut zk = Zk::new(&server);
    let mut count = 0;
    loop {
        let path = format!("/{count}{}", "x".repeat(1_000_000));
        let none = || Strings::of([]);
        let (data, exist, child) = (none(), none(), none());
        let xid = zk.send(&Request::SetWatches2 {
            watches: SetWatches { relative_zxid: 0, data, exist, child },
            persistent: Strings::of([Some(&*path)]),
            persistent_recursive: none(),
        });
        match zk.hear() {
            Heard::Reply { xid: of, err, .. } => assert_eq!((of, err), (xid, ErrorCode::OK)),
            Heard::End => break,
            Heard::Event { .. } => panic!("nothing happens"),
        }
        count += 1;
        assert!(count < 150, "{count} megabytes of paths");
    }
    assert!(count > 100, "{count} megabytes are not too many");
    Zk::new(&server).assert_silent();
}

#[test]
fn a_connections_watches_go_with_it() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    zk.done(&get_data("/a", true));
    add(&mut zk, "/", AddWatchMode::PersistentRecursive);
    let mut again = zk.resumed(server.zookeeper.unwrap()).unwrap();
    let mut actor = Zk::new(&server);
    actor.set("/a", "x");
    again.sync();
    assert_eq!(again.events(), [""; 0]);
}
