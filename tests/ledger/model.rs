//! The model of the ledger: buckets in memory that never crash and are never forgotten.

use tollgate::limit::{Carry, Decision, Limit, Part, Snapshot, State, Verb, decide_all};
use tollgate::policy::{NamedLimit, Policy};

use crate::world::{START, signed};

/// The buckets of one policy, which repeat every grant of the ledger.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) limits: Vec<Limit>,
    states: Vec<State>,
}

impl Model {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self::of(policy.limits().iter().map(NamedLimit::limit).copied().collect())
    }

    pub(crate) fn of(limits: Vec<Limit>) -> Self {
        let states = limits.iter().map(|limit| limit.new_state(START, 0)).collect();
        Self { limits, states }
    }

    /// Repeats a grant, which must succeed, and returns when the tokens are ready.
    pub(crate) fn grant(&mut self, verb: Verb, costs: &[u64], now: i64) -> i64 {
        let mut parts = self.parts(costs);
        let decision = decide_all(&mut parts, now, verb);
        let Decision::Allow { ready_at, .. } = decision else {
            panic!("{verb:?} of {costs:?} was granted, and the model says {decision:?}");
        };
        self.states = parts.iter().map(|part| part.state).collect();
        ready_at
    }

    /// Repeats a grant of `consume`, and returns how many tokens it lacked of each limit.
    pub(crate) fn grant_on_credit(&mut self, costs: &[u64], now: i64) -> Vec<u64> {
        let buckets = self.limits.iter().zip(&mut self.states).zip(costs);
        let lacking = buckets.map(|((limit, state), &cost)| {
            let lacking = cost.saturating_sub(limit.remaining(state, now));
            limit.refund(state, now, lacking);
            lacking
        });
        let lacking = lacking.collect();
        self.grant(Verb::Consume, costs, now);
        lacking
    }

    /// A refusal. It changes a bucket only if the clock stepped back far: then it follows the clock.
    pub(crate) fn refuse(&mut self, now: i64) {
        let mut parts = self.parts(&vec![u64::MAX; self.limits.len()]);
        assert!(!decide_all(&mut parts, now, Verb::Consume).is_allow());
        self.states = parts.iter().map(|part| part.state).collect();
    }

    /// Takes what was held, even if it is gone: a charge may have come in between.
    pub(crate) fn lower(&mut self, tokens: &[u64], now: i64) {
        for ((limit, state), &tokens) in self.limits.iter().zip(&mut self.states).zip(tokens).filter(|(_, t)| **t > 0) {
            *state = limit.lowered(&limit.refilled(state, now), tokens);
        }
    }

    /// Charges or refunds the difference.
    pub(crate) fn adjust(&mut self, taken: &[u64], real: &[u64], now: i64) {
        for (((limit, state), &taken), &real) in self.limits.iter().zip(&mut self.states).zip(taken).zip(real) {
            if real > taken {
                limit.charge(state, now, real - taken);
            } else {
                limit.refund(state, now, taken - real);
            }
        }
    }

    /// Continues under a policy with as many limits.
    pub(crate) fn carry(&mut self, policy: &Policy, carry: Carry, now: i64) {
        for ((limit, state), named) in self.limits.iter_mut().zip(&mut self.states).zip(policy.limits()) {
            let old = std::mem::replace(limit, *named.limit());
            if old != *limit {
                *state = limit.carry(&old, *state, carry, now, 0);
            }
        }
    }

    /// Makes every millisecond count that the clock shows, even one that it showed before: where a step back of up to a
    /// minute is no time elapsed for a bucket, this one follows it.
    pub(crate) fn follow_clock(&mut self, now: i64) {
        for (limit, state) in self.limits.iter().zip(&mut self.states) {
            let Snapshot { at, .. } = limit.snapshot(state);
            if at <= now {
                *state = limit.refilled(state, now);
                continue;
            }
            let tick_ms = tick_ms(limit);
            let at = at - (at - now + tick_ms - 1) / tick_ms * tick_ms; // windows stay where they are
            *state = limit.restored(&Snapshot { at, ..limit.snapshot(state) }).unwrap();
        }
    }

    /// Whole tokens left of each limit, negative when in debt.
    pub(crate) fn levels(&self, now: i64) -> Vec<i64> {
        let level = |(limit, state): (&Limit, &State)| signed(limit.remaining(state, now), limit.owed(state, now));
        self.limits.iter().zip(&self.states).map(level).collect()
    }

    fn parts(&self, costs: &[u64]) -> Vec<Part<'_>> {
        let all = self.limits.iter().zip(&self.states).zip(costs);
        all.map(|((limit, state), &cost)| Part::new(limit, *state, cost)).collect()
    }
}

/// The most whole tokens that come back while the clock shows `ms` milliseconds, wherever they begin.
pub(crate) fn refill_in(limit: &Limit, ms: i64) -> i64 {
    let (rate, period_ms) = (limit.config().rate.cast_signed(), limit.config().period_ms.cast_signed());
    let ticks = (ms + tick_ms(limit) - 1) / tick_ms(limit);
    if tick_ms(limit) == 1 { (ms * rate + period_ms - 1) / period_ms } else { ticks * rate }
}

fn tick_ms(limit: &Limit) -> i64 {
    match limit.config().kind {
        tollgate::limit::Kind::TokenBucket => 1,
        tollgate::limit::Kind::FixedWindow => limit.config().period_ms.cast_signed(),
    }
}
