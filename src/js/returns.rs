//! Exports that only the larger module of `tollgate/kinds` has, for the states of rolling windows: how long they are, and what comes back when.

#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use super::exports::Bucket;
use super::number::{i64_from_f64, u64_from_f64};
use crate::limit::{RollingWindow, State};

/// How many words of 32 bits the state of this bucket has.
#[unsafe(no_mangle)]
pub extern "C" fn words(bucket: &Bucket) -> usize {
    let moments = bucket.rolling.window(&bucket.limit).map_or(0, |window| window.max_moments());
    moments.saturating_add(1).saturating_mul(size_of::<State>() / 4)
}

/// Begins to restore a rolling window that has so many tokens. [`restore_return`] has the others.
#[unsafe(no_mangle)]
pub extern "C" fn restore_rolling(bucket: &mut Bucket, tokens: f64, at: f64) -> bool {
    let (tokens, at) = (u64_from_f64(tokens), i64_from_f64(at));
    let missing = bucket.limit.config().capacity.checked_sub(tokens).filter(|_| bucket.limit.is_rolling());
    let Some(missing) = missing else { return false };
    bucket.rolling.clear();
    bucket.state = bucket.limit.lowered(&bucket.limit.new_state(at, 0), missing);
    true
}

/// Adds tokens that come back at that moment, in the order of their moments; none after the last of them. Returns whether the bucket can be in
/// that state.
#[unsafe(no_mangle)]
pub extern "C" fn restore_return(bucket: &mut Bucket, at: f64, tokens: f64) -> bool {
    let Some(window) = bucket.rolling.window(&bucket.limit) else { return false };
    let (at, tokens) = (i64_from_f64(at), u64_from_f64(tokens));
    let moments = bucket.rolling.moments_mut(&window);
    let missing = i128::from(bucket.limit.config().capacity) - i128::from(bucket.limit.snapshot(&bucket.state).tokens);
    let is_added = tokens == 0 || window.add_return(&bucket.state, moments, at, tokens);
    let taken = i128::from(RollingWindow::taken(moments));
    is_added && if tokens == 0 { taken == missing } else { taken <= missing }
}
