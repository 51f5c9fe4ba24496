//! How a bucket is kept: its state, and the numbers that give the state its meaning.
//!
//! A deployment with other numbers reads what an earlier one wrote. So a bucket is stored with the numbers it was
//! written under, and is carried over to those of today when it is read, never read as if it had always had them.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::policy::Policy;
use crate::limit::{Carry, Config, ConfigError, Kind, Limit, Record, RecordError, State, encode};

/// A bucket as storage has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The numbers under which it was written: JSON, one object per limit.
    pub numbers: String,
    /// Their version and the state, as [`encode`] makes them.
    pub record: Vec<u8>,
}

impl Stored {
    /// The bucket of `policy` in the given state.
    #[must_use]
    pub fn new(policy: &Policy, state: State) -> Self {
        Self { numbers: policy.numbers().to_owned(), record: encode(policy.version(), [state]).collect() }
    }

    /// The state under the numbers that `policy` has now, with the tokens kept if those have changed. `phase` is that
    /// of [`Limit::new_state`].
    ///
    /// # Errors
    /// A [`StoredError`] for what [`Stored::new`] cannot have made. It must not be taken for a fresh bucket.
    pub fn state(&self, policy: &Policy, now: i64, phase: u64) -> Result<State, StoredError> {
        let record = Record::parse(&self.record).map_err(StoredError::Record)?;
        let mut states = record.states();
        let (Some(state), None) = (states.next(), states.next()) else {
            return Err(StoredError::Count);
        };
        if record.policy_version() == policy.version() {
            return Ok(state);
        }
        let numbers: [Numbers; 1] = serde_json::from_str(&self.numbers).map_err(|_| StoredError::Numbers)?;
        let [numbers] = numbers;
        let old = Limit::new(&numbers.config()).map_err(StoredError::Limit)?;
        Ok(policy.limit().carry(&old, state, Carry::AsIs, now, phase))
    }
}

/// Why a stored bucket cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredError {
    /// The record is not one.
    Record(RecordError),
    /// The record does not hold one state.
    Count,
    /// The numbers cannot be read.
    Numbers,
    /// The numbers make no limit.
    Limit(ConfigError),
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(error) => write!(f, "{error}"),
            Self::Count => write!(f, "the record holds more or less than one state"),
            Self::Numbers => write!(f, "the numbers beside the record cannot be read"),
            Self::Limit(error) => write!(f, "the numbers beside the record make no limit: {error}"),
        }
    }
}

impl std::error::Error for StoredError {}

/// [`Config`] with the names that are stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    kind: StoredKind,
    rate: u64,
    period_ms: u64,
    capacity: u64,
    max_debt: u64,
    initial: Option<u64>,
    offset_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredKind {
    TokenBucket,
    FixedWindow,
}

impl Numbers {
    fn of(config: &Config) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms } = *config;
        let kind = match kind {
            Kind::TokenBucket => StoredKind::TokenBucket,
            Kind::FixedWindow => StoredKind::FixedWindow,
        };
        Self { kind, rate, period_ms, capacity, max_debt, initial, offset_ms }
    }

    fn config(&self) -> Config {
        let Self { rate, period_ms, capacity, max_debt, initial, offset_ms, .. } = *self;
        let kind = match self.kind {
            StoredKind::TokenBucket => Kind::TokenBucket,
            StoredKind::FixedWindow => Kind::FixedWindow,
        };
        Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms }
    }
}

pub(super) fn numbers_of(config: &Config) -> String {
    serde_json::to_string(&[Numbers::of(config)]).unwrap_or_default() // our own type cannot fail to serialize
}

/// 64 bits of a cryptographic hash: that two policies should share them is out of the question.
pub(super) fn version_of(numbers: &str) -> u64 {
    let digest = Sha256::digest(numbers);
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Policies;

    fn policies(json: &str) -> Policies {
        Policies::parse(json).unwrap()
    }

    /// What lies in the storage of every deployment. If this changes, old buckets must still be read.
    #[test]
    fn the_stored_format_is_unchanged() {
        let policies = policies(r#"{"p":{"rate":3,"period":"1s"}}"#);
        let policy = policies.get("p").unwrap();
        let mut state = policy.limit().new_state(1_700_000_000_000, 0);
        assert!(policy.limit().consume(&mut state, 1_700_000_000_000, 1).is_allow());
        let stored = Stored::new(policy, state);
        assert_eq!(
            stored.numbers,
            r#"[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#
        );
        let mut record = vec![1];
        record.extend(0xb3e5_671b_e023_1d1a_u64.to_le_bytes());
        record.extend(2_000_i64.to_le_bytes()); // 2 tokens of 1000 drops
        record.extend(1_700_000_000_000_i64.to_le_bytes());
        assert_eq!(stored.record, record);
        assert_eq!(stored.state(policy, 1_700_000_000_000, 0), Ok(state));
    }

    #[test]
    fn tokens_are_kept_when_the_numbers_change_and_are_not_read_under_the_new_ones() {
        let old = policies(r#"{"p":{"rate":3,"period":"1s"}}"#);
        let new = policies(r#"{"p":{"rate":1,"period":"1min","capacity":100}}"#);
        let (old, new) = (old.get("p").unwrap(), new.get("p").unwrap());
        let mut state = old.limit().new_state(0, 0);
        assert!(old.limit().consume(&mut state, 0, 2).is_allow());
        let carried = Stored::new(old, state).state(new, 0, 0).unwrap();
        // 1 token is 1000 drops for the old limit and 60 000 for the new one.
        assert_eq!(new.limit().remaining(&carried, 0), 1);
    }

    #[test]
    fn what_was_not_written_here_is_an_error_and_no_fresh_bucket() {
        let policies = policies(r#"{"p":{"rate":3,"period":"1s"}}"#);
        let policy = policies.get("p").unwrap();
        let good = Stored::new(policy, policy.limit().new_state(0, 0));
        let state = |numbers: &str, record: Vec<u8>| Stored { numbers: numbers.into(), record }.state(policy, 0, 0);
        let other_version = |record: &[u8]| [&[1, 0, 0, 0, 0, 0, 0, 0, 0], &record[9..]].concat();
        assert_eq!(state(&good.numbers, Vec::new()), Err(StoredError::Record(RecordError::Length { len: 0 })));
        assert_eq!(state(&good.numbers, good.record[..9].to_vec()), Err(StoredError::Count));
        assert_eq!(state("", other_version(&good.record)), Err(StoredError::Numbers));
        let no_limit = good.numbers.replace("1000", "0");
        assert_eq!(state(&no_limit, other_version(&good.record)), Err(StoredError::Limit(ConfigError::PeriodZero)));
    }
}
