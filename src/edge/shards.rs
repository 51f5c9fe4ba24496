//! A request about a budget in several objects: see [`Policy::shards`](crate::policy::Policy::shards).
//!
//! A cost is taken from one shard. The fuller of two random shards is called first ("power of two choices": Mitzenmacher, *The power of two
//! choices in randomized load balancing*, 1996), then the others, fullest first, by their last known levels. The request is refused only
//! when all have refused, until the first of them has enough. So of `n` shards a cost `c` is refused only while all of them together have
//! less than `n * c`. A shard that does not answer ends the request, since it may have granted it. An overloaded one has not, and the next
//! is called.
//!
//! A peek calls all at once, and its answer covers the whole budget.
//!
//! A refund is divided among the shards, and a reset applies to each. The first shard is called before the others, because it is the key's
//! own object: it decides whether the act is done at all, and whether it was done before, even when the budget had another number of
//! shards. Its answer says when it did its part, and over how many shards the act is spread ([`Spread`]). The others do their parts of
//! that, under an id made of the request's and that moment. So a repetition completes what was left undone and gives nothing twice,
//! whatever the number of shards is by then; and an `Idempotency-Key` already used for another request is detected before anything is done.
//!
//! A reservation stays where it was made: in the key's own object, before the budget was divided. It is closed there, and the other shards
//! are only peeked at.

use super::batch::{Batch, Failure, ObjectCall, Outcome};
use crate::limit::{Decision, Snapshot, Verb};
use crate::policy::Cause;
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Spread};

/// The calls of one request to the shards of a key's budget: use it like a [`Batch`].
#[derive(Debug)]
pub struct ShardCalls {
    shards: Vec<Shard>,
    order: Order,
    has_definitions: bool,
    began_at: i64,
    /// Whether shards may have done their parts in an earlier try.
    may_be_done: bool,
    outcome: Option<Outcome>,
}

/// The order of calls to the shards.
#[derive(Debug)]
enum Order {
    /// One by one until one grants: the remaining shards, the next one last.
    OneByOne(Vec<usize>),
    AllAtOnce,
    /// The first, which decides for all, and then the others at once. The bits choose which shards get the remainder of a division.
    FirstThenOthers(u64),
}

#[derive(Debug)]
struct Shard {
    request: ObjectRequest,
    /// The shard's call.
    batch: Option<Batch>,
    answer: Option<Decided>,
    /// The outcome if the call gave no answer.
    failure: Option<Outcome>,
}

impl ShardCalls {
    /// Calls one shard after another, in this order, until one grants, skipping those whose refusal is `known`. There is a request for each
    /// shard.
    #[must_use]
    pub fn one_by_one(requests: Vec<ObjectRequest>, order: &[usize], known: Vec<Option<Decided>>, now: i64) -> Self {
        let mut calls = Self::new(requests, Order::OneByOne(order.iter().rev().copied().collect()), now);
        for (shard, known) in calls.shards.iter_mut().zip(known) {
            shard.answer = known;
        }
        calls.go_on();
        calls
    }

    /// Calls all shards.
    #[must_use]
    pub fn all(requests: Vec<ObjectRequest>, now: i64) -> Self {
        let mut calls = Self::new(requests, Order::AllAtOnce, now);
        for shard in &mut calls.shards {
            shard.batch = Some(Batch::new(vec![shard.request.clone()], now));
        }
        calls
    }

    /// Calls the first shard, then the others for the rest of the act. Each request has the costs of the whole. `random` is 64 bits, the
    /// same each time that a request is tried or repeated; `is_tried` says that it was.
    #[must_use]
    pub fn first_then_others(requests: Vec<ObjectRequest>, (random, is_tried): (u64, bool), now: i64) -> Self {
        let count = requests.len();
        let mut calls = Self { may_be_done: is_tried, ..Self::new(requests, Order::FirstThenOthers(random), now) };
        if let Some(first) = calls.shards.first_mut() {
            if is_divided(first.request.action) {
                first.request.costs = shares(&first.request.costs, 0, count, random);
            }
            first.batch = Some(Batch::new(vec![first.request.clone()], now));
        }
        calls
    }

    fn new(requests: Vec<ObjectRequest>, order: Order, began_at: i64) -> Self {
        let shards = requests.into_iter().map(|request| Shard { request, batch: None, answer: None, failure: None });
        Self { shards: shards.collect(), order, has_definitions: false, began_at, may_be_done: false, outcome: None }
    }

    /// Sends the definitions of the policies with the first calls.
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
        loop {
            let mut is_any_over = false;
            for index in 0..self.shards.len() {
                let Some(batch) = self.shards.get_mut(index).and_then(|shard| shard.batch.as_mut()) else { continue };
                if let Some(call) = batch.next(now) {
                    return Some(ObjectCall { object: index, ..call });
                }
                if batch.outcome().is_some() {
                    self.take_outcome(index); // no time is left for it; perhaps another shard is due
                    is_any_over = true;
                }
            }
            if !is_any_over {
                return None;
            }
        }
    }

    /// See [`Batch::answered`].
    pub fn answered(&mut self, shard: usize, result: Result<ObjectReply, Failure>) {
        let Some(batch) = self.shards.get_mut(shard).and_then(|shard| shard.batch.as_mut()) else { return };
        batch.answered(0, result);
        self.take_outcome(shard);
    }

    /// The outcome, as if from a single object with the whole budget.
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

    /// Takes the outcome of a shard's call.
    fn take_outcome(&mut self, index: usize) {
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
        let is_one_by_one = matches!(self.order, Order::OneByOne(_));
        let is_first = matches!(self.order, Order::FirstThenOthers(_)) && index == 0;
        match decided {
            // It may have granted it, unless it is overloaded.
            None if is_one_by_one && !matches!(failure, Outcome::Failed { .. }) => return self.end(failure),
            None if is_one_by_one && !is_overloaded(&failure) => {
                shard.failure = Some(failure);
                if let Some(failed) = self.failed(false) {
                    self.end(failed);
                }
                return;
            }
            None if is_first && !(self.may_be_done && is_overloaded(&failure)) => return self.end(failure),
            None if is_first => return self.end(Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed }),
            None => shard.failure = Some(failure),
            Some(decided) if is_one_by_one && decided.decision().is_allow() => {
                return self.end(Outcome::Decided(vec![Ok(ObjectReply::Decided(decided))]));
            }
            decided => shard.answer = decided,
        }
        if is_first {
            self.ask_others();
        }
        self.go_on();
    }

    /// Calls all but the first for their parts of the act, or only peeks if they have none.
    fn ask_others(&mut self) {
        let (Order::FirstThenOthers(random), count) = (&self.order, self.shards.len()) else { return };
        let Some((first, others)) = self.shards.split_first_mut() else { return };
        let Some(decided) = &first.answer else { return };
        let spread = match first.request.action {
            Action::Take(_) => decided.spread.unwrap_or_else(|| Spread {
                at: decided.now,
                // What was done before is not repeated.
                shards: if decided.is_replayed { 1 } else { u8::try_from(count).unwrap_or(u8::MAX) },
            }),
            _ => Spread { at: decided.now, shards: 1 },
        };
        for (shard, index) in others.iter_mut().zip(1_usize..) {
            let request = &mut shard.request;
            if index < usize::from(spread.shards) {
                if is_divided(request.action) {
                    request.costs = shares(&request.costs, index, spread.shards.into(), *random);
                }
                // Not the id of an earlier act with the same key, which this shard may remember longer than the first.
                // The lower half is a frontend's counter.
                let of_act =
                    |id: RequestId| RequestId { id: id.id ^ u128::from(spread.at.cast_unsigned()) << 64, ..id };
                request.request_id = request.request_id.map(of_act);
            } else {
                request.action = Action::Look(Verb::Refund);
                request.costs = vec![vec![0; decided.limits.len()]];
                request.request_id = None;
            }
            let batch = Batch::new(vec![request.clone()], self.began_at);
            shard.batch = Some(if self.has_definitions { batch.with_definitions() } else { batch });
        }
    }

    /// Calls the next shard, or ends.
    fn go_on(&mut self) {
        while let Order::OneByOne(rest) = &mut self.order
            && let Some(index) = rest.pop()
        {
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
        // Shards called one by one have done nothing, or there would be an outcome.
        let is_one_by_one = matches!(self.order, Order::OneByOne(_));
        let answer = match self.failed(!is_one_by_one && !answers.is_empty()) {
            Some(failed) => return self.end(failed),
            None if is_one_by_one => best(&answers).cloned(),
            None => {
                whole(&answers, matches!(self.order, Order::FirstThenOthers(_))).map(|whole| self.not_repeated(whole))
            }
        };
        self.end(match answer {
            Some(decided) => Outcome::Decided(vec![Ok(ObjectReply::Decided(decided))]),
            None => Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed },
        });
    }

    /// The outcome if any shards gave no answer; `has_others` says whether others answered and did their parts.
    fn failed(&self, has_others: bool) -> Option<Outcome> {
        let failures: Vec<_> = self.shards.iter().filter_map(|shard| shard.failure.as_ref()).collect();
        let first = *failures.first()?;
        if failures.iter().all(|failure| matches!(failure, Outcome::Outdated { .. })) {
            return Some(first.clone()); // the others are called again, too, and know what they have done by its id
        }
        let mut causes = Vec::new();
        for failure in failures {
            let all = if let Outcome::Failed { causes, .. } = failure { causes } else { &vec![Cause::Failed] };
            // Some shards did their parts, so the reply must not claim that nothing was done.
            let reported =
                |cause: &Cause| if has_others && *cause == Cause::Overloaded { Cause::Failed } else { *cause };
            for cause in all.iter().map(reported) {
                if !causes.contains(&cause) {
                    causes.push(cause);
                }
            }
        }
        let perhaps_done = causes.iter().find(|cause| **cause != Cause::Overloaded);
        let cause = perhaps_done.or(causes.first()).copied().unwrap_or(Cause::Failed);
        Some(Outcome::Failed { causes, cause })
    }

    /// The answer to an act, which is a repetition only if the client says so by its id: another try is none.
    fn not_repeated(&self, whole: Decided) -> Decided {
        let first = self.shards.first().map(|shard| &shard.request);
        let is_act = first.is_some_and(|request| matches!(request.action, Action::Take(_)));
        let is_lasting = first.and_then(|request| request.request_id).is_some_and(|id| id.is_lasting());
        Decided { is_replayed: whole.is_replayed && (!is_act || is_lasting), ..whole }
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }
}

fn is_overloaded(failure: &Outcome) -> bool {
    matches!(failure, Outcome::Failed { causes, .. } if causes.iter().all(|&cause| cause == Cause::Overloaded))
}

/// The answer of the shard that grants, or will be first to grant.
fn best<'a>(answers: &[&'a Decided]) -> Option<&'a Decided> {
    answers.iter().copied().min_by_key(|answer| match answer.decision() {
        Decision::Allow { .. } => i64::MIN,
        Decision::Wait { retry_at } => retry_at.saturating_sub(answer.now),
        Decision::Never { .. } => i64::MAX,
    })
}

/// Whether the act's costs are divided among the shards.
fn is_divided(action: Action) -> bool {
    action == Action::Take(Verb::Refund)
}

/// A shard's part of these costs, of `count` shards. The bits of `random` choose which shards get the remainder.
fn shares(costs: &[Vec<u64>], index: usize, count: usize, random: u64) -> Vec<Vec<u64>> {
    let (index, count) = (index as u64, count as u64);
    let place = index.wrapping_add(random).checked_rem(count).unwrap_or(0);
    let share = |cost: &u64| {
        let (each, rest) = (cost.checked_div(count).unwrap_or(0), cost.checked_rem(count).unwrap_or(0));
        each.saturating_add(u64::from(place < rest))
    };
    costs.iter().map(|costs| costs.iter().map(share).collect()).collect()
}

/// The combined answer: levels are added up. If all have a part in an act, so are the moved tokens, and the first answer gives the rest;
/// otherwise the best answer gives the decision.
fn whole(answers: &[&Decided], is_act: bool) -> Option<Decided> {
    let mut whole = if is_act { (*answers.first()?).clone() } else { best(answers)?.clone() };
    for (index, limit) in whole.limits.iter_mut().enumerate() {
        let parts = || answers.iter().filter_map(|answer| answer.limits.get(index));
        let sum = |of: fn(&LimitAnswer) -> u64| parts().map(of).fold(0, u64::saturating_add);
        *limit = LimitAnswer {
            ban: limit.ban,
            decision: match limit.decision {
                Decision::Allow { ready_at, .. } if is_act => {
                    Decision::Allow { tokens: sum(|part| part.decision.tokens()), ready_at }
                }
                decision => decision,
            },
            remaining: sum(|part| part.remaining),
            owed: sum(|part| part.owed),
            reset_at: parts().map(|part| part.reset_at).reduce(|one, other| Some(one?.max(other?))).flatten(),
            snapshot: Snapshot {
                tokens: parts().map(|part| part.snapshot.tokens).fold(0, i64::saturating_add),
                drops: 0, // drops of different shards do not add up
                // The latest moment: refills from then on are in none of the sums.
                at: parts().map(|part| part.snapshot.at).max().unwrap_or(limit.snapshot.at),
            },
        };
    }
    let before = |index: usize| answers.iter().filter_map(move |answer| answer.before.get(index)).copied();
    whole.before = (0..whole.before.len()).map(|index| before(index).fold(0, i64::saturating_add)).collect();
    whole.may_be_kept = false;
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const NOW: i64 = 1_700_000_000_000;

    fn policy() -> Policy {
        Policy::parse("p", r#"{"rate":"40/s","shards":4}"#).unwrap()
    }

    fn requests() -> Vec<ObjectRequest> {
        let request = ObjectRequest {
            action: Action::Take(Verb::Consume),
            request_id: None,
            costs: vec![vec![3]],
            shadow_costs: Vec::new(),
            known: None,
            has_consequences: false,
            lease: None,
        };
        vec![request; 4]
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
    fn a_shard_known_to_refuse_is_skipped_and_the_earliest_retry_is_reported() {
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
        // 40 per second in four shards are one per 100 ms in each.
        assert_eq!(refused(&calls), Decision::Wait { retry_at: NOW + 100 });
        let all = ShardCalls::one_by_one(requests(), &[0, 1, 2, 3], vec![known(0), known(1), known(0), known(1)], NOW);
        assert_eq!(refused(&all), Decision::Wait { retry_at: NOW + 200 });
        assert!(all.is_over(), "without a call");
    }

    /// The first may have granted it.
    #[test]
    fn after_one_without_an_answer_no_other_is_asked() {
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
        assert!(matches!(calls.outcome(), Some(Outcome::Failed { cause: Cause::Overloaded, .. })), "{calls:?}");
    }

    #[test]
    fn after_an_overloaded_shard_the_next_is_asked() {
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
        // It may have granted it, so this is no refusal.
        let cause = Cause::Overloaded;
        let undecided = Outcome::Failed { causes: vec![cause], cause };
        assert_eq!(asked([overloaded(), answer(2), answer(0), answer(1)]), undecided);
        assert_eq!(asked([overloaded(), overloaded(), overloaded(), overloaded()]), undecided);
        let failed = Err(Failure { cause: Cause::Failed, is_retryable: false });
        let last = Outcome::Failed { causes: vec![Cause::Overloaded, Cause::Failed], cause: Cause::Failed };
        assert_eq!(asked([overloaded(), failed, answer(9), answer(9)]), last, "it may have granted it");
    }

    /// The outcome of the act after these answers of the shards, and each shard's request.
    fn act(
        action: Action,
        request_id: Option<RequestId>,
        replies: [Result<ObjectReply, Failure>; 4],
    ) -> (Outcome, Vec<ObjectRequest>) {
        let requests = requests().into_iter().map(|it| ObjectRequest { action, request_id, ..it });
        let mut calls = ShardCalls::first_then_others(requests.collect(), (1, false), NOW);
        let mut replies = replies.into_iter().enumerate();
        let mut asked = vec![calls.next(NOW).unwrap().request];
        assert_eq!(calls.next(NOW), None, "the first alone");
        let (_, first) = replies.next().unwrap();
        calls.answered(0, first);
        asked.extend(std::iter::from_fn(|| calls.next(NOW)).map(|call| call.request));
        for (shard, reply) in replies.take(asked.len() - 1) {
            assert_eq!(calls.outcome(), None, "before all have answered");
            calls.answered(shard, reply);
        }
        assert!(calls.is_over());
        (calls.outcome().unwrap().clone(), asked)
    }

    const LASTING: Option<RequestId> = Some(RequestId { id: 9, fingerprint: 1, ttl_ms: 9, by_grant: false });

    #[test]
    fn what_some_shards_gave_back_is_not_given_back_again() {
        let shards = policy();
        let shards = shards.shards();
        let (refund, reset) = (Action::Take(Verb::Refund), Action::Take(Verb::Reset));
        let done = || Ok(ObjectReply::Decided(decided(&shards[0], 9, NOW)));
        let newer = || Ok(ObjectReply::PolicyOutdated { as_of: 7, definitions: String::new() });
        let failed = |cause| Err(Failure { cause, is_retryable: false });
        let cause = |(outcome, _)| match outcome {
            Outcome::Failed { cause, .. } => cause,
            outcome => panic!("{outcome:?}"),
        };
        let outdated = Outcome::Outdated { as_of: 7, definitions: String::new() };
        let (outcome, asked) = act(refund, None, [newer(), done(), done(), done()]);
        assert_eq!((outcome, asked.len()), (outdated.clone(), 1), "nothing was done");
        for id in [None, LASTING] {
            assert_eq!(act(refund, id, [done(), newer(), newer(), newer()]).0, outdated, "it is known by its id");
        }
        assert_eq!(act(reset, None, [done(), done(), newer(), newer()]).0, outdated, "it can be repeated");
        for (reply, expected) in [(failed(Cause::Overloaded), Cause::Failed), (failed(Cause::Timeout), Cause::Timeout)]
        {
            assert_eq!(cause(act(reset, None, [done(), reply, done(), done()])), expected, "it was done by others");
        }
        let of_first = act(refund, None, [failed(Cause::Overloaded), done(), done(), done()]);
        assert_eq!((of_first.1.len(), cause(of_first)), (1, Cause::Overloaded), "nothing was done");
        let requests = requests().into_iter().map(|it| ObjectRequest { action: refund, ..it }).collect();
        let mut again = ShardCalls::first_then_others(requests, (1, true), NOW);
        assert_eq!(again.next(NOW).map(|call| call.object), Some(0));
        again.answered(0, failed(Cause::Overloaded));
        let outcome = again.outcome().unwrap().clone();
        assert_eq!(cause((outcome, Vec::new())), Cause::Failed, "others may have done it before");
        let of_first = act(refund, LASTING, [Ok(ObjectReply::RequestIdReused), done(), done(), done()]);
        assert_eq!(of_first.1.len(), 1, "nothing was done");
        assert_eq!(of_first.0, Outcome::Decided(vec![Ok(ObjectReply::RequestIdReused)]));
    }

    /// The first shard says how many had a part in it.
    #[test]
    fn a_repeated_act_is_spread_as_at_first() {
        let shards = policy();
        let shards = shards.shards();
        let moved = |tokens, spread| {
            let mut reply = decided(&shards[0], 9, NOW);
            reply.limits[0].decision = Decision::Allow { tokens, ready_at: NOW };
            Ok(ObjectReply::Decided(Decided { spread, is_replayed: spread.is_some(), ..reply }))
        };
        for (spread, costs) in [
            (None, vec![1, 1, 0, 1]), // a cost of 3, of which the third has nothing
            (Some(4), vec![1, 1, 0, 1]),
            (Some(2), vec![1, 2]),
            (Some(1), vec![1]),
            (Some(16), vec![1, 1, 0, 0]), // of 16, limited to the shards that still exist
        ] {
            let spread = spread.map(|shards| Spread { at: 5, shards });
            let all = [moved(4, spread), moved(3, None), moved(2, None), moved(0, None)];
            let (outcome, asked) = act(Action::Take(Verb::Refund), LASTING, all);
            let (acts, looks) = asked.split_at(costs.len());
            assert_eq!(acts.iter().map(|request| request.costs[0][0]).collect::<Vec<_>>()[1..], costs[1..]);
            let at = spread.map_or(NOW, |spread| spread.at).cast_unsigned();
            let ids = acts.iter().map(|request| request.request_id.unwrap().id).collect::<Vec<_>>();
            assert_eq!(ids, [vec![9], vec![9 + (u128::from(at) << 64); acts.len() - 1]].concat());
            for look in looks {
                let request = (look.action, look.costs[0][0], look.request_id);
                assert_eq!(request, (Action::Look(Verb::Refund), 0, None));
            }
            let Outcome::Decided(replies) = outcome else { panic!("{outcome:?}") };
            let [Ok(ObjectReply::Decided(whole))] = &replies[..] else { panic!("{replies:?}") };
            assert_eq!(whole.limits[0].decision, Decision::Allow { tokens: 9, ready_at: NOW }, "of all");
            assert_eq!(whole.limits[0].remaining, 24);
        }
        let closed = act(Action::Settle(8), None, [moved(4, None), moved(0, None), moved(0, None), moved(0, None)]);
        assert!(closed.1[1..].iter().all(|request| request.action == Action::Look(Verb::Refund)), "it is of the first");
    }
}
