//! Command lines that can't be meant, and what is said about them.

use crate::home::{Ended, Home};

fn run(arguments: &[&str]) -> Ended {
    Ended::run(&mut Home::new().command(arguments))
}

#[test]
fn a_wrong_command_line_is_told_what_is_wrong_with_it() {
    for (arguments, parts) in [
        (&["lock"][..], &["<NAME>"][..]),
        (&["lock", "x", "--ttl", "30"], &["a duration needs a unit: did you mean 30s?"]),
        (&["lock", "x", "--wait", "5"], &["did you mean 5s?"]),
        (&["lock", "x", "ls"], &["two dashes: lockkeeper lock NAME -- CMD"]),
        (&["lock", "x", "-n", "-w", "1s"], &["cannot be used with"]),
        (&["lock", "x", "--signal", "LOUD"], &["one of HUP, INT"]),
        (&["lock", "x", "--on-lost", "pray"], &["kill, warn or exec:CMD"]),
        (&["lock", "x", "--grace", "6s"], &["lease of 20s", "(5s)", "--ttl 24s"]),
        (&["rw", "x"], &["--read|--write"]),
        (&["sem", "x"], &["--permits"]),
        (&["cluster", "add", "4"], &["ID=HOST:PORT"]),
        (&["session", "show", "xyz"], &["hexadecimal"]),
        (&["lokc", "x"], &["lock"]),
    ] {
        let ended = run(arguments);
        ended.assert(64, parts);
        assert!(ended.stderr.contains("[LK-USAGE]"), "{ended:?}");
    }
    run(&[]).assert(64, &["Usage: lockkeeper"]);
}

#[test]
fn servers_that_cannot_be_meant_or_reached_are_told_apart() {
    let url = |url| ["lock", "x", "--url", url, "--", "true"];
    run(&url("zk://a")).assert(78, &["Lockkeeper's own protocol", "[LK-CONFIG]"]);
    run(&url("localhost:2379")).assert(78, &["did you mean lockkeeper://localhost:2379 ?"]);
    run(&["lock", "x", "--ttl", "1ms", "--local"]).assert(78, &["1ms", "200ms", "[LK-CONFIG]"]);
}

#[test]
fn help_and_completions_come_from_the_same_table() {
    let help = run(&["lock", "--help"]);
    help.assert(0, &[]);
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completion", shell]);
        script.assert(0, &[]);
        for option in ["conflict-exit-code", "on-lost", "max-hold"] {
            assert!(script.stdout.contains(option) && help.stdout.contains(option), "{option}");
        }
    }
}
