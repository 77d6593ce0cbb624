//! The front ends as a stranger meets them: raw bytes in and out of an in-process single node.

mod config;
mod crowds;
mod harness;
mod http;
mod life;
mod sessions;
mod strangers;
mod turns;
mod zookeeper;
