//! Greeting and frames: where one message ends and the next begins.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

use super::{Request, Response};

/// What either side sends first: no text, no TLS record and no HTTP/2 preface starts like this.
pub const MAGIC: [u8; 8] = *b"\x89LOCKKPR";

/// The version that this code speaks; a `u32`, big-endian, right after the magic.
pub const VERSION: u32 = 1;

/// Bytes of one [`Request`], without its length. Its longest part is a name of 1,024 bytes or an
/// owner of about 5,000; the rest is room for fields to come.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Bytes of one [`Response`], without its length: room for a long list, and for a chunk of backup.
pub const RESPONSE_BYTES_MAX: usize = 1 << 20;

const LENGTH_BYTES: usize = size_of::<u32>();
const GREETING_BYTES: usize = MAGIC.len() + size_of::<u32>();

/// Appends this side's greeting.
pub fn greet(out: &mut BytesMut) {
    out.put_slice(&MAGIC);
    out.put_u32(VERSION);
}

/// Takes the other side's greeting from the front of `input`: its version, or `None` if it is not
/// complete yet.
///
/// # Errors
///
/// [`NotNative`] as soon as a byte differs from [`MAGIC`].
pub fn take_greeting(input: &mut BytesMut) -> Result<Option<u32>, NotNative> {
    if input.iter().zip(&MAGIC).any(|(got, expected)| got != expected) {
        return Err(NotNative);
    }
    if input.len() < GREETING_BYTES {
        return Ok(None);
    }
    input.advance(MAGIC.len());
    Ok(Some(input.get_u32()))
}

/// Appends `message` as one frame, without allocating anything but room in `out`.
///
/// # Errors
///
/// [`FrameError::TooLong`] if it is longer than `bytes_max`; `out` is then as it was.
pub fn encode<M: Message>(
    message: &M,
    bytes_max: usize,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    let bytes = message.encoded_len();
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= bytes_max);
    let length = length.ok_or(FrameError::TooLong { bytes, bytes_max })?;
    out.reserve(bytes.saturating_add(LENGTH_BYTES));
    out.put_u32(length);
    // It can only fail for want of room, of which a `BytesMut` always has more.
    message.encode(out).map_err(|_| FrameError::TooLong { bytes, bytes_max })
}

/// Splits a stream of bytes into messages, as they arrive.
///
/// The owner appends what it has read to [`Frames::input`] and takes messages until there is no
/// complete one left. The input holds at most one incomplete frame then, so it never grows beyond
/// the direction's limit plus one read.
#[derive(Debug)]
pub struct Frames<M> {
    input: BytesMut,
    bytes_max: usize,
    message: PhantomData<fn() -> M>,
}

impl Frames<Request> {
    /// For the server, which reads requests. `input` is what was read behind the greeting.
    #[must_use]
    pub fn of_requests(input: BytesMut) -> Self {
        Self { input, bytes_max: REQUEST_BYTES_MAX, message: PhantomData }
    }
}

impl Frames<Response> {
    /// For the client, which reads responses. `input` is what was read behind the greeting.
    #[must_use]
    pub fn of_responses(input: BytesMut) -> Self {
        Self { input, bytes_max: RESPONSE_BYTES_MAX, message: PhantomData }
    }
}

impl<M: Message + Default> Frames<M> {
    /// Where bytes that have arrived are appended.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// The next message; `None` if its bytes have not all arrived.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: the connection is of no use any more.
    pub fn next_message(&mut self) -> Result<Option<M>, FrameError> {
        let Some(length) = self.input.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if bytes > self.bytes_max {
            return Err(FrameError::TooLong { bytes, bytes_max: self.bytes_max });
        }
        let frame = bytes.saturating_add(LENGTH_BYTES);
        let Some(message) = self.input.get(LENGTH_BYTES..frame) else { return Ok(None) };
        let message = M::decode(message)?;
        self.input.advance(frame);
        Ok(Some(message))
    }
}

/// The other side doesn't speak the native protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side doesn't speak Lockkeeper's native protocol (its first bytes are others)")]
pub struct NotNative;

/// Bytes that are no frame. The other side caused it, and the connection can't go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than its direction allows.
    #[error("a frame of {bytes} bytes is longer than the {bytes_max} bytes allowed")]
    TooLong {
        /// What it says.
        bytes: usize,
        /// What is allowed.
        bytes_max: usize,
    },
    /// The frame holds no message of the protocol: broken protobuf, or text that is not UTF-8.
    #[error("a frame holds no valid message: {0}")]
    Malformed(#[from] prost::DecodeError),
}
