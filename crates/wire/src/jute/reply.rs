//! What a server answers, and what it tells without being asked.

use bytes::BytesMut;

use super::frame::framed;
use super::{
    Acls, ClientInfos, ErrorCode, Hidden, Input, Malformed, Multi, OpCode, OpResult, Record,
    ReplyHeader, Stat, Strings, TooLong, WatcherEvent, xids,
};

/// The body of a reply. Which one it is, the request says; only one that went well has any, a
/// failed step of a login apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// None: to all that the others aren't to, and to all that failed.
    Empty,
    /// To `create` and `sync`.
    Path(Option<&'a str>),
    /// To the other ways of creating.
    PathStat(Option<&'a str>, Stat),
    /// To `exists`, `setData` and `setACL`.
    Stat(Stat),
    /// To `getData` and `reconfig`.
    DataStat(Option<&'a [u8]>, Stat),
    /// To `getACL`.
    AclStat(Acls<'a>, Stat),
    /// To `getChildren` and `getEphemerals`.
    Strings(Strings<'a>),
    /// To `getChildren2`.
    StringsStat(Strings<'a>, Stat),
    /// To `getAllChildrenNumber`.
    Count(i32),
    /// To `multi` and `multiRead`.
    Multi(Multi<'a, OpResult<'a>>),
    /// To `sasl`, also if it failed.
    Token(Hidden<'a>),
    /// To `addWatch`: four bytes that say how it went once more. Without them, clients hang up.
    WatchAdded(ErrorCode),
    /// To `whoAmI`.
    ClientInfos(ClientInfos<'a>),
}

/// Appends a reply as a frame.
///
/// # Errors
///
/// [`TooLong`]; `out` is then as it was.
pub fn encode_reply(
    header: &ReplyHeader,
    reply: &Reply<'_>,
    out: &mut BytesMut,
) -> Result<(), TooLong> {
    framed(out, |out| {
        header.write(out);
        reply.write(out);
    })
}

/// Appends a notification of the change `zxid` as a frame; -1 where it isn't known.
///
/// # Errors
///
/// [`TooLong`]; `out` is then as it was.
pub fn encode_notification(
    zxid: i64,
    event: &WatcherEvent<'_>,
    out: &mut BytesMut,
) -> Result<(), TooLong> {
    framed(out, |out| {
        ReplyHeader { xid: xids::NOTIFICATION, zxid, err: ErrorCode::OK }.write(out);
        event.write(out);
    })
}

/// From a frame: the header, and what is behind it for [`Reply::decode`] or, if it is a
/// [notification](xids::NOTIFICATION), for [`WatcherEvent`].
///
/// # Errors
///
/// [`Malformed`]: the connection is of no use any more.
pub fn decode_reply(frame: &[u8]) -> Result<(ReplyHeader, Input<'_>), Malformed> {
    let mut input = Input::new(frame);
    Ok((input.read()?, input))
}

impl<'a> Reply<'a> {
    /// The body of a reply to `op` that had this `header`.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn decode(
        op: OpCode,
        header: &ReplyHeader,
        mut body: Input<'a>,
    ) -> Result<Self, Malformed> {
        let input = &mut body;
        if header.err != ErrorCode::OK {
            let has_token = op == OpCode::SASL && !input.rest().is_empty();
            return if has_token { input.read().map(Self::Token) } else { Ok(Self::Empty) };
        }
        Ok(match op {
            OpCode::CREATE | OpCode::SYNC => Self::Path(input.read()?),
            OpCode::CREATE2 | OpCode::CREATE_CONTAINER | OpCode::CREATE_TTL => {
                Self::PathStat(input.read()?, input.read()?)
            }
            OpCode::EXISTS | OpCode::SET_DATA | OpCode::SET_ACL => Self::Stat(input.read()?),
            OpCode::GET_DATA | OpCode::RECONFIG => Self::DataStat(input.read()?, input.read()?),
            OpCode::GET_ACL => Self::AclStat(input.read()?, input.read()?),
            OpCode::GET_CHILDREN | OpCode::GET_EPHEMERALS => Self::Strings(input.read()?),
            OpCode::GET_CHILDREN2 => Self::StringsStat(input.read()?, input.read()?),
            OpCode::GET_ALL_CHILDREN_NUMBER => Self::Count(input.read()?),
            OpCode::MULTI | OpCode::MULTI_READ => Self::Multi(input.read()?),
            OpCode::SASL => Self::Token(input.read()?),
            OpCode::ADD_WATCH => Self::WatchAdded(input.read()?),
            OpCode::WHO_AM_I => Self::ClientInfos(input.read()?),
            _ => Self::Empty,
        })
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Empty => {}
            Self::Path(path) => path.write(out),
            Self::PathStat(path, stat) => {
                path.write(out);
                stat.write(out);
            }
            Self::Stat(stat) => stat.write(out),
            Self::DataStat(data, stat) => {
                data.write(out);
                stat.write(out);
            }
            Self::AclStat(acl, stat) => {
                acl.write(out);
                stat.write(out);
            }
            Self::Strings(names) => names.write(out),
            Self::StringsStat(names, stat) => {
                names.write(out);
                stat.write(out);
            }
            Self::Count(count) => count.write(out),
            Self::Multi(multi) => multi.write(out),
            Self::Token(token) => token.write(out),
            Self::WatchAdded(error) => error.write(out),
            Self::ClientInfos(infos) => infos.write(out),
        }
    }
}
