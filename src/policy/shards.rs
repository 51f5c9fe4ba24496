//! A policy whose budget for one key lies in several objects.
//!
//! Each of `n` shards is a policy of its own, with an `n`-th of each limit: a rate of `r` per period is `r` per `n` periods, and a
//! capacity of `c` is `⌊c / n⌋`, one more in the first `c mod n`. So rates and capacities add up exactly to those of the whole, and
//! whatever the shards grant together, one bucket with the whole limit would have granted, too: each level is a part of it that
//! only refills more slowly where a shard is full.
//!
//! When the number changes, a shard that was there keeps what it has, clipped to its new capacity, and one that was not there begins
//! empty. So a change grants nothing. Where a key has fewer tokens than the policy has shards, by an override, so many hold its budget
//! as it has tokens.

use std::sync::Arc;

use super::named::{NamedLimit, Policy};
use super::timeline::{Timeline, Version};
use crate::limit::{Carry, Config, ConfigError, Limit};

/// The most shards of a policy: each decision of a refused key may ask all of them.
pub const MAX_SHARDS: u8 = 16;

/// A shard of a policy: which, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: u8,
    /// 1 if the others are gone.
    pub count: u8,
}

impl Policy {
    /// The policies of its shards; empty if one object has the whole budget of a key. A single one, if it was shared before: then
    /// [`Policies::for_key`](super::Policies::for_key) gives that.
    #[must_use]
    pub fn shards(&self) -> &[Arc<Self>] {
        self.shard_policies(|| {
            let count = count_of(self.declared_shards(), self.limits().iter().map(NamedLimit::limit));
            let was_shared = || self.timeline().earlier().iter().any(|version| version.shards > 1);
            match count {
                1 if self.shard().is_some() || !was_shared() => Vec::new(),
                _ => (0..count).map(|index| Arc::new(self.shard_of(Shard { index, count }))).collect(),
            }
        })
    }

    fn shard_of(&self, shard: Shard) -> Self {
        let Shard { index, count } = shard;
        let limits = self.limits().iter().map(|limit| {
            let write_ahead = limit.write_ahead().div_ceil(count.into());
            let part = part(limit.limit(), index, count).unwrap_or(*limit.limit()); // `check` has seen that there is one
            limit.with_numbers(part, write_ahead.min(part.config().capacity))
        });
        self.with_shard(limits.collect(), shard).with_timeline(self.timeline().of_shard(shard))
    }
}

impl Timeline {
    /// The same of one shard. A version in which it was not there has limits that hold nothing.
    fn of_shard(&self, Shard { index, count }: Shard) -> Self {
        let counts = |version: &Version| count_of(version.shards, version.limits.iter().map(|(_, limit)| limit));
        let mut before = None;
        let mut carry_to = |carry, count| {
            let before = before.replace(count).unwrap_or(count);
            // The others would make debts of single shards, or something of nothing.
            if carry == Carry::Reset || (before == 1 && count == 1) { carry } else { Carry::AsIs }
        };
        let earlier = self.earlier().iter().map(|version| {
            let count = counts(version);
            let limits = version.limits.iter().map(|(name, limit)| {
                let part = if index < count { part(limit, index, count) } else { absent(limit) };
                (name.clone(), part.unwrap_or(*limit))
            });
            Version { since: version.since, carry: carry_to(version.carry, count), limits: limits.collect(), shards: 1 }
        });
        let earlier = earlier.collect();
        self.of_part(carry_to(self.carry(), count), earlier)
    }
}

/// How many shards have the budget of a key with these limits.
fn count_of<'a>(declared: u8, limits: impl Iterator<Item = &'a Limit>) -> u8 {
    let least = limits.map(|limit| limit.config().capacity).min().unwrap_or(1);
    u8::try_from(least).unwrap_or(u8::MAX).min(declared).max(1)
}

/// Why that limit cannot be divided so.
pub(super) fn check(limit: &Limit, count: u8) -> Result<(), ConfigError> {
    part(limit, 0, count).map(drop)
}

/// What a shard has of a limit.
fn part(limit: &Limit, index: u8, count: u8) -> Result<Limit, ConfigError> {
    let config = *limit.config();
    if count == 1 {
        return Ok(*limit);
    }
    let shares = |tokens: u64| {
        let (each, rest) = (tokens.checked_div(count.into()), tokens.checked_rem(count.into()));
        each.unwrap_or(tokens).saturating_add(u64::from(u64::from(index) < rest.unwrap_or(0)))
    };
    Limit::new(&Config {
        period_ms: config.period_ms.saturating_mul(count.into()),
        capacity: shares(config.capacity),
        ..config
    })
}

/// A limit that holds nothing.
fn absent(limit: &Limit) -> Result<Limit, ConfigError> {
    let config = *limit.config();
    Limit::new(&Config { capacity: 0, max_debt: 0, initial: Some(0), ..config })
}
