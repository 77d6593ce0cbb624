//! The words in which the tree is asked, answers, and is told of.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::quota;
use crate::{Revision, SessionId, Stamp};

/// Somebody, as a scheme of authentication knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRef<'a> {
    /// The scheme, such as `digest`.
    pub scheme: &'a str,
    /// Who, in the scheme's own form.
    pub id: &'a str,
}

/// What somebody may do with a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclRef<'a> {
    /// Bits of [`perms`](crate::perms); others are stored as given.
    pub perms: i32,
    /// Who.
    #[serde(borrow)]
    pub id: IdRef<'a>,
}

/// One operation on the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeOp<'a> {
    /// Makes a znode.
    Create {
        /// Where; with `sequential`, what the number is appended to.
        path: &'a str,
        /// `None`: null, which isn't the same as empty.
        #[serde(borrow, with = "octets")]
        data: Option<&'a [u8]>,
        /// Who may what; never empty.
        #[serde(borrow)]
        acl: Vec<AclRef<'a>>,
        /// What ends it.
        kind: NodeKind,
        /// Append the parent's counter to the path.
        sequential: bool,
    },
    /// Removes a znode without children.
    Delete {
        /// Which.
        path: &'a str,
        /// The version that it must have; -1: any.
        version: i32,
    },
    /// Replaces a znode's data.
    SetData {
        /// Which.
        path: &'a str,
        /// `None`: null.
        #[serde(borrow, with = "octets")]
        data: Option<&'a [u8]>,
        /// The version that it must have; -1: any.
        version: i32,
    },
    /// Replaces a znode's access list.
    SetAcl {
        /// Which.
        path: &'a str,
        /// Who may what; never empty.
        #[serde(borrow)]
        acl: Vec<AclRef<'a>>,
        /// The *aversion* that it must have; -1: any.
        version: i32,
    },
    /// Changes nothing, and fails what it is a part of if the znode isn't as expected.
    Check {
        /// Which.
        path: &'a str,
        /// The version that it must have; -1: any, as long as the znode is there.
        version: i32,
    },
    /// Fails: what the front end found wrong, at its place in the order.
    Fail(TreeError),
}

impl TreeOp<'_> {
    /// Whether it makes the stats of a quota, which are counted from the beginning: a walk over all
    /// that is below its path.
    #[must_use]
    pub fn counts_subtree(&self) -> bool {
        // What a number is appended to becomes none.
        matches!(self, Self::Create { path, sequential: false, .. }
            if quota::path_of_stats(path).is_some())
    }
}

/// What ends a znode besides being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// Nothing.
    Persistent,
    /// The end of the session that made it.
    Ephemeral,
    /// Having had children and having none any more.
    Container,
    /// Having no children and not having been written for so long.
    Ttl {
        /// Milliseconds, 1 to [`ZNODE_TTL_MS_MAX`](crate::ZNODE_TTL_MS_MAX).
        ms: u64,
    },
}

/// Why an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeError {
    /// There is no such znode, or no parent for a new one.
    NoNode,
    /// The access list doesn't allow it.
    NoAuth,
    /// The version isn't the one that was named.
    BadVersion,
    /// The parent is ephemeral.
    NoChildrenForEphemerals,
    /// There is a znode there already.
    NodeExists,
    /// It has children.
    NotEmpty,
    /// The path is none, or the call doesn't apply to it; or something is too large.
    BadArguments,
    /// The access list is empty or too long.
    InvalidAcl,
    /// A hard quota, or the number of a session's ephemeral znodes.
    QuotaExceeded,
    /// The session speaks over another connection by now.
    SessionMoved,
    /// The server doesn't do it (only by [`TreeOp::Fail`]).
    Unimplemented,
    /// The request can't be read (only by [`TreeOp::Fail`]).
    Marshalling,
}

/// What one operation is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeReply {
    /// The znode was made.
    Created {
        /// Its path, with the number if it is sequential.
        path: Arc<str>,
        /// How it is.
        stat: Stat,
    },
    /// It is gone.
    Deleted,
    /// The data was replaced.
    DataSet {
        /// How it is now.
        stat: Stat,
    },
    /// The access list was replaced.
    AclSet {
        /// How it is now.
        stat: Stat,
    },
    /// It is as expected.
    Checked,
}

/// What is known of a znode besides its data, as ZooKeeper's clients see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Of the command that made it.
    pub czxid: Revision,
    /// Of the newest one that made it or set its data.
    pub mzxid: Revision,
    /// When it was made.
    pub ctime: Stamp,
    /// When its data was set last.
    pub mtime: Stamp,
    /// How often its data was set.
    pub version: i32,
    /// How often a child was made or removed.
    pub cversion: i32,
    /// How often its access list was set.
    pub aversion: i32,
    /// On whose life it hangs; `None` also for containers and the like.
    pub ephemeral_owner: Option<SessionId>,
    /// Bytes of its data; 0 for null.
    pub data_length: i32,
    /// Children now.
    pub num_children: i32,
    /// Of the newest command that made or removed a child; of its own making if there is none.
    pub pzxid: Revision,
}

/// What happened to a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// It was made.
    Created,
    /// It is gone.
    Deleted,
    /// Its data was set.
    DataChanged,
}

/// Bytes that may be missing, written at one go and read without a copy.
pub(crate) mod octets {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    struct Octets<'a>(&'a [u8]);

    impl Serialize for Octets<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }

    pub(crate) fn serialize<S: Serializer>(
        octets: &Option<&[u8]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        octets.map(Octets).serialize(serializer)
    }

    pub(crate) fn deserialize<'de: 'a, 'a, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<&'a [u8]>, D::Error> {
        Option::deserialize(deserializer)
    }
}
