//! What was in force for one key or prefix, and since when; as values and as bytes.
//!
//! ```text
//! for each change, oldest first; numbers are LEB128, seven bits to a byte and the least first
//!   number   the moment, in Unix milliseconds
//!   1 byte   what is in force from then on: 0 nothing, 1 banned, 2 unlimited, 3 a multiple, 4 other numbers
//!   number   unless nothing: when it ends, 0 for never
//!   numbers  of a multiple: numerator, denominator
//!   of other numbers: how many limits, then for each
//!     text     the name after its length, empty for none
//!     1 byte   0 a token bucket, 1 a fixed window
//!     numbers  rate, period_ms, capacity, max_debt, write_ahead; initial and offset_ms, each plus one, 0 for none
//! ```

use super::plan::{Multiple, Numbers, Plan};
use crate::limit::{Config, Kind, Limit};

/// The changes of one key or prefix, oldest first, at most [`MAX_CHANGES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub(super) changes: Vec<Change>,
}

/// From a moment on, another override or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) since: i64,
    pub(super) state: Option<InForce>,
}

/// An override that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// What it makes of the policy.
    pub plan: Plan,
    /// When it ends, in Unix milliseconds.
    pub until: Option<i64>,
}

/// The most changes that are kept of one key or prefix. The oldest are forgotten first.
pub const MAX_CHANGES: usize = 8;

/// One moment at which something changes, with all ends carried out.
pub(super) struct Step<'a> {
    pub(super) since: i64,
    pub(super) state: Option<&'a InForce>,
}

impl History {
    /// Records that from `since` on, a moment after all others, this override is in force, or none.
    pub fn push(&mut self, since: i64, state: Option<InForce>) {
        // A ban, or its end, leaves the limits as they were: many of them must not crowd out what levels depend on.
        let is_neutral = |change: &Change| change.state.as_ref().is_none_or(|state| state.plan.is_neutral());
        if self.changes.len().saturating_add(1) >= MAX_CHANGES
            && let Some(first) = self.changes.windows(2).position(|pair| pair.iter().all(is_neutral))
        {
            self.changes.remove(first.saturating_add(1));
        }
        self.changes.push(Change { since, state });
        let surplus = self.changes.len().saturating_sub(MAX_CHANGES);
        self.changes.drain(..surplus);
    }

    /// The override in force at `now`.
    #[must_use]
    pub fn at(&self, now: i64) -> Option<&InForce> {
        self.steps(now).last()?.state
    }

    /// The latest change: since when, and what is in force since then unless it has ended.
    #[must_use]
    pub fn latest(&self) -> Option<(i64, Option<&InForce>)> {
        self.changes.last().map(|change| (change.since, change.state.as_ref()))
    }

    /// The changes up to `now`, and the ends among them. What the registry says is in force already counts, even if its clock
    /// is ahead of this one.
    pub(super) fn steps(&self, now: i64) -> Vec<Step<'_>> {
        let mut steps = Vec::with_capacity(self.changes.len());
        let nexts = self.changes.iter().skip(1).map(|next| next.since).chain([i64::MAX]);
        for (change, next) in self.changes.iter().zip(nexts) {
            let Change { since, ref state } = *change;
            steps.push(Step { since, state: state.as_ref() });
            if let Some(end) = state.as_ref().and_then(|state| state.until)
                && end <= now
                && end < next
            {
                steps.push(Step { since: end.max(since), state: None });
            }
        }
        steps
    }

    /// Since when everything is known; `None` if it has always been.
    pub(super) fn known_since(&self) -> Option<i64> {
        self.changes.first().filter(|_| self.changes.len() >= MAX_CHANGES).map(|change| change.since)
    }

    /// Whether anything was in force before that moment.
    pub(super) fn began_before(&self, moment: i64) -> bool {
        self.changes.first().is_some_and(|change| change.since < moment)
    }

    /// The next moment after `now` at which [`History::steps`] are others.
    pub(super) fn next_end(&self, now: i64) -> Option<i64> {
        self.changes.last()?.state.as_ref()?.until.filter(|&end| end > now)
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Change { since, state } in &self.changes {
            number(&mut bytes, since.max(&0).cast_unsigned());
            let Some(InForce { plan, until }) = state else {
                bytes.push(0);
                continue;
            };
            bytes.push(match plan {
                Plan::Banned => 1,
                Plan::Unlimited => 2,
                Plan::Multiple(_) => 3,
                Plan::Limits(_) => 4,
            });
            number(&mut bytes, until.unwrap_or(0).max(0).cast_unsigned());
            match plan {
                Plan::Banned | Plan::Unlimited => {}
                Plan::Multiple(Multiple { numerator, denominator }) => {
                    number(&mut bytes, *numerator);
                    number(&mut bytes, *denominator);
                }
                Plan::Limits(limits) => {
                    number(&mut bytes, limits.len() as u64);
                    for limit in limits {
                        limit.encode(&mut bytes);
                    }
                }
            }
        }
        bytes
    }

    /// What [`History::encode`] wrote; `None` for other bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let mut changes = Vec::new();
        while !rest.0.is_empty() {
            let (since, kind) = (rest.moment()?, rest.byte()?);
            if kind == 0 {
                changes.push(Change { since, state: None });
                continue;
            }
            let until = Some(rest.moment()?).filter(|&until| until > 0);
            let plan = match kind {
                1 => Plan::Banned,
                2 => Plan::Unlimited,
                3 => {
                    let (numerator, denominator) = (rest.number()?, rest.number()?);
                    let multiple = Multiple { numerator, denominator };
                    Plan::Multiple(Some(multiple).filter(|_| numerator > 0 && denominator > 0)?)
                }
                4 => {
                    let count = rest.number()?;
                    Plan::Limits((0..count).map(|_| Numbers::decode(&mut rest)).collect::<Option<_>>()?)
                }
                _ => return None,
            };
            changes.push(Change { since, state: Some(InForce { plan, until }) });
        }
        Some(Self { changes })
    }
}

impl Numbers {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms } = *self.limit.config();
        let name = self.name.as_deref().unwrap_or_default();
        number(bytes, name.len() as u64);
        bytes.extend(name.as_bytes());
        bytes.push(match kind {
            Kind::TokenBucket => 0,
            Kind::FixedWindow => 1,
        });
        let optional = |value: Option<u64>| value.map_or(0, |value| value.saturating_add(1));
        for value in [rate, period_ms, capacity, max_debt, self.write_ahead, optional(initial), optional(offset_ms)] {
            number(bytes, value);
        }
    }

    fn decode(rest: &mut Rest<'_>) -> Option<Self> {
        let len = usize::try_from(rest.number()?).ok()?;
        let name = std::str::from_utf8(rest.slice(len)?).ok()?;
        let kind = match rest.byte()? {
            0 => Kind::TokenBucket,
            1 => Kind::FixedWindow,
            _ => return None,
        };
        let (rate, period_ms, capacity, max_debt) = (rest.number()?, rest.number()?, rest.number()?, rest.number()?);
        let write_ahead = rest.number()?;
        let (initial, offset_ms) = (rest.number()?.checked_sub(1), rest.number()?.checked_sub(1));
        let config = Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms };
        let name = Some(name).filter(|name| !name.is_empty()).map(str::to_owned);
        Some(Self { name, limit: Limit::new(&config).ok()?, write_ahead })
    }
}

/// Appends a number.
pub(super) fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

/// Bytes that are being read.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            value |= bits.checked_shl(shift).filter(|shifted| shifted.checked_shr(shift) == Some(bits))?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn moment(&mut self) -> Option<i64> {
        i64::try_from(self.number()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MAX_TOKENS;

    fn history() -> History {
        let numbers = |name: Option<&str>, config: Config, write_ahead| {
            let limit = Limit::new(&config).unwrap();
            Numbers { name: name.map(str::to_owned), limit, write_ahead }
        };
        let window =
            Config { capacity: 9, initial: Some(0), offset_ms: Some(300), ..Config::fixed_window(7, 86_400_000) };
        let limits = vec![numbers(Some("a"), Config::token_bucket(100, 60_000), 5), numbers(None, window, 0)];
        let mut history = History::default();
        for (since, plan) in [
            (1, Some(Plan::Banned)),
            (200, Some(Plan::Unlimited)),
            (1_800_000_000_000, None),
            (1_800_000_000_001, Some(Plan::Multiple(Multiple { numerator: MAX_TOKENS, denominator: u64::MAX }))),
            (i64::MAX, Some(Plan::Limits(limits))),
        ] {
            let until = (since > 1).then_some(since);
            history.push(since, plan.map(|plan| InForce { plan, until }));
        }
        history
    }

    #[test]
    fn bytes_are_read_back() {
        let history = history();
        assert_eq!(History::decode(&history.encode()), Some(history));
        assert_eq!(History::decode(&[]), Some(History::default()));
    }

    /// The registry stores it, and isolates of neighbouring versions read it.
    #[test]
    fn the_format_is_unchanged() {
        let mut short = History::default();
        let plan = Plan::Multiple(Multiple { numerator: 300, denominator: 2 });
        short.push(5, Some(InForce { plan, until: Some(128) }));
        short.push(127, None);
        let limit = Limit::new(&Config::token_bucket(1, 1_000)).unwrap();
        let plan = Plan::Limits(vec![Numbers { name: Some("ab".into()), limit, write_ahead: 1 }]);
        short.push(300, Some(InForce { plan, until: None }));
        let expected = [
            &[5, 3, 0x80, 1, 0xac, 2, 2][..],
            &[127, 0],
            &[0xac, 2, 4, 0, 1, 2, b'a', b'b', 0, 1, 0xe8, 7, 1, 0, 1, 0, 0],
        ];
        assert_eq!(short.encode(), expected.concat());
    }

    #[test]
    fn other_bytes_are_refused_and_never_panic() {
        let bytes = history().encode();
        let ends: Vec<_> = (0..=bytes.len()).filter(|&len| History::decode(&bytes[..len]).is_some()).collect();
        assert_eq!(ends.len(), 6, "after each change: {ends:?}");
        for at in 0..bytes.len() {
            for value in [0, 1, 5, 0x7f, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                _ = History::decode(&bytes);
            }
        }
        assert_eq!(Rest(&[0xff; 10]).number(), None);
        assert_eq!(Rest(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).number(), Some(u64::MAX));
        assert_eq!(Rest(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number(), None);
    }

    #[test]
    fn an_override_is_in_force_until_its_end_or_the_next_change() {
        let in_force = |plan: Plan, until| Some(InForce { plan, until });
        let mut history = History::default();
        history.push(10, in_force(Plan::Banned, Some(20)));
        history.push(30, in_force(Plan::Unlimited, Some(50)));
        history.push(40, in_force(Plan::Banned, Some(60)));
        let steps = |now| {
            let steps = history.steps(now).into_iter();
            steps.map(|step| (step.since, step.state.map(|state| state.plan.clone()))).collect::<Vec<_>>()
        };
        let (banned, unlimited) = (Some(Plan::Banned), Some(Plan::Unlimited));
        let before = vec![(10, banned.clone()), (20, None), (30, unlimited), (40, banned)];
        assert_eq!(steps(59), before);
        assert_eq!(steps(60), [before, vec![(60, None)]].concat());
        assert_eq!((history.at(59).map(|state| &state.plan), history.at(60)), (Some(&Plan::Banned), None));
        assert_eq!((history.next_end(59), history.next_end(60)), (Some(60), None));
    }

    #[test]
    fn the_oldest_changes_are_forgotten_first() {
        let mut history = History::default();
        let push = |history: &mut History, since: i64, plan| history.push(since, Some(InForce { plan, until: None }));
        for since in 0..20_i64 {
            let numerator = since.unsigned_abs().saturating_add(1);
            push(&mut history, since, Plan::Multiple(Multiple { numerator, denominator: 1 }));
        }
        let since = |history: &History| history.steps(99).iter().map(|step| step.since).collect::<Vec<_>>();
        assert_eq!(since(&history), (12..20).collect::<Vec<_>>());
        // Many bans in succession push out no more than two.
        for since in 20..40 {
            push(&mut history, since, Plan::Banned);
        }
        assert_eq!(since(&history), [14, 15, 16, 17, 18, 19, 20, 39]);
    }
}
