//! An ordered map in copy-on-write shards: cloning it freezes it.
//!
//! A clone shares every shard with its original. The first write to a shard after that copies this
//! one shard, without the values in it, and the one value that is written; the clone stays as it
//! was. So a thread can walk a frozen state for as long as it likes while commands go on being
//! applied, and none of them pays for more than a shard.
//!
//! The shard of a key is a fixed function of the key. Nothing that shows depends on the order of
//! insertion, the machine, or the run.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, btree_map};
use std::ops::Bound;
use std::sync::Arc;

use crate::{LockName, SessionId};

/// A map of `N` shards (a power of two).
#[derive(Clone, Debug)]
pub(crate) struct Shards<K, V, const N: usize> {
    shards: Vec<Arc<BTreeMap<K, Arc<V>>>>,
    len: usize,
}

impl<K: ShardKey, V: Clone, const N: usize> Shards<K, V, N> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &K::Lookup) -> Option<&V> {
        self.shards[Self::index(key)].get(key).map(|value| &**value)
    }

    /// Also returns the key as it is stored, for sharing.
    pub(crate) fn get_key_value(&self, key: &K::Lookup) -> Option<(&K, &V)> {
        let found = self.shards[Self::index(key)].get_key_value(key);
        found.map(|(key, value)| (key, &**value))
    }

    /// The value of `key`, to be changed: copies it, and its shard, if a clone still shares them.
    pub(crate) fn get_mut(&mut self, key: &K::Lookup) -> Option<&mut V> {
        let shard = Arc::make_mut(&mut self.shards[Self::index(key)]);
        shard.get_mut(key).map(Arc::make_mut)
    }

    /// The value of `key`, to be changed; the default one if there was none.
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let shard = Arc::make_mut(&mut self.shards[Self::index(key.borrow())]);
        Arc::make_mut(shard.entry(key).or_insert_with(|| {
            self.len += 1;
            Arc::default()
        }))
    }

    /// Puts `value` at `key`. Whether there was none before; otherwise it is replaced.
    pub(crate) fn insert(&mut self, key: K, value: V) -> bool {
        let shard = Arc::make_mut(&mut self.shards[Self::index(key.borrow())]);
        let is_new = shard.insert(key, Arc::new(value)).is_none();
        self.len += usize::from(is_new);
        is_new
    }

    /// Takes `key` out. Its value may still be shared with a clone.
    pub(crate) fn remove(&mut self, key: &K::Lookup) -> Option<Arc<V>> {
        let old = Arc::make_mut(&mut self.shards[Self::index(key)]).remove(key);
        self.len -= usize::from(old.is_some());
        old
    }

    /// Everything, shard by shard: always in the same order, but not in that of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter().map(|(key, value)| (key, &**value)))
    }

    /// Everything from `start` on, in the order of the keys.
    ///
    /// Costs one search in each shard to begin with, and after that the logarithm of `N` for each
    /// item taken: asking for a page doesn't walk the map.
    pub(crate) fn iter_from(&self, start: Bound<&K::Lookup>) -> Ordered<'_, K, V> {
        let mut tails: Vec<_> = self
            .shards
            .iter()
            .filter(|shard| !shard.is_empty())
            .map(|shard| shard.range((start, Bound::Unbounded)))
            .collect();
        let heads = tails
            .iter_mut()
            .enumerate()
            .filter_map(|(index, tail)| tail.next().map(|(key, value)| Head { key, value, index }))
            .map(Reverse)
            .collect();
        Ordered { heads, tails }
    }

    fn index(key: &K::Lookup) -> usize {
        // The top bits are the best mixed ones of a multiplicative hash.
        (K::spread(key) >> (u64::BITS - N.trailing_zeros())) as usize
    }
}

impl<K, V, const N: usize> Default for Shards<K, V, N> {
    fn default() -> Self {
        const { assert!(N.is_power_of_two() && N > 1, "the shard is taken from bits of a hash") }
        // All shards are one empty map until they are written.
        Self { shards: vec![Arc::default(); N], len: 0 }
    }
}

/// A key that knows how to spread over shards.
pub(crate) trait ShardKey: Ord + Clone + Borrow<Self::Lookup> {
    /// The borrowed form of the key.
    type Lookup: Ord + ?Sized;

    /// A hash of which the top bits are used. The same on every machine. Snapshots are written in
    /// the order that it makes, but read in any: it may change with a version.
    fn spread(key: &Self::Lookup) -> u64;
}

impl ShardKey for LockName {
    type Lookup = str;

    /// FNV-1a over eight bytes at a time, and a last multiplication.
    ///
    /// Whoever chooses names to meet in one shard gets one larger ordered map, not a list.
    fn spread(name: &str) -> u64 {
        let mut chunks = name.as_bytes().chunks_exact(8);
        let mut hash = FNV_OFFSET ^ name.len() as u64;
        for chunk in &mut chunks {
            let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight bytes"));
            hash = mix(hash ^ word);
        }
        for &byte in chunks.remainder() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        mix(hash)
    }
}

impl ShardKey for SessionId {
    type Lookup = Self;

    fn spread(id: &Self) -> u64 {
        mix(id.0)
    }
}

/// What is left of a map, in the order of its keys: a merge of the shards' tails.
pub(crate) struct Ordered<'a, K, V> {
    heads: BinaryHeap<Reverse<Head<'a, K, V>>>,
    tails: Vec<btree_map::Range<'a, K, Arc<V>>>,
}

impl<'a, K: Ord, V> Iterator for Ordered<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse(Head { key, value, index }) = self.heads.pop()?;
        if let Some((key, value)) = self.tails[index].next() {
            self.heads.push(Reverse(Head { key, value, index }));
        }
        Some((key, &**value))
    }
}

/// The next item of one shard. Ordered by key alone: no two shards have the same.
struct Head<'a, K, V> {
    key: &'a K,
    value: &'a Arc<V>,
    index: usize,
}

impl<K: Ord, V> Ord for Head<'_, K, V> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(other.key)
    }
}

impl<K: Ord, V> PartialOrd for Head<'_, K, V> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Ord, V> PartialEq for Head<'_, K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<K: Ord, V> Eq for Head<'_, K, V> {}

/// Spreads every bit of `hash` into the top ones (the multiplier is 2^64 over the golden ratio).
fn mix(hash: u64) -> u64 {
    let product = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ (product >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
