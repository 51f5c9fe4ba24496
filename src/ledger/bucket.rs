//! One bucket: exact in memory; in storage, slightly lower.
//!
//! ```text
//! byte 0     1: this format
//! 2 bytes    the length of the numbers
//! then       the numbers under which the states were written, JSON
//! 1 byte     how many states there are
//! then       their record: see `tollgate::limit::encode`
//! then       what is remembered: see `replays.rs`
//! ```

use std::fmt;
use std::sync::Arc;

use super::bytes::Bytes;
use super::replays::Replays;
use crate::limit::{Carry, Limit, Record, RecordError, State, encode};
use crate::policy::{NamedLimit, Policy, StoredConfigError, stored_limits};

/// The bucket of one policy for the key.
///
/// `persisted <= states <= persisted + write_ahead`, limit by limit and at every moment once [`Bucket::row`] was asked: a crash may
/// cost tokens, at most a block, and never gives any back. The same holds while the runtime, in spite of its promise,
/// has two objects of one key: the older can spend only what the newer does not have.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Under which it was opened, and under whose numbers its states are.
    policy: Arc<Policy>,
    /// As it is; one for each limit of the policy.
    pub(super) states: Vec<State>,
    pub(super) replays: Replays,
    /// As it would be after a crash. `None` when storage has nothing, or something under other numbers.
    persisted: Option<Vec<State>>,
    /// Whether `persisted` lags behind on purpose.
    is_ahead_of_storage: bool,
    /// A row that is being written while nobody waits for it.
    in_flight: Option<(u32, Vec<State>)>,
    spent_at: Option<i64>,
    /// Whether anything was spent since the last look.
    is_busy: bool,
    need: Need,
}

/// What makes a row necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Nothing,
    /// Tokens moved: it depends on how many.
    Spent,
    /// Something must outlast a crash.
    Lasting,
    /// The states themselves must, just as they are: new numbers, or a clock that stepped back.
    Exact,
}

/// What is to be done with storage.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row {
    Nothing,
    /// To be written before anybody is told.
    BeforeReply(Vec<u8>),
    /// To be written now while nobody waits; see [`Bucket::confirm`].
    Background(Vec<u8>),
}

/// Idle time that ends a burst: short enough that an object is still awake, long enough that a client with
/// one request a second writes each of its grants once and not twice.
pub(super) const IDLE_MS: u64 = 1_000;

impl Bucket {
    /// The bucket of a key that has none.
    pub(super) fn new(policy: &Arc<Policy>, now: i64, phase: u64) -> Self {
        let states: Vec<_> = policy.limits().iter().map(|limit| limit.limit().new_state(now, phase)).collect();
        // One that is full is as good later; one that is not fills from now on.
        let is_full = expires_at(policy, &states, now) == Some(now);
        Self::of(
            Arc::clone(policy),
            states,
            None,
            Replays::default(),
            if is_full { Need::Nothing } else { Need::Exact },
        )
    }

    /// The bucket in a stored row, carried over if it was written under other numbers.
    pub(super) fn read(policy: &Arc<Policy>, row: &[u8], now: i64, phase: u64) -> Result<Self, RowError> {
        let stored = Stored::read(row)?;
        if stored.record.policy_version() == policy.version() {
            let states: Vec<_> = stored.record.states().collect();
            if states.len() != policy.limits().len() {
                return Err(RowError::Count);
            }
            return Ok(Self::of(Arc::clone(policy), states.clone(), Some(states), stored.replays, Need::Nothing));
        }
        let old = stored.limits()?;
        let old: Vec<_> = old.iter().map(|(name, limit, state)| (name.as_deref(), limit, *state)).collect();
        Ok(Self::of(Arc::clone(policy), carried(&old, policy, now, phase), None, stored.replays, Need::Exact))
    }

    /// Goes on under `policy`, which may have other numbers than the one before: a deployment, or a frontend that has
    /// another one. Tokens are carried over as if the bucket had been read from its row.
    pub(super) fn move_to(&mut self, policy: &Arc<Policy>, now: i64, phase: u64) {
        if Arc::ptr_eq(&self.policy, policy) {
            return;
        }
        let before = std::mem::replace(&mut self.policy, Arc::clone(policy));
        if before.version() == policy.version() {
            // A smaller block may need a row that the larger one did not.
            if !write_aheads(&before).eq(write_aheads(policy)) {
                self.need(Need::Spent);
            }
            return;
        }
        let old = before.limits().iter().zip(&self.states).map(|(limit, state)| (limit.name(), limit.limit(), *state));
        self.states = carried(&old.collect::<Vec<_>>(), policy, now, phase);
        self.persisted = None; // what is there has other numbers
        self.in_flight = None;
        self.need(Need::Exact);
    }

    const fn of(
        policy: Arc<Policy>,
        states: Vec<State>,
        persisted: Option<Vec<State>>,
        replays: Replays,
        need: Need,
    ) -> Self {
        let (in_flight, spent_at) = (None, None);
        Self {
            policy,
            states,
            replays,
            persisted,
            is_ahead_of_storage: false,
            in_flight,
            spent_at,
            is_busy: false,
            need,
        }
    }

    pub(super) const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Asks for a row, or for none: the greatest need counts.
    pub(super) fn need(&mut self, need: Need) {
        self.need = self.need.max(need);
    }

    /// What storage must be told now. Afterwards it is taken to have been told. `ticket` is for a row that is early: one
    /// that no other row has.
    pub(super) fn row(&mut self, now: i64, ticket: u32) -> Row {
        let need = std::mem::replace(&mut self.need, Need::Nothing);
        if need == Need::Nothing {
            return Row::Nothing;
        }
        let was_busy = self.spent_at.is_some_and(|at| now.abs_diff(at) < IDLE_MS);
        if need != Need::Exact {
            self.spent_at = Some(now);
            self.is_busy = true;
        }
        let slack = match need {
            Need::Spent => self.slack(now),
            _ => Slack::None,
        };
        match slack {
            Slack::Enough => {
                self.is_ahead_of_storage = true; // or a refund that needs no row now would never have one
                Row::Nothing
            }
            Slack::Little if self.in_flight.is_some() => Row::Nothing,
            Slack::Little => {
                let next = self.lowered();
                let row = self.encode(&next, now);
                self.in_flight = Some((ticket, next));
                Row::Background(row)
            }
            Slack::None => {
                // What is spent now and then is written as it is: there is no next token to write for.
                self.is_ahead_of_storage =
                    was_busy && need != Need::Exact && self.policy.limits().iter().any(|l| l.write_ahead() > 0);
                let next = if self.is_ahead_of_storage { self.lowered() } else { self.states.clone() };
                let row = self.encode(&next, now);
                self.persisted = Some(next);
                self.in_flight = None;
                Row::BeforeReply(row)
            }
        }
    }

    /// Takes note that the row with this ticket is in storage for good.
    pub(super) fn confirm(&mut self, ticket: u32) {
        if let Some((_, states)) = self.in_flight.take_if(|(of, _)| *of == ticket) {
            self.persisted = Some(states);
        }
    }

    /// Whether storage lags behind on purpose, so that [`Bucket::flush_idle`] should be asked when [`IDLE_MS`] are over.
    pub(super) const fn is_ahead_of_storage(&self) -> bool {
        self.is_ahead_of_storage
    }

    /// The row of the exact states, if nothing was spent since this was last asked. `ticket` is as for [`Bucket::row`].
    pub(super) fn flush_idle(&mut self, now: i64, ticket: u32) -> Option<Vec<u8>> {
        let is_busy = std::mem::replace(&mut self.is_busy, false);
        if is_busy || !self.is_ahead_of_storage || self.in_flight.is_some() {
            return None;
        }
        self.is_ahead_of_storage = false;
        self.in_flight = Some((ticket, self.states.clone()));
        Some(self.encode(&self.states, now))
    }

    /// From when on the bucket may be forgotten, if ever.
    pub(super) fn expires_at(&self, now: i64) -> Option<i64> {
        let full_at = expires_at(&self.policy, &self.states, now)?;
        Some(self.replays.expires_at().map_or(full_at, |at| at.max(full_at)))
    }

    /// How far the bucket is above what storage has, as the limit with the least sees it. A row in flight may arrive or
    /// not: whichever of the two a crash leaves must be neither above the bucket nor more than a block below it.
    fn slack(&self, now: i64) -> Slack {
        let Some(persisted) = &self.persisted else {
            return Slack::None;
        };
        let in_flight = self.in_flight.as_ref().map(|(_, states)| states);
        let mut slack = Slack::Enough;
        for (index, limit) in self.policy.limits().iter().enumerate() {
            let (limit, block) = (limit.limit(), limit.write_ahead());
            let Some(state) = self.states.get(index) else {
                return Slack::None;
            };
            let least = limit.lowered(state, block);
            for (stored, is_there) in [(Some(persisted), true), (in_flight, false)] {
                let Some(stored) = stored.and_then(|states| states.get(index)) else {
                    continue;
                };
                let is_too_low = limit.surplus_over(stored, &least, now).is_none();
                match limit.surplus_over(state, stored, now) {
                    Some(surplus) if !is_too_low => {
                        // A quarter is left to be spent while the next row is written. More would cost more rows.
                        if is_there && self.is_ahead_of_storage && surplus < block.div_ceil(4) {
                            slack = Slack::Little;
                        }
                    }
                    _ => return Slack::None,
                }
            }
        }
        slack
    }

    fn lowered(&self) -> Vec<State> {
        let limits = self.policy.limits().iter().zip(&self.states);
        limits.map(|(limit, state)| limit.limit().lowered(state, limit.write_ahead())).collect()
    }

    fn encode(&self, states: &[State], now: i64) -> Vec<u8> {
        let numbers = self.policy.numbers();
        let mut row = vec![FORMAT];
        // 8 limits of about 200 bytes at most.
        row.extend(u16::try_from(numbers.len()).unwrap_or(u16::MAX).to_le_bytes());
        row.extend(numbers.as_bytes());
        row.push(u8::try_from(states.len()).unwrap_or(u8::MAX));
        row.extend(encode(self.policy.version(), states.iter().copied()));
        self.replays.encode(now, &mut row);
        row
    }
}

enum Slack {
    Enough,
    Little,
    None,
}

/// The policy under whose numbers a row was written: enough to give tokens back to a bucket that no request asked for.
pub(super) fn policy_of_row(name: &str, row: &[u8]) -> Result<Arc<Policy>, RowError> {
    Policy::from_numbers(name, Stored::read(row)?.numbers).map(Arc::new).map_err(RowError::Numbers)
}

/// From when on a stored bucket may be forgotten under the numbers it was stored with, if ever.
pub(super) fn row_expires_at(row: &[u8], now: i64) -> Option<i64> {
    let stored = Stored::read(row).ok()?;
    let limits = stored.limits().ok()?;
    let all = limits.iter().map(|(_, limit, state)| limit.expires_at(state, now));
    all.chain([Some(stored.replays.expires_at().unwrap_or(now))]).try_fold(now, |latest, at| Some(latest.max(at?)))
}

fn expires_at(policy: &Policy, states: &[State], now: i64) -> Option<i64> {
    let mut all = policy.limits().iter().zip(states).map(|(limit, state)| limit.limit().expires_at(state, now));
    all.try_fold(now, |latest, at| Some(latest.max(at?)))
}

/// The states of these limits, which go by their names, under the numbers of `policy`.
fn carried(old: &[(Option<&str>, &Limit, State)], policy: &Policy, now: i64, phase: u64) -> Vec<State> {
    let state = |limit: &NamedLimit| {
        let same = old.iter().find(|(name, ..)| *name == limit.name());
        same.map_or_else(
            || limit.limit().new_state(now, phase),
            |(_, old, state)| limit.limit().carry(old, *state, Carry::AsIs, now, phase),
        )
    };
    policy.limits().iter().map(state).collect()
}

fn write_aheads(policy: &Policy) -> impl Iterator<Item = u64> {
    policy.limits().iter().map(NamedLimit::write_ahead)
}

/// A row, read.
struct Stored<'a> {
    numbers: &'a str,
    record: Record<'a>,
    replays: Replays,
}

impl<'a> Stored<'a> {
    fn read(row: &'a [u8]) -> Result<Self, RowError> {
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
        let replays = Replays::decode(&mut bytes).ok_or(RowError::Short)?;
        Ok(Self { numbers, record, replays })
    }

    fn limits(&self) -> Result<Vec<(Option<String>, Limit, State)>, RowError> {
        let limits = stored_limits(self.numbers).map_err(RowError::Numbers)?;
        if limits.len() != self.record.states().len() {
            return Err(RowError::Count);
        }
        Ok(limits.into_iter().zip(self.record.states()).map(|((name, limit), state)| (name, limit, state)).collect())
    }
}

/// Why a stored row cannot be read. It must not be taken for a fresh bucket.
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

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::replays::Replay;
    use crate::policy::Policies;
    use crate::protocol::{RequestId, Reserved};

    const NOW: i64 = 1_700_000_000_000;

    fn policies() -> Policies {
        Policies::parse(r#"{"p":{"rate":3,"period":"1s"},"q":{"rate":1,"period":"1min","capacity":100}}"#).unwrap()
    }

    /// What lies in the storage of every deployment. If this changes, old buckets must still be read.
    #[test]
    fn the_stored_format_is_unchanged() {
        let policies = policies();
        let policy = policies.get("p").unwrap();
        let mut bucket = Bucket::new(policy, NOW, 0);
        assert!(policy.limits()[0].limit().consume(&mut bucket.states[0], NOW, 1).is_allow());
        let request_id = RequestId { id: 7, fingerprint: 8, is_lasting: true };
        let reservation = Some(Reserved { id: 9, expires_at: 10 });
        bucket.replays.push(Replay { request_id, decided_at: NOW, reservation, grants: vec![(1, NOW)] });
        bucket.need(Need::Lasting);
        let Row::BeforeReply(row) = bucket.row(NOW, 1) else { panic!("a row is due") };

        let numbers =
            br#"[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#;
        let mut expected = vec![1, 109, 0];
        expected.extend(numbers);
        expected.extend([1, 1]); // states; then their record, of format 1
        expected.extend(0xb3e5_671b_e023_1d1a_u64.to_le_bytes());
        expected.extend(2_000_i64.to_le_bytes()); // 2 tokens of 1000 drops
        expected.extend(NOW.to_le_bytes());
        expected.extend(7_u128.to_le_bytes());
        expected.extend(8_u64.to_le_bytes());
        expected.push(1); // lasting
        expected.extend(NOW.to_le_bytes());
        expected.extend(9_u64.to_le_bytes());
        expected.extend(10_i64.to_le_bytes());
        expected.push(1); // grants
        expected.extend(1_u64.to_le_bytes());
        expected.extend(NOW.to_le_bytes());
        assert_eq!(numbers.len(), 109);
        assert_eq!(row, expected);

        let read = Bucket::read(policy, &row, NOW, 0).unwrap();
        assert_eq!((read.states, read.replays), (bucket.states, bucket.replays));
    }

    #[test]
    fn tokens_are_kept_when_the_numbers_change_and_are_not_read_under_the_new_ones() {
        let policies = policies();
        let [old, new] = ["p", "q"].map(|name| policies.get(name).unwrap());
        let mut bucket = Bucket::new(old, NOW, 0);
        assert!(old.limits()[0].limit().consume(&mut bucket.states[0], NOW, 2).is_allow());
        bucket.need(Need::Exact);
        let Row::BeforeReply(row) = bucket.row(NOW, 1) else { panic!("a row is due") };
        let carried = Bucket::read(new, &row, NOW, 0).unwrap();
        // 1 token is 1000 drops for the old limit and 60 000 for the new one.
        assert_eq!(new.limits()[0].limit().remaining(&carried.states[0], NOW), 1);
    }

    #[test]
    fn what_was_not_written_here_is_an_error_and_no_fresh_bucket() {
        let policies = policies();
        let policy = policies.get("p").unwrap();
        let mut bucket = Bucket::new(policy, NOW, 0);
        bucket.need(Need::Exact);
        let Row::BeforeReply(good) = bucket.row(NOW, 1) else { panic!("a row is due") };
        let read = |row: &[u8]| Bucket::read(policy, row, NOW, 0).map(|bucket| bucket.states);
        assert!(read(&good).is_ok());
        assert_eq!(read(&[]), Err(RowError::Short));
        assert_eq!(read(&[&[2], &good[1..]].concat()), Err(RowError::Format { format: 2 }));
        for len in 1..good.len() {
            assert!(read(&good[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(read(&[&good[..], &[0]].concat()), Err(RowError::Short), "half a grant");
        let other_version = [&good[..115], &[0], &good[116..]].concat();
        assert!(read(&other_version).is_ok(), "carried over from its own numbers");
        let no_numbers = [&other_version[..3], b"x", &other_version[4..]].concat();
        assert_eq!(read(&no_numbers), Err(RowError::Numbers(StoredConfigError::Unreadable)));
    }
}
