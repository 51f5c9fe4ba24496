//! A row that does not refill yet, for a key with a request every few seconds.
//!
//! A row refills like its bucket. Once both are full, the next token taken needs a row again: one for each request of such a key. So for a
//! nearly full bucket the row says *full except for a block, and refilling from `until` on*: a state ahead of the clock. Until then it
//! stays below the bucket, as long as no more than a block is missing. `persisted <= true <= persisted + block`:
//!
//! * Before `until`, the row stands still and the bucket does not. When written, the row is not above the bucket; a bucket falls only when
//!   tokens are taken, and then [`Bucket::row`](super::bucket::Bucket::row) compares them. The row plus a block is full, and no bucket is
//!   fuller.
//! * From `until` on, both refill alike, so neither overtakes the other.
//!
//! An object that wakes before `until` finds the bucket full except for a block, and lets it refill at once: it was that full at that
//! moment, too. Waiting until `until` would also lose the refill until then. To distinguish such a row from one written before the clock
//! stepped back, it has to know since when it is covered: a part of the row that earlier versions ignore. They do wait, and give nothing
//! away.
//!
//! Two objects of one key, which the runtime promises not to run, may both spend the refill while both live: at most a block.
//!
//! The cover lasts as long as the key has been in memory already, so that rarely used keys are written exactly, and at most a minute. It
//! lies no further below a full bucket than what refills in that time, so that a slow limit does not lose for hours what a crash costs.

use crate::limit::{Config, Kind, Limit, MAX_STEP_BACK_MS, Snapshot, State};
use crate::policy::{NamedLimit, Policy, default_write_ahead};

/// The longest time for which a row does not refill. An earlier version treats a state this far ahead of the clock as not refilled yet; it
/// takes one further ahead for a clock that stepped back, and lets it refill at once.
const MAX_COVER_MS: i64 = MAX_STEP_BACK_MS;

/// Tokens that a crash may cost: never more than the capacity, or a key could be locked out for long.
pub(super) fn block(limit: &NamedLimit) -> u64 {
    limit.write_ahead().min(limit.limit().config().capacity)
}

/// The same for an account of other numbers, of which only these are known.
pub(super) fn usual_block(config: &Config) -> u64 {
    // At least one token: otherwise each grant would write a row.
    default_write_ahead(config).max(config.capacity.div_ceil(20))
}

/// The states to write for a bucket in memory for `awake_ms`, if all limits are full enough. `states` are those of `policy`'s limits.
pub(super) fn cover(policy: &Policy, states: &[State], awake_ms: i64, now: i64) -> Option<Vec<State>> {
    let cover_ms = awake_ms.clamp(0, MAX_COVER_MS);
    let limits = policy.limits().iter().zip(states);
    limits.map(|(named, state)| covered(named, state, cover_ms.unsigned_abs(), now)).collect()
}

fn covered(named: &NamedLimit, state: &State, cover_ms: u64, now: i64) -> Option<State> {
    if named.is_slots() {
        return Some(*state); // always full
    }
    if named.limit().is_rolling() {
        return None; // a row does not bring anything back by itself
    }
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

/// A lower bound of the bucket at `at`, from a row covered since `since`. If the clock stepped back to before that, no time has passed.
pub(super) fn uncovered(limit: &Limit, state: &State, since: i64, at: i64) -> State {
    let covered = limit.snapshot(state);
    limit.restored(&Snapshot { at: at.max(since).min(covered.at), ..covered }).unwrap_or(*state)
}
