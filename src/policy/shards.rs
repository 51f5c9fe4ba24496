//! A policy that divides a key's budget among several objects.
//!
//! Each of `n` shards is a policy of its own, with an `n`-th of each limit: a rate of `r` per period is `r` per `n` periods, and a capacity
//! of `c` is `⌊c / n⌋`, one more in the first `c mod n`. So rates and capacities add up exactly to those of the whole, and anything the
//! shards grant together, one bucket with the whole limit would have granted, too: each level is a part of its level that only refills more
//! slowly where a shard is full.
//!
//! When the number changes, an existing shard keeps its tokens, clipped to its new capacity, and a new one starts empty. So a change grants
//! nothing. Where a key has fewer tokens than the policy has shards, by an override, it has as many shards as tokens; where the override
//! brings a limit that cannot be divided, one.

use std::sync::Arc;

use super::named::Policy;
use super::named_limit::NamedLimit;
use super::shard::{Shard, absent, check, part};
use super::timeline::{Merged, Timeline, Version};
use crate::limit::{Carry, Limit};

impl Policy {
    /// The policies of its shards; empty if one object has a key's whole budget. A single one if the budget was shared before: then
    /// [`Policies::for_key`](super::Policies::for_key) returns that.
    #[doc(hidden)]
    #[must_use]
    pub fn shards(&self) -> &[Arc<Self>] {
        self.computed.shards.get_or_init(|| {
            let count = count_of(self.declared_shards(), self.limits().iter().map(NamedLimit::limit));
            let was_shared = || self.timeline().earlier().iter().any(|version| version.shards > 1);
            match count {
                1 if self.shard().is_some() || !was_shared() => Box::default(),
                _ => (0..count).map(|index| Arc::new(self.shard_of(Shard { index, count }))).collect(),
            }
        })
    }

    fn shard_of(&self, shard: Shard) -> Self {
        let Shard { index, count } = shard;
        let limits = self.limits().iter().map(|limit| {
            let part = part(limit.limit(), index, count).unwrap_or(*limit.limit()); // `count_of` has seen that there is one
            // Rounded down: a crash of all shards costs no more than one of the whole.
            let write_ahead = limit.write_ahead().checked_div(count.into()).unwrap_or(0);
            limit.with_numbers(part, write_ahead.min(part.config().capacity))
        });
        self.with_shard(limits.collect(), shard).with_timeline(self.timeline().of_shard(shard))
    }
}

impl Timeline {
    /// One shard's timeline. Versions in which it did not always exist have limits that hold nothing.
    fn of_shard(&self, Shard { index, count }: Shard) -> Self {
        let counts = |version: &Version| count_of(version.shards, version.limits.iter().map(|(_, limit)| limit));
        let mut before = None;
        let mut carry_to = |carry, count| {
            let before = before.replace(count).unwrap_or(count);
            // The others would turn parts into debts of single shards, or create tokens.
            if carry == Carry::Reset || (before == 1 && count == 1) { carry } else { Carry::AsIs }
        };
        let earlier = self.earlier().iter().map(|version| {
            let count = counts(version);
            let fewest = version.merged.map_or(count, |merged| merged.fewest_shards.min(count));
            let limits = version.limits.iter().map(|(name, limit)| {
                let part = if index < fewest { part(limit, index, count) } else { absent(limit) };
                (name.clone(), part.unwrap_or(*limit))
            });
            let Version { since, carry, merged, .. } = *version;
            let one_way = |merged: Merged| if count == 1 { merged.carry } else { Carry::AsIs };
            let merged = merged.map(|merged| Merged { carry: one_way(merged), fewest_shards: 1 });
            Version { since, carry: carry_to(carry, count), limits: limits.collect(), shards: 1, merged }
        });
        let earlier = earlier.collect();
        let carry = carry_to(self.carry(), count);
        Self::new(self.since(), carry, earlier).with_unnamed(self.unnamed().map(str::to_owned))
    }
}

/// How many shards share a key's budget with these limits: one, if an override brought a limit that cannot be divided.
fn count_of<'a>(declared: u8, limits: impl Iterator<Item = &'a Limit> + Clone) -> u8 {
    let least = limits.clone().map(|limit| limit.config().capacity).min().unwrap_or(1);
    let count = u8::try_from(least).unwrap_or(u8::MAX).min(declared).max(1);
    if limits.map(|limit| check(limit, count)).all(|checked| checked.is_ok()) { count } else { 1 }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::*;
    use crate::policy::Policies;
    use crate::policy::overrides::Overrides;

    fn parse(json: &str) -> Policy {
        Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
    }

    fn errors(json: &str) -> Vec<String> {
        let errors = Policies::parse(&format!(r#"{{"p":{json}}}"#)).err();
        errors.iter().flatten().map(ToString::to_string).collect()
    }

    #[test]
    fn rates_and_capacities_add_up() {
        for (written, expected) in [
            (r#"{"rate":"10/s","capacity":11,"shards":4}"#, vec![3, 3, 3, 2]),
            (r#"{"rate":"10/s","capacity":4,"shards":4}"#, vec![1, 1, 1, 1]),
            (r#"{"rate":"10/s","capacity":31,"shards":16}"#, [vec![2; 15], vec![1]].concat()),
        ] {
            let policy = parse(written);
            let limits: Vec<_> = policy.shards().iter().map(|shard| *shard.limits()[0].limit().config()).collect();
            assert_eq!(limits.iter().map(|limit| limit.capacity).collect::<Vec<_>>(), expected);
            let period_ms = 1_000 * expected.len() as u64;
            assert!(limits.iter().all(|limit| (limit.rate, limit.period_ms) == (10, period_ms)), "{limits:?}");
        }
        for whole in [r#""10/s""#, r#"{"rate":"10/s","shards":1}"#] {
            assert!(parse(whole).shards().is_empty(), "{whole}");
        }
    }

    #[test]
    fn an_indivisible_limit_is_an_error() {
        for (written, expected) in [
            (r#"{"rate":"8/s","shards":8}"#, ""),
            (
                r#"{"rate":"7/s","shards":8}"#,
                "POLICIES.p.shards: p has a capacity of 7, less than a token for each of 8 shards",
            ),
            (
                r#"{"rate":"8/s","shards":17}"#,
                "POLICIES.p.shards: must be a whole number of shards from 1 to 16, not 17",
            ),
            (r#"{"rate":"8/s","shards":0}"#, "POLICIES.p.shards: must be a whole number of shards from 1 to 16, not 0"),
            (
                r#"{"kind":"fixed_window","rate":"9/s","shards":2}"#,
                "POLICIES.p.shards: p is a fixed window, which cannot be divided: make it a token bucket",
            ),
            (
                r#"{"rate":"8/s","max_debt":1,"shards":2}"#,
                "POLICIES.p.shards: p has a max_debt, which shards cannot have",
            ),
            (
                r#"{"rate":"8/s","initial":1,"shards":2}"#,
                "POLICIES.p.shards: p has `initial`, which shards cannot have: they are full at first",
            ),
            (
                r#"{"rate":"8/s","mode":"shadow","shards":2}"#,
                "POLICIES.p.shards: p is in shadow; limits in shadow cannot be divided",
            ),
            (
                r#"{"rate":"8/s","lease":"2s","shards":2}"#,
                "POLICIES.p.shards: a policy with shards cannot have `lease`",
            ),
            (
                r#"{"rate":"8/s","notify":["refused"],"shards":2}"#,
                "POLICIES.p.shards: a policy with shards cannot have `notify`",
            ),
            (r#"{"rate":"8/s","carry":"as_is","shards":2}"#, ""),
            (
                r#"{"rate":"8/s","carry":"proportional","shards":2}"#,
                "POLICIES.p.shards: a policy with shards cannot have `carry = \"proportional\"`",
            ),
            (
                r#"{"rate":8,"period":"15000000days","shards":2}"#,
                "POLICIES.p.shards: p cannot be divided among 2 shards: a period of 2592000000000000 ms is too long: at most 2251799813685248 ms",
            ),
        ] {
            assert_eq!(errors(written).join("; "), expected, "{written}");
        }
    }

    #[test]
    fn a_shard_travels_as_a_definition_and_has_its_own_name() {
        let policy = parse(r#"{"limits":[{"name":"a","rate":"10/s"},{"name":"b","rate":"99/h"}],"shards":3}"#);
        let before = parse(r#"{"limits":[{"name":"a","rate":"10/s"},{"name":"b","rate":"99/h"}],"shards":2}"#);
        let policy = policy.succeeding(&before.in_force_since(5), 6, Carry::AsIs);
        let names: Vec<_> = policy.shards().iter().map(|shard| shard.wire_name()).collect();
        let whole = policy.wire_name();
        assert_eq!(names, [format!("{whole}~0.3"), format!("{whole}~1.3"), format!("{whole}~2.3")]);
        for shard in policy.shards() {
            let sent = Policy::from_definition(&shard.definition()).unwrap();
            assert_eq!((sent.wire_name(), sent.shard(), sent.id()), (shard.wire_name(), shard.shard(), shard.id()));
            assert_eq!((sent.limits(), sent.timeline()), (shard.limits(), shard.timeline()));
        }
        let sent = Policy::from_definition(&policy.definition()).unwrap();
        assert_eq!((sent.declared_shards(), sent.timeline()), (3, policy.timeline()));
        assert_eq!(sent.shards(), policy.shards());
        for wrong in [r#""shard":[3,3]"#, r#""shard":[0]"#, r#""shard":"0""#, r#""shards":0"#] {
            let definition = parse(r#""9/s""#).definition().replacen('{', &format!("{{{wrong},"), 1);
            assert!(Policy::from_definition(&definition).is_err(), "{wrong}");
        }
        // An object has its own policies.
        let own = Policies::parse(r#"{"p":{"rate":"9/s","shards":3}}"#).unwrap();
        assert_eq!(own.by_wire_name("p~2.3").unwrap().shard(), Some(Shard { index: 2, count: 3 }));
        for other in ["p~3.3", "p~2.4", "p~2.3.", "q~2.3", "p#~2.3"] {
            assert!(own.by_wire_name(other).is_none(), "{other}");
        }
    }

    /// Otherwise a shard would start with tokens it never had.
    #[test]
    fn a_version_without_the_shard_holds_nothing() {
        let one = parse(r#"{"rate":"12/s"}"#).in_force_since(5);
        let four = parse(r#"{"rate":"12/s","shards":4}"#).succeeding(&one, 6, Carry::Additive);
        let two = parse(r#"{"rate":"12/s","shards":2}"#).succeeding(&four, 7, Carry::Reset);
        let last = parse(r#""12/s""#).succeeding(&two, 8, Carry::AsIs);
        let capacities = |policy: &Policy| {
            let earlier = policy.timeline().earlier().iter();
            let earlier = earlier.map(|version| (version.limits[0].1.config().capacity, version.carry));
            earlier
                .chain([(policy.limits()[0].limit().config().capacity, policy.timeline().carry())])
                .collect::<Vec<_>>()
        };
        let (first, as_is, reset) = (Carry::default(), Carry::AsIs, Carry::Reset);
        assert_eq!(capacities(&four.shards()[0]), [(12, first), (3, as_is)]);
        assert_eq!(capacities(&four.shards()[3]), [(0, first), (3, as_is)]);
        assert_eq!(capacities(&two.shards()[1]), [(0, first), (3, as_is), (6, reset)]);
        let [only] = last.shards() else { panic!("{last}") };
        assert_eq!(capacities(only), [(12, first), (3, as_is), (6, reset), (12, as_is)]);
    }

    /// An override may bring limits that `shards` does not allow in a policy. Otherwise each shard would have all of it.
    #[test]
    fn a_key_whose_limit_cannot_be_divided_has_one_shard() {
        for (over, expected) in [
            (r#""rate":8,"period":"1s""#, 4),
            (r#""rate":8,"period":"1s","initial":8"#, 1),
            (r#""rate":8,"period":"1s","initial":0"#, 1),
            (r#""rate":8,"period":"1s","max_debt":1"#, 1),
            (r#""rate":8,"period":"1s","capacity":80,"kind":"fixed_window""#, 1),
            (r#""rate":8,"period":"15000000days""#, 1),
        ] {
            let policies = Policies::parse(r#"{"p":{"rate":"12/s","shards":4}}"#).unwrap();
            let policies = policies.with_overrides(Arc::new(Overrides::of_key("p", "alice", over)));
            let policy = policies.for_key(policies.get("p").unwrap(), b"alice", 500);
            let shards = policy.shards();
            let all = if shards.is_empty() { std::slice::from_ref(&policy) } else { shards };
            let capacities = all.iter().map(|shard| shard.limits()[0].limit().config().capacity);
            let whole = if over.contains("80") { 80 } else { 8 };
            assert_eq!((all.len(), capacities.sum::<u64>()), (expected, whole), "{over}");
        }
    }
}
