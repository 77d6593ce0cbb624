//! The hunt in the state machine finds what was put there. Needs the feature `mutations`:
//!
//! ```text
//! cargo test --release -p lockkeeper-sim --features mutations --test core_mutations -- --nocapture
//! ```

use std::io::{self, Write};

use lockkeeper_core::Mutation;
use lockkeeper_sim::core_hunt::{self, Failure, Trace};

/// Within so many seeds each mutation is found.
const SEEDS_MAX: u64 = 200;

/// The first seed that finds it, and what it says.
fn find(mutation: Mutation) -> Option<Failure> {
    mutation
        .during(|| (0..SEEDS_MAX).find_map(|seed| core_hunt::run(seed, &mut Trace::off()).err()))
}

#[test]
fn every_mutation_is_found() {
    for mutation in Mutation::ALL {
        let failure = find(mutation);
        let failure = failure.unwrap_or_else(|| panic!("{mutation:?} stays unfound"));
        let hits = mutation.during(|| {
            (0..SEEDS_MAX).filter(|&seed| core_hunt::run(seed, &mut Trace::off()).is_err()).count()
        });
        let what = &failure.what[0];
        let told = format!(
            "{mutation:?}: in {} seeds first, by {hits} of {SEEDS_MAX}: {what}\n",
            failure.seed + 1
        );
        io::stderr().write_all(told.as_bytes()).expect("standard error takes it");
    }
}

#[test]
fn a_failure_is_the_same_again() {
    let failure = find(Mutation::SkipWaiter).expect("it is found");
    let again = Mutation::SkipWaiter
        .during(|| core_hunt::run(failure.seed, &mut Trace::off()).expect_err("found again"));
    assert_eq!(failure, again);
    assert!(core_hunt::run(failure.seed, &mut Trace::off()).is_ok());
}
