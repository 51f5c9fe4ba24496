//! Label values.

use crate::policy::Cause;

/// A value of a label with few values.
pub trait Word: Copy + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// The value as text.
    fn word(self) -> &'static str;

    /// Its position in [`Word::ALL`].
    fn index(self) -> usize;

    /// The value with this text, if any.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.word() == word)
    }
}

/// The outcome of a request to take tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted.
    Allowed,
    /// Refused for now: it may be retried.
    Refused,
    /// Refused, and no later retry can pass.
    Never,
    /// Refused because the key is banned.
    Banned,
    /// Granted regardless of limits, since the key is unlimited.
    Unlimited,
    /// Granted before: the answer was repeated, and nothing was taken.
    Replayed,
    /// Not refused, and not taken either: another request of its batch was refused.
    Dropped,
    /// Let through without a decision, as the policy says.
    Degraded,
    /// Answered with a 503: there was no decision.
    Unavailable,
}

/// The outcome of a call to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The object answered.
    Answered,
    /// It did not.
    Failed(Cause),
}

/// An operation on a row of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAccess {
    /// It was read.
    Read,
    /// It was written or deleted, or an alarm was set.
    Written,
}

/// The reason for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// A call failed in a possibly transient way.
    Failure,
    /// An object lacked the definitions of the policies.
    PolicyUnknown,
    /// An object was of an older version.
    FormatUnknown,
    /// An object knew newer versions of the policies.
    PolicyOutdated,
}

/// The outcome of a poll of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// The registry answered.
    Answered,
    /// It did not.
    Failed,
}

/// The outcome of a notice, at one of its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeOutcome {
    /// It arrived.
    Delivered,
    /// It did not arrive, after all attempts.
    Failed,
    /// It was not attempted: too many were in flight.
    Dropped,
}

impl Word for Outcome {
    const ALL: &'static [Self] = &[
        Self::Allowed,
        Self::Refused,
        Self::Never,
        Self::Banned,
        Self::Unlimited,
        Self::Replayed,
        Self::Dropped,
        Self::Degraded,
        Self::Unavailable,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Never => "never",
            Self::Banned => "banned",
            Self::Unlimited => "unlimited",
            Self::Replayed => "replayed",
            Self::Dropped => "dropped",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Word for Cause {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.word()
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Word for CallOutcome {
    const ALL: &'static [Self] =
        &[Self::Answered, Self::Failed(Cause::Overloaded), Self::Failed(Cause::Timeout), Self::Failed(Cause::Failed)];

    fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed(cause) => cause.word(),
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Answered => 0,
            Self::Failed(cause) => cause.index().saturating_add(1),
        }
    }
}

impl Word for RowAccess {
    const ALL: &'static [Self] = &[Self::Read, Self::Written];

    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Written => "written",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Word for Repeat {
    const ALL: &'static [Self] = &[Self::Failure, Self::PolicyUnknown, Self::FormatUnknown, Self::PolicyOutdated];

    fn word(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::PolicyUnknown => "policy_unknown",
            Self::FormatUnknown => "format_unknown",
            Self::PolicyOutdated => "policy_outdated",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Word for PollOutcome {
    const ALL: &'static [Self] = &[Self::Answered, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Word for NoticeOutcome {
    const ALL: &'static [Self] = &[Self::Delivered, Self::Failed, Self::Dropped];

    fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_at_its_index_and_names_one_value() {
        fn check<W: Word>() {
            let words: std::collections::BTreeSet<_> = W::ALL.iter().map(|value| value.word()).collect();
            assert_eq!(words.len(), W::ALL.len());
            assert!(W::ALL.iter().enumerate().all(|(index, value)| value.index() == index), "{words:?}");
        }
        check::<Outcome>();
        check::<Cause>();
        check::<CallOutcome>();
        check::<RowAccess>();
        check::<Repeat>();
        check::<PollOutcome>();
        check::<NoticeOutcome>();
    }
}
