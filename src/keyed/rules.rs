//! The limits of a keyed limiter, and what each key has of them: a state for each, and for rolling windows the moments of what was taken.

use crate::limit::{Decision, Limit, Moment, Part, RollingWindow, State, Verb, decide_all};

/// A limit of a [`KeyedLimiter`](super::KeyedLimiter): any [`Limit`], or a [`RollingWindow`]. Both convert into it; an array of both needs one
/// `Rule::from`.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::keyed::{KeyedLimiter, Rule};
/// use tollgate::limit::{Config, Limit, RollingWindow};
///
/// // 10 per second, and never more than 100 in any minute.
/// let per_second = Limit::new(&Config::token_bucket(10, Duration::from_secs(1)))?;
/// let any_minute = RollingWindow::new(100, Duration::from_mins(1))?;
/// let limiter = KeyedLimiter::<String, 2>::new([Rule::from(per_second), any_minute.into()], 100_000);
/// assert!(limiter.try_consume("alice", 1_800_000_000_000, 1));
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    limit: Limit,
    window: Option<RollingWindow>,
}

#[cfg(feature = "tower")]
impl Rule {
    /// The rule of a policy's limit, with its grain if it is a rolling window.
    pub(crate) fn new(limit: &Limit, grain_ms: u64) -> Self {
        Self { limit: *limit, window: RollingWindow::of(limit, grain_ms) }
    }
}

/// A rolling window, of which only policies make limits, has 60 grains.
impl From<Limit> for Rule {
    fn from(limit: Limit) -> Self {
        Self { limit, window: RollingWindow::of_default_grains(&limit) }
    }
}

impl From<RollingWindow> for Rule {
    fn from(window: RollingWindow) -> Self {
        Self { limit: *window.limit(), window: Some(window) }
    }
}

/// All rules of a limiter.
pub(super) struct Rules<const N: usize> {
    limits: [Limit; N],
    windows: [Option<RollingWindow>; N],
    has_windows: bool,
}

/// The moments of a key, for each rule that is a rolling window: as much memory as they have needed.
pub(super) type Moments<const N: usize> = [Vec<Moment>; N];

/// A key's budget, where it is kept.
pub(super) struct Budget<'a, const N: usize> {
    pub(super) states: &'a mut [State; N],
    /// `None` if no rule is a rolling window.
    pub(super) moments: Option<&'a mut Moments<N>>,
}

/// A budget of its own: a new key's, or a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnBudget<const N: usize> {
    pub(super) states: [State; N],
    pub(super) moments: Moments<N>,
}

impl<const N: usize> OwnBudget<N> {
    pub(super) const fn view(&mut self) -> Budget<'_, N> {
        Budget { states: &mut self.states, moments: Some(&mut self.moments) }
    }
}

impl<const N: usize> Budget<'_, N> {
    pub(super) fn copy(&self) -> OwnBudget<N> {
        let moments = self.moments.as_deref().cloned();
        OwnBudget { states: *self.states, moments: moments.unwrap_or_else(no_moments) }
    }
}

pub(super) fn no_moments<const N: usize>() -> Moments<N> {
    core::array::from_fn(|_| Vec::new())
}

impl<const N: usize> Rules<N> {
    pub(super) fn new(rules: [Rule; N]) -> Self {
        let windows = rules.map(|rule| rule.window);
        let has_windows = windows.iter().any(Option::is_some);
        Self { limits: rules.map(|rule| rule.limit), windows, has_windows }
    }

    pub(super) const fn limits(&self) -> &[Limit; N] {
        &self.limits
    }

    pub(super) const fn have_windows(&self) -> bool {
        self.has_windows
    }

    /// The budget of a key first used at `now`, with that hash.
    pub(super) fn new_budget(&self, now: i64, hash: u64) -> OwnBudget<N> {
        OwnBudget { states: self.limits.each_ref().map(|limit| limit.new_state(now, hash)), moments: no_moments() }
    }

    /// Takes `cost` tokens of each, or none.
    #[inline]
    pub(super) fn consume(&self, budget: &mut Budget<'_, N>, now: i64, cost: u64) -> Decision {
        // A single limit has a fast path.
        match (&self.limits[..], &mut budget.states[..]) {
            ([limit], [state]) if !self.has_windows => limit.consume(state, now, cost),
            _ => self.decide(budget, now, [cost; N], Verb::Consume).0,
        }
    }

    /// All grant, or nothing is taken.
    pub(super) fn decide(
        &self,
        budget: &mut Budget<'_, N>,
        now: i64,
        costs: [u64; N],
        verb: Verb,
    ) -> (Decision, [Part<'_>; N]) {
        self.bring_back(budget, now);
        let mut parts = core::array::from_fn(|i| Part::new(&self.limits[i], budget.states[i], costs[i]));
        let mut decision = decide_all(&mut parts, now, verb);
        if let Some(moments) = budget.moments.as_deref_mut().filter(|_| self.has_windows) {
            let is_granted = decision.is_allow();
            for (((window, part), moments), state) in
                self.windows.iter().zip(&mut parts).zip(moments).zip(&mut *budget.states)
            {
                let Some(window) = window else { continue };
                if is_granted {
                    make_room(window, moments);
                    window.fit(state, part.state, moments, now);
                } else if !part.decision.is_allow() {
                    part.decision = window.refusal_in(&part.state, moments, part.cost, verb);
                }
            }
            if !is_granted {
                let refusals = parts.iter().map(|part| part.decision).filter(|own| !own.is_allow());
                decision = refusals.reduce(Decision::and).unwrap_or(decision);
            }
        }
        *budget.states = parts.each_ref().map(|part| part.state);
        (decision, parts)
    }

    /// Brings back what is back of rolling windows by now.
    fn bring_back(&self, budget: &mut Budget<'_, N>, now: i64) {
        if let Some(moments) = budget.moments.as_deref_mut().filter(|_| self.has_windows) {
            for ((window, state), moments) in self.windows.iter().zip(&mut *budget.states).zip(moments) {
                if let Some(window) = window {
                    window.bring_back(state, moments, now);
                }
            }
        }
    }

    /// Follows a clock that stepped back from `latest` to `now`, further than a bucket tolerates.
    pub(super) fn step_back(&self, budget: &mut Budget<'_, N>, latest: i64, now: i64) {
        self.bring_back(budget, latest);
        for (limit, state) in self.limits.iter().zip(&mut *budget.states) {
            *state = limit.refilled(state, latest);
        }
        // Nothing is taken.
        let _ = self.decide(budget, now, [0; N], Verb::Refund);
    }

    /// The first moment, `now` or later, from which this budget answers everything as a new one would; `i64::MAX` for never.
    pub(super) fn due_at(&self, states: &[State; N], moments: Option<&Moments<N>>, now: i64) -> i64 {
        let each = (0..N).map(|i| match (&self.windows[i], moments) {
            (Some(window), Some(moments)) => window.expires_at_in(&states[i], &moments[i], now),
            _ => self.limits[i].expires_at(&states[i], now).unwrap_or(i64::MAX),
        });
        each.max().unwrap_or(now)
    }

    /// When each rolling window is full again.
    pub(super) fn full_at(&self, budget: &Budget<'_, N>, now: i64) -> [Option<i64>; N] {
        let moments = budget.moments.as_deref();
        core::array::from_fn(|i| Some(self.windows[i]?.full_at_in(&budget.states[i], &moments?[i], now)))
    }
}

/// Makes room for one more moment, unless there is enough for all.
fn make_room(window: &RollingWindow, moments: &mut Vec<Moment>) {
    let is_used = |moment: &Moment| *moment != Moment::default();
    let most = window.max_moments();
    if moments.last().is_none_or(is_used) && moments.len() < most {
        let len = (2 * moments.len()).clamp(1, most);
        moments.reserve_exact(len - moments.len()); // no more than all
        moments.resize(len, Moment::default());
    }
}
