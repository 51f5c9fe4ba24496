//! The requests to objects.

use super::super::Now;
use super::super::object::Object;
use super::asked::Asked;
use crate::api::{Costs, ResolvedItem, ResolvedRequest};
use crate::edge::{Batch, InForce};
use crate::protocol::{Action, Known, LeaseRequest, ObjectRequest, RequestId};

/// The requests to objects, and their order.
pub(super) fn batch_of(
    asked: &Asked,
    objects: &[Object],
    of_request: (RequestId, Option<LeaseRequest>),
    hold_ids: &[u64],
    now: Now,
) -> Batch {
    let is_open = |object: &Object| !object.items_of(asked.parts()).any(ResolvedItem::is_enforced);
    let batch = Batch::new(requests_of(asked, objects, of_request, hold_ids), now.waiting);
    let batch = batch.with_open(objects.iter().map(is_open));
    if asked.terms.sends_definitions || asked.whole.has_inline() { batch.with_definitions() } else { batch }
}

/// Each object's request, with its lease messages.
pub(super) fn requests_of(
    asked: &Asked,
    objects: &[Object],
    (request_id, lease): (RequestId, Option<LeaseRequest>),
    hold_ids: &[u64],
) -> Vec<ObjectRequest> {
    let (parts, terms) = (asked.parts(), &asked.terms);
    let recalled = parts.recalled().filter(|_| asked.of_shards.is_none());
    let parts = recalled.as_ref().unwrap_or(parts);
    let lease = lease.or_else(|| parts.lease().cloned());
    let has_consequences = parts.may_ban() || terms.receivers.is_any() && parts.may_notify();
    let requests = objects.iter().enumerate().map(|(index, object)| {
        let action = match hold_ids.get(index) {
            Some(&id) => Action::Hold(id),
            None => parts.action(),
        };
        // A peek changes nothing, so repetitions need not be recognized.
        let request_id = (!matches!(action, Action::Look(_)) || parts.is_recalled()).then_some(request_id);
        // Empty if a reservation is settled at its reserved cost.
        let costs = object.items_of(parts).filter_map(|item| item.costs.clone());
        let (costs, mut shadow_costs): (Vec<_>, Vec<_>) =
            costs.map(|Costs { enforced, shadow }| (enforced, shadow)).unzip();
        if shadow_costs.iter().all(Vec::is_empty) {
            shadow_costs.clear();
        }
        let known = known_of(parts, object, &terms.in_force);
        ObjectRequest { action, request_id, costs, shadow_costs, known, has_consequences, lease: lease.clone() }
    });
    requests.collect()
}

/// The registry version known for the policies in the object's request, if there is a registry.
pub(super) fn known_of(asked: &ResolvedRequest, object: &Object, in_force: &InForce) -> Option<Known> {
    let id = |item: &ResolvedItem| if item.policy.timeline().since() == 0 { 0 } else { item.policy.id() };
    let names = object.items_of(asked).map(|item| item.policy.name());
    in_force.as_of(names).map(|as_of| Known { as_of, ids: object.items_of(asked).map(id).collect() })
}
