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

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_node::NodeHandle;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::figures::Figures;
use crate::limits::{FRAME_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT};

mod connection;
mod convert;
mod operators;
mod outbox;
mod questions;
mod requests;

/// The front end without its listeners: serves connections that somebody else has accepted.
pub struct Native {
    pub(crate) node: NodeHandle,
    pub(crate) ttl_ms_max: u32,
    pub(crate) idle_timeout: Duration,
    pub(crate) frame_timeout: Duration,
    pub(crate) stopping: watch::Sender<bool>,
    pub(crate) figures: Arc<Figures>,
}

impl Native {
    /// The front end of a node, with the default time-outs. `ttl_max` is the longest lease that it
    /// grants.
    #[must_use]
    pub fn new(node: NodeHandle, ttl_max: Duration) -> Self {
        Self {
            node,
            ttl_ms_max: u32::try_from(ttl_max.as_millis()).unwrap_or(u32::MAX),
            idle_timeout: IDLE_TIMEOUT,
            frame_timeout: FRAME_TIMEOUT,
            stopping: watch::Sender::new(false),
            figures: Arc::default(),
        }
    }

    /// Serves one client from its first byte to its end. Dropping the future is hanging up.
    pub async fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        self.serve_greeted(stream, BytesMut::new(), deadline).await;
    }

    /// Says goodbye to every client: they go on with another server.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Native")
    }
}

pub(crate) use convert::{end_reason, hold, loss_reason, wire_mode};
