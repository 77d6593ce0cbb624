//! The first frame of each direction, which has no header.

use bytes::BytesMut;

use super::frame::framed_record;
use super::record::record;
use super::{Hidden, Input, Malformed, Record, TooLong};

/// Bytes of a session's password, always.
pub const PASSWORD_BYTES: usize = 16;

record! {
    /// A client asks for a session, or for its old one.
    #[derive(Copy)]
    ConnectRequest<'a> {
        /// 0 from everybody, and not looked at.
        protocol_version: i32,
        /// The newest change that the client has seen; 0 if none.
        last_zxid_seen: i64,
        /// The session timeout that it would like, in milliseconds.
        timeout_ms: i32,
        /// The session that it had; 0 for a new one.
        session_id: i64,
        /// That session's; zeros, null or empty for a new one.
        password: Hidden<'a>,
        /// Whether a server without a majority will do. `None` from older clients, which don't
        /// send this byte and don't understand it in the response.
        read_only: Option<bool>,
    }
}

record! {
    /// The server's answer to it.
    #[derive(Copy)]
    ConnectResponse<'a> {
        /// 0.
        protocol_version: i32,
        /// The session timeout that holds, in milliseconds; 0 if there is no session.
        timeout_ms: i32,
        /// The session; 0 if there is none.
        session_id: i64,
        /// [`PASSWORD_BYTES`] of them, also if there is no session.
        password: Hidden<'a>,
        /// Whether this server has no majority. As in the request: a byte that wasn't sent isn't
        /// answered.
        read_only: Option<bool>,
    }
}

impl<'a> ConnectRequest<'a> {
    /// From a frame.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: the connection is of no use.
    pub fn decode(frame: &'a [u8]) -> Result<Self, Malformed> {
        Input::new(frame).read()
    }

    /// Appends it as a frame.
    ///
    /// # Errors
    ///
    /// [`TooLong`] for an absurd password; `out` is then as it was.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), TooLong> {
        framed_record(out, self)
    }
}

impl<'a> ConnectResponse<'a> {
    /// That there is no such session (any more), to a client that sent `read_only` so.
    #[must_use]
    pub fn refusal(read_only: Option<bool>) -> Self {
        Self {
            protocol_version: 0,
            timeout_ms: 0,
            session_id: 0,
            password: Hidden(Some(&[0; PASSWORD_BYTES])),
            read_only: read_only.map(|_| false),
        }
    }

    /// From a frame.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: the connection is of no use.
    pub fn decode(frame: &'a [u8]) -> Result<Self, Malformed> {
        Input::new(frame).read()
    }

    /// Appends it as a frame.
    ///
    /// # Errors
    ///
    /// [`TooLong`] for an absurd password; `out` is then as it was.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), TooLong> {
        framed_record(out, self)
    }
}

/// A byte that the last field of a frame is or isn't.
impl<'a> Record<'a> for Option<bool> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        if input.rest().is_empty() { Ok(None) } else { input.read().map(Some) }
    }

    fn write(&self, out: &mut BytesMut) {
        if let Some(flag) = self {
            flag.write(out);
        }
    }
}
