//! `bench` says what it found, and finds nothing wrong; how fast it was is nobody's business here.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::home::LOCKKEEPER;
use crate::servers::Servers;

/// Runs a workload for longer and longer until it has all of these figures: in a short time, a
/// machine that stands still may get nothing done.
fn bench(servers: &Servers, arguments: &[&str], figures: &[&str]) -> Value {
    let has = |found: &Value, figure: &str| found[figure].as_f64().is_some_and(|it| it > 0.0);
    let mut found = Value::Null;
    for duration in ["300ms", "3s", "20s"] {
        found = bench_for(duration, servers, arguments);
        if figures.iter().all(|figure| has(&found, figure)) {
            break;
        }
    }
    for figure in figures {
        assert!(has(&found, figure), "{figure}: {found}");
    }
    found
}

fn bench_for(duration: &str, servers: &Servers, arguments: &[&str]) -> Value {
    let pids: Vec<_> = (0..3).map(|index| servers.pid(index).to_string()).collect();
    let output = Command::new(LOCKKEEPER)
        .arg("bench")
        .args(arguments)
        .args(["--workers", "4", "--sessions", "2", "--duration", duration, "--warm-up", "100ms"])
        .args(["--locks", "200", "--pids", &pids.join(","), "--url", &servers.url(), "-o", "json"])
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(found["workload"], arguments[0]);
    assert_eq!(found["errors"], 0, "{found}");
    found
}

#[test]
fn every_workload_says_what_it_found() {
    let servers = Servers::start();
    let rates = ["pairs_per_s", "p50_ms", "p99_ms", "p999_ms", "server_cpu_us_per_op"];
    bench(&servers, &["uncontended"], &rates);
    assert_eq!(bench(&servers, &["contended"], &rates)["fifo_inversions"], 0);
    assert_eq!(bench(&servers, &["hold"], &[])["locks"], 200);
    assert_eq!(bench(&servers, &["idle"], &[])["lost"], 0);
    let times = ["calm_p50_ms", "ending_p99_ms", "waiters_ending_p99_ms", "flood_p99_ms"];
    bench(&servers, &["overload"], &times);
    let leader = servers.pid(servers.wait_for_leader()).to_string();
    // Once: it kills a server.
    let found = bench_for("300ms", &servers, &["failover", "--kill", &leader]);
    assert_eq!((&found["held"], &found["kept"]), (&Value::from(200), &Value::from(200)), "{found}");
    assert!(found["longest_gap_ms"].as_f64().is_some_and(|gap| gap > 0.0), "{found}");
}
