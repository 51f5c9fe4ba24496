//! A map of bounded size that forgets unused entries.

use std::collections::BTreeMap;

/// Values by key, in two generations of at most [`MAX_BUDGETS`] each. When the young one is full it becomes the old one, and the old one is forgotten; a value that is read
/// becomes young again. So a value stays as long as it is read before a whole generation of others has been added.
///
/// Values are boxed so that the trees of all value types compile to the same code, which the compiler merges.
#[derive(Debug)]
pub(super) struct Generations<K, V> {
    young: BTreeMap<K, Box<V>>,
    old: BTreeMap<K, Box<V>>,
}

/// Maximum values in one generation. Two take about half a megabyte of refusals. Of leases they take about 8 MB with one limit each and 64-bit
/// pointers, 17 MB if each has 16 ended leases to report, and 26 MB with eight limits each; less in WebAssembly.
pub const MAX_BUDGETS: usize = 4_096;

impl<K, V> Default for Generations<K, V> {
    fn default() -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new() }
    }
}

impl<K: Ord + Copy, V> Generations<K, V> {
    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.young.len().saturating_add(self.old.len())
    }

    /// The value, which becomes young.
    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        if let Some(value) = self.old.remove(&key) {
            self.make_young(key, value);
        }
        self.young.get_mut(&key).map(Box::as_mut)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        self.make_young(key, Box::new(value));
    }

    pub(super) fn remove(&mut self, key: K) {
        self.young.remove(&key);
        self.old.remove(&key);
    }

    /// Adds a value that is in neither generation, or replaces a young one.
    fn make_young(&mut self, key: K, value: Box<V>) {
        if self.young.len() >= MAX_BUDGETS && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        insert(&mut self.young, key, value);
    }
}

/// A separate function: inlined into each caller, the tree's code could not be merged.
#[inline(never)]
fn insert<K: Ord, V>(tree: &mut BTreeMap<K, Box<V>>, key: K, value: Box<V>) -> Option<Box<V>> {
    tree.insert(key, value)
}
