//! One version of a policy in place of several, so that a timeline stays short.
//!
//! A bucket that was last asked before all of them, or under one of them, can no longer go through each. It goes through the weakest
//! version instead: no bucket fares better under that than under those that it stands for. So it has no more than if each had
//! been remembered. What it may lose is what came back faster than at the slowest of them, and what was above the smallest
//! capacity. A full bucket stays full.
//!
//! Which are merged: first neighbours where it makes no difference, because their numbers are the same, or the second begins each bucket
//! anew, or all buckets of both were full before a later change. Then those over which buckets came in one way, where the time of
//! both is short beside the time since: the longer ago, the coarser. Only if none of these are left are changes with different
//! `carry` merged. Then a bucket keeps its share of the capacity over all of them, so that it neither owes what was never taken nor has
//! less for having done nothing.

use std::cmp::Ordering;

use super::timeline::{Timeline, Version};
use crate::limit::{Carry, Config, Limit};

/// The numbers of limits, by name.
type Limits = [(Option<String>, Limit)];

impl Timeline {
    /// The same with at most [`Timeline::MAX_EARLIER`] earlier versions.
    pub(super) fn bounded(self) -> Self {
        self.bounded_to(Self::MAX_EARLIER)
    }

    fn bounded_to(mut self, max: usize) -> Self {
        if self.earlier.len() > max {
            // They are not dropped: a key with an override may still need them.
            for _ in 1..self.settled() {
                self.merge(0);
            }
        }
        while self.earlier.len() > max
            && let Some(index) = self.cheapest()
        {
            self.merge(index);
        }
        self
    }

    /// The version that is best merged with the next.
    fn cheapest(&self) -> Option<usize> {
        let price = |(index, three): (usize, &[Version])| {
            let [first, second, next] = three else { return None };
            let coarseness = Coarseness::of(first.since, next.since, self.since());
            Some((Merger::of(first, second, next, index == 0).loss, coarseness, index))
        };
        self.earlier.windows(3).enumerate().filter_map(price).min().map(|(_, _, index)| index)
    }

    /// Puts one version in the place of this and the next.
    fn merge(&mut self, index: usize) {
        let Some([first, second, next, ..]) = self.earlier.get_mut(index..) else { return };
        let Merger { before, within, after, .. } = Merger::of(first, second, next, index == 0);
        if second.begins_anew(first) {
            self.earlier.remove(index);
            return;
        }
        next.carry = after;
        *second = Version {
            since: first.since,
            carry: before,
            limits: weakest(&first.limits, &second.after_reset(), within.unwrap_or_default()),
            // Each shard goes on with its part: all of them together have no more than one bucket.
            shards: first.shards.max(second.shards),
            merged: within,
        };
        if second.shards > 1 {
            for (_, limit) in &mut second.limits {
                // What shards cannot have.
                *limit = Limit::new(&Config { max_debt: 0, initial: None, ..*limit.config() }).unwrap_or(*limit);
            }
        }
        self.earlier.remove(index);
    }
}

impl Version {
    /// Whether the numbers are those of the version before, and buckets go on.
    fn is_unchanged_from(&self, before: &Self) -> bool {
        self.limits == before.limits && self.shards == before.shards && self.carry != Carry::Reset
    }

    /// Whether it begins every bucket of the version before anew.
    fn begins_anew(&self, before: &Self) -> bool {
        self.carry == Carry::Reset && before.limits.iter().all(|limit| find(&self.limits, limit).is_some())
    }

    /// Its limits, which hold no more than a bucket has after a reset, if it began with one.
    fn after_reset(&self) -> Vec<(Option<String>, Limit)> {
        let start = |limit: &Limit| {
            let Config { capacity, initial, .. } = *limit.config();
            let capacity = if self.carry == Carry::Reset { initial.unwrap_or(capacity) } else { capacity };
            Limit::new(&Config { capacity, ..*limit.config() }).unwrap_or(*limit)
        };
        self.limits.iter().map(|(name, limit)| (name.clone(), start(limit))).collect()
    }
}

/// How two neighbours are merged.
struct Merger {
    /// How buckets come over to both.
    before: Carry,
    /// How they came from one to the next of those for which the two stand; `None` if it is one.
    within: Option<Carry>,
    /// How they come over to the next version.
    after: Carry,
    loss: Loss,
}

/// What becomes less exact: the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Nothing,
    /// What the weaker numbers have less.
    Numbers,
    /// How buckets came over, too.
    Carry,
}

impl Merger {
    fn of(first: &Version, second: &Version, next: &Version, is_oldest: bool) -> Self {
        let (before, after) = (first.carry, next.carry);
        let is_same = second.is_unchanged_from(first);
        let own = Some(if second.carry == Carry::Reset { Carry::AsIs } else { second.carry }).filter(|_| !is_same);
        let within = [first.merged, second.merged, own].into_iter().flatten();
        let within = within.reduce(|one, other| if one == other { one } else { Carry::Proportional });
        if is_same || second.begins_anew(first) {
            return Self { before, within, after, loss: Loss::Nothing };
        }
        let is_suited = |carry| carry == Carry::Reset || Some(carry) == within;
        // There was none before the oldest.
        if is_suited(after) && (is_oldest || is_suited(before)) {
            let before = if before == Carry::Reset { before } else { within.unwrap_or(before) };
            let inner = [first.merged, second.merged, Some(second.carry)];
            let is_one_way = inner.into_iter().flatten().all(|carry| Some(carry) == within);
            let loss = if is_one_way && first.shards == second.shards { Loss::Numbers } else { Loss::Carry };
            return Self { before, within, after, loss };
        }
        let share = |carry| if carry == Carry::Reset { carry } else { Carry::Proportional };
        Self { before: share(before), within: Some(Carry::Proportional), after: share(after), loss: Loss::Carry }
    }
}

/// The weaker of the limits with the same name and kind. One that only one side has does not refill: while it is no limit of the
/// policy, a bucket of it refills by the numbers that it had last, which may be slower.
pub(super) fn weakest(first: &Limits, second: &Limits, how: Carry) -> Vec<(Option<String>, Limit)> {
    let of_first = first.iter().map(|one| {
        let weaker = find(second, one).map_or(one.1.frozen(), |other| one.1.weaker(other, how));
        (one.0.clone(), weaker)
    });
    let only_second = second.iter().filter(|one| find(first, one).is_none()).map(|one| (one.0.clone(), one.1.frozen()));
    of_first.chain(only_second).collect()
}

/// The limit of that name and kind.
fn find<'a>(all: &'a Limits, (name, limit): &(Option<String>, Limit)) -> Option<&'a Limit> {
    let mut all = all.iter();
    all.find(|(other, own)| other == name && own.config().kind == limit.config().kind).map(|(_, own)| own)
}

/// How long a time is beside how long ago it ended: the less, the less does it matter when in it something was.
#[derive(PartialEq, Eq)]
pub(super) struct Coarseness {
    span: u64,
    age: u64,
}

impl Coarseness {
    pub(super) const fn of(since: i64, end: i64, now: i64) -> Self {
        Self { span: end.saturating_sub(since).unsigned_abs(), age: now.saturating_sub(end).unsigned_abs() }
    }
}

impl Ord for Coarseness {
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |span: u64, age: u64| u128::from(span).saturating_mul(age.into());
        let ratios = || product(self.span, other.age).cmp(&product(other.span, self.age));
        (self.age == 0).cmp(&(other.age == 0)).then_with(ratios)
    }
}

impl PartialOrd for Coarseness {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
