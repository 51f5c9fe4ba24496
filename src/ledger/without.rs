//! A bucket as if tokens were taken from it: those that are held, reserved or leased.

use crate::limit::{Limit, State};

/// The state without tokens that are held, or with them taken.
pub(super) fn without(limit: &Limit, state: &State, held: u64, now: i64) -> State {
    if held == 0 { *state } else { limit.lowered(&limit.refilled(state, now), held) }
}
