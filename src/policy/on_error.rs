//! Whether a policy fails open or closed without a decision.

use std::fmt;

/// Why there was no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The key gets more requests than its object can answer. Callers can cause this themselves.
    Overloaded,
    /// The object took too long.
    Timeout,
    /// The object, or the connection to it, failed.
    Failed,
}

/// The causes for which a policy fails open: requests pass, marked as degraded, because they matter more than what the limit protects. For
/// all others it fails closed: 503.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnError {
    overloaded: bool,
    timeout: bool,
    failed: bool,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 3] = [Self::Overloaded, Self::Timeout, Self::Failed];

    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.word() == word)
    }
}

impl OnError {
    /// Never open.
    pub const CLOSED: Self = Self { overloaded: false, timeout: false, failed: false };

    /// Open if an object fails, closed if it is overloaded: otherwise a flood would lift its own limit.
    pub const OPEN: Self = Self { overloaded: false, timeout: true, failed: true };

    /// Reports whether it is open for `cause`.
    #[must_use]
    pub const fn opens(self, cause: Cause) -> bool {
        match cause {
            Cause::Overloaded => self.overloaded,
            Cause::Timeout => self.timeout,
            Cause::Failed => self.failed,
        }
    }

    /// The same, open also for `cause`.
    pub(super) const fn and(self, cause: Cause) -> Self {
        match cause {
            Cause::Overloaded => Self { overloaded: true, ..self },
            Cause::Timeout => Self { timeout: true, ..self },
            Cause::Failed => Self { failed: true, ..self },
        }
    }
}

/// The causes for which it is open, such as `timeout, failed`; possibly empty.
impl fmt::Display for OnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open: Vec<_> = Cause::ALL.into_iter().filter(|cause| self.opens(*cause)).map(Cause::word).collect();
        f.write_str(&open.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_means_timeout_and_failed_but_not_overloaded() {
        let opened = |on_error: OnError| Cause::ALL.map(|cause| on_error.opens(cause));
        assert_eq!(opened(OnError::CLOSED), [false, false, false]);
        assert_eq!(opened(OnError::OPEN), [false, true, true]);
        for cause in Cause::ALL {
            assert_eq!(opened(OnError::CLOSED.and(cause)), Cause::ALL.map(|other| other == cause));
            assert_eq!(Cause::from_word(cause.word()), Some(cause));
        }
        assert_eq!(Cause::from_word("late"), None);
    }
}
