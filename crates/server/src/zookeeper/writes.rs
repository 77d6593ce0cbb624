//! Requests that change the tree: as core's operations, and core's answers as replies.
//!
//! Core decides nearly everything, in the order of the log. What it can't know is decided here:
//! what the flags of a create mean, and what a list of ACLs means to this connection.

use bytes::BytesMut;
use lockkeeper_core::{
    self as core, NodeKind, Refusal, TreeError, TreeOp, TreeReply, ZNODE_TTL_MS_MAX,
    check_znode_path,
};
use lockkeeper_wire::jute::{
    Create, CreateOp, ErrorCode, Multi, Op, OpCode, OpResult, Reply, ReplyHeader, Request, SetAcl,
    encode_reply,
};

use super::ZooKeeperSettings;
use super::ids::{FixUp, Id};
use super::reads::stat;
use crate::limits::COUNTS_OF_MULTI_MAX;

/// What a write was, for its reply.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// One operation.
    One(OpCode),
    /// Several, or none.
    Multi(Box<[OpCode]>),
    /// The end of the session.
    Close,
}

/// The operations that a request asks for; `None` if it isn't a write.
///
/// # Errors
///
/// The answer, if it is wrong whatever the tree is like. Part of a multi fails at its place.
pub(super) fn ops<'a>(
    request: &'a Request<'a>,
    parts: &'a [Op<'a>],
    ids: &'a [Id],
    settings: &ZooKeeperSettings,
) -> Option<Result<(Vec<TreeOp<'a>>, Asked), ErrorCode>> {
    let fix_up = &mut FixUp::new(ids);
    let op = match request {
        Request::Create(new) => create(new, new.op, new.ttl_ms, fix_up, settings),
        Request::Delete(delete) => {
            path(delete.path).map(|path| TreeOp::Delete { path, version: delete.version })
        }
        // Of these, ZooKeeper says what it says of any path that can't be.
        Request::SetData(set) => Ok(TreeOp::SetData {
            path: set.path.unwrap_or_default(),
            data: set.data,
            version: set.version,
        }),
        Request::SetAcl(set) => set_acl(set, fix_up),
        Request::Multi(_) => {
            let ops: Vec<_> = parts.iter().map(|part| self::part(part, fix_up, settings)).collect();
            if ops.contains(&TreeOp::Fail(TreeError::Marshalling)) {
                return Some(Err(ErrorCode::MARSHALLING_ERROR));
            }
            if ops.iter().filter(|op| op.counts_subtree()).count() > COUNTS_OF_MULTI_MAX {
                return Some(Err(ErrorCode::BAD_ARGUMENTS));
            }
            let codes = parts.iter().map(code).collect();
            return Some(Ok((ops, Asked::Multi(codes))));
        }
        _ => return None,
    };
    Some(op.map(|op| (vec![op], Asked::One(request.op()))).map_err(error_code))
}

fn part<'a>(part: &'a Op<'a>, fix_up: &mut FixUp<'a>, settings: &ZooKeeperSettings) -> TreeOp<'a> {
    let op = match part {
        Op::Create(new) => create_part(new, fix_up, settings),
        Op::Delete(delete) => {
            path(delete.path).map(|path| TreeOp::Delete { path, version: delete.version })
        }
        Op::SetData(set) => path(set.path).map(|path| TreeOp::SetData {
            path,
            data: set.data,
            version: set.version,
        }),
        Op::Check(check) => {
            path(check.path).map(|path| TreeOp::Check { path, version: check.version })
        }
    };
    op.unwrap_or_else(TreeOp::Fail)
}

/// Within a multi, ZooKeeper reads a create by its flags; what doesn't go with them it can't read,
/// or ignores.
fn create_part<'a>(
    new: &'a Create<'a>,
    fix_up: &mut FixUp<'a>,
    settings: &ZooKeeperSettings,
) -> Result<TreeOp<'a>, TreeError> {
    let op = op_in_multi(new).ok_or(TreeError::Marshalling)?;
    if op != CreateOp::Ttl && new.acl.is_null() {
        return Err(TreeError::Marshalling);
    }
    let ttl_ms = if op == CreateOp::Ttl { new.ttl_ms } else { -1 };
    create(new, op, ttl_ms, fix_up, settings)
}

/// What a create in a multi is; `None` if its flags want a time to live that it has no place for.
fn op_in_multi(new: &Create<'_>) -> Option<CreateOp> {
    match (new.flags, new.op) {
        (5 | 6, op) => (op == CreateOp::Ttl).then_some(op),
        (4, _) | (_, CreateOp::Container) => Some(CreateOp::Container),
        (_, CreateOp::Create2) => Some(CreateOp::Create2),
        _ => Some(CreateOp::Create),
    }
}

fn set_acl<'a>(set: &'a SetAcl<'a>, fix_up: &mut FixUp<'a>) -> Result<TreeOp<'a>, TreeError> {
    let path = set.path.unwrap_or_default();
    check_znode_path(path)?;
    let acl = fix_up.fix(&set.acl).ok_or(TreeError::InvalidAcl)?;
    Ok(TreeOp::SetAcl { path, acl, version: set.version })
}

fn code(part: &Op<'_>) -> OpCode {
    match part {
        Op::Create(new) => op_in_multi(new).unwrap_or(new.op).code(),
        Op::Delete(_) => OpCode::DELETE,
        Op::SetData(_) => OpCode::SET_DATA,
        Op::Check(_) => OpCode::CHECK,
    }
}

/// Where there must be a path, ZooKeeper can't read a request without one.
fn path(path: Option<&str>) -> Result<&str, TreeError> {
    path.ok_or(TreeError::Marshalling)
}

fn create<'a>(
    new: &'a Create<'a>,
    op: CreateOp,
    ttl_ms: i64,
    fix_up: &mut FixUp<'a>,
    settings: &ZooKeeperSettings,
) -> Result<TreeOp<'a>, TreeError> {
    let Create { flags, data, .. } = *new;
    if !(0..=6).contains(&flags) {
        return Err(TreeError::BadArguments);
    }
    let has_ttl = matches!(flags, 5 | 6);
    if has_ttl && !settings.ttl_nodes {
        return Err(TreeError::Unimplemented);
    }
    let ttl = u64::try_from(ttl_ms).ok();
    let is_sound = match ttl {
        Some(ms) => has_ttl && (1..=ZNODE_TTL_MS_MAX).contains(&ms),
        None => !has_ttl,
    };
    if !is_sound {
        return Err(TreeError::BadArguments);
    }
    let path = path(new.path)?;
    if !path.contains('/') || path.contains('\0') {
        return Err(TreeError::BadArguments);
    }
    let acl = fix_up.fix(&new.acl).ok_or(TreeError::InvalidAcl)?;
    // The operation makes a container, and not the flags, which alone make an ordinary node.
    let kind = match (op, ttl) {
        (CreateOp::Container, _) => NodeKind::Container,
        (_, Some(ms)) => NodeKind::Ttl { ms },
        _ if matches!(flags, 1 | 3) => NodeKind::Ephemeral,
        _ => NodeKind::Persistent,
    };
    Ok(TreeOp::Create { path, data, acl, kind, sequential: matches!(flags, 2 | 3 | 6) })
}

/// Appends the reply that core's answer is. False if there is none: the connection is to be closed.
pub(super) fn answer(
    asked: &Asked,
    xid: i32,
    zxid: i64,
    reply: &core::Reply,
    out: &mut BytesMut,
) -> bool {
    let mut send = |err, reply: &Reply<'_>| {
        // Only what doesn't fit into 2 GiB can't be sent.
        encode_reply(&ReplyHeader { xid, zxid, err }, reply, out).is_ok()
    };
    match (asked, reply) {
        (Asked::Close, core::Reply::Done) => send(ErrorCode::OK, &Reply::Empty),
        (Asked::One(op), core::Reply::Tree(replies)) => match replies.first() {
            Some(reply) => send(ErrorCode::OK, &one(*op, reply)),
            None => false,
        },
        (Asked::Multi(codes), core::Reply::Tree(replies)) => {
            let results = codes.iter().zip(replies).map(|(op, reply)| result(*op, reply));
            send(ErrorCode::OK, &Reply::Multi(Multi::of(results)))
        }
        (_, core::Reply::Refused(refusal)) => {
            let Some((index, error)) = refused(refusal) else { return false };
            match asked {
                Asked::Multi(codes) => send(ErrorCode::OK, &failed(codes.len(), index, error)),
                Asked::One(_) | Asked::Close => send(error, &Reply::Empty),
            }
        }
        _ => false,
    }
}

/// Which operation failed, and how; `None` if the session doesn't speak over this connection any
/// more.
fn refused(refusal: &Refusal) -> Option<(usize, ErrorCode)> {
    match refusal {
        Refusal::Tree { error: TreeError::SessionMoved, .. } | Refusal::UnknownSession => None,
        Refusal::Tree { index, error } => Some((*index as usize, error_code(*error))),
        // An operator has asked it to end, which it will.
        Refusal::Revoked => Some((0, ErrorCode::SESSION_EXPIRED)),
        Refusal::LimitReached { .. } => Some((0, ErrorCode::QUOTA_EXCEEDED)),
        _ => None,
    }
}

/// A multi of which nothing was done.
fn failed(count: usize, index: usize, error: ErrorCode) -> Reply<'static> {
    let results = (0..count).map(|at| {
        OpResult::Failed(match at.cmp(&index) {
            std::cmp::Ordering::Less => ErrorCode::OK,
            std::cmp::Ordering::Equal => error,
            std::cmp::Ordering::Greater => ErrorCode::RUNTIME_INCONSISTENCY,
        })
    });
    Reply::Multi(Multi::of(results))
}

fn one(op: OpCode, reply: &TreeReply) -> Reply<'_> {
    match reply {
        TreeReply::Created { path, .. } if op == OpCode::CREATE => Reply::Path(Some(path)),
        TreeReply::Created { path, stat: new } => Reply::PathStat(Some(path), stat(new)),
        TreeReply::DataSet { stat: new } | TreeReply::AclSet { stat: new } => {
            Reply::Stat(stat(new))
        }
        TreeReply::Deleted | TreeReply::Checked => Reply::Empty,
    }
}

fn result(op: OpCode, reply: &TreeReply) -> OpResult<'_> {
    match reply {
        TreeReply::Created { path, .. } if op == OpCode::CREATE => {
            OpResult::Created { path: Some(path) }
        }
        TreeReply::Created { path, stat: new } => {
            OpResult::CreatedWithStat { path: Some(path), stat: stat(new) }
        }
        TreeReply::DataSet { stat: new } | TreeReply::AclSet { stat: new } => {
            OpResult::DataSet(stat(new))
        }
        TreeReply::Deleted => OpResult::Deleted,
        TreeReply::Checked => OpResult::Checked,
    }
}

fn error_code(error: TreeError) -> ErrorCode {
    match error {
        TreeError::NoNode => ErrorCode::NO_NODE,
        TreeError::NoAuth => ErrorCode::NO_AUTH,
        TreeError::BadVersion => ErrorCode::BAD_VERSION,
        TreeError::NoChildrenForEphemerals => ErrorCode::NO_CHILDREN_FOR_EPHEMERALS,
        TreeError::NodeExists => ErrorCode::NODE_EXISTS,
        TreeError::NotEmpty => ErrorCode::NOT_EMPTY,
        TreeError::BadArguments => ErrorCode::BAD_ARGUMENTS,
        TreeError::InvalidAcl => ErrorCode::INVALID_ACL,
        TreeError::QuotaExceeded => ErrorCode::QUOTA_EXCEEDED,
        TreeError::SessionMoved => ErrorCode::SESSION_MOVED,
        TreeError::Unimplemented => ErrorCode::UNIMPLEMENTED,
        TreeError::Marshalling => ErrorCode::MARSHALLING_ERROR,
    }
}

/// The frame of a reply that went well, but for its zxid.
pub(super) fn unnumbered(xid: i32, reply: &Reply<'_>) -> BytesMut {
    let mut frame = BytesMut::new();
    // Only what doesn't fit into 2 GiB can't be sent.
    let _ = encode_reply(&ReplyHeader { xid, zxid: 0, err: ErrorCode::OK }, reply, &mut frame);
    frame
}
