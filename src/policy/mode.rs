//! Whether a limit refuses, only says what it would do, or is not asked at all.

/// What becomes of a limit's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// It counts.
    #[default]
    Enforce,
    /// It is reported and has no effect: a limit is tried on live traffic before it may refuse any.
    Shadow,
    /// There is none, and no state.
    Off,
}

impl Mode {
    pub(super) const ALL: [Self; 3] = [Self::Enforce, Self::Shadow, Self::Off];

    /// As people write it.
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
