//! What becomes of the command when its lock, or a process around it, is taken away.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::home::{Home, lives, wait_for, wait_until_dead};

/// Writes its process id into `pid` and sleeps.
const SLEEPER: &str = "echo $$ > pid; exec sleep 1000";

/// Hears no TERM, as little as what it starts does.
const STUBBORN: &str = "trap '' TERM; sleep 1000 & echo $! > grandchild; echo $$ > pid; wait; wait";

#[test]
fn a_killed_supervisor_leaves_nothing_behind_and_the_next_needs_no_lease() {
    let home = Home::new();
    let holder = home.start(&["--ttl", "10min"], SLEEPER);
    let pid = home.wait_for_number("pid");
    let mut next = home.start(&[], "true");
    home.wait_for_waiters(1);
    let killed = Instant::now();
    holder.signal(Signal::KILL);
    assert_eq!(next.wait(), Some(0));
    assert!(!lives(pid), "the command ended before the lock passed on");
    assert!(killed.elapsed() < Duration::from_secs(50), "{:?}", killed.elapsed());
}

#[test]
fn a_stopped_supervisor_cannot_keep_its_command_alive() {
    let home = Home::new();
    let mut holder = home.start(&["--ttl", "2s"], SLEEPER);
    let pid = home.wait_for_number("pid");
    holder.signal(Signal::STOP);
    // It gets the lock while the first holder still stands still.
    let next = home.lock(&[], &["sh", "-c", "kill -0 $(cat pid) 2>/dev/null && exit 1; exit 0"]);
    next.assert(0, &[]);
    assert!(!lives(pid));
    holder.signal(Signal::CONT);
    holder.assert(76, &["x: LOST: ", "(lease 2s). Stopped the command (TERM", "[LK-LOST]"]);
}

#[test]
fn what_hears_no_term_is_killed_with_all_that_it_started() {
    let home = Home::new();
    // Long enough for the shell to have said who it is.
    let options = ["--grace", "200ms", "--max-hold", "6s"];
    let mut holder = home.start(&options, STUBBORN);
    let (pid, grandchild) = (home.wait_for_number("pid"), home.wait_for_number("grandchild"));
    holder.assert(76, &["Stopped the command (KILL", "[LK-MAX-HOLD]"]);
    assert!(!lives(pid) && !lives(grandchild));
    home.wait_until_free();
}

#[test]
fn a_process_that_left_the_group_is_killed_as_well() {
    let home = Home::new();
    let script = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & wait";
    let holder = home.start(&["--grace", "200ms"], script);
    let pid = home.wait_for_number("pid");
    holder.signal(Signal::KILL);
    wait_until_dead(pid);
    home.wait_until_free();
}

#[test]
fn the_lock_is_held_until_the_last_process_of_the_group_has_ended() {
    let home = Home::new();
    let script = "(until [ -e go ]; do sleep 0.02; done) & echo $! > pid; exit 3";
    let mut holder = home.start(&[], script);
    let pid = home.wait_for_number("pid");
    wait_for("it is told", || holder.said().contains("it left running").then_some(()));
    assert!(lives(pid) && home.who()["holder_count"] == 1);
    home.touch("go");
    holder.assert(3, &[]);
    home.wait_until_free();
}

#[test]
fn a_signal_ends_what_the_command_has_left_running() {
    let home = Home::new();
    let mut holder = home.start(&[], "sleep 1000 & echo $! > pid; exit 3");
    let pid = home.wait_for_number("pid");
    wait_for("it is told", || holder.said().contains("it left running").then_some(()));
    holder.signal(Signal::INT);
    holder.assert(3, &[]);
    assert!(!lives(pid));
}

#[test]
fn signals_reach_the_command() {
    let home = Home::new();
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1"), (Signal::HUP, "HUP")]
    {
        let script = format!(
            "trap 'exit 5' {name}; echo $$ > {name}; while :; do sleep 1000 & wait $!; done"
        );
        let mut holder = home.start(&[], &script);
        home.wait_for_number(name);
        holder.signal(signal);
        // The shell's own `sleep` is left; a second signal ends it.
        wait_for("it ends", || {
            let told = holder.said().contains("it left running");
            if told {
                holder.signal(Signal::TERM);
            }
            (told || holder.has_ended()).then_some(())
        });
        assert_eq!(holder.wait(), Some(5), "{name}");
    }
}

#[test]
fn a_killed_guardian_takes_the_command_with_it() {
    let home = Home::new();
    let mut holder = home.start(&[], SLEEPER);
    let pid = home.wait_for_number("pid");
    crate::home::kill(holder.guardian(), Signal::KILL);
    holder.assert(70, &["the guardian of the command is gone", "[LK-INTERNAL]"]);
    assert!(!lives(pid));
    home.wait_until_free();
}

#[test]
fn a_stopped_guardian_does_not_save_the_command() {
    let home = Home::new();
    let mut holder = home.start(&["--ttl", "6s"], STUBBORN);
    let pid = home.wait_for_number("pid");
    let guardian = holder.guardian();
    crate::home::kill(guardian, Signal::STOP);
    let token = home.wait_for_holder().to_string();
    // It isn't given back while the command runs, so it passes on with the lease.
    home.run(&["unlock", "x", "--if-token", &token, "--yes"]).assert(0, &[]);
    wait_until_dead(pid);
    crate::home::kill(guardian, Signal::CONT);
    holder.assert(76, &["REVOKED", "[LK-REVOKED]"]);
}

#[test]
fn the_user_may_prefer_a_warning() {
    let home = Home::new();
    let script = "echo $$ > pid; until [ -e go ]; do sleep 0.02; done; exit 4";
    let mut holder = home.start(&["--on-lost", "warn"], script);
    let pid = home.wait_for_number("pid");
    let token = home.wait_for_holder().to_string();
    home.run(&["unlock", "x", "--if-token", &token, "--yes", "--now"]).assert(0, &[]);
    wait_for("it is told", || holder.said().contains("x: LOST: ").then_some(()));
    assert!(lives(pid) && holder.said().contains("runs on without the lock"));
    home.touch("go");
    holder.assert(4, &[]);
}

#[test]
fn the_user_may_have_a_way_of_their_own_to_stop_the_command() {
    let home = Home::new();
    let script = "trap 'exit 0' USR1; trap '' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let stop = "exec:echo $LOCKKEEPER_LOCK > told; kill -USR1 $LOCKKEEPER_PID";
    let mut holder = home.start(&["--on-lost", stop], script);
    home.wait_for_number("pid");
    let token = home.wait_for_holder().to_string();
    home.run(&["unlock", "x", "--if-token", &token, "--yes"]).assert(0, &[]);
    holder.assert(76, &["[LK-REVOKED]"]);
    assert_eq!(home.read("told"), "x\n");
}
