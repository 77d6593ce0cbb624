//! The program as a stranger meets it: real processes of this very binary, on this machine.

mod children;
mod cluster;
mod embedded;
mod home;
mod locks;
mod operator;
mod server;
mod servers;
mod usage;
