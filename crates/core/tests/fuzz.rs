//! The short form of fuzzing: commands, their application, and snapshots, made of any bytes.

use std::path::Path;

#[path = "../../../fuzz/src/harness.rs"]
#[expect(unreachable_pub, reason = "`fuzz/` exports it")]
mod harness;
#[path = "../../../fuzz/src/state.rs"]
#[expect(unreachable_pub, reason = "`fuzz/` exports it")]
mod state;

fn corpora() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"))
}

#[test]
fn commands_from_strangers() {
    state::COMMANDS.check_short(corpora(), 1_500);
}

#[test]
fn commands_with_absurd_figures() {
    state::APPLY.check_short(corpora(), 1_500);
}

#[test]
fn snapshots_from_strangers() {
    state::STATE.check_short(corpora(), 1_500);
}
