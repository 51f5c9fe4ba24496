//! Whether a limit refuses, lets all pass, only reports, or is disabled.

/// The effect of a limit's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// It counts.
    #[default]
    Enforce,
    /// It counts, below zero if need be, and says so, but never refuses.
    Soft,
    /// It is only reported: a limit is tried on live traffic before it may refuse any.
    Shadow,
    /// There is no decision, and no state.
    Off,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [Self::Enforce, Self::Soft, Self::Shadow, Self::Off];

    /// The word for it in policies.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Soft => "soft",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }

    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word() == word)
    }
}
