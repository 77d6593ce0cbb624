//! Lines: the numbered ephemeral children of a znode, in the order of their numbers.
//!
//! All recipes for locks on ZooKeeper make them: whoever wants the lock creates an ephemeral
//! sequential child, and the lowest is next. What stands in a line, and where lines are, is kept
//! beside the znodes, because children lie in the order of their names, which most recipes begin
//! with something random.

use std::cmp::Ordering;
use std::sync::Arc;

use super::node::Kind;
use super::path::{Key, Place};
use super::{Tree, Znode, path_order};

/// Digits that a sequential znode's name ends in.
const DIGITS: usize = 10;

/// The number that the name of a sequential znode ends in; `None` if it doesn't look like one. A
/// bare UUID doesn't, whatever its digits: members of groups and barriers are called so.
#[must_use]
pub fn sequence_number(path: &str) -> Option<u64> {
    number_in(path.rsplit('/').next()?)
}

fn number_in(name: &str) -> Option<u64> {
    let digits = name.get(name.len().checked_sub(DIGITS)?..)?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit()) && !is_uuid(name);
    is_number.then(|| digits.parse().ok())?
}

/// With its dashes, or without.
fn is_uuid(name: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
    match name.len() {
        32 => is_hex(name),
        36 => name.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && name.split('-').all(is_hex),
        _ => false,
    }
}

/// Lines that have ended stay listed, up to so many: most locks are taken again.
const ENDED_LINES_MAX: usize = 4_096;

/// What a znode knows of its line: how many stand in it, and whether it is among [`Tree::lines`]
/// and among those that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineHead(u32);

/// What has become of a line.
pub(super) enum LineNews {
    Begun,
    Ended,
}

impl LineHead {
    const LISTED: u32 = 1 << 31;
    const ENDED: u32 = 1 << 30;
    const COUNT: u32 = Self::ENDED - 1;

    pub(super) fn join(&mut self, stands: bool) {
        self.0 += u32::from(stands);
    }

    pub(super) fn leave(&mut self, stood: bool) {
        self.0 -= u32::from(stood);
    }

    pub(super) fn len(self) -> usize {
        (self.0 & Self::COUNT) as usize
    }

    pub(super) fn is_listed(self) -> bool {
        self.0 & Self::LISTED != 0
    }

    /// This count, in the lists in which `other` is.
    pub(super) fn listed_as(self, other: Self) -> Self {
        Self(self.0 & Self::COUNT | other.0 & !Self::COUNT)
    }

    /// The count has changed.
    pub(super) fn settle(&mut self) -> Option<LineNews> {
        let is_ended = self.0 & Self::ENDED != 0;
        match (self.len(), self.is_listed()) {
            (1.., false) => {
                self.0 |= Self::LISTED;
                Some(LineNews::Begun)
            }
            (0, true) if !is_ended => {
                self.0 |= Self::ENDED;
                Some(LineNews::Ended)
            }
            _ => None,
        }
    }

    /// It is no longer among those that have ended. True if it is to be listed no more.
    fn forget(&mut self) -> bool {
        self.0 &= !Self::ENDED;
        let goes = self.len() == 0 && self.is_listed();
        if goes {
            self.0 &= !Self::LISTED;
        }
        goes
    }
}

/// Whether a znode of this name stands in its parent's line.
pub(super) fn stands_in_line(name: &str, node: &Znode) -> bool {
    matches!(node.kind, Kind::Ephemeral(_)) && number_in(name).is_some()
}

/// How a key lies to a place: by parent, number and name. Every name that is sought ends in a
/// number, or is empty, and then lies before all others.
pub(super) fn order(sought: Place<'_>) -> impl Fn(&Key) -> Ordering {
    move |key| {
        sought.order_of_parent(key).then_with(|| {
            let name = key.name();
            let by_number = digits(name).cmp(digits(sought.name));
            by_number.then_with(|| name.as_bytes().cmp(sought.name.as_bytes()))
        })
    }
}

fn digits(name: &str) -> &[u8] {
    &name.as_bytes()[name.len().saturating_sub(DIGITS)..]
}

impl Tree {
    /// The znodes that have a line, and how many stand in it, in the order of their paths, from
    /// `from` on.
    pub fn lines(&self, from: &str) -> impl Iterator<Item = (&Arc<str>, usize)> {
        let lines = self.lines.iter_from(path_order(from));
        lines.map(|(path, ())| (path, self.line_len(path))).filter(|(_, len)| *len > 0)
    }

    /// How many stand in the line of the znode at `path`.
    #[must_use]
    pub fn line_len(&self, path: &str) -> usize {
        let node = Place::of(path).and_then(|place| self.at(place));
        node.map_or(0, |node| node.line.len())
    }

    /// The line of the znode at `path`: the paths of those who stand in it, by their numbers.
    pub fn line(&self, path: &str) -> impl Iterator<Item = &Arc<str>> {
        let start = Place::before_children(path);
        let items = self.in_line.iter_from(order(start));
        // An empty path is no other name of the root's.
        let own = items.take(if path.is_empty() { 0 } else { usize::MAX });
        let own = own.take_while(move |(key, ())| key.place().parent == start.parent);
        own.map(|(key, ())| key.path())
    }

    /// A line has begun or ended.
    pub(super) fn follow_line(&mut self, news: Option<(LineNews, Arc<str>)>) {
        match news {
            None => {}
            Some((LineNews::Begun, path)) => {
                self.lines.insert(path.clone(), (), path_order(&path));
            }
            Some((LineNews::Ended, path)) => {
                self.ended_lines.push_back(path);
                if self.ended_lines.len() > ENDED_LINES_MAX {
                    self.forget_line();
                }
            }
        }
    }

    /// The line that ended longest ago is listed no more, if it hasn't begun again.
    fn forget_line(&mut self) {
        let Some(path) = self.ended_lines.pop_front() else { return };
        let Some(place) = Place::of(&path) else { return };
        let Some(node) = self.nodes.get_mut(place.order()) else { return };
        if Arc::make_mut(node).line.forget() {
            self.lines.remove(path_order(&path));
        }
    }

    /// Whether a znode's line knows it, if it is to stand in one.
    pub(super) fn is_in_line(&self, key: &Key, node: &Znode) -> Option<bool> {
        let stands = stands_in_line(key.name(), node);
        stands.then(|| self.in_line.get(order(key.place())).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeAcl, Revision, SessionId, Stamp};

    fn tree_of(paths: &[&str]) -> Tree {
        let mut tree = Tree::default();
        let put = |tree: &mut Tree, path: &str, kind| {
            let node = Znode::new(None, NodeAcl::default(), kind, Revision(1), Stamp(1));
            let key = Key::new(path.into()).unwrap();
            let stands = stands_in_line(key.name(), &node);
            let above = key.clone();
            tree.put(key, Arc::new(node));
            let above = above.place().above().unwrap();
            tree.change(above, |parent| parent.line.join(stands));
        };
        for path in ["/a", "/a-"] {
            put(&mut tree, path, Kind::Persistent);
        }
        for path in paths {
            put(&mut tree, path, Kind::Ephemeral(SessionId(7)));
        }
        tree
    }

    fn line<'a>(tree: &'a Tree, path: &str) -> Vec<&'a str> {
        tree.line(path).map(|path| &**path).collect()
    }

    #[test]
    fn numbers_are_the_servers() {
        assert_eq!(sequence_number("/a/b-0000000012"), Some(12));
        assert_eq!(sequence_number("/0000000000"), Some(0));
        assert_eq!(sequence_number("lock0000000003"), Some(3));
        for path in ["/a", "", "/a/b-00000000a2", "/a/123456789", "/a/ä000000000"] {
            assert_eq!(sequence_number(path), None, "{path}");
        }
        let uuid = "0b13e0a1-4f3d-4e0a-9d52-321234567890";
        assert_eq!(sequence_number(uuid), None);
        assert_eq!(sequence_number(&uuid.replace('-', "")), None);
        assert_eq!(sequence_number(&format!("_c_{uuid}")), Some(1_234_567_890));
    }

    #[test]
    fn a_line_is_in_the_order_of_its_numbers() {
        let mut tree = tree_of(&[
            "/a/z-0000000001",
            "/a/a-0000000003",
            "/a/m-0000000002",
            "/a/b-0000000003",
            "/a/other",
            "/a-/x-0000000000",
            "/y-0000000009",
        ]);
        let of_a = ["/a/z-0000000001", "/a/m-0000000002", "/a/a-0000000003", "/a/b-0000000003"];
        assert_eq!(line(&tree, "/a"), of_a);
        assert_eq!(line(&tree, "/"), ["/y-0000000009"]);
        for none in ["", "/b", "/a/", "/a/other"] {
            assert_eq!(line(&tree, none), [""; 0], "{none}");
        }
        let lines = |tree: &Tree, from: &str| -> Vec<(String, usize)> {
            tree.lines(from).map(|(path, count)| (path.to_string(), count)).collect()
        };
        let all = [("/".to_owned(), 1), ("/a".to_owned(), 4), ("/a-".to_owned(), 1)];
        assert_eq!(lines(&tree, ""), all);
        assert_eq!(lines(&tree, "/a-"), all[2..]);
        for path in of_a {
            let place = Place::of(path).unwrap();
            tree.take(place);
            tree.change(place.above().unwrap(), |parent| parent.line.leave(true));
        }
        assert_eq!((line(&tree, "/a"), tree.line_len("/a")), (vec![], 0));
        assert_eq!(lines(&tree, "/a"), all[2..]);
    }
}
