//! ZooKeeper's protocol: frames of jute records, both ways.
//!
//! ```text
//!   client → server   ConnectRequest    frame frame frame …   of RequestHeader + body
//!   server → client   ConnectResponse   frame frame frame …   of ReplyHeader + body
//!
//!   a frame           length (i32, of what follows)   record record …
//!   a string, buffer  length (i32, -1 is null)        bytes
//!   a vector          count (i32, -1 is null)         elements
//! ```
//!
//! All integers are signed and big-endian; a record is its fields one after the other, without
//! tags or padding. Instead of a ConnectRequest the first four bytes may be a word in ASCII
//! (`ruok`): [`Frames::first_word`].
//!
//! The server's way through it: [`Frames::next_frame`], [`ConnectRequest::decode`] for the first
//! frame and [`decode_request`] for the others; [`ConnectResponse::encode`], [`encode_reply`],
//! [`encode_notification`]. The client's: [`ConnectRequest::encode`], [`encode_request`];
//! [`ConnectResponse::decode`], [`decode_reply`].
//!
//! # Guarantees
//!
//! - Decoding borrows from the frame and allocates nothing: not for a count that is merely
//!   promised, and not for elements that are there. Vectors are read as they are iterated.
//! - Null and empty are different, and both survive. A string or buffer may be null anywhere.
//! - What follows a record in its frame is ignored: newer clients say more than older ones.
//! - Operations that nobody knows keep their number.
//!
//! Not here: what a valid path, version or list of ACLs is; the front end answers for that.

mod connect;
mod error_code;
mod frame;
mod list;
mod multi;
mod opcode;
mod record;
mod records;
mod reply;
mod request;

pub use connect::{ConnectRequest, ConnectResponse, PASSWORD_BYTES};
pub use error_code::ErrorCode;
pub use frame::{BadLength, FRAME_BYTES_MAX, Frames, TooLong};
pub use list::{Acls, ClientInfos, List, Strings};
pub use multi::{Multi, Op, OpResult, Part, ReadOp};
pub use opcode::OpCode;
pub use record::{Hidden, Input, Malformed, Record};
pub use records::{
    Acl, ClientInfo, EventType, Id, MultiHeader, ReplyHeader, RequestHeader, STAT_BYTES, Stat,
    WatcherEvent, perms, xids,
};
pub use reply::{Reply, decode_reply, encode_notification, encode_reply};
pub use request::{
    AddWatchMode, Auth, Check, Create, CreateOp, Delete, Read, Reconfig, Request, SetAcl, SetData,
    SetWatches, Undecodable, WatcherType, decode_request, encode_request,
};
