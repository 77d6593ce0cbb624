//! What a client's process stands on. The recipe is the same in the simulator and in the real
//! processes of the nemesis; only the ground differs.

use lockkeeper_core::Token;
use lockkeeper_node::BoxFuture;

use crate::{Attempt, ClientId, Nanos, Seen};

/// A machine's clock, and somebody who writes down what is seen on it.
pub trait Machine: Send + Sync {
    /// Nanoseconds on the machine's own clock.
    fn local(&self) -> u64;

    /// When the machine's clock says `local`, in truth.
    fn truth(&self, local: u64) -> Nanos;

    /// True time.
    fn now(&self) -> Nanos;

    /// Notes an observation.
    fn see(&self, at: Nanos, seen: Seen);

    /// A name that no other client has, for a session that is about to be opened.
    fn client(&self) -> ClientId;

    /// The session of the newest client is over, or was never opened.
    fn is_over(&self);

    /// A name that no other attempt has.
    fn attempt(&self) -> Attempt;

    /// Writes to what a lock guards, with the lock's token, and notes how that went.
    fn write<'a>(&'a self, lock: &'a str, token: Token) -> BoxFuture<'a, ()>;

    /// The process is to come to its end.
    fn is_stopped(&self) -> bool;

    /// Its clients read all the time and never ping.
    fn only_reads(&self) -> bool {
        false
    }
}

/// A machine of which nobody writes anything down. Its clock stands still: leases never end there.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Machine for Nobody {
    fn local(&self) -> u64 {
        0
    }

    fn truth(&self, local: u64) -> Nanos {
        local
    }

    fn now(&self) -> Nanos {
        0
    }

    fn see(&self, _: Nanos, _: Seen) {}

    fn client(&self) -> ClientId {
        ClientId(0)
    }

    fn is_over(&self) {}

    fn attempt(&self) -> Attempt {
        Attempt(0)
    }

    fn write<'a>(&'a self, _: &'a str, _: Token) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn is_stopped(&self) -> bool {
        false
    }
}
