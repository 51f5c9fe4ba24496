//! A request to an object.

use tollgate::protocol::{Action, ObjectRequest};

/// A request with only these costs, for each limit of each policy.
pub(crate) fn request(action: Action, costs: Vec<Vec<u64>>) -> ObjectRequest {
    let (request_id, shadow_costs, known, lease) = Default::default();
    ObjectRequest { action, request_id, costs, shadow_costs, known, has_consequences: false, lease }
}
