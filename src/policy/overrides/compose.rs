//! The versions of a policy for a key with overrides.
//!
//! The policy changes from time to time, and so does each override that matches the key: it is set, replaced, ended or removed. At each
//! moment the most specific override with numbers in force is applied to the policy of that moment. So the key has its own sequence of
//! numbers, and its buckets are carried over at each moment at which these changed: refills before it count at the old ones, refills after
//! it at the new.

use std::sync::Arc;

use super::history::{History, InForce, Step};
use super::plan::Plan;
use crate::limit::{Carry, Limit};
use crate::policy::named::{Policy, Standing};
use crate::policy::named_limit::NamedLimit;
use crate::policy::timeline::{self, Merged, Timeline};
use crate::policy::weakest::weakest;
use crate::sorted::sort_by;

/// `policy` at `now` for a key with these overrides, the most specific first.
pub(super) fn compose(policy: &Policy, overrides: &[History], now: i64) -> Policy {
    let in_force = || overrides.iter().filter_map(|history| history.at(now));
    let standing = in_force().next().map_or(Standing::Limited, |InForce { plan, until }| match plan {
        Plan::Banned => Standing::Banned { until: *until },
        Plan::Unlimited => Standing::Unlimited,
        Plan::Multiple(_) | Plan::Limits(_) => Standing::Limited,
    });
    let with_numbers = in_force().find(|in_force| !in_force.plan.is_neutral());
    let limits = with_numbers.map_or_else(|| policy.limits().to_vec(), |in_force| in_force.plan.apply(policy.limits()));
    let shadow = policy.shadow().map(|shadow| Arc::new(compose(shadow, overrides, now)));
    policy.of_key(limits, timeline(policy, overrides, now), shadow, standing)
}

fn timeline(policy: &Policy, overrides: &[History], now: i64) -> Timeline {
    let own = policy.timeline();
    let earlier = own.earlier().iter().map(|version| Version {
        since: version.since,
        carry: version.carry,
        limits: named(policy.name(), &version.limits, own.unnamed()),
        shards: version.shards,
        merged: version.merged,
    });
    let (limits, shards) = (policy.limits().to_vec(), policy.declared_shards());
    let current = Version { since: own.since(), carry: own.carry(), limits, shards, merged: None };
    let base: Vec<_> = earlier.chain([current]).collect();
    let mut versions = versions(&base, overrides, now);
    let Some(Version { since, carry, .. }) = versions.pop() else { return own.clone() };
    let earlier = versions.into_iter().map(|version| timeline::Version {
        since: version.since,
        carry: version.carry,
        limits: by_account(&version.limits),
        shards: version.shards,
        merged: version.merged,
    });
    // Isolates have one for each requested key with an override, so it drops what no full bucket needs. A reservation may need it: it lasts for
    // its time to live, and may be extended and settled late.
    let longest_ms = policy.object().reservations.ttl_ms.saturating_add(LATER_MS);
    let timeline = Timeline::new(since, carry, earlier.collect()).with_unnamed(own.unnamed().map(str::to_owned));
    timeline.without_settled(now.saturating_sub_unsigned(longest_ms)).bounded()
}

/// How long after its time to live a reservation is expected to be settled at the latest: a day.
const LATER_MS: u64 = 86_400_000;

/// The limits of an earlier version. `unnamed` is the current name of the one without a name.
fn named(policy: &str, limits: &[(Option<String>, Limit)], unnamed: Option<&str>) -> Vec<NamedLimit> {
    let named = |(name, limit): &(Option<String>, Limit)| match name {
        Some(name) => NamedLimit::new(policy, Some(name), *limit, 0),
        None => NamedLimit::new(policy, unnamed, *limit, 0).with_unnamed(unnamed),
    };
    limits.iter().map(named).collect()
}

fn by_account(limits: &[NamedLimit]) -> Vec<(Option<String>, Limit)> {
    limits.iter().map(|limit| (limit.account().map(str::to_owned), *limit.limit())).collect()
}

/// Limits in force from a moment on.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) since: i64,
    /// How levels are carried over at that moment.
    pub(super) carry: Carry,
    pub(super) limits: Vec<NamedLimit>,
    pub(super) shards: u8,
    /// If it stands for several versions.
    pub(super) merged: Option<Merged>,
}

/// The versions of the limits under these overrides, the most specific first, which are `base` without any: at least one, oldest first.
pub(super) fn versions(base: &[Version], overrides: &[History], now: i64) -> Vec<Version> {
    let overrides: Vec<_> = overrides.iter().map(|history| history.steps(now)).collect();
    let starts = base.iter().map(|version| version.since);
    let steps = overrides.iter().flatten().map(|step| step.since);
    let mut moments: Vec<_> = starts.chain(steps).collect();
    sort_by(&mut moments, i64::cmp);
    moments.dedup();
    let mut versions: Vec<Version> = Vec::new();
    for moment in moments {
        let Some(own) = latest(base, moment, |version| version.since) else { continue };
        let in_force = plans_at(&overrides, moment);
        let mut all = in_force.with_numbers.iter().map(|plan| plan.apply(&own.limits));
        let first = all.next().unwrap_or_else(|| own.limits.clone());
        let others = all.chain((in_force.is_neutral && !in_force.with_numbers.is_empty()).then(|| own.limits.clone()));
        let limits = others.fold(first, |one, other| {
            named("", &weakest(&by_account(&one), &by_account(&other), Carry::AsIs), None) // earlier versions need no full names
        });
        let has_own_numbers = in_force.with_numbers.iter().any(|plan| matches!(plan, Plan::Limits(_)));
        let is_reset = own.since == moment && own.carry == Carry::Reset && !has_own_numbers
            || in_force.carry == Some(Carry::Reset);
        let several = Merged { carry: Carry::default(), fewest_shards: own.shards };
        let (shards, merged) = (own.shards, own.merged.or(in_force.is_merged.then_some(several)));
        let is_same = |last: &Version| {
            last.merged.or(merged).is_none() && last.shards == shards && are_same(&last.limits, &limits)
        };
        if !is_reset && versions.last().is_some_and(is_same) {
            continue;
        }
        // An override's own numbers were the same before the base's first known version.
        let were_same = versions.is_empty()
            && has_own_numbers
            && merged.is_none()
            && plans_at(&overrides, moment.saturating_sub(1)).with_numbers == in_force.with_numbers;
        let usual = if own.since == moment && !were_same { own.carry } else { Carry::default() };
        let carry = if is_reset { Carry::Reset } else { in_force.carry.unwrap_or(usual) };
        versions.push(Version { since: moment, carry, limits, shards, merged });
    }
    versions
}

/// The plans possibly in force at a moment: at most one with numbers, unless several changes were merged.
struct Plans<'a> {
    with_numbers: Vec<&'a Plan>,
    /// Whether the numbers may be those of the policy.
    is_neutral: bool,
    is_merged: bool,
    /// How tokens are carried over at that moment, if the most specific changing override says so.
    carry: Option<Carry>,
}

fn plans_at<'a>(overrides: &'a [Vec<Step<'a>>], moment: i64) -> Plans<'a> {
    let mut found = Plans { with_numbers: Vec::new(), is_neutral: true, is_merged: false, carry: None };
    for step in overrides.iter().filter_map(|steps| latest(steps, moment, |step| step.since)) {
        found.is_merged |= !step.beside.is_empty();
        found.carry = found.carry.or(step.carry.filter(|_| step.since == moment));
        found.with_numbers.extend(step.plans().filter(|plan| !plan.is_neutral()));
        if !step.is_neutral() {
            found.is_neutral = false;
            break;
        }
    }
    found
}

/// The last that started at `moment` or before; of several that started together, the last.
fn latest<T>(sorted: &[T], moment: i64, since: impl Fn(&T) -> i64) -> Option<&T> {
    let count = sorted.partition_point(|one| since(one) <= moment);
    sorted.get(count.checked_sub(1)?)
}

fn are_same(one: &[NamedLimit], other: &[NamedLimit]) -> bool {
    by_account(one) == by_account(other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::history::Change;
    use super::super::plan::{Multiple, Numbers};
    use super::*;
    use crate::limit::DEFAULT_GRAINS;
    use crate::limit::{Config, Decision, State};

    /// Few moments, so that changes coincide.
    const LAST: i64 = 60;

    fn limit(config: &Config) -> NamedLimit {
        NamedLimit::new("p", None, Limit::new(config).unwrap(), 0)
    }

    #[test]
    fn an_override_made_before_its_limit_had_a_name_stays_in_force() {
        let parse = |json: &str| Policy::parse("p", json).unwrap();
        let one = parse(r#""9/1s""#).in_force_since(5);
        let two = parse(r#"{"limits":[{"name":"b","rate":"3/1s"},{"name":"a","rate":"9/1s"}]}"#);
        let two = two.succeeding(&one, 9, Carry::Additive);
        let limit = Limit::new(&Config::token_bucket(4, Duration::from_secs(1))).unwrap();
        for name in [None, Some("a".to_owned())] {
            let since = if name.is_some() { 12 } else { 7 };
            let plan = Plan::Limits(vec![Numbers { account: name, limit, write_ahead: 0, grains: DEFAULT_GRAINS }]);
            let change = Change { since, state: Some(InForce { plan, until: None }), beside: Vec::new(), carry: None };
            let policy = compose(&two, &[History { changes: vec![change] }], 20);
            let rates: Vec<_> =
                policy.limits().iter().map(|limit| (limit.account(), limit.limit().config().rate)).collect();
            assert_eq!(rates, [(Some("b"), 3), (None, 4)]);
            let earlier = policy.timeline().earlier().iter().map(|version| {
                let rate = version.limits.iter().find(|(name, _)| name.is_none()).map(|(_, limit)| limit.config().rate);
                (version.since, rate)
            });
            let expected = if since == 7 { [(5, Some(9)), (7, Some(4))] } else { [(5, Some(9)), (9, Some(9))] };
            assert_eq!(earlier.collect::<Vec<_>>(), expected);
            let sent = Policy::from_definition(&policy.definition()).unwrap();
            assert_eq!((sent.numbers(), sent.id()), (policy.numbers(), policy.id()));
        }
    }

    /// A reservation from before may need them until then.
    #[test]
    fn versions_before_one_in_which_all_buckets_filled_are_kept_for_as_long_as_a_reservation_may_last() {
        let parse = |json: &str| Policy::parse("p", json).unwrap();
        let one = parse(r#"{"rate":"9/1s","reservation_ttl":"1h"}"#).in_force_since(5);
        let two = parse(r#"{"rate":"9/1s burst 18","reservation_ttl":"1h"}"#).succeeding(&one, 60_000, Carry::AsIs);
        let last = parse(r#"{"rate":"7/1s","reservation_ttl":"1h"}"#).succeeding(&two, 120_000, Carry::AsIs);
        let earlier = |now| {
            let policy = compose(&last, &[History::default()], now);
            policy.timeline().earlier().iter().map(|version| version.since).collect::<Vec<_>>()
        };
        let kept_until = 120_000 + 3_600_000 + 86_400_000;
        assert_eq!((earlier(kept_until - 1), earlier(kept_until)), (vec![5, 60_000], vec![60_000]));
    }

    fn configs() -> impl Strategy<Value = Config> {
        (0..9_u64, 1..9_u64, 0..20_u64).prop_map(|(rate, period, capacity)| Config {
            capacity,
            ..Config::token_bucket(rate, Duration::from_millis(period))
        })
    }

    fn carries() -> impl Strategy<Value = Carry> {
        prop::sample::select(vec![Carry::AsIs, Carry::Proportional, Carry::Additive, Carry::Reset])
    }

    fn plans() -> impl Strategy<Value = Plan> {
        prop_oneof![
            Just(Plan::Banned),
            Just(Plan::Unlimited),
            (1..5_u64, 1..4_u64)
                .prop_map(|(numerator, denominator)| Plan::Multiple(Multiple { numerator, denominator })),
            configs().prop_map(|config| {
                let limit = Limit::new(&config).unwrap();
                Plan::Limits(vec![Numbers { account: None, limit, write_ahead: 0, grains: DEFAULT_GRAINS }])
            }),
        ]
    }

    /// A plan with its optional end, and how tokens are carried over.
    type Stated = (Option<(Plan, Option<i64>)>, Option<Carry>);

    fn histories() -> impl Strategy<Value = History> {
        let state = prop::option::of((plans(), prop::option::of(0..LAST)));
        let state = (state, prop::option::weighted(0.3, carries()));
        prop::collection::btree_map(0..LAST, state, 0..5).prop_map(|changes| {
            let change = |(since, (state, carry)): (i64, Stated)| {
                let state = state.map(|(plan, until)| InForce { plan, until: until.filter(|&until| until > since) });
                Change { since, state, beside: Vec::new(), carry }
            };
            History { changes: changes.into_iter().map(change).collect() }
        })
    }

    fn bases() -> impl Strategy<Value = Vec<Version>> {
        prop::collection::btree_map(1..LAST, (carries(), configs()), 0..4).prop_flat_map(|later| {
            configs().prop_map(move |first| {
                let first =
                    Version { since: 0, carry: Carry::AsIs, limits: vec![limit(&first)], shards: 1, merged: None };
                let later = later.iter().map(|(&since, (carry, config))| Version {
                    since,
                    carry: *carry,
                    limits: vec![limit(config)],
                    shards: 1,
                    merged: None,
                });
                [first].into_iter().chain(later).collect()
            })
        })
    }

    /// The most specific override with numbers in this millisecond, found the simplest way.
    fn plan_at(overrides: &[History], moment: i64) -> Option<&Plan> {
        let in_force = overrides.iter().filter_map(|history| {
            let change = history.changes.iter().rev().find(|change| change.since <= moment)?;
            change.state.as_ref().filter(|state| state.until.is_none_or(|until| moment < until))
        });
        in_force.map(|state| &state.plan).find(|plan| matches!(plan, Plan::Multiple(_) | Plan::Limits(_)))
    }

    /// The numbers in this millisecond.
    fn numbers_at(base: &[Version], overrides: &[History], moment: i64) -> Limit {
        let own = &base.iter().rev().find(|version| version.since <= moment).unwrap().limits;
        plan_at(overrides, moment).map_or(*own[0].limit(), |plan| *plan.apply(own)[0].limit())
    }

    /// Whether levels are reset in this millisecond, whatever the numbers.
    fn is_reset_at(base: &[Version], overrides: &[History], moment: i64) -> bool {
        let of_policy =
            base_carry_at(base, moment) == Carry::Reset && !matches!(plan_at(overrides, moment), Some(Plan::Limits(_)));
        of_policy || own_carry_at(overrides, moment) == Some(Carry::Reset)
    }

    /// The carry of the most specific override that changes in this millisecond, unless a more specific one has numbers.
    fn own_carry_at(overrides: &[History], moment: i64) -> Option<Carry> {
        let above = (0..=overrides.len()).map(|count| &overrides[..count]);
        let mut carries = overrides.iter().zip(above).filter(|(_, above)| plan_at(above, moment).is_none());
        carries.find_map(|(own, _)| {
            let last = own.changes.iter().rfind(|change| change.since <= moment)?;
            let has_ended = last.state.as_ref().and_then(|state| state.until) == Some(moment);
            last.carry.filter(|carry| last.since == moment || has_ended && *carry != Carry::Reset)
        })
    }

    /// How levels are carried over in this millisecond, if the numbers change in it.
    fn carry_at(base: &[Version], overrides: &[History], moment: i64) -> Carry {
        if is_reset_at(base, overrides, moment) {
            return Carry::Reset;
        }
        own_carry_at(overrides, moment).unwrap_or_else(|| base_carry_at(base, moment))
    }

    fn base_carry_at(base: &[Version], moment: i64) -> Carry {
        base.iter().find(|version| version.since == moment).map_or(Carry::default(), |version| version.carry)
    }

    proptest! {
        #![proptest_config(crate::chance::config(1_000))]

        /// Whenever it is requested, a bucket that follows the versions decides like one that is carried over in every millisecond in which
        /// the numbers change.
        #[test]
        fn a_bucket_follows_every_change_at_its_moment(
            base in bases(),
            overrides in prop::collection::vec(histories(), 0..4),
            asks in prop::collection::vec((0..9_i64, 1..9_u64), 1..20),
        ) {
            let first = versions(&base, &overrides, 0);
            let mut followed = (first[0].clone(), first[0].limits[0].limit().new_state(0, 0));
            let mut by_hand = (numbers_at(&base, &overrides, 0), followed.1);
            let mut now = 0;
            for (step, cost) in asks {
                for moment in now + 1..=now + step {
                    let next = numbers_at(&base, &overrides, moment);
                    if next != by_hand.0 || is_reset_at(&base, &overrides, moment) {
                        let carry = carry_at(&base, &overrides, moment);
                        by_hand = (next, next.carry(&by_hand.0, by_hand.1, carry, moment, 0));
                    }
                }
                now += step;
                let all = versions(&base, &overrides, now);
                let known = followed.0.since;
                for next in all.iter().filter(|next| known < next.since && next.since <= now) {
                    let limit = next.limits[0].limit();
                    let state = limit.carry(followed.0.limits[0].limit(), followed.1, next.carry, next.since, 0);
                    followed = (next.clone(), state);
                }
                prop_assert_eq!(followed.0.limits[0].limit(), &by_hand.0);
                let expected: (Decision, State) = by_hand.0.decide(by_hand.1, now, cost, crate::limit::Verb::Consume);
                let limit = *followed.0.limits[0].limit();
                prop_assert_eq!(limit.decide(followed.1, now, cost, crate::limit::Verb::Consume), expected);
                (followed.1, by_hand.1) = (expected.1, expected.1);
            }
        }

        /// Also with a clock behind the registry's: changes in force at the registry count.
        #[test]
        fn versions_are_in_order_and_each_differs_from_the_one_before_or_is_a_reset(
            base in bases(),
            overrides in prop::collection::vec(histories(), 0..4),
            now in 0..LAST,
        ) {
            let versions = versions(&base, &overrides, now);
            prop_assert_eq!(versions.first().map(|version| version.since), Some(0));
            for pair in versions.windows(2) {
                let is_other = !are_same(&pair[0].limits, &pair[1].limits) || is_reset_at(&base, &overrides, pair[1].since);
                prop_assert!(pair[0].since < pair[1].since && is_other);
            }
        }
    }
}
