//! What one log entry carries: a batch of commands of one node, as they came, in one buffer.
//!
//! ```text
//!  0      1          9          17             25         33
//!  ┌──────┬──────────┬──────────┬──────────────┬──────────┬─────────────────────────┐
//!  │ vers │ stamp ms │ origin   │ incarnation  │ number   │ commands, end to end    │
//!  └──────┴──────────┴──────────┴──────────────┴──────────┴─────────────────────────┘
//!   u8      u64 LE     u64 LE     u64 LE         u64 LE
//! ```
//!
//! The origin writes all of it but the stamp, which is the leader's, put in at the moment at which
//! it proposes the batch. Origin 0 is the leader itself, speaking for
//! nobody: nobody waits for a reply.

use bytes::{Bytes, BytesMut};
use lockkeeper_core::Stamp;

/// The bytes before the commands.
pub(crate) const HEADER_BYTES: usize = 33;

/// Bytes at which a batch is full. The command that fills it may go beyond.
pub(crate) const BATCH_BYTES: usize = 64 << 10;

/// The most bytes of one command. Those on locks are far below; one on the tree carries what came
/// in one frame of a ZooKeeper client, which has less than 1 MiB, and as whom the client is known.
pub(crate) const COMMAND_BYTES_MAX: usize = 1_536 << 10;

/// The most bytes of an entry, which follows from the two above.
pub(crate) const ENTRY_BYTES_MAX: usize = HEADER_BYTES + BATCH_BYTES + COMMAND_BYTES_MAX;

const VERSION: u8 = 1;

/// Which batch an entry is, so that its origin knows it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchId {
    /// The node that made it; 0: nobody waits for it.
    pub(crate) origin: u64,
    /// The run of that node's process: random, so that a restarted one isn't taken for itself.
    pub(crate) incarnation: u64,
    /// Its number in that run, from 1.
    pub(crate) number: u64,
}

impl BatchId {
    /// Of what the leader proposes on its own.
    pub(crate) const NOBODYS: Self = Self { origin: 0, incarnation: 0, number: 0 };
}

/// A batch read from an entry's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View<'a> {
    pub(crate) stamp: Stamp,
    pub(crate) id: BatchId,
    pub(crate) commands: &'a [u8],
}

/// An empty batch, with room for its header.
pub(crate) fn begin() -> Vec<u8> {
    vec![0; HEADER_BYTES]
}

/// Gives a batch that [`begin`] began its header, but for the stamp.
pub(crate) fn seal(mut batch: Vec<u8>, id: BatchId) -> Bytes {
    batch[0] = VERSION;
    let numbers = [id.origin, id.incarnation, id.number];
    for (place, number) in batch[9..HEADER_BYTES].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    batch.into()
}

/// Puts the leader's stamp into bytes that [`decode`] accepts; copies them only if they are shared.
pub(crate) fn stamp(bytes: Bytes, stamp: Stamp) -> Bytes {
    let mut bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    bytes[1..9].copy_from_slice(&stamp.0.to_le_bytes());
    bytes.freeze()
}

/// Reads a batch; `None` if the bytes are none, or of a version that this program doesn't know.
pub(crate) fn decode(bytes: &[u8]) -> Option<View<'_>> {
    let (header, commands) = bytes.split_at_checked(HEADER_BYTES)?;
    let (&version, numbers) = header.split_first()?;
    let mut numbers = numbers.chunks_exact(8).map(|number| {
        u64::from_le_bytes(number.try_into().expect("chunks of eight bytes are eight bytes"))
    });
    let mut next = || numbers.next().expect("the header has four numbers");
    let (stamp, origin, incarnation, number) = (next(), next(), next(), next());
    let is_known = version == VERSION && bytes.len() <= ENTRY_BYTES_MAX;
    let id = BatchId { origin, incarnation, number };
    is_known.then_some(View { stamp: Stamp(stamp), id, commands })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let id = BatchId { origin: 3, incarnation: 7, number: 11 };
        let mut batch = begin();
        batch.extend_from_slice(b"commands");
        let bytes = stamp(seal(batch, id), Stamp(42));
        let view = decode(&bytes).expect("a batch");
        assert_eq!(view, View { stamp: Stamp(42), id, commands: b"commands" });
        assert!((0..HEADER_BYTES).all(|end| decode(&bytes[..end]).is_none()));
        assert_eq!(decode(&[2; 40]), None, "an unknown version");
    }
}
