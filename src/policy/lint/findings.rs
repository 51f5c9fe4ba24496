//! Probable mistakes in policies, and surprises for their owners.

use serde::{Serialize, Serializer};

use super::facts::{CrashCost, crash_cost, debt_paid_after_ms, tokens_per};
use super::worst::{Worst, gcd};
use crate::length::{self, DAY_MS};
use crate::limit::{Config, Kind};
use crate::policy::calendar::shown_period;
use crate::policy::frontend_terms::FrontendTerms;
use crate::policy::named::Policy;
use crate::policy::named_limit::NamedLimit;
use crate::policy::object_terms::ReservationTerms;
use crate::policy::on_error::{Cause, OnError};

/// A probable mistake in a policy, or something its owner should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How serious it is.
    pub level: Level,
    /// The kind of finding. Codes do not change.
    pub code: Code,
    /// The limit it is about, if it is about one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The finding, in a sentence.
    pub text: String,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Probably a mistake.
    Warning,
    /// Possibly intended, but surprising.
    Note,
}

/// The kind of a finding: in JSON a [word](Code::word).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// Warning: no request passes.
    RefusesAll,
    /// Note: only reservations, borrowing and charges pass.
    OnlyDebt,
    /// Note: at rate 0 a budget is spent once.
    NeverRefills,
    /// Warning: the capacity is too small for the rate.
    RateNotReached,
    /// Note: twice as much passes where two windows meet.
    WindowEdge,
    /// Note: rows are never deleted, because a new key has less than an old one.
    KeptForever,
    /// Warning: at rate 0 a debt is never paid.
    DebtNeverPaid,
    /// Warning: the deepest debt takes more than a day, a window and the lifetime of a reservation to be paid.
    LongDebt,
    /// Warning: a crash may cost more than a quarter of the capacity, for more than ten seconds.
    CostlyCrash,
    /// Note: another limit is tighter at every moment.
    NeverDecides,
    /// Warning: the windows of two limits do not open together.
    WindowsNotAligned,
    /// Note: the limit is soft, in shadow or off.
    NotEnforced,
    /// Note: requests pass uncounted when no decision can be made.
    FailsOpen,
    /// Warning: a flood opens the limit that it meets.
    FloodOpens,
    /// Note: what is lost by dividing a budget into shards.
    DividedCapacity,
    /// Warning: each refused request calls all shards.
    RefusedByEachShard,
    /// Note: a key may have no room for another `Idempotency-Key`.
    ManyIdempotencyKeys,
    /// Note: a key cannot have as many reservations as there are slots.
    ManySlots,
}

impl Code {
    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::RefusesAll => "refuses_all",
            Self::OnlyDebt => "only_debt",
            Self::NeverRefills => "never_refills",
            Self::RateNotReached => "rate_not_reached",
            Self::WindowEdge => "window_edge",
            Self::KeptForever => "kept_forever",
            Self::DebtNeverPaid => "debt_never_paid",
            Self::LongDebt => "long_debt",
            Self::CostlyCrash => "costly_crash",
            Self::NeverDecides => "never_decides",
            Self::WindowsNotAligned => "windows_not_aligned",
            Self::NotEnforced => "not_enforced",
            Self::FailsOpen => "fails_open",
            Self::FloodOpens => "flood_opens",
            Self::DividedCapacity => "divided_capacity",
            Self::RefusedByEachShard => "refused_by_each_shard",
            Self::ManyIdempotencyKeys => "many_idempotency_keys",
            Self::ManySlots => "many_slots",
        }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// All findings: about each limit, about limits together, about the policy.
pub(super) fn of(policy: &Policy) -> Vec<Finding> {
    let asked = policy.limits().iter().chain(policy.shadow_limits());
    let mut findings = Vec::new();
    for limit in asked {
        findings.extend(of_limit(policy, limit));
    }
    for (index, limit) in policy.limits().iter().enumerate() {
        let (before, after) = policy.limits().split_at(index);
        // Of two equal limits, the second is redundant.
        let is_tighter = |other: &&NamedLimit| is_always_tighter(other, limit);
        let tighter = before
            .iter()
            .find(is_tighter)
            .or_else(|| after.iter().skip(1).find(|other| is_tighter(other) && !is_always_tighter(limit, other)));
        if let Some(tighter) = tighter {
            let text = format!(
                "never decides a cost that is the same in every limit, because {} is tighter at every moment; it matters only if \
                 costs name it",
                tighter.full_name()
            );
            findings.push(finding(Level::Note, Code::NeverDecides, limit, text));
        }
        findings.extend(before.iter().filter_map(|other| not_aligned(other, limit)));
    }
    findings.extend(policy.shadow_limits().iter().map(|limit| {
        let text = if limit.is_slots() {
            "is in shadow: it says what it would refuse, and refuses nothing; once it is enforced, only reservations take tokens: \
             other modes and batches are answered 400"
        } else {
            "is in shadow: it says what it would refuse, and refuses nothing"
        };
        not_enforced(limit.name().map(str::to_owned), text)
    }));
    let off = policy.off_limits().iter().cloned();
    findings.extend(off.map(|limit| not_enforced(limit, "is off: it is ignored and counts nothing")));
    findings.extend(of_shards(policy));
    findings.extend(many_idempotency_keys(policy));
    // A policy that enforces nothing lets every request pass, whatever fails.
    if policy.is_enforced() {
        findings.extend(of_errors(policy.frontend().on_error));
    }
    findings
}

fn not_enforced(limit: Option<String>, text: &str) -> Finding {
    Finding { level: Level::Note, code: Code::NotEnforced, limit, text: text.to_owned() }
}

fn of_limit(policy: &Policy, limit: &NamedLimit) -> Vec<Finding> {
    let config = limit.limit().config();
    let &Config { kind, rate, period_ms, capacity, max_debt, initial, .. } = config;
    let worst = Worst::of_consuming(config);
    let mut findings = Vec::new();
    let mut push = |level, code, text| findings.push(finding(level, code, limit, text));
    if config.is_soft {
        let text = "is soft: it counts below zero and says by how much, and refuses nothing";
        push(Level::Note, Code::NotEnforced, text.to_owned());
    } else if worst.burst == 0 && max_debt == 0 {
        let why = if kind == Kind::RollingWindow {
            "the rate is 0"
        } else if capacity == 0 {
            "the capacity is 0"
        } else {
            "nothing is there at first, and nothing comes back"
        };
        push(Level::Warning, Code::RefusesAll, format!("every request is refused: {why}"));
        return findings;
    }
    if limit.is_slots() {
        let max = ReservationTerms::MAX_OPEN;
        if capacity > max as u64 {
            let text =
                format!("a key has at most {max} open reservations, so at one slot each, only {max} can be used");
            push(Level::Note, Code::ManySlots, text);
        }
        return findings;
    }
    if capacity == 0 && !config.is_soft {
        let takes_no_advance = kind == Kind::FirstUseWindow || config.calendar.is_some();
        let passes = if takes_no_advance { "charges" } else { "reservations, borrowing and charges" };
        let text = format!("with a capacity of 0, consuming is always refused: only {passes} pass");
        push(Level::Note, Code::OnlyDebt, text);
    } else if worst.loses_much() && !config.is_soft {
        let (written, reached) =
            (format!("{rate} per {}", shown_period(config)), tokens_per(worst.per_cycle, worst.cycle_ms));
        let why = match kind {
            Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow => {
                "the rest of each window does not fit".to_owned()
            }
            Kind::TokenBucket => "what comes back in a millisecond and does not fit is lost".to_owned(),
        };
        let text = format!(
            "of {written}, only {reached} can be consumed in the long run: above the capacity of {capacity}, {why}"
        );
        push(Level::Warning, Code::RateNotReached, text);
    }
    if rate == 0 {
        let text = "with a rate of 0 a spent budget never refills, and its row is never deleted";
        push(Level::Note, Code::NeverRefills, text.to_owned());
    } else if initial.is_some_and(|initial| initial < capacity) {
        let text =
            "with fewer initial tokens than the capacity, a key's row is never deleted: the key would start with less";
        push(Level::Note, Code::KeptForever, text.to_owned());
    }
    if !matches!(kind, Kind::TokenBucket | Kind::RollingWindow)
        && rate > 0
        && capacity > 0
        && !config.is_soft
        && worst.within(1) > worst.burst.into()
    {
        let (most, edge) = (worst.within(1), length::shown(1));
        let text = format!("{most} can pass within {edge}, where two windows meet; a token bucket has no such edge");
        push(Level::Note, Code::WindowEdge, text);
    }
    if max_debt > 0 && !config.is_soft {
        let window_ms = if kind == Kind::TokenBucket { 0 } else { period_ms };
        let longest = DAY_MS.max(window_ms).max(policy.object().reservations.ttl_ms);
        match debt_paid_after_ms(limit.limit()) {
            None => {
                let text =
                    format!("with a rate of 0 a debt of up to {max_debt} is never paid: the key is refused for good");
                push(Level::Warning, Code::DebtNeverPaid, text);
            }
            Some(ms) if ms > longest => {
                let text = format!(
                    "a debt of {max_debt} takes {} to be paid, and until then the key is refused",
                    length::shown(ms)
                );
                push(Level::Warning, Code::LongDebt, text);
            }
            Some(_) => {}
        }
    }
    let CrashCost { tokens, back_after_ms } = crash_cost(limit);
    if tokens > capacity / 4 && back_after_ms.is_none_or(|ms| ms > LONG_LOSS_MS) {
        let back = back_after_ms
            .map_or_else(|| "never come back".to_owned(), |ms| format!("are back after {}", length::shown(ms)));
        let text = format!("a crash may cost a key {tokens} of {capacity}, which {back}: choose a smaller write_ahead");
        push(Level::Warning, Code::CostlyCrash, text);
    }
    findings
}

/// Whether `tighter` refuses everything that `limit` refuses: costs are the same in both and taken by `consume`, and both start full. In
/// doubt, `false`.
fn is_always_tighter(tighter: &NamedLimit, limit: &NamedLimit) -> bool {
    if [tighter, limit].iter().any(|limit| limit.is_slots() || limit.limit().is_soft()) {
        return false;
    }
    let (a, b) = (tighter.limit().config(), limit.limit().config());
    if (a.calendar.is_some() || b.calendar.is_some()) && a.kind != b.kind {
        return false; // windows of a calendar differ in length
    }
    let is_slower = product(a.rate, b.period_ms) <= product(b.rate, a.period_ms);
    let initial = |config: &Config| config.initial.unwrap_or(config.capacity);
    let starts_full = b.initial.is_none_or(|initial| initial == b.capacity);
    match (a.kind, b.kind) {
        // The level of `a` is never above that of `b`: not at first, and it gains less each millisecond.
        (Kind::TokenBucket, Kind::TokenBucket) => {
            is_slower && a.capacity <= b.capacity && initial(a) <= initial(b) && a.max_debt <= b.max_debt
        }
        // The same, if `b` gets more whenever `a` gets something.
        (Kind::FixedWindow, Kind::FixedWindow) => {
            is_aligned(b, a)
                && a.rate <= b.rate
                && a.capacity <= b.capacity
                && initial(a) <= initial(b)
                && a.max_debt <= b.max_debt
        }
        // The most that passes `a` within any time is less than `b` is sure to have refilled by then.
        (Kind::FixedWindow, Kind::TokenBucket) => {
            let at_edge = u128::from(a.capacity).saturating_add(a.rate.min(a.capacity).into());
            a.max_debt == 0 && is_slower && starts_full && at_edge <= b.capacity.into()
        }
        (Kind::TokenBucket, Kind::FixedWindow) => {
            let refilled = product(a.rate, b.period_ms.saturating_sub(1)).checked_div(a.period_ms.into()).unwrap_or(0);
            let in_window = refilled.saturating_add(a.capacity.into());
            a.max_debt == 0 && is_slower && starts_full && in_window <= b.capacity.into()
        }
        // Each lacks what was taken in its own period.
        (Kind::RollingWindow, Kind::RollingWindow) => {
            let is_later = a.period_ms >= b.period_ms.saturating_add(limit.grain_ms());
            a.rate <= b.rate && is_later || a == b && tighter.grain_ms() == limit.grain_ms()
        }
        // When something comes back depends on what was granted.
        (Kind::FirstUseWindow | Kind::RollingWindow, _) | (_, Kind::FirstUseWindow | Kind::RollingWindow) => false,
    }
}

/// Whether a window of `inner` opens whenever one of `outer` does.
fn is_aligned(inner: &Config, outer: &Config) -> bool {
    if inner.calendar.is_some() || outer.calendar.is_some() {
        return match (inner.calendar, outer.calendar) {
            (Some(inner), Some(outer)) => inner.opens_with(&outer),
            // Midnights are on quarters of an hour.
            (None, Some(_)) => 900_000_u64.is_multiple_of(inner.period_ms) && inner.offset_ms == Some(0),
            _ => false,
        };
    }
    let is_multiple = outer.period_ms.is_multiple_of(inner.period_ms);
    let opens = |config: &Config| config.offset_ms.map(|offset_ms| offset_ms.checked_rem(inner.period_ms).unwrap_or(0));
    // Without offsets, both have the key's phase.
    is_multiple && opens(inner) == opens(outer)
}

fn not_aligned(first: &NamedLimit, second: &NamedLimit) -> Option<Finding> {
    let (a, b) = (first.limit().config(), second.limit().config());
    let are_windows = [a, b].iter().all(|config| config.kind == Kind::FixedWindow && !config.is_soft);
    if !are_windows || is_aligned(a, b) || is_aligned(b, a) {
        return None;
    }
    let common = gcd(a.period_ms.into(), b.period_ms.into()).max(1);
    let when = match (a.offset_ms, b.offset_ms) {
        _ if a.calendar.is_some() && b.calendar.is_some() => {
            "on different days, or at midnight of different time zones".to_owned()
        }
        _ if a.calendar.is_some() || b.calendar.is_some() => {
            "at moments that have nothing to do with each other: one follows a calendar, the other has a period"
                .to_owned()
        }
        (Some(_), None) | (None, Some(_)) => {
            "at moments that have nothing to do with each other: one has an offset, the other the phase of the key"
                .to_owned()
        }
        (a_ms, b_ms) => {
            let apart = a_ms.unwrap_or(0).abs_diff(b_ms.unwrap_or(0));
            if u128::from(apart).checked_rem(common) == Some(0) {
                let together = product(a.period_ms, b.period_ms).checked_div(common).unwrap_or(0);
                format!("together only every {}", length::shown(u64::try_from(together).unwrap_or(u64::MAX)))
            } else {
                "never at the same moment".to_owned()
            }
        }
    };
    let text = format!("its windows and those of {} open {when}", first.full_name());
    Some(finding(Level::Warning, Code::WindowsNotAligned, second, text))
}

fn of_shards(policy: &Policy) -> Vec<Finding> {
    let count = policy.declared_shards();
    if count < 2 {
        return Vec::new();
    }
    let divided = policy.limits().iter().map(|limit| {
        let capacity = limit.limit().config().capacity;
        // Computed without the shards themselves: a page that only lints should not include the code for them.
        let most = capacity.div_ceil(count.into());
        let text = format!(
            "in {count} shards, a capacity of {capacity} is {most} at most for one request: a larger cost never passes, and a cost c \
             may be refused while all shards together have up to {count} * (c - 1)"
        );
        finding(Level::Note, Code::DividedCapacity, limit, text)
    });
    let mut findings: Vec<_> = divided.collect();
    if policy.frontend().refusal_cache_ms == 0 {
        let text = format!("with a refusal_cache of 0s, each refused request asks all {count} shards");
        findings.push(Finding { level: Level::Warning, code: Code::RefusedByEachShard, limit: None, text });
    }
    findings
}

/// With a longer lifetime than usual, a key may be granted more requests than it remembers.
fn many_idempotency_keys(policy: &Policy) -> Option<Finding> {
    let ttl_ms = policy.frontend().idempotency_ttl_ms;
    let max = FrontendTerms::MAX_IDEMPOTENCY_KEYS;
    let refusing = policy.limits().iter().filter(|limit| !limit.is_slots() && !limit.limit().is_soft());
    let granted = refusing.map(|limit| {
        let &Config { rate, period_ms, capacity, .. } = limit.limit().config();
        let refilled = product(rate, ttl_ms).checked_div(period_ms.into()).unwrap_or(0);
        refilled.saturating_add(capacity.into())
    });
    if ttl_ms <= FrontendTerms::IDEMPOTENCY_TTL_MS || granted.min().is_some_and(|most| most <= max as u128) {
        return None;
    }
    let ttl = length::shown(ttl_ms);
    let each = ttl_ms.checked_div(max as u64).unwrap_or(0);
    let text = format!(
        "with an idempotency_ttl of {ttl}, a key has room for an Idempotency-Key every {each} ms, {max} in all: further ones are \
         answered 409"
    );
    Some(Finding { level: Level::Note, code: Code::ManyIdempotencyKeys, limit: None, text })
}

fn of_errors(on_error: OnError) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut push = |level, code, text| findings.push(Finding { level, code, limit: None, text });
    if on_error != OnError::CLOSED {
        let text = format!("when no decision can be made, requests pass uncounted: it fails open on {on_error}");
        push(Level::Note, Code::FailsOpen, text);
    }
    if on_error.opens(Cause::Overloaded) {
        let text = "callers cause `overloaded` themselves, so a flood opens the limit that should stop it";
        push(Level::Warning, Code::FloodOpens, text.to_owned());
    }
    findings
}

fn finding(level: Level, code: Code, limit: &NamedLimit, text: String) -> Finding {
    Finding { level, code, limit: limit.name().map(str::to_owned), text }
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a).saturating_mul(b.into())
}

/// Tokens that refill sooner are hardly missed.
const LONG_LOSS_MS: u64 = 10_000;
