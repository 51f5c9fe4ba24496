//! The obvious version: limits in exact rationals, rule by rule as documented, with nothing optimized. It shares no
//! arithmetic with the crate: tokens are fractions, there are no drops, and moments are found by trying them.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part of this")]

use num_integer::Integer;
use num_rational::Ratio;
use num_traits::{FromPrimitive, Signed};
use tollgate::limit::{Carry, Config, Decision, Kind, MAX_SPAN_MS, State, Verb, encode};

/// Any integer that is wide enough: `BigInt` always is, `i128` for small numbers, and `i64`, which checks it, for tiny ones.
pub trait Whole: Clone + Integer + Signed + FromPrimitive + TryInto<i64> + std::fmt::Debug + std::fmt::Display {}
impl<T: Clone + Integer + Signed + FromPrimitive + TryInto<i64> + std::fmt::Debug + std::fmt::Display> Whole for T {}

/// One bucket of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model<T: Whole> {
    pub config: Config,
    /// Where windows begin, if the limit has some and no offset.
    phase: u64,
    /// Tokens, a fraction; below zero a debt.
    pub tokens: Ratio<T>,
    /// The moment up to which refills are in `tokens`. For windows, the start of one.
    at: i64,
}

/// From the documentation: after a larger step back, the bucket follows the clock.
const MAX_STEP_BACK_MS: i64 = 60_000;

/// Much further than any wait that a limit can have.
const HORIZON_MS: u64 = 1 << 54;

impl<T: Whole> Model<T> {
    /// A bucket first used at `now`.
    pub fn new(config: Config, now: i64, phase: u64) -> Self {
        let initial = config.initial.unwrap_or(config.capacity);
        let mut model = Self { config, phase, tokens: whole(initial), at: now };
        model.at = model.tick_start(now);
        model
    }

    /// Decides and applies the answer. A refusal or a grant of nothing changes nothing, except that the bucket follows
    /// a clock that stepped back too far.
    pub fn ask(&mut self, now: i64, cost: u64, verb: Verb) -> Decision {
        let decision = self.peek(now, cost, verb);
        let refilled = self.refilled(now);
        let tokens = self.tokens_after(&refilled, cost, verb);
        *self = if matches!(decision, Decision::Allow { .. }) && tokens != refilled.tokens {
            Self { tokens, ..refilled }
        } else {
            self.anchored(now)
        };
        decision
    }

    /// The answer, with nothing changed.
    pub fn peek(&self, now: i64, cost: u64, verb: Verb) -> Decision {
        let this = self.anchored(now);
        if this.passes(now, cost, verb) {
            let refilled = this.refilled(now);
            let moved = (this.tokens_after(&refilled, cost, verb) - refilled.tokens).abs();
            return Decision::Allow { tokens: floor(&moved), ready_at: this.ready_at(now, cost, verb) };
        }
        // `ConsumeUpTo` is refused only for lack of a single token.
        let cost = if verb == Verb::ConsumeUpTo { cost.min(1) } else { cost };
        // A full bucket just before a window opens is the best case: a request that does not pass then never will.
        let (best, best_at) = this.best(now);
        if !best.passes(best_at, cost, verb) {
            let too_large = partition(0, 1 << 54, |cost| best.passes(best_at, cost, verb));
            return Decision::Never { max: too_large.saturating_sub(1) };
        }
        Decision::Wait { retry_at: this.first_pass(now, cost, verb) }
    }

    /// The first moment from `now` at which the request is granted. Within a window the wait for the next one gets ever
    /// shorter, and from window to window the level rises; so first the window is found by its last millisecond, then
    /// the millisecond. (In the next window the same request may be refused again, if the bucket was full before.)
    fn first_pass(&self, now: i64, cost: u64, verb: Verb) -> i64 {
        let window_ms = if self.config.kind == Kind::TokenBucket { 1 } else { self.config.period_ms };
        let end = |index: u64| later(self.tick_start(now), window_ms * (index + 1)) - 1;
        let index = partition(0, HORIZON_MS / window_ms, |index| !self.passes(end(index), cost, verb));
        let earliest = now.max(end(index) + 1 - i64::try_from(window_ms).expect("a window's length fits"));
        later(earliest, partition(0, end(index).abs_diff(earliest), |ms| !self.passes(later(earliest, ms), cost, verb)))
    }

    /// Whole tokens left at `now`.
    pub fn remaining(&self, now: i64) -> u64 {
        floor(&self.refilled(now).tokens.max(whole(0)))
    }

    /// Tokens owed at `now`, rounded up.
    pub fn owed(&self, now: i64) -> u64 {
        floor(&(-self.refilled(now).tokens).max(whole(0)).ceil())
    }

    /// The tokens at `now`, with their fraction.
    pub fn tokens_at(&self, now: i64) -> Ratio<T> {
        self.refilled(now).tokens
    }

    /// The first moment from `now` at which the bucket is full, if there is one.
    pub fn full_at(&self, now: i64) -> Option<i64> {
        let capacity = whole(self.config.capacity);
        self.anchored(now).first(now, |model| model.tokens >= capacity)
    }

    /// Carries the bucket over to other numbers.
    pub fn carry(&self, config: Config, how: Carry, now: i64, phase: u64) -> Self {
        let fresh = Self::new(config, now, phase);
        if how == Carry::Reset || config.kind != self.config.kind {
            return fresh;
        }
        let (old, new) = (whole::<T>(self.config.capacity), whole::<T>(config.capacity));
        let refilled = self.refilled(now);
        let tokens = refilled.tokens;
        let tokens = match how {
            Carry::Proportional if self.config.capacity > 0 => tokens * new.clone() / old,
            Carry::Additive => (tokens.clone() + new.clone() - old).max(tokens.min(whole(0))),
            _ => tokens,
        };
        // The smallest part of a token that the new limit can count.
        let unit = match config.kind {
            Kind::TokenBucket => whole(config.rate.gcd(&config.period_ms)) / whole(config.period_ms),
            Kind::FixedWindow | Kind::FirstUseWindow => whole(1),
            _ => unreachable!("a new kind"),
        };
        // A debt is cut to what comes back in the longest span, or to what can be written down.
        let span_ms = MAX_SPAN_MS / if config.kind == Kind::TokenBucket { 1 } else { config.period_ms };
        let in_span = match config.kind {
            Kind::TokenBucket => whole(config.rate) * whole(span_ms) / whole(config.period_ms),
            Kind::FixedWindow | Kind::FirstUseWindow => whole(config.rate) * whole(span_ms),
            _ => unreachable!("a new kind"),
        };
        let written = unit.clone() * whole(1 << 61);
        let deepest = if config.rate == 0 { -written } else { -written.min(in_span) };
        let tokens = (tokens / unit.clone()).floor() * unit;
        // What has come back until a moment that is still waited for does not come back again.
        let at = match config.kind {
            Kind::FirstUseWindow if config.shares_windows_with(&self.config) => refilled.at, // its window stays open
            Kind::FirstUseWindow => now.max(refilled.at),
            _ => fresh.tick_start(now.max(refilled.at)),
        };
        Self { tokens: tokens.min(new).max(deepest), at, ..fresh }
    }

    /// The bucket when the clock shows `now`: unchanged, unless the clock stepped back too far to wait.
    fn anchored(&self, now: i64) -> Self {
        let is_followed = self.at - now > MAX_STEP_BACK_MS;
        let at = match self.config.kind {
            _ if !is_followed => self.at,
            Kind::FirstUseWindow => now,
            _ => self.tick_start(now),
        };
        Self { at, ..self.clone() }
    }

    /// The bucket with all refills up to `now`.
    fn refilled(&self, now: i64) -> Self {
        let Config { kind, rate, period_ms, capacity, .. } = self.config;
        if now < self.at {
            return self.anchored(now);
        }
        let at = self.tick_start(now);
        let elapsed_ms = at.abs_diff(self.at);
        let back = match kind {
            Kind::TokenBucket => whole(rate) * whole(elapsed_ms) / whole(period_ms),
            // The rate for each window since.
            Kind::FixedWindow | Kind::FirstUseWindow => whole(rate) * whole(elapsed_ms / period_ms),
            _ => unreachable!("a new kind"),
        };
        let tokens = (self.tokens.clone() + back).min(whole(capacity));
        // Its next window opens when something is taken.
        let has_no_window = kind == Kind::FirstUseWindow && tokens == whole(capacity);
        Self { tokens, at: if has_no_window { now } else { at }, ..self.clone() }
    }

    /// The bucket's future from `now` on depends on this and its tokens.
    pub fn ms_into_window(&self, now: i64) -> u64 {
        let refilled = self.refilled(now);
        now.abs_diff(refilled.tick_start(now))
    }

    /// How far below zero reservations and borrowing may go.
    fn advance(&self) -> u64 {
        if self.config.kind == Kind::FirstUseWindow { 0 } else { self.config.max_debt }
    }

    /// Whether the request is granted at `now`.
    fn passes(&self, now: i64, cost: u64, verb: Verb) -> bool {
        let refilled = self.refilled(now);
        match verb {
            Verb::Consume => refilled.tokens >= whole(cost),
            Verb::ConsumeUpTo => refilled.tokens >= whole(cost.min(1)),
            Verb::Reserve { max_wait_ms } | Verb::Borrow { max_wait_ms } => {
                let wait_ms = max_wait_ms.unwrap_or(HORIZON_MS).min(HORIZON_MS);
                let awaited = refilled.awaited(cost, verb).refilled(later(now, wait_ms));
                refilled.tokens - whole(cost) >= -whole::<T>(self.advance()) && awaited.tokens >= whole(0)
            }
            Verb::Charge | Verb::Refund | Verb::Reset => true,
            _ => unreachable!("a new verb"),
        }
    }

    /// When the tokens may be used, if the request is granted at `now`.
    fn ready_at(&self, now: i64, cost: u64, verb: Verb) -> i64 {
        match verb {
            Verb::Reserve { .. } | Verb::Borrow { .. } => {
                let awaited = self.refilled(now).awaited(cost, verb);
                awaited.first(now, |awaited| awaited.tokens >= whole(0)).expect("a grant is ready at some moment")
            }
            _ => now,
        }
    }

    /// The bucket that must come up to zero before a start: a reservation waits for its own tokens too, a borrower
    /// only for those that others owe.
    fn awaited(&self, cost: u64, verb: Verb) -> Self {
        let own = if matches!(verb, Verb::Reserve { .. }) { cost } else { 0 };
        Self { tokens: self.tokens.clone() - whole(own), ..self.clone() }
    }

    /// The tokens after a grant.
    fn tokens_after(&self, refilled: &Self, cost: u64, verb: Verb) -> Ratio<T> {
        let (tokens, price) = (refilled.tokens.clone(), whole(cost));
        let (capacity, deepest) = (whole(self.config.capacity), -whole::<T>(self.config.max_debt));
        match verb {
            Verb::Consume | Verb::Reserve { .. } | Verb::Borrow { .. } => tokens - price,
            Verb::ConsumeUpTo => tokens.clone() - tokens.floor().max(whole(0)).min(price),
            // A debt that is already deeper, from other numbers, is not forgiven.
            Verb::Charge => (tokens.clone() - price).max(deepest.min(tokens)),
            Verb::Refund => (tokens + price).min(capacity),
            Verb::Reset => capacity,
            _ => unreachable!("a new verb"),
        }
    }

    /// The bucket as full as it will ever be, and the last millisecond of a window.
    fn best(&self, now: i64) -> (Self, i64) {
        let Config { kind, rate, period_ms, capacity, .. } = self.config;
        let tokens = if rate == 0 { self.tokens.clone() } else { whole(capacity) };
        let at = self.tick_start(now);
        let last = if kind == Kind::TokenBucket { at } else { later(at, period_ms) - 1 };
        (Self { tokens, at, ..self.clone() }, last)
    }

    /// The first moment from `now` at which the bucket is as asked; from then on it must stay so.
    fn first(&self, now: i64, is_so: impl Fn(&Self) -> bool) -> Option<i64> {
        let first = later(now, partition(0, HORIZON_MS, |ms| !is_so(&self.refilled(later(now, ms)))));
        is_so(&self.refilled(first)).then_some(first)
    }

    /// The start of the window that holds `now`; each millisecond is one for a token bucket.
    fn tick_start(&self, now: i64) -> i64 {
        match self.config.kind {
            Kind::TokenBucket => now,
            Kind::FixedWindow | Kind::FirstUseWindow => {
                let period = i128::from(self.config.period_ms);
                let offset = match self.config.kind {
                    Kind::FirstUseWindow => i128::from(self.at),
                    _ => i128::from(self.config.offset_ms.unwrap_or(self.phase % self.config.period_ms)),
                };
                let now = i128::from(now);
                i64::try_from(now - (now - offset).rem_euclid(period)).unwrap()
            }
            _ => unreachable!("a new kind"),
        }
    }
}

/// The tokens of a state as they are written down, with their fraction: what [`Model::tokens`] must be to the drop.
pub fn tokens_of<T: Whole>(state: State, config: &Config) -> Ratio<T> {
    let record: Vec<u8> = encode(0, [state]).collect();
    let level = i64::from_le_bytes(record[9..17].try_into().expect("eight bytes"));
    let drops_per_token = match config.kind {
        Kind::TokenBucket => config.period_ms / config.rate.gcd(&config.period_ms),
        Kind::FixedWindow | Kind::FirstUseWindow => 1,
        _ => unreachable!("a new kind"),
    };
    Ratio::from_integer(T::from_i64(level).expect(FITS)) / whole(drops_per_token)
}

/// The first number from `low` on for which `holds` is false, where it is true up to some number only; `high` if there
/// is none below. Steps that double find the neighbourhood, halving finds the number.
fn partition(mut low: u64, high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let mut step = 1;
    let mut above = low;
    while above < high && holds(above) {
        low = above + 1;
        above = high.min(above.saturating_add(step));
        step *= 2;
    }
    while low < above {
        let middle = low + (above - low) / 2;
        if holds(middle) { low = middle + 1 } else { above = middle }
    }
    low
}

fn later(at: i64, ms: u64) -> i64 {
    at.checked_add_unsigned(ms).expect("moments fit")
}

fn whole<T: Whole>(number: u64) -> Ratio<T> {
    Ratio::from_integer(T::from_u64(number).expect(FITS))
}

const FITS: &str = "the integers of the model are wide enough";

fn floor<T: Whole>(tokens: &Ratio<T>) -> u64 {
    let tokens: i64 = tokens.floor().to_integer().try_into().ok().expect("tokens are below 2⁵⁴");
    u64::try_from(tokens).expect("not negative")
}
