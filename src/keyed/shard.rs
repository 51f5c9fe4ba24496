//! A part of the keys behind one lock: their states, and when each may be forgotten.

use core::cmp::{Ordering, Reverse};
use core::hash::{BuildHasher, Hash};
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};

use crate::limit::{Limit, MAX_STEP_BACK_MS, State, Verb};

/// Each key is in both, once: `queue.len() == states.len()`.
pub(super) struct Shard<K, const N: usize, S> {
    pub(super) states: HashMap<K, [State; N], S>,
    /// Earliest first.
    queue: BinaryHeap<Reverse<Due<K>>>,
    /// The latest moment seen.
    latest: i64,
}

/// A key, and the moment to check whether it can be forgotten.
struct Due<K> {
    at: i64,
    key: K,
}

impl<K: Hash + Eq, const N: usize, S: BuildHasher> Shard<K, N, S> {
    pub(super) fn new(hasher: S) -> Self {
        Self { states: HashMap::with_hasher(hasher), queue: BinaryHeap::new(), latest: i64::MIN }
    }

    /// The moment that counts: the latest seen, unless the clock stepped back further than a bucket tolerates. Otherwise a thread slightly
    /// behind could find a bucket full that was forgotten at a later moment.
    pub(super) fn advance(&mut self, now: i64, limits: &[Limit; N]) -> i64 {
        if self.latest.saturating_sub(now) <= MAX_STEP_BACK_MS {
            self.latest = self.latest.max(now);
            return self.latest;
        }
        // Every stored moment is from the previous clock, and may be years away. All keys continue from now with their levels.
        let latest = core::mem::replace(&mut self.latest, now);
        let mut queue = core::mem::take(&mut self.queue).into_vec();
        for Reverse(due) in &mut queue {
            due.at = self.states.get_mut(&due.key).map_or(now, |states| {
                *states = core::array::from_fn(|i| {
                    let state = limits[i].refilled(&states[i], latest);
                    limits[i].decide(state, now, 0, Verb::Consume).1
                });
                due_at(limits, states, now)
            });
        }
        self.queue = queue.into();
        now
    }

    /// Forgets keys that are full again, in at most `steps` steps. Returns how many.
    pub(super) fn forget(&mut self, limits: &[Limit; N], now: i64, steps: usize) -> usize {
        let mut forgotten = 0;
        for _ in 0..steps {
            let Some(mut first) = self.queue.peek_mut().filter(|first| first.0.at <= now) else { break };
            let at = self.states.get(&first.0.key).map_or(now, |states| due_at(limits, states, now));
            if at > now {
                first.0.at = at;
            } else {
                let Reverse(Due { key, .. }) = PeekMut::pop(first);
                self.states.remove(&key);
                forgotten += 1;
            }
        }
        forgotten
    }

    /// When to check for a key to forget: exact, or too early if tokens of the first were taken since it was queued.
    pub(super) fn next_due(&self, limits: &[Limit; N], now: i64) -> i64 {
        let states_of = |due: &Reverse<Due<K>>| self.states.get(&due.0.key).map(|states| due_at(limits, states, now));
        self.queue.peek().map_or(i64::MAX, |first| states_of(first).map_or(first.0.at, |at| at.min(first.0.at)))
    }

    pub(super) fn insert(&mut self, key: K, same_key: K, states: [State; N], at: i64) {
        self.states.insert(key, states);
        self.queue.push(Reverse(Due { at, key: same_key }));
    }
}

/// The first moment, `now` or later, from which these states answer everything as new ones would; `i64::MAX` for never.
pub(super) fn due_at<const N: usize>(limits: &[Limit; N], states: &[State; N], now: i64) -> i64 {
    let each = limits.iter().zip(states).map(|(limit, state)| limit.expires_at(state, now).unwrap_or(i64::MAX));
    each.max().unwrap_or(now)
}

impl<K> Ord for Due<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl<K> PartialOrd for Due<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> PartialEq for Due<K> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<K> Eq for Due<K> {}
