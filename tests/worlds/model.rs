//! What one bucket per limit says of a history.

use std::collections::BTreeMap;

/// The numbers of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) rate: i64,
    pub(crate) period_ms: i64,
    pub(crate) capacity: i64,
    pub(crate) is_window: bool,
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
        let Numbers { rate, period_ms, capacity, is_window } = *numbers;
        let full = capacity * period_ms;
        let refill = |level: i64, from: i64, to: i64| {
            let windows = to.div_euclid(period_ms) - from.div_euclid(period_ms);
            let drops = if is_window { windows * rate * period_ms } else { (to - from) * rate };
            full.min(level + drops.max(0))
        };
        let entries = || self.0.get(account).into_iter().flatten();
        let start = entries().next().map_or(0, |entry| clock(&entry.at));
        let (mut level, mut lowest, mut at) = (full, full, start);
        for entry in entries() {
            let refilled = refill(level, at, clock(&entry.at));
            if matches!(entry.what, What::Given(_)) && refilled == full {
                continue; // nothing is given back to a full bucket, and nothing stored
            }
            level = refilled;
            at = at.max(clock(&entry.at));
            match &entry.what {
                what @ (What::Taken(_) | What::Spent(_)) => level -= cost(what) * period_ms,
                What::Given(tokens) => level = full.min(level + tokens * period_ms),
                What::Reset => level = full,
            }
            lowest = lowest.min(level);
        }
        (refill(level, at, clock(&now)), lowest)
    }
}
