//! The arithmetic: a limit's answer, and the state it leaves.

use core::num::NonZeroU64;

use super::calendar::Calendar;
use super::config::{Config, ConfigError, Kind, MAX_SPAN_MS, MAX_TOKENS};
use super::decision::{Decision, Verb};
use super::divisor::Divisor;
use super::state::{MAX_DROPS, State};

/// A checked limit, ready to decide. One limit serves any number of keys; each key has its own [`State`].
///
/// All kinds are one arithmetic. Levels are counted in *drops*, and a limit adds `refill` drops every *tick*, up to
/// `full`:
///
/// * A token bucket ticks every millisecond. With `g = gcd(rate, period_ms)`, a token is `period_ms / g` drops and a
///   tick adds `rate / g`, so every refill is a whole number. 3 per second: 3 drops a millisecond, 1000 drops a token.
/// * A fixed window ticks when a window opens. A token is one drop, a tick adds `rate`.
/// * A window of a calendar does the same, on a [clock](Calendar) of its own on which all its windows are equally long.
/// * A window from first use ticks a period after something was taken from a full bucket, and on until it is full.
///
/// Moments (`now`) are Unix milliseconds and always an argument. Answers are exact for moments within ±2⁵² ms of the
/// epoch, some 142 000 years; beyond, they saturate.
///
/// With the feature `serde` it is read and written as its [`Config`], and checked when it is read.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "Config", into = "Config")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    pub(super) drops_per_token: NonZeroU64,
    /// Drops added by one tick.
    pub(super) refill: i64,
    pub(super) tick_ms: NonZeroU64,
    /// The longest refill that can matter: from the deepest level to full. `fill_ticks * refill` fits an `i64`.
    fill_ticks: u64,
    /// For how long after its moment a token bucket takes the fast path: the refill needs no clipping to be exact. 0 for
    /// windows.
    fast_ms: u64,
    /// Divides by `refill`.
    refill_divisor: Divisor,
    /// The capacity in drops.
    pub(super) full: i64,
    /// The largest debt in drops.
    pub(super) debt: i64,
    /// The lowest level that other numbers can leave behind: what comes back in [`MAX_SPAN_MS`].
    pub(super) deepest: i64,
    config: Config,
}

/// The largest step back of the clock that counts as no time elapsed; after a larger one the bucket follows the clock.
/// One minute is far more than NTP corrects at once, and far less than a client should wait for a wrong clock.
pub const MAX_STEP_BACK_MS: i64 = 60_000;

impl TryFrom<Config> for Limit {
    type Error = ConfigError;

    fn try_from(config: Config) -> Result<Self, ConfigError> {
        Self::new(&config)
    }
}

impl From<Limit> for Config {
    fn from(limit: Limit) -> Self {
        limit.config
    }
}

impl Limit {
    /// Checks `config`. Afterwards nothing can overflow, and nothing needs checking again.
    ///
    /// # Errors
    /// A [`ConfigError`] if the numbers could not be kept exact, with the largest value that could; and for a rolling window.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        // The package's small module has no such limits.
        if !cfg!(tollgate_small) && config.kind == Kind::RollingWindow {
            return Err(ConfigError::NeedsMoments);
        }
        Self::of_any_kind(config)
    }

    /// The same, also for a rolling window: by itself a bucket into which nothing comes back, since only the caller knows what was taken
    /// when.
    #[doc(hidden)]
    pub fn of_any_kind(config: &Config) -> Result<Self, ConfigError> {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, calendar, .. } = *config;
        let calendar = if cfg!(tollgate_small) { None } else { calendar }; // see `Limit::calendar`
        match calendar {
            Some(_) if kind != Kind::FixedWindow => return Err(ConfigError::CalendarWithoutWindows),
            Some(_) if offset_ms.is_some() => return Err(ConfigError::OffsetBesideCalendar),
            _ => {}
        }
        #[cfg(not(tollgate_small))]
        if config.is_soft && kind == Kind::RollingWindow {
            return Err(ConfigError::SoftRollingWindow);
        }
        let period_ms = calendar.map_or(period_ms, |calendar| calendar.longest_ms());
        if rate > MAX_TOKENS {
            return Err(ConfigError::RateTooLarge { rate, max: MAX_TOKENS });
        }
        let Some(period) = NonZeroU64::new(period_ms) else {
            return Err(ConfigError::PeriodZero);
        };
        if period_ms > MAX_SPAN_MS {
            return Err(ConfigError::PeriodTooLong { period_ms, max_ms: MAX_SPAN_MS });
        }
        let (drops_per_token, refill, tick_ms, max_fast_ms) = match kind {
            Kind::RollingWindow if !cfg!(tollgate_small) => (NonZeroU64::MIN, 0, NonZeroU64::MIN, u64::MAX),
            Kind::TokenBucket => {
                let divisor = gcd(rate, period);
                let drops_per_token = NonZeroU64::new(period_ms / divisor).unwrap_or(NonZeroU64::MIN);
                (drops_per_token, rate / divisor, NonZeroU64::MIN, u64::MAX)
            }
            Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow => (NonZeroU64::MIN, rate, period, 0),
        };
        let by_span = match refill {
            0 => u64::MAX, // no refill, so no wait
            _ => product(MAX_SPAN_MS / tick_ms, refill),
        };
        // The most drops for which levels fit and the longest wait is at most `MAX_SPAN_MS`.
        let most = by_span.min(MAX_DROPS.unsigned_abs());
        let max_total = (most / drops_per_token).min(MAX_TOKENS);
        if capacity > max_total {
            return Err(ConfigError::CapacityTooLarge { capacity, max: max_total });
        }
        let max_left = max_total.wrapping_sub(capacity);
        if max_debt > max_left {
            return Err(ConfigError::MaxDebtTooLarge { max_debt, max: max_left });
        }
        if let Some(initial) = initial
            && initial > capacity
        {
            return Err(ConfigError::InitialTooLarge { initial, max: capacity });
        }
        if offset_ms.is_some() && kind != Kind::FixedWindow {
            return Err(ConfigError::OffsetWithoutWindows);
        }
        if !cfg!(tollgate_small) && kind == Kind::FirstUseWindow && initial.is_some_and(|initial| initial < capacity) {
            return Err(ConfigError::InitialBeforeFirstUse);
        }
        // From here on every product of tokens and drops is at most 2⁶¹: it is the same number signed and unsigned, and
        // sums of levels, which lie within ±2⁶¹, fit.
        let drops = |tokens: u64| tokens.wrapping_mul(drops_per_token.get()).cast_signed();
        let full = drops(capacity);
        let to_fill = full.wrapping_add(MAX_DROPS).unsigned_abs();
        // Without refills, any number of ticks adds nothing.
        let fill_ticks = to_fill.checked_div(refill).map_or(u64::MAX, |ticks| ticks.wrapping_add(1));
        Ok(Self {
            drops_per_token,
            refill: refill.cast_signed(),
            tick_ms,
            fill_ticks,
            fast_ms: fill_ticks.min(max_fast_ms),
            refill_divisor: Divisor::new(refill),
            full,
            debt: drops(max_debt),
            deepest: most.cast_signed().wrapping_neg(),
            config: Config { period_ms, offset_ms: offset_ms.map(|offset_ms| offset_ms % period), ..*config },
        })
    }

    /// The largest `max_debt` with which these numbers stay exact beside their capacity; 0 if they cannot be kept exact
    /// without a debt either. With the token of a bucket in lowest terms, `rate / period_ms = r / p`, all tokens from the
    /// deepest debt to full are at most `min(2⁵¹ · r, 2⁶¹) / p`; of a window, `min(2⁵¹ / period_ms · rate, 2⁶¹)`; and never
    /// more than [`MAX_TOKENS`], which is what a rate of 0 allows. The capacity is part of them.
    #[must_use]
    pub fn largest_debt(config: &Config) -> u64 {
        match Self::of_any_kind(&Config { max_debt: u64::MAX, ..*config }) {
            Err(ConfigError::MaxDebtTooLarge { max, .. }) => max,
            _ => 0,
        }
    }

    /// The numbers this limit was made from, with an offset below the period.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The state of a bucket first used at `now`. For windows without an offset, `phase` decides where they begin: any
    /// number, such as a hash of the key, but the same one each time for one key. Other limits ignore it.
    #[must_use]
    pub fn new_state(&self, now: i64, phase: u64) -> State {
        State { level: self.new_level(), at: self.tick_start(now, phase) }
    }

    /// The level of a new bucket.
    pub(super) fn new_level(&self) -> i64 {
        self.config.initial.map_or(self.full, |tokens| self.drops(tokens))
    }

    /// Decides whether `cost` tokens are granted at `now`, and returns the bucket's next state. Use this when the old
    /// state may still be needed; otherwise the verb's own method is shorter, and [`Limit::consume`] is also faster.
    ///
    /// A refusal, and a grant of nothing, return `state` bit for bit. The one exception: when the clock has stepped
    /// back by more than a minute, the state is anchored to `now` with its level kept, because an empty
    /// bucket would otherwise wait for the old clock. A smaller step counts as no time elapsed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::limit::{Config, Decision, Limit, Verb};
    ///
    /// let limit = Limit::new(&Config::token_bucket(3, Duration::from_secs(1)))?; // 3 per second, 3 at once
    /// let full = limit.new_state(0, 0);
    /// let (decision, empty) = limit.decide(full, 0, 3, Verb::Consume);
    /// assert_eq!(decision, Decision::Allow { tokens: 3, ready_at: 0 });
    /// // A token is 1000 drops and 3 come back every millisecond: the next is whole after 333⅓ ms.
    /// let (decision, same) = limit.decide(empty, 100, 1, Verb::Consume);
    /// assert_eq!(decision, Decision::Wait { retry_at: 334 });
    /// assert_eq!(same, empty);
    /// # Ok::<(), tollgate::limit::ConfigError>(())
    /// ```
    pub fn decide(&self, state: State, now: i64, cost: u64, verb: Verb) -> (Decision, State) {
        let mut next = state;
        let decision = self.apply(&mut next, now, cost, verb);
        (decision, next)
    }

    /// Takes `cost` tokens now or refuses. Use this to drop excess work; to delay it instead, use [`Limit::reserve`].
    /// A cost of zero takes nothing, and is refused while the bucket is in debt.
    #[must_use = "the tokens may have been refused"]
    #[expect(clippy::inline_always, reason = "a call that returns its answer in memory takes as long as the decision")]
    #[inline(always)]
    pub fn consume(&self, state: &mut State, now: i64, cost: u64) -> Decision {
        match self.fast_path(state, now, cost) {
            Some(FastPath::Granted) => return Decision::Allow { tokens: cost, ready_at: now },
            Some(FastPath::Refused { level, drops }) => {
                if drops <= self.full
                    && let Some(wait_ms) = self.refill_divisor.fast_div_ceil(drops.abs_diff(level))
                {
                    return Decision::Wait { retry_at: after(now, wait_ms) };
                }
            }
            Some(FastPath::RefusedInWindow { missing }) => {
                return Decision::Wait { retry_at: self.rise_time(state.at, missing) };
            }
            None => {}
        }
        self.apply(state, now, cost, Verb::Consume)
    }

    /// The same as [`Limit::consume`], but reports only whether it granted. Use this when the moment to retry does not
    /// matter: a refusal is faster without it.
    #[must_use = "the tokens may have been refused"]
    #[expect(clippy::inline_always, reason = "a call that returns its answer in memory takes as long as the decision")]
    #[inline(always)]
    pub fn try_consume(&self, state: &mut State, now: i64, cost: u64) -> bool {
        match self.fast_path(state, now, cost) {
            Some(answer) => matches!(answer, FastPath::Granted),
            None => self.try_apply(state, now, cost),
        }
    }

    /// The answer that [`Limit::consume`] would give, with nothing taken.
    pub fn peek(&self, state: &State, now: i64, cost: u64) -> Decision {
        self.decide(*state, now, cost, Verb::Consume).0
    }

    /// Takes `cost` tokens in advance, to be used at `ready_at`. See [`Verb::Reserve`]; with a capacity of zero this
    /// spaces admissions evenly.
    ///
    /// A program paces its own requests by reserving a token for each and sleeping until it is ready; `max_debt` is how many may be
    /// reserved ahead. A reservation that is given up can be refunded exactly while it is the last one: after others, its tokens would be
    /// spent beside theirs. `KeyedQueue` waits without reserving.
    ///
    /// ```
    /// use std::{thread, time::{Duration, SystemTime}};
    /// use tollgate::limit::{Config, Decision, Limit};
    /// # fn unix_ms(time: SystemTime) -> i64 { i64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap() }
    ///
    /// let mut config = Config::token_bucket(200, Duration::from_secs(1)); // one every 5 ms, and never two at once
    /// (config.capacity, config.max_debt) = (0, 1_000);
    /// let limit = Limit::new(&config)?;
    /// let mut pace = limit.new_state(unix_ms(SystemTime::now()), 0);
    /// for request in ["a", "b", "c"] {
    ///     let now = unix_ms(SystemTime::now());
    ///     match limit.reserve(&mut pace, now, 1, Some(30_000)) {
    ///         Decision::Allow { ready_at, .. } => thread::sleep(Duration::from_millis(ready_at.abs_diff(now))),
    ///         refused => panic!("{request} would wait for more than 30 s: {refused:?}"),
    ///     }
    ///     // ... send the request
    /// }
    /// # Ok::<(), tollgate::limit::ConfigError>(())
    /// ```
    #[must_use = "the tokens may have been refused"]
    pub fn reserve(&self, state: &mut State, now: i64, cost: u64, max_wait_ms: Option<u64>) -> Decision {
        self.apply(state, now, cost, Verb::Reserve { max_wait_ms })
    }

    /// Starts as soon as earlier debt is paid and leaves this cost to the next caller, like Guava's `RateLimiter`.
    /// See [`Verb::Borrow`].
    #[must_use = "the tokens may have been refused"]
    pub fn borrow(&self, state: &mut State, now: i64, cost: u64, max_wait_ms: Option<u64>) -> Decision {
        self.apply(state, now, cost, Verb::Borrow { max_wait_ms })
    }

    /// Debits `cost` tokens that were already used, down to `-max_debt`. Use this when the cost is known only
    /// afterwards.
    pub fn charge(&self, state: &mut State, now: i64, cost: u64) -> Decision {
        self.apply(state, now, cost, Verb::Charge)
    }

    /// Takes what is there, at most `cost`. See [`Verb::ConsumeUpTo`].
    #[must_use = "the tokens may have been refused"]
    pub fn consume_up_to(&self, state: &mut State, now: i64, cost: u64) -> Decision {
        self.apply(state, now, cost, Verb::ConsumeUpTo)
    }

    /// Gives `cost` tokens back, clipped to the capacity. Use this for work that was cancelled.
    pub fn refund(&self, state: &mut State, now: i64, cost: u64) -> Decision {
        self.apply(state, now, cost, Verb::Refund)
    }

    /// Makes the bucket full again.
    pub fn reset(&self, state: &mut State, now: i64) -> Decision {
        self.apply(state, now, 0, Verb::Reset)
    }

    /// Whole tokens that could be consumed at `now`, 0 when in debt.
    #[must_use]
    pub fn remaining(&self, state: &State, now: i64) -> u64 {
        self.whole_tokens(self.refilled(state, now).level)
    }

    /// Tokens owed at `now`, a part of one counted as one; 0 when not in debt.
    #[must_use]
    pub fn owed(&self, state: &State, now: i64) -> u64 {
        let level = self.refilled(state, now).level.min(0);
        level.unsigned_abs().div_ceil(self.drops_per_token.get())
    }

    /// The first moment, `now` or later, at which the bucket holds its capacity; `None` when it never will.
    #[must_use]
    pub fn full_at(&self, state: &State, now: i64) -> Option<i64> {
        self.time_at_level(self.refilled(state, now), now, self.full)
    }

    /// The first moment, `now` or later, from which the bucket answers everything as a new one would, so that it may
    /// be deleted. `None` if there is no such moment: at rate 0 once anything was taken, and always when a new bucket
    /// holds less than the capacity, because the older one stays ahead of it.
    #[must_use]
    pub fn expires_at(&self, state: &State, now: i64) -> Option<i64> {
        let is_full_when_new = self.config.initial.is_none_or(|tokens| tokens == self.config.capacity);
        // After the clock stepped back, the bucket may be full already, but refills only from its own moment on.
        let full_at = self.full_at(state, now).filter(|_| is_full_when_new)?;
        Some(full_at.max(self.unix_time(self.refilled(state, now).at)))
    }

    /// The largest cost that `verb` can ever grant, from a full bucket; a larger one is refused for good. Charges,
    /// refunds, resets and [`Verb::ConsumeUpTo`] accept any cost, and a soft limit does so always.
    #[must_use]
    pub fn largest(&self, verb: Verb) -> u64 {
        if !verb.takes() || verb == Verb::ConsumeUpTo || self.is_soft() {
            return MAX_TOKENS;
        }
        self.largest_cost(self.full, &self.advance(verb))
    }

    /// The fast path, for nearly every request: grants without a division, and refuses without a write.
    #[inline]
    fn fast_path(&self, state: &mut State, now: i64, cost: u64) -> Option<FastPath> {
        let drops = self.fast_drops(cost)?;
        if now < state.at {
            return None;
        }
        let elapsed_ms = now.abs_diff(state.at);
        if elapsed_ms < self.fast_ms {
            let level = self.unclipped_level(state, elapsed_ms);
            // Two branches, and not a minimum: what a full bucket is left with does not depend on its last level, so the
            // processor does not wait until the last request's store can be loaded.
            if level >= self.full {
                if self.full < drops {
                    return None;
                }
                *state = State { level: self.full.wrapping_sub(drops), at: now };
                return Some(FastPath::Granted);
            }
            if level < drops {
                return (!self.is_soft()).then_some(FastPath::Refused { level, drops });
            }
            *state = State { level: level.wrapping_sub(drops), at: now };
            return Some(FastPath::Granted);
        }
        if elapsed_ms >= self.tick_ms.get() || cost > self.config.capacity {
            return None;
        }
        // The window is still open: no refill.
        if state.level < drops {
            return (self.refill > 0 && !self.is_soft())
                .then_some(FastPath::RefusedInWindow { missing: drops.abs_diff(state.level) });
        }
        if self.opens_with(state.level) {
            return None;
        }
        state.level = state.level.wrapping_sub(drops);
        Some(FastPath::Granted)
    }

    /// `cost` in drops; `None` for 0 and, at the latest when drops do not fit, for a cost above the capacity.
    #[inline]
    fn fast_drops(&self, cost: u64) -> Option<i64> {
        let cost = NonZeroU64::new(cost)?;
        // For a constant cost such as 1 the overflow check compiles to nothing; in wasm it would be a call.
        #[cfg(not(target_family = "wasm"))]
        return i64::try_from(cost.get()).ok()?.checked_mul(self.drops_per_token.get().cast_signed());
        #[cfg(target_family = "wasm")]
        return (cost.get() <= self.config.capacity).then(|| self.drops(cost.get()));
    }

    /// The level of a token bucket after less than `fast_ms`, possibly above its capacity.
    #[inline]
    const fn unclipped_level(&self, state: &State, elapsed_ms: u64) -> i64 {
        state.level.wrapping_add(elapsed_ms.cast_signed().wrapping_mul(self.refill))
    }

    #[cold]
    #[inline(never)]
    fn try_apply(&self, state: &mut State, now: i64, cost: u64) -> bool {
        self.apply(state, now, cost, Verb::Consume).is_allow()
    }

    /// The state with all refills up to `now` credited. No verb needs it; use it to see or lower the level at `now`.
    #[must_use]
    #[inline(never)] // Many callers, none of them hot; inlining would only grow the wasm.
    pub fn refilled(&self, state: &State, now: i64) -> State {
        self.unopened(self.ticked(state, now), now)
    }

    /// The state; at `now`, if what is taken from it opens a window.
    const fn unopened(&self, state: State, now: i64) -> State {
        if self.opens_with(state.level) && state.at < now { State { at: now, ..state } } else { state }
    }

    /// The same, but a window from first use that has ended with a full bucket is followed by others, as if something were missing.
    #[inline]
    pub(super) fn ticked(&self, state: &State, now: i64) -> State {
        let own_now = self.own_time(now);
        if own_now < state.at {
            return self.anchored(*state, now);
        }
        let now = own_now;
        let elapsed_ms = now.abs_diff(state.at);
        if elapsed_ms < self.fast_ms {
            return State { level: self.unclipped_level(state, elapsed_ms).min(self.full), at: now };
        }
        if elapsed_ms < self.tick_ms.get() {
            return *state;
        }
        let ticks = elapsed_ms / self.tick_ms;
        let at = state.at.saturating_add_unsigned(ticks.wrapping_mul(self.tick_ms.get())); // at most `now`
        // Exact: `fill_ticks` is chosen so that the product is at most 2 · 2⁶¹ + refill, which leaves room for the sum.
        let credit = ticks.min(self.fill_ticks).cast_signed().wrapping_mul(self.refill);
        State { level: state.level.wrapping_add(credit).min(self.full), at }
    }

    /// The state; moved to `now`, with its level kept, if the clock stepped back by more than [`MAX_STEP_BACK_MS`].
    #[inline(never)]
    pub(super) fn anchored(&self, state: State, now: i64) -> State {
        let ahead_ms = state.at.saturating_sub(self.own_time(now));
        // The clocks of a calendar's zone also step back when the place gets other offsets. On days of 23 and 25 hours the calendar's own
        // clock is faster or slower than that.
        let (back_ms, most_ms) = match self.calendar() {
            Some(calendar) => (calendar.unix_time(state.at).saturating_sub(now), Calendar::MAX_SET_BACK_MS),
            None => (ahead_ms, MAX_STEP_BACK_MS),
        };
        if back_ms <= most_ms {
            return state;
        }
        if self.is_from_first_use() {
            return State { level: state.level, at: now };
        }
        // Whole ticks, so that windows stay where they are.
        let back_ms = product(ahead_ms.unsigned_abs().div_ceil(self.tick_ms.get()), self.tick_ms.get());
        State { level: state.level, at: state.at.saturating_sub_unsigned(back_ms) }
    }

    /// Decides in place.
    #[inline(never)]
    fn apply(&self, state: &mut State, now: i64, cost: u64, verb: Verb) -> Decision {
        let verb = if self.is_soft() && verb.takes() { Verb::Charge } else { verb };
        let current = self.refilled(state, now);
        if self.own_time(now) < state.at {
            *state = current; // nothing was credited: this is what a refusal leaves
        }
        let cost = match verb {
            Verb::Consume | Verb::Reserve { .. } | Verb::Borrow { .. } => cost,
            // At least one token, so that an empty bucket refuses.
            Verb::ConsumeUpTo => self.whole_tokens(current.level).min(cost).max(cost.min(1)),
            Verb::Charge => {
                let floor = current.level.min(self.debt.wrapping_neg());
                let level = current.level.wrapping_sub(self.clipped_drops(cost)).max(floor);
                return self.set_level(state, current, now, level);
            }
            Verb::Refund => {
                let level = current.level.wrapping_add(self.clipped_drops(cost)).min(self.full);
                return self.set_level(state, current, now, level);
            }
            Verb::Reset => return self.set_level(state, current, now, self.full),
        };
        self.take(state, current, now, cost, &self.advance(verb))
    }

    /// How far ahead `verb` may take tokens.
    const fn advance(&self, verb: Verb) -> Advance {
        // The windows after a full bucket's next one are as far away as it is: waiting brings them no nearer. With a calendar,
        // nothing is taken from a later window: it is far away.
        let debt = if self.is_from_first_use() || self.calendar().is_some() { 0 } else { self.debt };
        let (prepaid, debt, max_wait_ms) = match verb {
            Verb::Reserve { max_wait_ms } => (true, debt, max_wait_ms),
            Verb::Borrow { max_wait_ms } => (false, debt, max_wait_ms),
            _ => (true, 0, Some(0)),
        };
        let longest = i64::MAX.cast_unsigned(); // longer than any wait
        let max_wait_ms = match max_wait_ms {
            Some(ms) if ms < longest => ms,
            _ => longest,
        };
        Advance { prepaid, debt, max_wait_ms }
    }

    /// Takes `cost`, perhaps in advance, or answers when, or never. `state` is already what a refusal leaves.
    fn take(&self, state: &mut State, current: State, now: i64, cost: u64, advance: &Advance) -> Decision {
        let max = self.largest_cost(current.level, advance);
        if cost > max {
            return Decision::Never { max };
        }
        let drops = self.drops(cost); // exact: at most full + debt
        // The tokens are ready once the level reaches `ready_level`, and may be taken once it reaches `debt_level`.
        let ready_level = if advance.prepaid { drops } else { 0 };
        let debt_level = drops.wrapping_sub(advance.debt);
        let Some((debt_at, ready_at)) =
            self.time_at_level(current, now, debt_level).zip(self.time_at_level(current, now, ready_level))
        else {
            return Decision::Never { max }; // in debt for good: even a cost of 0 is refused
        };
        if current.level >= debt_level && ready_at.abs_diff(now) <= advance.max_wait_ms {
            if cost > 0 {
                *state = State { level: current.level.wrapping_sub(drops), at: current.at };
            }
            return Decision::Allow { tokens: cost, ready_at };
        }
        // The wait counts from when the debt allows it. By then the bucket may have filled up, so that a reservation
        // larger than the capacity waits for more windows than it would from here.
        let ready_at = self.time_at_level(self.refilled(&current, debt_at), debt_at, ready_level).unwrap_or(ready_at);
        Decision::Wait { retry_at: debt_at.max(ready_at.saturating_sub_unsigned(advance.max_wait_ms)) }
    }

    /// The largest cost that can ever be granted: from a full bucket or, without refills, from `level`. Also 0 when
    /// nothing can pass.
    fn largest_cost(&self, level: i64, advance: &Advance) -> u64 {
        let level = if self.refill == 0 { level } else { self.full };
        let debt = if !advance.prepaid && level >= 0 {
            advance.debt
        } else {
            // The refills within the wait: as many ticks as can fall into it.
            let ticks = advance.max_wait_ms.div_ceil(self.tick_ms.get());
            product(ticks, self.refill.unsigned_abs()).min(advance.debt.unsigned_abs()).cast_signed()
        };
        self.whole_tokens(level.wrapping_add(debt))
    }

    /// Sets the level, and never refuses.
    fn set_level(&self, state: &mut State, current: State, now: i64, level: i64) -> Decision {
        let drops = level.abs_diff(current.level);
        if drops > 0 {
            *state = State { level, at: current.at };
        }
        Decision::Allow { tokens: drops / self.drops_per_token, ready_at: now }
    }

    /// The first moment, `now` or later, at which a bucket that is `current` at `now` has reached `level`.
    #[inline(never)]
    fn time_at_level(&self, current: State, now: i64, level: i64) -> Option<i64> {
        if current.level >= level {
            return Some(now);
        }
        (self.refill > 0).then(|| self.rise_time(current.at, level.abs_diff(current.level)))
    }

    /// The moment at which `missing` drops, at least one, have come back since `at`, if the limit refills at all.
    #[inline(never)]
    fn rise_time(&self, at: i64, missing: u64) -> i64 {
        let ticks = self.refill_divisor.div_ceil(missing).unwrap_or(u64::MAX);
        self.unix_time(after(at, product(ticks, self.tick_ms.get())))
    }

    /// The calendar that its windows follow. The package's small module has no such limits.
    #[inline]
    pub(super) const fn calendar(&self) -> Option<Calendar> {
        if cfg!(tollgate_small) { None } else { self.config.calendar }
    }

    /// A moment on the clock of the limit's states.
    #[inline]
    pub(super) fn own_time(&self, now: i64) -> i64 {
        self.calendar().map_or(now, |calendar| calendar.own_time(now))
    }

    /// The inverse of [`Limit::unix_time`].
    #[inline]
    pub(super) fn own_moment(&self, at: i64) -> i64 {
        self.calendar().map_or(at, |calendar| calendar.own_opening(at))
    }

    /// The moment of a state, or of an opening after it.
    #[inline]
    pub(super) fn unix_time(&self, at: i64) -> i64 {
        self.calendar().map_or(at, |calendar| calendar.unix_time(at))
    }

    /// Whether windows open with the first use of a full bucket. The package's small module has no such limits.
    #[inline]
    pub(super) const fn is_from_first_use(&self) -> bool {
        !cfg!(tollgate_small) && matches!(self.config.kind, Kind::FirstUseWindow)
    }

    /// Whether it never refuses. The package's small module has no such limits.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub const fn is_soft(&self) -> bool {
        #[cfg(not(tollgate_small))]
        return self.config.is_soft;
        #[cfg(tollgate_small)]
        false
    }

    /// Whether its tokens come back a period after each was taken, which only those who keep the moments know.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_rolling(&self) -> bool {
        matches!(self.config.kind, Kind::RollingWindow)
    }

    /// Whether something that is taken at this level opens a window.
    #[inline]
    const fn opens_with(&self, level: i64) -> bool {
        self.is_from_first_use() && level >= self.full
    }

    /// The start of the tick that holds `now`, for a bucket that is used then.
    pub(super) fn tick_start(&self, now: i64, phase: u64) -> i64 {
        if let Some(calendar) = self.calendar() {
            return calendar.own_opening(now);
        }
        if self.is_from_first_use() {
            return now;
        }
        let offset_ms = self.config.offset_ms.unwrap_or_else(|| phase % self.tick_ms);
        let tick_ms = i64::try_from(self.tick_ms.get()).unwrap_or(i64::MAX); // fits
        let into_ms = now.saturating_sub_unsigned(offset_ms).checked_rem_euclid(tick_ms).unwrap_or(0);
        now.saturating_sub(into_ms)
    }

    /// Exact for costs of at most the capacity and the largest debt together.
    #[inline]
    const fn drops(&self, tokens: u64) -> i64 {
        tokens.wrapping_mul(self.drops_per_token.get()).cast_signed()
    }

    /// The same for any cost, clipped to the largest distance between two levels.
    pub(super) fn clipped_drops(&self, tokens: u64) -> i64 {
        product(tokens, self.drops_per_token.get()).cast_signed().min(MAX_DROPS.wrapping_mul(2))
    }

    pub(super) fn whole_tokens(&self, level: i64) -> u64 {
        level.max(0).unsigned_abs() / self.drops_per_token
    }
}

/// An answer of the fast path.
enum FastPath {
    Granted,
    /// The level is below the cost in drops, which may be more than the capacity.
    Refused {
        level: i64,
        drops: i64,
    },
    /// The window is still open, and `missing` drops can come back.
    RefusedInWindow {
        missing: u64,
    },
}

/// How far ahead of the refills tokens may be taken.
struct Advance {
    /// Whether the start waits for this cost, or only for earlier debt.
    prepaid: bool,
    /// The largest debt in drops.
    debt: i64,
    max_wait_ms: u64,
}

/// The product if it is below 2⁶²; otherwise some number of at least 2⁶², the largest distance between two levels. A
/// factor beside 0 must be at most `i64::MAX`.
#[inline]
pub(super) const fn product(a: u64, b: u64) -> u64 {
    // a < 2^(64 - leading zeros of a). A saturating multiplication would be one of 128 bits in WebAssembly.
    if a.leading_zeros().saturating_add(b.leading_zeros()) > 64 { a.wrapping_mul(b) } else { i64::MAX.cast_unsigned() }
}

/// The moment `ms` after `at`, for at most `i64::MAX` of them.
#[inline]
fn after(at: i64, ms: u64) -> i64 {
    at.checked_add(ms.cast_signed()).unwrap_or(i64::MAX)
}

/// The greatest common divisor, by Euclid; `gcd(0, n)` is n.
pub(crate) fn gcd(a: u64, b: NonZeroU64) -> NonZeroU64 {
    match NonZeroU64::new(a % b) {
        None => b,
        Some(rest) => gcd(b.get(), rest),
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "clippy takes a browser's tests for code")]
mod tests {
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn a_product_is_exact_or_beyond_any_distance_between_levels() {
        let beyond = i64::MAX.cast_unsigned();
        let table = [
            (0, beyond, 0),
            (1, (1 << 62) - 1, (1 << 62) - 1),
            (1, 1 << 62, beyond),
            // The largest factors whose leading zeros prove that the product fits, and the smallest that do not.
            ((1 << 31) - 1, (1 << 32) - 1, 0x7fff_fffe_8000_0001),
            (1 << 31, (1 << 32) - 1, beyond),
            ((1 << 31) - 1, 1 << 32, beyond),
            (1 << 31, 1 << 31, beyond), // 2⁶² itself
            (u64::MAX, u64::MAX, beyond),
        ];
        for (a, b, expected) in table {
            assert_eq!((product(a, b), product(b, a)), (expected, expected), "{a} · {b}");
            assert!(u128::from(a) * u128::from(b) == u128::from(expected) || expected >= 1 << 62);
        }
    }
}
