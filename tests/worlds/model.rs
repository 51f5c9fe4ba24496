//! What one bucket per limit says of a history.

use std::collections::BTreeMap;

/// The numbers of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) rate: i64,
    pub(crate) period_ms: i64,
    pub(crate) capacity: i64,
    pub(crate) refill: Refill,
}

/// How tokens come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refill {
    Continuous,
    /// When windows open, counted from the epoch.
    Windows,
    /// All of them, a period after something was taken from a full bucket.
    FromFirstUse,
    /// Each a period after it was taken. By itself, nothing comes back.
    Rolling,
}

/// What was taken from each limit of each key and given back, in the order in which it happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(pub(crate) BTreeMap<Account, Vec<Entry>>);

/// A key and a limit.
pub(crate) type Account = (String, String);

/// What the clock shows, and what it would show if it had not stepped back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) shown: i64,
    pub(crate) without_steps: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Moment,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Taken(Taken),
    Given(i64),
    Reset,
    /// The spent tokens of a lease, when it is returned: when they were spent is not known.
    Spent(i64),
}

/// Tokens taken at once, reserved or leased.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// The number taken at first.
    pub(crate) tokens: i64,
    /// The real cost, as far as known.
    pub(crate) real: i64,
    /// The reservation or lease.
    pub(crate) id: Option<u64>,
    /// When an open reservation costs nothing any more.
    pub(crate) refunded_at: Option<i64>,
    /// When an open lease counts as spent.
    pub(crate) spent_at: Option<i64>,
}

impl Taken {
    fn cost(&self, now: i64) -> i64 {
        if self.refunded_at.is_some_and(|at| at <= now) { 0 } else { self.real }
    }
}

impl Log {
    pub(crate) fn add(&mut self, account: Account, at: Moment, what: What) {
        self.0.entry(account).or_default().push(Entry { at, what });
    }

    /// Closes a reservation or lease at these real costs, limit by limit; at the reserved ones if there are none.
    pub(crate) fn close(&mut self, key: &str, id: u64, costs: &[(String, i64)], now: Moment) {
        for ((of, limit), entries) in &mut self.0 {
            let mut spent = None;
            for entry in entries.iter_mut().filter(|_| of == key) {
                if let What::Taken(taken) = &mut entry.what
                    && taken.id == Some(id)
                    && taken.spent_at.is_none_or(|at| now.shown < at)
                {
                    let cost = costs.iter().find(|(name, _)| name == limit);
                    taken.real = cost.map_or(taken.tokens, |(_, cost)| *cost);
                    spent = taken.spent_at.map(|_| taken.real);
                    (taken.id, taken.refunded_at) = (None, None);
                }
            }
            entries.extend(spent.map(|spent| Entry { at: now, what: What::Spent(spent) }));
        }
    }

    /// Gives back all of a reservation, also of limits that the policy no longer has.
    pub(crate) fn cancel(&mut self, key: &str, id: u64) {
        for (_, entries) in self.0.iter_mut().filter(|((of, _), _)| of == key) {
            for entry in entries {
                if let What::Taken(taken) = &mut entry.what
                    && taken.id == Some(id)
                {
                    (taken.real, taken.id, taken.refunded_at) = (0, None, None);
                }
            }
        }
    }

    /// The least that is left at `now`, in drops: a token is `period_ms` of them. What was settled late counts as if it had been taken at
    /// once. What is leased is only withheld, and spent when it is returned. A clock that steps back gives nothing until it shows a later
    /// moment than before.
    pub(crate) fn least(&self, account: &Account, numbers: &Numbers, now: Moment) -> i64 {
        let cost = |what: &What| match what {
            What::Taken(taken) if taken.spent_at.is_some() => 0,
            What::Taken(taken) => taken.cost(now.shown),
            What::Spent(tokens) => *tokens,
            What::Given(_) | What::Reset => 0,
        };
        let leased = self.0.get(account).into_iter().flatten().filter_map(|entry| match &entry.what {
            What::Taken(Taken { tokens, id: Some(_), spent_at: Some(_), .. }) => Some(tokens),
            _ => None,
        });
        self.walk(account, numbers, now, |at| at.shown, cost).0 - leased.sum::<i64>() * numbers.period_ms
    }

    /// The most that is left. Milliseconds that the clock shows twice may be credited twice.
    pub(crate) fn most(&self, account: &Account, numbers: &Numbers, now: Moment) -> i64 {
        let cost = |what: &What| if let What::Taken(taken) = what { taken.cost(now.shown) } else { 0 };
        self.walk(account, numbers, now, |at| at.without_steps, cost).0
    }

    /// The most that was left after tokens were taken, where that was lowest. What a settlement adds to a reservation does not count: its
    /// tokens were there for others meanwhile.
    pub(crate) fn lowest(&self, account: &Account, numbers: &Numbers, now: Moment) -> i64 {
        let cost =
            |what: &What| if let What::Taken(taken) = what { taken.cost(now.shown).min(taken.tokens) } else { 0 };
        self.walk(account, numbers, now, |at| at.without_steps, cost).1
    }

    /// The level at the end, and the lowest one after tokens were taken.
    fn walk(
        &self,
        account: &Account,
        numbers: &Numbers,
        now: Moment,
        clock: impl Fn(&Moment) -> i64,
        cost: impl Fn(&What) -> i64,
    ) -> (i64, i64) {
        if numbers.refill == Refill::Rolling {
            return self.walk_rolling(account, numbers, now, clock, cost);
        }
        let Numbers { rate, period_ms, capacity, refill } = *numbers;
        let full = capacity * period_ms;
        let mut opened_at = 0;
        let refill = |level: i64, (from, opened_at): (i64, i64), to: i64| {
            let drops = match refill {
                Refill::Windows => (to.div_euclid(period_ms) - from.div_euclid(period_ms)) * rate * period_ms,
                Refill::FromFirstUse if to >= opened_at + period_ms => full - level,
                Refill::FromFirstUse | Refill::Rolling => 0,
                Refill::Continuous => (to - from) * rate,
            };
            full.min(level + drops.max(0))
        };
        let entries = || self.0.get(account).into_iter().flatten();
        let start = entries().next().map_or(0, |entry| clock(&entry.at));
        let (mut level, mut lowest, mut at) = (full, full, start);
        for entry in entries() {
            let refilled = refill(level, (at, opened_at), clock(&entry.at));
            if matches!(entry.what, What::Given(_)) && refilled == full {
                continue; // nothing is given back to a full bucket, and nothing stored
            }
            level = refilled;
            at = at.max(clock(&entry.at));
            if level == full {
                opened_at = at;
            }
            match &entry.what {
                what @ (What::Taken(_) | What::Spent(_)) => level -= cost(what) * period_ms,
                What::Given(tokens) => level = full.min(level + tokens * period_ms),
                What::Reset => level = full,
            }
            lowest = lowest.min(level);
        }
        (refill(level, (at, opened_at), clock(&now)), lowest)
    }

    /// The same of a rolling window. A take's moment is never before the last one's.
    fn walk_rolling(
        &self,
        account: &Account,
        Numbers { period_ms, capacity, .. }: &Numbers,
        now: Moment,
        clock: impl Fn(&Moment) -> i64,
        cost: impl Fn(&What) -> i64,
    ) -> (i64, i64) {
        let mut takes: Vec<(i64, i64)> = Vec::new();
        let left = |takes: &mut Vec<(i64, i64)>, now: i64| {
            takes.retain(|(at, _)| now < at + period_ms);
            (capacity - takes.iter().map(|(_, tokens)| tokens).sum::<i64>()) * period_ms
        };
        let (mut lowest, mut at) = (capacity * period_ms, i64::MIN);
        for entry in self.0.get(account).into_iter().flatten() {
            left(&mut takes, clock(&entry.at));
            at = at.max(clock(&entry.at));
            match &entry.what {
                what @ (What::Taken(_) | What::Spent(_)) => takes.push((at, cost(what))),
                What::Given(tokens) => {
                    let mut rest = *tokens;
                    for (_, tokens) in &mut takes {
                        let back = rest.min(*tokens);
                        (*tokens, rest) = (*tokens - back, rest - back);
                    }
                }
                What::Reset => takes.clear(),
            }
            lowest = lowest.min(left(&mut takes, clock(&entry.at)));
        }
        (left(&mut takes, clock(&now)), lowest)
    }
}
