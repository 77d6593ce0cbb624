//! What decodes bytes from outside, for a coverage-guided fuzzer. `make fuzz MINUTES=10` runs
//! every target for that long; the ordinary test run has a short form of each (see
//! `docs/testing.md`, "Bytes from strangers").

pub mod harness;
mod jute;
mod state;
mod wire;

use harness::Target;
use lockkeeper_node::fuzzing as node;

/// All targets.
pub const TARGETS: [Target; 9] = [
    wire::WIRE,
    jute::JUTE,
    state::COMMANDS,
    state::APPLY,
    state::STATE,
    from_node(node::FRAMES),
    from_node(node::MESSAGES),
    from_node(node::IMAGE),
    from_node(node::LOG),
];

const fn from_node(target: node::Target) -> Target {
    let node::Target { name, run, seeds, bytes_flat, bytes_each } = target;
    Target { name, run, seeds, bytes_flat, bytes_each }
}

/// Runs one input of the target with this name.
pub fn check(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("there is no target {name}")).check(input);
}
