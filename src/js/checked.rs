//! What can be wrong with a call, and how that becomes a JavaScript exception.

use wasm_bindgen::convert::{IntoWasmAbi, ReturnWasmAbi};
use wasm_bindgen::describe::WasmDescribe;

use super::host::{throw_number, throw_state};
use super::number::f64_from_u64;
use crate::limit::{ConfigError, MAX_SPAN_MS, RecordError};

/// What a method returns: its value, or a fault for JavaScript to be thrown.
///
/// In place of `Result<T, JsValue>`, which crosses as several values at once: engines hand those over as an array, and
/// a call takes 100 ns instead of 14. A throw leaves WebAssembly without running destructors, so it must happen when
/// the method has given its borrows back, and [`ReturnWasmAbi::return_abi`] is called then. wasm-bindgen gives no
/// promise for this trait; should it change, `Result` is the way back.
#[must_use]
#[derive(Debug, PartialEq)]
pub struct Checked<T>(pub Result<T, Fault>);

impl<T: WasmDescribe> WasmDescribe for Checked<T> {
    fn describe() {
        T::describe();
    }
}

impl<T: IntoWasmAbi> ReturnWasmAbi for Checked<T> {
    type Abi = T::Abi;

    #[inline]
    fn return_abi(self) -> T::Abi {
        match self.0 {
            Ok(value) => value.into_abi(),
            Err(fault) => fault.throw(),
        }
    }
}

/// Why the limit was not even asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A parameter is not a whole number within its range: a `RangeError`.
    Number {
        /// The parameter, as JavaScript knows it.
        name: &'static str,
        /// What it was.
        given: f64,
        /// The smallest that it could be.
        min: f64,
        /// The largest that it could be.
        max: f64,
    },
    /// The bytes have a format that this version does not know: a `TypeError`, like the next two.
    StateFormatUnknown,
    /// The bytes are not the state of one bucket, or not as many as that takes.
    StateMalformed,
    /// The bytes were written under another version of the limit's numbers.
    StateVersionMismatch,
}

impl Fault {
    #[cold]
    fn throw(self) -> ! {
        match self {
            Self::Number { name, given, min, max } => throw_number(name, given, min, max),
            Self::StateFormatUnknown => {
                throw_state("state_format_unknown", "the state was written by another version of Tollgate");
            }
            Self::StateMalformed => throw_state("state_malformed", "a state is a Uint8Array of 25 bytes, made by save"),
            Self::StateVersionMismatch => {
                throw_state("state_version_mismatch", "the state was written under another version of the numbers");
            }
        }
        wasm_bindgen::throw_str("") // never: both have thrown
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
