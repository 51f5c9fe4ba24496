//! One error for programs that do not tell them apart.

use core::fmt;

#[cfg(feature = "std")]
use crate::keyed::{Full, WaitError};
use crate::limit::ConfigError;
#[cfg(feature = "api")]
use crate::policy::{PolicyError, PolicyErrors};

/// Any error of this crate: `?` converts each into it. The functions themselves return the error of what they do, which has fewer cases to
/// match.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::{Config, Limit};
///
/// fn limit(rate: u64) -> Result<Limit, tollgate::Error> {
///     Ok(Limit::new(&Config::token_bucket(rate, Duration::from_secs(1)))?)
/// }
/// let error = limit(u64::MAX).unwrap_err();
/// assert_eq!(error.to_string(), "a rate of 18446744073709551615 is too large: at most 9007199254740991");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Numbers that cannot be kept exact.
    Config(ConfigError),
    /// A limit that cannot be read.
    #[cfg(feature = "api")]
    Policy(PolicyError),
    /// Everything that is wrong in a text of policies.
    #[cfg(feature = "api")]
    Policies(PolicyErrors),
    /// A new key without room.
    #[cfg(feature = "std")]
    Full(Full),
    /// A caller that does not wait.
    #[cfg(feature = "std")]
    Wait(WaitError),
}

impl Error {
    fn inner(&self) -> &(dyn core::error::Error + 'static) {
        match self {
            Self::Config(error) => error,
            #[cfg(feature = "api")]
            Self::Policy(error) => error,
            #[cfg(feature = "api")]
            Self::Policies(errors) => errors,
            #[cfg(feature = "std")]
            Self::Full(error) => error,
            #[cfg(feature = "std")]
            Self::Wait(error) => error,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.inner(), f)
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.inner().source()
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

#[cfg(feature = "api")]
impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}

#[cfg(feature = "api")]
impl From<PolicyErrors> for Error {
    fn from(errors: PolicyErrors) -> Self {
        Self::Policies(errors)
    }
}

#[cfg(feature = "std")]
impl From<Full> for Error {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

#[cfg(feature = "std")]
impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        Self::Wait(error)
    }
}
