//! What an operator sees, and can do.

use rustix::process::Signal;
use serde_json::Value;

use crate::home::{Ended, Home, wait_for};

const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.02; done";

fn json(ended: &Ended) -> Value {
    ended.assert(0, &[]);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("no JSON: {ended:?}"))
}

#[test]
fn who_shows_the_holder_and_the_waiters() {
    let home = Home::new();
    assert_eq!(home.run(&["who", "x"]).stdout, "x is free: nobody waits for it\n");
    let mut holder = home.start(&["--purpose", "release 8.2", "--ttl", "30s"], UNTIL_GO);
    let token = home.wait_for_holder();
    let mut waiter = home.start(&["-s", "--purpose", "a look"], "true");
    home.wait_for_waiters(1);

    let people = home.run(&["who", "x"]).stdout;
    let token = token.to_string();
    for part in ["x is held by", "release 8.2", "of 30 s left", &token, "1 waits", "a look"] {
        assert!(people.contains(part), "{part:?} is not in {people}");
    }
    let lock = home.who();
    let hold = &lock["holders"][0];
    assert_eq!(hold["purpose"], "release 8.2");
    assert_eq!(hold["ttl_ms"], 30_000);
    assert_eq!(hold["mode"]["kind"], "exclusive");
    assert_eq!(hold["owner"]["pid"], holder.pid());
    assert!(hold["lease_left_ms"].as_u64().is_some_and(|left| left <= 30_000), "{hold}");
    let next = &lock["waiters"][0];
    assert_eq!((&next["place"], &next["mode"]["kind"]), (&1.into(), &"shared".into()));
    assert_eq!(next["owner"]["program"], "sh -c true");
    home.touch("go");
    assert_eq!([holder.wait(), waiter.wait()], [Some(0); 2]);
}

#[test]
fn ls_lists_what_is_in_use() {
    let home = Home::new();
    assert_eq!(home.run(&["ls"]).stdout, "no lock is in use\n");
    let _holders: Vec<_> = ["a/1", "a/2", "b/1"]
        .iter()
        .map(|name| {
            let holder = home.spawn(&["lock", name, "--local"]);
            wait_for("it holds", || (!holder.said().is_empty()).then_some(()));
            holder
        })
        .collect();
    let names = |ended: &Ended| -> Vec<String> {
        let locks = json(ended)["locks"].as_array().expect("locks").clone();
        locks.iter().map(|lock| lock["lock"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&home.run(&["ls", "-o", "json"])), ["a/1", "a/2", "b/1"]);
    assert_eq!(names(&home.run(&["ls", "a/", "-o", "json"])), ["a/1", "a/2"]);
    assert!(names(&home.run(&["ls", "--waiting", "-o", "json"])).is_empty());
    let few = json(&home.run(&["ls", "--max", "1", "-o", "json"]));
    assert_eq!((few["locks"].as_array().map(Vec::len), &few["more"]), (Some(1), &true.into()));
    let table = home.run(&["ls"]).stdout;
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with("LOCK"), "{table}");
}

#[test]
fn a_lock_is_taken_away_only_after_a_look() {
    let home = Home::new();
    home.run(&["unlock", "x", "--if-token", "1"]).assert(75, &["x isn't held", "[LK-STALE-TOKEN]"]);
    let mut holder = home.start(&["--purpose", "stuck"], UNTIL_GO);
    let token = home.wait_for_holder().to_string();
    let mut next = home.start(&["--purpose", "patient"], "true");
    home.wait_for_waiters(1);

    home.run(&["unlock", "x"]).assert(64, &["which hold of x is meant?", &token, "[LK-USAGE]"]);
    home.run(&["unlock", "x", "--if-token", "1"]).assert(75, &["token 1", "[LK-STALE-TOKEN]"]);
    let dry = home.run(&["unlock", "x", "--if-token", &token, "--dry-run"]);
    dry.assert(0, &[]);
    for part in ["stuck", "Next in line: ", "patient", "Nothing was changed"] {
        assert!(dry.stdout.contains(part), "{part:?} is not in {dry:?}");
    }
    home.run(&["unlock", "x", "--if-token", &token]).assert(64, &["--yes"]);
    assert!(!holder.has_ended(), "nothing has happened so far");

    let done = home.run(&["unlock", "x", "--if-token", &token, "--yes"]);
    done.assert(0, &[]);
    assert!(done.stdout.contains("given back by its holder"), "{done:?}");
    holder.assert(76, &["REVOKED", "Stopped the command (TERM", "[LK-REVOKED]"]);
    assert_eq!(next.wait(), Some(0));
}

#[test]
fn passing_a_lock_on_at_once_says_what_it_costs() {
    let home = Home::new();
    let mut holder = home.start(&[], UNTIL_GO);
    let token = home.wait_for_holder().to_string();
    let done = home.run(&["unlock", "x", "--if-token", &token, "--yes", "--now"]);
    done.assert(0, &[]);
    assert!(done.stdout.contains("Exclusion isn't guaranteed for up to 20 s"), "{done:?}");
    holder.assert(76, &["LOST: an operator passed it on", "[LK-LOST]"]);
}

#[test]
fn sessions_are_listed_shown_and_ended() {
    let home = Home::new();
    assert_eq!(home.run(&["session", "ls"]).stdout, "there are no sessions\n");
    let mut holder = home.start(&["--purpose", "nightly"], UNTIL_GO);
    home.wait_for_holder();
    let sessions = json(&home.run(&["session", "ls", "-o", "json"]));
    let id = sessions["sessions"][0]["session"].as_str().expect("an id");
    let shown = json(&home.run(&["session", "show", id, "-o", "json"]));
    assert_eq!(shown["holds"][0]["lock"], "x");
    assert_eq!(shown["owner"]["purpose"], "nightly");
    assert!(home.run(&["session", "show", id]).stdout.contains("held, token"));

    home.run(&["session", "end", id]).assert(64, &["--yes"]);
    home.run(&["session", "end", id, "--yes"]).assert(0, &[]);
    holder.assert(76, &["[LK-REVOKED]"]);
    wait_for("the session ends", || {
        (home.run(&["session", "show", id]).code == Some(64)).then_some(())
    });
    home.run(&["session", "show", "1"]).assert(64, &["no session", "[LK-NOT-FOUND]"]);
}

#[test]
fn watch_tells_every_transition() {
    let home = Home::new();
    let mut watcher = home.spawn(&["watch", "x", "-o", "json", "--local"]);
    let mut events = Vec::new();
    // Until it watches, there is nothing to see; a lock taken again and again shows when it does.
    wait_for("it watches", || {
        home.lock(&["--purpose", "seen"], &["true"]).assert(0, &[]);
        (!watcher.said().is_empty()).then_some(())
    });
    home.lock(&[], &["true"]).assert(0, &[]);
    wait_for("a grant and a release", || {
        events = watcher
            .said()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .collect::<Vec<_>>();
        let has = |name: &str| events.iter().any(|event| event["event"] == name);
        (has("granted") && has("released")).then_some(())
    });
    assert!(events.iter().all(|event| event["lock"] == "x" && event["token"].is_u64()));
    watcher.signal(Signal::INT);
    assert_eq!(watcher.wait(), Some(0));
}

#[test]
fn status_says_how_the_servers_are() {
    let home = Home::new();
    let status = json(&home.run(&["cluster", "status", "-o", "json"]));
    assert_eq!(status["leader"], 1);
    assert_eq!(status["members"].as_array().map(Vec::len), Some(1));
    let people = home.run(&["status"]).stdout;
    assert!(people.contains("1 voting server; server 1 leads"), "{people}");
}

#[test]
fn nothing_that_others_say_plays_with_the_terminal() {
    let home = Home::new();
    let refused = home.run(&["try", "bell\u{7}"]);
    refused.assert(64, &["bell\\u{7}", "[LK-BAD-REQUEST]"]);
    assert!(!refused.stderr.contains('\u{7}'), "{refused:?}");
    let purpose = "red\u{1b}[31m";
    let mut holder = home.start(&["--purpose", purpose], UNTIL_GO);
    home.wait_for_holder();
    for command in [&["who", "x"][..], &["ls"], &["session", "ls"]] {
        let said = home.run(command).stdout;
        assert!(said.contains("red\\u{1b}[31m") && !said.contains('\u{1b}'), "{said}");
    }
    home.touch("go");
    assert_eq!(holder.wait(), Some(0));
}
