//! Where a znode is.
//!
//! The map of the tree is ordered by two hashes, of the parent's path and of the name, and only
//! those that share both by the paths themselves: numbers that lie in the key say almost always
//! where to go, where a path would have to be fetched first. So the children of a znode lie
//! together, in no order that means anything; among them lie those of other znodes whose paths
//! share the hash, if somebody found such. The root is the one znode with an empty name; its
//! children's parent is written as the empty path.

use std::cmp::Ordering;
use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::ensemble::ENSEMBLE_PATH;
use super::terms::TreeError;
use crate::ZNODE_PATH_BYTES_MAX;

/// The root's path.
pub(crate) const ROOT: &str = "/";

/// What can't be deleted.
pub(crate) const FIXED: [&str; 4] = [ROOT, "/zookeeper", "/zookeeper/quota", ENSEMBLE_PATH];

/// A znode's path, and where in it the name begins.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    path: Arc<str>,
    parent_hash: u64,
    name_hash: u32,
    name_at: u32,
}

impl Key {
    /// `None` if there is no slash in it, or it is longer than any.
    pub(crate) fn new(path: Arc<str>) -> Option<Self> {
        let Place { parent_hash, name_hash, parent, .. } = Place::of(&path)?;
        let name_at = u32::try_from(parent.len() + 1).ok()?;
        Some(Self { path, parent_hash, name_hash, name_at })
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    pub(crate) fn name(&self) -> &str {
        &self.path[self.name_at as usize..]
    }

    pub(crate) fn place(&self) -> Place<'_> {
        let name_at = self.name_at as usize;
        Place {
            parent_hash: self.parent_hash,
            name_hash: self.name_hash,
            parent: &self.path[..name_at - 1],
            name: &self.path[name_at..],
        }
    }
}

/// Names are short: a plain look is faster than what searches long texts.
pub(super) fn last_slash(path: &str) -> Option<usize> {
    path.bytes().rposition(|byte| byte == b'/')
}

/// What parents are ordered by. It is the same on all replicas. Paths that were made up to share it
/// are told apart by comparing them; it takes 64 bits and a good mixture for none to share it by
/// chance.
fn hash(parent: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(parent.as_bytes());
    // Few values, so that families lie among each other in the tests.
    if cfg!(test) { hasher.finish() % 2 } else { hasher.finish() }
}

/// What the children of one parent are ordered by; that of no name is the lowest.
fn name_hash(name: &str) -> u32 {
    crc32c::crc32c(name.as_bytes())
}

/// A place in the order of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place<'a> {
    parent_hash: u64,
    name_hash: u32,
    /// Its path; empty for the root.
    pub(crate) parent: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> Place<'a> {
    /// `None` if there is no slash in the path: then there is no such znode.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        let slash = last_slash(path)?;
        Some(Self::in_family(&path[..slash], &path[slash + 1..]))
    }

    fn in_family(parent: &'a str, name: &'a str) -> Self {
        Self { parent_hash: hash(parent), name_hash: name_hash(name), parent, name }
    }

    /// The place of the znode above; that of the root is its own.
    pub(crate) fn above(self) -> Option<Self> {
        if self.parent.is_empty() { Self::of(ROOT) } else { Self::of(self.parent) }
    }

    /// Before the first child of the znode at `path`, and of any other with its hash.
    pub(crate) fn before_children(path: &'a str) -> Self {
        Self::in_family(if path == ROOT { "" } else { path }, "")
    }

    pub(crate) fn is_root(self) -> bool {
        self.parent.is_empty() && self.name.is_empty()
    }

    /// How a key lies to this place.
    pub(crate) fn order(self) -> impl Fn(&Key) -> Ordering {
        move |key| {
            let by_hash = key.parent_hash.cmp(&self.parent_hash);
            by_hash.then(key.name_hash.cmp(&self.name_hash)).then_with(|| {
                let Place { parent, name, .. } = key.place();
                (parent, name).cmp(&(self.parent, self.name))
            })
        }
    }

    /// How the parent of a key lies to that of this place, where keys are ordered by nothing else
    /// before it.
    pub(crate) fn order_of_parent(self, key: &Key) -> Ordering {
        let by_hash = key.parent_hash.cmp(&self.parent_hash);
        by_hash.then_with(|| key.place().parent.cmp(self.parent))
    }

    /// Whether a key lies where this place's siblings do: what other families lie there as well, is
    /// left open.
    pub(crate) fn is_near(self, key: &Key) -> bool {
        key.parent_hash == self.parent_hash
    }
}

/// The path of the znode above; `None` above the root.
pub(crate) fn parent(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some(ROOT),
        (parent, _) => Some(parent),
    }
}

/// Whether `path` can be that of a znode, by the rules of ZooKeeper.
///
/// # Errors
///
/// [`TreeError::BadArguments`].
pub fn check_znode_path(path: &str) -> Result<(), TreeError> {
    let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
    let is_plain = |path: &str| path.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let is_sound = path.len() <= ZNODE_PATH_BYTES_MAX
        && (is_plain(path) || !path.chars().any(is_forbidden))
        && (path == ROOT
            || path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_segment)));
    if is_sound { Ok(()) } else { Err(TreeError::BadArguments) }
}

/// Control characters, and what ZooKeeper's UTF-16 takes for surrogates, private or special.
fn is_forbidden(letter: char) -> bool {
    matches!(letter,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_zookeeper_has_them() {
        for sound in ["/", "/a", "/a/b", "/...", "/a.", "/.a", "/ ", "/ä", "/\u{ffef}", "/a:b"] {
            assert_eq!(check_znode_path(sound), Ok(()), "{sound:?}");
        }
        let long = format!("/{}", "x".repeat(ZNODE_PATH_BYTES_MAX));
        for unsound in [
            "",
            "a",
            "a/b",
            "//",
            "/a/",
            "/a//b",
            "//a",
            "/.",
            "/..",
            "/a/./b",
            "/a/../b",
            "/\0",
            "/\x1f",
            "/\x7f",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{f8ff}",
            "/\u{fff0}",
            "/😀",
            &long,
        ] {
            assert_eq!(check_znode_path(unsound), Err(TreeError::BadArguments), "{unsound:?}");
        }
    }

    #[test]
    fn a_parent_and_its_children_know_each_other() {
        let paths = ["/", "/a", "/a-", "/a.b", "/b", "/a/x", "/a/y", "/a-/x", "/a/x/0"];
        let mut places: Vec<_> = paths.iter().map(|path| Place::of(path).unwrap()).collect();
        places.sort();
        for place in &places {
            let above = places.iter().filter(|other| Some(**other) == place.above()).count();
            assert_eq!(above, 1);
        }
        let start = Place::before_children("/a");
        let keys = places.iter().filter(|place| place.parent == "/a");
        for place in keys.clone() {
            assert!(start < *place && start.parent_hash == place.parent_hash);
        }
        assert_eq!(keys.count(), 2);
        assert_eq!(parent("/a/b"), Some("/a"));
        assert_eq!(parent("/a"), Some("/"));
        assert_eq!(parent("/"), None);
        for path in paths {
            let key = Key::new(path.into()).unwrap();
            assert_eq!(key.place(), Place::of(path).unwrap());
            assert!(key.place().order()(&key).is_eq());
        }
    }
}
