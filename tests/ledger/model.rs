//! The model of the ledger: buckets in memory that never crash and are never forgotten.

use tollgate::limit::{Carry, Config, Decision, Kind, Limit, Part, Snapshot, State, Verb, decide_all};
use tollgate::policy::{NamedLimit, Policy};

use crate::world::{START, signed};

/// The buckets of one policy, which repeat every grant of the ledger.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) limits: Vec<Limit>,
    states: Vec<State>,
    /// Its initial state and history since: a settlement changes what its reservation took, and the rest is replayed.
    begun: Vec<State>,
    log: Vec<Event>,
}

/// An event of each limit at a moment.
#[derive(Clone)]
struct Event {
    now: i64,
    /// Of the reservation that took it.
    id: Option<u64>,
    changes: Vec<Change>,
}

#[derive(Clone, Copy)]
enum Change {
    /// This many drops were taken.
    Take(i128),
    /// This many tokens were given back, as far as they fit.
    Refund(u64),
    Reset,
    FollowClock,
}

impl Model {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self::of(policy.limits().iter().map(NamedLimit::limit).copied().collect())
    }

    pub(crate) fn of(limits: Vec<Limit>) -> Self {
        let states: Vec<_> = limits.iter().map(|limit| limit.new_state(START, 0)).collect();
        Self { limits, begun: states.clone(), states, log: Vec::new() }
    }

    /// Repeats a grant, which must succeed, and returns when the tokens are ready.
    pub(crate) fn grant(&mut self, verb: Verb, costs: &[u64], now: i64) -> i64 {
        let mut parts = self.parts(costs);
        let decision = decide_all(&mut parts, now, verb);
        let Decision::Allow { ready_at, .. } = decision else {
            panic!("{verb:?} of {costs:?} was granted, and the model says {decision:?}");
        };
        let after: Vec<_> = parts.iter().map(|part| part.state).collect();
        let changes = self.limits.iter().zip(&self.states).zip(after.iter().zip(costs));
        let changes = changes.map(|((limit, before), (after, &cost))| match verb {
            Verb::Refund => Change::Refund(cost),
            Verb::Reset => Change::Reset,
            _ if before == after => Change::Take(0),
            _ => Change::Take(drops(limit, &limit.refilled(before, now)) - drops(limit, after)),
        });
        self.log.push(Event { now, id: None, changes: changes.collect() });
        self.states = after;
        ready_at
    }

    /// Records which reservation took the last grant.
    pub(crate) fn name(&mut self, id: u64) {
        self.log.last_mut().unwrap().id = Some(id);
    }

    /// As if the reservation had taken this many tokens of each limit in the first place.
    pub(crate) fn settle(&mut self, id: u64, real: &[u64]) {
        let event = self.log.iter_mut().find(|event| event.id == Some(id)).unwrap();
        event.changes =
            self.limits.iter().zip(real).map(|(limit, &real)| Change::Take(in_drops(limit, real))).collect();
        self.states = self.begun.clone();
        for Event { now, changes, .. } in &self.log {
            for ((limit, state), change) in self.limits.iter().zip(&mut self.states).zip(changes) {
                *state = change.apply(limit, *state, *now);
            }
        }
    }

    fn happened(&mut self, now: i64, changes: Vec<Change>) {
        for ((limit, state), change) in self.limits.iter().zip(&mut self.states).zip(&changes) {
            *state = change.apply(limit, *state, now);
        }
        self.log.push(Event { now, id: None, changes });
    }

    /// Repeats a grant of `consume`, and returns how many tokens it lacked of each limit.
    pub(crate) fn grant_on_credit(&mut self, costs: &[u64], now: i64) -> Vec<u64> {
        let buckets = self.limits.iter().zip(&mut self.states).zip(costs);
        let lacking = buckets.map(|((limit, state), &cost)| {
            let lacking = cost.saturating_sub(limit.remaining(state, now));
            let _ = limit.refund(state, now, lacking);
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
        self.happened(now, vec![Change::Refund(0); self.limits.len()]);
    }

    /// Takes the held tokens, even if they are gone: a charge may have come in between.
    pub(crate) fn lower(&mut self, tokens: &[u64], now: i64) {
        let changes = self.limits.iter().zip(tokens).map(|(limit, &tokens)| Change::Take(in_drops(limit, tokens)));
        self.happened(now, changes.collect());
    }

    pub(crate) fn refund(&mut self, tokens: &[u64], now: i64) {
        self.happened(now, tokens.iter().copied().map(Change::Refund).collect());
    }

    /// Continues under a policy with as many limits.
    pub(crate) fn carry(&mut self, policy: &Policy, carry: Carry, now: i64) {
        for ((limit, state), named) in self.limits.iter_mut().zip(&mut self.states).zip(policy.limits()) {
            let old = std::mem::replace(limit, *named.limit());
            if old != *limit {
                *state = limit.carry(&old, *state, carry, now, 0);
            }
        }
        (self.begun, self.log) = (self.states.clone(), Vec::new());
    }

    /// Makes every millisecond count that the clock shows, even one that it showed before: where a step back of up to a
    /// minute is no time elapsed for a bucket, this one follows it.
    pub(crate) fn follow_clock(&mut self, now: i64) {
        self.happened(now, vec![Change::FollowClock; self.limits.len()]);
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

impl Change {
    fn apply(self, limit: &Limit, state: State, now: i64) -> State {
        match self {
            Self::Take(0) => state,
            Self::Take(taken) => {
                let refilled = limit.refilled(&state, now);
                let level = drops(limit, &refilled) - taken;
                let (one, Snapshot { at, .. }) = (in_drops(limit, 1), limit.snapshot(&refilled));
                let tokens = i64::try_from(level.div_euclid(one)).unwrap();
                let drops = u64::try_from(level.rem_euclid(one)).unwrap();
                limit.restored(&Snapshot { tokens, drops, at }).unwrap()
            }
            Self::Refund(tokens) => limit.decide(state, now, tokens, Verb::Refund).1,
            Self::Reset => limit.decide(state, now, 0, Verb::Reset).1,
            Self::FollowClock => {
                let Snapshot { at, .. } = limit.snapshot(&state);
                if at <= now {
                    return limit.refilled(&state, now);
                }
                let tick_ms = tick_ms(limit);
                let at = at - (at - now + tick_ms - 1) / tick_ms * tick_ms; // windows stay where they are
                limit.restored(&Snapshot { at, ..limit.snapshot(&state) }).unwrap()
            }
        }
    }
}

/// The level, in the limit's drops.
fn drops(limit: &Limit, state: &State) -> i128 {
    let Snapshot { tokens, drops, .. } = limit.snapshot(state);
    i128::from(tokens) * in_drops(limit, 1) + i128::from(drops)
}

fn in_drops(limit: &Limit, tokens: u64) -> i128 {
    let Config { kind, rate, period_ms, .. } = *limit.config();
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let of_a_token = if kind == Kind::TokenBucket { period_ms / gcd(rate, period_ms) } else { 1 };
    i128::from(tokens) * i128::from(of_a_token)
}

/// The most whole tokens refilled while the clock shows `ms` milliseconds, wherever they begin.
pub(crate) fn refill_in(limit: &Limit, ms: i64) -> i64 {
    let (rate, period_ms) = (limit.config().rate.cast_signed(), limit.config().period_ms.cast_signed());
    let ticks = (ms + tick_ms(limit) - 1) / tick_ms(limit);
    if tick_ms(limit) == 1 { (ms * rate + period_ms - 1) / period_ms } else { ticks * rate }
}

fn tick_ms(limit: &Limit) -> i64 {
    match limit.config().kind {
        Kind::TokenBucket => 1,
        Kind::FixedWindow | Kind::FirstUseWindow => limit.config().period_ms.cast_signed(),
        _ => unreachable!("a new kind"),
    }
}
