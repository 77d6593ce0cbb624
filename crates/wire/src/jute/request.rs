//! What a client asks for.

use bytes::BytesMut;

use super::frame::framed;
use super::record::{choice, record};
use super::{
    Acls, Hidden, Input, Malformed, Multi, Op, OpCode, ReadOp, Record, RequestHeader, Strings,
    TooLong,
};

/// The largest number that stands for a way to create; the smallest is 0.
pub(super) const CREATE_FLAGS_MAX: i32 = 6;

/// The body of a request, with the operation that its header names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// In any of its four ways.
    Create(Create<'a>),
    /// Delete a znode.
    Delete(Delete<'a>),
    /// The stat of a znode, and a watch also on one that isn't there.
    Exists(Read<'a>),
    /// The data of a znode, and its stat.
    GetData(Read<'a>),
    /// Set the data of a znode.
    SetData(SetData<'a>),
    /// The ACL of the znode at this path.
    GetAcl(Option<&'a str>),
    /// Set the ACL of a znode.
    SetAcl(SetAcl<'a>),
    /// The names of the children.
    GetChildren(Read<'a>),
    /// Wait for what the leader had committed; the path is only echoed.
    Sync(Option<&'a str>),
    /// A sign of life.
    Ping,
    /// The names of the children, and the stat.
    GetChildren2(Read<'a>),
    /// Several writes, all or none.
    Multi(Multi<'a, Op<'a>>),
    /// Change the members of the cluster.
    Reconfig(Reconfig<'a>),
    /// Whether there is such a watch on this path.
    CheckWatches(Option<&'a str>, WatcherType),
    /// Remove such watches on this path.
    RemoveWatches(Option<&'a str>, WatcherType),
    /// Several reads.
    MultiRead(Multi<'a, ReadOp<'a>>),
    /// Show credentials.
    Auth(Auth<'a>),
    /// Watches of a connection before, set anew.
    SetWatches(SetWatches<'a>),
    /// A step of a login.
    Sasl(Hidden<'a>),
    /// The ephemeral znodes of this session that start so.
    GetEphemerals(Option<&'a str>),
    /// How many descendants the znode at this path has.
    GetAllChildrenNumber(Option<&'a str>),
    /// As `SetWatches`, and watches that stay.
    SetWatches2 {
        /// Those that go when they fire.
        watches: SetWatches<'a>,
        /// Paths of those that stay.
        persistent: Strings<'a>,
        /// Paths of those that stay and include what is below.
        persistent_recursive: Strings<'a>,
    },
    /// A watch that stays.
    AddWatch(Option<&'a str>, AddWatchMode),
    /// What this connection has shown of itself.
    WhoAmI,
    /// End the session.
    CloseSession,
    /// Nothing that a client may ask for by itself: unknown, internal, or only part of a multi.
    /// Whatever its body was.
    Unimplemented(OpCode),
}

record! {
    /// A path, and the version that the znode must have, or -1 for any.
    #[derive(Copy)]
    Delete<'a> {
        /// Of the znode.
        path: Option<&'a str>,
        /// Of its data.
        version: i32,
    }
}

/// A path, and the version that the znode must have, or -1 if it must only be there.
pub type Check<'a> = Delete<'a>;

record! {
    /// A path to read, and whether to watch it.
    #[derive(Copy)]
    Read<'a> {
        /// Of the znode.
        path: Option<&'a str>,
        /// Whether to tell of the next change.
        watch: bool,
    }
}

record! {
    /// New data.
    #[derive(Copy)]
    SetData<'a> {
        /// Of the znode.
        path: Option<&'a str>,
        /// Null and empty are different.
        data: Option<&'a [u8]>,
        /// That the data must have until then, or -1 for any.
        version: i32,
    }
}

record! {
    /// A new ACL.
    SetAcl<'a> {
        /// Of the znode.
        path: Option<&'a str>,
        /// All of its entries.
        acl: Acls<'a>,
        /// That the ACL must have until then, or -1 for any.
        version: i32,
    }
}

record! {
    /// Other members.
    #[derive(Copy)]
    Reconfig<'a> {
        /// Servers to add, with commas between them.
        joining: Option<&'a str>,
        /// Ids of servers to remove, with commas between them.
        leaving: Option<&'a str>,
        /// All servers there shall be; null if it is about those two.
        new_members: Option<&'a str>,
        /// The version that the members must have until then, or -1 for any.
        current_config: i64,
    }
}

record! {
    /// Credentials.
    #[derive(Copy)]
    Auth<'a> {
        /// 0, and not looked at.
        kind: i32,
        /// Of which kind.
        scheme: Option<&'a str>,
        /// Whatever the scheme wants.
        credentials: Hidden<'a>,
    }
}

record! {
    /// Paths that were watched. What changed there since then is told at once.
    SetWatches<'a> {
        /// The newest change that the client had seen.
        relative_zxid: i64,
        /// Whose data was read.
        data: Strings<'a>,
        /// That weren't there.
        exist: Strings<'a>,
        /// Whose children were listed.
        child: Strings<'a>,
    }
}

choice! {
    /// Which watches on a path.
    WatcherType ("the type of a watcher") {
        /// Set by listing children.
        Children = 1,
        /// Set by reading data or asking whether it exists.
        Data = 2,
        /// Any.
        Any = 3,
        /// That stays.
        Persistent = 4,
        /// That stays and includes what is below.
        PersistentRecursive = 5,
    }
}

choice! {
    /// What a watch that stays is about.
    AddWatchMode ("the mode of a watch") {
        /// The path alone.
        Persistent = 0,
        /// The path and what is below.
        PersistentRecursive = 1,
    }
}

/// A new znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// In which of the ways it is asked for.
    pub op: CreateOp,
    /// Where; the beginning of where, if it is to be numbered.
    pub path: Option<&'a str>,
    /// Null and empty are different.
    pub data: Option<&'a [u8]>,
    /// All of its entries.
    pub acl: Acls<'a>,
    /// Which kind of znode: a choice, not bits. Any number, because whoever answers has a code
    /// for those that don't exist; within a multi only 0 to 6, but for the way with a time to live.
    pub flags: i32,
    /// After how many milliseconds without change and children it goes; -1 if the operation
    /// has no place for it.
    pub ttl_ms: i64,
}

/// The ways to ask for a new znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOp {
    /// The reply is the path.
    Create,
    /// The reply is the path and the stat, as to the others below.
    Create2,
    /// A container, whatever the flags say.
    Container,
    /// With a time to live.
    Ttl,
}

impl CreateOp {
    /// Its operation.
    #[must_use]
    pub fn code(self) -> OpCode {
        match self {
            Self::Create => OpCode::CREATE,
            Self::Create2 => OpCode::CREATE2,
            Self::Container => OpCode::CREATE_CONTAINER,
            Self::Ttl => OpCode::CREATE_TTL,
        }
    }

    pub(super) fn of(op: OpCode) -> Option<Self> {
        match op {
            OpCode::CREATE => Some(Self::Create),
            OpCode::CREATE2 => Some(Self::Create2),
            OpCode::CREATE_CONTAINER => Some(Self::Container),
            OpCode::CREATE_TTL => Some(Self::Ttl),
            _ => None,
        }
    }
}

impl<'a> Create<'a> {
    pub(super) fn read_as(op: CreateOp, input: &mut Input<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            op,
            path: input.read()?,
            data: input.read()?,
            acl: input.read()?,
            flags: input.read()?,
            ttl_ms: if op == CreateOp::Ttl { input.read()? } else { -1 },
        })
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        self.path.write(out);
        self.data.write(out);
        self.acl.write(out);
        self.flags.write(out);
        if self.op == CreateOp::Ttl {
            self.ttl_ms.write(out);
        }
    }
}

/// A frame that holds no request. The other side caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// No header, or credentials that can't be read: the connection is closed, and nothing said.
    #[error("no header, or no credentials: {0}")]
    Close(Malformed),
    /// The body is not what the header promises: the answer is
    /// [`MARSHALLING_ERROR`](super::ErrorCode::MARSHALLING_ERROR), and the connection goes on.
    #[error("{op} with a body that isn't one: {why}", op = header.op)]
    Body {
        /// To be answered.
        header: RequestHeader,
        /// What is wrong.
        why: Malformed,
    },
}

/// From a frame that isn't a connection's first.
///
/// # Errors
///
/// [`Undecodable`], which says whether it is answered.
pub fn decode_request(frame: &[u8]) -> Result<(RequestHeader, Request<'_>), Undecodable> {
    let mut input = Input::new(frame);
    let header: RequestHeader = input.read().map_err(Undecodable::Close)?;
    match Request::read_as(header.op, &mut input) {
        Ok(request) => Ok((header, request)),
        Err(why) if matches!(header.op, OpCode::AUTH | OpCode::SASL) => {
            Err(Undecodable::Close(why))
        }
        Err(why) => Err(Undecodable::Body { header, why }),
    }
}

/// Appends a request with the number `xid` as a frame.
///
/// # Errors
///
/// [`TooLong`]; `out` is then as it was.
pub fn encode_request(xid: i32, request: &Request<'_>, out: &mut BytesMut) -> Result<(), TooLong> {
    framed(out, |out| {
        RequestHeader { xid, op: request.op() }.write(out);
        request.write_body(out);
    })
}

impl<'a> Request<'a> {
    /// Its operation.
    #[must_use]
    pub fn op(&self) -> OpCode {
        match self {
            Self::Create(create) => create.op.code(),
            Self::Delete(_) => OpCode::DELETE,
            Self::Exists(_) => OpCode::EXISTS,
            Self::GetData(_) => OpCode::GET_DATA,
            Self::SetData(_) => OpCode::SET_DATA,
            Self::GetAcl(_) => OpCode::GET_ACL,
            Self::SetAcl(_) => OpCode::SET_ACL,
            Self::GetChildren(_) => OpCode::GET_CHILDREN,
            Self::Sync(_) => OpCode::SYNC,
            Self::Ping => OpCode::PING,
            Self::GetChildren2(_) => OpCode::GET_CHILDREN2,
            Self::Multi(_) => OpCode::MULTI,
            Self::Reconfig(_) => OpCode::RECONFIG,
            Self::CheckWatches(..) => OpCode::CHECK_WATCHES,
            Self::RemoveWatches(..) => OpCode::REMOVE_WATCHES,
            Self::MultiRead(_) => OpCode::MULTI_READ,
            Self::Auth(_) => OpCode::AUTH,
            Self::SetWatches(_) => OpCode::SET_WATCHES,
            Self::Sasl(_) => OpCode::SASL,
            Self::GetEphemerals(_) => OpCode::GET_EPHEMERALS,
            Self::GetAllChildrenNumber(_) => OpCode::GET_ALL_CHILDREN_NUMBER,
            Self::SetWatches2 { .. } => OpCode::SET_WATCHES2,
            Self::AddWatch(..) => OpCode::ADD_WATCH,
            Self::WhoAmI => OpCode::WHO_AM_I,
            Self::CloseSession => OpCode::CLOSE_SESSION,
            Self::Unimplemented(op) => *op,
        }
    }

    fn read_as(op: OpCode, input: &mut Input<'a>) -> Result<Self, Malformed> {
        Ok(match op {
            OpCode::CREATE => Self::Create(Create::read_as(CreateOp::Create, input)?),
            OpCode::CREATE2 => Self::Create(Create::read_as(CreateOp::Create2, input)?),
            OpCode::CREATE_CONTAINER => Self::Create(Create::read_as(CreateOp::Container, input)?),
            OpCode::CREATE_TTL => Self::Create(Create::read_as(CreateOp::Ttl, input)?),
            OpCode::DELETE => Self::Delete(input.read()?),
            OpCode::EXISTS => Self::Exists(input.read()?),
            OpCode::GET_DATA => Self::GetData(input.read()?),
            OpCode::SET_DATA => Self::SetData(input.read()?),
            OpCode::GET_ACL => Self::GetAcl(input.read()?),
            OpCode::SET_ACL => Self::SetAcl(input.read()?),
            OpCode::GET_CHILDREN => Self::GetChildren(input.read()?),
            OpCode::SYNC => Self::Sync(input.read()?),
            OpCode::PING => Self::Ping,
            OpCode::GET_CHILDREN2 => Self::GetChildren2(input.read()?),
            OpCode::MULTI => Self::Multi(input.read()?),
            OpCode::RECONFIG => Self::Reconfig(input.read()?),
            OpCode::CHECK_WATCHES => Self::CheckWatches(input.read()?, input.read()?),
            OpCode::REMOVE_WATCHES => Self::RemoveWatches(input.read()?, input.read()?),
            OpCode::MULTI_READ => Self::MultiRead(input.read()?),
            OpCode::AUTH => Self::Auth(input.read()?),
            OpCode::SET_WATCHES => Self::SetWatches(input.read()?),
            OpCode::SASL => Self::Sasl(input.read()?),
            OpCode::GET_EPHEMERALS => Self::GetEphemerals(input.read()?),
            OpCode::GET_ALL_CHILDREN_NUMBER => Self::GetAllChildrenNumber(input.read()?),
            OpCode::SET_WATCHES2 => Self::SetWatches2 {
                watches: input.read()?,
                persistent: input.read()?,
                persistent_recursive: input.read()?,
            },
            OpCode::ADD_WATCH => Self::AddWatch(input.read()?, input.read()?),
            OpCode::WHO_AM_I => Self::WhoAmI,
            OpCode::CLOSE_SESSION => Self::CloseSession,
            other => Self::Unimplemented(other),
        })
    }

    fn write_body(&self, out: &mut BytesMut) {
        match self {
            Self::Create(create) => create.write(out),
            Self::Delete(delete) => delete.write(out),
            Self::Exists(read)
            | Self::GetData(read)
            | Self::GetChildren(read)
            | Self::GetChildren2(read) => read.write(out),
            Self::SetData(set) => set.write(out),
            Self::SetAcl(set) => set.write(out),
            Self::GetAcl(path)
            | Self::Sync(path)
            | Self::GetEphemerals(path)
            | Self::GetAllChildrenNumber(path) => path.write(out),
            Self::Multi(multi) => multi.write(out),
            Self::Reconfig(reconfig) => reconfig.write(out),
            Self::CheckWatches(path, kind) | Self::RemoveWatches(path, kind) => {
                path.write(out);
                kind.write(out);
            }
            Self::MultiRead(multi) => multi.write(out),
            Self::Auth(auth) => auth.write(out),
            Self::SetWatches(watches) => watches.write(out),
            Self::Sasl(token) => token.write(out),
            Self::SetWatches2 { watches, persistent, persistent_recursive } => {
                watches.write(out);
                persistent.write(out);
                persistent_recursive.write(out);
            }
            Self::AddWatch(path, mode) => {
                path.write(out);
                mode.write(out);
            }
            Self::Ping | Self::WhoAmI | Self::CloseSession | Self::Unimplemented(_) => {}
        }
    }
}
