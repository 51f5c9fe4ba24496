//! When open reservations will give back their tokens. A refusal names that moment in `retry_at` if it is sooner than the refill.

use std::sync::Arc;

use super::bucket::Bucket;
use super::reserve::part_of;
use super::{Ledger, Slot};
use crate::limit::{Cuts, Decision, State};
use crate::policy::{NamedLimit, Policy};
use crate::sorted::sort_by;

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
    all: Arc<[Return]>,
}

impl Ledger {
    /// What will come back to the bucket of this policy. Found anew only after a change: a refusal changes nothing.
    pub(super) fn returns(&mut self, policy: &Policy) -> Option<Arc<[Return]>> {
        let mut expiring = Vec::new();
        let is_known = matches!(self.slot(policy.name()), Some(Slot::Open(bucket)) if bucket.knows_returns());
        if !is_known {
            for (id, open) in self.reservations.iter().filter(|(_, open)| open.is_refunded()) {
                for (id, parts) in open.pieces(*id) {
                    expiring.extend(part_of(parts, policy).map(|part| (open.expires_at, id, part.tokens(policy))));
                }
            }
            sort_by(&mut expiring, |(one, ..), (other, ..)| one.cmp(other));
        }
        let bucket = self.bucket(policy).ok()?;
        if !is_known {
            bucket.find_returns(&expiring);
        }
        bucket.returns.as_ref().map(|returns| Arc::clone(&returns.all))
    }
}

impl Bucket {
    fn knows_returns(&self) -> bool {
        let is_same = |returns: &Returns| returns.states == self.states && returns.cuts == self.cuts;
        self.returns.as_ref().map_or(self.cuts.is_empty(), is_same)
    }

    /// To be called when there are other reservations, or one of them ends at another moment.
    pub(super) fn forget_returns(&mut self) {
        self.returns = None;
    }

    /// Of each reservation is given when it expires, its id, and how much it gives back of each limit.
    fn find_returns(&mut self, expiring: &[(i64, u64, Vec<u64>)]) {
        let (mut states, mut cuts) = (self.states.clone(), self.cuts.clone());
        let mut all = Vec::new();
        for (at, id, tokens) in expiring {
            let Some(cut) = self.place_of(*id) else { continue };
            let limits = self.policy().limits().iter().map(NamedLimit::limit);
            for (((limit, state), cuts), &taken) in limits.zip(&mut states).zip(&mut cuts).zip(tokens) {
                cuts.settle(limit, cut, (taken, 0), state, *at);
            }
            all.push(Return { at: *at, states: states.clone() });
        }
        self.returns = Some(Returns { states: self.states.clone(), cuts: self.cuts.clone(), all: all.into() });
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
