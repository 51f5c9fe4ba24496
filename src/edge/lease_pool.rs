//! The leases of one budget: what is left of them, when to request how many tokens, and when a lease ends.
//!
//! It knows neither the policy nor the object, only numbers, so a frontend (`leases.rs`) and a server with the npm package (`js/leases.rs`)
//! decide by the same code. They differ in when a lease is worth its price: [`Worth`].

use super::answer_time::AnswerTime;
use crate::limit::{Decision, MAX_TOKENS};
use crate::protocol::{EndedLease, LEASE_GRACE_MS, Lease, LeaseRequest};

/// The leases of one budget, and the recent demand.
#[derive(Clone, Debug)]
pub(crate) struct LeasePool {
    /// The latest moment seen: a clock that has stepped back measures nothing.
    seen_at: i64,
    demand: Demand,
    /// Open leases in the order in which they become usable; all last equally long.
    open: Vec<OpenLease>,
    /// Ended leases that the object may not know to have ended.
    ended: Vec<Ended>,
    /// No lease is requested before this: one is in flight, or none was given.
    asks_again_at: i64,
    /// How many tokens of each limit the latest lease had.
    given: Vec<u64>,
    /// When a request was last refused: a lease also saves calls that would be refused.
    refused_at: Option<i64>,
    /// The latest answer after which a grant, a return or a lease that was spent from is known. Earlier answers lack that.
    latest: Option<AnswerTime>,
}

/// What leases are requested by.
#[derive(Clone, Copy)]
pub(crate) struct LeaseNeeds<'a> {
    /// How long a lease lasts.
    pub(crate) lease_ms: u64,
    /// Maximum tokens of each limit in one lease.
    pub(crate) max_tokens: &'a dyn Fn(usize) -> u64,
    /// How long to wait for tokens that are still to come back.
    pub(crate) horizon_ms: u64,
    pub(crate) worth: Worth,
}

/// When a lease is worth its price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worth {
    /// Minimum requests expected during a lease for one to be requested. It must have tokens for as many, unless requests were refused
    /// lately.
    min_expected: u64,
    /// How many requests of the current lease period make one expected request. Those of the previous period count in full.
    asked_per_expected: u64,
}

impl Worth {
    /// For a frontend, whose calls are short: 16 calls' worth, plus half as a margin for keys that go quiet. A lease is a row of its
    /// object, which costs as much as seven calls, and perhaps a call and another row to return the rest. Rarer requests are cheaper one by
    /// one. Half of the current requests count, since a burst may end at any moment.
    pub(crate) const FRONTEND: Self = Self { min_expected: 24, asked_per_expected: 2 };

    /// For a server, whose calls each take a network round trip. With a higher minimum, a server that waits for each answer would never
    /// reach it.
    #[cfg(feature = "leases")]
    pub(crate) const SERVER: Self = Self { min_expected: 2, asked_per_expected: 1 };
}

/// The next step for a lease that may be idle or over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Return {
    /// Check the lease again after this many milliseconds.
    Wait(u64),
    /// Send this to the object: the lease has ended.
    Send(LeaseRequest),
    /// Nothing is left of it.
    Over,
}

/// Maximum difference between the clock readings of concurrent requests. It is part of the object's extra wait.
const STALE_MS: i64 = 100;

/// A lease that tokens are spent from.
#[derive(Clone, Debug)]
pub(crate) struct OpenLease {
    pub(crate) id: u64,
    given: AnswerTime,
    from: i64,
    until: i64,
    left: Vec<u64>,
    spent: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Ended {
    lease: EndedLease,
    given: AnswerTime,
    has_rest: bool,
    /// When the object has certainly counted it as spent.
    given_up_at: i64,
}

/// A lease that an object withholds.
pub(super) struct Withheld {
    pub(super) id: u64,
    pub(super) given: AnswerTime,
    pub(super) has_rest: bool,
    pub(super) given_up_at: i64,
}

/// Demand in the current and the previous period, each as long as a lease.
#[derive(Clone, Debug, Default)]
struct Demand {
    since: i64,
    asked: u64,
    tokens: Vec<u64>,
    asked_before: u64,
    tokens_before: Vec<u64>,
    /// The moment of the latest request.
    latest: i64,
}

impl LeasePool {
    pub(crate) fn new(now: i64) -> Self {
        let demand = Demand { since: now, latest: now, ..Demand::default() };
        let (open, ended, given, refused_at, latest) = Default::default();
        Self { seen_at: now, demand, open, ended, asks_again_at: i64::MIN, given, refused_at, latest }
    }

    /// Switches to other limits: earlier leases count as spent.
    pub(crate) fn restart(&mut self, now: i64) {
        *self = Self { demand: std::mem::take(&mut self.demand), ..Self::new(now) };
    }

    /// Advances to `now`: ends the leases that are over, or all if the clock stepped back. Returns the moment to count from.
    pub(crate) fn advance(&mut self, now: i64) -> i64 {
        if now < self.seen_at.saturating_sub(STALE_MS) {
            self.step_back(now);
        }
        let now = now.max(self.seen_at);
        self.seen_at = now;
        self.end_those(|open| open.until <= now || !open.has_rest());
        now
    }

    /// Counts a request with these costs of each limit.
    pub(crate) fn count(&mut self, costs: &[u64], now: i64, lease_ms: u64) {
        self.demand.add(costs, now, lease_ms);
    }

    /// Grants the costs, or returns when the leases have them; `None` if the object must be called.
    pub(crate) fn decide(&mut self, costs: &[u64], now: i64) -> Option<Decision> {
        let is_enough = |at: i64| costs.iter().enumerate().all(|(limit, &cost)| self.usable(limit, at) >= cost);
        let from = self.open.iter().map(|open| open.from.max(now)).find(|&at| is_enough(at))?;
        if from > now {
            self.refused_at = Some(now);
            return Some(Decision::Wait { retry_at: from });
        }
        let mut owed: Vec<u64> = costs.to_vec();
        for open in self.open.iter_mut().filter(|open| open.from <= now) {
            for ((owed, left), spent) in owed.iter_mut().zip(&mut open.left).zip(&mut open.spent) {
                let tokens = (*owed).min(*left);
                *owed = owed.saturating_sub(tokens);
                *left = left.saturating_sub(tokens);
                *spent = spent.saturating_add(tokens);
                if tokens > 0 {
                    keep_latest(&mut self.latest, &open.given);
                }
            }
        }
        Some(Decision::Allow { tokens: 0, ready_at: now })
    }

    /// The lease request for `limits` limits at `now`: sent with a request that the object must answer if `is_asked`, else in the
    /// background.
    pub(crate) fn request(
        &mut self,
        limits: usize,
        needs: LeaseNeeds<'_>,
        now: i64,
        is_asked: bool,
    ) -> Option<LeaseRequest> {
        let LeaseNeeds { lease_ms, max_tokens, horizon_ms, worth } = needs;
        let expected = self.demand.expected(worth);
        let is_worth_it = expected.asked >= worth.min_expected
            && (self.has_refused_since(now.saturating_sub_unsigned(lease_ms.saturating_mul(2)))
                || self.demand.is_covered(worth.min_expected, max_tokens));
        let is_wanted = is_worth_it && self.asks_again_at <= now;
        let mut wanted = vec![0; limits];
        if is_wanted {
            for ((index, wanted), &expected) in wanted.iter_mut().enumerate().zip(&expected.tokens) {
                let soon = now.saturating_add((lease_ms / 4).cast_signed());
                let lasting = self.open.iter().filter(|open| open.until > soon);
                let left =
                    lasting.fold(0_u64, |sum, open| sum.saturating_add(open.left.get(index).copied().unwrap_or(0)));
                // While a quarter is left of what can be had, nothing is asked for in the background.
                let most = expected.min(max_tokens(index)).min(MAX_TOKENS);
                let usual = self.given.get(index).map_or(most, |&given| most.min(given));
                if is_asked || left < usual.div_ceil(4) {
                    *wanted = most.saturating_sub(left);
                }
            }
        }
        let wants_any = wanted.iter().any(|&wanted| wanted > 0);
        if wants_any {
            // The answer shortens this, unless it is lost.
            self.asks_again_at = now.saturating_add(lease_ms.cast_signed());
        }
        let is_worth_a_call = wants_any || (is_asked && !self.ended.is_empty());
        is_worth_a_call.then(|| LeaseRequest { lease_ms, horizon_ms, wanted, ended: self.ended() })
    }

    /// Takes the answer to a lease request. Without a lease, a refused cost can be granted after `wait_ms`, or at once. A lease that is not
    /// `usable` has ended already. Returns the lease's id and the delay in milliseconds before [`LeasePool::end_idle`].
    pub(crate) fn answered(
        &mut self,
        request: &LeaseRequest,
        lease: Option<&Lease>,
        (wait_ms, lease_ms, usable): (u64, u64, bool),
        given: AnswerTime,
    ) -> Option<(u64, u64)> {
        let AnswerTime { decided_at, called_at, answered_at } = given;
        let unheard = self.ended.len();
        self.ended.retain(|ended| !request.ended.contains(&ended.lease));
        if self.ended.len() < unheard {
            keep_latest(&mut self.latest, &given);
        }
        let Some(Lease { id, from, until, tokens }) = lease else {
            if request.wants_any() {
                // Until the refused cost can be granted, there is nothing to lease either.
                let pause_ms = (lease_ms / 4).max(wait_ms.min(request.horizon_ms)).cast_signed();
                self.asks_again_at = self.asks_again_at.min(answered_at.saturating_add(pause_ms));
            }
            return None;
        };
        self.asks_again_at = answered_at;
        self.given.clone_from(tokens);
        let lease = OpenLease {
            id: *id,
            given,
            // Tokens present now may be spent at once, even by a request with an earlier clock reading.
            from: match from.saturating_sub(decided_at) {
                ..=0 => i64::MIN,
                wait_ms => answered_at.saturating_add(wait_ms),
            },
            until: called_at.saturating_add(until.saturating_sub(decided_at)),
            left: tokens.clone(),
            spent: vec![0; tokens.len()],
        };
        // A clock that stepped back during the call measures nothing.
        let is_usable = usable && !given.has_stepped_back() && self.seen_at <= answered_at;
        if !is_usable || lease.from >= lease.until {
            self.end(lease);
            return Some((*id, 0));
        }
        let half_ms = lease.until.abs_diff(answered_at) / 2;
        let at = self.open.partition_point(|open| open.from <= lease.from);
        self.open.insert(at, lease);
        Some((*id, half_ms))
    }

    /// Records that a lease request was not answered.
    pub(crate) fn failed(&mut self, request: &LeaseRequest, lease_ms: u64, now: i64) {
        if request.wants_any() {
            self.asks_again_at = self.asks_again_at.min(now.saturating_add((lease_ms / 2).cast_signed()));
        }
    }

    /// The next step for the lease with this id at `now`: an idle lease is returned, and so is the rest of one that is over.
    pub(crate) fn end_idle(&mut self, id: u64, limits: usize, lease_ms: u64, now: i64) -> Return {
        let now = self.advance(now);
        let is_idle = now.saturating_sub(self.demand.latest) >= (lease_ms / 2).cast_signed();
        if let Some(open) = self.open.iter().find(|open| open.id == id) {
            if !is_idle {
                return Return::Wait(open.until.abs_diff(now));
            }
            self.end_those(|open| open.id == id);
        }
        if let Some(ended) = self.ended.iter().find(|ended| ended.lease.id == id && ended.has_rest) {
            // The next lease reports it, if requested soon. The object waits for LEASE_GRACE_MS.
            let wait_ms = ended.given_up_at.saturating_sub_unsigned(LEASE_GRACE_MS / 2).saturating_sub(now);
            if !is_idle && !self.open.is_empty() && wait_ms > 0 {
                return Return::Wait(wait_ms.unsigned_abs());
            }
            return Return::Send(self.return_all(limits));
        }
        Return::Over
    }

    /// Ends all leases; the next request returns what is left.
    pub(crate) fn end_all(&mut self) {
        self.end_those(|_| true);
    }

    /// Ends the leases whose tokens have not refilled yet.
    pub(super) fn end_future(&mut self) {
        let now = self.seen_at;
        self.end_those(|open| open.from > now);
    }

    pub(crate) fn end_those(&mut self, mut is_meant: impl FnMut(&OpenLease) -> bool) {
        let meant: Vec<_> = self.open.extract_if(.., |open| is_meant(open)).collect();
        for open in meant {
            self.end(open);
        }
    }

    /// A request that only returns the rest of ended leases.
    pub(crate) fn return_all(&self, limits: usize) -> LeaseRequest {
        LeaseRequest { wanted: vec![0; limits], ended: self.ended(), lease_ms: 0, horizon_ms: 0 }
    }

    /// Whether an ended lease has a rest.
    #[cfg(feature = "leases")]
    pub(crate) fn has_rest(&self) -> bool {
        self.ended.iter().any(|ended| ended.has_rest)
    }

    /// Tokens left of a limit that become usable by that moment.
    pub(super) fn left(&self, limit: usize, by: i64) -> u64 {
        let open = self.open.iter().filter(|open| open.from <= by);
        open.fold(0, |sum, open| sum.saturating_add(open.left.get(limit).copied().unwrap_or(0)))
    }

    /// Tokens left of a limit that are usable at that moment.
    pub(crate) fn usable(&self, limit: usize, at: i64) -> u64 {
        let open = self.open.iter().filter(|open| open.from <= at && at < open.until);
        open.fold(0, |sum, open| sum.saturating_add(open.left.get(limit).copied().unwrap_or(0)))
    }

    /// The leases that the object withholds, as far as known here: open ones, and ended ones that it may not know to have ended.
    pub(super) fn withheld(&self) -> impl Iterator<Item = Withheld> {
        let open = self.open.iter().map(|open| Withheld {
            id: open.id,
            given: open.given,
            given_up_at: open.given_up_at(),
            has_rest: open.has_rest(),
        });
        let ended = self.ended.iter().map(|&Ended { ref lease, given, given_up_at, has_rest }| Withheld {
            id: lease.id,
            given,
            given_up_at,
            has_rest,
        });
        open.chain(ended)
    }

    /// Records an answer that granted something beside the leases.
    pub(super) fn granted(&mut self, answer: &AnswerTime) {
        keep_latest(&mut self.latest, answer);
    }

    /// Takes note that a request was refused.
    pub(super) fn refused(&mut self, at: i64) {
        self.refused_at = Some(at);
    }

    fn has_refused_since(&self, moment: i64) -> bool {
        self.refused_at.is_some_and(|at| at >= moment)
    }

    /// Whether that answer is no earlier than the latest that is known of.
    pub(super) fn is_latest(&self, answer: &AnswerTime) -> bool {
        self.latest.is_none_or(|latest| !answer.is_before(&latest))
    }

    /// Moments from before the step are meaningless. A remaining time is at most what it was when the clock was last seen.
    fn step_back(&mut self, now: i64) {
        self.end_all();
        let step_ms = self.seen_at.saturating_sub(now);
        for Ended { given, given_up_at, .. } in &mut self.ended {
            for moment in [&mut given.called_at, &mut given.answered_at, given_up_at] {
                *moment = moment.saturating_sub(step_ms);
            }
        }
        (self.seen_at, self.asks_again_at, self.refused_at, self.latest) = (now, i64::MIN, None, None);
    }

    /// Ends a lease. If nothing is left, it is reported only with the next request, since the object counts it as spent in any case.
    fn end(&mut self, lease: OpenLease) {
        if self.ended.len() >= LeaseRequest::MAX_ENDED {
            self.ended.remove(0);
        }
        let (given, has_rest, given_up_at) = (lease.given, lease.has_rest(), lease.given_up_at());
        self.ended.push(Ended { lease: EndedLease { id: lease.id, spent: lease.spent }, given, has_rest, given_up_at });
    }

    fn ended(&self) -> Vec<EndedLease> {
        self.ended.iter().map(|ended| ended.lease.clone()).collect()
    }
}

impl OpenLease {
    fn has_rest(&self) -> bool {
        self.left.iter().any(|&left| left > 0)
    }

    /// When the object has certainly counted it as spent. The isolate spends it as if it had been given when the call began; the object may
    /// have given it as late as the answer came.
    fn given_up_at(&self) -> i64 {
        let AnswerTime { called_at, answered_at, .. } = self.given;
        self.until.saturating_add(answered_at.saturating_sub(called_at)).saturating_add_unsigned(LEASE_GRACE_MS)
    }
}

fn keep_latest(latest: &mut Option<AnswerTime>, answer: &AnswerTime) {
    if latest.is_none_or(|latest| !answer.is_before(&latest)) {
        *latest = Some(*answer);
    }
}

impl Demand {
    fn add(&mut self, costs: &[u64], now: i64, period_ms: u64) {
        let elapsed_ms = now.abs_diff(self.since);
        if elapsed_ms >= period_ms {
            let is_next = elapsed_ms < period_ms.saturating_mul(2);
            self.asked_before = if is_next { self.asked } else { 0 };
            self.tokens_before = if is_next { std::mem::take(&mut self.tokens) } else { Vec::new() };
            (self.since, self.asked, self.tokens) = (now, 0, Vec::new());
        }
        self.latest = now;
        self.asked = self.asked.saturating_add(1);
        self.tokens.resize(costs.len(), 0);
        for (tokens, cost) in self.tokens.iter_mut().zip(costs) {
            *tokens = tokens.saturating_add(*cost);
        }
    }

    /// Expected demand in a period: that of the previous one or of this one so far, whichever is larger.
    fn expected(&self, worth: Worth) -> Expected {
        let before = self.tokens_before.iter().copied().chain(std::iter::repeat(0));
        let tokens = self.tokens.iter().zip(before).map(|(&now, before)| now.max(before));
        let asked = self.asked.checked_div(worth.asked_per_expected).unwrap_or(0).max(self.asked_before);
        Expected { asked, tokens: tokens.collect() }
    }

    /// Whether these tokens of each limit are enough for so many requests, each at the mean cost of those counted.
    fn is_covered(&self, requests: u64, max_tokens: impl Fn(usize) -> u64) -> bool {
        let asked = u128::from(self.asked.saturating_add(self.asked_before));
        let before = self.tokens_before.iter().copied().chain(std::iter::repeat(0));
        let costs = self.tokens.iter().zip(before).map(|(&now, before)| u128::from(now.saturating_add(before)));
        let is_enough = |(limit, cost): (usize, u128)| {
            asked.saturating_mul(max_tokens(limit).into()) >= cost.saturating_mul(requests.into())
        };
        costs.enumerate().all(is_enough)
    }
}

struct Expected {
    asked: u64,
    tokens: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_seventeen_ended_leases_is_no_longer_reported() {
        let request = LeaseRequest { lease_ms: 1_000, horizon_ms: 0, wanted: vec![5], ended: Vec::new() };
        let given = AnswerTime { decided_at: 0, called_at: 0, answered_at: 0 };
        for (leases, first) in [(16, 1), (17, 2)] {
            let mut pool = LeasePool::new(0);
            for id in 1..=leases {
                let lease = Lease { id, from: 0, until: 1_000, tokens: vec![5] };
                pool.answered(&request, Some(&lease), (0, 1_000, true), given);
                assert_eq!(pool.decide(&[2], 0), Some(Decision::Allow { tokens: 0, ready_at: 0 }));
                pool.end_all();
                assert_eq!(pool.decide(&[1], 0), None, "the rest is the object's");
            }
            let reported: Vec<_> = (first..=leases).map(|id| EndedLease { id, spent: vec![2] }).collect();
            assert_eq!(pool.return_all(1).ended, reported);
        }
    }
}
