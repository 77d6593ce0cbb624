//! Requests that don't wait for each other's answers.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_node::{Environment, NodeHandle};
use lockkeeper_server::{ServerConfig, ZooKeeper, ZooKeeperClient, ZooKeeperSettings};
use lockkeeper_wire::jute::{ErrorCode, Request, encode_request, xids};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};

use super::client::{
    Heard, SHORT_MS, Zk, children, create, exists, fresh, get_data, set_data, text,
};
use super::{connect, start};
use crate::harness::{Members, PATIENCE, eventually, runtime};

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    // Whatever the numbers are.
    let xids = [5, 5, 0, -7, i32::MAX, i32::MIN, 5, 1, -8];
    for round in 0..100_u8 {
        let data = [round];
        let requests = [
            set_data("/a", Some(&data), -1),
            get_data("/a", false),
            Request::Sync(Some("/")),
            exists("/no", false),
            create("/a/s", 2),
            children("/a", false),
            create("/a", 0),
            Request::WhoAmI,
            get_data("/a", false),
        ];
        for (xid, request) in xids.iter().zip(&requests) {
            zk.send_as(*xid, request);
        }
        let mut newest = 0;
        for (at, expected) in xids.iter().enumerate() {
            let Heard::Reply { xid, zxid, err, body } = zk.hear() else { panic!("no reply") };
            assert_eq!(xid, *expected);
            assert!(zxid >= newest, "time goes back");
            newest = zxid;
            match at {
                1 | 8 => assert_eq!(body[4], round, "it sees what it wrote"),
                3 => assert_eq!(err, ErrorCode::NO_NODE),
                6 => assert_eq!(err, ErrorCode::NODE_EXISTS),
                5 => {
                    let count = i32::from_be_bytes(body[..4].try_into().unwrap());
                    assert_eq!(count, i32::from(round) + 1);
                }
                _ => assert_eq!(err, ErrorCode::OK),
            }
        }
    }
}

/// As TLS does, once it has taken more than the system does.
#[test]
fn what_the_stream_keeps_is_flushed() {
    runtime().block_on(async {
        let data_dir = tempfile::tempdir().unwrap();
        let mut config = ServerConfig::loopback(1, data_dir.path().to_owned());
        config.node.free_space_bytes_min = 0;
        let environment = Environment::system();
        let (clock, random) = (Arc::clone(&environment.clock), Arc::clone(&environment.random));
        let node = NodeHandle::start(config.node, environment).await.unwrap();
        node.serving().wait_for(|serving| serving.is_ready).await.unwrap();
        let zookeeper = ZooKeeper::new(node.clone(), ZooKeeperSettings::default(), clock, random);
        let (mut stream, other) = tokio::io::duplex(64 << 10);
        let client = ZooKeeperClient { address: ([127, 0, 0, 1], 1).into(), ids: Vec::new() };
        let serving = async {
            zookeeper.serve(BufStream::with_capacity(1_024, 64 << 10, other), client).await
        };
        let asking = async {
            let mut bytes = BytesMut::new();
            fresh().encode(&mut bytes).unwrap();
            encode_request(7, &Request::WhoAmI, &mut bytes).unwrap();
            stream.write_all(&bytes).await.unwrap();
            for first in [0, 7] {
                let length = stream.read_i32().await.unwrap();
                let mut frame = vec![0; usize::try_from(length).unwrap()];
                stream.read_exact(&mut frame).await.unwrap();
                assert_eq!(frame[..4], i32::to_be_bytes(first));
            }
            drop(stream);
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(serving, asking) }).await.unwrap();
        node.stop().await;
    });
}

#[test]
fn more_than_may_wait_are_answered_all_the_same() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.create("/a", 0);
    let mut sender = zk.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let mut bytes = BytesMut::new();
        for xid in 0..COUNT {
            let request = if xid % 3 == 0 { create("/a/s", 2) } else { get_data("/a", false) };
            encode_request(xid, &request, &mut bytes).unwrap();
        }
        sender.write_all(&bytes).unwrap();
    });
    for xid in 0..COUNT {
        assert_eq!(zk.reply(xid).0, ErrorCode::OK);
    }
    sending.join().unwrap();
}

#[test]
fn a_ping_waits_for_nobody() {
    let server = start();
    let mut zk = Zk::new(&server);
    for _ in 0..50 {
        zk.send_as(xids::PING, &Request::Ping);
    }
    for _ in 0..50 {
        assert_eq!(zk.reply(xids::PING).0, ErrorCode::OK);
    }
    // Its number is always the same.
    zk.send_as(9, &Request::Ping);
    zk.reply(xids::PING);
}

#[test]
fn pings_keep_a_session() {
    let server = start();
    let mut zk = Zk::with_timeout(&server, SHORT_MS);
    let mut other = Zk::new(&server);
    zk.create("/mine", 1);
    // The time that passes is what is tested: one and a half times the session's.
    let end = Instant::now() + Duration::from_millis(SHORT_MS.unsigned_abs().into()) * 3 / 2;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
        zk.send_as(xids::PING, &Request::Ping);
        zk.reply(xids::PING);
    }
    assert!(other.stat("/mine").is_some());
}

#[test]
fn what_is_behind_the_end_is_not_done() {
    let server = start();
    let mut zk = Zk::new(&server);
    zk.send(&create("/before", 1));
    zk.send(&create("/stays", 0));
    zk.send(&Request::CloseSession);
    zk.send(&create("/behind", 0));
    zk.reply(1);
    zk.reply(2);
    zk.reply(3);
    zk.assert_closed();
    let mut other = Zk::new(&server);
    other.sync();
    assert!(other.stat("/before").is_none());
    assert!(other.stat("/stays").is_some());
    assert!(other.stat("/behind").is_none());
}

#[test]
fn a_client_that_leaves_with_its_last_word_is_heard() {
    let server = start();
    let mut other = Zk::new(&server);
    {
        let mut zk = Zk::new(&server);
        zk.create("/mine", 1);
        zk.send(&Request::CloseSession);
    }
    eventually("the session has ended", || other.stat("/mine").is_none());
}

#[test]
fn nothing_is_lost_or_done_twice_when_servers_go() {
    // The client's own server, and another; one of them may lead.
    for victim in [0, 1] {
        let members = Members::three();
        let start = |id| {
            members.start(id, |config| config.zookeeper_listen = Some("127.0.0.1:0".to_owned()))
        };
        let mut servers: Vec<_> = [1, 2, 3].map(start).into_iter().collect();
        servers.iter().for_each(|server| connect(server).close());
        let mut zk = connect(&servers[0]);
        zk.create("/d", 0);
        let sending = create_many(zk.stream.try_clone().unwrap());
        let mut answered = 0;
        let mut stopping = None;
        while answered < COUNT {
            if answered == COUNT / 10 && stopping.is_none() {
                let server = servers.remove(victim);
                stopping = Some(std::thread::spawn(move || server.stop()));
            }
            match zk.hear() {
                Heard::Reply { xid, err, body, .. } => {
                    assert_eq!((xid, err), (answered, ErrorCode::OK));
                    assert_eq!(text(&body), format!("/d/s-{xid:010}"));
                    answered += 1;
                }
                Heard::Event { .. } => panic!("nothing is watched"),
                Heard::End => break,
            }
        }
        sending.join().unwrap();
        // It may have been closed before that, if the machine stood still.
        match stopping {
            Some(stopping) => stopping.join().unwrap(),
            None => servers.remove(victim).stop(),
        };
        // The session goes on elsewhere, and finds what was answered, in order and once.
        let mut resumed = None;
        eventually("the session goes on", || {
            resumed = zk.resumed(servers[1].zookeeper.unwrap());
            resumed.is_some()
        });
        let mut zk = resumed.unwrap();
        let found = zk.children("/d");
        let expected: Vec<_> = (0..found.len()).map(|at| format!("s-{at:010}")).collect();
        assert_eq!(found, expected);
        assert!(found.len() >= usize::try_from(answered).unwrap(), "an answer was lost");
        zk.close();
    }
}

const COUNT: i32 = 3_000;

fn create_many(mut stream: TcpStream) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for xid in 0..COUNT {
            let mut bytes = BytesMut::new();
            encode_request(xid, &create("/d/s-", 3), &mut bytes).unwrap();
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    })
}
