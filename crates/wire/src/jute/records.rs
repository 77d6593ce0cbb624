//! The records that many messages share.

use super::record::{choice, record};
use super::{ErrorCode, OpCode};

/// Bytes of a [`Stat`].
pub const STAT_BYTES: usize = 68;

/// Request numbers that mean something. A server interprets none of a client's, only answers
/// pings with [`PING`](xids::PING) whatever number they had.
pub mod xids {
    /// A notification, from the server only.
    pub const NOTIFICATION: i32 = -1;
    /// A ping, and its reply.
    pub const PING: i32 = -2;
    /// Credentials, as most clients number them.
    pub const AUTH: i32 = -4;
    /// Watches set anew after a reconnect, as most clients number them.
    pub const SET_WATCHES: i32 = -8;
}

/// What an [`Acl`] grants, as bits. Higher bits have no meaning, and are kept.
pub mod perms {
    /// To read data and list children.
    pub const READ: i32 = 1;
    /// To set data.
    pub const WRITE: i32 = 2;
    /// To create children.
    pub const CREATE: i32 = 4;
    /// To delete children.
    pub const DELETE: i32 = 8;
    /// To set the ACL.
    pub const ADMIN: i32 = 16;
    /// All of these.
    pub const ALL: i32 = 31;
}

record! {
    /// Before the body of a request.
    #[derive(Copy)]
    RequestHeader {
        /// The client's number of it; the reply has the same. Any number, and not always new.
        xid: i32,
        /// What is asked for.
        op: OpCode,
    }
}

record! {
    /// Before the body of a reply, which is there only if `err` is 0.
    #[derive(Copy)]
    ReplyHeader {
        /// The request's.
        xid: i32,
        /// The newest change that the server had seen.
        zxid: i64,
        /// How it went.
        err: ErrorCode,
    }
}

record! {
    /// Before each part of a multi, and after the last.
    #[derive(Copy)]
    MultiHeader {
        /// What the part is; -1 for a failure, and at the end.
        op: OpCode,
        /// No part follows: this is the end.
        done: bool,
        /// How the part went; -1 in a request, and at the end.
        err: i32,
    }
}

record! {
    /// Who: a scheme, and what that scheme calls them.
    #[derive(Copy)]
    Id<'a> {
        /// `world`, `auth`, `digest`, `ip`, `x509`, `sasl`.
        scheme: Option<&'a str>,
        /// As the scheme has it.
        id: Option<&'a str>,
    }
}

record! {
    /// One entry of a list of ACLs: what is granted, and to whom.
    #[derive(Copy)]
    Acl<'a> {
        /// Bits of [`perms`].
        perms: i32,
        /// Who.
        id: Id<'a>,
    }
}

record! {
    /// What a connection has shown of itself.
    #[derive(Copy)]
    ClientInfo<'a> {
        /// How it did.
        scheme: Option<&'a str>,
        /// As whom; empty for a scheme that names nobody.
        user: Option<&'a str>,
    }
}

record! {
    /// What is known of a znode, its data apart.
    #[derive(Copy, Default)]
    Stat {
        /// The change that created it.
        czxid: i64,
        /// The change that last set its data.
        mzxid: i64,
        /// When it was created, in milliseconds since 1970.
        ctime: i64,
        /// When its data was last set, in milliseconds since 1970.
        mtime: i64,
        /// How often its data was set.
        version: i32,
        /// How often a child was created or deleted.
        cversion: i32,
        /// How often its ACL was set.
        aversion: i32,
        /// The session with which it goes; 0 if it stays.
        ephemeral_owner: i64,
        /// Bytes of data; 0 also for null.
        data_length: i32,
        /// Children that it has now.
        num_children: i32,
        /// The change that last created or deleted a child.
        pzxid: i64,
    }
}

record! {
    /// Something happened that was watched.
    #[derive(Copy)]
    WatcherEvent<'a> {
        /// What.
        kind: EventType,
        /// The client's state as the server sees it: always [`WatcherEvent::CONNECTED`].
        state: i32,
        /// Where it happened, and not where the watch sits.
        path: Option<&'a str>,
    }
}

impl WatcherEvent<'_> {
    /// The only `state` that is ever sent.
    pub const CONNECTED: i32 = 3;
}

choice! {
    /// What happened to a watched znode. Clients know more kinds, which are never sent.
    EventType ("the type of an event") {
        /// It is there.
        NodeCreated = 1,
        /// It is gone.
        NodeDeleted = 2,
        /// Its data was set.
        NodeDataChanged = 3,
        /// A child came or went.
        NodeChildrenChanged = 4,
    }
}
