//! Bytes that nobody should send, and clients that nobody should be.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::jute::{
    AddWatchMode, Auth, Check, CreateOp, Delete, ErrorCode, Hidden, Multi, Op, Read, ReadOp,
    Request, encode_request, xids,
};

use super::client::{Heard, SHORT_MS, Zk, fresh, get_data, new_node, results, set_data};
use super::{start, start_with};
use crate::harness::eventually;

#[test]
fn a_client_has_no_more_connections_than_it_may() {
    let server = start_with(|config| config.zookeeper.client_connections_max = 3);
    let mut kept: Vec<Zk> = (0..3)
        .map(|_| {
            let mut zk = None;
            // Those before may not have been seen to end yet.
            eventually("there is room", || {
                let mut new = Zk::silent(&server);
                let is_greeted = new.greet(&fresh()).is_some();
                zk = is_greeted.then_some(new);
                is_greeted
            });
            zk.unwrap()
        })
        .collect();
    for _ in 0..3 {
        let mut bytes = [0];
        let over = Zk::silent(&server);
        let read = (&over.stream).read(&mut bytes);
        assert!(!matches!(read, Ok(1..)), "it is closed without a word");
    }
    kept.pop().unwrap().close();
    eventually("its place is free", || Zk::silent(&server).greet(&fresh()).is_some());
    kept[0].sync();
}

#[test]
fn a_frame_that_can_not_be_ends_the_connection_without_a_word() {
    let server = start();
    let lengths = [-1, i32::MIN, 0x10_0000, i32::MAX, 0];
    for length in lengths {
        let mut zk = Zk::new(&server);
        zk.write(&i32::to_be_bytes(length));
        zk.assert_closed();
        let mut silent = Zk::silent(&server);
        silent.write(&i32::to_be_bytes(length));
        silent.assert_closed();
    }
    let mut zk = Zk::new(&server);
    // Half a header.
    zk.write(&[0, 0, 0, 4, 0, 0, 0, 1]);
    zk.assert_closed();
    Zk::new(&server).assert_silent();
}

#[test]
fn the_largest_frame_is_taken() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    // Header, path, the data's own length, and the version are the rest of the frame.
    let data = vec![7; 0xf_ffff - 8 - 6 - 4 - 4];
    assert_eq!(zk.call(&set_data("/a", Some(&data), -1)).0, ErrorCode::OK);
    assert_eq!(zk.get("/a").0.unwrap(), data);
    let more = vec![7; data.len() + 1];
    zk.send(&set_data("/a", Some(&more), -1));
    zk.assert_closed();
}

#[test]
fn whoever_says_nothing_is_let_go() {
    let server = start();
    let mut zk = Zk::with_timeout(&server, SHORT_MS);
    // Not even half a request keeps it.
    zk.write(&[0, 0, 0, 100, 1, 2, 3]);
    zk.assert_closed();
}

#[test]
fn whoever_does_not_read_costs_itself_alone() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/big", 0);
    zk.set("/big", &"x".repeat(900_000));
    // Two hundred megabytes of answers, of which none is read for now.
    let mut greedy = Zk::new(&server);
    for _ in 0..200 {
        greedy.send(&get_data("/big", false));
    }
    let mut other = Zk::new(&server);
    for _ in 0..50 {
        other.create("/s", 2);
    }
    for xid in 1..=200 {
        let (err, body) = greedy.reply(xid);
        assert_eq!((err, body.len()), (ErrorCode::OK, 4 + 900_000 + 68));
    }
}

#[test]
fn whoever_watches_and_does_not_read_is_cut_off() {
    let server = start();
    let mut zk = Zk::new(&server);
    let mut deaf = Zk::new(&server);
    deaf.done(&Request::AddWatch(Some("/"), AddWatchMode::PersistentRecursive));
    let path = format!("/{}", "x".repeat(100_000));
    zk.create(&path, 0);
    // Until more is waiting than the system and the server keep for anybody.
    for _ in 0..300 {
        zk.set(&path, "x");
    }
    let mut heard = 0;
    while let Heard::Event { .. } = deaf.hear() {
        heard += 1;
    }
    assert!(heard < 301, "all {heard} events were kept");
    zk.assert_silent();
}

/// Each count is a walk through the tree, and thousands of them in one entry would stop all nodes.
#[test]
fn a_multi_counts_for_few_quotas_only() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/zookeeper/quota/a", 0);
    let stats = "/zookeeper/quota/a/zookeeper_stats";
    let multi = |times: usize| {
        let make = || Op::Create(new_node(CreateOp::Create, stats, 0));
        let remove = || Op::Delete(Delete { path: Some(stats), version: -1 });
        Request::Multi(Multi::of((0..times).flat_map(|_| [make(), remove()])))
    };
    assert_eq!(zk.fails(&multi(17)), ErrorCode::BAD_ARGUMENTS);
    assert_eq!(results(&zk.done(&multi(16))).len(), 32);
}

/// Sends as much of `bytes`, again and again, as the server takes, and reads nothing. The number of
/// bytes, or `None` if it takes `bytes_max`.
fn taken_unread(zk: &mut Zk, bytes: &[u8], bytes_max: usize) -> Option<usize> {
    /// The server has its moments; whoever waits longer waits for good.
    const STUCK: Duration = Duration::from_secs(2);

    zk.stream.set_write_timeout(Some(STUCK)).unwrap();
    let mut taken = 0;
    while taken < bytes_max {
        match zk.stream.write(&bytes[taken % bytes.len()..]) {
            Ok(written) => taken += written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Some(taken);
            }
            Err(error) => panic!("after {taken} bytes: {error}"),
        }
    }
    None
}

/// What is answered past the line stands in no line that could be full.
#[test]
fn whoever_shows_credentials_and_does_not_read_is_not_read() {
    let server = start();
    let mut zk = Zk::new(&server);
    let auth = Auth { kind: 0, scheme: Some("ip"), credentials: Hidden(None) };
    let mut bytes = BytesMut::new();
    while bytes.len() < 64 << 10 {
        encode_request(xids::AUTH, &Request::Auth(auth), &mut bytes).unwrap();
    }
    assert!(taken_unread(&mut zk, &bytes, 64 << 20).is_some(), "all was answered, and kept");
    Zk::new(&server).assert_silent();
}

/// The reply to a multi may be longer than the multi.
#[test]
fn the_replies_to_multis_are_not_kept_for_whoever_does_not_read() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/big", 0);
    zk.set("/big", &"x".repeat(900_000));
    // Behind these, nothing comes to its turn.
    for _ in 0..20 {
        zk.send(&get_data("/big", false));
    }
    let check = || Op::Check(Check { path: Some("/"), version: -1 });
    let multi = Request::Multi(Multi::of((0..50_000).map(|_| check())));
    let mut bytes = BytesMut::new();
    encode_request(1, &multi, &mut bytes).unwrap();
    assert!(taken_unread(&mut zk, &bytes, 40 << 20).is_some(), "all was done, and kept");
    Zk::new(&server).assert_silent();
}

#[test]
fn a_question_whose_answer_is_absurd_is_not_answered() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/big", 0);
    zk.set("/big", &"x".repeat(900_000));
    let part = || ReadOp::GetData(Read { path: Some("/big"), watch: false });
    zk.send(&Request::MultiRead(Multi::of((0..1_000).map(|_| part()))));
    zk.assert_closed();
    Zk::new(&server).assert_silent();
}

#[test]
fn random_bytes_harm_nobody() {
    let server = start();
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    for round in 0..300 {
        let mut zk = Zk::silent(&server);
        if round % 2 == 0 {
            zk.greet(&fresh()).unwrap();
        }
        let length = usize::from(random()) + 8;
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        bytes.extend((0..length).map(|_| random()));
        // Operations that there are.
        bytes[8..11].fill(0);
        bytes[11] %= 23;
        zk.write(&bytes);
        zk.stream.shutdown(Shutdown::Write).unwrap();
        while zk.hear() != Heard::End {}
    }
    Zk::new(&server).assert_silent();
}

#[test]
fn a_full_queue_makes_clients_wait_and_not_fail() {
    let server = start_with(|config| config.node.queue_bytes_max = 8 << 10);
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    let data = vec![1; 3_000];
    for _ in 0..200 {
        zk.send(&set_data("/a", Some(&data), -1));
    }
    for xid in 2..=201 {
        assert_eq!(zk.reply(xid).0, ErrorCode::OK);
    }
    assert_eq!(zk.stat("/a").unwrap().version, 200);
}

#[test]
fn a_server_that_stops_lets_its_clients_go() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 1);
    let stopping = std::thread::spawn(move || server.stop());
    zk.assert_closed();
    stopping.join().unwrap();
}
