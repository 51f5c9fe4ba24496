//! What a frontend knows of budgets, as its requests ask and tell it.

use super::object::Object;
use crate::api::{ResolvedItem, ResolvedRequest};
use crate::edge::{Leased, LocalState, Return};
use crate::limit::Verb;
use crate::policy::{Cause, Policy};
use crate::protocol::{Action, Decided, LeaseRequest, ObjectReply, RequestId};

/// What a frontend knows, shared by its calls.
#[derive(Debug, Default)]
pub struct Memory(LocalState);

type Replies = Vec<Result<ObjectReply, Cause>>;

impl Memory {
    /// What the leases say about a request; `None` if they have not enough, or it must be asked each time.
    pub(super) fn consume(
        &mut self,
        asked: &ResolvedRequest,
        objects: &[Object],
        request_id: RequestId,
        now: i64,
    ) -> Option<Leased> {
        let (object, policy, costs) = leasable(asked, objects, request_id)?;
        self.0.consume(&object.name, policy, costs, now)
    }

    /// What the objects would answer to a request, if that is known and one of them would refuse. A repetition may have been granted
    /// before, a snapshot is to be the latest, leases are the object's, and limits in shadow are to be tried.
    pub(super) fn replies(
        &mut self,
        asked: &ResolvedRequest,
        objects: &[Object],
        request_id: RequestId,
        now: i64,
    ) -> Option<Replies> {
        let (Action::Take(verb) | Action::Reserve(verb)) = asked.action() else { return None };
        let wants_more = |item: &ResolvedItem| item.wants_snapshot() || !item.policy.shadow_limits().is_empty();
        if request_id.is_lasting() || asked.is_about_leases() || !verb.takes() || asked.items().iter().any(wants_more) {
            return None;
        }
        let state = &mut self.0;
        if !state.remembers_any() {
            return None;
        }
        let may_be_leased = leasable(asked, objects, request_id).is_some();
        let known = objects.iter().map(|object| {
            let costs = costs_of(asked, object);
            state.bound(&object.name, costs, verb, may_be_leased, now)
        });
        let known = known.collect::<Option<Vec<_>>>()?;
        let is_refused = known.iter().any(|bound| bound.is_refused);
        is_refused.then(|| known.into_iter().map(|bound| Ok(ObjectReply::Decided(bound.decided))).collect())
    }

    /// What the object of a shard would answer, if that is known and it would refuse. What has shards is not leased.
    pub(super) fn reply_of_shard(
        &mut self,
        asked: &ResolvedRequest,
        object: &Object,
        verb: Verb,
        now: i64,
    ) -> Option<Decided> {
        let state = &mut self.0;
        if !state.remembers_any() {
            return None;
        }
        let known = state.bound(&object.name, costs_of(asked, object), verb, false, now)?;
        known.is_refused.then_some(known.decided)
    }

    /// What to ask the object about leases beside such a request. They end.
    pub(super) fn ask(
        &mut self,
        asked: &ResolvedRequest,
        objects: &[Object],
        request_id: RequestId,
        now: i64,
    ) -> Option<LeaseRequest> {
        let (object, policy, costs) = leasable(asked, objects, request_id)?;
        self.0.ask(&object.name, policy, costs, now)
    }

    /// Takes over what the object has answered about leases. Returns the lease's id, and in how many milliseconds to call [`Memory::end`].
    pub(super) fn leased(
        &mut self,
        object: &Object,
        policy: &Policy,
        request: &LeaseRequest,
        decided: &Decided,
    ) -> Option<(u64, u64)> {
        let moments = (object.asked_at?, object.answered_at);
        self.0.leased(&object.name, policy, request, decided, moments)
    }

    /// Takes note of what the objects have answered to a request.
    pub(super) fn answered(
        &mut self,
        asked: &ResolvedRequest,
        objects: &[Object],
        replies: &[Result<ObjectReply, Cause>],
    ) {
        let is_refusal = |reply: &Result<ObjectReply, Cause>| matches!(reply, Ok(ObjectReply::Decided(decided)) if !decided.decision().is_allow());
        let is_refused = replies.iter().any(is_refusal);
        if !is_refused && matches!(asked.action(), Action::Look(_)) {
            return;
        }
        let state = &mut self.0;
        for (object, reply) in objects.iter().zip(replies) {
            if let (Ok(ObjectReply::Decided(decided)), Some(asked_at)) = (reply, object.asked_at) {
                let policies = object.items_of(asked).map(|item| &*item.policy);
                state.answered(&object.name, policies, (!is_refused, decided), (asked_at, object.answered_at));
            }
        }
    }

    /// Takes note that the object has not answered about leases.
    pub(super) fn failed(&mut self, object: &Object, policy: &Policy, request: &LeaseRequest, now: i64) {
        self.0.failed(&object.name, policy, request, now);
    }

    /// What to do about a lease now.
    pub(super) fn end(&mut self, object: &Object, policy: &Policy, lease: u64, now: i64) -> Return {
        self.0.end(&object.name, policy, lease, now)
    }

    /// Forgets how the key of an object stands, if the request gives something back to it. Answers of a key with reservations are not
    /// remembered, so settling, cancelling or extending one changes nothing.
    pub(super) fn forget(&mut self, asked: &ResolvedRequest, object: &Object, now: i64) {
        if matches!(asked.action(), Action::Take(Verb::Refund | Verb::Reset)) {
            let state = &mut self.0;
            object.items_of(asked).for_each(|item| state.forget(&object.name, &item.policy, now));
        }
    }
}

/// The only budget that a request takes from, if it may be granted by a lease: a repetition may have been granted before, and a snapshot is
/// to be the latest. A batch takes from all its budgets or from none.
fn leasable<'a>(
    asked: &'a ResolvedRequest,
    objects: &'a [Object],
    request_id: RequestId,
) -> Option<(&'a Object, &'a Policy, &'a [u64])> {
    let ([object], [item]) = (objects, asked.items()) else { return None };
    let is_simple = asked.action() == Action::Take(Verb::Consume) && !asked.is_about_leases();
    if request_id.is_lasting() || !is_simple || item.wants_snapshot() {
        return None;
    }
    item.policy.frontend().lease?;
    Some((object, &item.policy, &item.costs.as_ref()?.enforced))
}

/// What an object is asked for: each policy, and the cost of each of its limits.
fn costs_of<'a>(
    asked: &'a ResolvedRequest,
    object: &'a Object,
) -> impl Iterator<Item = (&'a Policy, &'a [u64])> + Clone {
    object.items_of(asked).map(|item| (&*item.policy, item.enforced_costs()))
}
