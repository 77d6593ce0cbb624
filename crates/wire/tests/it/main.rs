//! The languages as bytes: round trips, captured frames, and what strangers may send.

mod codegen;
mod fuzz;
#[path = "../../../../fuzz/src/harness.rs"]
#[expect(unreachable_pub, reason = "`fuzz/` exports it")]
mod harness;
mod jute;
#[path = "../../../../fuzz/src/jute.rs"]
#[expect(unreachable_pub, reason = "`fuzz/` exports it")]
mod jute_fuzz;
mod native;
#[path = "../../../../fuzz/src/wire.rs"]
#[expect(unreachable_pub, reason = "`fuzz/` exports it")]
mod wire;
