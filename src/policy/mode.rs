//! Whether a limit refuses, only reports, or is disabled.

/// The effect of a limit's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// It counts.
    #[default]
    Enforce,
    /// It is only reported: a limit is tried on live traffic before it may refuse any.
    Shadow,
    /// There is no decision, and no state.
    Off,
}

impl Mode {
    pub(super) const ALL: [Self; 3] = [Self::Enforce, Self::Shadow, Self::Off];

    /// The word for it in policies.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }

    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word() == word)
    }
}
