//! How much of what a key can have open its callers may take up.

use super::reservations::Openings;
use crate::protocol::ObjectRequest;

/// The most open reservations of a key; each raise counts as one, and lengthens the row of its reservation. Each takes a row and some hundreds of bytes of memory; an object has at
/// most 128 MB.
pub const MAX_RESERVATIONS: usize = 1_000;

/// What holders of grants may take up of a number that a key is limited to: half, so that the rest is left to the backend that meters
/// them.
pub(super) const fn of_grants(max: usize) -> usize {
    max / 2
}

/// Whether the request's caller has taken up all that it may of what there is, which is then returned.
pub(super) fn is_full(open: Openings, request: &ObjectRequest, max: usize) -> Option<u64> {
    if request.request_id.is_some_and(|id| id.by_grant) && open.by_grants >= of_grants(max) {
        return Some(of_grants(max) as u64);
    }
    (open.all >= max).then_some(max as u64)
}
