//! How much of what a key can have open its callers may take up.

use crate::protocol::ObjectRequest;

/// The most open reservations of a key; each raise counts as one, and lengthens the row of its reservation. Each takes a row and some hundreds of bytes of memory; an object has at
/// most 128 MB.
pub const MAX_RESERVATIONS: usize = 1_000;

/// What holders of grants may take up of a number that a key is limited to: half, so that the rest is left to the backend that meters
/// them.
pub(super) const fn of_grants(max: usize) -> usize {
    max / 2
}

/// Whether the request's caller has taken up all that it may, which is then returned. For each that there is, it is given whether the holder of a
/// grant has made it.
pub(super) fn is_full(by_grants: impl Iterator<Item = bool>, request: &ObjectRequest, max: usize) -> Option<u64> {
    let (mut all, mut of_them) = (0_usize, 0_usize);
    for by_grant in by_grants {
        all = all.saturating_add(1);
        of_them = of_them.saturating_add(usize::from(by_grant));
    }
    if request.request_id.is_some_and(|id| id.by_grant) && of_them >= of_grants(max) {
        return Some(of_grants(max) as u64);
    }
    (all >= max).then_some(max as u64)
}
