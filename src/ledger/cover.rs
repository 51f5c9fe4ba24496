//! A row that does not refill yet, for a key that is asked every few seconds.
//!
//! A row refills as its bucket does. Once both are full, the next token that is taken needs a row again: one for each request of such
//! a key. So for a bucket that is nearly full the row says *full but for a block, and refilling from `until` on*: a state ahead of the
//! clock. Until then it stays below the bucket, as long as no more than a block is missing. `persisted <= true <= persisted + block`:
//!
//! * Before `until`, the row stands still and the bucket does not. When the row is written it is not above the bucket, a bucket falls only
//!   when tokens are taken, and then [`Bucket::row`](super::bucket::Bucket::row) compares them. The row and a block are full, and no bucket
//!   is fuller.
//! * From `until` on, both refill alike, and what is not above the other stays so.
//!
//! An object that wakes before `until` finds the bucket full but for a block, and lets it refill at once: so full it was at that moment, too.
//! If it waited until `until`, it would also lose what comes back until then. To tell such a row from one that was written before the
//! clock stepped back, it has to know since when it is covered: a part of the row, which earlier versions ignore. They do wait, and
//! give nothing away.
//!
//! Two objects of one key, which the runtime promises not to run, may both spend what comes back while both live: at most a block.
//!
//! How long: as long as the key has been in memory already, so that one asked seldom is written exactly; and a minute at most. No
//! further down than what comes back within that time, so that a slow limit does not lose for hours what a crash costs.

use crate::limit::{Config, Kind, Limit, MAX_STEP_BACK_MS, Snapshot, State};
use crate::policy::{NamedLimit, Policy};

/// The longest time for which a row does not refill. To an earlier version, a state that is ahead of the clock by so much has not refilled;
/// one that is further ahead it takes for one of a clock that has stepped back, and lets it refill at once.
const MAX_COVER_MS: i64 = MAX_STEP_BACK_MS;

/// The tokens that a crash may cost: never more than the capacity, or a key could be locked out for long.
pub(super) fn block(limit: &NamedLimit) -> u64 {
    limit.write_ahead().min(limit.limit().config().capacity)
}

/// The states to write for a bucket that has been in memory for `awake_ms`, if all limits are that full. `states` are those of the limits
/// of `policy`.
pub(super) fn cover(policy: &Policy, states: &[State], awake_ms: i64, now: i64) -> Option<Vec<State>> {
    let cover_ms = awake_ms.clamp(0, MAX_COVER_MS);
    let limits = policy.limits().iter().zip(states);
    limits.map(|(named, state)| covered(named, state, cover_ms.unsigned_abs(), now)).collect()
}

fn covered(named: &NamedLimit, state: &State, cover_ms: u64, now: i64) -> Option<State> {
    let limit = named.limit();
    let Config { kind, rate, period_ms, capacity, .. } = *limit.config();
    let refill = u128::from(rate).saturating_mul(cover_ms.into()).checked_div(period_ms.into())?;
    let tokens = block(named).min(u64::try_from(refill).unwrap_or(u64::MAX));
    if kind != Kind::TokenBucket || tokens == 0 {
        return None; // a window refills only when the next one opens
    }
    let full = Snapshot { tokens: i64::try_from(capacity).ok()?, drops: 0, at: now.saturating_add_unsigned(cover_ms) };
    let covered = limit.lowered(&limit.restored(&full)?, tokens);
    limit.surplus_over(state, &covered, now).map(|_| covered)
}

/// What the bucket had at least at the moment `at`, of a row that is covered since a moment. If the clock has stepped back to before that,
/// no time has passed.
pub(super) fn uncovered(limit: &Limit, state: &State, since: i64, at: i64) -> State {
    let covered = limit.snapshot(state);
    limit.restored(&Snapshot { at: at.max(since).min(covered.at), ..covered }).unwrap_or(*state)
}
