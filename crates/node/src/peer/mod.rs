//! What nodes say to each other, and how.
//!
//! Between two nodes there are several connections, each for one purpose, so that nothing that
//! takes long holds up what is urgent:
//!
//! | purpose | opened by | carries |
//! |---|---|---|
//! | append | the leader | log entries, pipelined, and their acknowledgements |
//! | call | anybody | heartbeats, votes, transfers of leadership: one at a time |
//! | snapshot | the leader | one snapshot in blocks |
//! | forward | a follower | its clients' batches, reports of the living, questions |
//!
//! Each begins with a handshake (`handshake.rs`) in which both sides say who they are. Then come
//! frames (`frame.rs`): bounded, and with a checksum.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod message;
pub(crate) mod network;
pub(crate) mod server;
mod snapshots;
