//! What can be asked of a limit, and what it can answer.

/// A way to ask for tokens. Each is a method of [`Limit`](super::Limit), which only forwards to
/// [`Limit::decide`](super::Limit::decide); to *peek*, decide and drop the new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take the tokens now, or refuse.
    Consume,
    /// Prepay: take them now for a start at `ready_at`, when they will have come back. Refused when that is more than
    /// `max_wait_ms` away (0 is now or not at all, `None` is however long) or would owe more than the limit's
    /// `max_debt`.
    Reserve {
        /// The longest wait, in milliseconds.
        max_wait_ms: Option<u64>,
    },
    /// Pay later: start as soon as earlier debt is paid, so that this cost delays the *next* caller. Refused as
    /// [`Verb::Reserve`] is.
    Borrow {
        /// The longest wait, in milliseconds.
        max_wait_ms: Option<u64>,
    },
    /// Debit what has already happened. Never refused; the level stops at `-max_debt`.
    Charge,
    /// Take what is there, at most the cost, in whole tokens. Refused, as for one token, when not even one is there.
    ConsumeUpTo,
    /// Give tokens back. Never refused; the level stops at the capacity.
    Refund,
    /// Make the bucket full again, whatever the cost says.
    Reset,
}

impl Verb {
    /// Reports whether it takes tokens only where they are, or will be: it can be refused. The others cannot.
    #[inline]
    #[must_use]
    pub const fn takes(self) -> bool {
        matches!(self, Self::Consume | Self::Reserve { .. } | Self::Borrow { .. } | Self::ConsumeUpTo)
    }

    /// The verb as a number, counted from 0 in the order in which they stand here, and the longest wait of one that waits.
    /// Use this where nothing but numbers can pass.
    #[must_use]
    pub const fn to_number(self) -> (u8, Option<u64>) {
        match self {
            Self::Consume => (0, None),
            Self::Reserve { max_wait_ms } => (1, max_wait_ms),
            Self::Borrow { max_wait_ms } => (2, max_wait_ms),
            Self::Charge => (3, None),
            Self::ConsumeUpTo => (4, None),
            Self::Refund => (5, None),
            Self::Reset => (6, None),
        }
    }

    /// The verb that [`Verb::to_number`] made a number of; `None` for a number that is none's. One that does not wait
    /// ignores `max_wait_ms`.
    ///
    /// ```
    /// use tollgate::limit::Verb;
    ///
    /// assert_eq!(Verb::from_number(3, None), Some(Verb::Charge));
    /// assert_eq!(Verb::from_number(7, None), None);
    /// ```
    #[must_use]
    pub const fn from_number(number: u64, max_wait_ms: Option<u64>) -> Option<Self> {
        Some(match number {
            0 => Self::Consume,
            1 => Self::Reserve { max_wait_ms },
            2 => Self::Borrow { max_wait_ms },
            3 => Self::Charge,
            4 => Self::ConsumeUpTo,
            5 => Self::Refund,
            6 => Self::Reset,
            _ => return None,
        })
    }
}

/// The answer of one limit, or of several together. All moments are Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Yes.
    Allow {
        /// Whole tokens that moved: the cost, unless the verb clips it. Taken, or given back by a refund or a reset.
        tokens: u64,
        /// From when they may be used: `now`, or later for a reservation.
        ready_at: i64,
    },
    /// Not now.
    Wait {
        /// The same request is refused at every millisecond before this one and granted at it, if nobody else asks.
        retry_at: i64,
    },
    /// Not ever: the cost is larger than anything this limit can grant.
    Never {
        /// The largest cost that could pass.
        max: u64,
    },
}

impl Decision {
    /// Reports whether the answer is yes.
    #[must_use]
    pub const fn is_allow(self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// The answer of two limits that must both agree: a `Never` outweighs a `Wait`, which outweighs an `Allow`; of two
    /// alike the smaller `max`, the later `retry_at`, the more `tokens` and the later `ready_at` hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never { max: a }, Self::Never { max: b }) => Self::Never { max: a.min(b) },
            (never @ Self::Never { .. }, _) | (_, never @ Self::Never { .. }) => never,
            (Self::Wait { retry_at: a }, Self::Wait { retry_at: b }) => Self::Wait { retry_at: a.max(b) },
            (wait @ Self::Wait { .. }, _) | (_, wait @ Self::Wait { .. }) => wait,
            (Self::Allow { tokens: a, ready_at: x }, Self::Allow { tokens: b, ready_at: y }) => {
                Self::Allow { tokens: a.max(b), ready_at: x.max(y) }
            }
        }
    }
}
