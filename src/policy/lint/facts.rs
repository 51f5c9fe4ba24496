//! Numbers in the lint: rates, bursts, times and costs.

use serde::Serialize;

use super::openings::longest_ms;
use super::worst::Worst;
use crate::length;
use crate::limit::{Calendar, Config, Decision, Limit, State};
use crate::policy::ban::BanTerms;
use crate::policy::named::Policy;
use crate::policy::named_limit::{NamedLimit, SLOTS};
use crate::sorted::sort_by;

/// The numbers of one limit, and their consequences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LimitFacts {
    /// The limit's name, in a policy with several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it can refuse; if not, it is soft or in shadow. A disabled limit has no facts.
    pub is_enforced: bool,
    /// Whether it never refuses, and counts on below zero: what it admits beyond the other numbers has no bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_soft: bool,
    /// `token_bucket`, `fixed_window`, `first_use_window`, `rolling_window` or `slots`. How many requests get slots within a time depends on how long each
    /// keeps its own.
    pub kind: &'static str,
    /// Tokens refilled in each period.
    pub rate: u64,
    /// The period.
    pub period_ms: u64,
    /// The days on which windows open and the time zone, such as `month 15 America/Sao_Paulo`; the period is then that of the longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calendar: Option<String>,
    /// Maximum tokens at once, and so the largest cost that can pass.
    pub capacity: u64,
    /// What `consume` gets in the long run, if called all the time. Less than the rate if the capacity is too small for it. `None` for slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_run: Option<LongRun>,
    /// Maximum tokens that `consume` gets at once.
    pub burst: u64,
    /// Maximum tokens that `consume` gets within the period of each limit of the policy, shortest first; if in shadow, of each limit in
    /// shadow.
    pub within: Vec<Admitted>,
    /// Maximum time for an empty bucket to fill. `None` if it never does.
    pub full_after_ms: Option<u64>,
    /// What debt adds, if the limit allows any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debt: Option<DebtFacts>,
    /// What a crash may cost a key.
    pub crash: CrashCost,
    /// What a key may get again when the limit is renamed, because its bucket then starts anew.
    pub change_grants: u64,
}

/// What bans for being refused often mean for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BanFacts {
    /// The most refusals within any `within_ms` for which no key is banned.
    pub tolerated: u8,
    /// In milliseconds.
    pub within_ms: u64,
    /// How long the first ban lasts, in milliseconds.
    pub first_ms: u64,
    /// How many times as long as the one before each further ban lasts.
    pub grow: u8,
    /// How long a ban lasts at most, in milliseconds.
    pub longest_ms: u64,
    /// How many times a key that never stops is let in again in its first day.
    pub let_in_within_day: u64,
}

impl BanFacts {
    pub(super) fn of(terms: BanTerms) -> Self {
        let BanTerms { after, within_ms, for_ms, grow, max_ms, .. } = terms;
        let (mut over_at, mut length_ms, mut let_in) = (0_u64, None, 0_u64);
        loop {
            let ms = terms.length_ms(length_ms);
            if length_ms == Some(ms) {
                // All further ones are as long.
                let rest = DAY_MS.saturating_sub(1).saturating_sub(over_at);
                let_in = let_in.saturating_add(rest.checked_div(ms).unwrap_or(0));
                break;
            }
            over_at = over_at.saturating_add(ms);
            if over_at >= DAY_MS {
                break;
            }
            (length_ms, let_in) = (Some(ms), let_in.saturating_add(1));
        }
        let longest_ms = if grow > 1 { max_ms } else { for_ms };
        let tolerated = after.saturating_sub(1);
        Self { tolerated, within_ms, first_ms: for_ms, grow, longest_ms, let_in_within_day: let_in }
    }
}

const DAY_MS: u64 = 86_400_000;

/// Tokens per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LongRun {
    /// Tokens in each period.
    pub tokens: u128,
    /// The period.
    pub period_ms: u128,
}

/// Maximum admitted within a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Admitted {
    /// The length, both ends included; of a rolling window without its end, at which all of it may be back.
    pub period_ms: u64,
    /// Maximum tokens.
    pub tokens: u128,
}

/// What reserving, borrowing and charging add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DebtFacts {
    /// The largest debt.
    pub max_debt: u64,
    /// Maximum tokens that all verbs together get at once.
    pub burst: u64,
    /// Maximum tokens that all verbs together get within the period of each limit of the policy.
    pub within: Vec<Admitted>,
    /// Maximum time to pay the deepest debt. `None` if it is never paid.
    pub paid_after_ms: Option<u64>,
}

/// What a crash may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CrashCost {
    /// Maximum tokens that a key may lose.
    pub tokens: u64,
    /// Maximum time for them to refill: 0 if there are none, `None` if they never do.
    pub back_after_ms: Option<u64>,
}

/// The facts of each limit: enforced ones, then those in shadow.
pub(super) fn of(policy: &Policy) -> Vec<LimitFacts> {
    let of_all = |limits: &[NamedLimit], is_enforced: bool| {
        let refilled = limits.iter().filter(|limit| !limit.is_slots());
        let mut periods: Vec<_> = refilled.map(|limit| limit.limit().config().period_ms).collect();
        sort_by(&mut periods, u64::cmp);
        periods.dedup();
        limits.iter().map(|limit| facts(limit, is_enforced, &periods)).collect::<Vec<_>>()
    };
    let mut all = of_all(policy.limits(), true);
    all.extend(of_all(policy.shadow_limits(), false));
    all
}

/// What all enforced limits together admit, for the period of each. Empty if there is only one.
pub(super) fn together(limits: &[LimitFacts]) -> Vec<Admitted> {
    let enforced: Vec<_> = limits.iter().filter(|limit| limit.is_enforced && limit.kind != SLOTS).collect();
    let [first, others @ ..] = &*enforced else { return Vec::new() };
    if others.is_empty() {
        return Vec::new();
    }
    let least = |(index, admitted): (usize, &Admitted)| {
        let theirs = others.iter().filter_map(|limit| limit.within.get(index)).map(|theirs| theirs.tokens);
        Admitted { tokens: theirs.fold(admitted.tokens, u128::min), ..*admitted }
    };
    first.within.iter().enumerate().map(least).collect()
}

/// Maximum time to pay the deepest debt.
pub(super) fn debt_paid_after_ms(limit: &Limit) -> Option<u64> {
    if let Some(calendar) = &limit.config().calendar {
        return in_windows(calendar, limit.config(), limit.config().max_debt);
    }
    let (full, start) = full_at_start(limit);
    let indebted = limit.lowered(&limit.lowered(&full, limit.config().capacity), limit.config().max_debt);
    match limit.peek(&indebted, start, 0) {
        Decision::Wait { retry_at } => Some(retry_at.abs_diff(start)),
        Decision::Allow { .. } => Some(0),
        Decision::Never { .. } => None,
    }
}

/// What a crash may cost a key under this limit.
pub(super) fn crash_cost(limit: &NamedLimit) -> CrashCost {
    let tokens = limit.write_ahead();
    CrashCost { tokens, back_after_ms: back_after_ms(limit, tokens) }
}

fn facts(limit: &NamedLimit, is_enforced: bool, periods: &[u64]) -> LimitFacts {
    let config = *limit.limit().config();
    let Config { rate, period_ms, capacity, max_debt, calendar, is_soft, .. } = config;
    let worst = Worst::of_consuming(&config).in_grains(limit.grain_ms());
    let within = |worst: Worst| {
        periods.iter().map(|&period_ms| Admitted { period_ms, tokens: worst.within(period_ms) }).collect::<Vec<_>>()
    };
    let is_refilled = !limit.is_slots();
    LimitFacts {
        name: limit.name().map(str::to_owned),
        is_enforced: is_enforced && !is_soft,
        is_soft,
        kind: limit.kind(),
        rate,
        period_ms,
        calendar: calendar.map(|calendar| calendar.to_string()),
        capacity,
        long_run: is_refilled.then_some(LongRun { tokens: worst.per_cycle, period_ms: worst.cycle_ms }),
        burst: worst.burst,
        within: if is_refilled { within(worst) } else { Vec::new() },
        full_after_ms: back_after_ms(limit, capacity),
        debt: (max_debt > 0 && !is_soft).then(|| {
            let worst = Worst::of_all_verbs(&config);
            let paid_after_ms = debt_paid_after_ms(limit.limit());
            DebtFacts { max_debt, burst: worst.burst, within: within(worst), paid_after_ms }
        }),
        crash: crash_cost(limit),
        change_grants: config.initial.unwrap_or(capacity),
    }
}

/// Maximum time for a bucket to fill that lacks this many tokens.
fn back_after_ms(named: &NamedLimit, tokens: u64) -> Option<u64> {
    let limit = named.limit();
    if limit.is_rolling() && tokens > 0 {
        return Some(limit.config().period_ms.saturating_add(named.grain_ms().saturating_sub(1)));
    }
    if let Some(calendar) = &limit.config().calendar {
        return in_windows(calendar, limit.config(), tokens);
    }
    let (full, start) = full_at_start(limit);
    limit.full_at(&limit.lowered(&full, tokens), start).map(|at| at.abs_diff(start))
}

/// Maximum time for windows to add this many tokens.
fn in_windows(calendar: &Calendar, config: &Config, tokens: u64) -> Option<u64> {
    match (tokens, config.rate) {
        (0, _) => Some(0),
        (_, 0) => None,
        (tokens, rate) => Some(longest_ms(calendar, tokens.div_ceil(rate))),
    }
}

/// A full bucket at a moment when a window has just opened: then the next takes longest to open.
fn full_at_start(limit: &Limit) -> (State, i64) {
    let start = limit.config().offset_ms.unwrap_or(0).cast_signed();
    let mut state = limit.new_state(start, 0);
    let _granted = limit.reset(&mut state, start);
    (state, start)
}

/// `100 per 1m`.
pub(super) fn tokens_per(tokens: u128, period_ms: u128) -> String {
    format!("{tokens} per {}", length::shown(u64::try_from(period_ms).unwrap_or(u64::MAX)))
}
