//! Where each entry of a shard is, by the hash of its key. The standard map would need the key itself, a second time.

/// A table with linear probing: an entry's slot is its home or a later one, and no slot from its home to there is free. A slot has a part
/// of the hash, so that other entries are seldom looked at, and none is hashed again.
#[derive(Default)]
pub(super) struct Index {
    /// Their number is 0 or a power of two. At least half are free, so that most entries are at home: a processor predicts that.
    slots: Vec<Slot>,
    /// The number of entries.
    len: usize,
}

#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    /// The position of the entry, or [`NONE`].
    entry: u32,
}

impl Index {
    /// The position of the entry that has this hash and `is_wanted`.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        self.slot(hash, is_wanted).map(|at| self.slots[at].entry as usize)
    }

    /// Adds an entry. There must be fewer than [`MAX_ENTRIES`].
    pub(super) fn insert(&mut self, hash: u64, entry: usize) {
        if self.len >= self.slots.len() / 2 {
            self.grow();
        }
        self.len += 1;
        self.place(Slot { hash: low(hash), entry: low(entry as u64) });
    }

    /// The entry with this hash is at `to` from now on.
    pub(super) fn renumber(&mut self, hash: u64, from: usize, to: usize) {
        if let Some(at) = self.slot(hash, |entry| entry == from) {
            self.slots[at].entry = low(to as u64);
        }
    }

    pub(super) fn remove(&mut self, hash: u64, entry: usize) {
        let Some(mut hole) = self.slot(hash, |one| one == entry) else { return };
        self.len -= 1;
        let mut at = hole;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot.entry == NONE {
                break;
            }
            // An entry that has passed the hole on the way from its home moves there.
            if self.distance(self.home(slot.hash), at) >= self.distance(hole, at) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = FREE;
    }

    #[inline]
    fn slot(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = low(hash);
        let mut at = self.home(hash);
        loop {
            let slot = self.slots.get(at)?; // none before the first entry
            if slot.entry == NONE {
                return None;
            }
            if slot.hash == hash && is_wanted(slot.entry as usize) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    fn place(&mut self, slot: Slot) {
        let mut at = self.home(slot.hash);
        while self.slots[at].entry != NONE {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    #[cold]
    fn grow(&mut self) {
        let twice = (2 * self.slots.len()).max(MIN_SLOTS);
        let slots = core::mem::replace(&mut self.slots, vec![FREE; twice]);
        slots.into_iter().filter(|slot| slot.entry != NONE).for_each(|slot| self.place(slot));
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & self.mask()
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & self.mask()
    }

    /// The number of steps from one slot to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & self.mask()
    }

    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn low(number: u64) -> u32 {
    number as u32
}

const NONE: u32 = u32::MAX;
const FREE: Slot = Slot { hash: 0, entry: NONE };

/// Positions fit a slot, and are never [`NONE`].
pub(super) const MAX_ENTRIES: usize = 1 << 31;
const MIN_SLOTS: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::chance::config(1_000))]

        /// Beside a map of each entry's hash: what was added is found, at its place, and nothing else is. Few different hashes, near the
        /// end of the table too, so that entries pass each other's homes and the end.
        #[test]
        fn finds_what_was_added_and_not_removed(
            acts in prop::collection::vec((0_usize..40, 0_u64..6, any::<bool>()), 0..200),
        ) {
            let mut index = Index::default();
            let mut model = BTreeMap::new();
            for (entry, hash, is_renumbered) in acts {
                let hash = hash.wrapping_sub(3);
                match model.remove(&entry) {
                    None => {
                        index.insert(hash, entry);
                        model.insert(entry, hash);
                    }
                    Some(hash) if is_renumbered && !model.contains_key(&(entry + 40)) => {
                        index.renumber(hash, entry, entry + 40);
                        model.insert(entry + 40, hash);
                    }
                    Some(hash) => index.remove(hash, entry),
                }
                for entry in 0..80 {
                    for hash in (0..6_u64).map(|hash| hash.wrapping_sub(3)) {
                        let expected = (model.get(&entry) == Some(&hash)).then_some(entry);
                        prop_assert_eq!(index.find(hash, |one| one == entry), expected);
                    }
                }
                prop_assert_eq!(index.len, model.len());
                let used = index.slots.iter().filter(|slot| slot.entry != NONE).count();
                prop_assert!(used == index.len && 2 * used <= index.slots.len());
            }
        }
    }
}
