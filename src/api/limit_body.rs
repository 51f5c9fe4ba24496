//! A limit's numbers and its bucket's state, as JSON.

use serde::Serialize;

use super::resolved::{Answered, ResolvedItem};
use crate::limit::{Config, Kind, MAX_TOKENS, Snapshot};
use crate::policy::NamedLimit;

/// A limit's numbers, and its bucket's state.
#[derive(Serialize)]
pub(super) struct LimitBody<'a, S> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    kind: &'static str,
    rate: u64,
    /// Of a calendar, that of the longest window, or in a snapshot of the one that is open.
    period_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<String>,
    capacity: u64,
    max_debt: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    soft: bool,
    #[serde(flatten)]
    standing: S,
}

impl<'a, S> LimitBody<'a, S> {
    pub(super) fn of(limit: &'a NamedLimit, standing: S) -> Self {
        let Config { rate, period_ms, capacity, max_debt, calendar, is_soft: soft, .. } = *limit.limit().config();
        let calendar = calendar.map(|calendar| calendar.to_string());
        Self { name: limit.name(), kind: limit.kind(), rate, period_ms, calendar, capacity, max_debt, soft, standing }
    }
}

impl<'a> LimitBody<'a, Exact> {
    /// As if the limit allowed `tokens` at any time.
    fn of_tokens(limit: &'a NamedLimit, now: i64, tokens: u64) -> Self {
        let exact = Exact { tokens: tokens.cast_signed(), drops: 0, at: now };
        Self {
            kind: Kind::TokenBucket.word(),
            rate: 0,
            period_ms: 1,
            calendar: None,
            capacity: tokens,
            max_debt: 0,
            soft: false,
            ..Self::of(limit, exact)
        }
    }
}

/// A [`Snapshot`] as JSON.
#[derive(Serialize)]
pub(super) struct Exact {
    tokens: i64,
    drops: u64,
    at: i64,
}

impl Exact {
    pub(super) const fn of(snapshot: Snapshot) -> Self {
        let Snapshot { tokens, drops, at } = snapshot;
        Self { tokens, drops, at }
    }
}

impl ResolvedItem {
    /// As if limits allowed `tokens` at any time, regardless of the buckets. So a client that decides by a snapshot decides like the
    /// server.
    pub(super) fn snapshot_of<'a>(&self, answers: &[Answered<'a>], now: i64, tokens: u64) -> Vec<LimitBody<'a, Exact>> {
        let asked = answers.iter().filter(|_| self.wants_snapshot);
        asked.map(|&(limit, ..)| LimitBody::of_tokens(limit, now, tokens)).collect()
    }

    /// Empty unless the request asked for it.
    pub(super) fn snapshot<'a>(&self, answers: &[Answered<'a>], now: i64) -> Vec<LimitBody<'a, Exact>> {
        let asked = answers.iter().filter(|_| self.wants_snapshot);
        let body = |&(limit, _, answer): &Answered<'a>| {
            if limit.limit().is_soft() {
                return LimitBody::of_tokens(limit, now, MAX_TOKENS);
            }
            let body = LimitBody::of(limit, Exact::of(answer.snapshot));
            // A copy of the state knows when the next window opens; the next answer tells of the one after it.
            let window = limit.limit().config().calendar.map(|calendar| calendar.window(answer.snapshot.at));
            let period_ms = window.map_or(body.period_ms, |(from, until)| from.abs_diff(until));
            // The moment of a rolling window may be the end of a grain. A copy would take it for a clock that has stepped back since.
            let ahead_ms = answer.snapshot.at.saturating_sub(now);
            match u64::try_from(ahead_ms) {
                Ok(ahead_ms @ 1..) if limit.limit().is_rolling() => {
                    let standing = Exact { at: now, ..body.standing };
                    LimitBody { period_ms: period_ms.saturating_add(ahead_ms), standing, ..body }
                }
                _ => LimitBody { period_ms, ..body },
            }
        };
        asked.map(body).collect()
    }
}
