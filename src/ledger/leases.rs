//! Tokens that frontends have taken in advance: withheld from everybody else until they are spent, returned, or over.
//!
//! A frontend spends from its lease without asking, at moments that the object does not know. So the tokens stay in the bucket,
//! which refills no further than to its capacity with them, and are only kept from others. When the frontend says what it has
//! spent, that is taken; when it says nothing, all of it is taken once the lease is over. Taken late, tokens have come back
//! later than they would have: the bucket is never fuller than if each had been taken when it was spent. So whatever is lost,
//! repeated or restarted, the key is granted no more than one bucket could grant; and it loses at most what a frontend had
//! not spent when it vanished.
//!
//! A lease is in the bucket's row before the frontend hears of it: see `row.rs`. An object that wakes withholds it too.
//!
//! Clocks: the object waits [`LATE_MS`] longer than it says, for a frontend whose clock stands still while it computes. If the
//! object's clock steps forward meanwhile, what comes back in that step may be granted beside the lease.
//!
//! Tokens that are still to come back may be leased too, to be spent from the moment when they have. So in an overload each
//! frontend has its share of the next moments, and refuses by itself until then.

use std::sync::Arc;

use super::bucket::Need;
use super::decide::{held_of, without};
use super::row::{LEASED, StoredRow};
use super::{Ledger, LedgerError};
use crate::limit::{Decision, Limit, State, Verb};
use crate::policy::{NamedLimit, Policy, Standing};
use crate::protocol::{Action, Decided, EndedLease, LATE_MS, Lease, LeaseRequest, ObjectRequest};

/// The longest that tokens can be leased.
pub const MAX_LEASE_MS: u64 = 10_000;

/// The most leases of a bucket, all of which are in its row: for a key of ten thousand requests a second from a hundred isolates.
const MAX_LEASES: usize = 256;

/// The leases of one bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    open: Vec<OpenLease>,
    /// Whether there is one that no row has.
    is_unsaved: bool,
    /// Tokens of each limit that have come back from leases which the row in storage still has, and those of leases that the row in
    /// flight has, too: after a crash these can be returned again.
    returned: Vec<(u64, u64)>,
    /// Until when none is given, so that a request which waits is not overtaken for ever.
    paused_until: Option<i64>,
}

/// Tokens that one frontend may spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenLease {
    pub(super) id: u64,
    /// When it is over, and all of it counts as spent.
    pub(super) until: i64,
    /// Of each limit.
    pub(super) tokens: Vec<u64>,
}

impl OpenLease {
    /// Whether it is over; also if the clock has stepped back so far that it would last too long.
    fn is_over(&self, now: i64) -> bool {
        self.until <= now || self.until.abs_diff(now) > 2 * MAX_LEASE_MS + LATE_MS
    }
}

impl Leases {
    /// Those of a row, whose limits get their tokens back, to be withheld. What is over by now is spent. Of an account that is not
    /// refilled any further they are as they were.
    pub(super) fn stored<'a>(
        row: &StoredRow<'_>,
        limits: impl Iterator<Item = (&'a Limit, &'a mut State)>,
        now: i64,
    ) -> Self {
        let mut open = row.leased.clone();
        let is_over = |lease: &mut OpenLease| lease.is_over(now);
        let over: Vec<_> = open.extract_if(.., is_over).collect();
        for (index, (limit, state)) in limits.enumerate() {
            let tokens = |lease: &OpenLease| lease.tokens.get(index).copied().unwrap_or(0);
            let withheld = open.iter().map(tokens).fold(0, u64::saturating_add);
            let with_all = limit.raised(state, over.iter().map(tokens).fold(withheld, u64::saturating_add));
            let spent =
                over.iter().fold(with_all, |state, lease| without(limit, &state, tokens(lease), lease.until.min(now)));
            // As it is, unless the bucket was full with what is spent.
            let is_same = over
                .iter()
                .map(|lease| lease.until.min(now))
                .max()
                .is_none_or(|at| limit.refilled(&limit.raised(state, withheld), at) == limit.refilled(&spent, at));
            *state = if is_same { limit.raised(state, withheld) } else { spent };
        }
        Self { open, ..Self::default() }
    }

    pub(super) const fn is_any(&self) -> bool {
        !self.open.is_empty()
    }

    /// The tokens of the limit at that position.
    pub(super) fn of(&self, limit: usize) -> u64 {
        self.open.iter().fold(0, |sum, lease| sum.saturating_add(lease.tokens.get(limit).copied().unwrap_or(0)))
    }

    /// When all are over.
    pub(super) fn over_at(&self, now: i64) -> i64 {
        self.open.iter().map(|lease| lease.until).max().unwrap_or(now).max(now)
    }

    /// Whether there is one that no row has.
    pub(super) const fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// A row has them as they are.
    pub(super) fn mark_saved(&mut self) {
        self.is_unsaved = false;
        self.returned.clear();
    }

    /// A row that has them as they are is on its way.
    pub(super) fn mark_in_flight(&mut self) {
        self.returned.iter_mut().for_each(|(_, since)| *since = 0);
    }

    /// The row that was on its way has arrived.
    pub(super) fn mark_arrived(&mut self) {
        self.returned.iter_mut().for_each(|(all, since)| *all = *since);
    }

    /// How many tokens of the limit at that position could be returned again after a crash, if the row in storage is found; and if it is
    /// the one in flight.
    pub(super) fn returned(&self, limit: usize) -> (u64, u64) {
        self.returned.get(limit).copied().unwrap_or_default()
    }

    /// Ends the one of that id, and says what was spent of it.
    fn close(&mut self, ended: &EndedLease) -> Option<Vec<u64>> {
        let lease = self.open.extract_if(.., |lease| lease.id == ended.id).next()?;
        let spent: Vec<_> = lease.tokens.iter().zip(&ended.spent).map(|(&all, &spent)| spent.min(all)).collect();
        self.returned.resize(spent.len(), (0, 0));
        for (((returned, since), all), spent) in self.returned.iter_mut().zip(&lease.tokens).zip(&spent) {
            let rest = all.saturating_sub(*spent);
            (*returned, *since) = (returned.saturating_add(rest), since.saturating_add(rest));
        }
        Some(spent)
    }

    /// Withholds the tokens of other limits: by their names, since frontends may still spend them.
    pub(super) fn move_to(&mut self, before: &[Option<&str>], policy: &Policy) {
        for lease in &mut self.open {
            let of_name = |named: &NamedLimit| {
                let place = before.iter().position(|name| *name == named.name());
                place.and_then(|place| lease.tokens.get(place)).copied().unwrap_or(0)
            };
            lease.tokens = policy.limits().iter().map(of_name).collect();
        }
    }

    /// Adds the part of a row.
    pub(super) fn encode(&self, limits: usize, row: &mut Vec<u8>) {
        if self.open.is_empty() {
            return;
        }
        row.push(LEASED);
        let each = limits.saturating_mul(8).saturating_add(16);
        let len = self.open.len().saturating_mul(each).saturating_add(1);
        row.extend(u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()); // 256 of 8 limits at most
        row.push(u8::try_from(limits).unwrap_or(u8::MAX));
        for OpenLease { id, until, tokens } in &self.open {
            row.extend(id.to_le_bytes());
            row.extend(until.to_le_bytes());
            (0..limits).for_each(|limit| row.extend(tokens.get(limit).copied().unwrap_or(0).to_le_bytes()));
        }
    }

    /// Spends those that are over.
    fn end(&mut self, policy: &Policy, states: &mut [State], now: i64) {
        for lease in self.open.extract_if(.., |lease| lease.is_over(now)) {
            spend(&lease.tokens, policy, states, lease.until.min(now));
        }
    }

    fn is_paused(&self, now: i64) -> bool {
        self.paused_until.is_some_and(|until| now < until && until.abs_diff(now) <= MAX_LEASE_MS)
    }
}

/// Takes so many tokens of each limit.
fn spend(spent: &[u64], policy: &Policy, states: &mut [State], at: i64) {
    for ((limit, state), &spent) in policy.limits().iter().zip(states).zip(spent) {
        *state = without(limit.limit(), state, spent, at);
    }
}

impl Ledger {
    /// Takes what was spent of leases that have ended.
    pub(super) fn return_leases(
        &mut self,
        asked: &[Arc<Policy>],
        request: Option<&LeaseRequest>,
        now: i64,
    ) -> Result<(), LedgerError> {
        for policy in asked {
            let bucket = self.bucket(policy)?;
            bucket.leases.end(policy, &mut bucket.states, now);
        }
        let ([policy], Some(request)) = (asked, request) else { return Ok(()) };
        let bucket = self.bucket(policy)?;
        for ended in &request.ended {
            // One that is unknown is over, or was returned before.
            if let Some(spent) = bucket.leases.close(ended) {
                spend(&spent, policy, &mut bucket.states, now);
                bucket.need(Need::Spent);
            }
        }
        Ok(())
    }

    /// Leases tokens as requested, if there are any to spare. A request that is refused gets a lease only if it can then be granted
    /// from it, and is told that moment; else there is none for anybody until it can be granted.
    pub(super) fn lease(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        decided: &mut Decided,
        random: impl FnOnce() -> Option<u64>,
    ) -> Result<(), LedgerError> {
        let ([policy], [costs], Some(terms)) = (asked, request.costs.as_slice(), &request.lease) else { return Ok(()) };
        let (decision, now) = (decided.decision(), decided.now);
        let given = if terms.wants_any() { self.spare(policy, terms, now)? } else { None };
        let is_of_use = |(_, tokens): &(i64, Vec<u64>)| {
            decision.is_allow() || tokens.iter().zip(costs).all(|(tokens, cost)| tokens >= cost)
        };
        let lease = given.filter(is_of_use).and_then(|(from, tokens)| {
            let until = from.saturating_add_unsigned(terms.lease_ms.min(MAX_LEASE_MS));
            Some(Lease { id: random()?, from, until, tokens })
        });
        let bucket = self.bucket(policy)?;
        match (&lease, decision) {
            (Some(Lease { id, until, tokens, from }), _) => {
                let until = until.saturating_add_unsigned(LATE_MS);
                bucket.leases.open.push(OpenLease { id: *id, until, tokens: tokens.clone() });
                bucket.leases.is_unsaved = true;
                bucket.need(Need::Spent);
                for limit in &mut decided.limits {
                    if let Decision::Wait { retry_at } = &mut limit.decision {
                        *retry_at = (*from).max(*retry_at);
                    }
                }
            }
            (None, Decision::Wait { retry_at }) if matches!(request.action, Action::Take(_)) => {
                bucket.leases.paused_until = bucket.leases.paused_until.max(Some(retry_at));
            }
            _ => {}
        }
        decided.lease = lease;
        Ok(())
    }

    /// From when so many tokens of each limit could be leased: half of those that there are, so that others find some, too; if there
    /// are none, of those that there will be.
    fn spare(
        &mut self,
        policy: &Arc<Policy>,
        request: &LeaseRequest,
        now: i64,
    ) -> Result<Option<(i64, Vec<u64>)>, LedgerError> {
        let held = held_of(self, policy);
        let bucket = self.bucket(policy)?;
        let is_full = bucket.leases.open.len() >= MAX_LEASES || bucket.leases.is_paused(now);
        let is_limited = policy.standing() == Standing::Limited && !policy.is_inline();
        if is_full || !is_limited || request.wanted.len() != policy.limits().len() {
            return Ok(None);
        }
        let horizon = now.saturating_add_unsigned(request.horizon_ms.min(MAX_LEASE_MS));
        let limits = || {
            let limits = policy.limits().iter().zip(&bucket.states).zip(&held).zip(&request.wanted);
            limits.map(|(((limit, state), &held), &wanted)| (limit.limit(), state, held, wanted))
        };
        Ok(spare_at(limits(), now, now).or_else(|| spare_at(limits(), now, horizon)))
    }
}

/// From when half of the tokens that there will be `by` then could be spent; `None` if there will be none of a limit of which
/// some are wanted. Of each limit its state, and how many tokens are held and wanted.
fn spare_at<'a>(
    limits: impl Iterator<Item = (&'a Limit, &'a State, u64, u64)>,
    now: i64,
    by: i64,
) -> Option<(i64, Vec<u64>)> {
    let mut from = now;
    let mut tokens = Vec::new();
    for (limit, state, held, wanted) in limits {
        let there = limit.remaining(&without(limit, state, held, by), by);
        let given = wanted.min(there.div_ceil(2));
        if given > 0 {
            match limit.decide(without(limit, state, held, now), now, given, Verb::Consume).0 {
                Decision::Allow { .. } => {}
                Decision::Wait { retry_at } => from = from.max(retry_at),
                Decision::Never { .. } => return None,
            }
        } else if wanted > 0 {
            return None;
        }
        tokens.push(given);
    }
    Some((from, tokens))
}

/// When a cost passes that is refused while so many tokens are held, of which `leased` are leased out, all until then at the latest.
/// If all of these are spent, there may be fewer than if they had been taken now: the bucket was full with them.
pub(super) fn refusal_while_leased(
    limit: &Limit,
    state: &State,
    (held, leased, until): (u64, u64, i64),
    (cost, verb): (u64, Verb),
    (refusal, now): (Decision, i64),
) -> Decision {
    let at = |at: i64, held| limit.decide(without(limit, state, held, at), at, cost, verb).0;
    let spent = match refusal {
        Decision::Wait { retry_at } if at(retry_at, held).is_allow() => refusal,
        Decision::Wait { .. } => at(until, held),
        other => other,
    };
    match (spent, at(now, held.saturating_sub(leased))) {
        // They may be returned.
        (Decision::Allow { .. }, _) | (Decision::Never { .. }, Decision::Allow { .. }) => {
            Decision::Wait { retry_at: until }
        }
        (Decision::Never { .. }, Decision::Wait { retry_at }) => Decision::Wait { retry_at: retry_at.max(until) },
        (refusal, _) => refusal,
    }
}
