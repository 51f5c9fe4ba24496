//! The sum of all isolates' reports.

use std::mem;

use super::counts::{Counts, merge_refused};
use super::refused_keys::RefusedKeys;
use super::report::{Report, hex};
use crate::sorted::{SortedMap, sort_by};

/// All isolates' counts.
#[derive(Debug)]
pub struct Totals {
    /// When counting started.
    began_at: i64,
    counts: Counts,
    /// The recently refused keys: those of the previous window, and of this one.
    windows: [Window; 2],
    /// For each isolate, the number of its latest report and its arrival.
    isolates: SortedMap<u64, (u64, i64)>,
}

#[derive(Debug, Default)]
struct Window {
    /// The arrival of its first report, and when that one started to count; `None` if empty.
    began: Option<Began>,
    refused: SortedMap<String, RefusedKeys>,
}

#[derive(Clone, Copy, Debug)]
struct Began {
    at: i64,
    since: i64,
}

/// The keys of a policy refused most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopRefused<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The number of refusals.
    pub refusals: u64,
    /// The most refused key first.
    pub keys: Vec<TopKey>,
}

/// A key refused often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// Its hash.
    pub object: String,
    /// The start of the key, if it may be shown.
    pub prefix: Option<String>,
    /// The lower bound of its refusals.
    pub at_least: u64,
    /// The upper bound.
    pub at_most: u64,
}

/// The keys refused most are those of the last one or two windows of this length: long enough for many reports, and short enough to show
/// what happens now.
pub const WINDOW_MS: i64 = 600_000;

/// Maximum isolates whose report numbers are remembered.
const MAX_ISOLATES: usize = 4_096;

/// An isolate with requests reports every few seconds.
const REPORTS_WITHIN_MS: i64 = 60_000;

impl Totals {
    /// Starts empty.
    #[must_use]
    pub fn new(now: i64) -> Self {
        Self { began_at: now, counts: Counts::default(), windows: Default::default(), isolates: SortedMap::new() }
    }

    /// Adds a report that arrived at `now`, unless it did before.
    pub fn add(&mut self, report: Report, now: i64) {
        let Report { isolate, number, since, mut counts } = report;
        let known = self.isolates.get(&isolate).map_or(0, |(number, _)| *number);
        if number <= known {
            return;
        }
        if known == 0 && self.isolates.len() >= MAX_ISOLATES {
            let oldest = self.isolates.iter().min_by_key(|(_, (_, at))| *at).map(|(isolate, _)| *isolate);
            oldest.and_then(|isolate| self.isolates.remove(&isolate));
        }
        self.isolates.insert(isolate, (number, now));
        self.turn(now);
        let [_, window] = &mut self.windows;
        let began = window.began.get_or_insert(Began { at: now, since });
        began.since = began.since.min(since);
        merge_refused(&mut window.refused, &mem::take(&mut counts.refused));
        self.counts.merge(&counts);
    }

    /// All counts except those by key.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// When counting started.
    #[must_use]
    pub const fn began_at(&self) -> i64 {
        self.began_at
    }

    /// The number of isolates that reported recently.
    #[must_use]
    pub fn isolates(&self, now: i64) -> usize {
        self.isolates.values().filter(|(_, at)| now.saturating_sub(*at) < REPORTS_WITHIN_MS).count()
    }

    /// The keys refused most, by policy, the policy with the most refusals first; and since when they were counted.
    pub fn top(&mut self, now: i64) -> (i64, Vec<TopRefused<'_>>) {
        self.turn(now);
        let since = self.windows.iter().filter_map(|window| window.began).map(|began| began.since).min().unwrap_or(now);
        let [before, window] = &self.windows;
        let only_before = before.refused.keys().filter(|policy| !window.refused.contains_key(*policy));
        let mut all: Vec<_> = window
            .refused
            .keys()
            .chain(only_before)
            .map(|policy| {
                let mut keys = RefusedKeys::default();
                for window in &self.windows {
                    window.refused.get(policy).inspect(|more| keys.merge(more));
                }
                let top = keys.top().into_iter().map(|(key, at_least, at_most)| TopKey {
                    object: hex(key),
                    prefix: keys.prefix(key).map(str::to_owned),
                    at_least,
                    at_most,
                });
                TopRefused { policy, refusals: keys.total(), keys: top.collect() }
            })
            .collect();
        sort_by(&mut all, |a, b| b.refusals.cmp(&a.refusals).then_with(|| a.policy.cmp(b.policy)));
        (since, all)
    }

    /// Starts a new window when due.
    fn turn(&mut self, now: i64) {
        let [before, window] = &mut self.windows;
        let age_ms = |window: &Window| window.began.map_or(0, |began| now.saturating_sub(began.at));
        if age_ms(window) >= WINDOW_MS {
            *before = mem::take(window);
        }
        if age_ms(before) >= WINDOW_MS.saturating_mul(2) {
            *before = Window::default();
        }
    }
}
