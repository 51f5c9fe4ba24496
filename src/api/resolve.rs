//! Resolves a request: its policies, its key, and whether its caller may make it.

use std::sync::Arc;

use super::beyond_shards::require_whole;
use super::cost::{Cost, SlotCost};
use super::endpoint::Endpoint;
use super::problem::{Problem, bad_request};
use super::request::{Item, Request};
use super::resolved::{ResolvedItem, ResolvedRequest};
use crate::access::{Caller, Key, KeyMisfit};
use crate::limit::Verb;
use crate::policy::{NamedLimit, Policies, Policy};
use crate::protocol::Action;

impl ResolvedRequest {
    /// Resolves the policies in `request` as they are at `now` for its keys, and the key if it is the caller's.
    ///
    /// # Errors
    /// [`Problem::Forbidden`], [`Problem::UnknownPolicy`], [`Problem::BadRequest`] for a missing key, for limits in a request under the
    /// name of a policy, and for a batch with the same policy and key twice, and the errors of [`Cost::of`].
    pub fn new(request: &Request<'_>, policies: &Policies, caller: &Caller<'_>, now: i64) -> Result<Self, Problem> {
        Self::of(request, policies, caller, now, false)
    }

    /// The request with an `Idempotency-Key` whose cost is too large or does not fit the policy's limits, which is `problem`. It may have been
    /// done when the policy had more tokens or other limits: then the object has the earlier answer.
    ///
    /// # Errors
    /// The problem, if the request has others, is a batch, or would take nothing.
    pub fn done_before(
        request: &Request<'_>,
        policies: &Policies,
        caller: &Caller<'_>,
        now: i64,
        problem: Problem,
    ) -> Result<Self, Problem> {
        let is_single = matches!(request.action, Action::Take(_) | Action::Reserve(_) | Action::Extend(_))
            && request.endpoint != Endpoint::Batch;
        if !is_single || !matches!(problem, Problem::CostTooLarge { .. } | Problem::BadRequest { .. }) {
            return Err(problem);
        }
        match Self::of(request, policies, caller, now, true) {
            Ok(resolved) => Ok(Self { impossible: Some(problem), ..resolved }),
            Err(_) => Err(problem),
        }
    }

    /// `is_of_any_size`: also a request whose cost can never be granted, or names other limits.
    fn of(
        request: &Request<'_>,
        policies: &Policies,
        caller: &Caller<'_>,
        now: i64,
        is_of_any_size: bool,
    ) -> Result<Self, Problem> {
        let Request { endpoint, action, .. } = *request;
        let (verb, slots) = match action {
            // A cost that can never pass is explained, too.
            Action::Look(_) if endpoint == Endpoint::Explain => (Verb::ConsumeUpTo, SlotCost::Taken),
            Action::Look(verb) | Action::Reserve(verb) => (verb, SlotCost::Taken),
            Action::Extend(_) => (Verb::Consume, SlotCost::Added),
            Action::Settle(_) | Action::Cancel(_) => (Verb::Charge, SlotCost::Ignored),
            Action::Take(verb) => (verb, SlotCost::Untouched),
            Action::Hold(_) => (Verb::Consume, SlotCost::Untouched),
        };
        // It may have been done when none of the limits was of slots.
        let slots = if is_of_any_size && slots == SlotCost::Untouched { SlotCost::Ignored } else { slots };
        let mut impossible = None;
        let mut resolved = |item: &Item<'_>| {
            caller.may_use(&item.policy)?;
            if item.inline.is_some() {
                caller.may_inline()?;
                if policies.get(&item.policy).is_some() {
                    let name = &item.policy;
                    let detail = format!("{name} is a policy of this service: leave out `limits`, or use another name");
                    return Err(Problem::BadRequest { detail });
                }
            }
            let inline = match &item.inline {
                Some(policy) if caller.is_inside() => Some(&Arc::new(policy.exact())),
                inline => inline.as_ref(),
            };
            let Some(policy) = inline.or_else(|| policies.get(&item.policy)) else {
                let known = policies.iter().map(|policy| policy.name()).filter(|name| caller.may_use(name).is_ok());
                let known = known.map(str::to_owned).collect();
                return Err(Problem::UnknownPolicy { policy: item.policy.clone().into_owned(), known, request: None });
            };
            let key = match item.key.as_ref() {
                // The key of a grant does not apply to a budget shared by all.
                asked if policy.frontend().has_one_budget => {
                    caller.may_share()?;
                    asked
                }
                asked => caller.key(asked, policy.frontend().ipv6_prefix)?,
            };
            if matches!(key, Some(Key::Hash(_))) && policies.has_prefixes(policy.name()) {
                let detail = by_prefix(policy.name());
                return Err(Problem::BadRequest { detail });
            }
            let key = match Key::bytes_for(key, policy.frontend().has_one_budget, policy.frontend().ipv6_prefix) {
                Ok(key) => key,
                Err(KeyMisfit::Missing) => return bad_request("the field `key` is missing".to_owned()),
                Err(misfit) => return bad_request(format!("`key` {misfit}")),
            };
            let policy = policies.for_key(policy, &key, now);
            require_reservation(endpoint, action, &policy)
                .or_else(|problem| if is_of_any_size { Ok(()) } else { Err(problem) })?;
            let beyond = require_whole(endpoint, action, item.snapshot, &policy).err();
            if endpoint == Endpoint::Batch
                && let Some(detail) = beyond
            {
                return bad_request(detail);
            }
            let default = match endpoint {
                Endpoint::Settle => None,
                Endpoint::Reset | Endpoint::ResetKey | Endpoint::Inspect | Endpoint::Cancel | Endpoint::Extend => {
                    Some(&Cost::Each(0))
                }
                // Whether any tokens are left, if some are wanted.
                Endpoint::Lease if request.leasing.as_ref().is_some_and(|leasing| leasing.tokens.is_none()) => {
                    Some(&Cost::Each(0))
                }
                _ => Some(&Cost::DEFAULT),
            };
            let cost = item.cost.as_ref().or(default);
            let costs_of = |cost: &Cost<'_>| {
                if is_of_any_size { Ok(cost.of_earlier(&policy, slots)) } else { cost.of(&policy, verb, slots) }
            };
            let costs = cost.map(costs_of).transpose();
            let costs =
                costs.map_err(|problem| beyond.clone().map_or(problem, |detail| Problem::BadRequest { detail }))?;
            impossible = impossible.take().or(beyond.map(|detail| Problem::BadRequest { detail }));
            Ok(ResolvedItem {
                key,
                costs,
                policy,
                cost: cost.filter(|_| endpoint != Endpoint::Lease || item.cost.is_some()).map(Cost::largest),
                wants_snapshot: item.snapshot,
            })
        };
        let mut items: Vec<ResolvedItem> = Vec::new();
        for (index, item) in request.items.iter().enumerate() {
            let item = resolved(item).map_err(|problem| match endpoint {
                Endpoint::Batch => problem.of_request(index),
                _ => problem,
            })?;
            let is_same = |other: &ResolvedItem| other.policy.name() == item.policy.name() && other.key == item.key;
            if let Some(first) = items.iter().position(is_same) {
                let both = format!("requests {first} and {index} have the same policy and key");
                return bad_request(format!("{both}: combine them, with the sum of their costs"));
            }
            items.push(item);
        }
        let lease = match (&request.leasing, items.as_slice()) {
            (Some(leasing), [item]) => Some(leasing.resolve(&item.policy)?),
            _ => None,
        };
        Ok(Self { endpoint, action, items, lease, by_grant: caller.has_grant(), random: 0, impossible })
    }
}

/// Checks that a request that takes from slots is a reservation, which gives them back. Where all limits are slots, there is nothing else
/// to change.
///
/// # Errors
/// [`Problem::BadRequest`].
fn require_reservation(endpoint: Endpoint, action: Action, policy: &Policy) -> Result<(), Problem> {
    let Some(slots) = policy.limits().iter().find(|limit| limit.is_slots()) else { return Ok(()) };
    let name = slots.full_name();
    match action {
        _ if endpoint == Endpoint::Batch => {
            bad_request(format!("{name} limits slots, which only a reservation takes, and no batch can reserve"))
        }
        Action::Take(verb) if verb.takes() => {
            bad_request(format!("{name} limits slots, which only a reservation takes: send \"mode\": \"reserve\""))
        }
        Action::Take(_) if policy.limits().iter().all(NamedLimit::is_slots) => bad_request(format!(
            "{name} limits slots, which are not charged, refunded or reset: settle or cancel their reservations"
        )),
        _ => Ok(()),
    }
}

/// Why a key's hash does not suffice.
fn by_prefix(policy: &str) -> String {
    format!(
        "{policy} has overrides by `prefix`, or had some in the last 31 days, and the hash of a key does not say whether one is for it: \
         give the key itself"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICIES: &str = r#"{"api":{"rate":9,"period":"1s"},"wide":{"rate":9,"period":"1s","ipv6_prefix":32}}"#;

    fn resolve(endpoint: Endpoint, body: &str) -> Result<Vec<(String, Vec<u8>)>, Problem> {
        let policies = Policies::parse(POLICIES).unwrap();
        let request = Request::parse(endpoint, body.as_bytes())?;
        let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0)?;
        Ok(resolved.items.into_iter().map(|item| (item.policy.name().to_owned(), item.key)).collect())
    }

    fn detail(endpoint: Endpoint, body: &str) -> String {
        match resolve(endpoint, body) {
            Err(Problem::BadRequest { detail }) => detail,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn inline_limits_need_a_name_that_no_policy_has() {
        let inline = |policy: &str| format!(r#"{{"policy":"{policy}","key":"a","limits":"9/1m"}}"#);
        assert_eq!(resolve(Endpoint::Consume, &inline("plan")), Ok(vec![("plan".to_owned(), b"a".to_vec())]));
        let expected = "api is a policy of this service: leave out `limits`, or use another name";
        assert_eq!(detail(Endpoint::Consume, &inline("api")), expected);
        let batch = format!(r#"{{"requests":[{},{}]}}"#, inline("plan"), inline("api"));
        assert_eq!(detail(Endpoint::Batch, &batch), format!("request 1: {expected}"));
        // The name and the key make a budget, whatever the numbers.
        let twice = format!(r#"{{"requests":[{},{}]}}"#, inline("plan"), inline("plan").replace('9', "8"));
        assert!(detail(Endpoint::Batch, &twice).starts_with("requests 0 and 1 have the same policy and key"));
        let cost = r#"{"policy":"plan","key":"a","limits":"9/1m","cost":10}"#;
        assert!(matches!(resolve(Endpoint::Consume, cost), Err(Problem::CostTooLarge { max: 9, .. })));
    }

    #[test]
    fn a_policy_with_one_budget_is_asked_without_a_key() {
        let policies = Policies::parse(r#"{"all":{"rate":"9/s","key":[]},"api":"9/s"}"#).unwrap();
        let key = |endpoint: Endpoint, body: &str, caller: &Caller<'_>| {
            let request = Request::parse(endpoint, body.as_bytes())?;
            ResolvedRequest::new(&request, &policies, caller, 0).map(|resolved| resolved.items[0].key.clone())
        };
        let bad = |detail: &str| Err(Problem::BadRequest { detail: detail.to_owned() });
        let grant = Caller::of_key(Key::Text("alice".into()), &["all", "api"]);
        for endpoint in [Endpoint::Consume, Endpoint::Peek, Endpoint::Charge, Endpoint::Inspect, Endpoint::ResetKey] {
            for caller in [&Caller::TRUSTED, &grant] {
                let key = |body: &str| key(endpoint, body, caller);
                assert_eq!(key(r#"{"policy":"all"}"#), Ok(vec![0xff, 1]), "{endpoint:?}");
                assert_eq!(key(r#"{"policy":"all","key":[]}"#), Ok(vec![0xff, 1]));
                let detail = "`key` must be left out: the policy has one budget for all";
                assert_eq!(key(r#"{"policy":"all","key":"alice"}"#), bad(detail));
                assert_eq!(key(r#"{"policy":"api","key":"alice"}"#), Ok(b"alice".to_vec()));
            }
            let key = |body: &str| key(endpoint, body, &Caller::TRUSTED);
            assert_eq!(key(r#"{"policy":"api"}"#), bad("the field `key` is missing"));
            assert_eq!(key(r#"{"policy":"api","key":[]}"#), bad("`key` is a list of 0; it must have 1 to 8 parts"));
        }
        let batch = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"all","key":"a"}]}"#;
        let detail = "request 1: `key` must be left out: the policy has one budget for all";
        assert_eq!(key(Endpoint::Batch, batch, &Caller::TRUSTED), bad(detail));
        assert!(key(Endpoint::Batch, &batch.replace(r#""all","key":"a""#, r#""all""#), &Caller::TRUSTED).is_ok());
    }

    #[test]
    fn only_a_grant_brings_a_key() {
        assert_eq!(detail(Endpoint::Consume, r#"{"policy":"api"}"#), "the field `key` is missing");
        let batch = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"api"}]}"#;
        assert_eq!(detail(Endpoint::Batch, batch), "request 1: the field `key` is missing");
    }

    #[test]
    fn an_address_is_cut_to_the_policys_prefix() {
        let body = r#"{"requests":[{"policy":"api","key":{"ip":"2001:db8:1::1"}},{"policy":"wide","key":{"ip":"2001:db8:1::1"}}]}"#;
        let items = resolve(Endpoint::Batch, body).unwrap();
        let [(_, api), (_, wide)] = items.as_slice() else { panic!("{items:?}") };
        assert_eq!(api, b"\xff\x06\x40\x20\x01\x0d\xb8\0\x01\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(wide, b"\xff\x06\x20\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn a_batch_names_no_budget_twice_however_its_key_is_written() {
        let batch = |policy: &str, a: &str, b: &str| {
            let items = [("api", a), ("wide", "\"x\""), (policy, b)];
            let items = items.map(|(policy, key)| format!(r#"{{"policy":"{policy}","key":{key}}}"#));
            detail(Endpoint::Batch, &format!(r#"{{"requests":[{}]}}"#, items.join(",")))
        };
        let same = "requests 0 and 2 have the same policy and key: combine them, with the sum of their costs";
        for (a, b) in [
            (r#""a""#, r#""\u0061""#),
            (r#"["a","b"]"#, r#"[ "a" , "b" ]"#),
            (r#"{"ip":"192.0.2.1"}"#, r#"{"ip":"::ffff:c000:201"}"#),
            (r#"{"ip":"2001:db8::1"}"#, r#"{"ip":"2001:db8::ffff:0:0:1"}"#), // in one /64
        ] {
            assert_eq!(batch("api", a, b), same, "{a} {b}");
            assert!(batch("wide", a, b).starts_with("Ok"), "{a} {b}");
        }
        for (a, b) in [
            (r#""a""#, r#""A""#),
            (r#""a""#, r#"["a"]"#),
            (r#"["a","b"]"#, r#"["ab"]"#),
            (r#""192.0.2.1""#, r#"{"ip":"192.0.2.1"}"#),
            (r#"{"ip":"2001:db8::1"}"#, r#"{"ip":"2001:db8:0:1::1"}"#),
        ] {
            assert!(batch("api", a, b).starts_with("Ok"), "{a} {b}");
        }
    }
}
