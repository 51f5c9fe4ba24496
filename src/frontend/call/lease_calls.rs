//! Calls about leases only.

use super::super::Now;
use super::super::object::Object;
use super::leases::Leasing;
use super::plan::{Calls, Plan};
use super::report::Reports;
use super::requests::known_of;
use super::{Asked, Call, Purpose};
use crate::edge::{Batch, Return};
use crate::limit::Verb;
use crate::metrics::DecidedBy;
use crate::protocol::{Action, LeaseRequest, ObjectRequest};

impl Call {
    /// The lease call to make in the background of this one.
    #[must_use]
    pub fn renewal(&mut self, now: Now) -> Option<Self> {
        let renewal = self.plan.leasing.renewal.take()?;
        self.about_leases(renewal, now)
    }

    /// Delay in milliseconds before [`Call::end_lease`]; `None` if no lease came with the answer.
    #[must_use]
    pub const fn lease_ms(&self) -> Option<u64> {
        match self.plan.leasing.leased {
            Some((_, ms)) => Some(ms),
            None => None,
        }
    }

    /// The call that returns the lease, if it is idle or over; `None` if there is nothing to return, or not yet: see [`Call::lease_ms`].
    #[must_use]
    pub fn end_lease(&mut self, now: Now) -> Option<Self> {
        let (lease, _) = self.plan.leasing.leased.take()?;
        let (object, item) = (self.plan.objects.first()?, self.asked.whole.items().first()?);
        let end = self.shared.memory.borrow_mut().end(object, &item.policy, lease, now.at);
        match end {
            Return::Send(ended) => self.about_leases(ended, now),
            Return::Wait(ms) => {
                self.plan.leasing.leased = Some((lease, ms));
                None
            }
            Return::Over => None,
        }
    }

    /// A call with nothing but the lease request.
    fn about_leases(&self, lease: LeaseRequest, now: Now) -> Option<Self> {
        let object = self.plan.objects.first()?;
        let whole = &self.asked.whole;
        let request = ObjectRequest {
            action: Action::Look(Verb::Consume),
            request_id: None,
            costs: vec![vec![0; whole.items().first()?.policy.limits().len()]],
            shadow_costs: Vec::new(),
            known: known_of(whole, object, &self.asked.terms.in_force),
            has_consequences: false,
            lease: Some(lease.clone()),
        };
        let batch = Batch::new(vec![request], now.waiting);
        let batch = if self.asked.terms.sends_definitions { batch.with_definitions() } else { batch };
        Some(Self {
            asked: Asked { purpose: Purpose::Leases, ..self.asked.clone() },
            plan: Plan {
                objects: vec![Object::new(object.name.clone(), vec![0])],
                calls: Calls::Batch(batch),
                leasing: Leasing { request: Some(lease), ..Leasing::default() },
                decided_by: DecidedBy::Object,
                began_at: now.waiting,
            },
            shared: self.shared.clone(),
            done: None,
            reports: Reports::default(),
        })
    }
}
