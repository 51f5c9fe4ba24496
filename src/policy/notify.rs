//! Which events of a key an operator is told of, and how often.

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// A request was granted, and less than a fifth of some limit is left.
    NearLimit,
    /// A request was refused.
    Refused,
}

/// What a policy gives notices of, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notify {
    near_limit: bool,
    refused: bool,
    every_ms: u64,
}

impl NoticeKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::NearLimit, Self::Refused];

    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NearLimit => "near_limit",
            Self::Refused => "refused",
        }
    }

    /// As it is stored and sent.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::NearLimit => 1,
            Self::Refused => 2,
        }
    }

    /// The kind of that number; `None` for one of a later version.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u64::from(kind.number()) == number)
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

impl Notify {
    /// Ten minutes: a customer at a limit is news once, and the receiver of ten thousand such keys gets some twenty a second.
    pub const EVERY_MS: u64 = 600_000;

    /// Each notice writes a row and calls the receiver: with less time in between, a key that is refused could cause many.
    pub const MIN_EVERY_MS: u64 = 10_000;

    /// The row of the last notice is kept for so long.
    pub const MAX_EVERY_MS: u64 = 30 * 86_400_000;

    /// `None` if there are no kinds.
    pub(super) fn new(kinds: &[NoticeKind], every_ms: u64) -> Option<Self> {
        let has = |kind| kinds.contains(&kind);
        let notify = Self { near_limit: has(NoticeKind::NearLimit), refused: has(NoticeKind::Refused), every_ms };
        (!kinds.is_empty()).then_some(notify)
    }

    /// Whether there are notices of that kind.
    #[must_use]
    pub const fn has(self, kind: NoticeKind) -> bool {
        match kind {
            NoticeKind::NearLimit => self.near_limit,
            NoticeKind::Refused => self.refused,
        }
    }

    /// Of a key there is at most one notice of a kind in this time, in milliseconds.
    #[must_use]
    pub const fn every_ms(self) -> u64 {
        self.every_ms
    }

    /// The words of its kinds.
    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        NoticeKind::ALL.into_iter().filter(move |kind| self.has(*kind)).map(NoticeKind::word)
    }
}
