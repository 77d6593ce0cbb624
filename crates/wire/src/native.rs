//! The native protocol: a greeting, then frames of protobuf messages, both ways.
//!
//! ```text
//!   client → server   MAGIC (8 bytes)  VERSION (u32)   frame frame frame …   of Request
//!   server → client   MAGIC (8 bytes)  VERSION (u32)   frame frame frame …   of Response
//!
//!   a frame           length (u32, of the message alone)   message (protobuf)
//! ```
//!
//! All integers of the framing are big-endian. Neither side waits for the other's greeting before
//! it sends. What the messages say is in `proto/native.proto`, what order they come in is in
//! `docs/protocol.md`.
//!
//! # Guarantees
//!
//! - A length beyond the direction's limit is refused before anything is allocated for it.
//! - A wrong magic is known at its first wrong byte, however slowly the bytes arrive.
//! - After an error a [`Frames`] is not to be used again: the stream has lost its step.
//!
//! Not promised: that a decoded message makes sense. Lengths of names, numbers and leases are
//! checked by whoever knows their limits.

mod framing;
#[rustfmt::skip]
#[expect(missing_docs, reason = "generated from proto/native.proto, where the words are")]
mod generated;

pub use framing::{
    FrameError, Frames, MAGIC, NotNative, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, VERSION, encode,
    greet, take_greeting,
};
pub use generated::*;
