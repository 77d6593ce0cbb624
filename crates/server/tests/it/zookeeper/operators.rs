//! What operators and their tools ask: words, commands over HTTP, metrics.

use std::io::{Read, Write};

use lockkeeper_server::Whitelist;
use lockkeeper_wire::jute::OpCode;

use super::client::{SHORT_MS, Zk, exists, get_data};
use super::{connect, start, start_with};
use crate::harness::{Running, eventually, http};

/// What a server answers to a word, at one go and until the end.
fn ask(server: &Running, word: &[u8]) -> String {
    let mut zk = Zk::silent(server);
    zk.write(word);
    let mut answer = String::new();
    zk.stream.read_to_string(&mut answer).unwrap();
    answer
}

fn open_to_all() -> Running {
    start_with(|config| config.zookeeper.words = Whitelist::All)
}

#[test]
fn a_word_is_answered_and_the_connection_closed() {
    let server = open_to_all();
    let mut zk = connect(&server);
    zk.create("/a", 1);
    zk.done(&exists("/a", true));
    let session = format!("0x{:x}", zk.session);
    assert_eq!(ask(&server, b"ruok"), "imok");
    assert_eq!(ask(&server, b"isro\n"), "rw");
    let told = ask(&server, b"srvr");
    assert!(told.starts_with("Zookeeper version: 3.9.5-lockkeeper-"), "{told}");
    assert!(told.contains("\nMode: standalone\nNode count: 6\n"), "{told}");
    assert!(told.contains("\nConnections: 2\n"), "{told}");
    let told = ask(&server, b"cons");
    assert!(told.contains(&format!(",sid={session},lop=EXIS,")), "{told}");
    let told = ask(&server, b"dump");
    assert!(told.contains(&format!("Sessions with Ephemerals (1):\n{session}:\n\t/a\n")), "{told}");
    assert_eq!(ask(&server, b"wchs"), "1 connections watching 1 paths\nTotal watches:1\n");
    assert_eq!(ask(&server, b"wchc"), format!("{session}\n\t/a\n\n"));
    assert_eq!(ask(&server, b"wchp"), format!("/a\n\t{session}\n\n"));
    let told = ask(&server, b"mntr");
    assert!(told.contains("\nzk_ephemerals_count\t1\n"), "{told}");
    let told = ask(&server, b"conf");
    let port = server.zookeeper.unwrap().port();
    assert!(told.starts_with(&format!("clientPort={port}\nsecureClientPort=-1\n")), "{told}");
    let told = ask(&server, b"dirs");
    let bytes = told.lines().next().unwrap().strip_prefix("datadir_size: ").unwrap();
    assert!(bytes.parse::<u64>().unwrap() > 0, "{told}");
    assert_eq!(ask(&server, b"stmk\0\0\0\0\0\0\x01\x02"), "258");
    zk.close();
}

#[test]
fn what_is_received_is_counted_from_the_last_reset() {
    let server = open_to_all();
    let mut zk = connect(&server);
    for _ in 0..10 {
        zk.done(&exists("/", false));
    }
    let received = |server: &Running| -> u64 {
        let told = ask(server, b"stat");
        let line = told.lines().find_map(|line| line.strip_prefix("Received: "));
        line.unwrap().parse().unwrap()
    };
    let before = received(&server);
    assert!(before >= 10, "{before}");
    zk.done(&get_data("/", false));
    assert_eq!(received(&server), before + 1);
    assert_eq!(ask(&server, b"srst"), "Server stats reset.\n");
    assert_eq!(received(&server), 0);
    assert_eq!(ask(&server, b"crst"), "Connection stats reset.\n");
    assert!(ask(&server, b"cons").contains("recved=0,"));
    zk.close();
}

#[test]
fn only_what_is_listed_is_answered() {
    let server = start();
    assert!(ask(&server, b"srvr").contains("\nMode: standalone\n"));
    let told = "mntr is not executed because it is not in the whitelist.\n";
    assert_eq!(ask(&server, b"mntr"), told);
    // No word, so the length of a frame that is too long.
    assert_eq!(ask(&server, b"lsnr"), "");
}

#[test]
fn a_word_may_come_letter_by_letter_and_half_a_mask_may_not() {
    let server = open_to_all();
    let mut zk = Zk::silent(&server);
    for letter in b"ruok" {
        zk.write(&[*letter]);
    }
    let mut answer = String::new();
    zk.stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");
    let mut zk = Zk::silent(&server);
    zk.stream.write_all(b"stmk\0\0").unwrap();
    zk.stream.shutdown(std::net::Shutdown::Write).unwrap();
    zk.assert_closed();
}

#[test]
fn commands_are_answered_over_http() {
    let server = start();
    let mut zk = connect(&server);
    zk.create("/a", 1);
    let get = |path: &str| {
        let answer =
            http(&server, &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body.to_owned()
    };
    assert!(get("/commands").contains("/commands/ruok"));
    let json = |path: &str| serde_json::from_str::<serde_json::Value>(&get(path)).unwrap();
    assert_eq!(json("/commands/ruok"), serde_json::json!({ "command": "ruok", "error": null }));
    let stats = json("/commands/stat");
    assert_eq!(stats["command"], "stats");
    assert_eq!(stats["server_stats"]["server_state"], "standalone");
    assert_eq!(stats["connections"].as_array().unwrap().len(), 1);
    assert_eq!(json("/commands/monitor")["ephemerals_count"], 1);
    assert!(json("/commands/nonsense")["error"].as_str().unwrap().contains("nonsense"));
    zk.close();
}

#[test]
fn a_server_without_zookeepers_clients_has_no_commands() {
    let server = Running::start();
    let answer =
        http(&server, "GET /commands/ruok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert!(!metrics(&server).contains("znode_count"));
}

#[test]
fn metrics_have_zookeepers_names_and_ours() {
    let server = start_with(|config| {
        config.zookeeper.metrics_prefixes = vec!["/dedup".to_owned()];
    });
    let mut zk = connect(&server);
    zk.create("/dedup", 0);
    zk.create("/dedup/key", 0);
    zk.create("/dedup/key/lock-", 3);
    zk.create("/dedup/key/lock-", 3);
    zk.done(&exists("/dedup/key/lock-0000000000", true));
    zk.delete("/dedup/key/lock-0000000000");
    let told = metrics(&server);
    for line in [
        "ephemerals_count 1",
        "zk_watch_notifications_total{prefix=\"/dedup\"} 1",
        "zk_ephemeral_nodes_total{prefix=\"/dedup/key\"} 1",
        "zk_quorum_size 1",
        "zk_ensemble_size 1",
        "zk_session_expired_total 0",
        "zk_operation_latency_ms_count{operation=\"create\"} 4",
    ] {
        assert!(told.lines().any(|it| it == line), "{line} in {told}");
    }
    assert!(told.ends_with("# EOF\n") && told.matches("# EOF").count() == 1);
    assert!(OpCode::ALL.len() < 40, "one histogram for each");
    let mut short = Zk::with_timeout(&server, SHORT_MS);
    short.create("/mine", 1);
    drop(short);
    eventually("a session expires", || metrics(&server).contains("zk_session_expired_total 1\n"));
    zk.close();
}

fn metrics(server: &Running) -> String {
    let answer = http(server, "GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}
