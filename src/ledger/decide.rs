//! One decision over the limits of one or several policies.

use std::sync::Arc;

use super::accounts::Change;
use super::bucket::{Bucket, Need};
use super::reservation::Expired;
use super::returns::{Return, sooner};
use super::standing::{answered, count_all, is_unlimited, refuse_all};
use super::without::{refusal_while_leased, without};
use super::{Ledger, LedgerError, Slot};
use crate::limit::{Decision, Limit, Part, State, Verb, decide_policies};
use crate::policy::{Ban, NamedLimit, Policy};
use crate::protocol::{Decided, LimitAnswer};

impl Ledger {
    /// Opens the bucket under `policy`. `as_of` is the registry version known to the requesting frontend.
    pub(super) fn open(&mut self, policy: &Arc<Policy>, as_of: i64, now: i64) -> Result<(), LedgerError> {
        let phase = self.phase;
        // No registry has numbers from a request.
        let as_of = if policy.is_inline() { 0 } else { as_of };
        let is_same = |slot: &Slot| matches!(slot, Slot::Open(bucket) if Arc::ptr_eq(bucket.policy(), policy));
        let follows = !self.slot(policy.name()).is_some_and(is_same);
        let expired = if follows { self.expired_in(policy, now) } else { Vec::new() };
        if let Some(slot) = self.slot_mut(policy.name()) {
            let is_read = matches!(slot, Slot::Stored(_));
            slot.open(policy, as_of, expired, now, phase)?;
            if is_read {
                self.close_forgotten(policy)?;
            }
            self.bucket(policy)?.fill_slots(now, phase);
            self.bucket(policy)?.bring_back(now);
            if let Some(renamed) = self.bucket(policy)?.take_renamed() {
                self.notices.rename(policy.name(), &renamed);
                if self.rename_taken(policy.name(), &renamed) {
                    self.bucket(policy)?.need(Need::Exact); // in one write with them
                }
            }
            return Ok(());
        }
        let mut bucket = Bucket::new(policy, as_of, now, phase);
        bucket.bring_back(now);
        if self.buckets.is_empty() {
            // Most keys have one policy; the first push would allocate room for four.
            self.buckets.reserve_exact(1);
        }
        self.buckets.push((policy.name().to_owned(), Slot::Open(Box::new(bucket))));
        Ok(())
    }

    pub(super) fn bucket(&mut self, policy: &Policy) -> Result<&mut Bucket, LedgerError> {
        match self.slot_mut(policy.name()) {
            Some(Slot::Open(bucket)) => Ok(bucket),
            _ => Err(LedgerError(format!("the bucket of policy {} is not open", policy.name()))),
        }
    }

    /// Decides over all limits of all policies together, all or none. Without `apply` nothing is taken. The state after a refusal is stored
    /// in any case: it differs only after the clock stepped back far, and `retry_at` counts from there.
    pub(super) fn decide(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        costs: &[Vec<u64>],
        now: i64,
        apply: bool,
    ) -> Result<(Vec<LimitAnswer>, Decision), LedgerError> {
        let holds: Vec<Holds> = asked.iter().map(|policy| Holds::of(self, policy)).collect();
        // Only a request that takes must leave held tokens alone; refunds and charges may touch them.
        let takes = verb.takes();
        let (mut limited, mut unlimited) = (Vec::new(), Vec::new());
        for ((policy, costs), holds) in asked.iter().zip(costs).zip(&holds) {
            let bucket = self.bucket(policy)?;
            let mut parts = Vec::with_capacity(policy.limits().len());
            for (((limit, state), &cost), &held) in
                policy.limits().iter().zip(&bucket.states).zip(costs).zip(&holds.held)
            {
                let available = if takes { without(limit.limit(), state, held, now) } else { *state };
                parts.push(Part::new(limit.limit(), available, cost));
            }
            if is_unlimited(policy, verb) {
                unlimited.extend(parts);
            } else {
                limited.push(parts);
            }
        }
        let bans: Vec<_> = asked.iter().map(|policy| self.ban(policy, now)).collect();
        let decision = match bans.iter().flatten().next().filter(|_| takes) {
            Some(ban) => refuse_all(&mut limited, now, verb, *ban),
            None => decide_policies(&mut limited, now, verb),
        };
        count_all(&mut unlimited, now, decision);
        let is_refused = takes && !decision.is_allow();
        let returns: Vec<_> = asked.iter().filter(|_| is_refused).map(|policy| self.returns(policy)).collect();
        let (mut limited, mut unlimited) = (limited.iter().flatten(), unlimited.iter());
        let mut answers = Vec::new();
        for (place, ((policy, holds), ban)) in asked.iter().zip(&holds).zip(bans).enumerate() {
            // One that is over may have given back nothing, and so left the state from which they were computed.
            let returns = returns.get(place).and_then(Option::as_deref).unwrap_or_default();
            let returns = returns.get(returns.partition_point(|one| one.is_over(now))..).unwrap_or_default();
            let first = answers.len();
            let decided: &mut dyn Iterator<Item = _> =
                if is_unlimited(policy, verb) { &mut unlimited } else { &mut limited };
            let ends = if is_refused { holds.ends_after(now) } else { Vec::new() };
            let bucket = self.bucket(policy)?;
            let in_ban = |own: Decision| ban.filter(|_| takes).map_or(own, |ban| ban.decision(own));
            let before = bucket.states_before();
            let mut need = Need::Nothing;
            let mut changes = Vec::new();
            let mut refused = Vec::new();
            let limits = policy.limits().iter().zip(&holds.held);
            for (index, ((state, part), (named, &held))) in
                bucket.states.iter_mut().zip(&mut *decided).zip(limits).enumerate()
            {
                if named.is_slots() {
                    let own = match part.decision {
                        // More than there are, if need be.
                        _ if is_unlimited(policy, verb) => Decision::Allow { tokens: part.cost, ready_at: now },
                        granted if granted.is_allow() => granted,
                        _ => holds.decide_slots(index, part.limit, state, (part.cost, verb), now),
                    };
                    let own = in_ban(own);
                    // The reservation holds them. Its bucket stays full.
                    let slots = if apply && decision.is_allow() { own.tokens() } else { 0 };
                    answers.push(holds.answer(index, named, own, (state, slots), now));
                    changes.push(Change::Take(0));
                    continue;
                }
                let after = if decision.is_allow() && !apply {
                    *state
                } else if !takes || held == 0 {
                    part.state
                } else if decision.is_allow() && part.decision.tokens() > 0 {
                    part.limit.raised(&part.state, held)
                } else {
                    // As after a refusal, or a request for nothing: it follows a clock that stepped back far.
                    part.limit.decide(*state, now, 0, Verb::Refund).1
                };
                let own = if takes && !part.decision.is_allow() && part.limit.is_rolling() {
                    refused.push((index, (part.cost, verb), held));
                    part.decision
                } else if takes && !part.decision.is_allow() {
                    let returns = (returns, ends.as_slice());
                    holds.refusal(index, (part, state), bucket.leases.of(index), verb, returns, now)
                } else if is_unlimited(policy, verb) {
                    answered(part, now, verb)
                } else {
                    part.decision
                };
                answers.push(answer(part.limit, in_ban(own), &after, held, now));
                changes.push(Change::of(verb, part.cost, part.decision.tokens()));
                if after != *state {
                    *state = after;
                    need = if decision.is_allow() { Need::Spent } else { Need::Exact };
                }
            }
            bucket.need(need);
            if apply && decision.is_allow() {
                bucket.follow(&before, &changes, now);
            } else if need == Need::Exact {
                bucket.refill_cuts(now); // they follow the clock, too
            }
            let answers = answers.get_mut(first..).unwrap_or_default();
            for answer in answers.iter_mut() {
                answer.ban = ban;
            }
            self.say_when_back(policy, holds, &refused, answers, now)?;
        }
        Ok((answers, decision))
    }

    /// The key's ban from a policy at `now`.
    pub(super) fn ban(&self, policy: &Policy, now: i64) -> Option<Ban> {
        policy.ban(self.bans.until(policy.name()), now)
    }

    /// When rolling windows grant what they have just `refused`, each with its cost and what is held of it, and when they are full again.
    /// `answers` are those of the policy's limits.
    fn say_when_back(
        &mut self,
        policy: &Policy,
        holds: &Holds,
        refused: &[(usize, (u64, Verb), u64)],
        answers: &mut [LimitAnswer],
        now: i64,
    ) -> Result<(), LedgerError> {
        let expiring = if refused.is_empty() { Vec::new() } else { self.expiring(policy) };
        let bucket = self.bucket(policy)?;
        for (index, cost, held) in refused {
            if let Some(answer) = answers.get_mut(*index) {
                let own = bucket.refusal(*index, *cost, *held, holds.ends_of(*index), &expiring);
                answer.decision = answer.ban.map_or(own, |ban| ban.decision(own));
            }
        }
        holds.say_when_full(bucket, answers, now);
        Ok(())
    }

    /// The level of each limit now, in whole tokens; negative if owed.
    pub(super) fn levels(&mut self, asked: &[Arc<Policy>], now: i64) -> Result<Vec<i64>, LedgerError> {
        let nothing = std::iter::repeat(Decision::Allow { tokens: 0, ready_at: now });
        Ok(self.standing(asked, nothing, now)?.iter().map(LimitAnswer::level).collect())
    }

    /// Charges or refunds each limit of `policy`. Neither is ever refused.
    pub(super) fn adjust(
        &mut self,
        policy: &Policy,
        changes: impl Iterator<Item = (Verb, u64)>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let holds = Holds::of(self, policy);
        let bucket = self.bucket(policy)?;
        let mut answers = Vec::new();
        let mut others = Vec::new();
        let before = bucket.states.clone();
        let limits = policy.limits().iter().zip(&mut bucket.states).enumerate();
        for ((index, (limit, state)), (verb, cost)) in limits.zip(changes) {
            let (decision, after) = limit.limit().decide(*state, now, cost, verb);
            *state = after;
            others.push(Change::of(verb, cost, decision.tokens()));
            answers.push(holds.answer(index, limit, decision, (state, 0), now));
        }
        bucket.follow(&before, &others, now);
        if bucket.states != before {
            bucket.need(Need::Spent);
        }
        holds.say_when_full(bucket, &mut answers, now);
        Ok(answers)
    }

    /// The levels now, with earlier decisions.
    pub(super) fn standing(
        &mut self,
        asked: &[Arc<Policy>],
        decisions: impl Iterator<Item = Decision>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let mut decisions = decisions.fuse();
        let mut limits = Vec::new();
        for policy in asked {
            let holds = Holds::of(self, policy);
            let bucket = self.bucket(policy)?;
            let states = policy.limits().iter().zip(&bucket.states).enumerate();
            let first = limits.len();
            for ((index, (limit, state)), decision) in states.zip(decisions.by_ref()) {
                limits.push(holds.answer(index, limit, decision, (state, 0), now));
            }
            holds.say_when_full(bucket, limits.get_mut(first..).unwrap_or_default(), now);
        }
        Ok(limits)
    }

    pub(super) fn decided(&self, now: i64, limits: Vec<LimitAnswer>) -> Decided {
        let open_reservations = self.reservations.len() as u64;
        Decided { open_reservations, ..Decided::new(now, limits) }
    }
}

impl Slot {
    fn open(
        &mut self,
        policy: &Arc<Policy>,
        as_of: i64,
        expired: Vec<Expired>,
        now: i64,
        phase: u64,
    ) -> Result<(), LedgerError> {
        match self {
            Self::Open(bucket) => bucket.move_to(policy, as_of, expired, now, phase),
            Self::Stored(row) => {
                let bucket = Bucket::read(policy, as_of, row, expired, now, phase);
                let error = |error| LedgerError::of_bucket(policy.name(), error);
                *self = Self::Open(Box::new(bucket.map_err(error)?));
            }
        }
        Ok(())
    }
}

/// The end of a hold that is not counted on.
pub(super) const NEVER: i64 = i64::MAX;

/// What is held of one policy; of soft limits nothing.
pub(super) struct Holds {
    /// For each limit.
    pub(super) held: Vec<u64>,
    /// When each hold ends, and what it holds of each limit; soonest first.
    ends: Vec<(i64, Vec<u64>)>,
    /// When the leases end, whose tokens are also held.
    leased_until: Option<i64>,
}

impl Holds {
    pub(super) fn of(ledger: &Ledger, policy: &Policy) -> Self {
        let ends = ledger.holds_of(policy);
        let mut held = vec![0_u64; policy.limits().len()];
        for (_, tokens) in &ends {
            for (held, tokens) in held.iter_mut().zip(tokens) {
                *held = held.saturating_add(*tokens);
            }
        }
        let mut leased_until = None;
        if let Some(Slot::Open(bucket)) = ledger.slot(policy.name())
            && bucket.leases.is_any()
        {
            leased_until = Some(bucket.leases.over_at(i64::MIN));
            for (index, held) in held.iter_mut().enumerate() {
                *held = held.saturating_add(bucket.leases.of(index));
            }
        }
        // It refuses nobody for what may never be taken, and must not say that it is exceeded by that.
        for (held, _) in held.iter_mut().zip(policy.limits()).filter(|(_, named)| named.limit().is_soft()) {
            *held = 0;
        }
        Self { held, ends, leased_until }
    }

    /// When a cost passes that a limit has just refused: what is held, leased or reserved may come back sooner than it refills.
    fn refusal(
        &self,
        index: usize,
        (part, state): (&Part<'_>, &State),
        leased: u64,
        verb: Verb,
        (returns, ends): (&[Return], &[i64]),
        now: i64,
    ) -> Decision {
        let (limit, cost) = (part.limit, (part.cost, verb));
        let unless_returned = |refusal, state: &State, at: i64, held| match self.leased_until {
            Some(until) => refusal_while_leased(limit, state, (held, leased, until.max(at)), cost, (refusal, at)),
            None => refusal,
        };
        let held = self.held.get(index).copied().unwrap_or(0);
        let refusal = unless_returned(part.decision, state, now, held);
        sooner(returns, ends, (index, state), refusal, |state, at| {
            let held = self.held_at(index, at);
            match limit.decide(without(limit, state, held, at), at, part.cost, verb).0 {
                granted if granted.is_allow() => granted,
                refusal => unless_returned(refusal, state, at, held),
            }
        })
    }

    /// The decision for slots. None are taken from their bucket.
    pub(super) fn decide_slots(
        &self,
        index: usize,
        limit: &Limit,
        state: &State,
        (cost, verb): (u64, Verb),
        now: i64,
    ) -> Decision {
        let at = |at: i64| limit.decide(without(limit, state, self.held_at(index, at), at), at, cost, verb).0;
        match at(now) {
            granted if granted.is_allow() => granted,
            refusal => sooner(&[], &self.ends_after(now), (index, state), refusal, |_, moment| at(moment)),
        }
    }

    /// The answer for a limit while its held tokens, and `more`, are unavailable. Slots are all free when the last hold has ended.
    pub(super) fn answer(
        &self,
        index: usize,
        limit: &NamedLimit,
        decision: Decision,
        (state, more): (&State, u64),
        now: i64,
    ) -> LimitAnswer {
        let held = self.held.get(index).map_or(0, |held| held.saturating_add(more));
        let answer = answer(limit.limit(), decision, state, held, now);
        if !limit.is_slots() {
            return answer;
        }
        let of_limit = self.ends.iter().filter(|(_, tokens)| tokens.get(index).is_some_and(|&tokens| tokens > 0));
        let last = of_limit.map(|(end, _)| *end).filter(|&end| end < NEVER).max();
        LimitAnswer { reset_at: Some(last.unwrap_or(now).max(now)), ..answer }
    }

    /// When rolling windows of `bucket` are full again: `answers` are those of its limits. For a copy of the state, one is a window that
    /// opens again at that moment.
    pub(super) fn say_when_full(&self, bucket: &Bucket, answers: &mut [LimitAnswer], now: i64) {
        for (index, (named, answer)) in bucket.policy().limits().iter().zip(answers).enumerate() {
            if named.limit().is_rolling() {
                let held = self.ends_of(index).filter(|(_, tokens)| *tokens > 0).map(|(end, _)| end);
                answer.set_full_at(named.limit(), held.chain(bucket.over_at(index)).fold(now, Ord::max));
            }
        }
    }

    /// When something of a limit is no longer held, and how much of it.
    pub(super) fn ends_of(&self, limit: usize) -> impl Iterator<Item = (i64, u64)> {
        let ends = self.ends.iter().filter(|(end, _)| *end < NEVER);
        ends.map(move |(end, tokens)| (*end, tokens.get(limit).copied().unwrap_or(0)))
    }

    /// The moments from `now` on at which something held is no longer held.
    pub(super) fn ends_after(&self, now: i64) -> Vec<i64> {
        self.ends.iter().map(|(end, _)| *end).filter(|&end| now < end && end < NEVER).collect()
    }

    /// What is still held of a limit at that moment, after some holds have ended.
    pub(super) fn held_at(&self, limit: usize, at: i64) -> u64 {
        let over = self.ends.iter().take_while(|(end, _)| *end <= at);
        let over = over.map(|(_, tokens)| tokens.get(limit).copied().unwrap_or(0));
        self.held.get(limit).map_or(0, |held| over.fold(*held, u64::saturating_sub))
    }
}

/// What is held of each limit of `policy`.
pub(super) fn held_of(ledger: &Ledger, policy: &Policy) -> Vec<u64> {
    Holds::of(ledger, policy).held
}

/// A limit's answer, and its state while `held` tokens are held.
pub(super) fn answer(limit: &Limit, decision: Decision, state: &State, held: u64, now: i64) -> LimitAnswer {
    LimitAnswer::new(limit, decision, &without(limit, state, held, now), now)
}
