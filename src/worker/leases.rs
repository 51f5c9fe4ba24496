//! The tokens that a frontend has taken in advance. Each has its own: another may ask other objects by the same names.

use std::cell::RefCell;
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
    /// What the leases say about a request; `None` if it must be asked each time: a repetition may have been granted before, and a
    /// snapshot is to be the latest. A batch takes from all its budgets or from none.
    pub(super) fn consume(&self, asked: &ResolvedRequest, objects: &[Object], request_id: RequestId) -> Option<Leased> {
        let ([object], [item]) = (objects, asked.items()) else { return None };
        if request_id.is_lasting
            || asked.is_about_leases()
            || item.wants_snapshot()
            || asked.action() != Action::Take(Verb::Consume)
        {
            return None;
        }
        let policy = &item.policy;
        policy.lease()?;
        let costs = item.costs.as_deref()?;
        Some(self.0.borrow_mut().consume(&object.name, policy, costs, clock::now()))
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

    /// Takes note that it was not asked after all.
    pub(super) fn withdrawn(&self, object: &Object, policy: &Policy, request: &LeaseRequest) {
        self.0.borrow_mut().withdrawn(&object.name, policy, request);
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
