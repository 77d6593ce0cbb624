//! What is counted of a connection, and of all of them: requests, replies, and how long they took.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_core::SessionId;
use lockkeeper_wire::jute::OpCode;
use tokio::time::Instant;

/// What is counted of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) last_op: Option<OpCode>,
    pub(crate) last_xid: i32,
    pub(crate) last_zxid: i64,
    /// When the newest reply was made.
    pub(crate) last_reply: Option<Instant>,
    pub(crate) latency: Latency,
}

/// How long requests took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Latency {
    pub(crate) last: Duration,
    pub(crate) min: Duration,
    pub(crate) max: Duration,
    pub(crate) total: Duration,
    pub(crate) count: u64,
}

impl Latency {
    pub(super) fn add(&mut self, took: Duration) {
        self.last = took;
        self.min = if self.count == 0 { took } else { self.min.min(took) };
        self.max = self.max.max(took);
        self.total += took;
        self.count += 1;
    }
}

/// What a connection is like, for operators.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionView {
    pub(crate) address: SocketAddr,
    pub(crate) is_secure: bool,
    pub(crate) session: Option<SessionId>,
    pub(crate) timeout: Duration,
    /// The session is this server's alone.
    pub(crate) is_local: bool,
    pub(crate) queued: usize,
    pub(crate) age: Duration,
    pub(crate) traffic: Traffic,
}
