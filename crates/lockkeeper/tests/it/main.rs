//! The client as its users meet it: against a scripted server, whose every answer a test decides,
//! and against a real one.

mod admin;
mod lease;
mod peer;
mod real;
mod requests;
mod trouble;
