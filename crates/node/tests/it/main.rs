//! Whole nodes in one process: each on a thread and runtime of its own, on real directories and
//! over loopback, looked at only through [`lockkeeper_node::NodeHandle`].

mod client;
mod cluster;
mod disks;

mod durability;
mod exclusion;
mod failover;
mod members;
mod sessions;
mod tree;
