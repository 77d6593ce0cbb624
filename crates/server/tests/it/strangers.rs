//! Whatever a client sends, it hears what is wrong, and others are served.

use std::io::{Read, Write};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use lockkeeper_wire::native::{
    self as wire, Cancel, OpenSession, Permits, REQUEST_BYTES_MAX, Release, Request, StopWatch,
    mode, refused::Code, request::Body as Asks,
};

use crate::harness::{Client, LONG_TTL_MS, Running, SECRET, acquire, fresh_id, open, resume};

#[test]
fn another_magic_is_told_that_this_is_the_wrong_port() {
    let server = Running::start();
    let mut stream = server.connect_silently();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").unwrap();
    let message = Client::after_greeting(stream).goodbye();
    assert!(message.contains("neither Lockkeeper's native protocol nor HTTP"), "{message}");
    server.assert_serves();
}

#[test]
fn another_version_is_answered_with_ours_and_a_goodbye() {
    let server = Running::start();
    let mut stream = server.connect_silently();
    stream.write_all(&wire::MAGIC).unwrap();
    stream.write_all(&7_u32.to_be_bytes()).unwrap();
    let message = Client::after_greeting(stream).goodbye();
    assert!(message.contains("speaks version 1") && message.contains("not 7"), "{message}");
    server.assert_serves();
}

#[test]
fn a_greeting_may_come_byte_by_byte_but_not_for_ever() {
    let server = Running::start_with(|config| {
        config.handshake_timeout = Duration::from_secs(5);
    });
    let mut greeting = BytesMut::new();
    wire::greet(&mut greeting);
    let mut slow = server.connect_silently();
    for byte in &greeting {
        slow.write_all(&[*byte]).unwrap();
    }
    Client::after_greeting(slow).open(fresh_id());

    let silent = [0, 1, 11].map(|said| {
        let mut silent = server.connect_silently();
        silent.write_all(&greeting[..said]).unwrap();
        (silent, said)
    });
    for (mut silent, said) in silent {
        let mut answer = Vec::new();
        silent.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty(), "{answer:?} after {said} bytes");
    }
    server.assert_serves();
}

#[test]
fn a_frame_that_is_too_long_ends_the_connection() {
    let server = Running::start();
    for length in [REQUEST_BYTES_MAX + 1, u32::MAX as usize] {
        let mut client = server.connect();
        let length = u32::try_from(length).unwrap();
        client.stream.write_all(&length.to_be_bytes()).unwrap();
        client.stream.write_all(&[0; 100]).unwrap();
        let message = client.goodbye();
        assert!(message.contains(&format!("{length} bytes is longer than the 65536")), "{message}");
    }
    server.assert_serves();
}

#[test]
fn a_frame_that_is_no_message_ends_the_connection() {
    let not_utf8: &[u8] = &[0xa2, 0x01, 0x04, 0x0a, 0x02, 0xff, 0xfe];
    let cut_short: &[u8] = &[0x52, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let server = Running::start();
    for message in [not_utf8, cut_short, b"GET / HTTP/1.1"] {
        let mut client = server.connect();
        let mut frame = BytesMut::new();
        frame.put_u32(u32::try_from(message.len()).unwrap());
        frame.put_slice(message);
        client.stream.write_all(&frame).unwrap();
        let goodbye = client.goodbye();
        assert!(goodbye.contains("holds no valid message"), "{goodbye}");
    }
    server.assert_serves();
}

#[test]
fn requests_that_make_no_sense_are_refused_one_by_one() {
    let server = Running::start();
    let mut client = server.connect();
    client.ask(0, acquire("a"));
    let refused = client.refusal(0);
    assert_eq!(refused.code(), Code::BadRequest);
    client.send(&Request { id: 1, floor: 1, body: None });
    assert_eq!(client.refusal(1).code(), Code::BadRequest);
    // No session yet.
    for (id, asks) in [
        (2, acquire("a")),
        (3, Asks::Release(Release { acquire: 1 })),
        (4, Asks::Heartbeat(wire::Heartbeat {})),
        (5, Asks::Confirm(wire::Confirm { acquire: 1 })),
        (6, Asks::EndSession(wire::EndSession { session: 0, secret: Vec::new() })),
    ] {
        client.ask(id, asks);
        let refused = client.refusal(id);
        assert_eq!(refused.code(), Code::BadRequest, "{id}: {}", refused.message);
    }
    client.ask(7, Asks::StopWatch(StopWatch { watch: 5 }));
    assert_eq!(client.refusal(7).code(), Code::NotFound);
    server.assert_serves();
}

#[test]
fn sessions_that_are_unknown_or_not_ones_own_are_refused() {
    let server = Running::start();
    let (mine, unknown) = (fresh_id(), fresh_id());
    let mut owner = server.connect();
    owner.open(mine);

    let mut stranger = server.connect();
    stranger.ask(1, resume(unknown, &SECRET));
    let refused = stranger.refusal(1);
    assert_eq!(refused.code(), Code::UnknownSession);
    assert!(refused.message.contains(&format!("session {unknown:016x}")), "{}", refused.message);
    let end = |session, secret: &[u8]| {
        Asks::EndSession(wire::EndSession { session, secret: secret.to_vec() })
    };
    let wrong = b"another secret!!";
    for (id, asks, code) in [
        (2, resume(mine, wrong), Code::WrongSecret),
        (3, resume(mine, b"short"), Code::BadRequest),
        (4, resume(0, &SECRET), Code::BadRequest),
        (5, end(mine, wrong), Code::WrongSecret),
        (6, end(unknown, &SECRET), Code::UnknownSession),
        (7, end(mine, b""), Code::BadRequest),
    ] {
        stranger.ask(id, asks);
        assert_eq!(stranger.refusal(id).code(), code, "{id}");
    }
    // An id that is taken can't be opened, nor used after the attempt.
    let secret = wrong.to_vec();
    let steal = OpenSession { session: mine, secret, ttl_ms: 10_000, owner: None };
    stranger.ask(8, Asks::OpenSession(steal));
    assert_eq!(stranger.refusal(8).code(), Code::WrongSecret);
    stranger.ask(9, acquire("a"));
    assert_eq!(stranger.refusal(9).code(), Code::BadRequest);
    // The owner has noticed nothing.
    owner.acquire(2, "a");
    server.assert_serves();
}

#[test]
fn a_connection_carries_one_session() {
    let server = Running::start();
    let (first, second) = (fresh_id(), fresh_id());
    let mut client = server.connect();
    client.open(first);
    client.ask(2, open(second, 10_000));
    let refused = client.refusal(2);
    assert_eq!(refused.code(), Code::BadRequest);
    assert!(refused.message.contains(&format!("session {first:016x}")), "{}", refused.message);
    client.ask(3, resume(second, &SECRET));
    assert_eq!(client.refusal(3).code(), Code::BadRequest);
    // Opening one's own again is safe.
    client.ask(4, open(first, 10_000));
    assert_eq!(client.session_state(4).session, first);
    client.acquire(5, "a");
    server.assert_serves();
}

#[test]
fn absurd_leases_are_refused_with_the_limit() {
    let server = Running::start_with(|config| config.node.ttl_max = Duration::from_secs(900));
    let mut client = server.connect();
    for (id, ttl_ms, limit, max) in [
        (1, 0, "ttl_min", 200),
        (2, 199, "ttl_min", 200),
        (3, 900_001, "ttl_max", 900_000),
        (4, u32::MAX, "ttl_max", 900_000),
    ] {
        client.ask(id, open(fresh_id(), ttl_ms));
        let refused = client.refusal(id);
        assert_eq!(refused.code(), Code::LimitReached, "{}", refused.message);
        assert_eq!((refused.limit.as_str(), refused.limit_max), (limit, max));
        assert!(refused.message.contains(&format!("{max} ms")), "{}", refused.message);
    }
    server.assert_serves();
}

#[test]
fn owners_that_are_too_long_are_refused_with_the_limit() {
    let server = Running::start();
    let mut client = server.connect();
    let label = || wire::Label { key: "k".to_owned(), value: "v".to_owned() };
    let owner = |change: fn(&mut wire::Owner)| {
        let mut owner = wire::Owner::default();
        change(&mut owner);
        owner
    };
    let labels = std::iter::repeat_with(label).take(17).collect();
    let labels = wire::Owner { labels, ..wire::Owner::default() };
    for (id, owner, limit) in [
        (1, owner(|owner| owner.host = "h".repeat(257)), "owner_field_bytes"),
        (2, owner(|owner| owner.purpose = "p".repeat(60_000)), "owner_field_bytes"),
        (3, labels, "labels"),
    ] {
        let open = OpenSession {
            session: fresh_id(),
            secret: SECRET.to_vec(),
            ttl_ms: 10_000,
            owner: Some(owner),
        };
        client.ask(id, Asks::OpenSession(open));
        assert_eq!(client.refusal(id).limit, limit);
    }
    server.assert_serves();
}

#[test]
fn names_that_are_none_are_refused_and_printed_safely() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    for (id, name) in (2..).zip(["", "/a", "a/", "a//b", "a/../b", "a\nb", "a\u{7f}", "a\u{9b}31m"])
    {
        client.ask(id, acquire(name));
        let refused = client.refusal(id);
        assert_eq!(refused.code(), Code::InvalidName, "{name:?}");
        assert!(!refused.message.chars().any(char::is_control), "{:?}", refused.message);
        assert!(refused.message.contains(&format!("{name:?}")), "{}", refused.message);
    }
    for (id, length) in [(20, 1_025), (21, 60_000)] {
        client.ask(id, acquire(&"x".repeat(length)));
        let refused = client.refusal(id);
        assert_eq!(refused.code(), Code::LimitReached);
        assert!(refused.message.contains("1024 bytes"), "{}", refused.message);
    }
    client.acquire(22, &"x".repeat(1_024));
    client.acquire(23, "Ünïcode: ﷽ and spaces");
    server.assert_serves();
}

#[test]
fn permits_out_of_range_are_refused() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    for (id, take, of, code) in [
        (2, 0, 3, Code::BadPermits),
        (3, 4, 3, Code::BadPermits),
        (4, 1, 0, Code::BadPermits),
        (5, 1, u32::MAX, Code::LimitReached),
    ] {
        let kind = Some(mode::Kind::Permits(Permits { take, of }));
        let acquire = wire::Acquire {
            lock: "pool".to_owned(),
            mode: Some(wire::Mode { kind }),
            ..wire::Acquire::default()
        };
        client.ask(id, Asks::Acquire(acquire));
        assert_eq!(client.refusal(id).code(), code, "{take} of {of}");
    }
    server.assert_serves();
}

#[test]
fn numbers_and_floors_can_be_played_with_in_vain() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    let token = client.acquire(10, "a");
    let request = |id, floor, body| Request { id, floor, body: Some(body) };

    // Repeated: the same answer, and nothing is taken twice.
    client.send(&request(10, 1, acquire("a")));
    assert_eq!(client.answer(10), wire::response::Body::Granted(wire::Granted { token }));
    // The number means something else already.
    client.send(&request(10, 1, acquire("b")));
    assert_eq!(client.refusal(10).code(), Code::NumberReused);
    // The floor is above the number.
    client.send(&request(11, 12, acquire("b")));
    assert_eq!(client.refusal(11).code(), Code::NumberReused);
    // Far ahead of the floor.
    client.send(&request(u64::MAX, 1, acquire("b")));
    assert_eq!(client.refusal(u64::MAX).limit, "open_requests");
    // Below the floor.
    client.acquire_with_floor(20, 15);
    client.send(&request(14, 14, acquire("b")));
    assert_eq!(client.refusal(14).code(), Code::TooOld);
    // Cancelled before it came.
    client.send(&request(31, 15, Asks::Cancel(Cancel { acquire: 30 })));
    assert_eq!(client.answer(31), wire::response::Body::Done(wire::Done {}));
    client.send(&request(30, 15, acquire("c")));
    assert_eq!(client.refusal(30).code(), Code::AlreadyCancelled);
    // A release of what was never acquired, twice.
    for id in [40, 41] {
        client.send(&request(id, 15, Asks::Release(Release { acquire: 39 })));
        assert_eq!(client.refusal(id).code(), Code::NotHeld);
    }
    server.assert_serves();
}

impl Client {
    fn acquire_with_floor(&mut self, id: u64, floor: u64) {
        self.send(&Request { id, floor, body: Some(acquire("with-floor")) });
        let answer = self.answer(id);
        assert!(matches!(answer, wire::response::Body::Granted(_)), "{answer:?}");
    }
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let server = Running::start();
    let mut client = server.connect();
    let mut request = BytesMut::new();
    let body = Some(Asks::StopWatch(StopWatch { watch: 9 }));
    wire::encode(&Request { id: 1, floor: 0, body }, REQUEST_BYTES_MAX, &mut request).unwrap();
    let many = request.repeat(10_000);
    // Each is answered with some hundred bytes, until the server has had enough.
    while client.stream.write_all(&many).is_ok() {}
    // What it had sent before is still there, and not one word more.
    while client.receive().is_some() {}
    server.assert_serves();
}

#[test]
fn a_connection_without_a_session_or_request_is_told_to_go() {
    let server = Running::start_with(|config| config.idle_timeout = Duration::from_secs(5));
    let mut holder = server.connect();
    holder.open(fresh_id());
    let mut watcher = server.connect();
    watcher.ask(1, Asks::Watch(wire::Watch { prefix: String::new() }));
    watcher.answer(1);

    let message = server.connect().goodbye();
    assert!(message.contains("neither session nor request"), "{message}");
    // Those with a session or a watch stay.
    holder.acquire(2, "a");
    assert_eq!(watcher.receive().unwrap().id, 1);
    server.assert_serves();
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = Running::start_with(|config| config.connections_max = 2);
    let mut first = server.connect();
    let mut second = server.connect();
    first.open(fresh_id());
    second.open(fresh_id());
    let message = server.connect().goodbye();
    assert!(message.contains("2 connections already"), "{message}");
    // There is room again once one has gone. The server may need a moment to notice.
    drop(first);
    let mut third = std::iter::repeat_with(|| server.connect())
        .find_map(|mut client| {
            client.ask(1, open(fresh_id(), LONG_TTL_MS));
            let answer = client.receive()?;
            (answer.id == 1).then_some(client)
        })
        .unwrap();
    third.acquire(2, "a");
    second.acquire(2, "b");
}
