//! Which events of a key operators are notified of, and how often.

use std::{fmt, iter};

/// The event of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoticeKind {
    /// A request was granted, and this share of a limit's capacity, 1 to 100, is used up.
    Used {
        /// In percent.
        percent: u8,
    },
    /// A request was granted beyond a soft limit.
    Over,
    /// A request was refused.
    Refused,
}

/// The events that a policy gives notices of, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notify {
    /// Bit `n` is for `n` percent.
    used: u128,
    over: bool,
    refused: bool,
    every_ms: u64,
}

impl NoticeKind {
    /// The number for storage and messages: the percentage, or one above 100.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Used { percent } => percent,
            Self::Over => 101,
            Self::Refused => 102,
        }
    }

    /// The kind with that number; `None` for one of a later version.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            1..=100 => u8::try_from(number).ok().map(|percent| Self::Used { percent }),
            101 => Some(Self::Over),
            102 => Some(Self::Refused),
            _ => None,
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        match word {
            "over" => Some(Self::Over),
            "refused" => Some(Self::Refused),
            // No sign, and no zeros before it.
            _ => (1..=100).map(|percent| Self::Used { percent }).find(|kind| kind.to_string() == word),
        }
    }
}

/// As in policies: `80%`, `over` or `refused`.
impl fmt::Display for NoticeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used { percent } => write!(f, "{percent}%"),
            Self::Over => f.write_str("over"),
            Self::Refused => f.write_str("refused"),
        }
    }
}

impl Notify {
    /// Ten minutes: a customer at a limit is news once, and the receiver for ten thousand such keys gets about twenty per second.
    pub const EVERY_MS: u64 = 600_000;

    /// Each notice writes a row and calls the receiver: with a shorter interval, a refused key could cause many.
    pub const MIN_EVERY_MS: u64 = 10_000;

    /// How long the row of the last notice may be kept.
    pub const MAX_EVERY_MS: u64 = 30 * 86_400_000;

    /// The most kinds: one request may give a notice of each limit and each share.
    pub const MAX_KINDS: usize = 10;

    /// `None` if there are no kinds.
    pub(super) fn new(kinds: &[NoticeKind], every_ms: u64) -> Option<Self> {
        let mut notify = Self { used: 0, over: false, refused: false, every_ms };
        for kind in kinds {
            match kind {
                NoticeKind::Used { percent } => notify.used |= bit(*percent),
                NoticeKind::Over => notify.over = true,
                NoticeKind::Refused => notify.refused = true,
            }
        }
        (!kinds.is_empty()).then_some(notify)
    }

    /// Whether there are notices of that kind.
    #[must_use]
    pub const fn has(self, kind: NoticeKind) -> bool {
        match kind {
            NoticeKind::Used { percent } => self.used & bit(percent) != 0,
            NoticeKind::Over => self.over,
            NoticeKind::Refused => self.refused,
        }
    }

    /// The kinds, those of a smaller share first.
    pub fn kinds(self) -> impl Iterator<Item = NoticeKind> {
        let mut used = self.used;
        let shares = iter::from_fn(move || {
            let percent = u8::try_from(used.trailing_zeros()).ok().filter(|_| used != 0)?;
            used &= used.wrapping_sub(1); // without its lowest bit
            Some(NoticeKind::Used { percent })
        });
        shares.chain([NoticeKind::Over, NoticeKind::Refused].into_iter().filter(move |kind| self.has(*kind)))
    }

    /// Minimum interval in milliseconds between notices of one kind about a limit of a key.
    #[must_use]
    pub const fn every_ms(self) -> u64 {
        self.every_ms
    }
}

const fn bit(percent: u8) -> u128 {
    1_u128.wrapping_shl(percent as u32)
}
