//! Several limits at once: all of them, or none.

use super::arithmetic::Limit;
use super::decision::{Decision, Verb};
use super::state::State;

/// One limit of a policy, its bucket, and the cost asked of it. Costs may differ: one request and 500 model tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The limit that decides.
    pub limit: &'a Limit,
    /// The bucket's state; changes only if all parts agree.
    pub state: State,
    /// Tokens asked of this limit.
    pub cost: u64,
    /// This limit's own answer, once decided. After a refusal it tells which parts refused.
    pub decision: Decision,
    /// The state if all parts agree.
    next: State,
}

impl<'a> Part<'a> {
    /// A part that is not decided yet.
    #[must_use]
    pub const fn new(limit: &'a Limit, state: State, cost: u64) -> Self {
        Self { limit, state, cost, decision: Decision::Never { max: 0 }, next: state }
    }
}

/// Decides for all parts at one moment, and takes from all of them or from none. The answer is the
/// [conjunction](Decision::and) of theirs: the longest wait, the latest start. At the end of that wait all parts agree,
/// with one exception: a reservation larger than a fixed window's capacity, with a limited wait, is granted only
/// towards the end of a window; when the other parts agree, it may be too early in the next window.
///
/// [`Verb::ConsumeUpTo`] takes the same number from all parts: the least that any part with a cost can give. A part
/// with a smaller cost gives only its cost.
///
/// A part with a cost of zero has no say beside a part with a cost, whatever it owes: it agrees at once and gives
/// nothing. Only if all costs are zero do all parts answer, and each refuses while it owes.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::{Config, Decision, Limit, Part, Verb, decide_all};
///
/// let per_second = Limit::new(&Config::token_bucket(10, Duration::from_secs(1)))?;
/// let per_day = Limit::new(&Config::fixed_window(15, Duration::from_hours(24)))?;
/// let mut parts = [&per_second, &per_day].map(|limit| Part::new(limit, limit.new_state(0, 0), 10));
/// assert!(decide_all(&mut parts, 0, Verb::Consume).is_allow());
/// // A second later the first limit would allow it. The second does not, so neither bucket changes.
/// assert_eq!(decide_all(&mut parts, 1_000, Verb::Consume), Decision::Wait { retry_at: 86_400_000 });
/// assert!(parts[0].decision.is_allow());
/// assert_eq!(per_second.remaining(&parts[0].state, 1_000), 10);
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
#[must_use = "the tokens may have been refused"]
pub fn decide_all(parts: &mut [Part<'_>], now: i64, verb: Verb) -> Decision {
    decide_policies(&mut [parts], now, verb)
}

/// The same for several policies at once, each with its own parts: all parts of all policies agree, or nothing is
/// taken. Whether a cost of zero has a say depends on the costs of its own policy only, so that several policies are
/// answered alike together and one by one.
#[must_use = "the tokens may have been refused"]
pub fn decide_policies<'a>(policies: &mut [impl AsMut<[Part<'a>]>], now: i64, verb: Verb) -> Decision {
    let most = match verb {
        Verb::ConsumeUpTo => most_from_all(policies, now),
        _ => u64::MAX,
    };
    let mut answer = Decision::Allow { tokens: 0, ready_at: now };
    for parts in &mut *policies {
        let parts = parts.as_mut();
        let has_cost = parts.iter().any(|part| part.cost > 0);
        for part in parts {
            let verb = verb.beside(part.cost, has_cost);
            (part.decision, part.next) = part.limit.decide(part.state, now, part.cost.min(most), verb);
            answer = answer.and(part.decision);
        }
    }
    for part in policies.iter_mut().flat_map(AsMut::as_mut) {
        part.state = if answer.is_allow() { part.next } else { part.limit.anchored(part.state, now) };
    }
    answer
}

/// The most whole tokens that every part with a cost can give; at least one, so that an empty part refuses.
fn most_from_all<'a>(policies: &mut [impl AsMut<[Part<'a>]>], now: i64) -> u64 {
    let parts = policies.iter_mut().flat_map(AsMut::as_mut);
    let with_cost = parts.filter(|part| part.cost > 0);
    let most =
        |part: &mut Part<'_>| if part.limit.is_soft() { u64::MAX } else { part.limit.remaining(&part.state, now) };
    with_cost.map(most).min().unwrap_or(0).max(1)
}
