//! The tester is tested: each known-bad version of node, front end and client is found within a
//! stated number of seeds.

#![cfg(feature = "mutations")]

use lockkeeper::mutation::Mutation as OfClient;
use lockkeeper_node::mutation::Mutation as OfNode;
use lockkeeper_server::mutation::Mutation as OfServer;
use lockkeeper_sim::hunt::{report, try_seed};
use lockkeeper_sim::world::{Options, Outcome};

/// Looks for the first seed that shows the mutation, and says how many it took.
#[expect(clippy::print_stdout, reason = "the numbers are what a person wants of this test")]
fn found_within(name: &str, seeds_max: u64, live: impl Fn(u64) -> Outcome) {
    for seed in 0..seeds_max {
        let outcome = live(seed);
        if !outcome.verdicts.is_empty() {
            println!("{name}: found by seed {seed}\n{}", report(seed, &outcome.verdicts[..1]));
            return;
        }
    }
    panic!("{name}: {seeds_max} seeds have not found it");
}

fn node(mutation: OfNode, seeds_max: u64) {
    let live = |seed| mutation.during(|| try_seed(seed, &Options::default()));
    found_within(&format!("{mutation:?}"), seeds_max, live);
}

#[test]
fn acknowledging_before_the_sync_is_found() {
    node(OfNode::AcknowledgeBeforeSync, 300);
}

#[test]
fn reading_without_a_quorum_is_found() {
    node(OfNode::ReadWithoutQuorum, 300);
}

#[test]
fn expiring_in_any_term_is_found() {
    node(OfNode::ExpireInAnyTerm, 300);
}

#[test]
fn confirming_without_a_quorum_is_found() {
    node(OfNode::ConfirmWithoutQuorum, 300);
}

#[test]
fn applying_twice_after_a_restart_is_found() {
    node(OfNode::ApplyTwiceAfterRestart, 300);
}

#[test]
fn counting_from_the_receipt_is_found() {
    let live = |seed| OfClient::CountFromReceipt.during(|| try_seed(seed, &Options::default()));
    // It shows only where a confirmation is late, which it rarely is: in one seed of three hundred.
    found_within("CountFromReceipt", 1_000, live);
}

#[test]
fn answering_unconfirmed_sessions_is_found() {
    let live = |seed| OfServer::AnswerUnconfirmed.during(|| try_seed(seed, &Options::default()));
    found_within("AnswerUnconfirmed", 400, live);
}
