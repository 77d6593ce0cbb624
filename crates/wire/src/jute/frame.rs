//! Frames: where one message ends and the next begins.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Record;

/// Bytes of one frame, without its length, that a server takes unless it is told otherwise
/// (ZooKeeper's `jute.maxbuffer`).
pub const FRAME_BYTES_MAX: usize = 0xf_ffff;

const LENGTH_BYTES: usize = size_of::<i32>();

/// Splits a stream of bytes into frames, as they arrive.
///
/// The owner appends what it has read to [`Frames::input`] and takes frames until there is no
/// complete one left. The input holds at most one incomplete frame then, so it never grows beyond
/// the limit plus one read.
#[derive(Debug)]
pub struct Frames {
    input: BytesMut,
    bytes_max: usize,
}

impl Frames {
    /// Of a new connection, which may send frames of up to `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { input: BytesMut::new(), bytes_max }
    }

    /// Where bytes that have arrived are appended.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// The first four bytes, once they are there: to be compared with the words that a server
    /// answers instead of a frame. Only the first ones of a connection can be a word.
    #[must_use]
    pub fn first_word(&self) -> Option<[u8; 4]> {
        self.input.first_chunk().copied()
    }

    /// What the next frame holds, without its length; `None` if its bytes have not all arrived.
    ///
    /// # Errors
    ///
    /// [`BadLength`]: the connection is of no use any more, and nothing is said on it.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, BadLength> {
        let Some(length) = self.input.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = i32::from_be_bytes(*length);
        let bytes = usize::try_from(length).ok().filter(|&bytes| bytes <= self.bytes_max);
        let bytes = bytes.ok_or(BadLength { length, bytes_max: self.bytes_max })?;
        if self.input.len() < bytes.saturating_add(LENGTH_BYTES) {
            return Ok(None);
        }
        self.input.advance(LENGTH_BYTES);
        Ok(Some(self.input.split_to(bytes).freeze()))
    }
}

/// A frame's length is negative, or beyond what is taken. The other side caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes, where at most {bytes_max} are taken")]
pub struct BadLength {
    /// What it says.
    pub length: i32,
    /// What is allowed.
    pub bytes_max: usize,
}

/// What should be sent is longer than a frame can say, which is 2 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are too many for a frame")]
pub struct TooLong {
    /// Bytes that it would have.
    pub bytes: usize,
}

/// Appends a frame of what `write` appends. If it gets too long, `out` is as it was.
pub(super) fn framed(out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) -> Result<(), TooLong> {
    let start = out.len();
    out.put_i32(0);
    let content = out.len();
    write(out);
    let bytes = out.len().saturating_sub(content);
    let length = i32::try_from(bytes).ok();
    match (length, out.get_mut(start..content)) {
        (Some(length), Some(place)) => {
            place.copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        _ => {
            out.truncate(start);
            Err(TooLong { bytes })
        }
    }
}

/// Appends a frame of one record.
pub(super) fn framed_record<'a>(
    out: &mut BytesMut,
    record: &impl Record<'a>,
) -> Result<(), TooLong> {
    framed(out, |out| record.write(out))
}
