//! A bucket's row: its levels, with the numbers that give them their meaning.
//!
//! ```text
//! byte 0     2: this format
//! 2 bytes    the length of the numbers
//! then       the numbers of all limits, JSON: those of the policy first, then the dormant ones: the accounts of other numbers, and limits
//!            of other versions
//! 1 byte     how many there are
//! then       their states: see `limit::encode`, with the version of the policy's own numbers
//! then       any number of parts, of which readers ignore those that they do not know:
//!   1 byte   its kind
//!   2 bytes  the length of the rest of it
//!   kind 1, of a policy that a registry has
//!     8 bytes  the latest change that its frontend knew
//!     8 bytes  since when the policy is in force
//!     8 bytes  the id of its definition
//!     then     its definition without the earlier versions
//!   kind 2, of a policy that no registry has, if its numbers came with a request or there are dormant limits
//!     1 byte   how many limits it has
//!     1 byte   of numbers that came with a request, 1 if the states are exact, 0 if they may be lower and older; 2 of others
//!   kind 3, of one of which tokens are leased out, which the states do not have
//!     1 byte   how many states there are
//!     then     for each of them how many leased tokens it pays for at most, 8 bytes each; 2⁶⁴ − 1 for all
//!     then     for each lease its id, when it is over, and the tokens of each state's limit, 8 bytes each
//!   kind 4, of one whose states do not refill for a while: see `cover.rs`
//!     8 bytes  since when
//!   kind 5, of one with open reservations: see `limit/cuts.rs`
//!     then     their ids, 8 bytes each, in the order in which they were opened; with the highest bit if all was given back at their end
//!   kind 6, of the same, for each state
//!     25 bytes its newest piece, as a state
//!     then     for each reservation by how much the piece before it is above the piece after it, 8 bytes each
//!   kind 7, of one that has followed later versions than its own
//!     8 bytes  since when the latest of them is in force
//!   kind 8, of one with a rolling window, for each of which something is missing: see `log.rs`
//!     1 byte   the place of its state
//!     8 bytes  how long its grain is
//!     8 bytes  when something was last taken
//!     then     each moment that counts, how many tokens were taken then, and the id of their opening or 0, 8 bytes each
//! ```

use std::fmt;
use std::sync::Arc;

use super::bytes::Bytes;
use super::cover;
use super::log::Log;
use super::open_lease::OpenLease;
use crate::limit::{Cuts, Limit, Record, RecordError, State, encode};
use crate::policy::{NamedLimit, Policy, StoredConfigError, numbers_of, stored_limits};

/// A limit with its state, by account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedState {
    pub(super) name: Option<String>,
    pub(super) limit: Limit,
    pub(super) state: State,
    /// The state that depends on open reservations, if there are any.
    pub(super) cuts: Option<Cuts>,
    /// What was taken when, of a rolling window.
    pub(super) log: Log,
}

impl NamedState {
    pub(super) fn of(named: &NamedLimit, state: State) -> Self {
        Self::new(named.account(), named.limit(), state)
    }

    pub(super) fn new(name: Option<&str>, limit: &Limit, state: State) -> Self {
        Self { name: name.map(str::to_owned), limit: *limit, state, cuts: None, log: Log::default() }
    }

    /// Its name, limit, state and cuts.
    pub(super) fn parts(&mut self) -> (Option<&str>, &Limit, &mut State, Option<&mut Cuts>) {
        (self.name.as_deref(), &self.limit, &mut self.state, self.cuts.as_mut())
    }

    /// What was taken when, for an account that takes this one over: nothing is known of a limit of another kind.
    pub(super) fn log_for(&self, limit: &Limit) -> Log {
        if limit.is_rolling() { self.log.clone() } else { Log::default() }
    }

    /// When it is full, if ever and if in this state.
    pub(super) fn full_at(&self, state: &State, now: i64) -> Option<i64> {
        if self.limit.is_rolling() {
            return Some(self.log.over_at(&self.limit).unwrap_or(now).max(now));
        }
        self.limit.full_at(state, now)
    }

    /// Brings back what is back by now of a rolling window.
    pub(super) fn bring_back(&mut self, now: i64) {
        if self.limit.is_rolling() {
            self.state = self.limit.raised(&self.state, self.log.bring_back(&self.limit, now).tokens);
        }
    }

    /// Makes the log of a rolling window add up again, after its state has changed.
    pub(super) fn fit_log(&mut self, now: i64) {
        if self.limit.is_rolling() {
            self.log.fit(&self.limit, &self.state, now);
        }
    }

    /// Lowers it to `other`, which is of the same limit, where that is lower.
    pub(super) fn lower_to(&mut self, other: Self, now: i64) {
        self.state = self.limit.lower_of(&self.state, &other.state, now);
        if let Some((own, other)) = self.cuts.as_mut().zip(other.cuts) {
            own.lower_of(other, &self.limit, now);
        }
    }

    /// The moment up to which refills are credited, including that of a settlement, which may leave the state unchanged.
    pub(super) fn at(&self) -> i64 {
        let at = |state| self.limit.snapshot(state).at;
        self.cuts.as_ref().map(|cuts| at(cuts.newest())).max(Some(at(&self.state))).unwrap_or_default()
    }
}

/// Adds the parts of a row about open reservations: their ids, and for each state its newest piece and the steps.
pub(super) fn encode_cuts<'a>(
    openings: impl Iterator<Item = u64>,
    cuts: impl Iterator<Item = (&'a State, &'a [i64])>,
    row: &mut Vec<u8>,
) {
    let openings: Vec<_> = openings.flat_map(u64::to_le_bytes).collect();
    if openings.is_empty() {
        return;
    }
    let mut add = |kind, part: Vec<u8>| {
        row.push(kind);
        // At most 16 kB: `MAX_KEPT` openings, or those of the last expired reservation and `MAX_RESERVATIONS` more, 2000 in all.
        row.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes());
        row.extend(part);
    };
    add(OPENINGS, openings);
    for (newest, steps) in cuts {
        add(CUTS, encode(0, [*newest]).chain(steps.iter().flat_map(|step| step.to_le_bytes())).collect());
    }
}

/// Adds the part of a row about the rolling window whose state has that place.
pub(super) fn encode_log(place: usize, log: Vec<u8>, row: &mut Vec<u8>) {
    row.push(LOG);
    // At most 60 kB: 24 bytes for each of 480 moments, and of 2000 openings.
    row.extend(u16::try_from(log.len().saturating_add(1)).unwrap_or(u16::MAX).to_le_bytes());
    row.push(u8::try_from(place).unwrap_or(u8::MAX));
    row.extend(log);
}

/// The row of a bucket under `policy`, with `states` for its limits. `as_of` is the registry version known to the requesting frontend.
/// `reached` is the latest version that the bucket has followed. `is_exact`: every grant to come will be in a row.
pub(super) fn encode_row(
    policy: &Policy,
    as_of: i64,
    states: &[State],
    dormant: &[NamedState],
    reached: i64,
    is_exact: bool,
) -> Vec<u8> {
    let all;
    let numbers = if dormant.is_empty() {
        policy.numbers()
    } else {
        let awake = policy.limits().iter().map(|limit| (limit.account(), limit.limit()));
        all = numbers_of(awake.chain(dormant.iter().map(|limit| (limit.name.as_deref(), &limit.limit))));
        &all
    };
    let states = states.iter().copied().chain(dormant.iter().map(|limit| limit.state));
    let mut row = vec![FORMAT];
    // At most 64 limits of about 250 bytes.
    row.extend(u16::try_from(numbers.len()).unwrap_or(u16::MAX).to_le_bytes());
    row.extend(numbers.as_bytes());
    row.push(u8::try_from(states.clone().count()).unwrap_or(u8::MAX));
    row.extend(encode(policy.version(), states));
    if policy.timeline().since() != 0 {
        let definition = policy.definition_alone();
        let part = [as_of.to_le_bytes(), policy.timeline().since().to_le_bytes(), policy.id().to_le_bytes()].concat();
        row.push(REGISTERED);
        let len = part.len().saturating_add(definition.len());
        row.extend(u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()); // at most 8 limits of about 250 bytes
        row.extend(part);
        row.extend(definition.as_bytes());
    }
    if reached > policy.timeline().since() {
        row.extend([REACHED, 8, 0]);
        row.extend(reached.to_le_bytes());
    }
    let count = u8::try_from(policy.limits().len()).unwrap_or(u8::MAX);
    if policy.is_inline() {
        row.extend([UNREGISTERED, 2, 0, count, u8::from(is_exact)]);
    } else if policy.timeline().since() == 0 && !dormant.is_empty() {
        row.extend([UNREGISTERED, 2, 0, count, DEPLOYED]);
    }
    row
}

/// Adds the part of a row whose states do not refill before their moments.
pub(super) fn mark_covered(row: &mut Vec<u8>, since: i64) {
    row.extend([COVERED, 8, 0]);
    row.extend(since.to_le_bytes());
}

/// The version of a registry policy that a bucket is under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registered<'a> {
    /// The latest change known to the frontend. 0, like all fields here, if no registry has the policy.
    pub(super) as_of: i64,
    /// Since when the policy is in force.
    pub(super) since: i64,
    pub(super) id: u64,
    /// Without earlier versions.
    pub(super) definition: &'a str,
}

/// The kinds of parts.
const REGISTERED: u8 = 1;
const UNREGISTERED: u8 = 2;
pub(super) const LEASED: u8 = 3;
const COVERED: u8 = 4;
const OPENINGS: u8 = 5;
const CUTS: u8 = 6;
const REACHED: u8 = 7;
const LOG: u8 = 8;

/// In the part of a policy that no registry has: its numbers did not come with a request.
const DEPLOYED: u8 = 2;

/// A parsed row.
pub(super) struct StoredRow<'a> {
    numbers: &'a str,
    record: Record<'a>,
    pub(super) registered: Registered<'a>,
    /// The latest version that the bucket has followed; 0 if that is the last requested one.
    pub(super) reached: i64,
    /// How many of the limits are those of a policy that no registry has, if it says so.
    own_count: Option<u8>,
    /// Whether its numbers came with a request.
    pub(super) is_inline: bool,
    /// Whether all grants so far are in the row. Known only for such a policy.
    pub(super) is_exact: bool,
    /// The leases.
    pub(super) leased: Vec<OpenLease>,
    /// For each state how many leased tokens it pays for, if not for all.
    pub(super) owed: Vec<Option<u64>>,
    /// Since when it is covered: its states do not refill before their moments.
    pub(super) covered_since: Option<i64>,
    /// The openings: see `Opening`.
    pub(super) openings: Vec<u64>,
    /// The state that depends on them, for each state.
    cuts: Vec<Cuts>,
    /// What was taken when, of the states at these places.
    logs: Vec<(u8, Log)>,
}

impl<'a> StoredRow<'a> {
    pub(super) fn read(row: &'a [u8]) -> Result<Self, RowError> {
        let mut bytes = Bytes(row);
        match bytes.byte() {
            Some(FORMAT) => {}
            Some(format) => return Err(RowError::Format { format }),
            None => return Err(RowError::Short),
        }
        let len = bytes.array().map(u16::from_le_bytes).ok_or(RowError::Short)?;
        let numbers = bytes.text(len.into()).ok_or(RowError::Short)?;
        let count = bytes.byte().ok_or(RowError::Short)?;
        let record_len = 9_usize.saturating_add(usize::from(count).saturating_mul(16));
        let record = bytes.slice(record_len).ok_or(RowError::Short)?;
        let record = Record::parse(record).map_err(RowError::Record)?;
        let mut row = Self {
            numbers,
            record,
            registered: Registered::default(),
            reached: 0,
            own_count: None,
            is_inline: false,
            is_exact: false,
            leased: Vec::new(),
            owed: Vec::new(),
            covered_since: None,
            openings: Vec::new(),
            cuts: Vec::new(),
            logs: Vec::new(),
        };
        // An unreadable part is treated like an unknown kind.
        while row.read_part(&mut bytes).is_some() {}
        Ok(row)
    }

    /// Reads the next part, if there is one.
    fn read_part(&mut self, bytes: &mut Bytes<'a>) -> Option<()> {
        let (kind, len) = (bytes.byte()?, bytes.array().map(u16::from_le_bytes)?);
        let mut part = Bytes(bytes.slice(len.into())?);
        match kind {
            REGISTERED => {
                let (as_of, since, id) = (part.i64()?, part.i64()?, part.u64()?);
                self.registered = Registered { as_of, since, id, definition: std::str::from_utf8(part.0).ok()? };
            }
            UNREGISTERED => {
                let (count, flag) = (part.byte()?, part.byte()?);
                (self.own_count, self.is_inline, self.is_exact) = (Some(count), flag != DEPLOYED, flag == 1);
            }
            LEASED => {
                let limits = part.byte()?;
                let owed = (0..limits).map(|_| part.u64()).collect::<Option<Vec<_>>>()?;
                self.owed = owed.into_iter().map(|owed| (owed != u64::MAX).then_some(owed)).collect();
                while !part.is_empty() {
                    let (id, until) = (part.u64()?, part.i64()?);
                    let tokens = (0..limits).map(|_| part.u64()).collect::<Option<_>>()?;
                    self.leased.push(OpenLease { id, until, tokens });
                }
            }
            REACHED => self.reached = part.i64()?,
            COVERED => self.covered_since = Some(part.i64()?),
            OPENINGS => self.openings = std::iter::from_fn(|| part.u64()).collect(),
            CUTS => {
                let newest = Record::parse(part.slice(25)?).ok()?.states().next()?;
                self.cuts.push(Cuts::stored(newest, std::iter::from_fn(|| part.i64()).collect()));
            }
            LOG => self.logs.push((part.byte()?, Log::decode(&mut part)?)),
            _ => {}
        }
        Some(())
    }

    /// The states of `policy`'s limits, if the row was written under its numbers and has no others.
    pub(super) fn states_of(&self, policy: &Policy) -> Option<Vec<State>> {
        let limits = policy.limits();
        let is_same = self.record.policy_version() == policy.version() && self.record.states().len() == limits.len();
        is_same.then(|| self.record.states().collect())
    }

    /// The cuts of the state at that place.
    pub(super) fn cuts_of(&self, index: usize) -> Option<Cuts> {
        self.cuts.get(index).cloned()
    }

    /// What was taken when of the state at that place.
    pub(super) fn log_of(&self, index: usize) -> Log {
        let own = self.logs.iter().find(|(place, _)| usize::from(*place) == index);
        own.map(|(_, log)| log.clone()).unwrap_or_default()
    }

    /// A lower bound of the bucket's level at that moment, from one of its states.
    pub(super) fn uncovered(&self, limit: &Limit, state: &State, at: i64) -> State {
        self.covered_since.map_or(*state, |since| cover::uncovered(limit, state, since, at))
    }

    /// The version of the policy under which the row was written.
    pub(super) const fn policy_version(&self) -> u64 {
        self.record.policy_version()
    }

    /// Whether a rolling window lacks more than its log says: what may have been spent before a crash.
    pub(super) fn is_behind(&self) -> bool {
        if self.logs.is_empty() {
            return false; // no limit is a rolling window
        }
        let limits = stored_limits(self.numbers).unwrap_or_default();
        let mut all =
            limits.iter().zip(self.record.states()).enumerate().filter(|(_, ((_, limit), _))| limit.is_rolling());
        all.any(|(index, ((_, limit), state))| self.log_of(index).is_behind(limit, &state))
    }

    /// All limits in the row.
    pub(super) fn limits(&self, now: i64) -> Result<Vec<NamedState>, RowError> {
        let limits = stored_limits(self.numbers).map_err(RowError::Numbers)?;
        if limits.len() != self.record.states().len() {
            return Err(RowError::Count);
        }
        let all = limits.into_iter().zip(self.record.states()).enumerate();
        let named = |(index, ((name, limit), state))| {
            let cuts = self.cuts_of(index).map(|cuts| cuts.beside(&limit, &state, now));
            NamedState { name, limit, state, cuts, log: self.log_of(index) }
        };
        Ok(all.map(named).collect())
    }

    /// The policy under whose numbers the row was written: enough to give back tokens to a bucket that no request has opened.
    pub(super) fn policy(&self, name: &str) -> Result<Arc<Policy>, RowError> {
        let Registered { id, definition, .. } = self.registered;
        let policy = if definition.is_empty() {
            let count = self.own_count.map_or(usize::MAX, usize::from);
            let policy = Policy::from_numbers(name, self.numbers, count);
            policy.map(|policy| if self.is_inline { policy.into_inline() } else { policy })
        } else {
            Policy::from_definition(definition).map(|policy| policy.with_id(id))
        };
        policy.map(Arc::new).map_err(RowError::Numbers)
    }

    /// Its policy's name for the limit that had none at first.
    pub(super) fn unnamed(&self, policy: &str) -> Option<String> {
        self.policy(policy).ok()?.timeline().unnamed().map(str::to_owned)
    }
}

/// Why a stored row is unreadable. It must not be taken for a fresh bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowError {
    Format { format: u8 },
    Short,
    Count,
    Record(RecordError),
    Numbers(StoredConfigError),
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format { format } => write!(f, "the row has format {format}; this version reads {FORMAT}"),
            Self::Short => write!(f, "the row ends too early"),
            Self::Count => write!(f, "the record holds more or fewer states than there are limits"),
            Self::Record(error) => write!(f, "{error}"),
            Self::Numbers(error) => write!(f, "{error}"),
        }
    }
}

const FORMAT: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;
    use crate::policy::Policies;

    const NOW: i64 = 1_700_000_000_000;

    const NUMBERS: &[u8; 109] =
        br#"[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#;

    fn policy() -> Arc<Policy> {
        let policies = Policies::parse(r#"{"p":{"rate":3,"period":"1s"}}"#).unwrap();
        Arc::clone(policies.get("p").unwrap())
    }

    /// A token is 1000 drops.
    fn state(level: i64) -> Vec<u8> {
        [level.to_le_bytes(), NOW.to_le_bytes()].concat()
    }

    fn row(format: u8, states: &[u8]) -> Vec<u8> {
        let version = 0xb3e5_671b_e023_1d1a_u64.to_le_bytes();
        [&[format, 109, 0][..], NUMBERS, &[1, 1], &version, states].concat()
    }

    fn level(row: &[u8]) -> i64 {
        let policy = policy();
        let state = StoredRow::read(row).unwrap().states_of(&policy).unwrap()[0];
        policy.limits()[0].limit().snapshot(&state).tokens
    }

    /// The format in the storage of every deployment. If it changes, old buckets must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let policy = policy();
        let limit = *policy.limits()[0].limit();
        let mut spent = limit.new_state(NOW, 0);
        assert!(limit.consume(&mut spent, NOW, 1).is_allow());
        assert_eq!(encode_row(&policy, 0, &[spent], &[], 0, true), row(2, &state(2_000)));
        assert_eq!(StoredRow::read(&row(2, &state(2_000))).unwrap().states_of(&policy), Some(vec![spent]));
        let later = [&row(2, &state(2_000))[..], &[7, 7, 7]].concat();
        assert_eq!(level(&later), 2, "what a later version adds is ignored");

        let dormant = NamedState { name: Some("d".to_owned()), limit, state: spent, cuts: None, log: Log::default() };
        let two = encode_row(&policy, 0, &[spent], std::slice::from_ref(&dormant), 0, true);
        let names = [&NUMBERS[..108], br#",{"name":"d","#, &NUMBERS[2..]].concat();
        let head = [&[2, u8::try_from(names.len()).unwrap(), 0][..], &names, &[2]].concat();
        let own = [2, 2, 0, 1, 2];
        assert_eq!(two, [&head[..], &row(2, &[])[113..], &state(2_000), &state(2_000), &own].concat());
        let read = StoredRow::read(&two).unwrap();
        assert_eq!((read.states_of(&policy), read.limits(i64::MAX).unwrap().pop()), (None, Some(dormant)));
        let stored = read.policy("p").unwrap();
        assert!(!stored.is_inline() && stored.numbers() == policy.numbers(), "without the dormant one");
    }

    /// An older version reads the accounts of other numbers as dormant limits, and ignores the part at the end.
    #[test]
    fn a_row_says_how_many_of_its_limits_came_with_the_last_request() {
        let policy = Policy::inline("p", Json::parse("\"3/s\"").unwrap()).unwrap();
        let limit = *policy.limits()[0].limit();
        let mut spent = limit.new_state(NOW, 0);
        assert!(limit.consume(&mut spent, NOW, 1).is_allow());
        for (is_exact, flag) in [(true, 1), (false, 0)] {
            let bytes = encode_row(&policy, 0, &[spent], &[], 0, is_exact);
            assert_eq!(bytes, [&row(2, &state(2_000))[..], &[2, 2, 0, 1, flag]].concat());
            assert_eq!(StoredRow::read(&bytes).unwrap().is_exact, is_exact);
        }
        let other = Policy::inline("p", Json::parse("\"9/s\"").unwrap()).unwrap();
        let other = NamedState::of(&other.limits()[0], spent);
        let bytes = encode_row(&policy, 0, &[spent], std::slice::from_ref(&other), 0, true);
        let read = StoredRow::read(&bytes).unwrap();
        assert_eq!(read.limits(i64::MAX).unwrap().pop(), Some(other));
        let stored = read.policy("p").unwrap();
        assert!(stored.is_inline() && stored.numbers() == policy.numbers(), "without the others");
        for len in bytes.len() - 4..bytes.len() {
            let cut = StoredRow::read(&bytes[..len]).unwrap();
            assert_eq!((cut.own_count, cut.is_exact), (None, false), "a part that is cut is not read");
        }
    }

    /// An older version ignores the part, and does not refill before the moments of the states.
    #[test]
    fn a_row_says_since_when_it_is_covered() {
        let (policy, plain) = (policy(), row(2, &state(2_000)));
        let mut bytes = plain.clone();
        mark_covered(&mut bytes, NOW - 5);
        assert_eq!(bytes, [&plain[..], &[4, 8, 0], &(NOW - 5).to_le_bytes()].concat());
        let (limit, read) = (policy.limits()[0].limit(), StoredRow::read(&bytes).unwrap());
        let states = read.states_of(&policy).unwrap();
        for (now, at) in [(NOW - 9, NOW - 5), (NOW - 5, NOW - 5), (NOW - 2, NOW - 2), (NOW, NOW), (NOW + 1, NOW)] {
            assert_eq!(limit.snapshot(&read.uncovered(limit, &states[0], now)).at, at, "at {now}");
        }
        let plain = StoredRow::read(&plain).unwrap();
        assert_eq!(plain.uncovered(limit, &states[0], NOW - 2), states[0]);
    }

    #[test]
    fn foreign_bytes_are_an_error_and_not_a_fresh_bucket() {
        let good = row(2, &state(2_000));
        let read = |row: &[u8]| StoredRow::read(row).and_then(|row| row.limits(i64::MAX)).map(|limits| limits.len());
        assert_eq!(read(&good), Ok(1));
        assert_eq!(read(&[]), Err(RowError::Short));
        assert_eq!(read(&[&[3], &good[1..]].concat()), Err(RowError::Format { format: 3 }));
        for len in 1..good.len() {
            assert!(read(&good[..len]).is_err(), "{len} bytes");
        }
        let no_numbers = [&good[..3], b"x", &good[4..]].concat();
        assert_eq!(read(&no_numbers), Err(RowError::Numbers(StoredConfigError::Unreadable)));
    }
}
