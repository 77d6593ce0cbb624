//! Bytes to typed messages and back, for every protocol spoken; no sockets.
//!
//! **Invariant.** Decoding never panics and never allocates more than the frame's limit.

pub mod native;
