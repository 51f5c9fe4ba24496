//! Keys that their policy does not limit as it says: banned, or without limits.
//!
//! Only requests that take tokens are answered otherwise. What is given back, charged or settled is counted as ever, and the
//! buckets refill as ever. So afterwards a bucket is what it would be if
//!
//! * a banned key had asked for nothing meanwhile;
//! * a key without limits had taken meanwhile what there was, down to zero and not into debt.

use crate::limit::{Decision, Part, Verb, decide_policies};
use crate::policy::{Policy, Standing};

/// Whether `policy` grants whatever is asked for.
pub(super) fn is_unlimited(policy: &Policy, verb: Verb) -> bool {
    verb.takes() && policy.standing() == Standing::Unlimited
}

/// Each limit says what it would grant without the ban, and nothing is taken.
pub(super) fn refuse_all(policies: &mut [Vec<Part<'_>>], now: i64, verb: Verb, banned: Decision) -> Decision {
    let mut decided = policies.to_vec();
    decide_policies(&mut decided, now, verb);
    for (part, decided) in policies.iter_mut().flatten().zip(decided.iter().flatten()) {
        part.decision = decided.decision;
        leave(part, now);
    }
    banned
}

/// Takes what there is, if all others agree. The tokens of a decision are what was taken, as a reservation needs it; of
/// [`Verb::ConsumeUpTo`], what the caller may use.
pub(super) fn count_all(parts: &mut [Part<'_>], now: i64, verb: Verb, decision: Decision) {
    for part in parts {
        let mut tokens = part.cost;
        if decision.is_allow() {
            let taken;
            (taken, part.state) = part.limit.decide(part.state, now, part.cost, Verb::ConsumeUpTo);
            if verb != Verb::ConsumeUpTo {
                tokens = if let Decision::Allow { tokens, .. } = taken { tokens } else { 0 };
            }
        } else {
            leave(part, now);
        }
        part.decision = Decision::Allow { tokens, ready_at: now };
    }
}

/// As a refusal leaves it: it follows a clock that stepped back far.
fn leave(part: &mut Part<'_>, now: i64) {
    part.state = part.limit.decide(part.state, now, 0, Verb::Refund).1;
}
