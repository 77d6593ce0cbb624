//! HTTP on the same port.

use std::io::Write;

use lockkeeper_server::ServerConfig;
use lockkeeper_wire::native::{
    Acquire, Cancel, EndSession, Release, Revoke, refused::Code, request::Body as Asks,
    response::Body,
};

use crate::harness::{
    Client, LONG_TTL_MS, Members, Running, acquire, eventually, fresh_id, http, open,
};
use crate::life::with_a_lock_at_the_leader;

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
        "lockkeeper_acquire_seconds_count{class=\"class-0\",outcome=\"granted\"} 1",
        "lockkeeper_acquire_seconds_count{class=\"other\",outcome=\"granted\"} ",
        "lockkeeper_hold_seconds_count{class=\"class-0\"} 1",
        "lockkeeper_connections 2",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert_eq!(metrics.matches("lockkeeper_acquire_seconds_count{").count(), 33);
}

/// The figures of one metric, each with its labels.
fn figures(server: &Running, metric: &str) -> Vec<(String, f64)> {
    let text = get(server, "/metrics");
    let figures =
        text.lines().filter_map(|line| line.strip_prefix("lockkeeper_")).filter_map(|line| {
            let (name, figure) = line.rsplit_once(' ')?;
            let labels = name
                .strip_prefix(metric)
                .filter(|labels| labels.is_empty() || labels.starts_with('{'))?;
            Some((labels.to_owned(), figure.parse().ok()?))
        });
    figures.collect()
}

/// The figure of a metric with these labels; `None` if there is none.
fn figure(server: &Running, metric: &str, labels: &str) -> Option<f64> {
    let figures = figures(server, metric);
    figures.into_iter().find_map(|(found, figure)| (found == labels).then_some(figure))
}

/// Waits until a figure is as expected: what is counted behind an answer may come after it.
fn wait_for_figure(server: &Running, metric: &str, labels: &str, expected: f64) {
    eventually(&format!("{metric}{labels} is {expected}"), || {
        figure(server, metric, labels) == Some(expected)
    });
}

#[test]
fn metrics_tell_how_requests_for_locks_end() {
    let server = Running::start();
    let (mut holder, mut waiter) = (server.connect(), server.connect());
    holder.open(fresh_id());
    waiter.open(fresh_id());
    holder.acquire(2, "a/b");
    waiter.ask(2, acquire("a/b"));
    assert!(matches!(waiter.answer(2), Body::Queued(_)));
    waiter.ask(3, Asks::Cancel(Cancel { acquire: 2 }));
    waiter.answer(3);
    let try_it = Acquire { lock: "a/b".to_owned(), wait: false, ..Acquire::default() };
    waiter.ask(4, Asks::Acquire(try_it));
    assert_eq!(waiter.refusal(4).code(), Code::Busy);
    waiter.ask(5, acquire("a/b"));
    assert!(matches!(waiter.answer(5), Body::Queued(_)));
    waiter.ask(6, Asks::EndSession(EndSession::default()));
    while waiter.receive().expect("the connection is open").id != 6 {}

    let count = "acquire_seconds_count";
    for outcome in ["granted", "cancelled", "busy", "ended"] {
        let labels = format!("{{class=\"a\",outcome=\"{outcome}\"}}");
        wait_for_figure(&server, count, &labels, 1.0);
    }
    assert_eq!(figures(&server, count).len(), 4);
    assert_eq!(figure(&server, "refused_total", "{code=\"BUSY\"}"), Some(1.0));
    assert_eq!(figure(&server, "ttl_seconds_count", ""), Some(2.0));
    assert_eq!(figure(&server, "lease_margin_ratio_bucket", "{le=\"0.5\"}"), Some(0.0));
    // Each of them was an entry of the log, which this node proposed.
    assert!(figure(&server, "raft_commit_seconds_count", "").is_some_and(|count| count >= 7.0));
    assert!(figure(&server, "raft_commit_seconds_sum", "").is_some_and(|sum| sum > 0.0));
    assert!(figure(&server, "log_disk_free_bytes", "").is_some_and(|bytes| bytes > 0.0));
    assert_eq!(figure(&server, "disk_full", ""), Some(0.0));
}

#[test]
fn metrics_tell_what_a_hand_over_takes_and_why_it_came() {
    let server = Running::start();
    let session = |ttl_ms| {
        let mut client = server.connect();
        client.ask(1, open(fresh_id(), ttl_ms));
        client.session_state(1);
        client
    };
    let mut next = session(LONG_TTL_MS);
    let mut wait_behind = |id, lock: &str| {
        next.ask(id, acquire(lock));
        // What it waited for before may have come meanwhile.
        let mut heard = std::iter::repeat_with(|| next.receive().expect("the connection is open"));
        match heard.find(|heard| heard.id != 0).and_then(|answer| answer.body).expect("an answer") {
            Body::Queued(_) => true,
            Body::Granted(_) => {
                next.ask(id + 1, Asks::Release(Release { acquire: id }));
                next.answer(id + 1);
                false
            }
            other => panic!("{other:?}"),
        }
    };
    // A silent holder may lose its lock before anybody waits for it: then another one tries.
    let is_lost_too_soon = |id| {
        session(3_000).acquire(2, "expiry");
        !wait_behind(id, "expiry")
    };
    assert!(!(2..).step_by(2).map(is_lost_too_soon).take(20).all(|is_lost| is_lost));

    let names = ["release", "disconnect", "revoke"];
    let [mut releasing, mut leaving, mut robbed] = [LONG_TTL_MS; 3].map(session);
    releasing.acquire(2, "release");
    leaving.acquire(2, "disconnect");
    let if_token = robbed.acquire(2, "revoke");
    for (id, name) in (100..).zip(names) {
        assert!(wait_behind(id, name), "{name}");
    }
    releasing.ask(3, Asks::Release(Release { acquire: 2 }));
    leaving.ask(3, Asks::EndSession(EndSession::default()));
    robbed.ask(3, Asks::Revoke(Revoke { lock: "revoke".to_owned(), if_token, now: true }));
    let names = ["release", "disconnect", "revoke", "expiry"];
    for name in names {
        let labels = format!("{{class=\"{name}\",cause=\"{name}\"}}");
        wait_for_figure(&server, "handover_seconds_count", &labels, 1.0);
    }
    assert_eq!(figures(&server, "handover_seconds_count").len(), names.len());
    let sum = figure(&server, "handover_seconds_sum", "{class=\"release\",cause=\"release\"}");
    assert!(sum.is_some_and(|sum| sum > 0.0), "{sum:?}");
}

#[test]
fn metrics_tell_who_waits_also_after_a_restart() {
    let server = Running::start();
    let (mut holder, mut waiter) = (server.connect(), server.connect());
    holder.open(fresh_id());
    waiter.open(fresh_id());
    holder.acquire(2, "a/1");
    holder.acquire(3, "a/2");
    for (id, lock) in [(2, "a/1"), (3, "a/2"), (4, "a/1")] {
        waiter.ask(id, acquire(lock));
        assert!(matches!(waiter.answer(id), Body::Queued(_)));
    }
    let class = "{class=\"a\"}";
    wait_for_figure(&server, "queue_length", class, 3.0);
    eventually("they get older", || {
        figure(&server, "queue_oldest_seconds", class).is_some_and(|seconds| seconds > 0.1)
    });

    let server = Running::start_in(server.stop(), |_| {});
    server.assert_serves();
    wait_for_figure(&server, "queue_length", class, 3.0);
    let oldest = figure(&server, "queue_oldest_seconds", class);
    assert!(oldest.is_some_and(|seconds| seconds > 0.1), "{oldest:?}");
    // The restarted one counts down from there.
    let mut waiter = server.connect();
    waiter.open(fresh_id());
    waiter.ask(2, acquire("a/1"));
    assert!(matches!(waiter.answer(2), Body::Queued(_)));
    wait_for_figure(&server, "queue_length", class, 4.0);
    waiter.ask(3, Asks::Cancel(Cancel { acquire: 2 }));
    waiter.answer(3);
    wait_for_figure(&server, "queue_length", class, 3.0);
}

#[test]
fn a_node_that_a_snapshot_brings_up_to_date_counts_on() {
    let members = Members::three();
    let small = |config: &mut ServerConfig| config.node.snapshot_log_bytes = 4 << 10;
    let mut servers: Vec<Running> = (1..=2).map(|id| members.start(id, small)).collect();
    let (_, mut client, _) = with_a_lock_at_the_leader(&servers, fresh_id());
    let queue = |client: &mut Client, id| {
        assert!(matches!(client.insist(id, &acquire("a")), Body::Queued(_)));
    };
    queue(&mut client, 4);
    // More entries than are kept for a peer that is a little behind.
    for id in (10..700).step_by(2) {
        assert!(matches!(client.insist(id, &acquire("b")), Body::Granted(_)));
        let release = Asks::Release(Release { acquire: id });
        assert!(matches!(client.insist(id + 1, &release), Body::Released(_)));
    }
    servers.push(members.start(3, small));
    let class = "{class=\"a\"}";
    wait_for_figure(&servers[2], "queue_length", class, 1.0);
    queue(&mut client, 1_000);
    wait_for_figure(&servers[2], "queue_length", class, 2.0);

    // On a slow disk leadership is handed over: whoever has it now is asked.
    eventually("the leader knows the way to both others", || {
        let leads = |server: &&Running| figure(server, "raft_is_leader", "") == Some(1.0);
        servers.iter().find(leads).is_some_and(|leader| {
            let round_trips = figures(leader, "peer_rtt_seconds");
            round_trips.len() == 2
                && round_trips.iter().all(|(_, seconds)| *seconds > 0.0)
                && figures(leader, "peer_silence_seconds").len() == 2
        })
    });
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
