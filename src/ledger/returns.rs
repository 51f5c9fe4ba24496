//! When open reservations will give back their tokens. A refusal names that moment in `retry_at` if it is sooner than the refill.

use std::sync::Arc;

use crate::limit::{Cuts, Decision, State};
use crate::policy::Policy;

/// The level of each limit after a reservation expires, if nothing else is taken.
#[derive(Debug)]
pub(super) struct Return {
    at: i64,
    states: Vec<State>,
}

impl Return {
    pub(super) const fn is_over(&self, now: i64) -> bool {
        self.at <= now
    }
}

/// All of them, soonest first, and the states they were computed from: valid while those are unchanged.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    states: Vec<State>,
    cuts: Vec<Cuts>,
    pub(super) all: Arc<[Return]>,
}

impl Returns {
    /// Computes them. `expiring` has each reservation's expiry, the place of its cut, and its tokens of each limit.
    pub(super) fn find<'a>(
        policy: &Policy,
        states: &[State],
        cuts: &[Cuts],
        expiring: impl Iterator<Item = (i64, usize, &'a [u64])>,
    ) -> Self {
        let expiring: Vec<_> = expiring.collect();
        let mut all: Vec<_> = expiring.iter().map(|(at, ..)| Return { at: *at, states: Vec::new() }).collect();
        for (index, ((named, state), cuts)) in policy.limits().iter().zip(states).zip(cuts).enumerate() {
            let of_limit =
                expiring.iter().map(|(at, place, tokens)| (*at, *place, tokens.get(index).copied().unwrap_or(0)));
            for (at, state) in all.iter_mut().zip(cuts.settled(named.limit(), *state, of_limit)) {
                at.states.push(state);
            }
        }
        Self { states: states.to_vec(), cuts: cuts.to_vec(), all: all.into() }
    }

    /// Whether they were computed from these.
    pub(super) fn is_from(&self, states: &[State], cuts: &[Cuts]) -> bool {
        self.states == states && self.cuts == cuts
    }
}

/// The refusal of a cost by a limit in `state`, or a sooner retry if enough is given back before. `ends` has the moments at which holds
/// end, each perhaps without taking anything. `decide` returns the decision for a state and a moment, excluding what is held then.
pub(super) fn sooner(
    returns: &[Return],
    ends: &[i64],
    (limit, state): (usize, &State),
    refusal: Decision,
    decide: impl Fn(&State, i64) -> Decision,
) -> Decision {
    let in_state = |at: &Return| at.states.get(limit).copied().unwrap_or(*state);
    let after = |at: i64| {
        let last = returns.partition_point(|one| one.at <= at).checked_sub(1).and_then(|last| returns.get(last));
        last.map_or(*state, in_state)
    };
    let of_return = |one: &Return| (one.at, decide(&in_state(one), one.at));
    let of_end = |&at: &i64| (at, decide(&after(at), at));
    // Levels only rise: once granted it stays granted, and until then the wait becomes shorter.
    let returned = returns.partition_point(|one| !of_return(one).1.is_allow());
    let ended = ends.partition_point(|at| !of_end(at).1.is_allow());
    let granted = [returns.get(returned).map(of_return), ends.get(ended).map(of_end)];
    let last_refused = [
        returned.checked_sub(1).and_then(|last| returns.get(last)).map(of_return),
        ended.checked_sub(1).and_then(|last| ends.get(last)).map(of_end),
    ];
    let last_refused = last_refused.into_iter().flatten().max_by_key(|(at, _)| *at);
    let moments = granted.into_iter().flatten().chain(last_refused).filter_map(|(at, decision)| match decision {
        Decision::Allow { .. } => Some(at),
        Decision::Wait { retry_at } => Some(retry_at.max(at)),
        Decision::Never { .. } => None,
    });
    let own = if let Decision::Wait { retry_at } = refusal { Some(retry_at) } else { None };
    match (moments.chain(own).min(), last_refused) {
        (Some(retry_at), _) => Decision::Wait { retry_at },
        // It names the largest cost that could pass once everything has been given back.
        (None, Some((_, never))) => never,
        (None, None) => refusal,
    }
}
