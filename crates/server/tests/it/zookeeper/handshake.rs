//! The first frame: which session a client gets.

use std::net::Shutdown;
use std::time::Duration;

use lockkeeper_wire::jute::{ConnectRequest, ErrorCode, Hidden, Request};

use super::client::{SHORT_MS, Zk, create, fresh};
use super::{connect, start, start_with};
use crate::harness::{Members, eventually};

#[test]
fn the_byte_that_old_clients_lack_is_mirrored() {
    let server = start();
    for (read_only, bytes) in [(None, 36), (Some(false), 37), (Some(true), 37)] {
        let mut zk = Zk::silent(&server);
        let mut request = bytes::BytesMut::new();
        ConnectRequest { read_only, ..fresh() }.encode(&mut request).unwrap();
        zk.write(&request);
        let mut length = [0; 4];
        zk.stream.peek(&mut length).unwrap();
        assert_eq!(i32::from_be_bytes(length), bytes);
        let greeting = zk.greeting().unwrap();
        assert_eq!(greeting.read_only, read_only.map(|_| false));
    }
}

#[test]
fn a_new_session_needs_no_password() {
    let server = start();
    for password in [None, Some([].as_slice()), Some(&[0; 16]), Some(&[7; 3])] {
        let mut zk = Zk::silent(&server);
        let password = Hidden(password);
        let greeting = zk.greet(&ConnectRequest { password, ..fresh() }).unwrap();
        assert!(greeting.session > 0);
        assert_ne!(greeting.session >> 56, 0, "the first byte is never 0");
        assert_eq!(greeting.password.len(), 16);
        assert_ne!(greeting.password, [0; 16]);
    }
}

#[test]
fn a_timeout_is_clamped_and_told() {
    let server = start_with(|config| {
        config.zookeeper.session_timeout_min = Duration::from_millis(4_000);
    });
    for (asked, granted) in
        [(-1, 4_000), (0, 4_000), (1, 4_000), (4_001, 4_001), (70_000, 60_000), (i32::MAX, 60_000)]
    {
        let mut zk = Zk::silent(&server);
        let greeting = zk.greet(&ConnectRequest { timeout_ms: asked, ..fresh() }).unwrap();
        assert_eq!(greeting.timeout_ms, granted, "asked for {asked}");
    }
}

#[test]
fn a_session_goes_on_over_another_connection() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/mine", 1);
    zk.stream.shutdown(Shutdown::Both).unwrap();
    let mut again = Zk::silent(&server);
    let resuming = ConnectRequest { timeout_ms: 7_000, ..zk.resuming() };
    let greeting = again.greet(&resuming).unwrap();
    assert_eq!((greeting.session, &greeting.password), (zk.session, &zk.password));
    assert_eq!(greeting.timeout_ms, 7_000, "the new time-out holds");
    let owner = again.stat("/mine").unwrap().ephemeral_owner;
    assert_eq!(owner, zk.session);
    again.create("/mine-too", 1);
    again.close();
}

#[test]
fn the_earlier_connection_is_closed() {
    let server = start();
    let mut zk = Zk::new(&server);
    let mut second = zk.resumed(server.zookeeper.unwrap()).unwrap();
    zk.assert_closed();
    let mut third = second.resumed(server.zookeeper.unwrap()).unwrap();
    second.assert_closed();
    third.assert_silent();
}

#[test]
fn a_wrong_password_and_an_unknown_session_are_refused_alike() {
    let server = start();
    let mut zk = Zk::new(&server);
    let sessions = [zk.session, zk.session ^ 1, -1, i64::MIN, 1];
    for (session_id, read_only) in sessions.into_iter().zip([Some(false), None].iter().cycle()) {
        for password in [None, Some([].as_slice()), Some(&[0; 16]), Some(&[1; 15])] {
            let mut other = Zk::silent(&server);
            let greeting = other.greet(&ConnectRequest {
                session_id,
                password: Hidden(password),
                read_only: *read_only,
                ..fresh()
            });
            let greeting = greeting.expect("a refusal, and not silence");
            assert_eq!((greeting.session, greeting.timeout_ms), (0, 0));
            assert_eq!(greeting.password, [0; 16]);
            assert_eq!(greeting.read_only.is_some(), read_only.is_some());
            other.assert_closed();
        }
    }
    // Whoever doesn't know the password disturbs nobody.
    zk.assert_silent();
}

#[test]
fn an_expired_session_is_refused_and_its_connection_closed_without_a_word() {
    let server = start();
    let mut watcher = Zk::new(&server);
    let mut zk = Zk::with_timeout(&server, SHORT_MS);
    zk.create("/mine", 1);
    assert!(watcher.stat("/mine").is_some());
    zk.assert_closed();
    eventually("the ephemeral is gone", || watcher.stat("/mine").is_none());
    let mut again = Zk::silent(&server);
    let greeting = again.greet(&zk.resuming()).expect("a refusal");
    assert_eq!((greeting.session, greeting.timeout_ms), (0, 0));
    again.assert_closed();
}

#[test]
fn a_client_that_has_seen_more_is_sent_on_without_a_word() {
    let server = start();
    let zk = Zk::new(&server);
    for last_zxid_seen in [1 << 40, i64::MAX] {
        for request in [fresh(), zk.resuming()] {
            let mut ahead = Zk::silent(&server);
            assert_eq!(ahead.greet(&ConnectRequest { last_zxid_seen, ..request }), None);
        }
    }
}

#[test]
fn what_follows_the_first_frame_waits_for_its_answer() {
    let server = start();
    let mut zk = Zk::silent(&server);
    let mut bytes = bytes::BytesMut::new();
    fresh().encode(&mut bytes).unwrap();
    let requests = [create("/a", 0), create("/a/b", 1), Request::WhoAmI, Request::CloseSession];
    for (xid, request) in (1..).zip(&requests) {
        lockkeeper_wire::jute::encode_request(xid, request, &mut bytes).unwrap();
    }
    // In pieces, as a network may have it.
    for piece in bytes.chunks(11) {
        zk.write(piece);
    }
    assert!(zk.greeting().unwrap().session > 0);
    for xid in 1..=4 {
        zk.reply(xid);
    }
    zk.assert_closed();
}

#[test]
fn a_session_moves_between_servers() {
    let members = Members::three();
    let start = |id| {
        members.start(id, |config| {
            config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
        })
    };
    let servers = [1, 2, 3].map(start);
    servers.iter().for_each(|server| connect(server).close());
    let mut zk = connect(&servers[0]);
    zk.create("/mine", 1);
    for server in servers.iter().cycle().skip(1).take(4) {
        let mut moved = None;
        // A busy machine may be electing a leader: then clients are sent on.
        eventually("it moves", || {
            moved = zk.resumed(server.zookeeper.unwrap());
            moved.is_some()
        });
        let mut moved = moved.unwrap();
        // The old one learns it when the move is applied there.
        zk.assert_closed();
        assert_eq!(moved.stat("/mine").unwrap().ephemeral_owner, moved.session);
        zk = moved;
    }
    zk.close();
}

#[test]
fn without_a_majority_those_who_only_read_may_stay() {
    let members = Members::three();
    let start = |id| {
        members.start(id, |config| {
            config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
            config.zookeeper.read_only = true;
        })
    };
    let mut servers: Vec<_> = [1, 2, 3].map(start).into_iter().collect();
    let mut zk = connect(&servers[0]);
    zk.create("/a", 0);
    servers.pop().unwrap().stop();
    servers.pop().unwrap().stop();
    zk.assert_closed();
    let alone = &servers[0];
    assert!(Zk::silent(alone).greet(&fresh()).is_none(), "it wants to write");
    assert!(Zk::silent(alone).greet(&zk.resuming()).is_none());
    let content = ConnectRequest { read_only: Some(true), ..zk.resuming() };
    assert!(Zk::silent(alone).greet(&content).is_none(), "its session lives elsewhere");
    let mut reader = Zk::silent(alone);
    let greeting = reader.greet(&ConnectRequest { read_only: Some(true), ..fresh() }).unwrap();
    assert_eq!(greeting.read_only, Some(true));
    assert_eq!(reader.children("/"), ["a", "zookeeper"]);
    for request in [create("/b", 0), Request::Sync(Some("/"))] {
        assert_eq!(reader.fails(&request), ErrorCode::NOT_READ_ONLY);
    }
    reader.send_as(-2, &Request::Ping);
    reader.reply(-2);
    reader.close();
}

#[test]
fn without_a_majority_clients_are_sent_on() {
    let members = Members::three();
    let start = |id| {
        members.start(id, |config| {
            config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
        })
    };
    let mut servers: Vec<_> = [1, 2, 3].map(start).into_iter().collect();
    let mut zk = connect(&servers[0]);
    zk.create("/a", 0);
    servers.pop().unwrap().stop();
    servers.pop().unwrap().stop();
    zk.assert_closed();
    assert!(Zk::silent(&servers[0]).greet(&fresh()).is_none());
}
