//! What can be wrong with a call.

use super::host::{fault_number, fault_state};
use super::number::f64_from_u64;
use crate::limit::{ConfigError, MAX_SPAN_MS, RecordError};

/// Why the limit was not even asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// The parameter `name`, as JavaScript knows it, is not a whole number from `min` to `max`.
    Number { name: &'static str, given: f64, min: f64, max: f64 },
    /// The bytes have a format that this version does not know.
    StateFormatUnknown,
    /// The bytes are not the state of one bucket, or there is no room for one.
    StateMalformed,
    /// The bytes were written under another version of the limit's numbers.
    StateVersionMismatch,
}

/// The value of `result`; or, to be thrown instead as soon as WebAssembly has returned `otherwise`, its fault.
#[inline]
pub(super) fn value_or_throw<T>(result: Result<T, Fault>, otherwise: T) -> T {
    result.unwrap_or_else(|fault| {
        fault.report();
        otherwise
    })
}

impl Fault {
    #[cold]
    fn report(self) {
        match self {
            Self::Number { name, given, min, max } => fault_number(name, given, min, max),
            Self::StateFormatUnknown => {
                fault_state("state_format_unknown", "the state was written by another version of Tollgate");
            }
            Self::StateMalformed => fault_state("state_malformed", "a state is a Uint8Array of 25 bytes, made by save"),
            Self::StateVersionMismatch => {
                fault_state("state_version_mismatch", "the state was written under another version of the numbers");
            }
        }
    }
}

impl From<ConfigError> for Fault {
    fn from(error: ConfigError) -> Self {
        let (name, given, min, max) = match error {
            ConfigError::RateTooLarge { rate, max } => ("rate", rate, 0, max),
            ConfigError::PeriodZero => ("periodMs", 0, 1, MAX_SPAN_MS),
            ConfigError::PeriodTooLong { period_ms, max_ms } => ("periodMs", period_ms, 1, max_ms),
            ConfigError::CapacityTooLarge { capacity, max } => ("capacity", capacity, 0, max),
            ConfigError::MaxDebtTooLarge { max_debt, max } => ("maxDebt", max_debt, 0, max),
            ConfigError::InitialTooLarge { initial, max } => ("initial", initial, 0, max),
            ConfigError::OffsetTooLarge { offset_ms, max_ms } => ("offsetMs", offset_ms, 0, max_ms),
            // Not possible: `tokenBucket` has no such parameter.
            ConfigError::OffsetWithoutWindows => ("offsetMs", 0, 0, 0),
        };
        Self::Number { name, given: f64_from_u64(given), min: f64_from_u64(min), max: f64_from_u64(max) }
    }
}

impl From<RecordError> for Fault {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::UnknownFormat { .. } => Self::StateFormatUnknown,
            RecordError::Length { .. } | RecordError::Level { .. } => Self::StateMalformed,
        }
    }
}
