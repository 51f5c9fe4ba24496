//! A bucket as if held, reserved or leased tokens had been taken from it.

use crate::limit::{Decision, Limit, State, Verb};

/// The state without held tokens, or with them taken.
pub(super) fn without(limit: &Limit, state: &State, held: u64, now: i64) -> State {
    if held == 0 { *state } else { limit.lowered(&limit.refilled(state, now), held) }
}

/// When a refused cost passes while this many tokens are held, of which `leased` are leased, all of them `until` that moment at the latest.
/// If all leased ones are spent, there may be fewer than if they were taken now: the bucket was full with them.
pub(super) fn refusal_while_leased(
    limit: &Limit,
    state: &State,
    (held, leased, until): (u64, u64, i64),
    (cost, verb): (u64, Verb),
    (refusal, now): (Decision, i64),
) -> Decision {
    let at = |at: i64, held| limit.decide(without(limit, state, held, at), at, cost, verb).0;
    let spent = match refusal {
        Decision::Wait { retry_at } if at(retry_at, held).is_allow() => refusal,
        Decision::Wait { .. } => at(until, held),
        other => other,
    };
    match (spent, at(now, held.saturating_sub(leased))) {
        // The leased tokens may be returned.
        (Decision::Allow { .. }, _) | (Decision::Never { .. }, Decision::Allow { .. }) => {
            Decision::Wait { retry_at: until }
        }
        (Decision::Never { .. }, Decision::Wait { retry_at }) => Decision::Wait { retry_at: retry_at.max(until) },
        (Decision::Never { .. }, never) => never,
        (refusal, _) => refusal,
    }
}
