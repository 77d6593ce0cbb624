//! Bytes to typed messages and back, for every protocol spoken; no sockets.
//!
//! **Invariant.** Decoding never panics and never allocates more than the frame's limit.

// This package reads strangers' bytes: what can panic on them is denied, the generated code apart.
#![warn(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub mod jute;
pub mod native;
