//! An override's effect on its policy's limits.

use crate::limit::{Carry, Config, ConfigError, Kind, Limit, MAX_SPAN_MS, MAX_TOKENS};
use crate::policy::named::Policy;
use crate::policy::named_limit::{NamedLimit, name_of};
use crate::policy::written;

/// An override's effect on its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing may be taken. The buckets refill as without this override.
    Banned,
    /// Nothing is refused. The buckets count what would have been granted without this override.
    Unlimited,
    /// A multiple of the policy's numbers.
    Multiple(Multiple),
    /// Other numbers for the named limits. The policy's other limits are unchanged.
    Limits(Vec<Numbers>),
}

/// A fraction in lowest terms, such as 5/2. Both parts are above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiple {
    pub(super) numerator: u64,
    pub(super) denominator: u64,
}

/// The numbers of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The limit's account by its name within its policy.
    pub(super) account: Option<String>,
    pub(super) limit: Limit,
    pub(super) write_ahead: u64,
    /// Of a rolling window.
    pub(super) grains: u8,
}

impl Plan {
    /// Whether it leaves the numbers of the policy or of a less specific override unchanged.
    pub(super) const fn is_neutral(&self) -> bool {
        matches!(self, Self::Banned | Self::Unlimited)
    }

    /// Adds it to plans that were in force one after another: only the weakest are needed. Any neutral plan is represented by
    /// [`Plan::Banned`].
    pub(super) fn add_to(self, plans: &mut Vec<Self>) {
        let mut is_whole = true;
        match self {
            Self::Banned | Self::Unlimited => is_whole = false,
            Self::Multiple(own) => match plans.iter_mut().find_map(Self::multiple_mut) {
                Some(known) if own.is_below(*known) => *known = own,
                Some(_) => {}
                None => plans.push(self),
            },
            Self::Limits(own) => match plans.iter_mut().find_map(Self::limits_mut) {
                Some(known) => {
                    is_whole =
                        own.len() == known.len() && own.iter().all(|one| known.iter().any(|other| other.is_of(one)));
                    for one in own {
                        match known.iter_mut().find(|other| other.is_of(&one)) {
                            Some(other) => other.limit = other.limit.weaker(&one.limit, Carry::AsIs),
                            None => known.push(one),
                        }
                    }
                }
                None => plans.push(Self::Limits(own)),
            },
        }
        // A plan that leaves a limit unchanged counts as the policy's numbers, too.
        if !is_whole && !plans.contains(&Self::Banned) {
            plans.push(Self::Banned);
        }
    }

    const fn multiple_mut(&mut self) -> Option<&mut Multiple> {
        if let Self::Multiple(multiple) = self { Some(multiple) } else { None }
    }

    const fn limits_mut(&mut self) -> Option<&mut Vec<Numbers>> {
        if let Self::Limits(limits) = self { Some(limits) } else { None }
    }

    /// The limits of a policy with `limits`: the same names in the same order. If numbers cannot be exact, the largest exact ones below
    /// them.
    pub(super) fn apply(&self, limits: &[NamedLimit]) -> Vec<NamedLimit> {
        match self {
            Self::Banned | Self::Unlimited => limits.to_vec(),
            Self::Multiple(multiple) => limits.iter().map(|limit| multiple.of(limit)).collect(),
            Self::Limits(all) => {
                let apply = |limit: &NamedLimit| {
                    let mut numbers = all.iter().filter(|numbers| numbers.is_for(limit));
                    let Some(first) = numbers.next() else { return limit.clone() };
                    // Plans of a time with several merged changes may have them under both names.
                    let same = numbers.filter(|other| other.limit.config().kind == first.limit.config().kind);
                    let weakest = same.fold(first.limit, |one, other| one.weaker(&other.limit, Carry::AsIs));
                    // Numbers of a kind that the limit no longer has may have no soft limit.
                    let numbers = if limit.limit().is_soft() { soft(&weakest) } else { Some(weakest) };
                    let with = |numbers| limit.with_numbers(numbers, first.write_ahead).with_grains(first.grains);
                    numbers.map_or_else(|| limit.clone(), with)
                };
                limits.iter().map(apply).collect()
            }
        }
    }

    /// Why it does not fit that policy, if so.
    #[must_use]
    pub fn misfit(&self, policy: &Policy) -> Option<String> {
        let limits: Vec<_> = policy.limits().iter().chain(policy.shadow_limits()).collect();
        match self {
            Self::Banned | Self::Unlimited => None,
            Self::Multiple(multiple) => limits.iter().find_map(|limit| {
                let of = limit.name().map_or_else(String::new, |name| format!(" of the limit {name}"));
                let error = match multiple.config(limit.limit().config()) {
                    Some(config) => Limit::of_any_kind(&config).err()?.to_string(),
                    None => format!("a rate of {MAX_TOKENS} is the largest"),
                };
                Some(format!("`multiple`: the multiplied numbers{of} cannot be kept exact: {error}"))
            }),
            Self::Limits(all) => all.iter().find_map(|numbers| numbers.misfit(policy, &limits)),
        }
    }
}

impl Numbers {
    /// Whether both are of one limit.
    fn is_of(&self, other: &Self) -> bool {
        self.account == other.account && self.limit.config().kind == other.limit.config().kind
    }

    /// Whether these are numbers of that limit: by its name, or by its account from before it had one.
    fn is_for(&self, limit: &NamedLimit) -> bool {
        [limit.own_account(), limit.account()].contains(&self.account.as_deref())
    }

    fn misfit(&self, policy: &Policy, limits: &[&NamedLimit]) -> Option<String> {
        let name = name_of(self.account.as_deref());
        if policy.off_limits().iter().any(|off| off.as_deref() == name) {
            return None;
        }
        let Some(own) = limits.iter().find(|limit| limit.name() == name) else {
            let off = policy.off_limits().iter().filter_map(Option::as_deref);
            let names: Vec<_> = limits.iter().filter_map(|limit| limit.name()).chain(off).collect();
            return Some(match name {
                Some(_) if names.is_empty() => {
                    "the policy has one limit without a name: give its numbers beside `policy`, not in `limits`"
                        .to_owned()
                }
                Some(name) => format!("the policy has no limit {name}; its limits are {}", names.join(", ")),
                None => {
                    format!(
                        "the policy has several limits: give the numbers of each in `limits`, by its name: {}",
                        names.join(", ")
                    )
                }
            });
        };
        if own.limit().is_soft() && self.limit.config().max_debt > 0 {
            return Some("`max_debt` is not for soft limits, which count as far below zero as is exact".to_owned());
        }
        let (kind, other) = (own.limit().config().kind, self.limit.config().kind);
        let is_same = kind == other && own.own_account() == self.account.as_deref();
        (!is_same).then(|| {
            let (word, offset) = if own.is_slots() { (own.kind(), None) } else { written(kind) };
            let offset = match offset {
                Some(offset) => format!(" and `\"offset\": \"{offset}\"`"),
                None if other == Kind::FirstUseWindow => " with another `offset`, or none".to_owned(),
                None => String::new(),
            };
            format!(
                "an override has other numbers, not another kind: write `\"kind\": \"{word}\"`{offset}, as in the policy"
            )
        })
    }
}

impl Multiple {
    fn is_below(self, other: Self) -> bool {
        let product = |a: u64, b: u64| u128::from(a).saturating_mul(b.into());
        product(self.numerator, other.denominator) < product(other.numerator, self.denominator)
    }

    /// The limit with multiplied numbers.
    fn of(self, named: &NamedLimit) -> NamedLimit {
        let config = *named.limit().config();
        let limit = self.config(&config).map_or(*named.limit(), |config| nearest(config, named.limit()));
        let write_ahead = self.tokens(named.write_ahead()).min(limit.config().capacity);
        named.with_numbers(limit, write_ahead)
    }

    /// Multiplied numbers, whole tokens rounded up; `None` if a rate would be too large. A token bucket's rate stays exact: to divide
    /// tokens, its period is multiplied.
    fn config(self, config: &Config) -> Option<Config> {
        let Self { numerator, denominator } = self;
        let Config { kind, rate, period_ms, capacity, max_debt, initial, .. } = *config;
        let product = u128::from(rate).saturating_mul(numerator.into());
        let (rate, period_ms) = match kind {
            Kind::TokenBucket => {
                let common = gcd(product, denominator.into()).max(1);
                let parts = u128::from(denominator).checked_div(common)?;
                let period = u64::try_from(u128::from(period_ms).saturating_mul(parts)).ok();
                match period.filter(|&period| period <= MAX_SPAN_MS) {
                    Some(period) => (product.checked_div(common)?, period),
                    None => (product.div_ceil(denominator.into()), period_ms),
                }
            }
            Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow => {
                (product.div_ceil(denominator.into()), period_ms)
            }
        };
        let rate = u64::try_from(rate).ok().filter(|&rate| rate <= MAX_TOKENS)?;
        let initial = initial.map(|tokens| self.tokens(tokens));
        let multiplied = Config { rate, period_ms, capacity: self.tokens(capacity), initial, ..*config };
        // The maximum, as from `max_debt = "unlimited"`, stays the maximum.
        let is_largest = max_debt > 0 && max_debt == Limit::largest_debt(config);
        let max_debt = if is_largest { Limit::largest_debt(&multiplied) } else { self.tokens(max_debt) };
        Some(Config { max_debt, ..multiplied })
    }

    fn tokens(self, tokens: u64) -> u64 {
        let product = u128::from(tokens).saturating_mul(self.numerator.into());
        u64::try_from(product.div_ceil(self.denominator.into())).unwrap_or(u64::MAX)
    }
}

/// The limit, which counts below zero instead of refusing; `None` if its kind cannot.
fn soft(limit: &Limit) -> Option<Limit> {
    let max_debt = Limit::largest_debt(limit.config());
    Limit::of_any_kind(&Config { max_debt, is_soft: true, ..*limit.config() }).ok()
}

/// The limit with these numbers, or with the largest exact ones below them.
fn nearest(mut config: Config, own: &Limit) -> Limit {
    // Each number is lowered at most once.
    for _ in 0..4 {
        match Limit::of_any_kind(&config) {
            Ok(limit) => return limit,
            Err(ConfigError::CapacityTooLarge { max, .. }) => config.capacity = max,
            Err(ConfigError::MaxDebtTooLarge { max, .. }) => config.max_debt = max,
            Err(ConfigError::InitialTooLarge { max, .. }) => config.initial = Some(max),
            Err(_) => break,
        }
    }
    *own
}

const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::DEFAULT_GRAINS;
    use crate::policy::Policies;

    fn policy(json: &str) -> Policy {
        let policies = Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap();
        Policy::clone(policies.get("p").unwrap())
    }

    fn limits(json: &str) -> Vec<NamedLimit> {
        policy(json).limits().to_vec()
    }

    fn multiple(numerator: u64, denominator: u64) -> Plan {
        Plan::Multiple(Multiple { numerator, denominator })
    }

    #[test]
    fn a_multiple_of_an_unlimited_debt_is_unlimited() {
        let unlimited = policy(r#"{"rate":"100/1m","capacity":200,"max_debt":"unlimited"}"#);
        for times in [(5, 2), (1, 3), (1_000, 1), (1, 1)] {
            let Plan::Multiple(each) = multiple(times.0, times.1) else { unreachable!() };
            assert_eq!(Plan::Multiple(each).misfit(&unlimited), None, "{times:?}");
            let limit = each.of(&unlimited.limits()[0]);
            let config = limit.limit().config();
            assert_eq!(config.max_debt, Limit::largest_debt(config), "{times:?}");
        }
    }

    #[test]
    fn a_multiple_is_exact_and_rounds_whole_tokens_up() {
        for (policy, (numerator, denominator), expected) in [
            (r#""100/1m burst 200""#, (5, 2), r#""250/1m burst 500""#),
            (r#""1/1s""#, (5, 2), r#""2.5/1s burst 3""#),
            (r#""3/1s burst 5""#, (1, 3), r#""1/1s burst 2""#),
            (r#""1/1s""#, (1, 3), r#""1/3s""#),
            (r#"{"rate":0,"period":"1s","capacity":7}"#, (3, 2), r#"{"rate":0,"period":"1s","capacity":11}"#),
            (
                r#"{"kind":"fixed_window","rate":"5/day","capacity":9,"initial":3,"max_debt":1,"offset":"1h","write_ahead":4}"#,
                (1, 2),
                r#"{"kind":"fixed_window","rate":"3/day","capacity":5,"initial":2,"max_debt":1,"offset":"1h","write_ahead":2}"#,
            ),
        ] {
            let plan = multiple(numerator, denominator);
            let [expected] = &limits(expected)[..] else { panic!("one limit") };
            assert_eq!(plan.misfit(&self::policy(policy)), None, "{policy}");
            let [made] = &plan.apply(&limits(policy))[..] else { panic!("one limit") };
            let [made, expected] = [made, expected].map(|limit| *limit.limit().config());
            // Tokens per time, whatever the period.
            let in_period = |of: &Config, period: &Config| u128::from(of.rate) * u128::from(period.period_ms);
            assert_eq!(in_period(&made, &expected), in_period(&expected, &made), "{policy}");
            assert_eq!(made, Config { rate: made.rate, period_ms: made.period_ms, ..expected }, "{policy}");
        }
    }

    #[test]
    fn inexact_numbers_are_refused_when_written_and_clipped_after_a_policy_change() {
        let large = policy(r#"{"rate":7,"period":"1day","capacity":182437484}"#);
        let plan = multiple(2, 1);
        let error = "`multiple`: the multiplied numbers cannot be kept exact: a capacity of 364874968 is too large to stay \
             exact at this rate and period: at most 182437484";
        let applied = plan.apply(large.limits());
        assert_eq!(applied[0].limit().config().rate, 14);
        assert!(applied[0].limit().config().capacity >= 182_437_484);
        assert!(plan.misfit(&large).is_none_or(|problem| problem == error));
        let most = policy(r#"{"rate":9007199254740991,"period":"1day","capacity":1}"#);
        assert_eq!(plan.apply(most.limits())[0].limit(), most.limits()[0].limit());
        let error =
            "`multiple`: the multiplied numbers cannot be kept exact: a rate of 9007199254740991 is the largest";
        assert_eq!(plan.misfit(&most).as_deref(), Some(error));
    }

    #[test]
    fn numbers_must_be_for_existing_limits_and_of_their_kind() {
        let one = policy(r#""5/1s""#);
        let two =
            policy(r#"{"limits":[{"name":"a","rate":"5/1s"},{"name":"b","rate":"9/day","kind":"fixed_window"}]}"#);
        let numbers = |name: Option<&str>, of: &NamedLimit| {
            let (limit, write_ahead) = (*of.limit(), 1);
            Plan::Limits(vec![Numbers { account: name.map(str::to_owned), limit, write_ahead, grains: DEFAULT_GRAINS }])
        };
        let (bucket, window) = (&limits(r#""8/1s""#)[0], &two.limits()[1]);
        assert_eq!(numbers(None, bucket).misfit(&one), None);
        assert_eq!(numbers(Some("a"), bucket).misfit(&two), None);
        let slots = policy(r#"{"kind":"slots","capacity":5}"#);
        let of_slots = Plan::Limits(vec![Numbers {
            account: Some("~slots".to_owned()),
            limit: *limits(r#"{"kind":"slots","capacity":8}"#)[0].limit(),
            write_ahead: 0,
            grains: DEFAULT_GRAINS,
        }]);
        assert_eq!(of_slots.misfit(&slots), None);
        assert_eq!(of_slots.apply(slots.limits())[0].limit().config().capacity, 8);
        assert!(of_slots.apply(one.limits())[0].limit() == one.limits()[0].limit(), "of a policy that had slots");
        let kind = "an override has other numbers, not another kind: write `\"kind\": \"slots\"`, as in the policy";
        assert_eq!(numbers(None, bucket).misfit(&slots).as_deref(), Some(kind));
        let kind =
            "an override has other numbers, not another kind: write `\"kind\": \"token_bucket\"`, as in the policy";
        assert_eq!(of_slots.misfit(&one).as_deref(), Some(kind));
        assert_eq!(numbers(Some("a"), window).misfit(&two).as_deref(), Some(kind));
        for (plan, policy, problem) in [
            (
                numbers(Some("a"), bucket),
                &one,
                "the policy has one limit without a name: give its numbers beside `policy`, not in `limits`",
            ),
            (numbers(Some("c"), bucket), &two, "the policy has no limit c; its limits are a, b"),
            (
                numbers(None, bucket),
                &two,
                "the policy has several limits: give the numbers of each in `limits`, by its name: a, b",
            ),
        ] {
            assert_eq!(plan.misfit(policy).as_deref(), Some(problem));
            // A policy that has changed since keeps its numbers.
            let rates = |limits: &[NamedLimit]| limits.iter().map(|limit| *limit.limit()).collect::<Vec<_>>();
            assert_eq!(rates(&plan.apply(policy.limits())), rates(policy.limits()));
        }
        let made = numbers(Some("a"), bucket).apply(two.limits());
        assert_eq!((made[0].limit(), made[0].write_ahead(), made[0].full_name()), (bucket.limit(), 1, "p/a"));
        assert_eq!(made[1].limit(), two.limits()[1].limit());
    }
}
