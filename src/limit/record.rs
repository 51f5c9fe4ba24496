//! The stored bytes of a policy's states.
//!
//! ```text
//! byte 0       1: this format
//! bytes 1..9   the policy's version, u64 little-endian
//! then for each limit, in the policy's order:
//!   8 bytes    the level, i64 little-endian
//!   8 bytes    the moment, i64 little-endian
//! ```
//!
//! A level alone means nothing: it counts drops, and the size of a drop depends on the limit's rate and period. So
//! the record names the version of the numbers it was written under; a reader with other numbers must
//! [`carry`](super::Limit::carry) it over first.

use core::fmt;

use super::state::{MAX_DROPS, State};

/// Encodes the states of one policy, in the order of its limits. `policy_version` is any number that changes whenever
/// the policy's numbers do, such as a hash of them.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::{Config, Limit, Record, encode};
///
/// let limit = Limit::new(&Config::token_bucket(10, Duration::from_secs(1)))?;
/// let bytes: Vec<u8> = encode(7, [limit.new_state(0, 0)]).collect();
/// assert_eq!(bytes.len(), 25);
/// let record = Record::parse(&bytes).unwrap();
/// assert_eq!(record.policy_version(), 7);
/// assert!(record.states().eq([limit.new_state(0, 0)]));
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
pub fn encode(policy_version: u64, states: impl IntoIterator<Item = State>) -> impl Iterator<Item = u8> {
    let states = states.into_iter().flat_map(|state| [state.level.to_le_bytes(), state.at.to_le_bytes()]);
    [FORMAT].into_iter().chain(policy_version.to_le_bytes()).chain(states.flatten())
}

/// Checked bytes of an encoded policy state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    policy_version: u64,
    states: &'a [[[u8; 8]; 2]],
}

impl<'a> Record<'a> {
    /// Checks `bytes` that [`encode`] made.
    ///
    /// # Errors
    /// A [`RecordError`] for bytes that it cannot have made. Do not treat them as a fresh bucket: that would give back
    /// everything that was spent.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let len = bytes.len();
        let (&format, rest) = bytes.split_first().ok_or(RecordError::Length { len })?;
        if format != FORMAT {
            return Err(RecordError::UnknownFormat { format });
        }
        let (version, rest) = rest.split_first_chunk().ok_or(RecordError::Length { len })?;
        let (integers, []) = rest.as_chunks() else {
            return Err(RecordError::Length { len });
        };
        let (states, []) = integers.as_chunks() else {
            return Err(RecordError::Length { len });
        };
        let record = Self { policy_version: u64::from_le_bytes(*version), states };
        match record.states().find(|state| state.level.unsigned_abs() > MAX_DROPS.unsigned_abs()) {
            Some(State { level, .. }) => Err(RecordError::Level { level }),
            None => Ok(record),
        }
    }

    /// The version of the numbers under which the states were written.
    #[must_use]
    pub const fn policy_version(&self) -> u64 {
        self.policy_version
    }

    /// The states, one per limit, in the order in which they were encoded.
    #[must_use]
    pub fn states(&self) -> impl ExactSizeIterator<Item = State> + use<'a> {
        self.states.iter().map(|[level, at]| State { level: i64::from_le_bytes(*level), at: i64::from_le_bytes(*at) })
    }
}

/// Why bytes are not a record.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// Another format: written by a later version of this crate, or by something else.
    UnknownFormat { format: u8 },
    /// Not 9 bytes plus 16 for each state.
    Length { len: usize },
    /// A level that no limit can reach.
    Level { level: i64 },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownFormat { format } => write!(f, "the state has format {format}; this version reads {FORMAT}"),
            Self::Length { len } => write!(f, "a state of {len} bytes is not 9 and a multiple of 16"),
            Self::Level { level } => write!(f, "a level of {level} drops is beyond any limit"),
        }
    }
}

impl core::error::Error for RecordError {}

const FORMAT: u8 = 1;
