//! A seed decides everything, and the seeds that have found something find nothing any more.

use std::process::Command;

use lockkeeper_sim::hunt::{report, try_seed};
use lockkeeper_sim::world::Options;

#[test]
fn a_seed_lives_the_same_world_twice() {
    for seed in [1, 2] {
        let [first, second] = [0, 1].map(|_| try_seed(seed, &Options::default()));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert!(first.counts.held > 0, "nothing happened in seed {seed}");
    }
}

#[test]
fn a_seed_lives_the_same_world_in_another_process() {
    let here = try_seed(3, &Options::default());
    let program = env!("CARGO_BIN_EXE_lockkeeper-sim");
    let there = Command::new(program).args(["--seed", "3"]).output().expect("the program runs");
    let said = String::from_utf8_lossy(&there.stdout);
    let expected = format!("seed 3, trace {:016x}: ", here.trace);
    assert!(said.starts_with(&expected), "expected {expected:?}, and it said {said:?}");
}

#[test]
fn other_seeds_live_other_worlds() {
    let [one, other] = [4, 5].map(|seed| try_seed(seed, &Options::default()));
    assert_ne!(one.trace, other.trace);
}

#[test]
fn seeds_that_found_something_find_nothing_any_more() {
    let seeds = include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#'));
    for line in seeds {
        let seed = line.split_whitespace().next().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("no seed in {line:?}"));
        let outcome = try_seed(seed, &Options::default());
        assert!(outcome.verdicts.is_empty(), "{line}\n{}", report(seed, &outcome.verdicts));
    }
}
