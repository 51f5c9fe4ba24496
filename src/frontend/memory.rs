//! A frontend's knowledge of budgets, in terms of its requests.

use super::object::Object;
use crate::api::{ResolvedItem, ResolvedRequest};
use crate::edge::{Leased, LocalState, Return};
use crate::limit::Verb;
use crate::policy::{Cause, Policy};
use crate::protocol::{Action, Decided, LeaseRequest, ObjectReply, RequestId};

/// A frontend's knowledge of budgets, shared by its calls.
#[derive(Debug, Default)]
pub struct Memory(LocalState);

type Replies = Vec<Result<ObjectReply, Cause>>;

impl Memory {
    /// Answers a request from leases; `None` if they do not have enough or it must be sent each time.
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

    /// The objects' answers to a request, if known and one of them would refuse. Excluded are repetitions, which may have been granted
    /// before, requests for the latest snapshot, lease requests, and limits in shadow, which must be tried.
    pub(super) fn replies(
        &mut self,
        asked: &ResolvedRequest,
        objects: &[Object],
        request_id: RequestId,
        now: i64,
    ) -> Option<Replies> {
        let verb = asked.action().taking()?;
        let wants_more = |item: &ResolvedItem| item.wants_snapshot() || !item.policy.shadow_limits().is_empty();
        if request_id.is_lasting() || asked.is_about_leases() || asked.items().iter().any(wants_more) {
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

    /// The answer of a shard's object, if known to be a refusal. Sharded budgets are not leased.
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

    /// The lease request to send with such a request. The open leases end.
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

    /// Takes the object's answer about leases. Returns the lease's id, and the delay in milliseconds before [`Memory::end`].
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

    /// Records the objects' answers to a request.
    pub(super) fn answered(
        &mut self,
        asked: &ResolvedRequest,
        objects: &[Object],
        replies: &[Result<ObjectReply, Cause>],
    ) {
        let is_refused = replies.iter().flatten().any(ObjectReply::is_refusal);
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

    /// Records that the object did not answer about leases.
    pub(super) fn failed(&mut self, object: &Object, policy: &Policy, request: &LeaseRequest, now: i64) {
        self.0.failed(&object.name, policy, request, now);
    }

    /// The next step for a lease.
    pub(super) fn end(&mut self, object: &Object, policy: &Policy, lease: u64, now: i64) -> Return {
        self.0.end(&object.name, policy, lease, now)
    }

    /// Forgets what is known of an object's key, if the request gives something back to it. Answers about a key with reservations are not
    /// remembered, so settling, cancelling or extending one changes nothing.
    pub(super) fn forget(&mut self, asked: &ResolvedRequest, object: &Object, now: i64) {
        if matches!(asked.action(), Action::Take(Verb::Refund | Verb::Reset)) {
            let state = &mut self.0;
            object.items_of(asked).for_each(|item| state.forget(&object.name, &item.policy, now));
        }
    }
}

/// The only budget that a request takes from, if a lease may grant it: a repetition may have been granted before, and a snapshot must be
/// the latest. A batch takes from all its budgets or from none.
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

/// Each policy in an object's request, and the cost of each of its limits.
fn costs_of<'a>(
    asked: &'a ResolvedRequest,
    object: &'a Object,
) -> impl Iterator<Item = (&'a Policy, &'a [u64])> + Clone {
    object.items_of(asked).map(|item| (&*item.policy, item.enforced_costs()))
}
