//! Sorted containers in little code. The standard library's trees and sorts are compiled anew for each type, 3 to 9 KB of the Worker's wasm
//! each; these take a few hundred bytes.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::mem;

use serde::{Serialize, Serializer};

/// A map sorted by key, kept as a list. For up to a few thousand entries, since an insertion moves all later ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K: Ord, V> SortedMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(self.find(key).ok()?).map(|(_, value)| value)
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let index = self.find(key).ok()?;
        self.0.get_mut(index).map(|(_, value)| value)
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Returns the key's previous value.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(index) => self.0.get_mut(index).map(|(_, before)| mem::replace(before, value)),
            Err(index) => {
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// Returns the key's previous value.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|index| self.0.remove(index).1)
    }

    /// Changes the key's value, inserting the default if it had none.
    pub(crate) fn change<T>(&mut self, key: K, change: impl FnOnce(&mut V) -> T) -> T
    where
        V: Default,
    {
        let index = self.find(&key).unwrap_or_else(|index| {
            self.0.insert(index, (key, V::default()));
            index
        });
        match self.0.get_mut(index) {
            Some((_, value)) => change(value),
            None => change(&mut V::default()), // unreachable
        }
    }

    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| is_kept(key, value));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    #[cfg(feature = "service")]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut map = Self::new();
        for (key, value) in all {
            map.insert(key, value);
        }
        map
    }
}

impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// Sorts by `order`, which should be total: the sort is not stable. Heapsort: `n log n` steps at worst, in place.
pub(crate) fn sort_by<T>(items: &mut [T], order: impl Fn(&T, &T) -> Ordering) {
    for root in (0..items.len() / 2).rev() {
        sift_down(items, root, &order);
    }
    for last in (1..items.len()).rev() {
        items.swap(0, last);
        if let Some(rest) = items.get_mut(..last) {
            sift_down(rest, 0, &order);
        }
    }
}

/// Sinks the item at `root` below larger ones.
fn sift_down<T>(items: &mut [T], mut root: usize, order: &impl Fn(&T, &T) -> Ordering) {
    loop {
        let left = root.saturating_mul(2).saturating_add(1);
        let right = left.saturating_add(1);
        let Some(mut largest) = items.get(left) else { return };
        let mut child = left;
        if let Some(other) = items.get(right)
            && order(other, largest).is_gt()
        {
            (largest, child) = (other, right);
        }
        if items.get(root).is_none_or(|item| order(item, largest).is_ge()) {
            return;
        }
        items.swap(root, child);
        root = child;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::chance::config(256))]

        #[test]
        fn it_sorts_like_the_standard_library(mut items in prop::collection::vec((0..20_u8, any::<u16>()), 0..200)) {
            let mut sorted = items.clone();
            sorted.sort_unstable();
            sort_by(&mut items, Ord::cmp);
            prop_assert_eq!(items, sorted);
        }

        #[test]
        fn a_map_matches_a_btree_map(acts in prop::collection::vec((0..5_u8, "[a-c]{0,2}", any::<u16>()), 0..100)) {
            let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
            for (act, key, value) in acts {
                match act {
                    0 | 1 => prop_assert_eq!(map.insert(key.clone(), value), tree.insert(key.clone(), value)),
                    2 => prop_assert_eq!(map.remove(&key), tree.remove(&key)),
                    3 => {
                        map.change(key.clone(), |there: &mut u16| *there ^= value);
                        *tree.entry(key.clone()).or_default() ^= value;
                    }
                    _ => {
                        map.retain(|key, there| !key.is_empty() && *there > value);
                        tree.retain(|key, there| !key.is_empty() && *there > value);
                    }
                }
                prop_assert_eq!((map.get(&*key), map.contains_key(&*key)), (tree.get(&key), tree.contains_key(&key)));
                prop_assert_eq!(map.get_mut(&*key), tree.get_mut(&key));
                prop_assert!(map.iter().eq(tree.iter()) && map.keys().eq(tree.keys()) && map.values().eq(tree.values()));
                prop_assert_eq!((map.len(), map.is_empty()), (tree.len(), tree.is_empty()));
                prop_assert_eq!(serde_json::to_string(&map).unwrap(), serde_json::to_string(&tree).unwrap());
                prop_assert_eq!(tree.clone().into_iter().rev().collect::<SortedMap<_, _>>(), map.clone());
            }
        }
    }
}
