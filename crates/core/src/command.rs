//! What the log can say: every way in which the state can change.

use serde::{Deserialize, Serialize};

use crate::{ClusterId, IdRef, Number, Secret, SessionId, Token, TreeOp};

/// One change of the state. Names are borrowed from the bytes of the log entry.
///
/// The encoding (postcard; the variant's index first) is the format of the log: variants and
/// fields are only ever added at the end, and an entry's version byte says which are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command<'a> {
    /// A session's numbered request: the hot path, so it comes first.
    Request {
        /// Who asks.
        session: SessionId,
        /// The request's number in its session.
        number: Number,
        /// The lowest number that the client has no answer to yet (at most `number`). Answers kept
        /// for numbers below it are forgotten, and a request below it is refused as too old.
        floor: Number,
        /// What is asked.
        #[serde(borrow)]
        request: Request<'a>,
    },
    /// Opens a session. Repeated with the same secret it changes nothing and answers the same.
    OpenSession {
        /// The id that the client chose at random.
        session: SessionId,
        /// What proves later that a client speaks for this session.
        secret: Secret,
        /// The lease in milliseconds.
        ttl_ms: u32,
        /// Who the client says it is.
        #[serde(borrow)]
        owner: OwnerRef<'a>,
    },
    /// Ends a session at once: everything that hangs on it is released in this entry.
    EndSession {
        /// Whose.
        session: SessionId,
        /// Why.
        reason: EndReason,
    },
    /// An operator asks a session to end: it is marked, told, and ends when it says so itself or
    /// when the leader, which confirms it no longer, has waited a full lease.
    RevokeSession {
        /// Whose.
        session: SessionId,
    },
    /// An operator asks a holder to give up one hold: as [`Command::RevokeSession`], for one hold.
    RevokeHold {
        /// Which lock.
        lock: &'a str,
        /// The hold that the operator saw: the command is refused if it is gone.
        if_token: Token,
        /// Pass the lock on in this entry, without waiting for the holder. Exclusion is then not
        /// guaranteed for up to the holder's lease.
        now: bool,
    },
    /// The first command of a cluster's life: its identity. Later ones change nothing.
    FoundCluster {
        /// Chosen at random by the proposer.
        cluster: ClusterId,
    },
    /// Ends the silence after a restore: from now on locks are granted again.
    EndSilence,
    /// Operations on the tree, in order: all of them, or none.
    Tree {
        /// Who asks, and who owns what is ephemeral.
        session: SessionId,
        /// Over which of its connections: must be the newest that
        /// [`Command::ResumeSession`] named; 0 for the one that opened it.
        connection: u64,
        /// As whom the connection is known.
        #[serde(borrow)]
        ids: Vec<IdRef<'a>>,
        /// Hard quotas are enforced, and not only counted.
        enforce_quota: bool,
        /// What is asked: one operation, or those of a multi.
        #[serde(borrow)]
        ops: Vec<TreeOp<'a>>,
    },
    /// A session goes on over another connection, with another lease. What was asked over the
    /// earlier one and comes later is refused.
    ResumeSession {
        /// Which.
        session: SessionId,
        /// What proves it.
        secret: Secret,
        /// The lease in milliseconds.
        ttl_ms: u32,
        /// Chosen at random.
        connection: u64,
    },
    /// Removes a container that is empty again, or an empty znode whose time is over: refused if it
    /// is neither by now.
    CollectNode {
        /// Which.
        path: &'a str,
    },
}

/// A session's request. Its number makes it happen at most once, however often it is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Asks for a lock. The request's number is from then on the name of the hold or the place.
    Acquire {
        /// Which lock.
        lock: &'a str,
        /// How.
        mode: Mode,
        /// Queue if it can't be had at once; otherwise the answer is a refusal.
        wait: bool,
        /// What for, shown to those who wait; empty if not said.
        purpose: &'a str,
    },
    /// Enters a lock again that this session holds, by naming that hold's token. The request's
    /// number is one more handle on the same hold, which ends when its last handle is released.
    Reenter {
        /// Which lock.
        lock: &'a str,
        /// The token of the hold.
        token: Token,
    },
    /// Gives a hold back.
    Release {
        /// The number of the acquire (or re-entry) that made it.
        acquire: Number,
    },
    /// Settles an acquire whatever has become of it: a place is left, a hold is released, and an
    /// acquire that has not arrived yet is refused when it does.
    Cancel {
        /// The number of the acquire.
        acquire: Number,
    },
}

/// How a lock is asked for. A lock in use serves one family: exclusive and shared, or permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other sharers.
    Shared,
    /// `take` of `of` permits; `of` is fixed while the lock is in use.
    Permits {
        /// How many this hold takes, from 1 to `of`.
        take: u32,
        /// How many there are.
        of: u32,
    },
}

/// Who a session's client says it is; each field is empty if not said. Shown, never trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRef<'a> {
    /// Host name.
    pub host: &'a str,
    /// Process id, 0 if not said.
    pub pid: u32,
    /// User name.
    pub user: &'a str,
    /// Program or command line.
    pub program: &'a str,
    /// What the session is for.
    pub purpose: &'a str,
    /// Free labels, in the order given.
    #[serde(borrow)]
    pub labels: Vec<(&'a str, &'a str)>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// Its client said so.
    Closed,
    /// The leader heard nothing from its client for a full lease.
    Expired,
    /// An operator revoked it (or one of its holds) and it didn't give way for a full lease.
    Revoked,
    /// An operator ended it at once.
    Forced,
    /// The machine of an embedded node was booted anew: no client of the earlier boot lives.
    Rebooted,
}

/// A command read from the log's bytes, and how many of them it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The command.
    pub command: Command<'a>,
    /// The bytes behind it.
    pub rest: &'a [u8],
}

impl<'a> Command<'a> {
    /// How many subtrees applying it counts, each in time linear in its znodes: dear, if they are
    /// many.
    #[must_use]
    pub fn counts_subtrees(&self) -> usize {
        match self {
            Self::Tree { ops, .. } => ops.iter().filter(|op| op.counts_subtree()).count(),
            _ => 0,
        }
    }

    /// Appends the command's encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let buffer = std::mem::take(out);
        *out = postcard::to_extend(self, buffer).expect("a command has an encoding");
    }

    /// Reads one command from the front of `bytes`.
    ///
    /// # Errors
    ///
    /// `None` if the bytes are no command: for a committed entry that is a fault of this node.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Decoded<'a>> {
        let (command, rest) = postcard::take_from_bytes(bytes).ok()?;
        Some(Decoded { command, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKind;

    #[test]
    fn what_counts_subtrees_is_known_before_it_is_done() {
        let create = |path, sequential| TreeOp::Create {
            path,
            data: None,
            acl: Vec::new(),
            kind: NodeKind::Persistent,
            sequential,
        };
        let stats = "/zookeeper/quota/a/zookeeper_stats";
        let ops = vec![
            create(stats, false),
            create(stats, true),
            create("/zookeeper/quota/zookeeper_stats", false),
            create("/zookeeper/quota/a/zookeeper_limits", false),
            create("/a/zookeeper_stats", false),
            TreeOp::SetData { path: stats, data: None, version: -1 },
            TreeOp::Delete { path: stats, version: -1 },
            create("/zookeeper/quota/a/b/zookeeper_stats", false),
        ];
        let session = SessionId(1);
        let tree =
            Command::Tree { session, connection: 0, ids: Vec::new(), enforce_quota: false, ops };
        assert_eq!(tree.counts_subtrees(), 2);
        assert_eq!(Command::EndSilence.counts_subtrees(), 0);
    }
}
