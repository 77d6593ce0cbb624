//! One znode.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::acl::NodeAcl;
use super::line::LineHead;
use super::terms::{NodeKind, Stat};
use crate::{Revision, SessionId, Stamp};

/// A znode. There may be millions: it is to stay within 128 bytes with its allocation.
#[derive(Clone, Debug)]
pub(crate) struct Znode {
    /// `None`: null.
    pub(crate) data: Option<Arc<[u8]>>,
    pub(crate) acl: NodeAcl,
    pub(crate) kind: Kind,
    pub(crate) czxid: Revision,
    pub(crate) mzxid: Revision,
    pub(crate) pzxid: Revision,
    pub(crate) ctime: Stamp,
    pub(crate) mtime: Stamp,
    /// How many children were ever made: the next sequential number.
    pub(crate) created: u64,
    pub(crate) child_count: u32,
    /// Of its children.
    pub(crate) line: LineHead,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
}

/// A [`NodeKind`], with the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Persistent,
    Ephemeral(SessionId),
    Container,
    Ttl { ms: u64 },
}

impl Kind {
    pub(crate) fn of(kind: NodeKind, session: SessionId) -> Self {
        match kind {
            NodeKind::Persistent => Self::Persistent,
            NodeKind::Ephemeral => Self::Ephemeral(session),
            NodeKind::Container => Self::Container,
            NodeKind::Ttl { ms } => Self::Ttl { ms },
        }
    }
}

impl Znode {
    /// One that is there from the beginning.
    pub(crate) fn fixed() -> Self {
        let (zxid, at) = (Revision::default(), Stamp::default());
        Self::new(Some(&[]), NodeAcl::default(), Kind::Persistent, zxid, at)
    }

    pub(crate) fn new(
        data: Option<&[u8]>,
        acl: NodeAcl,
        kind: Kind,
        zxid: Revision,
        at: Stamp,
    ) -> Self {
        Self {
            data: data.map(Into::into),
            acl,
            kind,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: at,
            mtime: at,
            created: 0,
            child_count: 0,
            line: LineHead::default(),
            version: 0,
            aversion: 0,
        }
    }

    pub(crate) fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.len())
    }

    /// The session that it goes with.
    pub(crate) fn owner(&self) -> Option<SessionId> {
        match self.kind {
            Kind::Ephemeral(session) => Some(session),
            Kind::Persistent | Kind::Container | Kind::Ttl { .. } => None,
        }
    }

    /// Whether it has outlived its use: nobody need have asked.
    pub(crate) fn is_collectable(&self, now: Stamp) -> bool {
        self.child_count == 0
            && match self.kind {
                Kind::Persistent | Kind::Ephemeral(_) => false,
                // One that never had a child is waiting for its first.
                Kind::Container => self.created > 0,
                Kind::Ttl { ms } => now.0.saturating_sub(self.mtime.0) > ms,
            }
    }

    #[expect(
        clippy::cast_possible_wrap,
        clippy::cast_possible_truncation,
        reason = "as clients do"
    )]
    pub(crate) fn stat(&self) -> Stat {
        // Every child that is gone was made, so this counts what was made and what was removed.
        // It wraps, as all of a client's counters do.
        let cversion = self.created.wrapping_mul(2).wrapping_sub(self.child_count.into()) as i32;
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion,
            aversion: self.aversion,
            ephemeral_owner: self.owner(),
            data_length: self.data_len() as i32,
            num_children: self.child_count as i32,
            pzxid: self.pzxid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_znode_is_small() {
        assert!(size_of::<Znode>() + 2 * size_of::<usize>() <= 120);
    }

    /// Nobody lives to see it, but then nothing breaks.
    #[test]
    fn counters_wrap() {
        let mut node = Znode::fixed();
        node.child_count = 1;
        assert_eq!(node.stat().cversion, -1, "the root of a new cluster");
        node.created = 1 << 30;
        assert_eq!(node.stat().cversion, i32::MAX);
        node.created += 1;
        assert_eq!(node.stat().cversion, i32::MIN + 1);
    }
}
