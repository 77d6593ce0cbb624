//! Every limit of the state machine, with its unit and its reason.
//!
//! A refusal beyond one of them names it ([`Limit`]) and carries the figure.

use serde::{Deserialize, Serialize};

/// Bytes of a lock's name. Long enough for a path of UUIDs; short enough that a name is never what
/// fills the memory.
pub const LOCK_NAME_BYTES_MAX: usize = 1_024;

/// Places in one lock's queue. Each is about 200 bytes, and a whole queue (of readers) may be
/// let in by one entry, which must apply in less than an election timeout.
pub const WAITERS_PER_LOCK_MAX: usize = 100_000;

/// Simultaneous holds of one lock (readers, or takers of permits), for the same reason.
pub const HOLDS_PER_LOCK_MAX: usize = 100_000;

/// Locks and places of one session. Ending a session is one log entry, which must apply in less
/// than an election timeout.
pub const ITEMS_PER_SESSION_MAX: usize = 10_000;

/// Live sessions. About 500 bytes each.
pub const SESSIONS_MAX: usize = 200_000;

/// Requests of one session that are not known to be answered: the window of numbers above the
/// client's lowest unanswered one. It bounds what is kept for repeated requests.
pub const OPEN_REQUESTS_MAX: u64 = 8_192;

/// Permits of one semaphore.
pub const PERMITS_MAX: u32 = 1_000_000;

/// Milliseconds: the shortest lease. Below this, a heartbeat and its confirmation do not fit into
/// the lease on a real network.
pub const TTL_MS_MIN: u32 = 200;

/// Milliseconds: the longest lease, one day. A finite greatest lease is what lets a restored
/// cluster know when every old holder has given up.
pub const TTL_MS_MAX: u32 = 86_400_000;

/// Bytes of each of a session's owner fields (host, user, program, purpose).
pub const OWNER_FIELD_BYTES_MAX: usize = 256;

/// Labels of one session.
pub const LABELS_MAX: usize = 16;

/// Bytes of a label's key or value.
pub const LABEL_BYTES_MAX: usize = 128;

/// Bytes of the purpose given with one acquire.
pub const PURPOSE_BYTES_MAX: usize = 256;

/// Ephemeral znodes of one session, for the same reason as [`ITEMS_PER_SESSION_MAX`]; removing one
/// is cheaper than passing on a lock.
pub const EPHEMERALS_PER_SESSION_MAX: usize = 100_000;

/// Bytes of a znode's path, which can be no longer than the frame that it came in.
pub const ZNODE_PATH_BYTES_MAX: usize = 1 << 20;

/// Bytes of a znode's data, likewise.
pub const ZNODE_DATA_BYTES_MAX: usize = 1 << 20;

/// Bytes of a znode's access list, counting 16 for each entry besides its texts.
pub const ZNODE_ACL_BYTES_MAX: usize = 1 << 20;

/// Milliseconds: the longest time to live of a znode, some 35 years. ZooKeeper has 40 bits for it.
pub const ZNODE_TTL_MS_MAX: u64 = 0xff_ffff_ffff;

/// What a refusal for size or number ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// [`LOCK_NAME_BYTES_MAX`].
    LockNameBytes,
    /// [`WAITERS_PER_LOCK_MAX`].
    WaitersPerLock,
    /// [`HOLDS_PER_LOCK_MAX`].
    HoldsPerLock,
    /// [`ITEMS_PER_SESSION_MAX`].
    ItemsPerSession,
    /// [`SESSIONS_MAX`].
    Sessions,
    /// [`OPEN_REQUESTS_MAX`].
    OpenRequests,
    /// [`PERMITS_MAX`].
    Permits,
    /// [`TTL_MS_MIN`].
    TtlMin,
    /// [`TTL_MS_MAX`].
    TtlMax,
    /// [`OWNER_FIELD_BYTES_MAX`].
    OwnerFieldBytes,
    /// [`LABELS_MAX`].
    Labels,
    /// [`LABEL_BYTES_MAX`].
    LabelBytes,
    /// [`PURPOSE_BYTES_MAX`].
    PurposeBytes,
}

impl Limit {
    /// Its figure, in the limit's unit (for [`Limit::TtlMin`] the least allowed).
    #[must_use]
    pub fn max(self) -> u64 {
        match self {
            Self::LockNameBytes => LOCK_NAME_BYTES_MAX as u64,
            Self::WaitersPerLock => WAITERS_PER_LOCK_MAX as u64,
            Self::HoldsPerLock => HOLDS_PER_LOCK_MAX as u64,
            Self::ItemsPerSession => ITEMS_PER_SESSION_MAX as u64,
            Self::Sessions => SESSIONS_MAX as u64,
            Self::OpenRequests => OPEN_REQUESTS_MAX,
            Self::Permits => u64::from(PERMITS_MAX),
            Self::TtlMin => u64::from(TTL_MS_MIN),
            Self::TtlMax => u64::from(TTL_MS_MAX),
            Self::OwnerFieldBytes => OWNER_FIELD_BYTES_MAX as u64,
            Self::Labels => LABELS_MAX as u64,
            Self::LabelBytes => LABEL_BYTES_MAX as u64,
            Self::PurposeBytes => PURPOSE_BYTES_MAX as u64,
        }
    }
}
