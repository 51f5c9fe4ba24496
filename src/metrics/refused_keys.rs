//! The keys refused most, found in bounded memory.
//!
//! This is the summary of Misra and Gries: at most [`CAPACITY`] keys have a counter. If none is free, a new key takes 1 from each of them,
//! and is not counted itself. Space-saving counters are the same numbers plus the smallest of them. In this form a sum of two summaries
//! keeps its bound (Agarwal and others, "Mergeable Summaries", 2012).
//!
//! With `lost` as the number of times 1 was taken from all, the following holds for each key, in any order of additions and merges:
//!
//! ```text
//! count <= true count <= count + lost
//! lost  <= (total - sum of counts) / (CAPACITY + 1)
//! ```
//!
//! So every key with more than `1 / (CAPACITY + 1)` of all refusals is found.

use std::cmp::Ordering;

use crate::policy::FrontendTerms;
use crate::sorted::sort_by;

use crate::sorted::SortedMap;

/// The number of keys with a counter. With 64 the error is below 1.6 % of all refusals of the policy, in 1.5 kilobytes.
pub const CAPACITY: usize = 64;

/// Maximum length of a prefix in bytes: a character has at most 4.
const MAX_PREFIX_LEN: usize = 4 * FrontendTerms::MAX_SHOWN_KEY_PREFIX as usize;

/// Minimum refusals that a decrement of all counters accounts for: one for each counter, and one without.
const TAKEN_AT_ONCE: u64 = CAPACITY as u64 + 1;

/// A summary of refusals by key. A key is a number: its hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedKeys {
    /// Keys and their counts, which are not 0, in no order.
    counts: Vec<(u128, u64)>,
    /// The start of some of these keys.
    prefixes: SortedMap<u128, String>,
    /// Maximum error of any count, which may be too small.
    lost: u64,
    /// The number of refusals.
    total: u64,
}

impl RefusedKeys {
    /// The summary with these numbers; `None` if no sequence of refusals leads to them.
    #[must_use]
    pub fn of(counts: Vec<(u128, u64)>, lost: u64, total: u64) -> Option<Self> {
        let mut keys: Vec<_> = counts.iter().map(|(key, _)| *key).collect();
        sort_by(&mut keys, u128::cmp);
        keys.dedup();
        let is_sound =
            keys.len() == counts.len() && counts.len() <= CAPACITY && counts.iter().all(|&(_, count)| count > 0);
        let sum = counts.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count))?;
        let is_within = lost.checked_mul(TAKEN_AT_ONCE).is_some_and(|all| Some(all) <= total.checked_sub(sum));
        (is_sound && is_within).then_some(Self { counts, prefixes: SortedMap::new(), lost, total })
    }

    /// Sets the shown start of a counted key.
    pub fn set_prefix(&mut self, key: u128, prefix: String) {
        if prefix.len() <= MAX_PREFIX_LEN && self.counts.iter().any(|(other, _)| *other == key) {
            self.prefixes.insert(key, prefix);
        }
    }

    /// The shown start of a key, if known.
    #[must_use]
    pub fn prefix(&self, key: u128) -> Option<&str> {
        self.prefixes.get(&key).map(String::as_str)
    }

    /// Counts a refusal of `key`. `prefix` returns its start, if it may be shown.
    pub fn add(&mut self, key: u128, prefix: impl FnOnce() -> Option<String>) {
        self.total = self.total.saturating_add(1);
        if let Some((_, count)) = self.counts.iter_mut().find(|(other, _)| *other == key) {
            *count = count.saturating_add(1);
        } else if self.counts.len() < CAPACITY {
            self.counts.push((key, 1));
            if let Some(prefix) = prefix() {
                self.set_prefix(key, prefix);
            }
        } else {
            self.take(1);
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for &(key, more) in &other.counts {
            match self.counts.iter_mut().find(|(other, _)| *other == key) {
                Some((_, count)) => *count = count.saturating_add(more),
                None => self.counts.push((key, more)),
            }
        }
        self.lost = self.lost.saturating_add(other.lost);
        self.total = self.total.saturating_add(other.total);
        if self.counts.len() > CAPACITY {
            sort_by(&mut self.counts, most_first);
            if let Some(&(_, largest_without)) = self.counts.get(CAPACITY) {
                self.take(largest_without); // from this one and all larger ones: at least CAPACITY + 1
            }
        }
        for (key, prefix) in other.prefixes.iter() {
            self.set_prefix(*key, prefix.clone());
        }
    }

    /// The keys refused most, in descending order, with the bounds of their true counts.
    #[must_use]
    pub fn top(&self) -> Vec<(u128, u64, u64)> {
        let mut top: Vec<_> = self.counts.clone();
        sort_by(&mut top, most_first);
        top.into_iter().map(|(key, count)| (key, count, count.saturating_add(self.lost))).collect()
    }

    /// Keys and their counts, in no order.
    #[must_use]
    pub fn counts(&self) -> &[(u128, u64)] {
        &self.counts
    }

    /// Maximum error of any count, which may be too small.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The number of refusals.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Subtracts `count` from all counters.
    fn take(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.counts.retain_mut(|(_, left)| {
            *left = left.saturating_sub(count);
            *left > 0
        });
        let counts = &self.counts;
        self.prefixes.retain(|key, _| counts.iter().any(|(other, _)| other == key));
    }
}

fn most_first(a: &(u128, u64), b: &(u128, u64)) -> Ordering {
    b.1.cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_its_capacity_it_is_exact() {
        let mut keys = RefusedKeys::default();
        for key in 0..CAPACITY as u128 {
            (0..=key).for_each(|_| keys.add(key, || Some(format!("key {key}"))));
        }
        assert_eq!((keys.top()[0], keys.lost(), keys.top().len()), ((63, 64, 64), 0, CAPACITY));
        keys.add(1_000, || unreachable!("it has no counter"));
        assert_eq!((keys.top()[0], keys.lost(), keys.top().len()), ((63, 63, 64), 1, CAPACITY - 1));
        assert_eq!((keys.prefix(0), keys.prefix(1), keys.prefixes.len()), (None, Some("key 1"), CAPACITY - 1));
        keys.set_prefix(1_000, "other".to_owned());
        keys.set_prefix(1, "x".repeat(MAX_PREFIX_LEN + 1));
        assert_eq!((keys.prefix(1_000), keys.prefix(1)), (None, Some("key 1")), "of no key, and too long");
        let mut all = RefusedKeys::default();
        all.add(1, || None);
        all.merge(&keys);
        assert_eq!((all.prefix(1), all.prefixes.len()), (Some("key 1"), CAPACITY - 1));
    }

    #[test]
    fn impossible_counts_are_rejected() {
        let of = |counts: &[(u128, u64)], lost, total| RefusedKeys::of(counts.to_vec(), lost, total).is_some();
        assert!(of(&[], 0, 0) && of(&[(1, 2), (2, 1)], 0, 3) && of(&[(1, 2)], 1, 67));
        assert!(!of(&[(1, 2), (1, 1)], 0, 3), "a key twice");
        assert!(!of(&[(1, 0)], 0, 3), "a count of nothing");
        assert!(!of(&[(1, 2)], 0, 1), "more than all");
        assert!(!of(&[(1, 2)], 1, 66), "more lost than can be");
        assert!(!of(&[(1, u64::MAX), (2, 1)], 0, u64::MAX) && !of(&[], u64::MAX, u64::MAX), "more than a number holds");
        let many: Vec<_> = (0..=CAPACITY as u128).map(|key| (key, 1)).collect();
        assert!(RefusedKeys::of(many, 0, 1_000).is_none(), "too many keys");
    }
}
