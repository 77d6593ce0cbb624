//! This machine's own node: who may have it, and what it survives.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;

use rustix::process::Signal;

use crate::home::{Ended, Home, kill, wait_for, wait_until_dead};

#[test]
fn an_unattended_job_must_say_which_servers_it_means() {
    let home = Home::new();
    let mut command = home.command(&["lock", "x", "--", "echo", "ran"]);
    let ended = Ended::run(&mut command);
    ended.assert(78, &["no servers are configured", "LOCKKEEPER_URL", "--local", "[LK-NO-URL]"]);
    assert_eq!(ended.stdout, "");
    assert!(home.node_directory().is_none(), "no node was started");

    let mut command = home.command(&["lock", "x", "--", "echo", "ran"]);
    Ended::run(command.env("LOCKKEEPER_URL", "embedded:")).assert(0, &[]);
}

#[test]
fn nobody_else_can_enter_its_directory() {
    let home = Home::new();
    home.lock(&[], &["true"]).assert(0, &[]);
    let directory = home.node_directory().expect("a directory");
    assert_eq!(fs::metadata(directory).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn many_who_start_it_at_once_get_one_node() {
    let home = Home::new();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                home.lock(&[], &["sh", "-c", "n=$(cat n 2>/dev/null); echo $((n + 1)) > n"])
                    .assert(0, &[]);
            });
        }
    });
    assert_eq!(home.read("n"), "8\n");
}

#[test]
fn a_killed_node_is_started_again_and_nobody_loses_a_lock() {
    let home = Home::new();
    let mut holder = home.start(&["--ttl", "60s"], "until [ -e go ]; do sleep 0.02; done");
    let token = home.wait_for_holder();
    let mut waiter = home.start(&["--ttl", "60s"], "true");
    home.wait_for_waiters(1);
    let node = home.node().expect("a node");
    kill(node, Signal::KILL);
    home.wait_for_another_node(node);
    assert_eq!(home.wait_for_holder(), token);
    home.wait_for_waiters(1);
    home.touch("go");
    assert_eq!([holder.wait(), waiter.wait()], [Some(0); 2]);
}

#[test]
fn an_idle_node_ends_itself_and_its_state_outlives_it() {
    let home = Home::new();
    let token = |home: &Home| -> u64 {
        let script = "echo $LOCKKEEPER_TOKEN";
        let mut command = home.command(&["lock", "x", "--local", "--", "sh", "-c", script]);
        let ended = Ended::run(command.env("LOCKKEEPER_EMBEDDED_IDLE", "1s"));
        ended.assert(0, &[]);
        ended.stdout.trim().parse().expect("a token")
    };
    let first = token(&home);
    // It may have ended already.
    if let Some(node) = home.node() {
        wait_until_dead(node);
    }
    wait_for("the socket goes", || {
        let socket = home.node_directory()?.join("socket");
        (!socket.exists()).then_some(())
    });
    assert!(token(&home) > first);
}

#[test]
fn a_node_of_another_version_is_replaced_and_nobody_loses_a_lock() {
    let home = Home::new();
    let mut holder = home.start(&["--ttl", "60s"], "until [ -e go ]; do sleep 0.02; done");
    let token = home.wait_for_holder();
    let node = home.node().expect("a node");
    let running = home.node_directory().expect("a directory").join("running");
    fs::write(running, format!("{node} 0.0.0-older")).unwrap();
    assert_eq!(home.wait_for_holder(), token);
    wait_until_dead(node);
    home.wait_for_another_node(node);
    home.touch("go");
    assert_eq!(holder.wait(), Some(0));
}
