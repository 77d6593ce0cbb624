//! Long lists of children, encoded once.
//!
//! A lock with thousands of waiters is a znode with as many children, and each of them asks for
//! the whole list whenever it is woken. The list is kept as it is sent, and mended by the changes
//! that the hub is told of, so that a reply costs a copy and not a walk through the tree. One that
//! is very long is kept only until it changes, and one that nobody reads only until it has changed
//! for some time: a session's end takes thousands of children at once, and would else move what is
//! behind each of them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use lockkeeper_core::{NodeChange, StateMachine};
use parking_lot::Mutex;

use super::hub::parent;
use crate::limits::{
    LISTING_CHILDREN_MIN, LISTING_MENDED_BYTES_MAX, LISTING_UNREAD_CHANGES_MAX, LISTINGS_BYTES_MAX,
};

/// The kept lists of one server.
#[derive(Default)]
pub(super) struct Listings {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    lists: HashMap<Arc<str>, Listing>,
    bytes: usize,
    /// Counts uses, to know the list that was not used for longest.
    clock: u64,
}

/// The children of one znode, each with its length before it; in order, if it can be mended.
struct Listing {
    names: Vec<u8>,
    count: usize,
    /// The change of the children that it shows.
    pzxid: i64,
    used: u64,
    /// Changes since it was read.
    unread_changes: usize,
}

impl Listings {
    /// Appends the children of a znode that is there as a vector of strings.
    pub(super) fn write(&self, path: &str, pzxid: i64, state: &StateMachine, out: &mut BytesMut) {
        let kept = &mut *self.kept.lock();
        kept.clock += 1;
        let clock = kept.clock;
        if let Some(listing) = kept.lists.get_mut(path).filter(|listing| listing.pzxid == pzxid) {
            listing.used = clock;
            listing.unread_changes = 0;
            return listing.write(out);
        }
        let listing = Listing::of(path, pzxid, clock, state);
        listing.write(out);
        if listing.count >= LISTING_CHILDREN_MIN {
            kept.keep(path, listing);
        }
    }

    /// A znode has changed: the list that it is in is mended.
    pub(super) fn follow(&self, path: &str, change: NodeChange, zxid: i64) {
        if change == NodeChange::DataChanged {
            return;
        }
        let kept = &mut *self.kept.lock();
        if kept.lists.is_empty() {
            return;
        }
        if change == NodeChange::Deleted {
            kept.remove(path);
        }
        let Some(above) = parent(path) else { return };
        let Some(listing) = kept.lists.get_mut(above) else { return };
        let before = listing.names.len();
        listing.unread_changes += 1;
        if before > LISTING_MENDED_BYTES_MAX || listing.unread_changes > LISTING_UNREAD_CHANGES_MAX
        {
            return kept.remove(above);
        }
        let name = path.rsplit('/').next().unwrap_or("");
        let is_mended = match change {
            NodeChange::Created => listing.insert(name),
            NodeChange::Deleted | NodeChange::DataChanged => listing.remove(name),
        };
        listing.pzxid = zxid;
        let after = listing.names.len();
        kept.bytes = kept.bytes + after - before;
        if !is_mended || after == 0 {
            kept.remove(above);
        }
    }

    /// The state was replaced.
    pub(super) fn forget(&self) {
        let kept = &mut *self.kept.lock();
        kept.lists = HashMap::new();
        kept.bytes = 0;
    }
}

impl Kept {
    fn keep(&mut self, path: &str, listing: Listing) {
        self.remove(path);
        if listing.names.len() > LISTINGS_BYTES_MAX {
            return;
        }
        self.bytes += listing.names.len();
        self.lists.insert(Arc::from(path), listing);
        while self.bytes > LISTINGS_BYTES_MAX {
            let oldest = self.lists.iter().min_by_key(|(_, listing)| listing.used);
            let Some(oldest) = oldest.map(|(path, _)| Arc::clone(path)) else { return };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, path: &str) {
        if let Some(listing) = self.lists.remove(path) {
            self.bytes -= listing.names.len();
        }
    }
}

impl Listing {
    fn of(path: &str, pzxid: i64, used: u64, state: &StateMachine) -> Self {
        let mut children: Vec<&str> = state.tree().children(path).collect();
        let bytes = children.iter().map(|name| 4 + name.len()).sum();
        if bytes <= LISTING_MENDED_BYTES_MAX {
            children.sort_unstable();
        }
        let mut names = Vec::with_capacity(bytes);
        for name in &children {
            names.put_slice(&length(name));
            names.put_slice(name.as_bytes());
        }
        Self { names, count: children.len(), pzxid, used, unread_changes: 0 }
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i32(i32::try_from(self.count).unwrap_or(i32::MAX));
        out.put_slice(&self.names);
    }

    /// Where `name` is, or belongs: a walk over lengths, which is fast.
    fn find(&self, name: &str) -> Result<usize, usize> {
        let mut at = 0;
        while let Some((length, rest)) = self.names[at..].split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            match rest[..length].cmp(name.as_bytes()) {
                std::cmp::Ordering::Less => at += 4 + length,
                std::cmp::Ordering::Equal => return Ok(at),
                std::cmp::Ordering::Greater => return Err(at),
            }
        }
        Err(at)
    }

    /// False if it is there already.
    fn insert(&mut self, name: &str) -> bool {
        let Err(at) = self.find(name) else { return false };
        self.names.splice(at..at, length(name).into_iter().chain(name.bytes()));
        self.count += 1;
        true
    }

    /// False if it isn't there.
    fn remove(&mut self, name: &str) -> bool {
        let Ok(at) = self.find(name) else { return false };
        self.names.drain(at..at + 4 + name.len());
        self.count -= 1;
        true
    }
}

fn length(name: &str) -> [u8; 4] {
    u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Listing {
        Listing { names: Vec::new(), count: 0, pzxid: 1, used: 1, unread_changes: 0 }
    }

    #[test]
    fn a_list_that_nobody_reads_is_not_mended_for_ever() {
        let listings = Listings::default();
        listings.kept.lock().keep("/", empty());
        let is_kept = || listings.kept.lock().lists.contains_key("/");
        let change = |number: usize| {
            listings.follow(&format!("/{number}"), NodeChange::Created, 1);
        };
        (0..LISTING_UNREAD_CHANGES_MAX).for_each(change);
        assert!(is_kept());
        listings.write("/", 1, &StateMachine::default(), &mut BytesMut::new());
        (LISTING_UNREAD_CHANGES_MAX..2 * LISTING_UNREAD_CHANGES_MAX).for_each(change);
        assert!(is_kept(), "reading it makes it worth mending");
        change(usize::MAX);
        assert!(!is_kept());
        assert_eq!(listings.kept.lock().bytes, 0);
    }

    #[test]
    fn a_change_pays_for_no_list_that_is_very_long() {
        let listings = Listings::default();
        let list = |path: &str, bytes| {
            let listing = Listing { names: vec![0; bytes], count: bytes / 4, ..empty() };
            listings.kept.lock().keep(path, listing);
        };
        list("/short", 400);
        list("/long", LISTING_MENDED_BYTES_MAX + 4);
        for path in ["/short/child", "/long/child"] {
            listings.follow(path, NodeChange::Created, 2);
        }
        let kept = listings.kept.lock();
        let paths: Vec<_> = kept.lists.iter().map(|(path, list)| (&**path, list.pzxid)).collect();
        assert_eq!((paths, kept.bytes), (vec![("/short", 2)], 400 + 4 + 5));
    }

    #[test]
    fn a_list_is_mended_in_order() {
        let mut listing = empty();
        for name in ["m", "a", "z", "ab", "b"] {
            assert!(listing.insert(name));
            assert!(!listing.insert(name));
        }
        assert!(listing.remove("b"));
        assert!(!listing.remove("b"));
        let mut encoded = BytesMut::new();
        listing.write(&mut encoded);
        assert_eq!(&encoded[..], b"\0\0\0\x04\0\0\0\x01a\0\0\0\x02ab\0\0\0\x01m\0\0\0\x01z");
    }
}
