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
use super::row::{LEASED, Leased, NamedState, StoredRow};
use super::{Ledger, LedgerError};
use crate::limit::{Decision, Limit, State, Verb};
use crate::policy::{Policy, Standing};
use crate::protocol::{Decided, Lease, LeaseRequest};

/// The longest that tokens can be leased.
pub const MAX_LEASE_MS: u64 = 60_000;

/// For how much longer they are kept: more than a request computes without waiting for anything.
const LATE_MS: u64 = 1_000;

/// The most leases of a bucket: more than the isolates that ask for one key.
const MAX_LEASES: usize = 1_024;

/// The leases of one bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    open: Vec<OpenLease>,
    /// Whether there is one that no row has.
    is_news: bool,
    /// Until when none is given, so that a request which waits is not overtaken for ever.
    paused_until: Option<i64>,
}

#[derive(Clone, Debug)]
struct OpenLease {
    /// `None` of those that were found in a row, which nobody can return.
    id: Option<u64>,
    until: i64,
    /// Of each limit.
    tokens: Vec<u64>,
}

impl OpenLease {
    /// Whether it is over; also if the clock has stepped back so far that it would last too long.
    fn is_over(&self, now: i64) -> bool {
        self.until <= now || self.until.abs_diff(now) > 2 * MAX_LEASE_MS + LATE_MS
    }

    /// Takes so many tokens of each limit.
    fn spend(spent: &[u64], policy: &Policy, states: &mut [State], at: i64) {
        for ((limit, state), &spent) in policy.limits().iter().zip(states).zip(spent) {
            *state = without(limit.limit(), state, spent, at);
        }
    }
}

impl Leases {
    /// Those of a row, and the states of its limits with them. What is over by now is spent.
    pub(super) fn stored<'a>(
        row: &StoredRow<'_>,
        limits: impl Iterator<Item = (&'a Limit, &'a State)>,
        now: i64,
    ) -> (Self, Vec<State>) {
        let Some(Leased { until, tokens }) = row.leased.clone() else {
            return (Self::default(), limits.map(|(_, state)| *state).collect());
        };
        let lease = OpenLease { id: None, until, tokens };
        let is_over = lease.is_over(now);
        let states = limits.enumerate().map(|(index, (limit, state))| {
            let tokens = lease.tokens.get(index).copied().unwrap_or(0);
            if is_over { ended(limit, state, tokens, until.min(now)) } else { limit.raised(state, tokens) }
        });
        let states = states.collect();
        (Self { open: if is_over { Vec::new() } else { vec![lease] }, ..Self::default() }, states)
    }

    /// What is left of the limits of a row, as if all leases had been spent by now.
    pub(super) fn end_stored(row: &StoredRow<'_>, limits: &mut [NamedState], now: i64) {
        let Some(Leased { until, tokens }) = &row.leased else { return };
        for (limit, &tokens) in limits.iter_mut().zip(tokens) {
            limit.state = ended(&limit.limit, &limit.state, tokens, (*until).min(now));
        }
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

    /// Whether there is one that no row has; now a row has it.
    pub(super) const fn take_news(&mut self) -> bool {
        std::mem::replace(&mut self.is_news, false)
    }

    /// Spends all of them, because the limits change.
    pub(super) fn spend_all(&mut self, policy: &Policy, states: &mut [State], now: i64) {
        for lease in self.open.drain(..) {
            OpenLease::spend(&lease.tokens, policy, states, now);
        }
    }

    /// Adds the part of a row.
    pub(super) fn encode(&self, limits: usize, row: &mut Vec<u8>) {
        let Some(until) = self.open.iter().map(|lease| lease.until).max() else { return };
        row.push(LEASED);
        let len = limits.saturating_add(1).saturating_mul(8);
        row.extend(u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()); // of 64 limits at most
        row.extend(until.to_le_bytes());
        (0..limits).for_each(|limit| row.extend(self.of(limit).to_le_bytes()));
    }

    /// Spends those that are over.
    fn end(&mut self, policy: &Policy, states: &mut [State], now: i64) {
        for lease in self.open.extract_if(.., |lease| lease.is_over(now)) {
            OpenLease::spend(&lease.tokens, policy, states, lease.until.min(now));
        }
    }

    fn is_paused(&self, now: i64) -> bool {
        self.paused_until.is_some_and(|until| now < until && until.abs_diff(now) <= MAX_LEASE_MS)
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
            let returned = bucket.leases.open.extract_if(.., |lease| lease.id == Some(ended.id)).next();
            if let Some(lease) = returned {
                let spent: Vec<_> =
                    lease.tokens.iter().zip(&ended.spent).map(|(&all, &spent)| spent.min(all)).collect();
                OpenLease::spend(&spent, policy, &mut bucket.states, now);
                bucket.need(Need::Spent);
            }
        }
        Ok(())
    }

    /// Leases tokens as requested, if there are any to spare.
    pub(super) fn lease(
        &mut self,
        asked: &[Arc<Policy>],
        request: Option<&LeaseRequest>,
        decided: &Decided,
        random: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<Lease>, LedgerError> {
        let ([policy], now) = (asked, decided.now) else { return Ok(None) };
        let given = match request {
            Some(request) if request.wants_any() => self.spare(policy, request, now)?,
            _ => None,
        };
        let lease = given.and_then(|(from, tokens)| {
            let lease_ms = request.map_or(0, |request| request.lease_ms.min(MAX_LEASE_MS));
            Some(Lease { id: random()?, from, until: from.saturating_add_unsigned(lease_ms), tokens })
        });
        let bucket = self.bucket(policy)?;
        match (&lease, decided.decision()) {
            (Some(Lease { id, until, tokens, .. }), _) => {
                let until = until.saturating_add_unsigned(LATE_MS);
                bucket.leases.open.push(OpenLease { id: Some(*id), until, tokens: tokens.clone() });
                bucket.leases.is_news = true;
                bucket.need(Need::Spent);
            }
            (None, Decision::Wait { retry_at }) if bucket.leases.is_any() => {
                bucket.leases.paused_until = bucket.leases.paused_until.max(Some(retry_at));
            }
            _ => {}
        }
        Ok(lease)
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

/// When a cost passes that is refused while so many tokens are withheld, of which `leased` are leased out until then. If all of
/// these are spent, there may be fewer than if they had been taken now: the bucket was full with them.
pub(super) fn refusal_while_leased(
    limit: &Limit,
    state: &State,
    held: u64,
    until: i64,
    (refusal, cost, verb): (Decision, u64, Verb),
) -> Decision {
    let Decision::Wait { retry_at } = refusal else { return refusal };
    let at = |at: i64| limit.decide(without(limit, state, held, at), at, cost, verb).0;
    if at(retry_at).is_allow() {
        return refusal;
    }
    match at(until) {
        Decision::Allow { .. } => Decision::Wait { retry_at: until },
        later => later,
    }
}

/// A state that a row has without what is leased out, when that is over. As it is, unless the bucket was full with it.
fn ended(limit: &Limit, state: &State, tokens: u64, at: i64) -> State {
    let spent = without(limit, &limit.raised(state, tokens), tokens, at);
    if limit.refilled(state, at) == spent { *state } else { spent }
}
