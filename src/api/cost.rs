//! The cost of a request, and whether it fits the policy.

use std::borrow::Cow;

use super::problem::{Problem, bad_request};
use super::text::shown;
use super::value::{integer, must_be};
use crate::json::{FieldsError, Json};
use crate::limit::{MAX_TOKENS, Verb};
use crate::policy::{MAX_LIMITS, NamedLimit, Policy, Standing};

/// How many tokens a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Cost<'a> {
    /// The same cost for each limit: 0 to [`MAX_TOKENS`].
    Each(u64),
    /// A cost for each named limit.
    ByLimit(Vec<(Cow<'a, str>, u64)>),
}

/// What a cost means for slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotCost {
    /// A reservation, or a look at what one would get: one slot, unless the cost says otherwise.
    Taken,
    /// An extension: none, unless the cost says otherwise.
    Added,
    /// A settlement or cancellation: they are given back whatever the cost.
    Ignored,
    /// Any other request.
    Untouched,
}

/// The cost of each limit of a policy, in the order of its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Of enforced limits.
    pub enforced: Vec<u64>,
    /// Of limits in [shadow](Policy::shadow).
    pub shadow: Vec<u64>,
}

impl<'a> Cost<'a> {
    /// The cost of a request without one.
    pub(super) const DEFAULT: Self = Self::Each(1);

    /// Parses the value of `field`.
    pub(super) fn parse(field: &str, json: Json<'a>) -> Result<Self, Problem> {
        let fields = match json.fields() {
            Ok(fields) => fields,
            Err(FieldsError::InvalidName) => {
                return bad_request(format!("`{field}` has a name that contains an unpaired surrogate"));
            }
            Err(FieldsError::Duplicate(name)) => {
                return bad_request(format!("the {field} of {} is given twice", shown(&name)));
            }
            Err(FieldsError::NotAnObject) => match json.integer() {
                Some(cost) if cost <= MAX_TOKENS => return Ok(Self::Each(cost)),
                _ => {
                    let expected =
                        format!("a whole number from 0 to {MAX_TOKENS}, or an object with one for each limit");
                    return must_be(field, &expected, json);
                }
            },
        };
        if fields.names().count() > MAX_LIMITS {
            return bad_request(format!("a policy has at most {MAX_LIMITS} limits"));
        }
        let mut named = Vec::new();
        for (name, cost) in fields.iter() {
            named.push((name.clone(), integer(cost, || format!("the {field} of {}", shown(name)))?));
        }
        Ok(Self::ByLimit(named))
    }

    /// The cost of each limit of `policy`. A limit in shadow that is not named costs 0, and a disabled one may be named, so that a mode can
    /// change without changes to callers.
    ///
    /// # Errors
    /// [`Problem::BadRequest`] if an unknown limit is named or a limit is missing, and [`Problem::CostTooLarge`] for more than `verb` could
    /// ever grant, if it can grant anything: if nothing can pass, no cost is right, and the limit refuses.
    pub fn of(&self, policy: &Policy, verb: Verb, slots: SlotCost) -> Result<Costs, Problem> {
        let costs = self.of_any_size(policy, slots)?;
        // It must fit one shard; the first has the largest capacity.
        let limits = policy.shards().first().map_or(policy.limits(), |shard| shard.limits());
        for (limit, &cost) in limits.iter().zip(&costs.enforced) {
            let max = limit.limit().largest(verb);
            if cost > max && max > 0 && policy.standing() != Standing::Unlimited {
                return Err(Problem::CostTooLarge { limit: limit.full_name().to_owned(), cost, max, request: None });
            }
        }
        Ok(costs)
    }

    /// The same of a request that was made earlier, when the policy may have had more tokens, or other limits: then nothing.
    pub(super) fn of_earlier(&self, policy: &Policy, slots: SlotCost) -> Costs {
        let nothing = || Costs { enforced: vec![0; policy.limits().len()], ..Costs::default() };
        self.of_any_size(policy, slots).unwrap_or_else(|_| nothing())
    }

    /// The same, even if it can never be granted.
    ///
    /// # Errors
    /// [`Problem::BadRequest`], as [`Cost::of`].
    fn of_any_size(&self, policy: &Policy, slots: SlotCost) -> Result<Costs, Problem> {
        let enforced = self.of_enforced(policy)?;
        let enforced = policy.limits().iter().zip(enforced).map(|(limit, cost)| match cost {
            _ if limit.is_slots() => self.of_slots(policy, limit, slots),
            Some(cost) => Ok(cost),
            None => {
                let tokens = policy.limits().iter().filter(|limit| !limit.is_slots());
                let known = names(tokens.map(NamedLimit::name));
                bad_request(format!("the cost must name every limit of policy {}: {known}", policy.name()))
            }
        });
        Ok(Costs { enforced: enforced.collect::<Result<_, _>>()?, shadow: self.of_shadow(policy, slots) })
    }

    /// How many slots it takes. A number is for limits of tokens, if there are any: then each request takes one slot.
    fn of_slots(&self, policy: &Policy, limit: &NamedLimit, slots: SlotCost) -> Result<u64, Problem> {
        let all = policy.limits().iter().chain(policy.shadow_limits());
        let asked = match self {
            Self::Each(cost) if policy.off_limits().is_empty() && all.clone().all(NamedLimit::is_slots) => Some(*cost),
            Self::Each(_) => None,
            Self::ByLimit(named) => named.iter().find(|(name, _)| Some(&**name) == limit.name()).map(|(_, cost)| *cost),
        };
        match (slots, asked) {
            (SlotCost::Taken, asked) => Ok(asked.unwrap_or(1)),
            (SlotCost::Added, asked) => Ok(asked.unwrap_or(0)),
            (SlotCost::Ignored, _) | (SlotCost::Untouched, None | Some(0)) => Ok(0),
            (SlotCost::Untouched, Some(_)) => bad_request(format!(
                "{} limits slots, which only reservations take and give back: leave it out of the cost",
                limit.full_name()
            )),
        }
    }

    /// The largest one.
    pub(super) fn largest(&self) -> u64 {
        match self {
            Self::Each(cost) => *cost,
            Self::ByLimit(named) => named.iter().map(|(_, cost)| *cost).max().unwrap_or(0),
        }
    }

    /// The cost of each enforced limit; `None` for one that has a name and is not named.
    fn of_enforced(&self, policy: &Policy) -> Result<Vec<Option<u64>>, Problem> {
        let limits = policy.limits();
        let named = match self {
            Self::Each(cost) => return Ok(vec![Some(*cost); limits.len()]),
            Self::ByLimit(named) => named,
        };
        let all = || {
            let decided = limits.iter().chain(policy.shadow_limits()).map(NamedLimit::name);
            decided.chain(policy.off_limits().iter().map(Option::as_deref))
        };
        if all().any(|name| name.is_none()) {
            return bad_request(format!(
                "policy {} has one limit, without a name, so its cost is a number",
                policy.name()
            ));
        }
        if let Some((name, _)) = named.iter().find(|(name, _)| all().all(|known| known != Some(name))) {
            let (name, known) = (shown(name), names(all()));
            return bad_request(format!("policy {} has no limit {name}; its limits are {known}", policy.name()));
        }
        let cost_of = |name: Option<&str>| named.iter().find(|(named, _)| Some(&**named) == name);
        Ok(limits.iter().map(|limit| cost_of(limit.name()).map(|(_, cost)| *cost)).collect())
    }

    fn of_shadow(&self, policy: &Policy, slots: SlotCost) -> Vec<u64> {
        let cost_of = |limit: &NamedLimit| match self {
            _ if limit.is_slots() => self.of_slots(policy, limit, slots).unwrap_or(0),
            Self::Each(cost) => *cost,
            Self::ByLimit(named) => {
                let own = named.iter().find(|(name, _)| Some(&**name) == limit.name());
                own.map_or(0, |(_, cost)| *cost)
            }
        };
        policy.shadow_limits().iter().map(cost_of).collect()
    }
}

fn names<'a>(names: impl Iterator<Item = Option<&'a str>>) -> String {
    names.flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforced<const N: usize>(costs: [u64; N]) -> Costs {
        Costs { enforced: costs.into(), shadow: Vec::new() }
    }

    #[test]
    fn a_cost_by_limit_must_name_exactly_the_limits() {
        let json = r#"{"two":{"limits":[{"name":"a","rate":5,"period":"1s"},{"name":"b","rate":9,"period":"1s"}]},
            "one":{"rate":5,"period":"1s"}}"#;
        let policies = crate::policy::Policies::parse(json).unwrap();
        let [one, two] = ["one", "two"].map(|name| policies.get(name).unwrap());
        let named = |costs: &[(&'static str, u64)]| {
            Cost::ByLimit(costs.iter().map(|&(name, cost)| (name.into(), cost)).collect())
        };
        assert_eq!(Cost::Each(3).of(two, Verb::Consume, SlotCost::Untouched), Ok(enforced([3, 3])));
        assert_eq!(named(&[("b", 9), ("a", 0)]).of(two, Verb::Consume, SlotCost::Untouched), Ok(enforced([0, 9])));
        let too_large =
            |limit: &str, cost, max| Err(Problem::CostTooLarge { limit: limit.into(), cost, max, request: None });
        assert_eq!(
            named(&[("b", 10), ("a", 0)]).of(two, Verb::Consume, SlotCost::Untouched),
            too_large("two/b", 10, 9)
        );
        assert_eq!(Cost::Each(6).of(one, Verb::Consume, SlotCost::Untouched), too_large("one", 6, 5));
        assert_eq!(Cost::Each(6).of(one, Verb::Charge, SlotCost::Untouched), Ok(enforced([6])));
        let wrong = |detail: &str| bad_request::<Costs>(detail.to_owned());
        assert_eq!(
            named(&[("a", 1)]).of(two, Verb::Consume, SlotCost::Untouched),
            wrong("the cost must name every limit of policy two: a, b")
        );
        assert_eq!(
            named(&[("a", 1), ("c", 1)]).of(two, Verb::Consume, SlotCost::Untouched),
            wrong("policy two has no limit \"c\"; its limits are a, b")
        );
        assert_eq!(
            named(&[("a", 1)]).of(one, Verb::Consume, SlotCost::Untouched),
            wrong("policy one has one limit, without a name, so its cost is a number")
        );
    }

    #[test]
    fn a_reservation_takes_one_slot_unless_its_cost_says_otherwise() {
        let json = r#"{"alone":{"kind":"slots","capacity":5},"with":{"limits":[{"name":"at_once","kind":"slots","capacity":5},
            {"name":"tokens","rate":"100/1m"}]},"tried":{"limits":[{"name":"at_once","kind":"slots","capacity":5},
            {"name":"tokens","rate":"100/1m","mode":"shadow"}]},"off":{"limits":[{"name":"at_once","kind":"slots","capacity":5},
            {"name":"tokens","rate":"100/1m","mode":"off"}]}}"#;
        let policies = crate::policy::Policies::parse(json).unwrap();
        let reserve = Verb::Reserve { max_wait_ms: None };
        let slots = |policy: &str, cost: &Cost<'_>, slots| {
            cost.of(policies.get(policy).unwrap(), reserve, slots).map(|costs| costs.enforced)
        };
        let named = |costs: &[(&'static str, u64)]| {
            Cost::ByLimit(costs.iter().map(|&(name, cost)| (name.into(), cost)).collect())
        };
        let both = named(&[("at_once", 2), ("tokens", 50)]);
        for (policy, cost, taken, added, given_back) in [
            ("alone", Cost::Each(2), vec![2], vec![2], vec![0]),
            ("with", Cost::Each(50), vec![1, 50], vec![0, 50], vec![0, 50]),
            ("with", Cost::Each(0), vec![1, 0], vec![0, 0], vec![0, 0]),
            ("with", named(&[("tokens", 50)]), vec![1, 50], vec![0, 50], vec![0, 50]),
            ("with", both, vec![2, 50], vec![2, 50], vec![0, 50]),
            // What a number means does not depend on the mode of the others.
            ("tried", Cost::Each(50), vec![1], vec![0], vec![0]),
            ("off", Cost::Each(50), vec![1], vec![0], vec![0]),
        ] {
            assert_eq!(slots(policy, &cost, SlotCost::Taken), Ok(taken), "{policy} {cost:?}");
            assert_eq!(slots(policy, &cost, SlotCost::Added), Ok(added), "{policy} {cost:?}");
            assert_eq!(slots(policy, &cost, SlotCost::Ignored), Ok(given_back), "{policy} {cost:?}");
        }
        let detail = "with/at_once limits slots, which only reservations take and give back: leave it out of the cost";
        assert_eq!(
            slots("with", &named(&[("at_once", 1), ("tokens", 1)]), SlotCost::Untouched),
            bad_request(detail.to_owned())
        );
        assert_eq!(slots("with", &Cost::Each(7), SlotCost::Untouched), Ok(vec![0, 7]));
        assert_eq!(
            slots("with", &named(&[("at_once", 1)]), SlotCost::Taken),
            bad_request("the cost must name every limit of policy with: tokens".to_owned())
        );
        let too_large = Problem::CostTooLarge { limit: "alone".into(), cost: 6, max: 5, request: None };
        assert_eq!(slots("alone", &Cost::Each(6), SlotCost::Taken), Err(too_large));
    }

    #[test]
    fn a_limit_without_capacity_refuses_every_cost_and_finds_none_too_large() {
        let json = r#"{"none":{"rate":0,"period":"1s"},"spent":{"rate":0,"period":"1s","capacity":5}}"#;
        let policies = crate::policy::Policies::parse(json).unwrap();
        let [none, spent] = ["none", "spent"].map(|name| policies.get(name).unwrap());
        for verb in [Verb::Consume, Verb::Reserve { max_wait_ms: None }, Verb::Borrow { max_wait_ms: Some(0) }] {
            for cost in [0, 1, MAX_TOKENS] {
                assert_eq!(Cost::Each(cost).of(none, verb, SlotCost::Untouched), Ok(enforced([cost])), "{verb:?}");
            }
            assert_eq!(Cost::Each(5).of(spent, verb, SlotCost::Untouched), Ok(enforced([5])));
            let too_large = Problem::CostTooLarge { limit: "spent".into(), cost: 6, max: 5, request: None };
            assert_eq!(Cost::Each(6).of(spent, verb, SlotCost::Untouched), Err(too_large));
        }
    }

    #[test]
    fn a_limit_that_is_not_enforced_needs_no_cost_and_its_cost_is_never_too_large() {
        let json = r#"{"p":{"limits":[{"name":"a","rate":5,"period":"1s"},{"name":"b","rate":9,"period":"1s","mode":"shadow"},
            {"name":"c","rate":9,"period":"1s","mode":"off"}]},"one":{"rate":5,"period":"1s","mode":"shadow"},
            "off":{"rate":5,"period":"1s","mode":"off"}}"#;
        let policies = crate::policy::Policies::parse(json).unwrap();
        let [p, one, off] = ["p", "one", "off"].map(|name| policies.get(name).unwrap());
        let named = |costs: &[(&'static str, u64)]| {
            Cost::ByLimit(costs.iter().map(|&(name, cost)| (name.into(), cost)).collect())
        };
        let both = |enforced: &[u64], shadow: &[u64]| Ok(Costs { enforced: enforced.into(), shadow: shadow.into() });
        assert_eq!(Cost::Each(3).of(p, Verb::Consume, SlotCost::Untouched), both(&[3], &[3]));
        assert_eq!(Cost::Each(MAX_TOKENS).of(one, Verb::Consume, SlotCost::Untouched), both(&[], &[MAX_TOKENS]));
        assert_eq!(Cost::Each(MAX_TOKENS).of(off, Verb::Consume, SlotCost::Untouched), both(&[], &[]));
        assert_eq!(named(&[("a", 1)]).of(p, Verb::Consume, SlotCost::Untouched), both(&[1], &[0]));
        assert_eq!(
            named(&[("c", 99), ("b", 99), ("a", 1)]).of(p, Verb::Consume, SlotCost::Untouched),
            both(&[1], &[99])
        );
        let wrong = |detail: &str| bad_request::<Costs>(detail.to_owned());
        assert_eq!(
            named(&[("b", 1)]).of(p, Verb::Consume, SlotCost::Untouched),
            wrong("the cost must name every limit of policy p: a")
        );
        assert_eq!(
            named(&[("a", 1), ("d", 1)]).of(p, Verb::Consume, SlotCost::Untouched),
            wrong("policy p has no limit \"d\"; its limits are a, b, c")
        );
        for (policy, name) in [(one, "one"), (off, "off")] {
            let detail = format!("policy {name} has one limit, without a name, so its cost is a number");
            assert_eq!(named(&[("a", 1)]).of(policy, Verb::Consume, SlotCost::Untouched), wrong(&detail));
        }
    }
}
