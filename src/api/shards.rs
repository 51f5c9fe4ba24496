//! Requests about a budget in several objects: see [`Policy::shards`].

use super::cost::Costs;
use super::problem::Problem;
use super::resolved::{ResolvedItem, ResolvedRequest};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::Action;

impl ResolvedRequest {
    /// Whether it is about a budget in several shards; it is then its only one.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.items.iter().any(|item| item.policy.shards().len() > 1)
    }

    /// The request with an item for each shard of its budget, at the costs of the whole.
    #[must_use]
    pub fn of_shards(&self) -> Self {
        let all = self.items.iter().flat_map(|item| item.policy.shards().iter().map(move |shard| (item, shard)));
        let items = all.map(|(whole, policy)| ResolvedItem { policy: policy.clone(), ..whole.clone() });
        Self { items: items.collect(), ..self.clone() }
    }

    /// The same request, or why shards cannot do it. With an `Idempotency-Key` it may have been done before its policy had shards: then
    /// only the first shard is asked, for the earlier answer.
    ///
    /// # Errors
    /// [`Problem::BadRequest`].
    pub fn within_shards(mut self, has_idempotency_key: bool) -> Result<Self, Problem> {
        if has_idempotency_key && self.is_sharded() && self.takes_from_one_shard() {
            // A shard remembers grants but not refusals: another shard could grant a repetition.
            let detail = "a policy with shards cannot take an Idempotency-Key with `consume`: leave it out";
            self.impossible.get_or_insert_with(|| Problem::BadRequest { detail: detail.to_owned() });
        }
        match self.impossible {
            Some(problem) if !has_idempotency_key => Err(problem),
            _ => Ok(self),
        }
    }

    /// The request that asks the key's own object, which is the first shard, whether an act that is impossible now was done before. `None`
    /// if it is possible.
    #[must_use]
    pub fn recalled(&self) -> Option<Self> {
        self.impossible.as_ref()?;
        let mut first = if self.is_sharded() { self.of_shards() } else { self.clone() };
        first.items.truncate(1);
        first.lease = None;
        first.action = Action::Look(Verb::Refund);
        for item in &mut first.items {
            item.costs = Some(Costs { enforced: vec![0; item.policy.limits().len()], ..Costs::default() });
        }
        Some(first)
    }

    /// Whether an object must return its earlier answer to a request with this id, even to a look.
    #[must_use]
    pub const fn is_recalled(&self) -> bool {
        self.impossible.is_some()
    }

    /// A shard of the item's policy, if one of them answered: their capacities differ by at most one token, and the first has the largest.
    pub(super) fn shard_of<'a>(&self, item: &'a ResolvedItem) -> Option<&'a Policy> {
        item.policy.shards().first().map(|shard| &**shard).filter(|_| self.takes_from_one_shard())
    }

    /// Whether one shard is to grant it, rather than all together.
    #[must_use]
    pub fn takes_from_one_shard(&self) -> bool {
        self.action == Action::Take(Verb::Consume)
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::super::endpoint::Endpoint;
    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::policy::Policies;

    fn resolved(endpoint: Endpoint, body: &str) -> Result<ResolvedRequest, Problem> {
        let policies = Policies::parse(r#"{"hot":{"rate":"100/s","shards":8},"cold":"5/s"}"#).unwrap();
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0)?.within_shards(false)
    }

    #[test]
    fn what_shards_cannot_do_is_refused_with_an_alternative() {
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
        ] {
            let Err(Problem::BadRequest { detail }) = resolved(endpoint, body) else { panic!("{body}") };
            let expected = format!("policy hot has 8 shards, which cannot {expected}");
            assert!(detail.ends_with(&expected), "{detail}");
        }
        for endpoint in [Endpoint::Consume, Endpoint::Peek, Endpoint::Inspect, Endpoint::Refund, Endpoint::Reset] {
            assert!(resolved(endpoint, one).is_ok(), "{endpoint:?}");
        }
        // A reservation may have been made before the policy had shards.
        for endpoint in [Endpoint::Settle, Endpoint::Cancel] {
            let body = r#"{"policy":"hot","key":"a","reservation":"0000000000001"}"#;
            assert!(resolved(endpoint, body).is_ok(), "{endpoint:?}");
        }
    }

    /// It may have been done before the policy had shards.
    #[test]
    fn with_an_idempotency_key_the_first_shard_is_asked_whether_it_was_done() {
        use crate::protocol::{Decided, LimitAnswer, ObjectReply};
        let policies = Policies::parse(r#"{"hot":{"rate":"100/s","shards":8},"cold":"5/s"}"#).unwrap();
        let repeated = |endpoint, more: &str| {
            let body = format!(r#"{{"policy":"hot","key":"a"{more}}}"#);
            let request = Request::parse(endpoint, body.as_bytes()).unwrap();
            ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0).unwrap().within_shards(true).unwrap()
        };
        for (endpoint, more, expected) in [
            (Endpoint::Consume, "", "take an Idempotency-Key with `consume`: leave it out"),
            (Endpoint::Charge, "", "be charged: consume before the work is done"),
            (Endpoint::Consume, r#","mode":"reserve""#, "have debts or reservations: leave out `mode`"),
            (Endpoint::Consume, r#","mode":"up_to""#, "take as much as there is: leave out `mode`"),
        ] {
            let asked = repeated(endpoint, more);
            let first = asked.recalled().unwrap();
            let [item] = &first.items[..] else { panic!("{first:?}") };
            assert_eq!((first.action, item.enforced_costs()), (Action::Look(Verb::Refund), &[0][..]));
            assert_eq!(item.policy.shard().unwrap().index, 0);
            let limit = item.policy.limits()[0].limit();
            let (decision, state) = limit.decide(limit.new_state(0, 0), 0, 1, Verb::Consume);
            let decided = Decided::new(0, vec![LimitAnswer::new(limit, decision, &state, 0)]);
            let replayed = Decided { is_replayed: true, ..decided.clone() };
            let reply = |decided| asked.reply(&ObjectReply::Decided(decided));
            let Err(Problem::BadRequest { detail }) = reply(decided) else { panic!("{more}: it was not done before") };
            assert!(detail.ends_with(expected), "{detail}");
            assert!(reply(replayed).unwrap().body().contains(r#""replayed":true"#));
            assert_eq!(asked.reply(&ObjectReply::RequestIdReused), Err(Problem::IdempotencyKeyReused));
        }
        for endpoint in [Endpoint::Refund, Endpoint::Reset, Endpoint::Peek] {
            assert!(repeated(endpoint, "").recalled().is_none(), "{endpoint:?}");
        }
    }

    #[test]
    fn a_cost_may_not_exceed_the_largest_shard() {
        let consume = |cost| resolved(Endpoint::Consume, &format!(r#"{{"policy":"hot","key":"a","cost":{cost}}}"#));
        assert!(consume(13).is_ok());
        assert!(matches!(consume(14), Err(Problem::CostTooLarge { max: 13, .. })));
    }

    #[test]
    fn each_shard_gets_an_item_with_the_whole_cost() {
        let asked = resolved(Endpoint::Refund, r#"{"policy":"hot","key":"a","cost":11}"#).unwrap();
        let items = asked.of_shards().items;
        let shards: Vec<_> =
            items.iter().map(|item| (item.policy.shard().unwrap().index, item.enforced_costs())).collect();
        assert_eq!(shards, (0..8).map(|index| (index, &[11][..])).collect::<Vec<_>>());
        assert!(asked.is_sharded());
        assert!(!resolved(Endpoint::Consume, r#"{"policy":"cold","key":"a"}"#).unwrap().is_sharded());
    }
}
