//! Locks around commands: who runs when, and how it ends.

use std::process::Stdio;

use rustix::process::Signal;

use crate::home::{Ended, Home};

/// Waits for the file `go`.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.02; done";

#[test]
fn two_terminals_exclude_each_other() {
    let home = Home::new();
    let mut first =
        home.start(&[], &format!("echo first in >> log; {UNTIL_GO}; echo first out >> log"));
    home.wait_for_holder();
    let mut second = home.start(&[], "echo second in >> log; echo second out >> log");
    home.wait_for_waiters(1);
    assert!(!home.read("log").contains("second"));

    home.touch("go");
    assert_eq!(first.wait(), Some(0));
    second.assert(0, &["x: place 1; held by", "x: yours after", "(token "]);
    assert_eq!(home.read("log"), "first in\nfirst out\nsecond in\nsecond out\n");
    home.wait_until_free();
}

#[test]
fn the_exit_code_of_the_command_passes_through() {
    let home = Home::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 76", 76), ("kill -9 $$", 137)] {
        let ended = home.lock(&[], &["sh", "-c", script]);
        ended.assert(code, &[]);
        assert_eq!(ended.stderr, "", "{script}");
    }
    home.lock(&[], &["no-such-command"]).assert(127, &["no-such-command", "[LK-NO-COMMAND]"]);
    home.touch("plain");
    home.lock(&[], &["./plain"]).assert(126, &["./plain", "[LK-NOT-EXECUTABLE]"]);
    home.wait_until_free();
}

#[test]
fn the_command_has_the_standard_streams() {
    let home = Home::new();
    std::fs::write(home.path("input"), "one\ntwo\n").unwrap();
    let input = std::fs::File::open(home.path("input")).unwrap();
    let script = "cat; echo to stderr >&2";
    let mut command = home.command(&["lock", "x", "--local", "--", "sh", "-c", script]);
    let ended = Ended::run(command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert_eq!((&*ended.stdout, &*ended.stderr), ("one\ntwo\n", "to stderr\n"));
}

#[test]
fn the_command_knows_its_lock_whatever_it_inherits() {
    let home = Home::new();
    let script = "env | grep ^LOCKKEEPER_ | sort";
    let mut command = home.command(&["lock", "x", "--local", "--", "sh", "-c", script]);
    let inherited = [("LOCKKEEPER_TOKEN", "999999"), ("LOCKKEEPER_LOCK", "another")];
    let ended = Ended::run(command.envs(inherited));
    let variable = |name: &str| {
        let mut lines = ended.stdout.lines();
        let value = lines.find_map(|line| line.strip_prefix(&format!("LOCKKEEPER_{name}=")));
        value.unwrap_or_else(|| panic!("{name} is not in {ended:?}")).to_owned()
    };
    assert_eq!(variable("LOCK"), "x");
    assert_eq!(variable("URL"), "embedded:");
    assert_eq!(variable("TTL_MS"), "20000");
    assert_eq!(variable("SESSION").len(), 16);
    assert!(variable("ACQUIRED_AT").ends_with('Z'));
    assert!(variable("WAITED_MS").parse::<u64>().is_ok());
    assert!(variable("OWNER").contains("(pid "));
    let token: u64 = variable("TOKEN").parse().unwrap();
    assert!(token < 999_999);

    let next = home.lock(&[], &["sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    assert!(next.stdout.trim().parse::<u64>().unwrap() > token, "the token grows");
}

#[test]
fn a_busy_lock_is_told_with_its_holder() {
    let home = Home::new();
    let holder = home.start(&["--purpose", "release 8.2"], UNTIL_GO);
    home.wait_for_holder();
    let who = ["not acquired: x is held by", "\"release 8.2\"", "[LK-BUSY]"];
    home.lock(&["-n"], &["true"]).assert(75, &who);
    home.lock(&["--wait", "0"], &["true"]).assert(75, &who);
    home.lock(&["-n", "-E", "9"], &["true"]).assert(9, &who);
    home.run(&["try", "x"]).assert(75, &who);
    assert_eq!(home.who()["waiter_count"], 0);
    drop(holder);
}

#[test]
fn whoever_has_waited_long_enough_leaves_the_queue() {
    let home = Home::new();
    let _holder = home.start(&[], UNTIL_GO);
    home.wait_for_holder();
    // A slow machine may not have it in line by then: then it waits for longer.
    let wait = |limit: &&str| home.lock(&["-w", *limit], &["true"]);
    let is_in_line = |ended: &Ended| ended.stderr.contains("x: place 1; held by");
    let ended = ["300ms", "3s", "30s"].iter().map(wait).find(is_in_line);
    let ended = ended.expect("it is told its place");
    ended.assert(75, &["x is still held by", "(place 1 in line)"]);
    assert!(ended.stderr.trim_end().ends_with("[LK-TIMEOUT]"), "{ended:?}");
    assert_eq!(home.who()["waiter_count"], 0);
}

#[test]
fn an_interrupted_waiter_leaves_the_queue() {
    let home = Home::new();
    let _holder = home.start(&[], UNTIL_GO);
    home.wait_for_holder();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut waiter = home.start(&[], "echo never");
        home.wait_for_waiters(1);
        waiter.signal(signal);
        waiter.assert(code, &["interrupted while waiting for x", "[LK-INTERRUPTED]"]);
        assert_eq!(home.who()["waiter_count"], 0);
    }
}

#[test]
fn readers_share_and_writers_do_not() {
    let home = Home::new();
    let mut first = home.start(&["-s"], UNTIL_GO);
    home.wait_for_holder();
    let mut second = home.start_as("rw", &["--read"], UNTIL_GO);
    crate::home::wait_for("two share it", || (home.who()["holder_count"] == 2).then_some(()));
    home.run(&["rw", "x", "--write", "-n"]).assert(75, &["[LK-BUSY]"]);
    let mut writer = home.start_as("rw", &["--write"], "true");
    home.wait_for_waiters(1);
    // Nobody overtakes: a reader behind a writer waits.
    home.lock(&["-s", "-n"], &["true"]).assert(75, &["[LK-BUSY]"]);
    home.touch("go");
    assert_eq!([first.wait(), second.wait(), writer.wait()], [Some(0); 3]);
}

#[test]
fn a_semaphore_has_so_many_permits() {
    let home = Home::new();
    let mut first = home.start_as("sem", &["--permits", "3", "--take", "2"], UNTIL_GO);
    home.wait_for_holder();
    home.run(&["sem", "x", "--permits", "3", "--take", "2", "-n"]).assert(75, &["[LK-BUSY]"]);
    let one = ["sem", "x", "--permits", "3", "-n", "--", "true"];
    Ended::run(home.command(&["--local"]).args(one)).assert(0, &[]);
    home.run(&["sem", "x", "--permits", "4", "-n"]).assert(75, &["[LK-MODE-CONFLICT]"]);
    home.run(&["sem", "x", "--permits", "3", "--take", "4"])
        .assert(64, &["--take 4", "--permits 3"]);
    home.touch("go");
    assert_eq!(first.wait(), Some(0));
}

#[test]
fn without_a_command_the_lock_is_held_until_a_signal() {
    let home = Home::new();
    let mut holder = home.spawn(&["lock", "x", "--local"]);
    let token = home.wait_for_holder();
    crate::home::wait_for("the token", || (!holder.said().is_empty()).then_some(()));
    assert_eq!(holder.said().trim(), token.to_string());
    assert!(!holder.has_ended());
    holder.signal(Signal::TERM);
    assert_eq!(holder.wait(), Some(0));
    home.wait_until_free();
}

#[test]
fn a_hold_that_lasts_too_long_is_ended() {
    let home = Home::new();
    let ended = home.lock(&["--max-hold", "200ms"], &["sleep", "1000"]);
    ended.assert(
        76,
        &["x: held for 200ms (--max-hold). Stopped the command (TERM", "[LK-MAX-HOLD]"],
    );
    home.wait_until_free();
}

#[test]
fn progress_can_be_read_by_programs() {
    let home = Home::new();
    let mut holder = home.start(&[], UNTIL_GO);
    home.wait_for_holder();
    let mut waiter = home.start(&["--progress", "json"], "true");
    home.wait_for_waiters(1);
    home.touch("go");
    assert_eq!([holder.wait(), waiter.wait()], [Some(0); 2]);
    let said = waiter.said();
    let events: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&events[0]["event"], &events[0]["place"]), (&"waiting".into(), &1.into()));
    let last: Vec<_> = events.iter().rev().take(2).map(|event| event["event"].clone()).collect();
    assert_eq!(last, ["released", "acquired"], "{said}");
}
