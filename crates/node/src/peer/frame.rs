//! Frames: the unit in which peers speak.
//!
//! ```text
//! frame = length u32 · check u32 · payload        little endian; check = CRC-32C of the payload
//! ```
//!
//! A length beyond [`FRAME_BYTES_MAX`] or a wrong check ends the connection: nothing that follows
//! could be trusted. Until both sides have said who they are, no more than [`HELLO_BYTES_MAX`] is
//! believed, so that a stranger's promise of a long frame makes nobody set memory aside for it.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::PeerStream;
use crate::codec;

/// Bytes of a payload: a full append message, which is 1 MiB of entries and one more entry.
pub(crate) const FRAME_BYTES_MAX: usize = 4 << 20;

/// Bytes of a payload in the handshake: two ids and a reason.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;

const HEAD_BYTES: usize = 8;

/// Appends a frame to `out`; `write` appends its payload.
pub(crate) fn put(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let head = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    write(out);
    let payload = &out[head + HEAD_BYTES..];
    let length = u32::try_from(payload.len()).expect("what is sent has its own, lower limits");
    let check = crc32c::crc32c(payload);
    out[head..head + 4].copy_from_slice(&length.to_le_bytes());
    out[head + 4..head + 8].copy_from_slice(&check.to_le_bytes());
}

/// Appends a message as a frame.
pub(crate) fn put_message(out: &mut Vec<u8>, message: &impl Serialize) {
    put(out, |out| codec::encode_to(message, out));
}

/// Splits a stream of bytes into frames, as they arrive.
pub(crate) struct Frames {
    /// What has arrived and was not taken.
    pub(crate) input: BytesMut,
    bytes_max: usize,
}

impl Frames {
    /// Of somebody who has not said yet who it is.
    pub(crate) fn of_a_stranger() -> Self {
        Self { input: BytesMut::new(), bytes_max: HELLO_BYTES_MAX }
    }

    /// It is a peer: its frames may be long from now on.
    pub(crate) fn trust(&mut self) {
        self.bytes_max = FRAME_BYTES_MAX;
    }

    /// The next frame's payload; `None` if it has not all arrived. There is room for the rest of it
    /// then.
    ///
    /// # Errors
    ///
    /// `InvalidData` for a frame that isn't sound.
    pub(crate) fn next(&mut self) -> io::Result<Option<Bytes>> {
        let Some((head, rest)) = self.input.split_first_chunk::<HEAD_BYTES>() else {
            self.input.reserve(READ_BYTES);
            return Ok(None);
        };
        let [a, b, c, d, check @ ..] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > self.bytes_max {
            return Err(invalid("a frame is longer than any frame may be"));
        }
        if rest.len() < length {
            // The limit bounds this; a frame's bytes then lie in one piece.
            let missing = length - rest.len();
            self.input.reserve(missing);
            return Ok(None);
        }
        self.input.advance(HEAD_BYTES);
        let payload = self.input.split_to(length).freeze();
        if crc32c::crc32c(&payload) != u32::from_le_bytes(check) {
            return Err(invalid("a frame's checksum doesn't match its bytes"));
        }
        Ok(Some(payload))
    }
}

/// Bytes of room for what comes next while nothing is known of it.
const READ_BYTES: usize = 4 << 10;

/// The reading half of a connection. Reading is cancel-safe: nothing read is lost.
pub(crate) struct FrameReader {
    half: ReadHalf<Box<dyn PeerStream>>,
    frames: Frames,
}

impl FrameReader {
    fn new(half: ReadHalf<Box<dyn PeerStream>>) -> Self {
        Self { half, frames: Frames::of_a_stranger() }
    }

    /// The handshake is done: see [`Frames::trust`].
    pub(crate) fn trust(&mut self) {
        self.frames.trust();
    }

    /// The next frame's payload.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at the end of the connection, `InvalidData` for a frame that isn't sound,
    /// and those of the connection.
    pub(crate) async fn next(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(frame) = self.frames.next()? {
                return Ok(frame);
            }
            if self.half.read_buf(&mut self.frames.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// What a peer sent is no message of this protocol.
pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The writing half of a connection.
pub(crate) type FrameWriter = WriteHalf<Box<dyn PeerStream>>;

/// A connection in its two halves.
pub(crate) struct Connection {
    pub(crate) reader: FrameReader,
    pub(crate) writer: FrameWriter,
}

impl Connection {
    pub(crate) fn new(stream: Box<dyn PeerStream>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader: FrameReader::new(reader), writer }
    }

    /// Sends one message.
    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut out = Vec::new();
        put_message(&mut out, message);
        self.writer.write_all(&out).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: Vec<u8>) -> FrameReader {
        let (mut ours, theirs) = tokio::io::duplex(64);
        tokio::spawn(async move {
            // The reader may hang up early.
            let _ = ours.write_all(&bytes).await;
        });
        let mut reader = Connection::new(Box::new(theirs)).reader;
        reader.trust();
        reader
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let mut out = Vec::new();
        let payloads = [Vec::new(), vec![7; 1], vec![9; 100_000]];
        payloads.iter().for_each(|payload| put(&mut out, |out| out.extend_from_slice(payload)));
        let mut reader = reader(out);
        for payload in payloads {
            assert_eq!(reader.next().await.unwrap(), payload);
        }
        assert_eq!(reader.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_stranger_is_not_believed_a_long_frame() {
        let mut frames = Frames::of_a_stranger();
        let long = u32::try_from(FRAME_BYTES_MAX).unwrap();
        frames.input.extend_from_slice(&[long.to_le_bytes(), [0; 4]].concat());
        assert_eq!(frames.next().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(frames.input.capacity() <= READ_BYTES);
        frames.trust();
        assert_eq!(frames.next().unwrap(), None);
        frames.input.clear();
        frames.input.extend_from_slice(&[(long + 1).to_le_bytes(), [0; 4]].concat());
        assert_eq!(frames.next().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_damaged_or_endless_frame_is_refused() {
        let mut damaged = Vec::new();
        put(&mut damaged, |out| out.extend_from_slice(b"payload"));
        *damaged.last_mut().unwrap() ^= 1;
        let endless = [u32::MAX.to_le_bytes(), [0; 4]].concat();
        for bytes in [damaged, endless] {
            assert_eq!(reader(bytes).next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
