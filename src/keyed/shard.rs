//! A part of the keys behind one lock: their states, and from when on some may be forgotten.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::index::Index;
use super::rules::{Budget, Moments, OwnBudget, Rules, no_moments};
use crate::limit::{MAX_STEP_BACK_MS, State};

/// `due[i]` is at most each moment that is [`Rules::due_at`] of an entry in the block `entries[i * BLOCK..][..BLOCK]`, and `room_at` is at most each
/// of `due`.
pub(super) struct Shard<K, const N: usize> {
    entries: Vec<Entry<K, N>>,
    /// Those of each entry; none at all without rolling windows.
    moments: Vec<Moments<N>>,
    index: Index,
    due: Vec<i64>,
    room_at: i64,
    /// The block to look at next.
    hand: usize,
    /// The latest moment seen.
    latest: i64,
}

struct Entry<K, const N: usize> {
    key: K,
    states: [State; N],
}

/// How many keys were forgotten. Subtracted on drop, so that a panic in another key's `Hash` or `Drop` leaks no room.
struct Forgotten<'a> {
    len: &'a AtomicUsize,
    count: usize,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.len.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

impl<K: Hash + Eq, const N: usize> Shard<K, N> {
    pub(super) fn new() -> Self {
        let (entries, moments, index, due) = (Vec::new(), Vec::new(), Index::default(), Vec::new());
        Self { entries, moments, index, due, room_at: i64::MAX, hand: 0, latest: i64::MIN }
    }

    /// The moment that counts: the latest seen, unless the clock stepped back further than a bucket tolerates. Otherwise a thread slightly
    /// behind could find a bucket full that was forgotten at a later moment.
    #[inline]
    pub(super) fn advance(&mut self, now: i64, rules: &Rules<N>) -> i64 {
        if now > self.latest {
            self.latest = now;
        } else if self.latest.saturating_sub(now) > MAX_STEP_BACK_MS {
            self.step_back(now, rules);
        }
        self.latest
    }

    /// Every stored moment is from the previous clock, and may be years away. All keys continue from now with their levels.
    #[cold]
    fn step_back(&mut self, now: i64, rules: &Rules<N>) {
        let latest = core::mem::replace(&mut self.latest, now);
        for (at, Entry { states, .. }) in self.entries.iter_mut().enumerate() {
            let moments = self.moments.get_mut(at);
            rules.step_back(&mut Budget { states, moments }, latest, now);
        }
        let due = |at: usize| rules.due_at(&self.entries[at].states, self.moments.get(at), now);
        let blocks = (0..self.entries.len()).step_by(BLOCK);
        let first_due = |from: usize| (from..self.entries.len().min(from + BLOCK)).map(due).min();
        self.due = blocks.filter_map(first_due).collect();
        self.room_at = self.first_due();
    }

    /// The moment that would count, if a decision were made at `now`; this budget becomes what it would be then.
    pub(super) fn moment(&self, now: i64, rules: &Rules<N>, budget: &mut OwnBudget<N>) -> i64 {
        if self.latest.saturating_sub(now) > MAX_STEP_BACK_MS {
            rules.step_back(&mut budget.view(), self.latest, now);
            return now;
        }
        now.max(self.latest)
    }

    /// The first moment, `now` or later, at which some key may be forgotten, if none takes anything until then.
    pub(super) fn room_at(&self, rules: &Rules<N>, now: i64) -> i64 {
        let has_stepped_back = self.latest.saturating_sub(now) > MAX_STEP_BACK_MS;
        let mut room_at = i64::MAX;
        for (from, &first_due) in (0..self.entries.len()).step_by(BLOCK).zip(&self.due) {
            if first_due > now.max(self.latest) && !has_stepped_back {
                room_at = room_at.min(first_due);
                continue;
            }
            for at in from..self.entries.len().min(from + BLOCK) {
                let Some(mut budget) = self.own_budget(at) else { continue };
                let moment = self.moment(now, rules, &mut budget);
                let due = rules.due_at(&budget.states, Some(&budget.moments), moment);
                if due <= moment {
                    return now;
                }
                room_at = room_at.min(due);
            }
        }
        room_at
    }

    /// Notes that tokens were given back to `key`, which has this hash: it may be forgotten sooner.
    pub(super) fn give_back<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q, rules: &Rules<N>)
    where
        K: Borrow<Q>,
    {
        let Some(at) = self.position(hash, key) else { return };
        if let (Some(entry), Some(first_due)) = (self.entries.get(at), self.due.get_mut(at / BLOCK)) {
            *first_due = rules.due_at(&entry.states, self.moments.get(at), self.latest).min(*first_due);
            self.room_at = self.room_at.min(*first_due);
        }
    }

    /// A copy of the budget of `key`, which has this hash.
    pub(super) fn copy<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<OwnBudget<N>>
    where
        K: Borrow<Q>,
    {
        self.own_budget(self.position(hash, key)?)
    }

    fn own_budget(&self, at: usize) -> Option<OwnBudget<N>> {
        let states = self.entries.get(at)?.states;
        Some(OwnBudget { states, moments: self.moments.get(at).cloned().unwrap_or_else(no_moments) })
    }

    /// The budget of `key`, which has this hash.
    #[inline]
    pub(super) fn budget<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<Budget<'_, N>>
    where
        K: Borrow<Q>,
    {
        let at = self.position(hash, key)?;
        let states = &mut self.entries.get_mut(at)?.states;
        Some(Budget { states, moments: self.moments.get_mut(at) })
    }

    #[inline]
    fn position<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.index.find(hash, |at| self.entries.get(at).is_some_and(|entry| entry.key.borrow() == key))
    }

    /// Adds a key that has no entry, and may be forgotten at `due`.
    pub(super) fn insert(
        &mut self,
        (hash, key): (u64, K),
        budget: OwnBudget<N>,
        due: i64,
        rules: &Rules<N>,
        hasher: &impl BuildHasher,
    ) {
        let Self { entries, index, .. } = self;
        index.insert(hash, entries.len(), |at| hasher.hash_one(&entries[at].key));
        match self.due.get_mut(self.entries.len() / BLOCK) {
            Some(first_due) => *first_due = due.min(*first_due),
            None => self.due.push(due),
        }
        self.room_at = self.room_at.min(due);
        if self.entries.len() == self.entries.capacity() {
            // By a quarter: by default half of the memory might be unused.
            self.entries.reserve_exact(self.entries.len() / 4 + 4);
        }
        self.entries.push(Entry { key, states: budget.states });
        if rules.have_windows() {
            self.moments.push(budget.moments);
        }
    }

    /// Forgets keys that are full again, or returns the moment at which one may be. `len` counts those of all shards.
    pub(super) fn make_room(
        &mut self,
        rules: &Rules<N>,
        now: i64,
        hasher: &impl BuildHasher,
        len: &AtomicUsize,
    ) -> Result<(), i64> {
        if self.room_at <= now {
            for _ in 0..self.due.len() {
                if self.forget_some(rules, now, hasher, len) {
                    return Ok(());
                }
            }
            self.room_at = self.first_due();
        }
        Err(self.room_at)
    }

    /// Forgets keys of the next block that are full again, if any: at most [`STEPS`]. Returns whether there were any.
    pub(super) fn forget_some(
        &mut self,
        rules: &Rules<N>,
        now: i64,
        hasher: &impl BuildHasher,
        len: &AtomicUsize,
    ) -> bool {
        if self.hand >= self.due.len() {
            self.hand = 0;
        }
        let mut forgotten = Forgotten { len, count: 0 };
        if self.due.get(self.hand).is_some_and(|&due| due <= now) {
            let mut first_due = i64::MAX;
            let mut at = self.hand * BLOCK;
            let end = at + BLOCK;
            while at < end.min(self.entries.len()) {
                let due = rules.due_at(&self.entries[at].states, self.moments.get(at), now);
                if due > now {
                    first_due = due.min(first_due);
                    at += 1;
                } else if forgotten.count == STEPS {
                    return true; // the next call continues with this block
                } else {
                    let _removed = self.remove(at, hasher);
                    forgotten.count += 1;
                }
            }
            if let Some(due) = self.due.get_mut(self.hand) {
                *due = first_due;
            }
        }
        self.hand += 1;
        forgotten.count > 0
    }

    /// Removes an entry; the last one takes its place.
    fn remove(&mut self, at: usize, hasher: &impl BuildHasher) -> Entry<K, N> {
        let Self { entries, index, .. } = self;
        let last = entries.len() - 1;
        let hash_of = |at: usize| hasher.hash_one(&entries[at].key);
        // Both first: a panic in a key's `Hash` leaves nothing half done.
        let [hash, hash_of_last] = [at, last].map(hash_of);
        index.remove(hash, at, hash_of);
        index.renumber(hash_of_last, last, at);
        let removed = self.entries.swap_remove(at);
        if at < self.moments.len() {
            self.moments.swap_remove(at);
        }
        self.due.truncate(self.entries.len().div_ceil(BLOCK));
        removed
    }

    fn first_due(&self) -> i64 {
        self.due.iter().copied().min().unwrap_or(i64::MAX)
    }
}

/// Larger blocks take longer to look through, smaller ones are more to look for in a full table.
const BLOCK: usize = 32;

/// More than the one key that a decision may add, so that forgetting keeps up.
const STEPS: usize = 3;
