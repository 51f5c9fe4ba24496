//! The refusals that this isolate answers from memory: those of all of its frontends.

use std::cell::RefCell;

use super::call::Object;
use super::clock;
use super::leases::{OwnLeases, leasable};
use crate::api::{ResolvedItem, ResolvedRequest};
use crate::edge::{Bound, Refusals};
use crate::limit::Verb;
use crate::policy::{Cause, Policy};
use crate::protocol::{Action, Decided, ObjectReply, RequestId};

type Replies = Vec<Result<ObjectReply, Cause>>;

/// What the objects would answer to a request, if that is known and one of them would refuse. A repetition may have been granted
/// before, a snapshot is to be the latest, leases are the object's, and limits in shadow are to be tried.
pub(super) fn replies(
    asked: &ResolvedRequest,
    objects: &[Object],
    request_id: RequestId,
    leases: &OwnLeases,
) -> Option<Replies> {
    let (Action::Take(verb) | Action::Reserve(verb)) = asked.action() else { return None };
    let wants_more = |item: &ResolvedItem| item.wants_snapshot() || !item.policy.shadow_limits().is_empty();
    if request_id.is_lasting || asked.is_about_leases() || !verb.takes() || asked.items().iter().any(wants_more) {
        return None;
    }
    // What is leased does not come back for such a request, so the object would refuse it for longer.
    if leasable(asked, objects, request_id).is_none() && leases.withhold_any(asked, objects) {
        return None;
    }
    let known = REFUSALS.with_borrow_mut(|refusals| {
        if refusals.is_empty() {
            return None;
        }
        let now = clock::now();
        objects.iter().map(|object| bound(refusals, asked, object, verb, now)).collect::<Option<Vec<_>>>()
    })?;
    let is_refused = known.iter().any(|bound| bound.is_refused);
    is_refused.then(|| known.into_iter().map(|bound| Ok(ObjectReply::Decided(bound.decided))).collect())
}

/// What a single object would answer, if that is known and it would refuse: of those that [`replies`] looks for, too.
pub(super) fn of(asked: &ResolvedRequest, object: &Object, verb: Verb) -> Option<Decided> {
    let known = REFUSALS.with_borrow_mut(|refusals| bound(refusals, asked, object, verb, clock::now()))?;
    known.is_refused.then_some(known.decided)
}

fn bound(refusals: &mut Refusals, asked: &ResolvedRequest, object: &Object, verb: Verb, now: i64) -> Option<Bound> {
    refusals.bound(&object.name, costs_of(asked, object), verb, now)
}

/// What an object is asked for: each policy, and the cost of each of its limits.
fn costs_of<'a>(
    asked: &'a ResolvedRequest,
    object: &'a Object,
) -> impl Iterator<Item = (&'a Policy, &'a [u64])> + Clone {
    object.items_of(asked).map(|item| (&*item.policy, item.costs.as_deref().unwrap_or_default()))
}

/// Takes note of what the objects have answered to a request, beside what is leased.
pub(super) fn answered(
    asked: &ResolvedRequest,
    objects: &[Object],
    replies: &[Result<ObjectReply, Cause>],
    leases: &OwnLeases,
) {
    let is_refusal = |reply: &Result<ObjectReply, Cause>| matches!(reply, Ok(ObjectReply::Decided(decided)) if !decided.decision().is_allow());
    let is_refused = replies.iter().any(is_refusal);
    if !is_refused && matches!(asked.action(), Action::Look(_)) {
        return;
    }
    let leases = &mut leases.borrow_mut();
    REFUSALS.with_borrow_mut(|refusals| {
        for (object, reply) in objects.iter().zip(replies) {
            if let (Ok(ObjectReply::Decided(decided)), Some(asked_at)) = (reply, object.asked_at) {
                let policies = object.items_of(asked).map(|item| &*item.policy);
                let moments = (asked_at, object.answered_at);
                refusals.answered(&object.name, policies, (!is_refused, decided), moments, leases);
            }
        }
    });
}

/// Takes note that a lease has granted a request.
pub(super) fn spent(asked: &ResolvedRequest, objects: &[Object]) {
    REFUSALS.with_borrow_mut(|refusals| {
        for object in objects {
            let spent = |(policy, costs)| refusals.spent(&object.name, policy, costs, clock::now());
            costs_of(asked, object).for_each(spent);
        }
    });
}

/// Takes note that an object has given a lease at `given_at`, by its clock.
pub(super) fn leased(object: &Object, policy: &Policy, given_at: i64) {
    REFUSALS.with_borrow_mut(|refusals| refusals.leased(&object.name, policy, given_at, clock::now()));
}

/// Forgets how the key of an object stands, if the request gives something back to it. Answers of a key with reservations are not
/// remembered, so settling or cancelling one changes nothing.
pub(super) fn forget(asked: &ResolvedRequest, object: &Object) {
    if matches!(asked.action(), Action::Take(Verb::Refund | Verb::Reset)) {
        let now = clock::now();
        REFUSALS.with_borrow_mut(|refusals| {
            object.items_of(asked).for_each(|item| refusals.forget(&object.name, &item.policy, now));
        });
    }
}

thread_local! {
    static REFUSALS: RefCell<Refusals> = RefCell::default();
}
