//! Keys that are banned or unlimited.
//!
//! Only requests that take tokens are answered differently. Tokens are given back, charged and settled as usual, and the buckets refill as
//! usual. So afterwards a bucket is as if
//!
//! * a banned key had requested nothing meanwhile;
//! * an unlimited key had taken its costs as far as there were tokens, down to zero and not into debt.

use crate::limit::{Decision, Part, Verb, decide_policies};
use crate::policy::{Ban, Policy, Standing};

/// Whether `policy` grants every request with `verb`, whatever its cost.
pub(super) fn is_unlimited(policy: &Policy, verb: Verb) -> bool {
    verb.takes() && policy.standing() == Standing::Unlimited
}

/// Each limit answers what it would grant without the ban, and nothing is taken.
pub(super) fn refuse_all(policies: &mut [Vec<Part<'_>>], now: i64, verb: Verb, ban: Ban) -> Decision {
    let mut decided = policies.to_vec();
    let own = decide_policies(&mut decided, now, verb);
    for (part, decided) in policies.iter_mut().flatten().zip(decided.iter().flatten()) {
        part.decision = decided.decision;
        leave(part, now);
    }
    ban.decision(own)
}

/// Takes each cost, or as much of it as is there, if all others agree. A decision's tokens are those taken.
pub(super) fn count_all(parts: &mut [Part<'_>], now: i64, decision: Decision) {
    for part in parts {
        let mut tokens = part.cost;
        if decision.is_allow() {
            let taken;
            // A soft limit would go below zero.
            let there = if part.limit.is_soft() { part.limit.remaining(&part.state, now) } else { u64::MAX };
            (taken, part.state) = part.limit.decide(part.state, now, part.cost.min(there), Verb::ConsumeUpTo);
            tokens = taken.tokens();
        } else {
            leave(part, now);
        }
        part.decision = Decision::Allow { tokens, ready_at: now };
    }
}

/// What the caller is answered: with [`Verb::ConsumeUpTo`] that it may use all that it asked for, else what was taken, as a reservation needs it.
pub(super) const fn answered(part: &Part<'_>, now: i64, verb: Verb) -> Decision {
    match verb {
        Verb::ConsumeUpTo => Decision::Allow { tokens: part.cost, ready_at: now },
        _ => part.decision,
    }
}

/// As after a refusal: it follows a clock that stepped back far.
fn leave(part: &mut Part<'_>, now: i64) {
    part.state = part.limit.decide(part.state, now, 0, Verb::Refund).1;
}
