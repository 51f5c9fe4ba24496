//! Which events of a key operators are notified of, and how often.

/// The event of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoticeKind {
    /// A request was granted, and less than a fifth of some limit is left.
    NearLimit,
    /// A request was refused.
    Refused,
    /// A request was granted beyond a soft limit.
    Over,
}

/// The events that a policy gives notices of, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notify {
    near_limit: bool,
    refused: bool,
    over: bool,
    every_ms: u64,
}

impl NoticeKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::NearLimit, Self::Refused, Self::Over];

    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NearLimit => "near_limit",
            Self::Refused => "refused",
            Self::Over => "over",
        }
    }

    /// The number for storage and messages.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::NearLimit => 1,
            Self::Refused => 2,
            Self::Over => 3,
        }
    }

    /// The kind with that number; `None` for one of a later version.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u64::from(kind.number()) == number)
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

impl Notify {
    /// Ten minutes: a customer at a limit is news once, and the receiver for ten thousand such keys gets about twenty per second.
    pub const EVERY_MS: u64 = 600_000;

    /// Each notice writes a row and calls the receiver: with a shorter interval, a refused key could cause many.
    pub const MIN_EVERY_MS: u64 = 10_000;

    /// How long the row of the last notice may be kept.
    pub const MAX_EVERY_MS: u64 = 30 * 86_400_000;

    /// `None` if there are no kinds.
    pub(super) fn new(kinds: &[NoticeKind], every_ms: u64) -> Option<Self> {
        let has = |kind| kinds.contains(&kind);
        let notify = Self {
            near_limit: has(NoticeKind::NearLimit),
            refused: has(NoticeKind::Refused),
            over: has(NoticeKind::Over),
            every_ms,
        };
        (!kinds.is_empty()).then_some(notify)
    }

    /// Whether there are notices of that kind.
    #[must_use]
    pub const fn has(self, kind: NoticeKind) -> bool {
        match kind {
            NoticeKind::NearLimit => self.near_limit,
            NoticeKind::Refused => self.refused,
            NoticeKind::Over => self.over,
        }
    }

    /// Minimum interval in milliseconds between notices of one kind about a key.
    #[must_use]
    pub const fn every_ms(self) -> u64 {
        self.every_ms
    }

    /// The words of its kinds.
    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        NoticeKind::ALL.into_iter().filter(move |kind| self.has(*kind)).map(NoticeKind::word)
    }
}
