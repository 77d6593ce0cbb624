//! The hunt in the state machine, from outside: one seed is one trace in every process.

use std::process::{Command, Output};

use lockkeeper_sim::core_hunt::{self, Trace};

fn hunt(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-sim"));
    command.arg("core").args(arguments).output().expect("the program runs")
}

#[test]
fn a_seed_has_the_same_trace_in_another_process() {
    for seed in [0, 1, 77] {
        let mut trace = Trace::digest();
        core_hunt::run(seed, &mut trace).expect("a lawful seed");
        let told = hunt(&["--seed", &seed.to_string()]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let expected = format!("trace {:016x}", trace.value());
        assert!(told.contains(&expected), "seed {seed}: no {expected} in: {told}");
    }
}

#[test]
fn a_hunt_says_what_it_did() {
    let hunted = hunt(&["--seeds", "20", "--from", "7"]);
    assert!(hunted.status.success());
    let told = String::from_utf8_lossy(&hunted.stdout).into_owned();
    for word in ["seeds/s", "20 seeds", "commands", "granted", "nothing found"] {
        assert!(told.contains(word), "no {word:?} in: {told}");
    }
}
