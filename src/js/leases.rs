//! The leases of `LeasingLimiter` in the npm package, in a module of their own: a frontend's lease pool with a numeric interface.
//!
//! JavaScript has one [`Numbers`] for arguments and answers that are lists, and one [`Keeper`] for each key. It makes the calls, keeps the
//! time and waits. Moments are whole milliseconds by its clock; a lease's length of 0 means that it is not known yet.

#![expect(
    unsafe_code,
    reason = "an export keeps its name, which no library may have, and memory that JavaScript owns is given back"
)]

use super::number::{f64_from_i64, f64_from_u64, i64_from_f64, u64_from_f64};
use crate::edge::{AnswerTime, LeaseNeeds, LeasePool, Return, Worth};
use crate::limit::{Decision, MAX_TOKENS};
use crate::policy::{FrontendTerms, MAX_LIMITS};
use crate::protocol::{EndedLease, Lease, LeaseRequest};

/// Numbers of JavaScript, as their bits; the ids of leases are integers.
///
/// ```text
/// costs     of each limit
/// decision  when to retry, and what remains
/// request   after the decision: which call it is, whether any tokens are wanted, how many leases have ended, what is wanted of each limit;
///           then for each lease that has ended its id, and what was spent of each limit
/// answer    the id of the lease, or 0; from, until, the service's now; 1 if a cost was granted, 0 if it was refused, else -1;
///           the milliseconds until a retry; how long a lease lasts, which is also the answer to it; then the tokens of each limit
/// ```
#[derive(Debug)]
pub struct Numbers([u64; SIZE]);

/// Enough for the longest request.
const SIZE: usize = REQUEST_LEN + MAX_LIMITS + LeaseRequest::MAX_ENDED * (1 + MAX_LIMITS);
/// Including the decision.
const REQUEST_LEN: usize = 5;
const ANSWER_LEN: usize = 7;

/// The leases of one key.
#[derive(Debug)]
pub struct Keeper {
    pool: LeasePool,
    /// When each lease ends by the wall clock, which continues while a machine sleeps.
    ends: Vec<(u64, i64)>,
    /// Calls without an answer yet.
    calls: Vec<Call>,
    last_call: u32,
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Call {
    id: u32,
    /// The cost requested from the service; empty if none.
    costs: Vec<u64>,
    request: LeaseRequest,
}

/// The service's last refusal.
#[derive(Debug)]
struct Refused {
    costs: Vec<u64>,
    retry_at: i64,
    /// Until when it is assumed to hold.
    until: i64,
}

/// How long a refusal is assumed to hold, since others may give tokens back: the service's own default. Also how long tokens are waited
/// for.
const REFUSAL_MS: u64 = FrontendTerms::REFUSAL_CACHE_MS;

/// The length assumed for a lease until the first one arrives.
const GUESSED_LEASE_MS: u64 = 1_000;

/// The address of the numbers.
#[unsafe(no_mangle)]
pub extern "C" fn lease_numbers() -> *mut Numbers {
    Box::into_raw(Box::new(Numbers([0; SIZE])))
}

/// The address of a new key's keeper.
#[unsafe(no_mangle)]
pub extern "C" fn lease_keep(now: f64) -> *mut Keeper {
    let pool = LeasePool::new(i64_from_f64(now));
    Box::into_raw(Box::new(Keeper { pool, ends: Vec::new(), calls: Vec::new(), last_call: 0, refused: None }))
}

/// Frees a keeper.
///
/// # Safety
/// It must come from [`lease_keep`], and must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lease_forget(keeper: *mut Keeper) {
    // SAFETY: see above.
    drop(unsafe { Box::from_raw(keeper) });
}

/// Switches to other limits: earlier leases count as spent.
#[unsafe(no_mangle)]
pub extern "C" fn lease_restart(keeper: &mut Keeper, now: f64) {
    keeper.pool.restart(i64_from_f64(now));
    (keeper.ends, keeper.refused) = (Vec::new(), None);
}

/// Counts a request for the costs, if it `is_new`; `limits` is 0 while they are unknown. Then decides it: returns 1 if the leases grant
/// them, 2 if they will later, 3 if the service has refused them lately, and 0 if it must be called. Except after 0 the numbers are the
/// decision. 4 is added to 1 and 2 if it `may_renew` and a request is due in the background; then the numbers contain that, too.
#[unsafe(no_mangle)]
pub extern "C" fn lease_consume(
    keeper: &mut Keeper,
    numbers: &mut Numbers,
    limits: usize,
    lease_ms: f64,
    now: f64,
    wall: f64,
    is_new: bool,
    may_renew: bool,
) -> u32 {
    let (costs, needs) = (numbers.costs(limits), needs(lease_ms));
    let now = keeper.advance(now, wall);
    if is_new {
        keeper.pool.count(&costs, now, needs.lease_ms);
    }
    if costs.is_empty() {
        return 0;
    }
    let (answer, retry_at) = match keeper.pool.decide(&costs, now) {
        Some(Decision::Allow { .. }) => {
            keeper.refused = None; // it would now pass later
            (1, now)
        }
        Some(Decision::Wait { retry_at }) => (2, retry_at),
        Some(Decision::Never { .. }) | None => match &keeper.refused {
            Some(refused) if now < refused.until && refused.costs == costs => (3, refused.retry_at),
            _ => return 0,
        },
    };
    numbers.set(0, f64_from_i64(retry_at));
    numbers.set(1, lease_remaining(keeper, limits, f64_from_i64(now)));
    // Not while repeating a refusal: the next lease could have the tokens it waits for.
    let renewal = if answer < 3 && may_renew { keeper.pool.request(limits, needs, now, false) } else { None };
    match renewal {
        Some(request) => {
            keeper.call(numbers, Vec::new(), request);
            answer + 4
        }
        None => answer,
    }
}

/// The tokens that the leases have left of every limit: the smallest number.
#[unsafe(no_mangle)]
pub extern "C" fn lease_remaining(keeper: &Keeper, limits: usize, now: f64) -> f64 {
    let left = (0..limits).map(|limit| keeper.pool.usable(limit, i64_from_f64(now)));
    f64_from_u64(left.min().unwrap_or(0))
}

/// Ends all leases before the service is called for the costs. The numbers are the lease request to send with the call.
#[unsafe(no_mangle)]
pub extern "C" fn lease_ask(keeper: &mut Keeper, numbers: &mut Numbers, limits: usize, lease_ms: f64, now: f64) {
    let costs = numbers.costs(limits);
    keeper.pool.end_all();
    let request = keeper.pool.request(limits, needs(lease_ms), i64_from_f64(now), true);
    let request = request.unwrap_or_else(|| keeper.pool.return_all(limits));
    keeper.call(numbers, costs, request);
}

/// Takes the answer to a call, which began and ended at these moments. Returns the delay in milliseconds before [`lease_end`] for the lease
/// that came with it; -1 if none came.
#[unsafe(no_mangle)]
pub extern "C" fn lease_answered(
    keeper: &mut Keeper,
    numbers: &mut Numbers,
    call: u32,
    limits: usize,
    called_at: f64,
    answered_at: f64,
    wall_called_at: f64,
) -> f64 {
    let Some(Call { costs, request, .. }) = keeper.answer(call) else { return -1.0 };
    let [from, until, decided_at] = [1, 2, 3].map(|index| i64_from_f64(numbers.get(index)));
    let (granted, retry_after_ms) = (numbers.get(4), numbers.get(5));
    let id = numbers.0.first().copied().unwrap_or(0);
    let (called_at, answered_at) = (i64_from_f64(called_at), i64_from_f64(answered_at));
    let is_refused = granted == 0.0 && retry_after_ms.is_finite();
    let wait_ms = if retry_after_ms.is_finite() { u64_from_f64(retry_after_ms) } else { 0 };
    if granted > 0.0 {
        keeper.refused = None;
    }
    if is_refused && !costs.is_empty() {
        let at = |ms: u64| answered_at.saturating_add_unsigned(ms);
        keeper.refused = Some(Refused { costs, retry_at: at(wait_ms), until: at(wait_ms.min(REFUSAL_MS)) });
    }
    let tokens = (0..limits).map(|limit| u64_from_f64(numbers.get(ANSWER_LEN + limit)));
    let lease = (id != 0).then(|| Lease { id, from, until, tokens: tokens.collect() });
    let needs = needs(numbers.get(6));
    let lasts_ms = lease.as_ref().map_or(needs.lease_ms, |lease| lease.until.abs_diff(lease.from).max(1));
    numbers.set(6, f64_from_u64(lasts_ms));
    let given = AnswerTime { decided_at, called_at, answered_at };
    let Some((id, ms)) = keeper.pool.answered(&request, lease.as_ref(), (wait_ms, lasts_ms, true), given) else {
        return -1.0;
    };
    let ends_at = i64_from_f64(wall_called_at).saturating_add(until.saturating_sub(decided_at));
    keeper.ends.push((id, ends_at));
    f64_from_u64(ms)
}

/// Records that a call was not answered.
#[unsafe(no_mangle)]
pub extern "C" fn lease_failed(keeper: &mut Keeper, call: u32, lease_ms: f64, now: f64) {
    if let Some(call) = keeper.answer(call) {
        keeper.pool.failed(&call.request, needs(lease_ms).lease_ms, i64_from_f64(now));
    }
}

/// The next step for the lease whose id is the first number, if it is idle or over: returns 0 if the request in the numbers must be sent,
/// the delay in milliseconds before checking again, or -1 if nothing is left of it.
#[unsafe(no_mangle)]
pub extern "C" fn lease_end(
    keeper: &mut Keeper,
    numbers: &mut Numbers,
    limits: usize,
    lease_ms: f64,
    now: f64,
    wall: f64,
) -> f64 {
    let id = numbers.0.first().copied().unwrap_or(0);
    let now = keeper.advance(now, wall);
    match keeper.pool.end_idle(id, limits, needs(lease_ms).lease_ms, now) {
        Return::Wait(ms) => f64_from_u64(ms.max(1)),
        Return::Send(request) => {
            keeper.call(numbers, Vec::new(), request);
            0.0
        }
        Return::Over => -1.0,
    }
}

/// Ends all leases. Returns whether something is left of them; then the numbers are the request that returns it.
#[unsafe(no_mangle)]
pub extern "C" fn lease_close(keeper: &mut Keeper, numbers: &mut Numbers, limits: usize) -> bool {
    keeper.pool.end_all();
    let has_rest = keeper.pool.has_rest();
    if has_rest {
        let request = keeper.pool.return_all(limits);
        keeper.call(numbers, Vec::new(), request);
    }
    has_rest
}

impl Keeper {
    /// Advances to now. A machine may have slept, and a wall clock may have been set: the one that has advanced further counts.
    fn advance(&mut self, now: f64, wall: f64) -> i64 {
        let wall = i64_from_f64(wall);
        let is_over = |&(_, ends_at): &(u64, i64)| ends_at <= wall;
        if self.ends.iter().any(is_over) {
            let ends = &self.ends;
            self.pool.end_those(|open| ends.iter().any(|end| end.0 == open.id && is_over(end)));
            self.ends.retain(|end| !is_over(end));
        }
        self.pool.advance(i64_from_f64(now))
    }

    /// Writes a request into the numbers, and remembers it until its answer.
    fn call(&mut self, numbers: &mut Numbers, costs: Vec<u64>, mut request: LeaseRequest) {
        self.last_call = self.last_call.wrapping_add(1);
        numbers.set(2, self.last_call.into());
        numbers.set(3, if request.wants_any() { 1.0 } else { 0.0 });
        let limits = request.wanted.len();
        request.ended.retain(|ended| ended.spent.len() == limits);
        numbers.set(4, f64_from_u64(request.ended.len() as u64));
        let mut index = REQUEST_LEN;
        for &wanted in &request.wanted {
            numbers.set(index, f64_from_u64(wanted));
            index += 1;
        }
        for EndedLease { id, spent } in &request.ended {
            numbers.set_bits(index, *id);
            for (limit, &spent) in spent.iter().enumerate() {
                numbers.set(index + 1 + limit, f64_from_u64(spent));
            }
            index += 1 + limits;
        }
        self.calls.push(Call { id: self.last_call, costs, request });
    }

    fn answer(&mut self, id: u32) -> Option<Call> {
        let index = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.swap_remove(index))
    }
}

impl Numbers {
    fn get(&self, index: usize) -> f64 {
        f64::from_bits(self.0.get(index).copied().unwrap_or(0))
    }

    fn set(&mut self, index: usize, number: f64) {
        self.set_bits(index, number.to_bits());
    }

    fn set_bits(&mut self, index: usize, bits: u64) {
        if let Some(place) = self.0.get_mut(index) {
            *place = bits;
        }
    }

    fn costs(&self, limits: usize) -> Vec<u64> {
        (0..limits.min(MAX_LIMITS)).map(|limit| u64_from_f64(self.get(limit))).collect()
    }
}

/// What a server requests leases by.
fn needs(lease_ms: f64) -> LeaseNeeds<'static> {
    let lease_ms = match u64_from_f64(lease_ms) {
        0 => GUESSED_LEASE_MS,
        lease_ms => lease_ms,
    };
    LeaseNeeds { lease_ms, max_tokens: &|_| MAX_TOKENS, horizon_ms: REFUSAL_MS, worth: Worth::SERVER }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "they are whole numbers, which are exact")]
mod tests {
    use super::*;

    /// A keeper and its numbers after two requests for `costs`, the second answered with a lease of twice the costs for two seconds.
    fn leasing(costs: &[u64]) -> (Box<Keeper>, Box<Numbers>) {
        // SAFETY: nothing else has these addresses.
        let (mut keeper, mut numbers) = unsafe { (Box::from_raw(lease_keep(0.0)), Box::from_raw(lease_numbers())) };
        for answer_to in [1.0, 2.0] {
            assert_eq!(decided(&mut keeper, &mut numbers, costs, 0.0, 0.0), 0);
            lease_ask(&mut keeper, &mut numbers, costs.len(), 0.0, 0.0);
            assert_eq!((numbers.get(2), numbers.get(3)), (answer_to, answer_to - 1.0));
        }
        for (index, &cost) in costs.iter().enumerate() {
            assert_eq!(numbers.get(REQUEST_LEN + index), f64_from_u64(cost * 2), "wanted");
        }
        for (index, number) in [500.0, 2500.0, 500.0, 1.0, NEVER, 0.0].into_iter().enumerate() {
            numbers.set(1 + index, number);
        }
        numbers.set_bits(0, ID);
        for (index, &cost) in costs.iter().enumerate() {
            numbers.set(ANSWER_LEN + index, f64_from_u64(cost * 2));
        }
        assert_eq!(lease_answered(&mut keeper, &mut numbers, 2, costs.len(), 0.0, 20.0, 90_000.0), 990.0);
        assert_eq!(numbers.get(6), 2_000.0, "how long a lease lasts");
        (keeper, numbers)
    }

    fn put(numbers: &mut Numbers, costs: &[u64]) {
        for (index, &cost) in costs.iter().enumerate() {
            numbers.set(index, f64_from_u64(cost));
        }
    }

    fn decided(keeper: &mut Keeper, numbers: &mut Numbers, costs: &[u64], now: f64, wall: f64) -> u32 {
        put(numbers, costs);
        lease_consume(keeper, numbers, costs.len(), 0.0, now, wall, true, false)
    }

    const ID: u64 = u64::MAX - 1;
    const NEVER: f64 = f64::INFINITY;

    #[test]
    fn the_amount_spent_of_each_limit_is_returned_with_the_leases_id() {
        let (mut keeper, mut numbers) = leasing(&[3, 5]);
        assert_eq!(decided(&mut keeper, &mut numbers, &[3, 5], 30.0, 90_030.0), 1);
        assert_eq!((numbers.get(0), numbers.get(1), lease_remaining(&keeper, 2, 30.0)), (30.0, 3.0, 3.0));
        assert_eq!(decided(&mut keeper, &mut numbers, &[4, 5], 30.0, 90_030.0), 0, "there are 3 of the first");
        assert!(lease_close(&mut keeper, &mut numbers, 2));
        assert_eq!([2, 3, 4, 5, 6].map(|index| numbers.get(index)), [3.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!((numbers.0[7], numbers.get(8), numbers.get(9)), (ID, 3.0, 5.0));
        lease_failed(&mut keeper, 3, 2_000.0, 40.0);
        assert!(lease_close(&mut keeper, &mut numbers, 2), "it may not have been heard");
    }

    #[test]
    fn a_lease_ends_by_the_faster_clock() {
        for (now, wall, is_open) in
            [(1_999.0, 91_999.0, true), (2_000.0, 91_000.0, false), (1_000.0, 92_000.0, false), (1_000.0, 10.0, true)]
        {
            let (mut keeper, mut numbers) = leasing(&[1]);
            assert_eq!(decided(&mut keeper, &mut numbers, &[1], now, wall), u32::from(is_open), "{now} {wall}");
        }
    }

    #[test]
    fn a_refusal_is_repeated_for_the_same_costs_for_a_second_or_until_a_retry() {
        for (retry_ms, until) in [(5_000.0, 1_020.0), (500.0, 520.0)] {
            let (mut keeper, mut numbers) = leasing(&[1]);
            put(&mut numbers, &[9]);
            lease_ask(&mut keeper, &mut numbers, 1, 2_000.0, 10.0);
            for (index, number) in [0.0, 0.0, 0.0, 500.0, 0.0, retry_ms, 2_000.0].into_iter().enumerate() {
                numbers.set(index, number);
            }
            assert_eq!(lease_answered(&mut keeper, &mut numbers, 3, 1, 10.0, 20.0, 90_010.0), -1.0);
            for (cost, now, answer) in [(9, 20.0, 3), (8, 20.0, 0), (9, until - 1.0, 3), (9, until, 0)] {
                assert_eq!(decided(&mut keeper, &mut numbers, &[cost], now, 0.0), answer, "{cost} {now}");
            }
        }
    }
}
