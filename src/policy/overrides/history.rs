//! What was in force for one key or prefix over time, as values and as bytes.
//!
//! ```text
//! for each change, oldest first; numbers are LEB128, seven bits to a byte and the least first
//!   number   the moment, in Unix milliseconds
//!   if it says how tokens come over: 1 byte, 6, then 1 byte: the place of the way among `Carry::ALL`
//!   if the change stands for several: 1 byte, 5; how many plans there were, then each: 1 byte, 1, 3 or 4, and its numbers
//!   1 byte   what is in force from then on: 0 nothing, 1 banned, 2 unlimited, 3 a multiple, 4 other numbers
//!   number   unless nothing: when it ends, 0 for never
//!   numbers  of a multiple: numerator, denominator
//!   of other numbers: how many limits, then for each
//!     text     the name after its length, empty for none
//!     1 byte   0 a token bucket, 1 a fixed window, 2 one from first use, 3 one of a calendar, 4 a rolling window
//!     numbers  rate, period_ms, capacity, max_debt, write_ahead; initial and offset_ms, each plus one, 0 for none
//!     text     of a calendar, after its length
//!     1 byte   of a rolling window, how many grains
//! ```

use std::mem;

use super::plan::{Multiple, Numbers, Plan};
use crate::limit::DEFAULT_GRAINS;
use crate::limit::{Calendar, Carry, Config, Kind, Limit};
use crate::policy::weakest::Coarseness;
use crate::zones;

/// The changes of one key or prefix, oldest first, at most [`MAX_CHANGES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub(super) changes: Vec<Change>,
}

/// Another override, or none, from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) since: i64,
    /// If it stands for several, the last of them.
    pub(super) state: Option<InForce>,
    /// Other plans possibly in force since then; empty unless it stands for several. [`Plan::Banned`] represents any that does not change
    /// the numbers.
    pub(super) beside: Vec<Plan>,
    /// How tokens are carried over at that moment; `None` for the default.
    pub(super) carry: Option<Carry>,
}

/// An override in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Its effect on the policy.
    pub plan: Plan,
    /// When it ends, in Unix milliseconds.
    pub until: Option<i64>,
}

/// Maximum changes kept of one key or prefix. Beyond that, one stands for several, as if the weakest of them had been in force all the
/// time.
pub const MAX_CHANGES: usize = 8;

/// A moment at which something changes, including ends.
pub(super) struct Step<'a> {
    pub(super) since: i64,
    pub(super) state: Option<&'a InForce>,
    pub(super) beside: &'a [Plan],
    pub(super) carry: Option<Carry>,
}

impl Step<'_> {
    /// The plans possibly in force.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.state.map(|state| &state.plan).into_iter().chain(self.beside)
    }

    /// Whether a less specific override, or the policy, may apply.
    pub(super) fn is_neutral(&self) -> bool {
        self.state.is_none() || self.plans().any(Plan::is_neutral)
    }
}

impl History {
    /// Records that this override, or none, is in force from `since` on, a moment after all others. `carry` says how tokens are carried
    /// over, if not by default.
    pub fn push(&mut self, since: i64, state: Option<InForce>, carry: Option<Carry>) {
        self.changes.push(Change { since, state, beside: Vec::new(), carry });
        while self.changes.len() > MAX_CHANGES
            && let Some(index) = self.cheapest(since)
        {
            let second = self.changes.remove(index.saturating_add(1));
            // Tokens carried over unchanged must not get the difference of the capacities after all.
            let may_gain = matches!(second.carry, Some(Carry::AsIs | Carry::Proportional));
            if let Some(next) = self.changes.get_mut(index.saturating_add(1)).filter(|_| may_gain) {
                next.carry = next.carry.filter(|carry| *carry == Carry::Reset).or(Some(Carry::AsIs));
            }
            if let Some(first) = self.changes.get_mut(index) {
                first.merge(second);
            }
        }
    }

    /// The change that is cheapest to merge with the next: equal numbers cost nothing; otherwise the older, the cheaper.
    fn cheapest(&self, now: i64) -> Option<usize> {
        let price = |(index, three): (usize, &[Change])| {
            let [first, second, next] = three else { return None };
            Some((!first.is_same_as(second), Coarseness::of(first.since, next.since, now), index))
        };
        self.changes.windows(3).enumerate().filter_map(price).min().map(|(_, _, index)| index)
    }

    /// The override in force at `now`.
    #[must_use]
    pub fn at(&self, now: i64) -> Option<&InForce> {
        self.steps(now).last()?.state
    }

    /// The latest change: its moment, and what is in force since then unless it has ended.
    #[must_use]
    pub fn latest(&self) -> Option<(i64, Option<&InForce>)> {
        self.changes.last().map(|change| (change.since, change.state.as_ref()))
    }

    /// The changes up to `now`, and the ends among them. A change in force at the registry counts even if the registry's clock is ahead of
    /// this one.
    pub(super) fn steps(&self, now: i64) -> Vec<Step<'_>> {
        let mut steps = Vec::with_capacity(self.changes.len());
        let nexts = self.changes.iter().skip(1).map(|next| next.since).chain([i64::MAX]);
        for (change, next) in self.changes.iter().zip(nexts) {
            let Change { since, ref state, ref beside, carry } = *change;
            steps.push(Step { since, state: state.as_ref(), beside, carry });
            if let Some(end) = state.as_ref().and_then(|state| state.until)
                && end <= now
                && end < next
            {
                // As at its start, but an end resets nothing.
                let carry = carry.filter(|carry| *carry != Carry::Reset);
                steps.push(Step { since: end.max(since), state: None, beside: &[], carry });
            }
        }
        steps
    }

    /// The next moment after `now` at which [`History::steps`] differ.
    pub(super) fn next_end(&self, now: i64) -> Option<i64> {
        self.changes.last()?.state.as_ref()?.until.filter(|&end| end > now)
    }

    /// Encodes the history as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Change { since, state, beside, carry } in &self.changes {
            number(&mut bytes, since.max(&0).cast_unsigned());
            if let Some(place) = carry.and_then(|carry| Carry::ALL.iter().position(|one| *one == carry)) {
                bytes.extend([CARRIED, u8::try_from(place).unwrap_or(u8::MAX)]);
            }
            if !beside.is_empty() {
                bytes.push(SEVERAL);
                number(&mut bytes, beside.len() as u64);
            }
            for plan in beside {
                bytes.push(plan.kind());
                plan.encode(&mut bytes);
            }
            let Some(InForce { plan, until }) = state else {
                bytes.push(NOTHING);
                continue;
            };
            bytes.push(plan.kind());
            number(&mut bytes, until.unwrap_or(0).max(0).cast_unsigned());
            plan.encode(&mut bytes);
        }
        bytes
    }

    /// Decodes bytes from [`History::encode`]; `None` for others.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let mut changes = Vec::new();
        while !rest.0.is_empty() {
            let (since, mut kind, mut beside) = (rest.moment()?, rest.byte()?, Vec::new());
            let mut carry = None;
            if kind == CARRIED {
                carry = Some(*Carry::ALL.get(usize::from(rest.byte()?))?);
                kind = rest.byte()?;
            }
            if kind == SEVERAL {
                for _ in 0..rest.number()? {
                    let kind = rest.byte()?;
                    beside.push(Plan::decode(kind, &mut rest)?);
                }
                kind = rest.byte()?;
            }
            let state = if kind == NOTHING {
                None
            } else {
                let until = Some(rest.moment()?).filter(|&until| until > 0);
                Some(InForce { plan: Plan::decode(kind, &mut rest)?, until })
            };
            changes.push(Change { since, state, beside, carry });
        }
        Some(Self { changes })
    }
}

const NOTHING: u8 = 0;
const SEVERAL: u8 = 5;
const CARRIED: u8 = 6;

impl Change {
    /// Whether the numbers are those of a less specific override or of the policy.
    fn is_neutral(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.plan.is_neutral()) && self.beside.iter().all(Plan::is_neutral)
    }

    /// Whether the numbers are the same in both periods.
    fn is_same_as(&self, next: &Self) -> bool {
        let plans = |change: &Self| change.state.as_ref().map(|state| state.plan.clone());
        let is_single = self.beside.is_empty() && next.beside.is_empty();
        if next.carry == Some(Carry::Reset) {
            return false;
        }
        self.is_neutral() && next.is_neutral() || is_single && !self.ends_before(next) && plans(self) == plans(next)
    }

    /// Whether nothing is in force for a while before the next.
    fn ends_before(&self, next: &Self) -> bool {
        self.state.as_ref().is_none_or(|state| state.until.is_some_and(|until| until < next.since))
    }

    /// Merges the next one into this.
    fn merge(&mut self, next: Self) {
        if self.is_same_as(&next) {
            self.state = next.state.filter(|state| !state.plan.is_neutral());
            self.beside.clear();
            return;
        }
        let ends_before = self.ends_before(&next);
        let mut beside = mem::take(&mut self.beside);
        let before = mem::replace(&mut self.state, next.state);
        let plans = [before, self.state.clone()].map(|state| state.map_or(Plan::Banned, |state| state.plan));
        for plan in plans.into_iter().chain(next.beside).chain(ends_before.then_some(Plan::Banned)) {
            plan.add_to(&mut beside);
        }
        self.beside = beside;
    }
}

impl Plan {
    const fn kind(&self) -> u8 {
        match self {
            Self::Banned => 1,
            Self::Unlimited => 2,
            Self::Multiple(_) => 3,
            Self::Limits(_) => 4,
        }
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Banned | Self::Unlimited => {}
            Self::Multiple(Multiple { numerator, denominator }) => {
                number(bytes, *numerator);
                number(bytes, *denominator);
            }
            Self::Limits(limits) => {
                number(bytes, limits.len() as u64);
                for limit in limits {
                    limit.encode(bytes);
                }
            }
        }
    }

    fn decode(kind: u8, rest: &mut Rest<'_>) -> Option<Self> {
        Some(match kind {
            1 => Self::Banned,
            2 => Self::Unlimited,
            3 => {
                let (numerator, denominator) = (rest.number()?, rest.number()?);
                let multiple = Multiple { numerator, denominator };
                Self::Multiple(Some(multiple).filter(|_| numerator > 0 && denominator > 0)?)
            }
            4 => {
                let count = rest.number()?;
                Self::Limits((0..count).map(|_| Numbers::decode(rest)).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl Numbers {
    fn encode(&self, bytes: &mut Vec<u8>) {
        // Whether it is soft is the policy's: an override has other numbers.
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, calendar, is_soft: _ } =
            *self.limit.config();
        let name = self.account.as_deref().unwrap_or_default();
        number(bytes, name.len() as u64);
        bytes.extend(name.as_bytes());
        bytes.push(match kind {
            _ if calendar.is_some() => 3,
            Kind::TokenBucket => 0,
            Kind::FixedWindow => 1,
            Kind::FirstUseWindow => 2,
            Kind::RollingWindow => 4,
        });
        let optional = |value: Option<u64>| value.map_or(0, |value| value.saturating_add(1));
        for value in [rate, period_ms, capacity, max_debt, self.write_ahead, optional(initial), optional(offset_ms)] {
            number(bytes, value);
        }
        if kind == Kind::RollingWindow {
            bytes.push(self.grains);
        }
        if let Some(calendar) = calendar {
            let text = calendar.to_string();
            number(bytes, text.len() as u64);
            bytes.extend(text.as_bytes());
        }
    }

    fn decode(rest: &mut Rest<'_>) -> Option<Self> {
        let len = usize::try_from(rest.number()?).ok()?;
        let name = std::str::from_utf8(rest.slice(len)?).ok()?;
        let kind_byte = rest.byte()?;
        let kind = match kind_byte {
            0 => Kind::TokenBucket,
            1 | 3 => Kind::FixedWindow,
            2 => Kind::FirstUseWindow,
            4 => Kind::RollingWindow,
            _ => return None,
        };
        let (rate, period_ms, capacity, max_debt) = (rest.number()?, rest.number()?, rest.number()?, rest.number()?);
        let write_ahead = rest.number()?;
        let (initial, offset_ms) = (rest.number()?.checked_sub(1), rest.number()?.checked_sub(1));
        let calendar = if kind_byte == 3 {
            let len = usize::try_from(rest.number()?).ok()?;
            let text = std::str::from_utf8(rest.slice(len)?).ok()?;
            Calendar::parse(text, zones::named)
        } else {
            None
        };
        let grains = if kind == Kind::RollingWindow { rest.byte()? } else { DEFAULT_GRAINS };
        // In a time zone that only a later runtime knows, nothing comes back: what else the override says must hold.
        let rate = if kind_byte == 3 && calendar.is_none() { 0 } else { rate };
        let config = Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, calendar, is_soft: false };
        let account = Some(name).filter(|name| !name.is_empty()).map(str::to_owned);
        Some(Self { account, limit: Limit::of_any_kind(&config).ok()?, write_ahead, grains })
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

/// The bytes still to be read.
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
    use std::time::Duration;

    use super::*;
    use crate::limit::{MAX_TOKENS, Zone};

    #[test]
    fn numbers_in_an_unknown_time_zone_add_nothing_and_hide_nothing_else() {
        let of_calendar = |zone| {
            let calendar = Calendar::month(zone, 15).unwrap();
            Limit::new(&Config::calendar_window(7, calendar)).unwrap()
        };
        let nowhere: &Zone = Box::leak(Box::new(Zone::new("Test/Nowhere", &[]).unwrap()));
        for (zone, read) in [
            (&Zone::UTC, of_calendar(&Zone::UTC)),
            (nowhere, Limit::new(&Config { rate: 0, calendar: None, ..*of_calendar(nowhere).config() }).unwrap()),
        ] {
            let history = |limit| {
                let mut history = History::default();
                let limits =
                    Plan::Limits(vec![Numbers { account: None, limit, write_ahead: 3, grains: DEFAULT_GRAINS }]);
                for (since, plan) in [(1, limits), (2, Plan::Banned)] {
                    history.push(since, Some(InForce { plan, until: None }), None);
                }
                history
            };
            let bytes = history(of_calendar(zone)).encode();
            assert_eq!(History::decode(&bytes), Some(history(read)), "the ban is still there");
        }
    }

    /// The format in the storage of every deployment.
    #[test]
    fn a_rolling_window_is_stored_with_its_grains() {
        let config = Config { kind: Kind::RollingWindow, ..Config::token_bucket(7, Duration::from_millis(100)) };
        let limit = Limit::of_any_kind(&config).unwrap();
        let mut history = History::default();
        let limits = Plan::Limits(vec![Numbers { account: Some("a".to_owned()), limit, write_ahead: 3, grains: 240 }]);
        history.push(1, Some(InForce { plan: limits, until: None }), None);
        let bytes = history.encode();
        assert!(bytes.ends_with(&[1, b'a', 4, 7, 100, 7, 0, 3, 0, 0, 240]), "{bytes:?}");
        assert_eq!(History::decode(&bytes), Some(history));
        assert_eq!(History::decode(&bytes[..bytes.len() - 1]), None);
    }

    fn history() -> History {
        let numbers = |name: Option<&str>, config: Config, write_ahead| {
            let limit = Limit::new(&config).unwrap();
            Numbers { account: name.map(str::to_owned), limit, write_ahead, grains: DEFAULT_GRAINS }
        };
        let window = Config {
            capacity: 9,
            initial: Some(0),
            offset_ms: Some(300),
            ..Config::fixed_window(7, Duration::from_hours(24))
        };
        let limits =
            vec![numbers(Some("a"), Config::token_bucket(100, Duration::from_mins(1)), 5), numbers(None, window, 0)];
        let mut history = History::default();
        for (since, plan) in [
            (1, Some(Plan::Banned)),
            (200, Some(Plan::Unlimited)),
            (1_800_000_000_000, None),
            (1_800_000_000_001, Some(Plan::Multiple(Multiple { numerator: MAX_TOKENS, denominator: u64::MAX }))),
            (i64::MAX, Some(Plan::Limits(limits))),
        ] {
            let until = (since > 1).then_some(since);
            history.push(since, plan.map(|plan| InForce { plan, until }), (since == 200).then_some(Carry::Reset));
        }
        history
    }

    #[test]
    fn bytes_survive_a_round_trip() {
        let history = history();
        assert_eq!(History::decode(&history.encode()), Some(history));
        assert_eq!(History::decode(&[]), Some(History::default()));
    }

    /// The registry stores it, and isolates of neighbouring versions read it.
    #[test]
    fn the_format_is_unchanged() {
        let mut short = History::default();
        let plan = Plan::Multiple(Multiple { numerator: 300, denominator: 2 });
        short.push(5, Some(InForce { plan, until: Some(128) }), None);
        short.push(127, None, Some(Carry::ALL[2]));
        let limit = Limit::new(&Config::token_bucket(1, Duration::from_secs(1))).unwrap();
        let plan =
            Plan::Limits(vec![Numbers { account: Some("ab".into()), limit, write_ahead: 1, grains: DEFAULT_GRAINS }]);
        short.push(300, Some(InForce { plan, until: None }), None);
        let expected = [
            &[5, 3, 0x80, 1, 0xac, 2, 2][..],
            &[127, 6, 2, 0],
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
        history.push(10, in_force(Plan::Banned, Some(20)), None);
        history.push(30, in_force(Plan::Unlimited, Some(50)), None);
        history.push(40, in_force(Plan::Banned, Some(60)), None);
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

    fn plan(numerator: u64) -> Plan {
        if numerator == 0 { Plan::Banned } else { Plan::Multiple(Multiple { numerator, denominator: 1 }) }
    }

    #[test]
    fn surplus_changes_are_replaced_by_the_weakest_of_their_neighbours() {
        let mut history = History::default();
        let push =
            |history: &mut History, since: i64, plan| history.push(since, Some(InForce { plan, until: None }), None);
        let steps = |history: &History| {
            let steps = history.steps(i64::MAX).into_iter();
            steps.map(|step| (step.since, step.beside.to_vec())).collect::<Vec<_>>()
        };
        for since in 0..8_i64 {
            push(&mut history, since, plan(since.unsigned_abs() + 2));
        }
        assert_eq!(steps(&history), (0..8).map(|since| (since, vec![])).collect::<Vec<_>>());
        push(&mut history, 8, plan(10));
        let rest = |from: i64| (from..=8).map(|since| (since, vec![]));
        assert_eq!(steps(&history), [(0, vec![plan(2)])].into_iter().chain(rest(2)).collect::<Vec<_>>());
        assert_eq!(History::decode(&history.encode()), Some(history.clone()));
        // Many bans in succession, or the same numbers with another end, replace a single change.
        for since in 9..40 {
            push(&mut history, since, Plan::Banned);
        }
        let bans = [(9, vec![]), (39, vec![])];
        let before = steps(&history);
        assert_eq!((before.len(), &before[6..]), (MAX_CHANGES, &bans[..]));
        for since in 40..70 {
            history.push(since, Some(InForce { plan: plan(3), until: Some(since + 2) }), None);
        }
        assert_eq!(steps(&history).iter().filter(|(since, _)| *since >= 40).count(), 3, "two, and the end of the last");
        // One that ends before the next is not continuous with it.
        history.push(100, Some(InForce { plan: plan(3), until: None }), None);
        for since in 101..200 {
            push(&mut history, since, plan(if since % 2 == 0 { 0 } else { 5 }));
        }
        let all = steps(&history);
        assert_eq!(history.changes.len(), MAX_CHANGES);
        assert!(
            all.iter().any(|(_, beside)| *beside == [plan(0), plan(5)] || *beside == [plan(5), plan(0)]),
            "{all:?}"
        );
        assert_eq!(history.at(500).map(|state| &state.plan), Some(&plan(5)), "the latest is exact");
    }

    #[test]
    fn several_numbers_for_one_limit_are_replaced_by_the_weakest() {
        let numbers = |name: &str, rate, capacity| {
            let limit = Limit::new(&Config { capacity, ..Config::token_bucket(rate, Duration::from_secs(1)) }).unwrap();
            Numbers { account: Some(name.to_owned()), limit, write_ahead: 0, grains: DEFAULT_GRAINS }
        };
        let mut plans = Vec::new();
        for plan in [
            Plan::Limits(vec![numbers("a", 1, 9)]),
            Plan::Multiple(Multiple { numerator: 5, denominator: 2 }),
            Plan::Limits(vec![numbers("a", 3, 4)]),
            Plan::Multiple(Multiple { numerator: 7, denominator: 3 }),
        ] {
            plan.add_to(&mut plans);
        }
        let least = Plan::Multiple(Multiple { numerator: 7, denominator: 3 });
        assert_eq!(plans, [Plan::Limits(vec![numbers("a", 1, 4)]), least.clone()]);
        // One of them leaves a limit unchanged.
        Plan::Limits(vec![numbers("b", 2, 2)]).add_to(&mut plans);
        let both = Plan::Limits(vec![numbers("a", 1, 4), numbers("b", 2, 2)]);
        assert_eq!(plans, [both, least, Plan::Banned]);
    }
}
