//! A request about a budget that lies in several objects: see [`Policy::shards`].

use super::endpoint::Endpoint;
use super::problem::{Problem, bad_request};
use super::resolve::{ResolvedItem, ResolvedRequest};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::Action;

impl ResolvedRequest {
    /// Whether it is about a budget in several shards: then it is about no other.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.items.iter().any(|item| item.policy.shards().len() > 1)
    }

    /// The request with an item for each shard of its budgets. A refund is shared out among the shards, and `random` says who gets
    /// the rest.
    #[must_use]
    pub fn of_shards(&self, random: u64) -> Self {
        let all = self.items.iter().flat_map(|item| item.policy.shards().iter().zip(0_u64..).map(move |of| (item, of)));
        let items = all.map(|(whole, (policy, index))| {
            let count = whole.policy.shards().len() as u64;
            let place = index.wrapping_add(random).checked_rem(count).unwrap_or(0);
            let share = |cost: u64| {
                let (each, rest) = (cost.checked_div(count).unwrap_or(0), cost.checked_rem(count).unwrap_or(0));
                each.saturating_add(u64::from(place < rest))
            };
            let mut item = ResolvedItem { policy: policy.clone(), ..whole.clone() };
            if self.action == Action::Take(Verb::Refund) {
                item.costs = item.costs.map(|costs| costs.into_iter().map(share).collect());
            }
            item
        });
        Self { items: items.collect(), ..self.clone() }
    }

    /// A shard of the item's policy, if the answer is that of one of them: these differ by a token of the capacity at most, of
    /// which the first has the most.
    pub(super) fn shard_of<'a>(&self, item: &'a ResolvedItem) -> Option<&'a Policy> {
        item.policy.shards().first().map(|shard| &**shard).filter(|_| self.takes_from_one_shard())
    }

    /// Whether one shard is to grant it, rather than all have a part in it.
    #[must_use]
    pub fn takes_from_one_shard(&self) -> bool {
        self.action == Action::Take(Verb::Consume)
    }
}

/// Whether a request may be about a budget in several shards.
pub(super) fn check(endpoint: Endpoint, action: Action, wants_snapshot: bool, policy: &Policy) -> Result<(), Problem> {
    if policy.shards().len() < 2 {
        return Ok(());
    }
    let wrong = |what: &str, instead: &str| {
        let (name, shards) = (policy.name(), policy.shards().len());
        bad_request(format!("policy {name} has {shards} shards, which cannot {what}: {instead}"))
    };
    match (endpoint, action) {
        (Endpoint::Batch, _) => wrong("be part of a batch", "ask for it alone"),
        (_, Action::Take(Verb::Consume)) if wants_snapshot => {
            wrong("show a `snapshot` with each answer", "/v1/peek shows one of the whole")
        }
        (_, Action::Take(Verb::Consume | Verb::Refund | Verb::Reset) | Action::Look(_)) => Ok(()),
        (_, Action::Take(Verb::ConsumeUpTo)) => wrong("take as much as there is", "leave out `mode`"),
        (_, Action::Take(Verb::Charge)) => wrong("be charged", "consume before the work is done"),
        (_, Action::Take(_) | Action::Reserve(_) | Action::Settle(_) | Action::Cancel(_) | Action::Hold(_)) => {
            wrong("have debts or reservations", "leave out `mode`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::policy::Policies;

    fn resolved(endpoint: Endpoint, body: &str) -> Result<ResolvedRequest, Problem> {
        let policies = Policies::parse(r#"{"hot":{"rate":"100/s","shards":8},"cold":"5/s"}"#).unwrap();
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0)
    }

    #[test]
    fn what_shards_cannot_do_is_refused_with_what_would_do() {
        let one = r#"{"policy":"hot","key":"a"}"#;
        for (endpoint, body, expected) in [
            (Endpoint::Batch, r#"{"requests":[{"policy":"hot","key":"a"}]}"#, "be part of a batch: ask for it alone"),
            (Endpoint::Charge, one, "be charged: consume before the work is done"),
            (
                Endpoint::Consume,
                r#"{"policy":"hot","key":"a","mode":"reserve"}"#,
                "have debts or reservations: leave out `mode`",
            ),
            (
                Endpoint::Consume,
                r#"{"policy":"hot","key":"a","mode":"borrow"}"#,
                "have debts or reservations: leave out `mode`",
            ),
            (
                Endpoint::Consume,
                r#"{"policy":"hot","key":"a","mode":"up_to"}"#,
                "take as much as there is: leave out `mode`",
            ),
            (
                Endpoint::Consume,
                r#"{"policy":"hot","key":"a","snapshot":true}"#,
                "show a `snapshot` with each answer: /v1/peek shows one of the whole",
            ),
            (
                Endpoint::Cancel,
                r#"{"policy":"hot","key":"a","reservation":"0000000000001"}"#,
                "have debts or reservations: leave out `mode`",
            ),
        ] {
            let Err(Problem::BadRequest { detail }) = resolved(endpoint, body) else { panic!("{body}") };
            let expected = format!("policy hot has 8 shards, which cannot {expected}");
            assert!(detail.ends_with(&expected), "{detail}");
        }
        for endpoint in [Endpoint::Consume, Endpoint::Peek, Endpoint::Inspect, Endpoint::Refund, Endpoint::Reset] {
            assert!(resolved(endpoint, one).is_ok(), "{endpoint:?}");
        }
    }

    #[test]
    fn a_cost_is_at_most_what_the_largest_shard_has() {
        let consume = |cost| resolved(Endpoint::Consume, &format!(r#"{{"policy":"hot","key":"a","cost":{cost}}}"#));
        assert!(consume(13).is_ok());
        assert!(matches!(consume(14), Err(Problem::CostTooLarge { max: 13, .. })));
    }

    #[test]
    fn a_refund_is_shared_out() {
        let asked = resolved(Endpoint::Refund, r#"{"policy":"hot","key":"a","cost":11}"#).unwrap();
        let shares = |random| {
            let items = asked.of_shards(random).items;
            items.iter().map(|item| item.costs.clone().unwrap()[0]).collect::<Vec<_>>()
        };
        assert_eq!(shares(0), [2, 2, 2, 1, 1, 1, 1, 1]);
        assert_eq!(shares(6), [1, 1, 2, 2, 2, 1, 1, 1]);
        let taken = resolved(Endpoint::Consume, r#"{"policy":"hot","key":"a","cost":11}"#).unwrap();
        assert!(taken.of_shards(6).items.iter().all(|item| item.costs == Some(vec![11])));
        assert!(taken.is_sharded());
        assert!(!resolved(Endpoint::Consume, r#"{"policy":"cold","key":"a"}"#).unwrap().is_sharded());
    }
}
