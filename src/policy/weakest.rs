//! One version of a policy in place of several, so that a timeline stays short.
//!
//! A bucket last requested before all of them, or under one of them, can no longer go through each. It goes through the weakest version
//! instead: no bucket fares better under it than under those that it stands for. So it has no more than if each had been remembered. It may
//! lose what refilled faster than at the slowest of them, and what was above the smallest capacity. A full bucket stays full. A shard that
//! one of them did not have starts empty.
//!
//! Which are merged: first neighbours where it makes no difference, because their numbers are the same, or the second resets each bucket,
//! or all buckets of both were full before a later change. Then those with one carry throughout, if the time of both is short compared to
//! the time since: the longer ago, the coarser. Only if none of these are left are changes with different `carry` merged. Then a bucket
//! keeps its share of the capacity over all of them, so that it neither owes what was never taken nor has less for being idle. In this case
//! a bucket may have more than if each had been remembered: 5 of 10 tokens become 500 of 1000, although a change with `as_is` would have
//! left 5.
//!
//! A limit that left the policy keeps its last numbers, at which its dormant buckets refill. So versions are merged only as a last resort
//! where a limit would be slowed that the next version does not have.

use std::cmp::Ordering;

use super::timeline::{Merged, Timeline, Version, fill_ms};
use crate::limit::{Carry, Config, Limit};

/// The numbers of limits, by name.
type Limits = [(Option<String>, Limit)];

impl Timeline {
    /// The timeline with at most [`Timeline::MAX_EARLIER`] earlier versions.
    pub(super) fn bounded(self) -> Self {
        self.bounded_to(Self::MAX_EARLIER)
    }

    fn bounded_to(mut self, max: usize) -> Self {
        if self.earlier.len() > max {
            // They are merged, not dropped: a key with an override may still need them.
            for _ in 1..self.settled(i64::MAX) {
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

    /// The version that is cheapest to merge with the next.
    fn cheapest(&self) -> Option<usize> {
        let price = |(index, three): (usize, &[Version])| {
            let [first, second, next] = three else { return None };
            let coarseness = Coarseness::of(first.since, next.since, self.since());
            let before = self.earlier.get(..index).unwrap_or_default();
            Some((Merger::of(before, first, second, next).loss, coarseness, index))
        };
        self.earlier.windows(3).enumerate().filter_map(price).min().map(|(_, _, index)| index)
    }

    /// Replaces this version and the next by one.
    fn merge(&mut self, index: usize) {
        let Some((earlier, [first, second, later @ ..])) = self.earlier.split_at_mut_checked(index) else { return };
        let Some(next) = later.first() else { return };
        let Merger { before, within, after, mut limits, .. } = Merger::of(earlier, first, second, next);
        if second.begins_anew(first) {
            self.earlier.remove(index);
            return;
        }
        drop_left(&mut limits, second, later);
        let shards = first.shards.max(second.shards);
        if shards > 1 {
            for (_, limit) in &mut limits {
                // Without fields that shards cannot have.
                *limit = Limit::new(&Config { max_debt: 0, initial: None, ..*limit.config() }).unwrap_or(*limit);
            }
        }
        // A shard that existed all the time continues with its part, and others start empty.
        let fewest_shards = first.fewest_shards().min(second.fewest_shards());
        let merged = within.map(|carry| Merged { carry, fewest_shards });
        *second = Version { since: first.since, carry: before, limits, shards, merged };
        if let Some(next) = later.first_mut() {
            next.carry = after;
        }
        self.earlier.remove(index);
    }
}

/// Maximum names kept that no later version has: a bucket keeps as many dormant limits.
const MAX_LEFT: usize = 8;

/// Drops the limits that neither `second` nor a later version has, except those that take longest to fill.
fn drop_left(limits: &mut Vec<(Option<String>, Limit)>, second: &Version, later: &[Version]) {
    let is_left = |one: &(Option<String>, Limit)| {
        find(&second.limits, one).is_none() && later.iter().all(|version| find(&version.limits, one).is_none())
    };
    let fill_ms = |limit: &Limit| fill_ms(limit, limit.config().max_debt, 1).unwrap_or(u64::MAX);
    while limits.iter().filter(|one| is_left(one)).count() > MAX_LEFT {
        let left = limits.iter().enumerate().filter(|(_, one)| is_left(one));
        let Some((soonest, _)) = left.min_by_key(|(_, (_, limit))| fill_ms(limit)) else { return };
        limits.remove(soonest);
    }
}

impl Version {
    /// How buckets were carried over within it, if it stands for several.
    fn way(&self) -> Option<Carry> {
        self.merged.map(|merged| merged.carry)
    }

    fn fewest_shards(&self) -> u8 {
        self.merged.map_or(self.shards, |merged| merged.fewest_shards)
    }

    /// Whether the numbers are those of the previous version, and buckets continue.
    fn is_unchanged_from(&self, before: &Self) -> bool {
        self.limits == before.limits && self.shards == before.shards && self.carry != Carry::Reset
    }

    /// Whether it resets every bucket of the previous version.
    fn begins_anew(&self, before: &Self) -> bool {
        self.carry == Carry::Reset && before.limits.iter().all(|limit| find(&self.limits, limit).is_some())
    }

    /// Its limits, which hold no more than a bucket has after a reset, if it began with one.
    fn after_reset(&self) -> Vec<(Option<String>, Limit)> {
        let start = |limit: &Limit| {
            let Config { capacity, initial, .. } = *limit.config();
            let capacity = if self.carry == Carry::Reset { initial.unwrap_or(capacity) } else { capacity };
            Limit::of_any_kind(&Config { capacity, ..*limit.config() }).unwrap_or(*limit)
        };
        self.limits.iter().map(|(name, limit)| (name.clone(), start(limit))).collect()
    }
}

/// How two neighbours are merged.
struct Merger {
    /// How buckets are carried over to both.
    before: Carry,
    /// How they were carried over between the versions that the two stand for; `None` if that is only one.
    within: Option<Carry>,
    /// How they are carried over to the next version.
    after: Carry,
    limits: Vec<(Option<String>, Limit)>,
    loss: Loss,
}

/// What becomes less exact: the smallest loss first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Nothing,
    /// The reduction by weaker numbers.
    Numbers,
    /// Also how buckets were carried over.
    Carry,
    /// A limit that did not always exist is slowed after the time of both, too, or starts anew without a reset of its own.
    Dormant,
}

impl Merger {
    fn of(earlier: &[Version], first: &Version, second: &Version, next: &Version) -> Self {
        let Ways { before, within, after, loss } = Ways::of(first, second, next, earlier.is_empty());
        // Shards are carried over unchanged.
        let how = within.filter(|_| first.shards.max(second.shards) == 1).unwrap_or(Carry::AsIs);
        let limits = merged(earlier, first, second, how);
        let is_slowed = |one: &(Option<String>, Limit)| {
            let last = find(&second.limits, one).or_else(|| find(&first.limits, one));
            find(&next.limits, one).is_none() && last.is_some_and(|last| last.is_faster_than(&one.1))
        };
        let is_renewed = |one: &(Option<String>, Limit)| {
            find(&first.limits, one).is_none() && earlier.iter().any(|version| find(&version.limits, one).is_some())
        };
        let changes_dormant =
            limits.iter().any(is_slowed) || before == Carry::Reset && second.limits.iter().any(is_renewed);
        let loss = if loss != Loss::Nothing && changes_dormant { Loss::Dormant } else { loss };
        Self { before, within, after, limits, loss }
    }
}

/// How buckets are carried over to two merged versions, within them, and to the next: as in [`Merger`].
struct Ways {
    before: Carry,
    within: Option<Carry>,
    after: Carry,
    loss: Loss,
}

impl Ways {
    fn of(first: &Version, second: &Version, next: &Version, is_oldest: bool) -> Self {
        let (before, after) = (first.carry, next.carry);
        let is_same = second.is_unchanged_from(first);
        let own = Some(if second.carry == Carry::Reset { Carry::AsIs } else { second.carry }).filter(|_| !is_same);
        let within = [first.way(), second.way(), own].into_iter().flatten();
        let within = within.reduce(|one, other| if one == other { one } else { Carry::Proportional });
        if is_same || second.begins_anew(first) {
            return Self { before, within, after, loss: Loss::Nothing };
        }
        let is_suited = |carry| carry == Carry::Reset || Some(carry) == within;
        // The oldest has no version before it.
        if is_suited(after) && (is_oldest || is_suited(before)) {
            let before = if before == Carry::Reset { before } else { within.unwrap_or(before) };
            let inner = [first.way(), second.way(), Some(second.carry)];
            let is_one_way = inner.into_iter().flatten().all(|carry| Some(carry) == within);
            let loss = if is_one_way && first.shards == second.shards { Loss::Numbers } else { Loss::Carry };
            return Self { before, within, after, loss };
        }
        let share = |carry| if carry == Carry::Reset { carry } else { Carry::Proportional };
        Self { before: share(before), within: Some(Carry::Proportional), after: share(after), loss: Loss::Carry }
    }
}

/// The limits of two merged versions after these earlier ones. One that only the first has keeps its numbers, which its buckets have from
/// then on. One that only the second has does not refill, because it did not exist all the time, unless its buckets were full when it was
/// added.
fn merged(earlier: &[Version], first: &Version, second: &Version, how: Carry) -> Vec<(Option<String>, Limit)> {
    let began_full = |one: &(Option<String>, Limit)| {
        let Config { capacity, initial, .. } = *one.1.config();
        initial.is_none_or(|tokens| tokens >= capacity)
            && earlier.iter().all(|version| find(&version.limits, one).is_none())
    };
    let came = second.limits.iter().filter(|one| find(&first.limits, one).is_none());
    let came = came.map(|one| (one.0.clone(), if began_full(one) { one.1 } else { one.1.frozen() }));
    weakest(&first.limits, &second.after_reset(), how).into_iter().chain(came).collect()
}

/// The limits of the first, each the weaker of its own numbers and those with the same name and kind.
pub(super) fn weakest(first: &Limits, second: &Limits, how: Carry) -> Vec<(Option<String>, Limit)> {
    let weaker = |one: &(Option<String>, Limit)| find(second, one).map_or(one.1, |other| one.1.weaker(other, how));
    first.iter().map(|one| (one.0.clone(), weaker(one))).collect()
}

/// The limit with that name and kind.
fn find<'a>(all: &'a Limits, (name, limit): &(Option<String>, Limit)) -> Option<&'a Limit> {
    let mut all = all.iter();
    all.find(|(other, own)| other == name && own.config().kind == limit.config().kind).map(|(_, own)| own)
}

/// A length of time relative to how long ago it ended: the smaller, the less it matters when something happened in it.
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
