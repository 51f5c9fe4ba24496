//! Buckets whose numbers change: by a request that brings others, or by an operator.
//!
//! A bucket keeps an account for each of the latest [`MAX_ACCOUNTS`] numbers of a limit. The numbers that are asked decide, by
//! their own account; what they grant is charged to all. So an account knows of all grants since it was opened,
//! under whichever numbers, and a caller that alternates finds each as low as if its numbers had been in force all the time.
//!
//! A new account begins as if the tokens that have been spent had been spent of its own capacity: a customer who buys a larger plan has the
//! rest of it at once, and one who goes back to a smaller one does not get its tokens twice. What exceeds its capacity is not owed.
//!
//! # Numbers of an operator
//!
//! They are in force from a moment on, and time before it counts at the numbers before. With `C` and `R` the largest capacity and the fastest
//! refill of all numbers that the bucket has had, each account obeys
//!
//! ```text
//! level(t) + granted from s to t <= C + R (t - s)      for all s <= t
//! ```
//!
//! * Time passes: the level rises by no more than `R`. A grant: the level falls by as much as the second term rises. Where it stops at zero or at
//!   a debt, the account in force, which obeys the law, is no lower.
//! * A new account begins with the level of the account in force and the difference of the capacities. It is capped at the best account's level and
//!   what its capacity exceeds `C` by: the bound grows by as much.
//!
//! So no interval has more than the largest capacity and the fastest refill. Where faster numbers never have less capacity, as in most tables
//! of plans, that is what the most generous of them grant alone.
//!
//! # Numbers of requests
//!
//! The moment at which they came into force is unknown, so the time since the last grant counts at the numbers that are asked. And a caller may
//! choose them anew each time, so the law is stricter. Over any interval, all numbers together grant at most what the most generous of them would
//! grant alone: its capacity, and what it refills in that time; and, by verbs that make debt, the largest `max_debt` of any of them more. The proof:
//!
//! Let `G(s, t)` be what was granted from `s` to `t`, and `B(s, t)` the largest capacity and refill from `s` to `t` of any numbers
//! that the bucket was asked under. Each account obeys
//!
//! ```text
//! level(t) + G(s, t) + its refill from t to u <= B(s, u)      for all s <= t <= u
//! ```
//!
//! * Time passes: the level rises by its refill at most. A grant: the level falls by as much as `G` rises.
//! * With no grants since `s`, the left side is at most the account's own capacity and refill.
//! * So the law holds, because the level of the numbers that grant is not below zero afterwards, or not below the debt that they allow.
//!
//! A level for the numbers X, taken over from the account L at the moment `t`, must obey it too. Let Z be the numbers whose
//! capacity and refill are `B(s, t)`. If Z refills as fast as X, all that L has is within Z's bound for ever. If X refills faster
//! than Z, or as fast, it is within X's own bound as soon as what Z's capacity exceeds X's is taken from L's level: many slow tokens are not
//! followed by fast ones. If X's capacity is the larger one, as much may be added. Which numbers Z are is not known, since it depends on `s`;
//! so [`excess`] takes the most of all, or adds the least. It takes less as time passes: an interval with a grant in it began before the last of
//! them, and X has refilled more than Z since.
//!
//! Only numbers without an account are taken over to: those that have one are among Z, and nothing may be added for them.
//!
//! Nothing in this needs the level to stop at the capacity after the last grant. So L's level is what it would be without that, and
//! idle time counts.
//!
//! It also says how low an account need be: it is never charged below the level that it would take over now from numbers that have
//! nothing left. So it is full again soon after the last grant, whatever others were granted.
//!
//! What a settlement takes above its reservation is no grant: it was used before. So it may exceed the bound, and later grants do not.
//!
//! Where the refills of X and Z do not keep step, because one of them is a window, they may differ by a window's tokens more.
//!
//! # More numbers than accounts
//!
//! An account is closed, and [`excess`] does not know its numbers any more. If others that are known have at least its capacity and its
//! refill, that makes no difference: `B` is the same without it. So such an account is closed first, and else the one that was left longest ago.
//! Where faster numbers never have less capacity, as in most tables of plans, the law so holds for any number of them. In any
//! case, all of them together grant no more than the largest capacity and the fastest refill.
//!
//! A bucket that is full under all its accounts is forgotten, and the next numbers begin full.

use super::row::NamedState;
use crate::limit::{Carry, Config, Cuts, Kind, Limit, Snapshot, State, Verb};
use crate::policy::{NamedLimit, Policy};

/// The most buckets of a key whose numbers come with requests, and which are not full again. Callers choose their names. Each may have 64
/// accounts, which take 27 KB of memory, so all of them take 7 MB of the 128 that an object shares with others.
pub const MAX_INLINE: usize = 256;

/// The most accounts of one limit.
pub(super) const MAX_ACCOUNTS: usize = 8;

/// The most accounts of limits that the numbers asked do not have: for all limits of as many numbers. More take other names, and are closed in
/// the order of their last use.
const MAX_OTHERS: usize = 56;

/// What happens to the account that decides, and so to all.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Take(u64),
    Refund(u64),
    Reset,
}

impl Change {
    /// What `verb` does, if it moved `tokens` of the `cost` asked.
    pub(super) const fn of(verb: Verb, cost: u64, tokens: u64) -> Self {
        match verb {
            Verb::Refund => Self::Refund(cost),
            Verb::Reset => Self::Reset,
            _ => Self::Take(tokens),
        }
    }

    /// The same for the accounts of other numbers of that limit, whose own account has become `state`. `is_inline` says that numbers come with
    /// requests. Returns whether any has changed.
    pub(super) fn apply_to_others(
        self,
        named: &NamedLimit,
        state: State,
        is_inline: bool,
        others: &mut [NamedState],
        now: i64,
    ) -> bool {
        let floor = Floor::of(named, &state, is_inline, others);
        let mut has_changed = false;
        for account in others.iter_mut().filter(|account| account.name.as_deref() == named.account()) {
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

    /// The same for what depends on open reservations, of an account that has gone from `before` to `after`.
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

/// How low what was taken of a limit may leave the accounts of its other numbers. The account in force obeys the law, so none need be lower
/// than that.
pub(super) struct Floor {
    /// What the account in force owes: not above zero.
    owed: i64,
    /// All numbers that are known, if they come with requests.
    numbers: Option<Vec<Limit>>,
}

impl Floor {
    /// The account in force has become `state`.
    pub(super) fn of(named: &NamedLimit, state: &State, is_inline: bool, others: &[NamedState]) -> Self {
        let of_name = others.iter().filter(|account| account.name.as_deref() == named.account());
        let numbers = || of_name.map(|account| account.limit).chain([*named.limit()]).collect();
        Self { owed: named.limit().snapshot(state).tokens.min(0), numbers: is_inline.then(numbers) }
    }

    /// What an account becomes that would be too low `after` it was charged.
    pub(super) fn above(&self, limit: &Limit, before: &State, after: &State, now: i64) -> Option<State> {
        let least = match &self.numbers {
            Some(numbers) => {
                let excess = numbers.iter().map(|other| excess(other.config(), limit.config(), 0)).max().unwrap_or(0);
                i64::try_from(i128::from(self.owed).saturating_sub(excess)).unwrap_or(i64::MIN)
            }
            // Or than it was.
            None => self.owed.min(limit.snapshot(&limit.refilled(before, now)).tokens),
        };
        let Snapshot { tokens, at, .. } = limit.snapshot(after);
        let is_enough = tokens >= least || after == before;
        if is_enough { None } else { limit.restored(&Snapshot { tokens: least, drops: 0, at }) }
    }
}

/// The accounts of the numbers of a request, in the order of `policy`, and after them the others. `old` are all before, the one that was asked
/// last first.
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

/// The accounts of these numbers, in their order, and after them the others. `old` are all before, of each name the one in force first. `begin`
/// makes a new account from all of its name, if there are any; `new` makes the first.
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

/// Closes an account of that name which the numbers `asked`, the first ones, do not have: one that another is as generous as, or else the least
/// recently used that is not the largest.
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

/// The account with the most tokens, of accounts of one limit.
fn highest(accounts: impl Iterator<Item = NamedState>, now: i64) -> Option<NamedState> {
    accounts.reduce(|one, other| match one.limit.surplus_over(&one.state, &other.state, now) {
        Some(_) => one,
        None => other,
    })
}

/// What an operator's numbers begin with that come into force at that moment, after these accounts, the one in force first.
/// Frontends with the numbers before may have asked until `now`.
pub(super) fn succeeding(
    limit: &Limit,
    known: &[&NamedState],
    (at, now): (i64, i64),
    phase: u64,
) -> Option<NamedState> {
    let in_force = known.first()?;
    // The moment of a window is when it opened: only other accounts say when it was asked.
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

/// The account carried to other numbers at that moment, with `more` tokens added or taken away: up to the capacity, and never put into debt.
fn with_more(limit: &Limit, from: &NamedState, more: i128, at: i64, phase: u64) -> NamedState {
    let NamedState { name, limit: old, state, cuts } = from;
    let state = old.refilled(state, at);
    let left = i128::from(old.snapshot(&state).tokens).max(0);
    let excess = more.saturating_neg().min(left);
    let cuts = cuts.clone().map(|mut cuts| {
        cuts.refill(old, at);
        let newest = lower_by(excess, limit, old, *cuts.newest(), at, phase);
        cuts.take_over(limit, old, newest, excess, at);
        cuts
    });
    NamedState { name: name.clone(), limit: *limit, state: lower_by(excess, limit, old, state, at, phase), cuts }
}

/// Whether `other` grants at least as much as `config` over any interval.
pub(super) fn is_as_generous(other: &Config, config: &Config) -> bool {
    faster(other, config) >= 0 && other.capacity >= config.capacity && is_in_step(other, config)
}

/// What `limit` takes over from an account. `seen` are all numbers with one.
fn taken_over(limit: &Limit, from: &NamedState, seen: &[Refills<'_>], now: i64, phase: u64) -> NamedState {
    let NamedState { name, limit: old, state, cuts } = from;
    // What came back before a reservation was opened does not count as if it had come after.
    let state = cuts.as_ref().map_or(*state, |cuts| old.refilled(state, old.snapshot(cuts.newest()).at));
    let Snapshot { tokens, drops, at } = old.snapshot(&state);
    let idle_ms = now.saturating_sub(at).max(0).cast_unsigned();
    // In a window, its moment is when it opened, and the last grant came later.
    let quiet_ms = match old.config().kind {
        Kind::TokenBucket => idle_ms,
        Kind::FixedWindow => idle_ms.saturating_sub(old.config().period_ms),
    };
    // What was spent stays spent, and the time since counts as these numbers count it.
    let larger = i128::from(limit.config().capacity).saturating_sub(old.config().capacity.into());
    let left = i128::from(tokens).saturating_add((drops > 0).into()).max(0);
    let larger = larger.max(left.saturating_neg());
    let spent = more_since(limit.config(), old.config(), idle_ms, quiet_ms).saturating_add(larger).saturating_neg();
    // What is rounded is not owed.
    let spent = spent.min(if tokens < 0 { refill(old.config(), idle_ms) } else { unclipped(old, &state, idle_ms) });
    let new = Refills::of(limit, &limit.new_state(now, phase), now);
    let excess = seen.iter().map(|other| other.excess_of(&new, quiet_ms)).fold(spent, Ord::max);
    let cuts = cuts.clone().map(|mut cuts| {
        let newest = lower_by(excess, limit, old, *cuts.newest(), now, phase);
        cuts.take_over(limit, old, newest, excess, now);
        cuts
    });
    NamedState { name: name.clone(), limit: *limit, state: lower_by(excess, limit, old, state, now, phase), cuts }
}

/// What a bucket of `limit` takes over from one of `old`: as many tokens but for the `excess`, or more if that is negative, up to its own
/// capacity.
fn lower_by(excess: i128, limit: &Limit, old: &Limit, state: State, now: i64, phase: u64) -> State {
    let Snapshot { tokens, at, .. } = old.snapshot(&state);
    let refill = refill(old.config(), now.saturating_sub(at).max(0).cast_unsigned());
    let as_is = as_is(limit, old, state, now, phase);
    // What neither capacity has room for. Parts of tokens count less there than here, or not at all.
    let beyond = i128::from(tokens).saturating_add(refill).saturating_sub(limit.snapshot(&as_is).tokens.into()).max(0);
    let more = beyond.saturating_sub(excess);
    let tokens = u64::try_from(more.unsigned_abs()).unwrap_or(u64::MAX);
    if more > 0 { limit.decide(as_is, now, tokens, Verb::Refund).1 } else { limit.lowered(&as_is, tokens) }
}

/// The tokens of a bucket of `old`, as they are, up to the capacity of `limit`.
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

/// How many tokens come back in a time that begins with a window, in whole tokens.
fn refill(config: &Config, ms: u64) -> i128 {
    let Config { kind, rate, period_ms, .. } = *config;
    match kind {
        Kind::TokenBucket => product(rate, ms).checked_div(period_ms.into()).unwrap_or(0),
        Kind::FixedWindow => product(rate, ms.checked_div(period_ms).unwrap_or(0)),
    }
}

/// How much more comes back of `new` than of `old` in that time, rounded down; perhaps less than nothing. Of windows that do not open together, only
/// what is certain.
fn more_since(new: &Config, old: &Config, idle_ms: u64, quiet_ms: u64) -> i128 {
    match (new.kind, old.kind) {
        (Kind::TokenBucket, Kind::TokenBucket) => {
            let faster = faster(new, old).saturating_mul(idle_ms.into());
            faster.checked_div_euclid(product(new.period_ms, old.period_ms)).unwrap_or(0)
        }
        (_, Kind::TokenBucket) => {
            let less = product(old.rate, idle_ms).saturating_neg().checked_div_euclid(old.period_ms.into());
            refill(new, quiet_ms).saturating_add(less.unwrap_or(0))
        }
        _ if is_in_step(new, old) => refill(new, idle_ms).saturating_sub(refill(old, idle_ms)),
        _ => refill(new, quiet_ms).saturating_sub(refill(old, idle_ms)),
    }
}

/// By how much `new` is faster, in tokens per the product of the periods.
fn faster(new: &Config, old: &Config) -> i128 {
    product(new.rate, old.period_ms).saturating_sub(product(old.rate, new.period_ms))
}

/// What there would be after that time if the capacity had room for it, in whole tokens.
fn unclipped(limit: &Limit, state: &State, ms: u64) -> i128 {
    let Snapshot { tokens, drops, .. } = limit.snapshot(state);
    let Config { kind, rate, period_ms, .. } = *limit.config();
    let back = match kind {
        Kind::FixedWindow => refill(limit.config(), ms),
        Kind::TokenBucket => {
            let drops_per_ms = product(rate, limit.drops_per_token()).checked_div(period_ms.into()).unwrap_or(0);
            let drops = i128::from(drops).saturating_add(drops_per_ms.saturating_mul(ms.into()));
            drops.checked_div(limit.drops_per_token().into()).unwrap_or(0)
        }
    };
    i128::from(tokens).saturating_add(back)
}

/// Whether the two refill at the same moments.
fn is_in_step(one: &Config, other: &Config) -> bool {
    match (one.kind, other.kind) {
        (Kind::TokenBucket, Kind::TokenBucket) => true,
        (Kind::FixedWindow, Kind::FixedWindow) => (one.period_ms, one.offset_ms) == (other.period_ms, other.offset_ms),
        _ => false,
    }
}

/// How many tokens `new` must begin below the level that it takes over, since `other` was asked before: see the law. It may begin above it by
/// what is negative. Nothing was granted for `quiet_ms`.
fn excess(other: &Config, new: &Config, quiet_ms: u64) -> i128 {
    let is_in_step = is_in_step(other, new);
    let window = |config: &Config| match config.kind {
        Kind::FixedWindow if !is_in_step => i128::from(config.rate),
        _ => 0,
    };
    let off_step = window(other).saturating_add(window(new));
    let faster = faster(new, other);
    let as_slow = if faster <= 0 { off_step } else { i128::MAX };
    let as_fast = if faster < 0 {
        i128::MAX
    } else {
        // Of windows in step, only whole ones count.
        let periods = product(new.period_ms, other.period_ms);
        let counted_ms = match new.kind {
            Kind::FixedWindow if is_in_step => {
                quiet_ms.saturating_sub(quiet_ms.checked_rem(new.period_ms).unwrap_or(0))
            }
            _ => quiet_ms,
        };
        // A product that is cut short makes the result too large, which is safe.
        let since = faster.saturating_mul(counted_ms.into()).checked_div(periods).unwrap_or(0);
        i128::from(other.capacity).saturating_sub(new.capacity.into()).saturating_add(off_step).saturating_sub(since)
    };
    as_slow.min(as_fast)
}

/// When the tokens of numbers come back.
struct Refills<'a> {
    config: &'a Config,
    /// Since when the window is open. A bucket refills all the time.
    open_ms: u64,
}

impl<'a> Refills<'a> {
    fn of(limit: &'a Limit, state: &State, now: i64) -> Self {
        let opened_at = limit.snapshot(&limit.refilled(state, now)).at;
        Self { config: limit.config(), open_ms: now.saturating_sub(opened_at).max(0).cast_unsigned() }
    }

    /// [`excess`] now. Where the two are not in step, the moments of their windows say how far they differ: the bound is then how much
    /// more the slower of them can have given until now, or the faster can give first.
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

    /// The latest opening of a window that is as long ago as that: how many windows before the last one, and how long ago.
    fn opening_before(&self, quiet_ms: u64) -> (u64, u64) {
        let period_ms = self.config.period_ms;
        let windows = quiet_ms.saturating_sub(self.open_ms).div_ceil(period_ms.max(1));
        let ms = product(windows, period_ms).saturating_add(self.open_ms.into());
        (windows, u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// How much more these have given than the others, which are as fast at least, in any time until now of `quiet_ms` or longer.
    fn more_than(&self, faster: &Self, quiet_ms: u64) -> i128 {
        let (own, other) = (self.config, faster.config);
        match (own.kind, other.kind) {
            // Most since just after a window of the others opened.
            (Kind::TokenBucket, _) => {
                let (windows, ms) = faster.opening_before(quiet_ms);
                refill(own, ms).saturating_add(1).saturating_sub(product(other.rate, windows))
            }
            // Most since just before an own one opened, or over just the quiet time.
            (Kind::FixedWindow, Kind::TokenBucket) => {
                let (windows, ms) = self.opening_before(quiet_ms);
                let with_next = product(own.rate, windows.saturating_add(1)).saturating_sub(refill(other, ms));
                with_next.max(product(own.rate, windows).saturating_sub(refill(other, quiet_ms)))
            }
            (Kind::FixedWindow, Kind::FixedWindow) => {
                // The own windows that opened since the others' last, and one before.
                let opened = openings(self.open_ms, faster.open_ms, own.period_ms);
                // Or, since just before the last own one, that and what the others have not given in whole windows; or else nothing.
                let smooth = product(other.rate, self.open_ms).checked_div(other.period_ms.into()).unwrap_or(0);
                let by_rate = i128::from(own.rate).saturating_add(other.rate.into()).saturating_sub(smooth);
                let by_rate = by_rate.max(refill(other, quiet_ms).saturating_neg());
                product(own.rate, opened.saturating_add(1)).min(by_rate)
            }
        }
    }

    /// How much more these will have given than the others, which are as fast at least, at any time from now on.
    fn sooner_than(&self, faster: &Self) -> i128 {
        let (own, other) = (self.config, faster.config);
        let opens_in = |of: &Self| of.config.period_ms.saturating_sub(of.open_ms);
        let more = match (own.kind, other.kind) {
            (Kind::FixedWindow, Kind::TokenBucket) => {
                i128::from(own.rate).saturating_sub(refill(other, opens_in(self)))
            }
            (Kind::TokenBucket, _) => refill(own, opens_in(faster)).saturating_add(1),
            (Kind::FixedWindow, Kind::FixedWindow) => {
                let opens = openings(opens_in(self), opens_in(faster), own.period_ms);
                product(own.rate, opens.saturating_add(1))
            }
        };
        more.max(0)
    }
}

/// How many of the windows that open every `period_ms`, the first of them after `first_ms`, open before `end_ms` is over.
fn openings(first_ms: u64, end_ms: u64, period_ms: u64) -> u64 {
    let rest_ms = end_ms.checked_sub(first_ms.saturating_add(1));
    rest_ms.map_or(0, |ms| ms.checked_div(period_ms).unwrap_or(0).saturating_add(1))
}

/// Exact, because neither is above 2⁶³.
fn product(a: u64, b: u64) -> i128 {
    i128::from(a).saturating_mul(b.into())
}
