//! Buckets whose numbers change, either because a request brings others or because an operator changes them.
//!
//! A bucket keeps an account for each of the latest [`MAX_ACCOUNTS`] numbers of a limit. The numbers of the request decide, by their own
//! account; what they grant is charged to all. So an account reflects all grants since it was opened, under whichever numbers, and a caller
//! that alternates finds each as low as if its numbers had been in force all the time.
//!
//! A new account starts as if the tokens already spent had been spent of its own capacity: a customer who buys a larger plan has the rest
//! of it at once, and one who goes back to a smaller plan does not get its tokens twice. Spending above its capacity is not owed, except to a
//! soft limit, which says by how much it is exceeded.
//!
//! # An operator's numbers
//!
//! They are in force from a moment on, and time before it counts at the previous numbers. With `C` and `R` the largest capacity and the
//! fastest refill of all numbers that the bucket has had, each account obeys
//!
//! ```text
//! level(t) + granted from s to t <= C + R (t - s)      for all s <= t
//! ```
//!
//! * Time passes: the level rises by no more than `R`. A grant: the level falls by as much as the second term rises. Where it stops at zero
//!   or at a debt instead, the account in force, which obeys the law, is no lower.
//! * A new account starts with the level of the account in force plus the difference of the capacities, capped at the best account's level
//!   plus the excess of its capacity over `C`: the bound grows by as much.
//!
//! So no interval has more than the largest capacity and the fastest refill, if all refill in step: buckets, or windows that open together.
//! Otherwise each change can add the refill of one window's length: the next numbers' window may open soon after, and the state of a window
//! does not say whether it was last requested before the change. Where faster numbers never have less capacity, as in most
//! price plans, that is what the most generous of them grant alone.
//!
//! # Numbers in requests
//!
//! The moment from which they apply is unknown, so the time since the last grant counts at the request's numbers. A caller may choose them
//! anew each time, so the law is stricter. Over any interval, all numbers together grant at most what the most generous of them would grant
//! alone: its capacity plus its refill, plus, by verbs that make debt, the largest `max_debt` of any. The proof:
//!
//! Let `G(s, t)` be what was granted from `s` to `t`, and `B(s, t)` the largest capacity plus refill from `s` to `t` of any numbers
//! requested of the bucket. Each account obeys
//!
//! ```text
//! level(t) + G(s, t) + its refill from t to u <= B(s, u)      for all s <= t <= u
//! ```
//!
//! * Time passes: the level rises by its refill at most. A grant: the level falls by as much as `G` rises.
//! * With no grants since `s`, the left side is at most the account's own capacity and refill.
//! * So the law holds, because the level of the granting numbers is not below zero afterwards, or not below the debt that they allow.
//!
//! A level for the numbers X, taken over from the account L at the moment `t`, must obey it too. Let Z be the numbers whose capacity and
//! refill are `B(s, t)`. If Z refills as fast as X, all of L's tokens stay within Z's bound. If X refills faster than Z, or as fast, it is
//! within X's own bound once the excess of Z's capacity over X's is taken from L's level: many slow tokens are not followed by fast ones.
//! If X's capacity is the larger one, as much may be added. Z is unknown, since it depends on `s`; so [`excess`] takes the maximum over
//! all, or adds the minimum. It takes less as time passes: an interval with a grant in it began before the last of them, and X has refilled
//! more than Z since.
//!
//! Only numbers without an account are taken over to: those with one are among Z, and nothing may be added for them.
//!
//! None of this needs the level to stop at the capacity after the last grant. So L's level is taken without that cap, and idle time counts.
//!
//! It also bounds how low an account needs to be: it is never charged below the level that it would take over now from numbers with nothing
//! left. So it is full again soon after the last grant, whatever others were granted.
//!
//! What a settlement takes above its reservation is not a grant: it was already used. So it may exceed the bound, but later grants do not.
//!
//! If the refills of X and Z are out of step, because one of them is a window, they may differ by one more window's tokens, and if its windows
//! are those of a calendar, which differ in length, by a quarter of one more.
//!
//! # More numbers than accounts
//!
//! When an account is closed, [`excess`] forgets its numbers. If other known numbers have at least its capacity and refill, `B` is the same
//! without it, so such an account is closed first, otherwise the least recently used. Where faster numbers never have less capacity, as in
//! most price plans, the law so holds for any number of them. In any case, all of them together grant no more than the largest capacity and
//! the fastest refill.
//!
//! A bucket that is full under all its accounts is forgotten, and the next numbers start full.

use super::row::NamedState;
use crate::limit::{Calendar, Carry, Config, Cuts, Kind, Limit, Snapshot, State, Verb};
use crate::policy::Policy;

/// Maximum buckets of a key that have numbers from requests and are not full again. Callers choose their names. Each may have 64 accounts,
/// which take 27 KB of memory, so all of them take 7 MB of the 128 that an object shares with others.
pub const MAX_INLINE: usize = 256;

/// Maximum accounts of one limit.
pub(super) const MAX_ACCOUNTS: usize = 8;

/// Maximum accounts of limits that the request's numbers do not have: enough for all limits of as many numbers. Further ones have other
/// names, and are closed in order of last use.
pub const MAX_OTHERS: usize = 56;

/// A change to the deciding account, and so to all.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Take(u64),
    Refund(u64),
    Reset,
}

impl Change {
    /// The change by `verb`, if it moved `tokens` of the requested `cost`.
    pub(super) const fn of(verb: Verb, cost: u64, tokens: u64) -> Self {
        match verb {
            Verb::Refund => Self::Refund(cost),
            Verb::Reset => Self::Reset,
            _ => Self::Take(tokens),
        }
    }

    /// Applies it to the accounts of the limit's other numbers, after its own account has become `state`. `is_inline`: numbers come with
    /// requests. Returns whether any account changed.
    pub(super) fn apply_to_others(
        self,
        (name, limit): (Option<&str>, &Limit),
        state: State,
        is_inline: bool,
        others: &mut [NamedState],
        now: i64,
    ) -> bool {
        if others.is_empty() {
            return false;
        }
        let floor = Floor::of((name, limit), &state, is_inline, others);
        let mut has_changed = false;
        for account in others.iter_mut().filter(|account| account.name.as_deref() == name) {
            let limit = account.limit;
            let after = self.apply(&limit, account.state, now);
            let floor = floor.above(&limit, &account.state, &after, now);
            if let Some(cuts) = &mut account.cuts {
                self.apply_to_cuts(cuts, &limit, &account.state, &after, now);
                if let Some(floor) = &floor {
                    cuts.raise_to(floor);
                }
            }
            let after = floor.unwrap_or(after);
            has_changed |= after != account.state;
            account.state = after;
        }
        has_changed
    }

    /// Applies it to what depends on open reservations, of an account that went from `before` to `after`.
    pub(super) fn apply_to_cuts(self, cuts: &mut Cuts, limit: &Limit, before: &State, after: &State, now: i64) {
        match self {
            Self::Take(_) => cuts.take(limit, before, after, now),
            Self::Refund(tokens) => cuts.refund(limit, tokens, now),
            Self::Reset => cuts.reset(*after),
        }
    }

    fn apply(self, limit: &Limit, state: State, now: i64) -> State {
        match self {
            Self::Take(0) => state,
            Self::Take(tokens) => limit.lowered(&limit.refilled(&state, now), tokens),
            Self::Refund(tokens) => limit.decide(state, now, tokens, Verb::Refund).1,
            Self::Reset => limit.decide(state, now, 0, Verb::Reset).1,
        }
    }
}

/// Lower bound for the accounts of a limit's other numbers after a charge. The account in force obeys the law, so none needs to be lower.
pub(super) struct Floor {
    /// Level of the account in force, if negative; else 0.
    owed: i64,
    /// All known numbers, if they come with requests, or if windows among them open at different moments.
    numbers: Option<Vec<Limit>>,
}

impl Floor {
    /// The bound after the account in force has become `state`.
    pub(super) fn of(
        (name, limit): (Option<&str>, &Limit),
        state: &State,
        is_inline: bool,
        others: &[NamedState],
    ) -> Self {
        let of_name = others.iter().filter(|account| account.name.as_deref() == name);
        let numbers: Vec<_> = of_name.map(|account| account.limit).chain([*limit]).collect();
        let is_off_step = |other: &Limit| !is_in_step(limit.config(), other.config());
        let is_strict = is_inline || numbers.iter().any(is_off_step);
        Self { owed: limit.snapshot(state).tokens.min(0), numbers: is_strict.then_some(numbers) }
    }

    /// The state to use instead of `after`, if the charge made it too low. A soft limit locks nobody out, and counts all.
    pub(super) fn above(&self, limit: &Limit, before: &State, after: &State, now: i64) -> Option<State> {
        if limit.is_soft() {
            return None;
        }
        let least = match &self.numbers {
            Some(numbers) => {
                let excess = numbers.iter().map(|other| excess(other.config(), limit.config(), 0)).max().unwrap_or(0);
                i64::try_from(i128::from(self.owed).saturating_sub(excess)).unwrap_or(i64::MIN)
            }
            // Or its level before.
            None => self.owed.min(limit.snapshot(&limit.refilled(before, now)).tokens),
        };
        let Snapshot { tokens, at, .. } = limit.snapshot(after);
        let is_enough = tokens >= least || after == before;
        if is_enough { None } else { limit.restored(&Snapshot { tokens: least, drops: 0, at }) }
    }
}

/// The accounts of a request's numbers, in the order of `policy`, then the others. `old` has all previous ones, the last requested first.
pub(super) fn of_request(old: Vec<NamedState>, policy: &Policy, now: i64, phase: u64) -> Vec<NamedState> {
    let limits = policy.limits().iter().map(|named| (named.account(), named.limit()));
    let begin = |limit: &Limit, known: &[&NamedState]| {
        let seen: Vec<_> = known.iter().map(|account| Refills::of(&account.limit, &account.state, now)).collect();
        // Each of them obeys the law.
        highest(known.iter().map(|from| taken_over(limit, from, &seen, now, phase)), now)
    };
    let mut all = accounts(old, limits, begin, |limit| limit.new_state(now, phase));
    all.truncate(policy.limits().len().saturating_add(MAX_OTHERS));
    all
}

/// The accounts of these numbers, in their order, then the others. `old` has all previous ones, for each name the one in force first.
/// `begin` makes a new account from all those of its name, if any; `new` makes the first.
pub(super) fn accounts<'a>(
    old: Vec<NamedState>,
    limits: impl IntoIterator<Item = (Option<&'a str>, &'a Limit)>,
    begin: impl Fn(&Limit, &[&NamedState]) -> Option<NamedState>,
    new: impl Fn(&Limit) -> State,
) -> Vec<NamedState> {
    let mut all: Vec<NamedState> = Vec::with_capacity(old.len().saturating_add(1));
    for (name, limit) in limits {
        let known: Vec<_> = old.iter().filter(|account| account.name.as_deref() == name).collect();
        let own = known.iter().find(|account| account.limit == *limit).copied().cloned();
        let first = || NamedState::new(name, limit, new(limit));
        all.push(own.or_else(|| begin(limit, &known)).unwrap_or_else(first));
    }
    let asked = all.len();
    for account in old {
        if !all.iter().any(|other| other.name == account.name && other.limit == account.limit) {
            let name = account.name.clone();
            all.push(account);
            if all.iter().filter(|other| other.name == name).count() > MAX_ACCOUNTS {
                close_one(&mut all, asked, name.as_deref());
            }
        }
    }
    all
}

/// Closes an account of that name which is not among the first `asked` ones: one that another is as generous as, or else the least recently
/// used one that is not the largest.
fn close_one(all: &mut Vec<NamedState>, asked: usize, name: Option<&str>) {
    let of_name = || all.iter().enumerate().filter(|(_, account)| account.name.as_deref() == name);
    let others = || of_name().rev().filter(|(index, _)| *index >= asked);
    let is_dominated = |(index, account): &(usize, &NamedState)| {
        of_name().any(|(other, known)| other != *index && is_as_generous(known.limit.config(), account.limit.config()))
    };
    let largest = of_name().map(|(_, account)| account.limit.config().capacity).max();
    let is_smaller = |(_, account): &(usize, &NamedState)| Some(account.limit.config().capacity) < largest;
    let closed = others().find(is_dominated).or_else(|| others().find(is_smaller)).or_else(|| others().next());
    if let Some((index, _)) = closed {
        all.remove(index);
    }
}

/// The account with the most tokens, among accounts of one limit.
fn highest(accounts: impl Iterator<Item = NamedState>, now: i64) -> Option<NamedState> {
    accounts.reduce(|one, other| match one.limit.surplus_over(&one.state, &other.state, now) {
        Some(_) => one,
        None => other,
    })
}

/// The first account for an operator's numbers that come into force at that moment, after these accounts, the one in force first. Frontends
/// with the previous numbers may have sent requests until `now`.
pub(super) fn succeeding(
    limit: &Limit,
    known: &[&NamedState],
    (at, now): (i64, i64),
    phase: u64,
) -> Option<NamedState> {
    let in_force = known.first()?;
    // A window's moment is its opening: only other accounts say when it was last requested.
    let at = known.iter().map(|account| account.at().min(now)).fold(at, Ord::max);
    let larger = |account: &NamedState| {
        i128::from(limit.config().capacity).saturating_sub(account.limit.config().capacity.into())
    };
    let above_all = known.iter().map(|account| larger(account)).min().unwrap_or(0).max(0);
    let begun = with_more(limit, in_force, larger(in_force), at, phase);
    if larger(in_force) <= above_all {
        return Some(begun);
    }
    let most = known.iter().map(|account| with_more(limit, account, larger(account).min(above_all), at, phase));
    let mut most = highest(most, at)?;
    most.lower_to(begun, at);
    Some(most)
}

/// Carries the account to other numbers at that moment, with `more` tokens added or taken away: up to the capacity, and into debt only if they
/// are soft, which lock nobody out.
fn with_more(limit: &Limit, from: &NamedState, more: i128, at: i64, phase: u64) -> NamedState {
    let NamedState { name, limit: old, state, cuts, .. } = from;
    let state = old.refilled(state, at);
    let left = i128::from(old.snapshot(&state).tokens).max(0);
    let excess = more.saturating_neg().min(if limit.is_soft() { i128::MAX } else { left });
    let state = lower_by(excess, limit, old, state, at, phase);
    let cuts = cuts.clone().map(|mut cuts| {
        cuts.refill(old, at);
        let newest = lower_by(excess, limit, old, *cuts.newest(), at, phase);
        cuts.take_over(limit, old, newest, excess, at);
        if old.is_rolling() { cuts.restarted(state) } else { cuts.in_window_of(limit, &state) }
    });
    NamedState { name: name.clone(), limit: *limit, state, cuts, log: from.log_for(limit) }
}

/// Whether `other` grants at least as much as `config` over any interval.
pub(super) fn is_as_generous(other: &Config, config: &Config) -> bool {
    let is_rolling = |config: &Config| config.kind == Kind::RollingWindow;
    if is_rolling(other) && is_rolling(config) {
        return other.capacity >= config.capacity && other.period_ms <= config.period_ms;
    }
    faster(other, config) >= 0 && other.capacity >= config.capacity && is_in_step(other, config)
}

/// The account that `limit` takes over from another. `seen` has all numbers with an account.
fn taken_over(limit: &Limit, from: &NamedState, seen: &[Refills<'_>], now: i64, phase: u64) -> NamedState {
    let NamedState { name, limit: old, state, cuts, .. } = from;
    // What refilled before a reservation was opened must not count as if it had come after.
    let state = cuts.as_ref().map_or(*state, |cuts| old.refilled(state, old.snapshot(cuts.newest()).at));
    let Snapshot { tokens, drops, at } = old.snapshot(&state);
    // Windows of one calendar are counted on their own clock.
    let idle_ms = old.own_ms(at, now);
    // A window's moment is its opening; the last grant came later.
    let quiet_ms = match old.config().kind {
        Kind::TokenBucket | Kind::RollingWindow => idle_ms,
        Kind::FixedWindow | Kind::FirstUseWindow => {
            let over_at = old.config().calendar.map(|calendar| calendar.window(at).1);
            let since_ms = |over_at: i64| now.saturating_sub(over_at).max(0).cast_unsigned();
            over_at.map_or_else(|| idle_ms.saturating_sub(old.config().period_ms), since_ms)
        }
    };
    // Spent tokens stay spent, and the time since counts at these numbers.
    let larger = i128::from(limit.config().capacity).saturating_sub(old.config().capacity.into());
    let left = i128::from(tokens).saturating_add((drops > 0).into()).max(0);
    let larger = larger.max(left.saturating_neg());
    let spent = more_since(limit.config(), old.config(), idle_ms, quiet_ms).saturating_add(larger).saturating_neg();
    // Rounding does not create debt.
    let spent = spent.min(if tokens < 0 { refill(old.config(), idle_ms) } else { unclipped(old, &state, idle_ms) });
    let new = Refills::of(limit, &limit.new_state(now, phase), now);
    let excess = seen.iter().map(|other| other.excess_of(&new, quiet_ms)).fold(spent, Ord::max);
    let state = lower_by(excess, limit, old, state, now, phase);
    let cuts = cuts.clone().map(|mut cuts| {
        let newest = lower_by(excess, limit, old, *cuts.newest(), now, phase);
        cuts.take_over(limit, old, newest, excess, now);
        if old.is_rolling() { cuts.restarted(state) } else { cuts.in_window_of(limit, &state) }
    });
    NamedState { name: name.clone(), limit: *limit, state, cuts, log: from.log_for(limit) }
}

/// The state of `limit` taken over from one of `old`: as many tokens minus `excess`, which may be negative, up to its own capacity.
fn lower_by(excess: i128, limit: &Limit, old: &Limit, state: State, now: i64, phase: u64) -> State {
    let Snapshot { tokens, at, .. } = old.snapshot(&state);
    let refill = refill(old.config(), old.own_ms(at, now));
    let as_is = as_is(limit, old, state, now, phase);
    // What exceeds both capacities. Fractions of tokens count less there than here, or not at all.
    let beyond = i128::from(tokens).saturating_add(refill).saturating_sub(limit.snapshot(&as_is).tokens.into()).max(0);
    let more = beyond.saturating_sub(excess);
    let tokens = u64::try_from(more.unsigned_abs()).unwrap_or(u64::MAX);
    if more > 0 { limit.decide(as_is, now, tokens, Verb::Refund).1 } else { limit.lowered(&as_is, tokens) }
}

/// The tokens of an `old` bucket, unchanged, up to the capacity of `limit`.
fn as_is(limit: &Limit, old: &Limit, state: State, now: i64, phase: u64) -> State {
    if limit.config().kind == old.config().kind {
        return limit.carry(old, state, Carry::AsIs, now, phase);
    }
    let Snapshot { tokens, at, .. } = old.snapshot(&old.refilled(&state, now));
    let at = now.max(at);
    let full = limit.decide(limit.new_state(at, phase), at, 0, Verb::Reset).1;
    let missing = limit.config().capacity.cast_signed().saturating_sub(tokens).max(0);
    limit.lowered(&full, missing.cast_unsigned())
}

/// The refill in a time that starts with a window, in whole tokens.
fn refill(config: &Config, ms: u64) -> i128 {
    let Config { kind, rate, period_ms, .. } = *config;
    match kind {
        Kind::TokenBucket => product(rate, ms).checked_div(period_ms.into()).unwrap_or(0),
        Kind::FixedWindow | Kind::FirstUseWindow => product(rate, ms.checked_div(period_ms).unwrap_or(0)),
        // What has come back is in its level. What will come back is not known without the moments.
        Kind::RollingWindow => 0,
    }
}

/// The refill that is certain in that time. Of a calendar, it may start at any moment, and some windows are longer than the longest of days
/// whose clocks do not change.
fn certain_refill(config: &Config, ms: u64) -> i128 {
    match config.calendar {
        Some(_) => product(config.rate, ms.checked_div(longest_ms(config)).unwrap_or(0)),
        None => refill(config, ms),
    }
}

/// The length of the longest window.
fn longest_ms(config: &Config) -> u64 {
    let changed_ms = config.calendar.map_or(0, |_| Calendar::OFFSETS_MS.cast_unsigned());
    config.period_ms.saturating_add(changed_ms)
}

/// How much more refills under `new` than under `old` in that time, rounded down; may be negative. For windows that do not open together,
/// only the certain part.
fn more_since(new: &Config, old: &Config, idle_ms: u64, quiet_ms: u64) -> i128 {
    match (new.kind, old.kind) {
        (Kind::TokenBucket, Kind::TokenBucket) => {
            let faster = faster(new, old).saturating_mul(idle_ms.into());
            faster.checked_div_euclid(product(new.period_ms, old.period_ms)).unwrap_or(0) // buckets have no calendar
        }
        (_, Kind::TokenBucket) => {
            let less = product(old.rate, idle_ms).saturating_neg().checked_div_euclid(old.period_ms.into());
            certain_refill(new, quiet_ms).saturating_add(less.unwrap_or(0))
        }
        _ if is_in_step(new, old) => refill(new, idle_ms).saturating_sub(refill(old, idle_ms)),
        _ => certain_refill(new, quiet_ms).saturating_sub(refill(old, idle_ms)),
    }
}

/// By how much `new` is faster, in tokens per the product of the periods.
fn faster(new: &Config, old: &Config) -> i128 {
    product(new.rate, mean_ms(old)).saturating_sub(product(old.rate, mean_ms(new)))
}

/// The period. Windows of a calendar differ in length.
fn mean_ms(config: &Config) -> u64 {
    config.calendar.map_or(config.period_ms, |calendar| calendar.mean_ms())
}

/// How many tokens more or fewer the windows of a calendar may add in any time than windows of their mean length, and the next one: see
/// [`Calendar::mean_ms`].
fn uneven(config: &Config) -> i128 {
    config.calendar.map_or(0, |_| config.rate.div_ceil(4).into())
}

/// The same of both. Nothing, if each window of one is the same number of windows of the other: they are as uneven.
fn uneven_beside(one: &Config, other: &Config) -> i128 {
    let divide = |one: Calendar, other: Calendar| one.divides(&other) || other.divides(&one);
    let is_even = one.calendar.zip(other.calendar).is_some_and(|(one, other)| divide(one, other));
    if is_even { 0 } else { uneven(one).saturating_add(uneven(other)) }
}

/// The level after that time if the capacity did not cap it, in whole tokens.
fn unclipped(limit: &Limit, state: &State, ms: u64) -> i128 {
    let Snapshot { tokens, drops, .. } = limit.snapshot(state);
    let Config { kind, rate, period_ms, .. } = *limit.config();
    let back = match kind {
        Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow => refill(limit.config(), ms),
        Kind::TokenBucket => {
            let drops_per_ms = product(rate, limit.drops_per_token()).checked_div(period_ms.into()).unwrap_or(0);
            let drops = i128::from(drops).saturating_add(drops_per_ms.saturating_mul(ms.into()));
            drops.checked_div(limit.drops_per_token().into()).unwrap_or(0)
        }
    };
    i128::from(tokens).saturating_add(back)
}

/// Whether both refill at the same moments.
fn is_in_step(one: &Config, other: &Config) -> bool {
    match (one.kind, other.kind) {
        (Kind::TokenBucket, Kind::TokenBucket) => true,
        _ => one.shares_windows_with(other),
    }
}

/// How many tokens below the level it takes over `new` must start, since `other` was requested before: see the law. If negative, it may
/// start above it. Nothing was granted for `quiet_ms`.
fn excess(other: &Config, new: &Config, quiet_ms: u64) -> i128 {
    let is_in_step = is_in_step(other, new);
    let window = |config: &Config| match config.kind {
        Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow if !is_in_step => i128::from(config.rate),
        _ => 0,
    };
    let off_step = window(other).saturating_add(window(new));
    // The quiet time is smooth, so each calendar counts as uneven beside it.
    let beside = if is_in_step { 0 } else { uneven_beside(other, new) };
    let alone = if is_in_step { 0 } else { uneven(other).saturating_add(uneven(new)) };
    let smaller = i128::from(other.capacity).saturating_sub(new.capacity.into());
    let faster = faster(new, other);
    let as_slow = if faster <= 0 { off_step.saturating_add(beside) } else { i128::MAX };
    let as_fast = if faster < 0 {
        i128::MAX
    } else {
        // Of windows in step, only whole ones count.
        let (counted_ms, periods) = match new.kind {
            Kind::FixedWindow if is_in_step => {
                let opened = quiet_ms.checked_div(longest_ms(new)).unwrap_or(0);
                (product(opened, mean_ms(new)), product(mean_ms(new), mean_ms(other)))
            }
            _ => (quiet_ms.into(), product(mean_ms(new), mean_ms(other))),
        };
        // A saturated product makes the result too large, which is safe.
        let since = faster.saturating_mul(counted_ms).checked_div(periods).unwrap_or(0);
        smaller.saturating_add(off_step).saturating_add(alone).saturating_sub(since)
    };
    let bound = as_slow.min(as_fast);
    if !is_in_step && alternate(other, new) {
        // Between two windows of one, a single one of the other opens.
        let as_slow = if faster <= 0 { new.rate.into() } else { i128::MAX };
        let as_fast = if faster >= 0 { smaller.saturating_add(other.rate.into()) } else { i128::MAX };
        return bound.min(as_slow).min(as_fast);
    }
    bound
}

/// Whether windows of both open in turn, because both follow calendars that do.
fn alternate(one: &Config, other: &Config) -> bool {
    one.calendar.zip(other.calendar).is_some_and(|(one, other)| one.alternates_with(&other))
}

/// When the tokens of numbers refill.
struct Refills<'a> {
    config: &'a Config,
    now: i64,
    /// When the window opened: in the future, if the clock stepped back. A bucket refills continuously.
    opened_at: i64,
    /// When the next one opens.
    opens_at: i64,
}

impl<'a> Refills<'a> {
    fn of(limit: &'a Limit, state: &State, now: i64) -> Self {
        let config = limit.config();
        let opened_at = limit.snapshot(&limit.refilled(state, now)).at;
        let opens_at = match config.calendar {
            Some(calendar) => calendar.window(opened_at.max(now)).1,
            None => opened_at.saturating_add_unsigned(config.period_ms),
        };
        Self { config, now, opened_at, opens_at }
    }

    /// How long the window has been open.
    fn open_ms(&self) -> u64 {
        self.now.saturating_sub(self.opened_at).max(0).cast_unsigned()
    }

    fn opens_in_ms(&self) -> u64 {
        self.opens_at.saturating_sub(self.now).max(0).cast_unsigned()
    }

    /// [`excess`] now. If the two are out of step, the moments of their windows bound their difference: how much more the slower one can
    /// have given until now, or the faster one can give first.
    fn excess_of(&self, new: &Self, quiet_ms: u64) -> i128 {
        let bound = excess(self.config, new.config, quiet_ms);
        if is_in_step(self.config, new.config) {
            return bound;
        }
        let faster = faster(new.config, self.config);
        let smaller = i128::from(self.config.capacity).saturating_sub(new.config.capacity.into());
        let as_slow = if faster <= 0 { new.sooner_than(self) } else { i128::MAX };
        let as_fast = if faster >= 0 { smaller.saturating_add(self.more_than(new, quiet_ms)) } else { i128::MAX };
        bound.min(as_slow).min(as_fast)
    }

    /// The latest opening of a window at least that long ago: how many windows before the last one, and how long ago.
    fn opening_before(&self, quiet_ms: u64) -> (u64, u64) {
        if let Some(calendar) = self.config.calendar {
            let (opened_at, _) = calendar.window(self.now.saturating_sub_unsigned(quiet_ms));
            let ms = self.now.saturating_sub(opened_at).max(0).cast_unsigned();
            return (calendar.openings(opened_at, self.now), ms);
        }
        let period_ms = self.config.period_ms;
        let windows = quiet_ms.saturating_sub(self.open_ms()).div_ceil(period_ms.max(1));
        let ms = product(windows, period_ms).saturating_add(self.open_ms().into());
        (windows, u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// How many windows have opened since the last one of `other` did.
    fn opened_since(&self, other: &Self) -> u64 {
        match self.config.calendar {
            Some(calendar) => calendar.openings(other.opened_at, self.opened_at.max(self.now)),
            None => openings(self.open_ms(), other.open_ms(), self.config.period_ms),
        }
    }

    /// How many windows will open before the next one of `other` does.
    fn opening_until(&self, other: &Self) -> u64 {
        match self.config.calendar {
            Some(calendar) => calendar.openings(self.opened_at.max(self.now), other.opens_at.saturating_sub(1)),
            None => openings(self.opens_in_ms(), other.opens_in_ms(), self.config.period_ms),
        }
    }

    /// How much more these have given than the others, which are at least as fast, in any time until now of `quiet_ms` or longer.
    fn more_than(&self, faster: &Self, quiet_ms: u64) -> i128 {
        let (own, other) = (self.config, faster.config);
        let play = uneven_beside(own, other);
        match (own.kind, other.kind) {
            // The most since just after a window of the others opened.
            (Kind::TokenBucket, _) => {
                let (windows, ms) = faster.opening_before(quiet_ms);
                refill(own, ms).saturating_add(1).saturating_sub(product(other.rate, windows)).saturating_add(play)
            }
            // The most since just before an own one opened, or over exactly the quiet time.
            (Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow, Kind::TokenBucket) => {
                let (windows, ms) = self.opening_before(quiet_ms);
                let with_next = product(own.rate, windows.saturating_add(1)).saturating_sub(refill(other, ms));
                let more = with_next.max(product(own.rate, windows).saturating_sub(refill(other, quiet_ms)));
                more.saturating_add(play)
            }
            (Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow, _) => {
                let opened = self.opened_since(faster);
                if alternate(own, other) {
                    // Since just before the last own one, or nothing.
                    return if opened > 0 || self.opened_at == faster.opened_at { own.rate.into() } else { 0 };
                }
                // Own windows opened since the others' last, plus one before.
                let by_windows = product(own.rate, opened.saturating_add(1)).saturating_add(play);
                // Or since just before the last own one; or else nothing.
                let by_rate = beside_a_lack(own, other, self.open_ms());
                by_windows.min(by_rate.max(certain_refill(other, quiet_ms).saturating_neg()))
            }
        }
    }

    /// How much more these will have given than the others, which are at least as fast, at any time from now on.
    fn sooner_than(&self, faster: &Self) -> i128 {
        let (own, other) = (self.config, faster.config);
        let play = uneven_beside(own, other);
        let more = match (own.kind, other.kind) {
            (Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow, Kind::TokenBucket) => {
                i128::from(own.rate).saturating_sub(refill(other, self.opens_in_ms())).saturating_add(play)
            }
            (Kind::TokenBucket, _) => refill(own, faster.opens_in_ms()).saturating_add(1).saturating_add(play),
            (Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow, _) => {
                if alternate(own, other) {
                    return if self.opens_at > faster.opens_at { 0 } else { own.rate.into() };
                }
                // Own windows that open before the others' next, plus one after.
                let by_windows = product(own.rate, self.opening_until(faster).saturating_add(1)).saturating_add(play);
                // Or when the next own one opens.
                by_windows.min(beside_a_lack(own, other, self.opens_in_ms()))
            }
        };
        more.max(0)
    }
}

/// How many tokens a single window of `own` adds more than `other`, which are at least as fast, in a time of `ms` that it begins or ends: its
/// tokens, and what the others still lack of a whole window. Time is smooth, so each calendar counts as uneven.
fn beside_a_lack(own: &Config, other: &Config, ms: u64) -> i128 {
    let smooth = product(other.rate, ms).checked_div(mean_ms(other).into()).unwrap_or(0);
    let whole = i128::from(own.rate).saturating_add(other.rate.into()).saturating_sub(smooth);
    whole.saturating_add(uneven(own)).saturating_add(uneven(other))
}

/// How many windows open before `end_ms` is over, the first after `first_ms` and then one every `period_ms`.
fn openings(first_ms: u64, end_ms: u64, period_ms: u64) -> u64 {
    let rest_ms = end_ms.checked_sub(first_ms.saturating_add(1));
    rest_ms.map_or(0, |ms| ms.checked_div(period_ms).unwrap_or(0).saturating_add(1))
}

/// Exact, because neither exceeds 2⁶³.
fn product(a: u64, b: u64) -> i128 {
    i128::from(a).saturating_mul(b.into())
}
