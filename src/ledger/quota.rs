//! How much of a key's room for open state its callers may use.

use super::reservations::Openings;
use crate::policy::ReservationTerms;
use crate::protocol::ObjectRequest;

/// Maximum open reservations of a key.
pub const MAX_RESERVATIONS: usize = ReservationTerms::MAX_OPEN;

/// The part of `max` that holders of grants may use: half, so that the rest is left to the backend that meters them.
pub(super) const fn of_grants(max: usize) -> usize {
    max / 2
}

/// If the request's caller has used up its part of `max`, returns that part.
pub(super) fn is_full(open: Openings, request: &ObjectRequest, max: usize) -> Option<u64> {
    if request.request_id.is_some_and(|id| id.by_grant) && open.by_grants >= of_grants(max) {
        return Some(of_grants(max) as u64);
    }
    (open.all >= max).then_some(max as u64)
}
