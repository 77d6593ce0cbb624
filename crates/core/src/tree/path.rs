//! Where a znode is.
//!
//! The map of the tree is ordered by the parent and then by the name, so that the children of a
//! znode are neighbours. Parents are ordered by a hash of their paths, and those that share one by
//! the paths: a number that lies in the key itself says most often where to go, where a path would
//! have to be fetched first. The root is the one znode with an empty name; its children's parent is
//! written as the empty path.

use std::cmp::Ordering;
use std::sync::Arc;

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
    name_at: u32,
    /// Of the path of the parent.
    hash: u32,
}

impl Key {
    /// `None` if there is no slash in it, or it is longer than any.
    pub(crate) fn new(path: Arc<str>) -> Option<Self> {
        let slash = last_slash(&path)?;
        let hash = hash(&path[..slash]);
        Some(Self { name_at: u32::try_from(slash + 1).ok()?, hash, path })
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    pub(crate) fn name(&self) -> &str {
        &self.path[self.name_at as usize..]
    }

    pub(crate) fn place(&self) -> Place<'_> {
        let name_at = self.name_at as usize;
        let (parent, name) = (&self.path[..name_at - 1], &self.path[name_at..]);
        Place { hash: self.hash, parent, name }
    }
}

/// Names are short: a plain look is faster than what searches long texts.
fn last_slash(path: &str) -> Option<usize> {
    path.bytes().rposition(|byte| byte == b'/')
}

/// What parents are ordered by. It is the same on all replicas, and for ever: what order things
/// happen in when a session ends depends on it. Paths that were made up to share it are told apart
/// by comparing them, as all would be without it.
fn hash(parent: &str) -> u32 {
    crc32c::crc32c(parent.as_bytes())
}

/// A place in the order of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place<'a> {
    hash: u32,
    /// Its path; empty for the root.
    pub(crate) parent: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> Place<'a> {
    /// `None` if there is no slash in the path: then there is no such znode.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        let slash = last_slash(path)?;
        let (parent, name) = (&path[..slash], &path[slash + 1..]);
        Some(Self { hash: hash(parent), parent, name })
    }

    /// The place of the znode above; that of the root is its own.
    pub(crate) fn above(self) -> Option<Self> {
        if self.parent.is_empty() { Self::of(ROOT) } else { Self::of(self.parent) }
    }

    /// Before the first child of the znode at `path`.
    pub(crate) fn before_children(path: &'a str) -> Self {
        let parent = if path == ROOT { "" } else { path };
        Self { hash: hash(parent), parent, name: "" }
    }

    pub(crate) fn is_root(self) -> bool {
        self.parent.is_empty() && self.name.is_empty()
    }

    /// How a key lies to this place.
    pub(crate) fn order(self) -> impl Fn(&Key) -> Ordering {
        move |key| {
            self.order_of_parent(key).then_with(|| {
                let name = &key.path.as_bytes()[key.name_at as usize..];
                name.cmp(self.name.as_bytes())
            })
        }
    }

    /// How the parent of a key lies to that of this place.
    pub(crate) fn order_of_parent(self, key: &Key) -> Ordering {
        key.hash.cmp(&self.hash).then_with(|| {
            let parent = &key.path.as_bytes()[..key.name_at as usize - 1];
            parent.cmp(self.parent.as_bytes())
        })
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
    let is_sound = path.len() <= ZNODE_PATH_BYTES_MAX
        && !path.chars().any(is_forbidden)
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
    fn children_are_neighbours() {
        let paths = ["/", "/a", "/a-", "/a.b", "/b", "/a/x", "/a/y", "/a-/x", "/a/x/0"];
        let mut places: Vec<_> = paths.iter().map(|path| Place::of(path).unwrap()).collect();
        places.sort();
        for place in &places {
            let above = places.iter().filter(|other| Some(**other) == place.above()).count();
            assert_eq!(above, 1);
        }
        let of_a: Vec<_> = places.iter().map(|place| place.parent == "/a").collect();
        assert_eq!(of_a.iter().skip_while(|of| !**of).take_while(|of| **of).count(), 2);
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
