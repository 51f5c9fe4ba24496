//! Rolling windows: a token comes back one period after it was taken.
//!
//! Two integers cannot say that, so a window also keeps the moments of what was taken. What is taken in one grain of the period shares a
//! moment, the end of the grain: so tokens come back never too early and at most a grain late, and there are at most a few hundred moments.
//! By itself the bucket never refills. Its level and the tokens of its moments always add up to the capacity, so all verbs are those of
//! other limits.

use core::time::Duration;

use super::arithmetic::{Limit, MAX_STEP_BACK_MS};
use super::config::{Config, ConfigError, Kind};
use super::decision::{Decision, Verb};
use super::state::State;

/// A limit of at most `rate` tokens in *any* interval of a period, wherever it begins: each token comes back one period after it was taken. The
/// end of an interval is not part of it.
///
/// With a rate of at most the number of grains, a token comes back to the millisecond. With a larger one, the moment is first rounded up to a
/// whole grain, which is a period divided by their number, rounded up to a millisecond: never early, and at most a grain late.
///
/// Its state needs memory for the moments of what was taken, 16 bytes for each: at most [`max_moments`](Self::max_moments), and never more than
/// [`MAX_MOMENTS`](Self::MAX_MOMENTS). For many keys, `KeyedLimiter` keeps them. A state lives as long as its memory: it cannot be stored.
///
/// There is no debt: [`charge`](Self::charge) takes what is left. [`Verb::Reserve`] and [`Verb::Borrow`] get what is there, and nothing
/// ahead of time. Moments (`now`) are Unix milliseconds; a clock that steps back is treated as by a [`Limit`].
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::{Decision, Moment, RollingWindow};
///
/// let window = RollingWindow::new(5, Duration::from_mins(1))?;
/// let mut alice = window.state_in(0, [Moment::default(); 5]).expect("as many moments as there are tokens");
/// assert!(window.try_consume(&mut alice, 7_000, 3));
/// assert!(window.try_consume(&mut alice, 40_000, 2));
/// assert_eq!(window.consume(&mut alice, 50_000, 1), Decision::Wait { retry_at: 67_000 });
/// assert_eq!(window.consume(&mut alice, 50_000, 4), Decision::Wait { retry_at: 100_000 });
/// assert_eq!(window.remaining(&alice, 67_000), 3);
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RollingWindow {
    limit: Limit,
    grain_ms: u64,
}

/// A moment at which tokens count as taken, and how many. The default is an unused one, without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Moment {
    at: i64,
    tokens: u64,
}

/// What a [`RollingWindow`] keeps for one key, in memory that its user provides: an array, or a vector. It is of use to the window that made it;
/// by another one, tokens come back at other moments or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RollingState<M> {
    /// What is left, and when something was last taken.
    state: State,
    /// The used ones first, in their order.
    moments: M,
}

/// A second for a minute, a minute for an hour: a token that comes back that late is hardly noticed, and the moments take at most 1 KB.
pub(crate) const DEFAULT_GRAINS: u8 = 60;

/// The most grains of a period: the moments then take 4 KB.
pub(crate) const MAX_GRAINS: u8 = 240;

impl RollingWindow {
    /// The most moments of any window.
    pub const MAX_MOMENTS: usize = 241;

    /// A window of `rate` tokens in any `period`, which has 60 grains. Fractions of a millisecond round up.
    ///
    /// # Errors
    /// A [`ConfigError`] for a rate or a period that is too large, or a period of zero.
    pub fn new(rate: u64, period: Duration) -> Result<Self, ConfigError> {
        Self::with_grains(rate, period, DEFAULT_GRAINS)
    }

    /// The same with another number of grains, 1 to 240. More take more memory, and give tokens back sooner.
    ///
    /// # Errors
    /// Those of [`RollingWindow::new`], and for a number of grains that is out of its range.
    pub fn with_grains(rate: u64, period: Duration, grains: u8) -> Result<Self, ConfigError> {
        if !(1..=MAX_GRAINS).contains(&grains) {
            return Err(ConfigError::GrainsOutOfRange { grains, max: MAX_GRAINS });
        }
        let config = Config { kind: Kind::RollingWindow, ..Config::token_bucket(rate, period) };
        let limit = Limit::of_any_kind(&config)?;
        Ok(Self { limit, grain_ms: grain_ms(limit.config(), grains) })
    }

    /// The window of a limit of that kind.
    pub(crate) fn of(limit: &Limit, grain_ms: u64) -> Option<Self> {
        limit.is_rolling().then_some(Self { limit: *limit, grain_ms })
    }

    /// The same with as many grains as by default.
    pub(crate) fn of_default_grains(limit: &Limit) -> Option<Self> {
        Self::of(limit, grain_ms(limit.config(), DEFAULT_GRAINS))
    }

    /// Its numbers: of the kind [`Kind::RollingWindow`], with a capacity of the rate.
    #[must_use]
    pub const fn config(&self) -> &Config {
        self.limit.config()
    }

    /// By itself a bucket into which nothing comes back.
    pub(crate) const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The most moments of its states: the rate, if it is at most the number of grains; otherwise at most one more than that number.
    #[must_use]
    pub fn max_moments(&self) -> usize {
        let Config { capacity, period_ms, .. } = *self.config();
        // A grain may be partly over: another one begins.
        let most = period_ms.checked_div(self.grain_ms).map_or(capacity, |grains| {
            let is_whole = grains.saturating_mul(self.grain_ms) == period_ms;
            grains.saturating_add(if is_whole { 1 } else { 2 })
        });
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// The state of a window first used at `now`, in this memory; `None` if it has room for fewer moments than
    /// [`max_moments`](Self::max_moments).
    #[must_use]
    pub fn state_in<M: AsMut<[Moment]>>(&self, now: i64, mut moments: M) -> Option<RollingState<M>> {
        let room = moments.as_mut();
        if room.len() < self.max_moments() {
            return None;
        }
        room.fill(Moment::default());
        Some(RollingState { state: self.limit.new_state(now, 0), moments })
    }

    /// Does what `verb` says, if that is granted. [`Verb::Reserve`] and [`Verb::Borrow`] are granted what is there now, whatever their longest
    /// wait: nothing is given ahead of time.
    pub fn decide<M>(&self, state: &mut RollingState<M>, now: i64, cost: u64, verb: Verb) -> Decision
    where
        M: AsMut<[Moment]>,
    {
        self.decide_in(&mut state.state, state.moments.as_mut(), now, cost, verb)
    }

    /// Takes `cost` tokens now or refuses.
    #[must_use = "the tokens may have been refused"]
    pub fn consume<M: AsMut<[Moment]>>(&self, state: &mut RollingState<M>, now: i64, cost: u64) -> Decision {
        self.decide(state, now, cost, Verb::Consume)
    }

    /// The same, but reports only whether it granted.
    #[must_use = "the tokens may have been refused"]
    pub fn try_consume<M: AsMut<[Moment]>>(&self, state: &mut RollingState<M>, now: i64, cost: u64) -> bool {
        self.consume(state, now, cost).is_allow()
    }

    /// The answer that [`RollingWindow::consume`] would give, with nothing taken.
    pub fn peek<M: AsRef<[Moment]>>(&self, state: &RollingState<M>, now: i64, cost: u64) -> Decision {
        let moments = state.moments.as_ref();
        self.answer(&self.look(&state.state, moments, now), moments, now, cost, Verb::Consume).0
    }

    /// Takes what is there, at most `cost`. See [`Verb::ConsumeUpTo`].
    #[must_use = "the tokens may have been refused"]
    pub fn consume_up_to<M: AsMut<[Moment]>>(&self, state: &mut RollingState<M>, now: i64, cost: u64) -> Decision {
        self.decide(state, now, cost, Verb::ConsumeUpTo)
    }

    /// Debits `cost` tokens that were already used, or what is left if that is less.
    pub fn charge<M: AsMut<[Moment]>>(&self, state: &mut RollingState<M>, now: i64, cost: u64) -> Decision {
        self.decide(state, now, cost, Verb::Charge)
    }

    /// Gives `cost` tokens back, those first that were taken first.
    pub fn refund<M: AsMut<[Moment]>>(&self, state: &mut RollingState<M>, now: i64, cost: u64) -> Decision {
        self.decide(state, now, cost, Verb::Refund)
    }

    /// Gives everything back.
    pub fn reset<M: AsMut<[Moment]>>(&self, state: &mut RollingState<M>, now: i64) -> Decision {
        self.decide(state, now, 0, Verb::Reset)
    }

    /// Tokens that could be consumed at `now`.
    #[must_use]
    pub fn remaining<M: AsRef<[Moment]>>(&self, state: &RollingState<M>, now: i64) -> u64 {
        self.limit.remaining(&self.look(&state.state, state.moments.as_ref(), now).state, now)
    }

    /// The first moment, `now` or later, at which everything is back.
    #[must_use]
    pub fn full_at<M: AsRef<[Moment]>>(&self, state: &RollingState<M>, now: i64) -> i64 {
        self.full_at_in(&state.state, state.moments.as_ref(), now)
    }

    /// [`RollingWindow::decide`] on the parts of a state. There must be room for one more moment, or as much as for all.
    pub(crate) fn decide_in(
        &self,
        state: &mut State,
        moments: &mut [Moment],
        now: i64,
        cost: u64,
        verb: Verb,
    ) -> Decision {
        let look = self.look(state, moments, now);
        let (decision, after) = self.answer(&look, moments, now, cost, verb);
        // A refusal changes nothing, except that it follows a clock that stepped back far.
        if look.ahead_ms > 0 || after.level != look.state.level {
            self.bring_back(state, moments, now);
            self.fit(state, after, moments, now);
        }
        decision
    }

    /// Brings back what is back by now, after which the state is what it is now, and follows a clock that has stepped back far.
    pub(crate) fn bring_back(&self, state: &mut State, moments: &mut [Moment], now: i64) {
        let Look { state: current, over, ahead_ms } = self.look(state, moments, now);
        *state = current;
        if ahead_ms > 0 {
            for moment in &mut *moments {
                moment.at = moment.at.saturating_sub(ahead_ms);
            }
        }
        forget(moments, over);
    }

    /// Notes in the moments what was taken from `state`, as it is at `now`, or given back, so that it became `after`.
    pub(crate) fn fit(&self, state: &mut State, after: State, moments: &mut [Moment], now: i64) {
        let taken = state.level.saturating_sub(after.level);
        *state = after;
        if taken > 0 {
            // After a small step back of the clock, the later moment counts: the state's.
            self.add(moments, now.max(after.at), taken.unsigned_abs());
        } else {
            give_back(moments, taken.unsigned_abs());
        }
    }

    /// The refusal of a cost by a window whose state, as it is now, lacks it.
    pub(crate) fn refusal_in(&self, state: &State, moments: &[Moment], cost: u64, verb: Verb) -> Decision {
        self.refusal(&Look { state: *state, over: 0, ahead_ms: 0 }, moments, cost, verb)
    }

    /// The first moment, `now` or later, at which everything is back.
    pub(crate) fn full_at_in(&self, state: &State, moments: &[Moment], now: i64) -> i64 {
        let look = self.look(state, moments, now);
        look.left(self, moments).last().map_or(now, |(at, _)| at)
    }

    /// The first moment, `now` or later, from which it answers everything as a new one would.
    pub(crate) fn expires_at_in(&self, state: &State, moments: &[Moment], now: i64) -> i64 {
        // After the clock stepped back, nothing may be missing already, but a take would still be of the later moment.
        self.full_at_in(state, moments, now).max(self.look(state, moments, now).state.at)
    }

    /// How it is at `now`.
    fn look(&self, state: &State, moments: &[Moment], now: i64) -> Look {
        let ahead_ms = ahead_ms(state.at, now).unwrap_or(0);
        let used = used(moments);
        let is_back = |moment: &Moment| self.limit.back_at(moment.at.saturating_sub(ahead_ms)) <= now;
        let over = used.partition_point(is_back);
        let back = used.iter().take(over).fold(0_u64, |sum, moment| sum.saturating_add(moment.tokens));
        let state = State { at: state.at.saturating_sub(ahead_ms), ..self.limit.raised(state, back) };
        Look { state, over, ahead_ms }
    }

    /// The answer, and the state that it leaves.
    fn answer(&self, look: &Look, moments: &[Moment], now: i64, cost: u64, verb: Verb) -> (Decision, State) {
        match self.limit.decide(look.state, now, cost, verb) {
            (Decision::Allow { tokens, ready_at }, after) => (Decision::Allow { tokens, ready_at }, after),
            (_, after) => (self.refusal(look, moments, cost, verb), after),
        }
    }

    fn refusal(&self, look: &Look, moments: &[Moment], cost: u64, verb: Verb) -> Decision {
        let refusal = self.limit.refusal_of_rolling(look.state.level.into(), cost, verb, look.left(self, moments));
        refusal.unwrap_or(Decision::Never { max: 0 }) // impossible: all of it comes back
    }

    /// Adds tokens that are taken now.
    fn add(&self, moments: &mut [Moment], now: i64, tokens: u64) {
        let last = used(moments).last().map(|last| last.at);
        push(moments, moment(now, last, self.grain_ms), tokens);
    }
}

/// For the package.
#[cfg(feature = "kinds")]
impl RollingWindow {
    /// The state at `now`, and when what is missing then comes back, soonest first.
    pub(crate) fn current<'a>(
        &'a self,
        state: &State,
        moments: &'a [Moment],
        now: i64,
    ) -> (State, impl Iterator<Item = (i64, u64)> + 'a) {
        let look = self.look(state, moments, now);
        (look.state, look.left(self, moments))
    }

    /// Adds tokens that come back at that moment, which is after those of all others, and are missing from the state already: `false` if
    /// that cannot be.
    pub(crate) fn add_return(&self, state: &State, moments: &mut [Moment], back_at: i64, tokens: u64) -> bool {
        let at = back_at.saturating_sub_unsigned(self.config().period_ms);
        let count = used(moments).len();
        let is_last = used(moments).last().is_none_or(|last| last.at < at);
        // A grain ends before the next begins, but after a step back of the clock anywhere.
        let is_possible = is_last && at <= state.at.saturating_add_unsigned(self.grain_ms.saturating_sub(1));
        match moments.get_mut(count).filter(|_| is_possible && tokens > 0) {
            Some(unused) => *unused = Moment { at, tokens },
            None => return false,
        }
        true
    }

    /// How many tokens its moments have. What a state lacks beside them never comes back.
    pub(crate) fn taken(moments: &[Moment]) -> u64 {
        used(moments).iter().fold(0, |sum, moment| sum.saturating_add(moment.tokens))
    }

    /// Takes over what another window has at `now`, as many tokens as they are, in the grains of this one; what is missing otherwise is taken then.
    pub(crate) fn carry(&self, old: (&Self, &State, &[Moment]), now: i64) -> (State, [Moment; Self::MAX_MOMENTS]) {
        let (window, state, moments) = old;
        let mut all = [Moment::default(); Self::MAX_MOMENTS];
        let taken = all.get_mut(..self.max_moments()).unwrap_or_default();
        let look = window.look(state, moments, now);
        let after = State { level: look.state.level.min(self.limit.full), ..look.state };
        // A longer grain of the old window may end later than what is taken now.
        let last = moment(now.max(after.at), None, self.grain_ms);
        let left = used(moments).get(look.over..).unwrap_or_default();
        let (missing, were) = (self.limit.full.abs_diff(after.level), Self::taken(left));
        let mut given_back = were.saturating_sub(missing);
        for old in left {
            let kept = old.tokens.saturating_sub(given_back);
            given_back = given_back.saturating_sub(old.tokens);
            if kept > 0 {
                push(taken, old.at.saturating_sub(look.ahead_ms).min(last), kept);
            }
        }
        if missing > were {
            push(taken, last, missing.saturating_sub(were));
        }
        (after, all)
    }
}

/// What a state is at some moment.
#[derive(Clone, Copy)]
struct Look {
    /// With what is back.
    state: State,
    /// How many moments are over.
    over: usize,
    /// By how much all moments are earlier, because the clock has stepped back.
    ahead_ms: i64,
}

impl Look {
    /// When what is missing comes back.
    fn left<'a>(self, window: &'a RollingWindow, moments: &'a [Moment]) -> impl Iterator<Item = (i64, u64)> + 'a {
        let left = used(moments).iter().skip(self.over);
        left.map(move |moment| (window.limit.back_at(moment.at.saturating_sub(self.ahead_ms)), moment.tokens))
    }
}

fn used(moments: &[Moment]) -> &[Moment] {
    let count = moments.partition_point(|moment| moment.tokens > 0);
    moments.get(..count).unwrap_or_default()
}

/// Adds tokens of the last moment, or of one after it.
fn push(moments: &mut [Moment], at: i64, tokens: u64) {
    let count = used(moments).len();
    if let Some(last) = count.checked_sub(1).and_then(|last| moments.get_mut(last)).filter(|last| last.at == at) {
        last.tokens = last.tokens.saturating_add(tokens);
    } else if let Some(unused) = moments.get_mut(count) {
        *unused = Moment { at, tokens };
    } else {
        // Only after steps back of the clock, which leave moments between grains, or a change of numbers: the two oldest become one, the later.
        let oldest = moments.first().map_or(0, |first| first.tokens);
        forget(moments, 1);
        if let Some(next) = moments.first_mut() {
            next.tokens = next.tokens.saturating_add(oldest);
        }
        if let Some(unused) = moments.last_mut() {
            *unused = Moment { at, tokens };
        }
    }
}

/// Forgets the first `count` moments.
fn forget(moments: &mut [Moment], count: usize) {
    if count == 0 {
        return;
    }
    let used = used(moments).len();
    let kept = used.saturating_sub(count);
    if let Some(used) = moments.get_mut(..used) {
        used.rotate_left(count.min(used.len()));
    }
    moments.iter_mut().skip(kept).for_each(|moment| *moment = Moment::default());
}

/// Gives back the oldest ones.
fn give_back(moments: &mut [Moment], mut tokens: u64) {
    let mut over = 0_usize;
    for moment in moments.iter_mut().take_while(|moment| moment.tokens > 0) {
        if tokens < moment.tokens {
            moment.tokens = moment.tokens.wrapping_sub(tokens);
            break;
        }
        tokens = tokens.wrapping_sub(moment.tokens);
        over = over.saturating_add(1);
    }
    forget(moments, over);
}

/// The length of a grain of such a limit, in milliseconds; 0 if its rate is so small that each take keeps its own moment.
pub(crate) fn grain_ms(config: &Config, grains: u8) -> u64 {
    if config.capacity <= grains.into() { 0 } else { config.period_ms.div_ceil(u64::from(grains).max(1)) }
}

/// The moment that counts for what is taken now: the end of its grain. Never before the last one, since the order says what comes back first;
/// so after a step back of the clock, and while a longer grain of earlier numbers lasts, it is that one.
pub(crate) fn moment(now: i64, last: Option<i64>, grain_ms: u64) -> i64 {
    if let Some(last) = last.filter(|last| *last >= now) {
        return last;
    }
    let grain_ms = i64::try_from(grain_ms).unwrap_or(i64::MAX);
    let into_ms = now.checked_rem_euclid(grain_ms).unwrap_or(0);
    if into_ms == 0 { now } else { now.saturating_add(grain_ms.saturating_sub(into_ms)) }
}

/// By how much the clock has stepped back since something was last taken, if that is far: then the moments follow it, because otherwise a key
/// would wait for the old clock.
pub(crate) fn ahead_ms(taken_at: i64, now: i64) -> Option<i64> {
    Some(taken_at.saturating_sub(now)).filter(|ahead_ms| *ahead_ms > MAX_STEP_BACK_MS)
}

impl Limit {
    /// When what a rolling window counts as taken `at` is back.
    pub(crate) fn back_at(&self, at: i64) -> i64 {
        at.saturating_add_unsigned(self.config().period_ms)
    }

    /// The refusal of a cost by a rolling window that has less of it: `there` tokens, below zero if it owes. `returns` has when others come
    /// back, soonest first. `None` if they are not enough.
    pub(crate) fn refusal_of_rolling(
        &self,
        there: i128,
        cost: u64,
        verb: Verb,
        returns: impl IntoIterator<Item = (i64, u64)>,
    ) -> Option<Decision> {
        let cost = if verb == Verb::ConsumeUpTo { cost.min(1) } else { cost };
        let max = self.config().capacity;
        if cost > max {
            return Some(Decision::Never { max });
        }
        let mut level = there;
        let is_enough = |(_, tokens): &(i64, u64)| {
            level = level.saturating_add((*tokens).into());
            level >= cost.into()
        };
        returns.into_iter().find(is_enough).map(|(retry_at, _)| Decision::Wait { retry_at })
    }
}
