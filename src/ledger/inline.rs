//! Buckets whose numbers come with each request, and may be others the next time.
//!
//! A bucket keeps an account for each of the latest [`MAX_ACCOUNTS`] numbers of a limit. The numbers that are asked decide, by
//! their own account; what they grant is charged to all. So an account knows of all grants since it was opened,
//! under whichever numbers, and a caller that alternates finds each account as low as if it had never left those numbers.
//!
//! Numbers that are asked after others begin with the tokens that these have left, up to their own capacity, or with those of
//! their own account if that has more: a customer who changes plans keeps what is left.
//!
//! # The law
//!
//! Over any interval, all numbers together grant at most what the most generous of them would grant alone: its capacity, and
//! what it refills in that time; and, by verbs that make debt, the largest `max_debt` of any of them more. The proof:
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
//! than Z, it is within X's own bound as soon as L's level is lowered by what Z's capacity exceeds X's: many slow tokens are not
//! followed by fast ones. Which numbers Z are is not known, since it depends on `s`; so [`excess`] takes the most of all. It takes
//! less as time passes: an interval with a grant in it began before the last of them, and X has refilled more than Z since.
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
//! The account that was left longest ago is closed, and [`excess`] does not know its numbers any more. Where faster numbers never
//! have less capacity, as in most tables of plans, it takes nothing anyway, and the law holds for any number of them. In any
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

/// The most accounts of limits that the numbers asked do not have: for all limits of as many numbers.
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

    /// The same for the accounts of other numbers of that limit, whose own account has become `state`. Returns whether any has
    /// changed.
    pub(super) fn apply_to_others(self, named: &NamedLimit, state: State, others: &mut [NamedState], now: i64) -> bool {
        let of_name = |account: &NamedState| account.name.as_deref() == named.name();
        let numbers: Vec<_> = others.iter().filter(|account| of_name(account)).map(|account| account.limit).collect();
        let owed = named.limit().snapshot(&state).tokens.min(0);
        let mut has_changed = false;
        for account in others.iter_mut().filter(|account| of_name(account)) {
            let limit = account.limit;
            let after = self.apply(&limit, account.state, now);
            let seen = numbers.iter().chain([named.limit()]);
            let excess = seen.map(|other| excess(other.config(), limit.config(), 0)).max().unwrap_or(0);
            let least = i64::try_from(i128::from(owed).saturating_sub(excess)).unwrap_or(i64::MIN);
            let Snapshot { tokens, at, .. } = limit.snapshot(&after);
            let is_enough = tokens >= least || after == account.state;
            let floor = || limit.restored(&Snapshot { tokens: least, drops: 0, at });
            let floor = if is_enough { None } else { floor() };
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

/// The accounts of the numbers of `policy` at `now`, in its order, and after them the others. `old` are all before, the one that
/// was asked last first.
pub(super) fn accounts(old: Vec<NamedState>, policy: &Policy, now: i64, phase: u64) -> Vec<NamedState> {
    let mut all: Vec<NamedState> = Vec::with_capacity(old.len().saturating_add(1));
    for named in policy.limits() {
        let of_name = || old.iter().filter(|account| account.name.as_deref() == named.name());
        let limit = *named.limit();
        let own = of_name().find(|account| account.limit == limit);
        all.push(match of_name().next() {
            None => NamedState::of(named, limit.new_state(now, phase)),
            Some(latest) if latest.limit == limit => latest.clone(),
            Some(latest) => {
                let seen = of_name().map(|account| &account.limit);
                let taken_over = taken_over(&limit, latest, seen, now, phase);
                let own = own.filter(|own| limit.surplus_over(&own.state, &taken_over.state, now).is_some());
                own.cloned().unwrap_or(taken_over)
            }
        });
    }
    for account in old {
        let of_name = all.iter().filter(|other| other.name == account.name);
        let is_kept =
            of_name.clone().count() < MAX_ACCOUNTS && all.len() < policy.limits().len().saturating_add(MAX_OTHERS);
        if is_kept && !of_name.into_iter().any(|other| other.limit == account.limit) {
            all.push(account);
        }
    }
    all
}

/// What `limit` takes over from the account that was asked last. `seen` are all numbers with an account.
fn taken_over<'a>(
    limit: &Limit,
    latest: &NamedState,
    seen: impl Iterator<Item = &'a Limit>,
    now: i64,
    phase: u64,
) -> NamedState {
    let NamedState { name, limit: old, state, cuts } = latest;
    let idle_ms = now.saturating_sub(old.snapshot(state).at).max(0).cast_unsigned();
    // In a window, its moment is when it opened, and the last grant came later.
    let quiet_ms = match old.config().kind {
        Kind::TokenBucket => idle_ms,
        Kind::FixedWindow => idle_ms.saturating_sub(old.config().period_ms),
    };
    let excess = seen.map(|other| excess(other.config(), limit.config(), quiet_ms)).max().unwrap_or(0);
    let cuts = cuts.clone().map(|mut cuts| {
        let newest = lower_by(excess, limit, old, *cuts.newest(), now, phase);
        cuts.take_over(limit, old, newest, excess, now);
        cuts
    });
    NamedState { name: name.clone(), limit: *limit, state: lower_by(excess, limit, old, *state, now, phase), cuts }
}

/// What a bucket of `limit` takes over from one of `old`: as many tokens but for the `excess`, up to its own capacity.
fn lower_by(excess: i128, limit: &Limit, old: &Limit, state: State, now: i64, phase: u64) -> State {
    let Snapshot { tokens, at, .. } = old.snapshot(&state);
    let Config { kind, rate, period_ms, .. } = *old.config();
    let idle_ms = now.saturating_sub(at).max(0).cast_unsigned();
    let refill = match kind {
        Kind::TokenBucket => product(rate, idle_ms).checked_div(period_ms.into()).unwrap_or(0),
        Kind::FixedWindow => product(rate, idle_ms.checked_div(period_ms).unwrap_or(0)),
    };
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

/// How many tokens `new` must begin below the level that it takes over, since `other` was asked before: see the law. Nothing was
/// granted for `quiet_ms`.
fn excess(other: &Config, new: &Config, quiet_ms: u64) -> i128 {
    let is_in_step = match (other.kind, new.kind) {
        (Kind::TokenBucket, Kind::TokenBucket) => true,
        (Kind::FixedWindow, Kind::FixedWindow) => (other.period_ms, other.offset_ms) == (new.period_ms, new.offset_ms),
        _ => false,
    };
    let window = |config: &Config| match config.kind {
        Kind::FixedWindow if !is_in_step => i128::from(config.rate),
        _ => 0,
    };
    let off_step = window(other).saturating_add(window(new));
    // By how much `new` is faster, in tokens per the product of the periods.
    let faster = product(new.rate, other.period_ms).saturating_sub(product(other.rate, new.period_ms));
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
    as_slow.min(as_fast).max(0)
}

/// Exact, because neither is above 2⁶³.
fn product(a: u64, b: u64) -> i128 {
    i128::from(a).saturating_mul(b.into())
}
