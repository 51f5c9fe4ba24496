//! What the limits of one or several policies say together.

use std::sync::Arc;

use super::bucket::{Bucket, Need};
use super::reservation::End;
use super::{Ledger, LedgerError, Slot};
use crate::limit::{Decision, Limit, Part, State, Verb, decide_all};
use crate::policy::Policy;
use crate::protocol::{Decided, LimitAnswer};

impl Ledger {
    /// Makes sure that the bucket of `policy` is open under it.
    pub(super) fn open(&mut self, policy: &Arc<Policy>, now: i64) -> Result<(), LedgerError> {
        let bucket = match self.buckets.get_mut(policy.name()) {
            Some(Slot::Open(bucket)) => {
                bucket.move_to(policy, now, self.phase);
                return Ok(());
            }
            Some(Slot::Stored(row)) => Bucket::read(policy, row, now, self.phase)
                .map_err(|error| LedgerError(format!("the bucket of policy {}: {error}", policy.name())))?,
            None => Bucket::new(policy, now, self.phase),
        };
        self.buckets.insert(policy.name().to_owned(), Slot::Open(bucket));
        Ok(())
    }

    pub(super) fn bucket(&mut self, policy: &Policy) -> Result<&mut Bucket, LedgerError> {
        match self.buckets.get_mut(policy.name()) {
            Some(Slot::Open(bucket)) => Ok(bucket),
            _ => Err(LedgerError(format!("the bucket of policy {} is not open", policy.name()))),
        }
    }

    /// Asks all limits of all policies together, all or none. What a refusal leaves is kept whoever asked: it differs only
    /// after a clock has stepped back far, and then the moment to retry at is counted from there.
    pub(super) fn decide(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        costs: &[Vec<u64>],
        now: i64,
        is_kept: bool,
    ) -> Result<(Vec<LimitAnswer>, Decision), LedgerError> {
        let held: Vec<Vec<u64>> = asked.iter().map(|policy| self.held(policy)).collect();
        // What is held is not there for whoever takes; to give back or to charge it makes no difference.
        let takes = verb.takes();
        let mut parts = Vec::new();
        for ((policy, costs), held) in asked.iter().zip(costs).zip(&held) {
            let bucket = self.bucket(policy)?;
            for (((limit, state), &cost), &held) in policy.limits().iter().zip(&bucket.states).zip(costs).zip(held) {
                let limit = limit.limit();
                let there = if takes && held > 0 { limit.lowered(&limit.refilled(state, now), held) } else { *state };
                parts.push(Part::new(limit, there, cost));
            }
        }
        let decision = decide_all(&mut parts, now, verb);
        let mut decided = parts.iter();
        let mut answers = Vec::with_capacity(parts.len());
        for (policy, held) in asked.iter().zip(&held) {
            let bucket = self.bucket(policy)?;
            let mut need = Need::Nothing;
            for ((state, part), &held) in bucket.states.iter_mut().zip(decided.by_ref()).zip(held) {
                let after = match decision {
                    Decision::Allow { .. } if !is_kept => *state,
                    Decision::Allow { .. } if takes && held > 0 => part.limit.raised(&part.state, held),
                    _ if takes && held > 0 => *state,
                    _ => part.state,
                };
                answers.push(answer(part.limit, part.decision, &after, held, now));
                if after != *state {
                    *state = after;
                    need = if decision.is_allow() { Need::Spent } else { Need::Exact };
                }
            }
            bucket.need(need);
        }
        Ok((answers, decision))
    }

    /// Charges or refunds each limit of `policy`. Neither is ever refused.
    pub(super) fn adjust(
        &mut self,
        policy: &Policy,
        changes: impl Iterator<Item = (Verb, u64)>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let held = self.held(policy);
        let bucket = self.bucket(policy)?;
        let mut answers = Vec::new();
        let before = bucket.states.clone();
        let limits = policy.limits().iter().zip(&mut bucket.states).zip(held);
        for (((limit, state), held), (verb, cost)) in limits.zip(changes) {
            let (decision, after) = limit.limit().decide(*state, now, cost, verb);
            *state = after;
            answers.push(answer(limit.limit(), decision, state, held, now));
        }
        if bucket.states != before {
            bucket.need(Need::Spent);
        }
        Ok(answers)
    }

    /// What is left now, beside what was granted.
    pub(super) fn standing(
        &mut self,
        asked: &[Arc<Policy>],
        grants: &[(u64, i64)],
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let mut limits = Vec::new();
        let mut grants = grants.iter();
        for policy in asked {
            let held = self.held(policy);
            let bucket = self.bucket(policy)?;
            let states = policy.limits().iter().zip(&bucket.states).zip(held);
            for (((limit, state), held), &(tokens, ready_at)) in states.zip(grants.by_ref()) {
                limits.push(answer(limit.limit(), Decision::Allow { tokens, ready_at }, state, held, now));
            }
        }
        Ok(limits)
    }

    /// How many tokens of each limit of `policy` are held for batches.
    pub(super) fn held(&self, policy: &Policy) -> Vec<u64> {
        let mut held = vec![0_u64; policy.limits().len()];
        let holds = self.reservations.values().filter(|open| open.end == End::Released);
        for part in holds.flat_map(|open| &open.parts).filter(|part| part.policy == policy.name()) {
            for (held, tokens) in held.iter_mut().zip(part.tokens(policy)) {
                *held = held.saturating_add(tokens);
            }
        }
        held
    }

    pub(super) fn decided(&self, now: i64, limits: Vec<LimitAnswer>) -> Decided {
        let open_reservations = self.reservations.len() as u64;
        Decided { now, is_replayed: false, open_reservations, reservation: None, limits }
    }
}

pub(super) fn tokens(answer: &LimitAnswer) -> u64 {
    match answer.decision {
        Decision::Allow { tokens, .. } => tokens,
        _ => 0,
    }
}

/// What `limit` says, and how it stands when `held` tokens are not to be had.
fn answer(limit: &Limit, decision: Decision, state: &State, held: u64, now: i64) -> LimitAnswer {
    let there = if held == 0 { *state } else { limit.lowered(&limit.refilled(state, now), held) };
    LimitAnswer {
        decision,
        remaining: limit.remaining(&there, now),
        owed: limit.owed(&there, now),
        reset_at: limit.full_at(&there, now),
        snapshot: limit.snapshot(&there),
    }
}
