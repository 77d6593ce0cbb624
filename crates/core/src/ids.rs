//! The numbers and names that have a meaning, each a type of its own.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a lock, shared by everything that refers to it.
pub type LockName = Arc<str>;

/// A session's id, chosen at random by its client, so that opening it again is idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// What a client shows to speak for its session again. It never appears in a view, an event or a
/// log line.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 16]);

/// A request's number within its session, chosen by the client, never used twice.
///
/// Numbers start at 1. An acquire's number names the hold or the place that it made.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Number(pub u64);

/// The state machine's one counter: it advances once per command, and once more for each further
/// grant that the command makes. It never goes back and is never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Revision(pub u64);

/// A fencing token: the revision of the grant. Only the order of two tokens of one lock has
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub u64);

/// The identity of a cluster, made once by its first leader and anew by a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

/// A moment on the leader's wall clock, in milliseconds since the Unix epoch, clamped so that it
/// never goes back. For display only: no decision rests on it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp(pub u64);

impl fmt::Display for SessionId {
    /// Sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Token {
    /// Decimal, as a resource or a shell compares it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ClusterId {
    /// Thirty-two hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Secret {
    /// Never the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
