//! The front end of the native protocol (`docs/protocol.md`).
//!
//! A connection is one task with two halves. The reading half drains the socket, decodes every
//! frame that is complete, and proposes each request at once: the node's batcher makes one log
//! entry of what came in together. The writing half sleeps until the [`outbox::Outbox`] has
//! something and sends all of it with one write. What the node has to say it encodes straight into
//! the outbox, from its own thread, so that no request costs a task or a channel. Only questions,
//! which wait for a linearizable read, are tasks, and a connection has few of them at a time.
//!
//! # Guarantees
//!
//! - A connection speaks for a session only after its secret was checked.
//! - What concerns one session reaches its client in the order of the log.
//! - Whatever a client sends or fails to read costs others nothing but its share of the machine.
//!
//! Not promised: that a request on a connection that breaks was, or was not, executed. The client
//! resumes its session and asks again with the same number.

mod connection;
mod convert;
mod operators;
mod outbox;
mod questions;
mod requests;

pub(crate) use connection::serve;
pub(crate) use convert::{end_reason, hold, loss_reason, wire_mode};
