//! Where each entry of a shard is, by the hash of its key. The standard map would need the key itself, a second time.

/// A table with linear probing: an entry's slot is its home or a later one, and no slot from its home to there is free. A slot has a part
/// of the hash, so that other entries are seldom looked at. The rest is not kept: `hash_of` an entry is asked again when the table grows or
/// an entry leaves.
#[derive(Default)]
pub(super) struct Index {
    /// Each is [`FREE`], or the position of an entry below [`TAG_BITS`] of its hash. Their number is 0 or a power of two. At least half are free,
    /// so that most entries are at home: a processor predicts that.
    slots: Vec<u32>,
    /// The number of entries.
    len: usize,
}

impl Index {
    /// The position of the entry that has this hash and `is_wanted`.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        self.slot(hash, is_wanted).map(|at| entry_of(self.slots[at]))
    }

    /// Adds an entry. Its position must be below [`MAX_ENTRIES`].
    pub(super) fn insert(&mut self, hash: u64, entry: usize, hash_of: impl Fn(usize) -> u64) {
        if self.len >= self.slots.len() / 2 {
            self.grow(hash_of);
        }
        self.len += 1;
        self.place(hash, slot_of(hash, entry));
    }

    /// The entry with this hash is at `to` from now on.
    pub(super) fn renumber(&mut self, hash: u64, from: usize, to: usize) {
        if let Some(at) = self.slot(hash, |entry| entry == from) {
            self.slots[at] = slot_of(hash, to);
        }
    }

    pub(super) fn remove(&mut self, hash: u64, entry: usize, hash_of: impl Fn(usize) -> u64) {
        let Some(mut hole) = self.slot(hash, |one| one == entry) else { return };
        // All first: a key whose `Hash` panics leaves nothing half done.
        self.rest_of_run(hole).for_each(|at| _ = hash_of(entry_of(self.slots[at])));
        self.len -= 1;
        let mut at = self.after(hole);
        while self.slots[at] != FREE {
            let slot = self.slots[at];
            // An entry that has passed the hole on the way from its home moves there.
            if self.distance(self.home(hash_of(entry_of(slot))), at) >= self.distance(hole, at) {
                self.slots[hole] = slot;
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = FREE;
    }

    /// The slots after this one, up to a free one.
    fn rest_of_run(&self, at: usize) -> impl Iterator<Item = usize> {
        let is_used = |at: &usize| self.slots[*at] != FREE;
        core::iter::successors(Some(self.after(at)).filter(is_used), move |at| Some(self.after(*at)).filter(is_used))
    }

    #[inline]
    fn slot(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let tag = tag_of(hash);
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?; // none before the first entry
            // No entry is at the position that a free slot would have.
            if slot & TAG == tag && is_wanted(entry_of(slot)) {
                return Some(at);
            }
            if slot == FREE {
                return None;
            }
            at = self.after(at);
        }
    }

    fn place(&mut self, hash: u64, slot: u32) {
        let mut at = self.home(hash);
        while self.slots[at] != FREE {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    #[cold]
    fn grow(&mut self, hash_of: impl Fn(usize) -> u64) {
        let slots = vec![FREE; (2 * self.slots.len()).max(MIN_SLOTS)];
        let mut grown = Self { slots, len: self.len };
        for &slot in self.slots.iter().filter(|slot| **slot != FREE) {
            grown.place(hash_of(entry_of(slot)), slot);
        }
        *self = grown;
    }

    fn home(&self, hash: u64) -> usize {
        low(hash) as usize & self.mask()
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

fn slot_of(hash: u64, entry: usize) -> u32 {
    tag_of(hash) | low(entry as u64)
}

const fn entry_of(slot: u32) -> usize {
    (slot & !TAG) as usize
}

/// The home is in the lower half of the hash.
const fn tag_of(hash: u64) -> u32 {
    low(hash >> 32) << (u32::BITS - TAG_BITS)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn low(number: u64) -> u32 {
    number as u32
}

/// Enough that few other entries are looked at, where most are at home.
const TAG_BITS: u32 = 4;
const TAG: u32 = u32::MAX << (u32::BITS - TAG_BITS);
const FREE: u32 = u32::MAX;

/// How many entries a table may have: no slot of one is [`FREE`].
pub(super) const MAX_ENTRIES: usize = !TAG as usize;
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
            let mut model: BTreeMap<usize, u64> = BTreeMap::new();
            for (entry, hash, is_renumbered) in acts {
                let hash = hash.wrapping_sub(3);
                let hashes = model.clone();
                let hash_of = |entry: usize| hashes[&entry];
                match model.remove(&entry) {
                    None => {
                        index.insert(hash, entry, hash_of);
                        model.insert(entry, hash);
                    }
                    Some(hash) if is_renumbered && !model.contains_key(&(entry + 40)) => {
                        index.renumber(hash, entry, entry + 40);
                        model.insert(entry + 40, hash);
                    }
                    Some(hash) => index.remove(hash, entry, hash_of),
                }
                for entry in 0..80 {
                    for hash in (0..6_u64).map(|hash| hash.wrapping_sub(3)) {
                        let expected = (model.get(&entry) == Some(&hash)).then_some(entry);
                        // Equal keys have equal hashes.
                        let is_wanted = |one| one == entry && model.get(&one) == Some(&hash);
                        prop_assert_eq!(index.find(hash, is_wanted), expected);
                    }
                }
                prop_assert_eq!(index.len, model.len());
                let used = index.slots.iter().filter(|slot| **slot != FREE).count();
                prop_assert!(used == index.len && 2 * used <= index.slots.len());
            }
        }
    }
}
