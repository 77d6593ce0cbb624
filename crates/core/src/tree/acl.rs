//! Who may do what with a znode.
//!
//! An access list only allows; nothing in it denies, and nothing is inherited. Whether somebody is
//! who they say is decided before: here come the ids that a connection has proved.

use std::net::IpAddr;
use std::sync::Arc;

use super::terms::{AclRef, IdRef, TreeError};
use crate::ZNODE_ACL_BYTES_MAX;

/// The bits of [`AclRef::perms`].
pub mod perms {
    /// See the data and the names of the children.
    pub const READ: i32 = 1;
    /// Set the data.
    pub const WRITE: i32 = 2;
    /// Make children.
    pub const CREATE: i32 = 4;
    /// Remove children.
    pub const DELETE: i32 = 8;
    /// Set the access list.
    pub const ADMIN: i32 = 16;
    /// All of it.
    pub const ALL: i32 = 31;
}

/// A znode's access list. Cloning it is cheap; the default one lets anyone do everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAcl(
    /// `None` for [`OPEN`], as nearly all are.
    Option<Arc<Vec<Entry>>>,
);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    perms: i32,
    scheme: Box<str>,
    id: Box<str>,
}

const OPEN: AclRef<'_> = AclRef { perms: perms::ALL, id: IdRef { scheme: "world", id: "anyone" } };

/// What an entry counts besides its texts, towards [`ZNODE_ACL_BYTES_MAX`].
const ENTRY_BYTES: usize = 16;

impl NodeAcl {
    /// Keeps a list; shares that of `like` if it is the same.
    ///
    /// # Errors
    ///
    /// [`TreeError::InvalidAcl`] if it is empty or too long.
    pub(crate) fn new(list: &[AclRef<'_>], like: &Self) -> Result<Self, TreeError> {
        if list.is_empty() || bytes(list.iter().copied()) > ZNODE_ACL_BYTES_MAX {
            return Err(TreeError::InvalidAcl);
        }
        if list == [OPEN] {
            return Ok(Self(None));
        }
        if like.iter().eq(list.iter().copied()) {
            return Ok(like.clone());
        }
        let own = |entry: &AclRef<'_>| Entry {
            perms: entry.perms,
            scheme: entry.id.scheme.into(),
            id: entry.id.id.into(),
        };
        Ok(Self(Some(Arc::new(list.iter().map(own).collect()))))
    }

    /// Anyone may read, and nobody write.
    pub(crate) fn read_only() -> Self {
        let list = [AclRef { perms: perms::READ, ..OPEN }];
        Self::new(&list, &Self::default()).expect("a list of one is sound")
    }

    /// Whether it lets anyone do everything, and says nothing else.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// The entries, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = AclRef<'_>> {
        let list = self.0.iter().flat_map(|list| list.iter());
        let own = list.map(|entry| AclRef {
            perms: entry.perms,
            id: IdRef { scheme: &entry.scheme, id: &entry.id },
        });
        self.is_open().then_some(OPEN).into_iter().chain(own)
    }

    /// Whether somebody with these ids may do (one of) `perms`. An id of the scheme `super` may
    /// everything.
    #[must_use]
    pub fn allows(&self, ids: &[IdRef<'_>], perms: i32) -> bool {
        let Some(list) = &self.0 else { return true };
        ids.iter().any(|id| id.scheme == "super")
            || list.iter().any(|entry| entry.perms & perms != 0 && entry.is_for(ids))
    }
}

impl Entry {
    fn is_for(&self, ids: &[IdRef<'_>]) -> bool {
        match &*self.scheme {
            "world" => &*self.id == "anyone",
            "ip" => ids.iter().any(|id| id.scheme == "ip" && is_of_network(id.id, &self.id)),
            _ => ids.iter().any(|id| id.scheme == &*self.scheme && id.id == &*self.id),
        }
    }
}

/// Whether an address lies in a network written as `address` or `address/bits`.
fn is_of_network(address: &str, network: &str) -> bool {
    let (base, bits) = match network.split_once('/') {
        Some((base, bits)) => (base, bits.parse().ok()),
        None => (network, Some(128)),
    };
    let (Ok(address), Ok(base), Some(bits)) = (address.parse(), base.parse(), bits) else {
        return false;
    };
    let differing = match (address, base) {
        (IpAddr::V4(address), IpAddr::V4(base)) => {
            u128::from(u32::from(address) ^ u32::from(base)) << 96
        }
        (IpAddr::V6(address), IpAddr::V6(base)) => u128::from(address) ^ u128::from(base),
        _ => return false,
    };
    differing.leading_zeros() >= bits.min(128) || differing == 0
}

/// How long a list is, by the measure of [`ZNODE_ACL_BYTES_MAX`].
pub(crate) fn bytes<'a>(list: impl Iterator<Item = AclRef<'a>>) -> usize {
    list.map(|entry| entry.id.scheme.len() + entry.id.id.len() + ENTRY_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(list: &[(i32, &'static str, &'static str)]) -> NodeAcl {
        let entry = |&(perms, scheme, id)| AclRef { perms, id: IdRef { scheme, id } };
        let list: Vec<_> = list.iter().map(entry).collect();
        NodeAcl::new(&list, &NodeAcl::default()).unwrap()
    }

    const JO: IdRef<'_> = IdRef { scheme: "digest", id: "jo:hash" };

    fn ip(id: &str) -> IdRef<'_> {
        IdRef { scheme: "ip", id }
    }

    #[test]
    fn an_entry_allows_and_nothing_denies() {
        let list = acl(&[(perms::READ, "world", "anyone"), (perms::WRITE, "digest", "jo:hash")]);
        assert!(list.allows(&[], perms::READ));
        assert!(!list.allows(&[], perms::WRITE));
        assert!(list.allows(&[ip("1.2.3.4"), JO], perms::WRITE));
        assert!(!list.allows(&[IdRef { scheme: "sasl", ..JO }], perms::WRITE), "another scheme");
        assert!(list.allows(&[IdRef { scheme: "super", id: "" }], perms::ADMIN));
        assert!(list.allows(&[], perms::READ | perms::ADMIN), "one of them is enough");
    }

    #[test]
    fn addresses_lie_in_networks() {
        for (network, address, lies) in [
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.1.0.0/16", "10.1.255.4", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.1.0.0/0", "99.0.0.1", true),
            ("10.1.0.0/33", "10.1.0.0", true),
            ("10.1.0.0/x", "10.1.0.0", false),
            ("fe80::/10", "fe80::1", true),
            ("fe80::/10", "10.1.0.0", false),
            ("::/0", "1::1", true),
        ] {
            let list = acl(&[(perms::ALL, "ip", network)]);
            assert_eq!(list.allows(&[ip(address)], perms::READ), lies, "{address} in {network}");
        }
    }

    #[test]
    fn the_open_list_and_that_of_the_parent_take_no_room() {
        assert!(acl(&[(31, "world", "anyone")]).is_open());
        let parent = acl(&[(31, "digest", "jo:hash")]);
        let child = NodeAcl::new(&parent.iter().collect::<Vec<_>>(), &parent).unwrap();
        assert!(Arc::ptr_eq(parent.0.as_ref().unwrap(), child.0.as_ref().unwrap()));
        let none = NodeAcl::new(&[], &parent);
        assert_eq!(none, Err(TreeError::InvalidAcl));
    }
}
