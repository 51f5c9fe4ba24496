//! A request about a budget that lies in several objects: see [`Policy::shards`].
//!
//! A cost is taken from one shard. The fuller of two at random is asked first ("power of two choices": Mitzenmacher, *The power of two
//! choices in randomized load balancing*, 1996), then the others, the fullest first, as far as an isolate knows how they stand; only
//! when all have refused, the request is refused, and may be repeated when the first of them has enough. So of `n` shards a cost `c`
//! is refused only while all of them together have less than `n * c`. A shard that does not answer ends the request: it may have granted
//! it. One that is overloaded has not, and the next is asked.
//!
//! A look or a reset asks all at once, and its answer is of the whole.

use std::sync::Arc;

use super::batch::{Batch, Failure, ObjectCall, Outcome};
use super::budget::{Budget, budget};
use super::generations::Generations;
use super::refusals::MAX_BUDGETS;
use crate::limit::{Decision, Snapshot, State, Verb};
use crate::policy::{Cause, Policy};
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest};
use crate::sorted::sort_by;

/// The calls of one request to the shards of a key's budget: use it as a [`Batch`].
#[derive(Debug)]
pub struct ShardCalls {
    shards: Vec<Shard>,
    /// The shards to be asked one by one, the last of these first. `None` if all are asked at once.
    rest: Option<Vec<usize>>,
    has_definitions: bool,
    began_at: i64,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Shard {
    request: ObjectRequest,
    /// Its call.
    batch: Option<Batch>,
    answer: Option<Decided>,
    /// What came of it instead.
    failure: Option<Outcome>,
}

impl ShardCalls {
    /// Asks one after another, in this order, until one grants; those are not asked whose refusal is `known`. There is a request for
    /// each shard.
    #[must_use]
    pub fn one_by_one(requests: Vec<ObjectRequest>, order: &[usize], known: Vec<Option<Decided>>, now: i64) -> Self {
        let mut calls = Self::new(requests, Some(order.iter().rev().copied().collect()), now);
        for (shard, known) in calls.shards.iter_mut().zip(known) {
            shard.answer = known;
        }
        calls.go_on();
        calls
    }

    /// Asks all of them.
    #[must_use]
    pub fn all(requests: Vec<ObjectRequest>, now: i64) -> Self {
        let mut calls = Self::new(requests, None, now);
        for shard in &mut calls.shards {
            shard.batch = Some(Batch::new(vec![shard.request.clone()], now));
        }
        calls
    }

    fn new(requests: Vec<ObjectRequest>, rest: Option<Vec<usize>>, began_at: i64) -> Self {
        let shards = requests.into_iter().map(|request| Shard { request, batch: None, answer: None, failure: None });
        Self { shards: shards.collect(), rest, has_definitions: false, began_at, outcome: None }
    }

    /// The same, whose first calls have the definitions of the policies already.
    #[must_use]
    pub fn with_definitions(mut self) -> Self {
        self.has_definitions = true;
        for shard in &mut self.shards {
            shard.batch = shard.batch.take().map(Batch::with_definitions);
        }
        self
    }

    /// See [`Batch::next`].
    pub fn next(&mut self, now: i64) -> Option<ObjectCall> {
        for index in 0..self.shards.len() {
            let Some(batch) = self.shards.get_mut(index).and_then(|shard| shard.batch.as_mut()) else { continue };
            if let Some(call) = batch.next(now) {
                return Some(ObjectCall { object: index, ..call });
            }
            self.hear(index); // there is no time left for it
        }
        None
    }

    /// See [`Batch::answered`].
    pub fn answered(&mut self, shard: usize, result: Result<ObjectReply, Failure>) {
        let Some(batch) = self.shards.get_mut(shard).and_then(|shard| shard.batch.as_mut()) else { return };
        batch.answered(0, result);
        self.hear(shard);
    }

    /// The outcome, as of a single object with the whole budget.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// See [`Batch::is_over`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_over = |shard: &Shard| shard.batch.as_ref().is_none_or(Batch::is_over);
        self.outcome.is_some() && self.shards.iter().all(is_over)
    }

    /// Takes over what has come of a shard's call.
    fn hear(&mut self, index: usize) {
        let Some(shard) = self.shards.get_mut(index) else { return };
        let Some(outcome) = shard.batch.as_ref().and_then(Batch::outcome) else { return };
        let decided = match outcome {
            Outcome::Decided(replies) => match replies.as_slice() {
                [Ok(ObjectReply::Decided(decided))] => Some(decided.clone()),
                _ => None,
            },
            _ => None,
        };
        let failure = outcome.clone();
        shard.batch = None;
        match decided {
            // It may have granted it, unless it is overloaded.
            None if self.rest.is_some() && !is_overloaded(&failure) => return self.end(failure),
            None => shard.failure = Some(failure),
            Some(decided) if self.rest.is_some() && decided.decision().is_allow() => {
                return self.end(Outcome::Decided(vec![Ok(ObjectReply::Decided(decided))]));
            }
            decided => shard.answer = decided,
        }
        self.go_on();
    }

    /// Asks the next shard, or ends.
    fn go_on(&mut self) {
        while let Some(index) = self.rest.as_mut().and_then(Vec::pop) {
            let Some(shard) = self.shards.get_mut(index) else { continue };
            if shard.answer.is_none() {
                let batch = Batch::new(vec![shard.request.clone()], self.began_at);
                shard.batch = Some(if self.has_definitions { batch.with_definitions() } else { batch });
                return;
            }
        }
        if self.shards.iter().any(|shard| shard.batch.is_some()) {
            return;
        }
        let answers: Vec<_> = self.shards.iter().filter_map(|shard| shard.answer.as_ref()).collect();
        // Those that were asked one by one have done nothing, or there would be an outcome.
        let answer = match self.failed(self.rest.is_none() && !answers.is_empty()) {
            Some(failed) => return self.end(failed),
            None if self.rest.is_some() => best(&answers).cloned(),
            None => whole(&answers),
        };
        self.end(match answer {
            Some(decided) => Outcome::Decided(vec![Ok(ObjectReply::Decided(decided))]),
            None => Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed },
        });
    }

    /// What came of the shards that gave no answer, if there are any; `has_others` says whether others have, and have done it.
    fn failed(&self, has_others: bool) -> Option<Outcome> {
        let failures: Vec<_> = self.shards.iter().filter_map(|shard| shard.failure.as_ref()).collect();
        let first = *failures.first()?;
        // What is given back must not be given back again; a reset can be repeated.
        let is_done = has_others && self.shards.iter().any(|shard| shard.request.action == Action::Take(Verb::Refund));
        if !is_done && failures.iter().all(|failure| matches!(failure, Outcome::Outdated { .. })) {
            return Some(first.clone()); // the others are asked anew, too
        }
        let mut causes = Vec::new();
        for failure in failures {
            let all = if let Outcome::Failed { causes, .. } = failure { causes } else { &vec![Cause::Failed] };
            // Some shards have done it, so it must not be said that nothing was done.
            let told = |cause: &Cause| if has_others && *cause == Cause::Overloaded { Cause::Failed } else { *cause };
            for cause in all.iter().map(told) {
                if !causes.contains(&cause) {
                    causes.push(cause);
                }
            }
        }
        let cause = causes.first().copied().unwrap_or(Cause::Failed);
        Some(Outcome::Failed { causes, cause })
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }
}

fn is_overloaded(failure: &Outcome) -> bool {
    matches!(failure, Outcome::Failed { causes, .. } if causes.iter().all(|&cause| cause == Cause::Overloaded))
}

/// The answer of the shard that grants, or will be the first to.
fn best<'a>(answers: &[&'a Decided]) -> Option<&'a Decided> {
    answers.iter().copied().min_by_key(|answer| match answer.decision() {
        Decision::Allow { .. } => i64::MIN,
        Decision::Wait { retry_at } => retry_at.saturating_sub(answer.now),
        Decision::Never { .. } => i64::MAX,
    })
}

/// The answer of all of them: what they decide is as for the best, and what they have is added up.
fn whole(answers: &[&Decided]) -> Option<Decided> {
    let mut whole = best(answers)?.clone();
    for (index, limit) in whole.limits.iter_mut().enumerate() {
        let parts = || answers.iter().filter_map(|answer| answer.limits.get(index));
        let sum = |of: fn(&LimitAnswer) -> u64| parts().map(of).fold(0, u64::saturating_add);
        *limit = LimitAnswer {
            decision: limit.decision,
            remaining: sum(|part| part.remaining),
            owed: sum(|part| part.owed),
            reset_at: parts().map(|part| part.reset_at).reduce(|one, other| Some(one?.max(other?))).flatten(),
            snapshot: Snapshot {
                tokens: parts().map(|part| part.snapshot.tokens).fold(0, i64::saturating_add),
                drops: 0, // of different shards, they do not add up to drops of the whole
                // The latest: what refills from then on is in none of the sums.
                at: parts().map(|part| part.snapshot.at).max().unwrap_or(limit.snapshot.at),
            },
        };
    }
    let before = |index: usize| answers.iter().filter_map(move |answer| answer.before.get(index)).copied();
    whole.before = (0..whole.before.len()).map(|index| before(index).fold(0, i64::saturating_add)).collect();
    whole.may_be_kept = false;
    Some(whole)
}

/// How the shards stood that an isolate has asked.
#[derive(Debug)]
pub struct ShardLevels(Generations<Budget, Level>);

#[derive(Debug)]
struct Level {
    /// The [id](Policy::id) of the shard's policy.
    policy: u64,
    states: Box<[State]>,
    /// How far the object's clock was ahead of the isolate's, the call included.
    ahead_ms: i64,
}

impl Default for ShardLevels {
    fn default() -> Self {
        Self(Generations::new(MAX_BUDGETS))
    }
}

impl ShardLevels {
    /// Remembers how a shard stood when it answered, at `now`.
    pub fn keep(&mut self, object: &str, policy: &Policy, decided: &Decided, now: i64) {
        let limits = policy.limits().iter().zip(&decided.limits);
        let states = limits.map(|(limit, answer)| limit.limit().restored(&answer.snapshot)).collect::<Option<_>>();
        if let (Some(budget), Some(states)) = (budget(object, policy), states) {
            let ahead_ms = decided.now.saturating_sub(now);
            self.0.insert(budget, Level { policy: policy.id(), states, ahead_ms });
        }
    }

    /// In which order to ask the shards at `now`: the fuller of two at random, then the others, the fullest first. One that is not known
    /// is taken to be full. `random` are 64 random bits.
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

    /// How much there is of the shard's scarcest limit, in thousandths of its capacity.
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

    const NOW: i64 = 1_700_000_000_000;

    fn policy() -> Policy {
        Policy::parse("p", r#"{"rate":"40/s","shards":4}"#).unwrap()
    }

    fn name(shard: usize) -> String {
        format!("{shard:032x}{:032x}", 0)
    }

    fn requests() -> Vec<ObjectRequest> {
        let request = ObjectRequest {
            action: Action::Take(Verb::Consume),
            request_id: None,
            costs: vec![vec![3]],
            shadow_costs: Vec::new(),
            known: None,
            wants_notices: false,
            lease: None,
        };
        vec![request; 4]
    }

    /// The answer of a shard that has so many tokens to a cost of three.
    fn decided(policy: &Policy, tokens: u64, now: i64) -> Decided {
        let limit = policy.limits()[0].limit();
        let snapshot = Snapshot { tokens: tokens.cast_signed(), drops: 0, at: now };
        let state = limit.restored(&snapshot).unwrap();
        let (decision, state) = limit.decide(state, now, 3, Verb::Consume);
        Decided { may_be_kept: true, ..Decided::new(now, vec![LimitAnswer::new(limit, decision, &state, now)]) }
    }

    #[test]
    fn each_is_asked_in_order_until_one_grants() {
        let policy = policy();
        let answer = |tokens| Ok(ObjectReply::Decided(decided(&policy.shards()[0], tokens, NOW)));
        let mut calls = ShardCalls::one_by_one(requests(), &[2, 0, 3, 1], vec![None; 4], NOW);
        for shard in [2, 0] {
            assert_eq!(calls.next(NOW).map(|call| call.object), Some(shard));
            assert_eq!(calls.next(NOW), None, "one at a time");
            calls.answered(shard, answer(2));
            assert_eq!(calls.outcome(), None);
        }
        assert_eq!(calls.next(NOW).map(|call| call.object), Some(3));
        calls.answered(3, answer(4));
        let Some(Outcome::Decided(replies)) = calls.outcome() else { panic!("{calls:?}") };
        assert!(matches!(&replies[..], [Ok(ObjectReply::Decided(decided))] if decided.decision().is_allow()));
        assert!(calls.is_over() && calls.next(NOW).is_none());
    }

    #[test]
    fn one_that_is_known_to_refuse_is_not_asked_and_the_first_to_grant_says_when() {
        let shards = policy();
        let shards = shards.shards();
        let known = |tokens| Some(decided(&shards[0], tokens, NOW));
        let mut calls =
            ShardCalls::one_by_one(requests(), &[0, 1, 2, 3], vec![known(0), None, known(2), known(1)], NOW);
        assert_eq!(calls.next(NOW).map(|call| call.object), Some(1));
        calls.answered(1, Ok(ObjectReply::Decided(decided(&shards[0], 1, NOW))));
        let refused = |calls: &ShardCalls| match calls.outcome() {
            Some(Outcome::Decided(replies)) => match &replies[..] {
                [Ok(ObjectReply::Decided(decided))] => decided.decision(),
                _ => panic!("{replies:?}"),
            },
            outcome => panic!("{outcome:?}"),
        };
        // 40 a second in four shards are one in 100 ms for each.
        assert_eq!(refused(&calls), Decision::Wait { retry_at: NOW + 100 });
        let all = ShardCalls::one_by_one(requests(), &[0, 1, 2, 3], vec![known(0), known(1), known(0), known(1)], NOW);
        assert_eq!(refused(&all), Decision::Wait { retry_at: NOW + 200 });
        assert!(all.is_over(), "without a call");
    }

    /// It may have granted it.
    #[test]
    fn after_one_that_has_not_answered_no_other_is_asked() {
        for cause in [Cause::Timeout, Cause::Failed] {
            let mut calls = ShardCalls::one_by_one(requests(), &[1, 0, 2, 3], vec![None; 4], NOW);
            assert_eq!(calls.next(NOW).map(|call| call.object), Some(1));
            calls.answered(1, Err(Failure { cause, is_retryable: false }));
            assert_eq!(calls.next(NOW), None);
            assert_eq!(calls.outcome(), Some(&Outcome::Failed { causes: vec![cause], cause }));
            assert!(calls.is_over());
        }
        // Nor after the deadline.
        let mut calls = ShardCalls::one_by_one(requests(), &[1, 0, 2, 3], vec![None; 4], NOW);
        assert_eq!(calls.next(NOW + 5_000), None);
        assert!(matches!(calls.outcome(), Some(Outcome::Failed { cause: Cause::Timeout, .. })), "{calls:?}");
    }

    #[test]
    fn after_one_that_is_overloaded_the_next_is_asked() {
        let policy = policy();
        let answer = |tokens| Ok(ObjectReply::Decided(decided(&policy.shards()[0], tokens, NOW)));
        let overloaded = || Err(Failure { cause: Cause::Overloaded, is_retryable: true });
        let asked = |replies: [Result<ObjectReply, Failure>; 4]| {
            let mut calls = ShardCalls::one_by_one(requests(), &[0, 1, 2, 3], vec![None; 4], NOW);
            for (shard, reply) in replies.into_iter().enumerate() {
                let Some(call) = calls.next(NOW) else { break };
                assert_eq!(call.object, shard);
                calls.answered(shard, reply);
            }
            assert!(calls.is_over() && calls.next(NOW).is_none());
            calls.outcome().unwrap().clone()
        };
        let granted = asked([overloaded(), answer(2), overloaded(), answer(4)]);
        let Outcome::Decided(replies) = granted else { panic!("{granted:?}") };
        assert!(matches!(&replies[..], [Ok(ObjectReply::Decided(decided))] if decided.decision().is_allow()));
        // It might have granted it: this is no refusal.
        let cause = Cause::Overloaded;
        let undecided = Outcome::Failed { causes: vec![cause], cause };
        assert_eq!(asked([overloaded(), answer(2), answer(0), answer(1)]), undecided);
        assert_eq!(asked([overloaded(), overloaded(), overloaded(), overloaded()]), undecided);
        let failed = Err(Failure { cause: Cause::Failed, is_retryable: false });
        let cause = Cause::Failed;
        let last = Outcome::Failed { causes: vec![cause], cause };
        assert_eq!(asked([overloaded(), failed, answer(9), answer(9)]), last, "it may have granted it");
    }

    #[test]
    fn what_some_shards_have_given_back_is_not_given_back_again() {
        let shards = policy();
        let shards = shards.shards();
        let refund = || requests().into_iter().map(|it| ObjectRequest { action: Action::Take(Verb::Refund), ..it });
        let reset = || requests().into_iter().map(|it| ObjectRequest { action: Action::Take(Verb::Reset), ..it });
        let done = || Ok(ObjectReply::Decided(decided(&shards[0], 9, NOW)));
        let newer = || Ok(ObjectReply::PolicyOutdated { as_of: 7, definitions: String::new() });
        let failed = |cause| Err(Failure { cause, is_retryable: false });
        let outcome = |requests: Vec<ObjectRequest>, replies: [Result<ObjectReply, Failure>; 4]| {
            let mut calls = ShardCalls::all(requests, NOW);
            let asked: Vec<_> = std::iter::from_fn(|| calls.next(NOW)).map(|call| call.object).collect();
            assert_eq!(asked, [0, 1, 2, 3], "at once");
            for (shard, reply) in replies.into_iter().enumerate() {
                assert_eq!(calls.outcome(), None, "before all have answered");
                calls.answered(shard, reply);
            }
            assert!(calls.is_over());
            calls.outcome().unwrap().clone()
        };
        let cause = |outcome| match outcome {
            Outcome::Failed { cause, .. } => cause,
            outcome => panic!("{outcome:?}"),
        };
        let outdated = Outcome::Outdated { as_of: 7, definitions: String::new() };
        assert_eq!(outcome(refund().collect(), [newer(), newer(), newer(), newer()]), outdated);
        assert_eq!(cause(outcome(refund().collect(), [done(), newer(), newer(), newer()])), Cause::Failed);
        assert_eq!(outcome(reset().collect(), [done(), newer(), done(), newer()]), outdated, "it can be repeated");
        for (replies, expected) in [
            ([failed(Cause::Overloaded), done(), done(), done()], Cause::Failed),
            ([failed(Cause::Timeout), done(), done(), done()], Cause::Timeout),
        ] {
            assert_eq!(cause(outcome(reset().collect(), replies)), expected, "it was done by others");
        }
        let overloaded = || failed(Cause::Overloaded);
        let all = [overloaded(), overloaded(), overloaded(), overloaded()];
        assert_eq!(cause(outcome(refund().collect(), all)), Cause::Overloaded, "nothing was done");
        assert!(matches!(outcome(refund().collect(), [done(), done(), done(), done()]), Outcome::Decided(_)));
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
        // All are taken to be full: any two may be first.
        let firsts: std::collections::BTreeSet<_> =
            (0..8_u64).map(|random| order(random | random << 32, NOW)[0]).collect();
        assert!(firsts.len() > 2, "{firsts:?}");
        for (shard, tokens) in [(0, 4), (1, 9), (2, 2), (3, 6)] {
            levels.keep(&names[shard], &shards[shard], &decided(&shards[shard], tokens, NOW), NOW);
        }
        let mut order = |random, now| levels.order(names.iter().map(String::as_str).zip(shards), random, now);
        for random in 0..16_u64 {
            let order = order((random % 4) | (random / 4) << 32, NOW);
            let left = [1, 6, 2, 3]; // after three were taken where there were three
            assert!(left[order[0]] >= left[order[1]], "{order:?}");
            assert!(left[order[2]] >= left[order[3]], "{order:?}");
        }
        // A second later all are full again.
        let firsts: std::collections::BTreeSet<_> =
            (0..8_u64).map(|random| order(random | random << 32, NOW + 1_000)[0]).collect();
        assert!(firsts.len() > 2, "{firsts:?}");
    }
}
