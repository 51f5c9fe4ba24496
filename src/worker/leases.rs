//! The tokens that this isolate has taken in advance: those of all of its frontends.

use std::cell::RefCell;

use super::call::Object;
use super::clock;
use crate::api::ResolvedRequest;
use crate::edge::{Leased, Leases, Return};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::{Action, Decided, LeaseRequest, RequestId};

/// What the leases say about a request; `None` if it must be asked each time: a repetition may have been granted before, and a
/// snapshot is to be the latest. A batch takes from all its budgets or from none.
pub(super) fn consume(asked: &ResolvedRequest, objects: &[Object], request_id: RequestId) -> Option<Leased> {
    let ([object], [item]) = (objects, asked.items()) else { return None };
    if request_id.is_lasting || item.wants_snapshot() || asked.action() != Action::Take(Verb::Consume) {
        return None;
    }
    let policy = &item.policy;
    policy.lease()?;
    let costs = item.costs.as_deref()?;
    Some(LEASES.with_borrow_mut(|leases| leases.consume(&object.name, policy, costs, clock::now())))
}

/// Takes over what the object has answered. Returns the lease's id, and in how many milliseconds to call [`end`].
pub(super) fn answered(
    object: &Object,
    policy: &Policy,
    request: &LeaseRequest,
    decided: &Decided,
) -> Option<(u64, u64)> {
    let called_at = object.asked_at?;
    let moments = (called_at, object.answered_at);
    LEASES.with_borrow_mut(|leases| leases.answered(&object.name, policy, request, decided, moments))
}

/// Takes note that it has not answered.
pub(super) fn failed(object: &Object, policy: &Policy) {
    LEASES.with_borrow_mut(|leases| leases.failed(&object.name, policy, clock::now()));
}

/// Takes note that it was not asked after all.
pub(super) fn withdrawn(object: &Object, policy: &Policy) {
    LEASES.with_borrow_mut(|leases| leases.withdrawn(&object.name, policy));
}

/// What to do about a lease now.
pub(super) fn end(object: &Object, policy: &Policy, lease: u64) -> Return {
    LEASES.with_borrow_mut(|leases| leases.end(&object.name, policy, lease, clock::now()))
}

thread_local! {
    static LEASES: RefCell<Leases> = RefCell::default();
}
