//! The native protocol: an 8-byte magic and a version, then frames of protobuf messages.

/// What a client sends first: no text, no TLS record, no HTTP/2 preface starts like this.
pub const MAGIC: [u8; 8] = *b"\x89LOCKKPR";

/// The version that this code speaks; a `u32`, big-endian, right after the magic.
pub const VERSION: u32 = 1;
