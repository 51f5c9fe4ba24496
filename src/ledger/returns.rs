//! When open reservations will give back their tokens. A refusal names that moment in `retry_at` if it is sooner than the refill.

use std::sync::Arc;

use crate::limit::{Cuts, Decision, State};
use crate::policy::{NamedLimit, Policy};

/// What there will be of each limit when a reservation has expired, if nothing else is taken.
#[derive(Debug)]
pub(super) struct Return {
    at: i64,
    states: Vec<State>,
}

/// All of them, the soonest first, and what they were found from: as long as that stays the same, they do.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    states: Vec<State>,
    cuts: Vec<Cuts>,
    pub(super) all: Arc<[Return]>,
}

impl Returns {
    /// Computes them. `expiring` has, for each reservation, when it expires, the place of its cut, and its tokens of each limit.
    pub(super) fn find<'a>(
        policy: &Policy,
        states: &[State],
        cuts: &[Cuts],
        expiring: impl Iterator<Item = (i64, usize, &'a [u64])>,
    ) -> Self {
        let (mut then, mut cut) = (states.to_vec(), cuts.to_vec());
        let mut all = Vec::new();
        for (at, place, tokens) in expiring {
            for (((limit, state), cuts), &taken) in
                policy.limits().iter().map(NamedLimit::limit).zip(&mut then).zip(&mut cut).zip(tokens)
            {
                cuts.settle(limit, place, (taken, 0), state, at);
            }
            all.push(Return { at, states: then.clone() });
        }
        Self { states: states.to_vec(), cuts: cuts.to_vec(), all: all.into() }
    }

    /// Whether they were found from these.
    pub(super) fn is_from(&self, states: &[State], cuts: &[Cuts]) -> bool {
        self.states == states && self.cuts == cuts
    }
}

/// The refusal by a limit, or a sooner one if enough comes back before. `decide` returns the decision in a state and at a moment.
pub(super) fn sooner(
    returns: &[Return],
    limit: usize,
    refusal: Decision,
    decide: impl Fn(&State, i64) -> Decision,
) -> Decision {
    let decided = |at: &Return| at.states.get(limit).map_or(refusal, |state| decide(state, at.at));
    // The later, the more there is: once it is granted it is granted ever after, and until then the wait becomes shorter.
    let granted = returns.partition_point(|at| !decided(at).is_allow());
    let after_last = granted.checked_sub(1).and_then(|last| returns.get(last)).map(decided);
    let granted = returns.get(granted).map(|grant| Decision::Wait { retry_at: grant.at });
    let moments = [Some(refusal), after_last, granted].into_iter().flatten().filter_map(|decision| match decision {
        Decision::Wait { retry_at } => Some(retry_at),
        _ => None,
    });
    moments.min().map_or(refusal, |retry_at| Decision::Wait { retry_at })
}
