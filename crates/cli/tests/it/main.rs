//! The program as a stranger meets it: real processes of this very binary, on this machine.

#![expect(clippy::print_stderr, reason = "what a failed test has to tell")]

mod bench;
mod children;
mod cluster;
mod crowds;
mod embedded;
mod home;
mod locks;
mod operator;
mod server;
mod servers;
mod strangers;
mod usage;
mod zookeeper;
