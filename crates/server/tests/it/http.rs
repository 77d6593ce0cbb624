//! HTTP on the same port.

use std::io::Write;

use lockkeeper_wire::native::{Release, request::Body as Asks};

use crate::harness::{Running, fresh_id, http};

#[test]
fn health_is_told_on_the_clients_port() {
    let server = Running::start();
    server.assert_serves();
    for (path, status, part) in [
        ("/livez", "200 OK", "ok\n"),
        ("/readyz", "200 OK", "ok\n"),
        ("/health", "200 OK", r#"{"health":"true"}"#),
        ("/version", "200 OK", r#"{"lockkeeper":""#),
        ("/", "404 Not Found", "/metrics"),
    ] {
        let answer = get(&server, path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert!(answer.contains(part), "{path}: {answer}");
    }
    let answer = http(&server, "POST /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    server.assert_serves();
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = Running::start();
    let mut stream = server.connect_silently();
    for byte in b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn metrics_tell_what_happens_with_bounded_labels() {
    let server = Running::start();
    let mut client = server.connect();
    client.open(fresh_id());
    for n in 0..40 {
        client.acquire(2 + 2 * n, &format!("class-{n}/\"quoted\""));
    }
    client.ask(100, Asks::Release(Release { acquire: 2 }));
    client.answer(100);
    let metrics = get(&server, "/metrics");
    for line in [
        "lockkeeper_sessions 1",
        "lockkeeper_holds 39",
        "lockkeeper_waiters 0",
        "lockkeeper_ready 1",
        "lockkeeper_raft_is_leader 1",
        "lockkeeper_raft_voters 1",
        "lockkeeper_acquire_seconds_count{class=\"class-0\"} 1",
        "lockkeeper_acquire_seconds_count{class=\"other\"} ",
        "lockkeeper_hold_seconds_count{class=\"class-0\"} 1",
        "lockkeeper_connections 2",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert_eq!(metrics.matches("lockkeeper_acquire_seconds_count{").count(), 33);
}

#[test]
fn http2_is_refused_in_words_that_a_person_may_find() {
    let server = Running::start();
    let answer = http(&server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 505"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())), "{answer}");
    server.assert_serves();
}

#[test]
fn http_that_is_none_is_no_harm() {
    let server = Running::start();
    let answer = http(&server, "GET \0\0\0 nonsense\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    server.assert_serves();
}

fn get(server: &Running, path: &str) -> String {
    http(server, &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
}
