//! The tokens that a frontend has taken in advance. Each has its own: another may ask other objects by the same names.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use super::call::Object;
use super::clock;
use crate::api::ResolvedRequest;
use crate::edge::{Leased, Leases, Return};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::{Action, Decided, LeaseRequest, RequestId};

/// Those of a frontend, shared by its calls.
#[derive(Clone, Default)]
pub(super) struct OwnLeases(Rc<RefCell<Leases>>);

impl OwnLeases {
    pub(super) fn borrow_mut(&self) -> RefMut<'_, Leases> {
        self.0.borrow_mut()
    }

    /// What the leases say about a request; `None` if they have not enough, or it must be asked each time.
    pub(super) fn consume(&self, asked: &ResolvedRequest, objects: &[Object], request_id: RequestId) -> Option<Leased> {
        let (object, policy, costs) = leasable(asked, objects, request_id)?;
        self.0.borrow_mut().consume(&object.name, policy, costs, clock::now())
    }

    /// What to ask the object about leases beside such a request. They end.
    pub(super) fn ask(
        &self,
        asked: &ResolvedRequest,
        objects: &[Object],
        request_id: RequestId,
    ) -> Option<LeaseRequest> {
        let (object, policy, costs) = leasable(asked, objects, request_id)?;
        self.0.borrow_mut().ask(&object.name, policy, costs, clock::now())
    }

    /// Whether something is left of leases from these objects, for the budgets that they are asked for.
    pub(super) fn withhold_any(&self, asked: &ResolvedRequest, objects: &[Object]) -> bool {
        let leases = &mut *self.0.borrow_mut();
        let mut asked_of = objects.iter().flat_map(|object| object.items_of(asked).map(move |item| (object, item)));
        asked_of.any(|(object, item)| leases.withhold_any(&object.name, &item.policy))
    }

    /// Takes over what the object has answered. Returns the lease's id, and in how many milliseconds to call [`OwnLeases::end`].
    pub(super) fn answered(
        &self,
        object: &Object,
        policy: &Policy,
        request: &LeaseRequest,
        decided: &Decided,
    ) -> Option<(u64, u64)> {
        let moments = (object.asked_at?, object.answered_at);
        self.0.borrow_mut().answered(&object.name, policy, request, decided, moments)
    }

    /// Takes note that it has not answered.
    pub(super) fn failed(&self, object: &Object, policy: &Policy, request: &LeaseRequest) {
        self.0.borrow_mut().failed(&object.name, policy, request, clock::now());
    }

    /// What to do about a lease now.
    pub(super) fn end(&self, object: &Object, policy: &Policy, lease: u64) -> Return {
        self.0.borrow_mut().end(&object.name, policy, lease, clock::now())
    }

    /// Waits no longer for tokens to come back, if the request gives some back.
    pub(super) fn forget(&self, asked: &ResolvedRequest, object: &Object) {
        if matches!(asked.action(), Action::Take(Verb::Refund | Verb::Reset)) {
            object.items_of(asked).for_each(|item| self.0.borrow_mut().forget(&object.name, &item.policy));
        }
    }
}

/// The only budget that a request takes from, if it may be granted by a lease: a repetition may have been granted before, and a snapshot is
/// to be the latest. A batch takes from all its budgets or from none.
pub(super) fn leasable<'a>(
    asked: &'a ResolvedRequest,
    objects: &'a [Object],
    request_id: RequestId,
) -> Option<(&'a Object, &'a Policy, &'a [u64])> {
    let ([object], [item]) = (objects, asked.items()) else { return None };
    let is_simple = asked.action() == Action::Take(Verb::Consume) && !asked.is_about_leases();
    if request_id.is_lasting || !is_simple || item.wants_snapshot() {
        return None;
    }
    item.policy.lease()?;
    Some((object, &item.policy, item.costs.as_deref()?))
}
