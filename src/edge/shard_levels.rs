//! How full the shards of budgets are, as far as an isolate knows, and in which order to call them.

use std::sync::Arc;

use super::budget::{Budget, budget};
use super::generations::Generations;
use crate::limit::State;
use crate::policy::Policy;
use crate::protocol::Decided;
use crate::sorted::sort_by;

/// Last known level of each shard this isolate has called.
#[derive(Debug, Default)]
pub struct ShardLevels(Generations<Budget, Level>);

#[derive(Debug)]
struct Level {
    /// The [id](Policy::id) of the shard's policy.
    policy: u64,
    states: Box<[State]>,
    /// How far the object's clock was ahead of the isolate's, including the call's duration.
    ahead_ms: i64,
}

impl ShardLevels {
    /// Records a shard's level from its answer at `now`.
    pub fn keep(&mut self, object: &str, policy: &Policy, decided: &Decided, now: i64) {
        let limits = policy.limits().iter().zip(&decided.limits);
        let states = limits.map(|(limit, answer)| limit.limit().restored(&answer.snapshot)).collect::<Option<_>>();
        if let (Some(budget), Some(states)) = (budget(object, policy), states) {
            let ahead_ms = decided.now.saturating_sub(now);
            self.0.insert(budget, Level { policy: policy.id(), states, ahead_ms });
        }
    }

    /// The order of calls at `now`: the fuller of two random shards, then the others, fullest first. Unknown shards count as full. `random`
    /// is 64 random bits.
    pub fn order<'a>(
        &mut self,
        shards: impl Iterator<Item = (&'a str, &'a Arc<Policy>)>,
        random: u64,
        now: i64,
    ) -> Vec<usize> {
        let fill: Vec<_> = shards.map(|(object, policy)| self.share(object, policy, now)).collect();
        let below = |bits: u64, count: usize| usize::try_from(bits.checked_rem(count as u64).unwrap_or(0)).unwrap_or(0);
        let mut order: Vec<_> = (0..fill.len()).collect();
        order.rotate_left(below(random & u64::from(u32::MAX), fill.len()));
        if let Some((_, others)) = order.split_first_mut() {
            others.rotate_left(below(random >> 32, others.len()));
        }
        let share = |index: &usize| fill.get(*index).copied().unwrap_or(0);
        let (two, others) = order.split_at_mut(fill.len().min(2));
        for part in [two, others] {
            sort_by(part, |one, other| share(other).cmp(&share(one)));
        }
        order
    }

    /// The level of the shard's scarcest limit, in thousandths of its capacity.
    fn share(&mut self, object: &str, policy: &Policy, now: i64) -> u64 {
        let level = budget(object, policy).and_then(|budget| self.0.get_mut(budget));
        let Some(level) = level.filter(|level| level.policy == policy.id()) else { return FULL };
        let now = now.saturating_add(level.ahead_ms);
        let shares = policy.limits().iter().zip(&level.states).map(|(limit, state)| {
            let remaining = limit.limit().remaining(state, now);
            remaining.saturating_mul(FULL).checked_div(limit.limit().config().capacity).unwrap_or(0)
        });
        shares.min().unwrap_or(FULL)
    }
}

const FULL: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Snapshot, Verb};
    use crate::protocol::LimitAnswer;

    const NOW: i64 = 1_700_000_000_000;

    fn policy() -> Policy {
        Policy::parse("p", r#"{"rate":"40/s","shards":4}"#).unwrap()
    }

    fn name(shard: usize) -> String {
        format!("{shard:032x}{:032x}", 0)
    }

    /// The answer of a shard with this many tokens to a cost of three.
    fn decided(policy: &Policy, tokens: u64, now: i64) -> Decided {
        let limit = policy.limits()[0].limit();
        let snapshot = Snapshot { tokens: tokens.cast_signed(), drops: 0, at: now };
        let state = limit.restored(&snapshot).unwrap();
        let (decision, state) = limit.decide(state, now, 3, Verb::Consume);
        Decided { may_be_kept: true, ..Decided::new(now, vec![LimitAnswer::new(limit, decision, &state, now)]) }
    }

    #[test]
    fn the_fuller_of_two_at_random_is_first() {
        let (policy, names) = (policy(), [0, 1, 2, 3].map(name));
        let shards = policy.shards();
        let mut levels = ShardLevels::default();
        let mut order = |random, now| {
            let all = names.iter().map(String::as_str).zip(shards);
            levels.order(all, random, now)
        };
        // All count as full: any two may be first.
        let firsts: std::collections::BTreeSet<_> =
            (0..8_u64).map(|random| order(random | random << 32, NOW)[0]).collect();
        assert!(firsts.len() > 2, "{firsts:?}");
        for (shard, tokens) in [(0, 4), (1, 9), (2, 2), (3, 6)] {
            levels.keep(&names[shard], &shards[shard], &decided(&shards[shard], tokens, NOW), NOW);
        }
        let mut order = |random, now| levels.order(names.iter().map(String::as_str).zip(shards), random, now);
        for random in 0..16_u64 {
            let order = order((random % 4) | (random / 4) << 32, NOW);
            let left = [1, 6, 2, 3]; // three were taken wherever possible
            assert!(left[order[0]] >= left[order[1]], "{order:?}");
            assert!(left[order[2]] >= left[order[3]], "{order:?}");
        }
        // A second later all are full again.
        let firsts: std::collections::BTreeSet<_> =
            (0..8_u64).map(|random| order(random | random << 32, NOW + 1_000)[0]).collect();
        assert!(firsts.len() > 2, "{firsts:?}");
    }
}
