//! An ordered map in copy-on-write pages: cloning it freezes it.
//!
//! It is a B+ tree whose pages are shared. A clone is one reference count, however large the map
//! is; the first write to a page after that copies this one page and those above it, without the
//! values, which are expected to be cheap to clone. So a thread can walk a frozen map for as long
//! as it likes, and a run of a hundred thousand neighbouring keys is no dearer than any other.
//!
//! Unlike [`Shards`](crate::shards::Shards), it finds neighbours without asking around, and costs
//! the logarithm of its whole size for each key.
//!
//! A key is looked for by a function that says how a key of the map lies to the one sought, so
//! that nothing need be built to look. Nothing that shows depends on how the pages came about.

use std::cmp::Ordering;
use std::slice;
use std::sync::Arc;

/// Items of a full page. Copying one costs about a microsecond.
const ITEMS_MAX: usize = 64;

/// Where a full page is split whose last item is the newest: what grows at its end fills its pages.
const APPENDED: usize = ITEMS_MAX / 8 * 7;

/// A page with fewer items is joined with a neighbour, if both together leave room.
const ITEMS_FEW: usize = ITEMS_MAX / 4;
const JOINED_MAX: usize = ITEMS_MAX / 4 * 3;

/// A page grows by so many places at a time: most are never full.
const GROWTH: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Pages<K, V> {
    root: Arc<Page<K, V>>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Page<K, V> {
    Leaf(Vec<(K, V)>),
    /// Never empty. The key beside a page is at most its first one, and above all of the page
    /// before; that of the first page has no meaning.
    Branch(Vec<(K, Arc<Self>)>),
}

/// A page, and the key beside it.
type Child<K, V> = (K, Arc<Page<K, V>>);

impl<K, V> Default for Pages<K, V> {
    fn default() -> Self {
        Self { root: Arc::new(Page::Leaf(Vec::new())), len: 0 }
    }
}

impl<K: Clone, V: Clone> Pages<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Also returns the key as it is stored, for sharing.
    pub(crate) fn get(&self, order: impl Fn(&K) -> Ordering) -> Option<(&K, &V)> {
        let mut page = &*self.root;
        loop {
            match page {
                Page::Leaf(items) => {
                    let at = items.binary_search_by(|(key, _)| order(key)).ok()?;
                    return Some((&items[at].0, &items[at].1));
                }
                Page::Branch(children) => page = &children[route(children, &order)].1,
            }
        }
    }

    /// The value of a key, to be changed: copies the pages down to it that a clone still shares.
    pub(crate) fn get_mut(&mut self, order: impl Fn(&K) -> Ordering) -> Option<&mut V> {
        self.entry(order).map(|(_, value)| value)
    }

    /// The same, with the key as it is stored.
    pub(crate) fn entry(&mut self, order: impl Fn(&K) -> Ordering) -> Option<(&K, &mut V)> {
        let mut page = &mut self.root;
        loop {
            match Arc::make_mut(page) {
                Page::Leaf(items) => {
                    let at = items.binary_search_by(|(key, _)| order(key)).ok()?;
                    let (key, value) = &mut items[at];
                    return Some((key, value));
                }
                Page::Branch(children) => {
                    let at = route(children, &order);
                    page = &mut children[at].1;
                }
            }
        }
    }

    /// Puts `value` at `key`, which lies where `order` says. Returns what was there before.
    pub(crate) fn insert(&mut self, key: K, value: V, order: impl Fn(&K) -> Ordering) -> Option<V> {
        let mut split = None;
        let old = insert_into(&mut self.root, (key, value), &order, &mut split);
        if let Some((key, right)) = split {
            let left = Arc::clone(&self.root);
            self.root = Arc::new(Page::Branch(vec![(key.clone(), left), (key, right)]));
        }
        self.len += usize::from(old.is_none());
        old
    }

    /// Takes a key out.
    pub(crate) fn remove(&mut self, order: impl Fn(&K) -> Ordering) -> Option<(K, V)> {
        let removed = remove_from(&mut self.root, &order)?;
        self.len -= 1;
        while let Page::Branch(children) = &*self.root
            && let [(_, only)] = &children[..]
        {
            self.root = Arc::clone(only);
        }
        Some(removed)
    }

    /// Everything, in order.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        self.iter_from(|_| Ordering::Greater)
    }

    /// Everything from the first key on that is not below the one sought, in order.
    pub(crate) fn iter_from(&self, order: impl Fn(&K) -> Ordering) -> Iter<'_, K, V> {
        let mut above = Vec::new();
        let mut page = &*self.root;
        loop {
            match page {
                Page::Leaf(items) => {
                    let start = items.partition_point(|(key, _)| order(key) == Ordering::Less);
                    return Iter { leaf: items[start..].iter(), above };
                }
                Page::Branch(children) => {
                    let at = route(children, &order);
                    above.push(children[at + 1..].iter());
                    page = &children[at].1;
                }
            }
        }
    }
}

impl<K, V> Page<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(items) => items.len(),
            Self::Branch(children) => children.len(),
        }
    }

    /// Whether there is no item in it, nor below.
    fn is_void(&self) -> bool {
        match self {
            Self::Leaf(items) => items.is_empty(),
            Self::Branch(children) => matches!(&children[..], [(_, only)] if only.is_void()),
        }
    }
}

/// In which child the key that is sought lies, if it is there.
fn route<K, V>(children: &[Child<K, V>], order: &impl Fn(&K) -> Ordering) -> usize {
    children[1..].partition_point(|(key, _)| order(key) != Ordering::Greater)
}

fn insert_into<K: Clone, V: Clone>(
    page: &mut Arc<Page<K, V>>,
    item: (K, V),
    order: &impl Fn(&K) -> Ordering,
    split: &mut Option<Child<K, V>>,
) -> Option<V> {
    match Arc::make_mut(page) {
        Page::Leaf(items) => match items.binary_search_by(|(key, _)| order(key)) {
            Ok(at) => Some(std::mem::replace(&mut items[at].1, item.1)),
            Err(at) => {
                if let Some(right) = place(items, at, item) {
                    let key = right[0].0.clone();
                    *split = Some((key, Arc::new(Page::Leaf(right))));
                }
                None
            }
        },
        Page::Branch(children) => {
            let at = route(children, order);
            let old = insert_into(&mut children[at].1, item, order, split);
            if let Some(child) = split.take()
                && let Some(right) = place(children, at + 1, child)
            {
                let key = right[0].0.clone();
                *split = Some((key, Arc::new(Page::Branch(right))));
            }
            old
        }
    }
}

/// Puts `item` at its place; if there is no room for it, what lies to the right is returned.
fn place<T>(items: &mut Vec<T>, at: usize, item: T) -> Option<Vec<T>> {
    if items.len() < ITEMS_MAX {
        if items.len() == items.capacity() {
            items.reserve_exact(GROWTH);
        }
        items.insert(at, item);
        return None;
    }
    let middle = if at == items.len() { APPENDED } else { ITEMS_MAX / 2 };
    let mut right = Vec::with_capacity(ITEMS_MAX - middle + GROWTH);
    right.extend(items.drain(middle..));
    if at <= middle && middle < APPENDED {
        items.insert(at, item);
    } else {
        right.insert(at - middle, item);
    }
    items.shrink_to(items.len() + GROWTH);
    Some(right)
}

fn remove_from<K: Clone, V: Clone>(
    page: &mut Arc<Page<K, V>>,
    order: &impl Fn(&K) -> Ordering,
) -> Option<(K, V)> {
    match Arc::make_mut(page) {
        Page::Leaf(items) => {
            let at = items.binary_search_by(|(key, _)| order(key)).ok()?;
            Some(items.remove(at))
        }
        Page::Branch(children) => {
            let at = route(children, order);
            let removed = remove_from(&mut children[at].1, order)?;
            mend(children, at);
            Some(removed)
        }
    }
}

/// Something was taken out of a child: drops it if it is empty, joins it if little is left.
fn mend<K: Clone, V: Clone>(children: &mut Vec<Child<K, V>>, at: usize) {
    if children[at].1.len() >= ITEMS_FEW || children.len() == 1 {
        return;
    }
    if children[at].1.is_void() {
        children.remove(at);
        return;
    }
    let left = at.saturating_sub(1);
    if children[left].1.len() + children[left + 1].1.len() > JOINED_MAX {
        return;
    }
    let (key, right) = children.remove(left + 1);
    match (Arc::make_mut(&mut children[left].1), Arc::unwrap_or_clone(right)) {
        (Page::Leaf(left), Page::Leaf(right)) => left.extend(right),
        (Page::Branch(left), Page::Branch(mut right)) => {
            // As a first child's it had no meaning.
            right[0].0 = key;
            left.extend(right);
        }
        _ => unreachable!("neighbours lie at one depth"),
    }
}

/// What is left of a map, in order.
pub(crate) struct Iter<'a, K, V> {
    leaf: slice::Iter<'a, (K, V)>,
    above: Vec<slice::Iter<'a, Child<K, V>>>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.above.last_mut()?.next() {
                None => drop(self.above.pop()),
                Some((_, page)) => match &**page {
                    Page::Leaf(items) => self.leaf = items.iter(),
                    Page::Branch(children) => self.above.push(children.iter()),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn order(sought: u32) -> impl Fn(&u32) -> Ordering {
        move |key| key.cmp(&sought)
    }

    fn check(pages: &Pages<u32, u32>, twin: &BTreeMap<u32, u32>) {
        assert_eq!(pages.len(), twin.len());
        assert!(pages.iter().eq(twin));
        check_page(&pages.root, true);
    }

    fn check_page(page: &Page<u32, u32>, is_root: bool) -> usize {
        assert!(page.len() <= ITEMS_MAX);
        match page {
            Page::Leaf(items) => {
                assert!(is_root || !items.is_empty(), "an empty leaf is kept");
                1
            }
            Page::Branch(children) => {
                let depths = children.iter().map(|(_, child)| check_page(child, false));
                let depths: Vec<_> = depths.collect();
                assert!(depths.iter().all(|depth| *depth == depths[0]));
                depths[0] + 1
            }
        }
    }

    /// Growing and shrinking in every manner, beside a map that is known to be right, with a
    /// frozen clone that must not move.
    #[test]
    fn it_does_what_an_ordered_map_does() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            u32::try_from((seed >> 33) % below).unwrap()
        };
        let (mut pages, mut twin) = (Pages::default(), BTreeMap::new());
        let mut frozen = (pages.clone(), twin.clone());
        for round in 0..60_u32 {
            for step in 0..700_u32 {
                let key = match round % 4 {
                    0 => round * 1_000 + step,
                    1 => 100_000 - round * 1_000 - step,
                    _ => random(60_000),
                };
                // A few rounds grow, then a few shrink.
                if round / 6 % 2 == 0 || step % 3 == 0 {
                    assert_eq!(pages.insert(key, step, order(key)), twin.insert(key, step));
                } else {
                    let near = twin.range(key..).next().map_or(key, |(near, _)| *near);
                    let removed = pages.remove(order(near));
                    assert_eq!(removed.map(|(_, value)| value), twin.remove(&near));
                }
            }
            check(&pages, &twin);
            check(&frozen.0, &frozen.1);
            frozen = (pages.clone(), twin.clone());
            for _ in 0..50 {
                let key = random(100_000);
                assert_eq!(pages.get(order(key)), twin.get_key_value(&key));
                if let Some(value) = pages.get_mut(order(key)) {
                    *value += 1;
                    *twin.get_mut(&key).unwrap() += 1;
                }
                let from = pages.iter_from(order(key)).take(80);
                assert!(from.eq(twin.range(key..).take(80)));
            }
        }
        let keys: Vec<u32> = twin.keys().copied().collect();
        for key in keys {
            assert!(pages.remove(order(key)).is_some());
        }
        check(&pages, &BTreeMap::new());
        assert!(matches!(*pages.root, Page::Leaf(_)), "an empty map is one page");
        check(&frozen.0, &frozen.1);
    }

    #[test]
    fn what_grows_at_its_end_fills_its_pages() {
        let mut pages = Pages::default();
        for key in 0..10_000 {
            pages.insert(key, key, order(key));
        }
        fn leaves(page: &Page<u32, u32>) -> usize {
            match page {
                Page::Leaf(_) => 1,
                Page::Branch(children) => children.iter().map(|(_, child)| leaves(child)).sum(),
            }
        }
        assert!(leaves(&pages.root) <= 10_000 / APPENDED + 1);
    }
}
