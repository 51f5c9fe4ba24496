//! The ways to ask a limit, and its answers.

/// A way to ask for tokens. Each is a method of [`Limit`](super::Limit), which only forwards to
/// [`Limit::decide`](super::Limit::decide); to *peek*, decide and drop the new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Take the tokens now, or refuse.
    Consume,
    /// Prepay: take them now for a start at `ready_at`, when they will have come back. Refused when that is more than
    /// `max_wait_ms` away (0: now or not at all; `None`: any wait) or the debt would exceed the limit's `max_debt`.
    Reserve {
        /// The longest wait, in milliseconds.
        max_wait_ms: Option<u64>,
    },
    /// Pay later: start as soon as earlier debt is paid, so that this cost delays the *next* caller. Refused like
    /// [`Verb::Reserve`].
    Borrow {
        /// The longest wait, in milliseconds.
        max_wait_ms: Option<u64>,
    },
    /// Debit what has already happened. Never refused; the level stops at `-max_debt`.
    Charge,
    /// Take what is there, at most the cost, in whole tokens. Refused, with the wait for one token, when there is none.
    ConsumeUpTo,
    /// Give tokens back. Never refused; the level stops at the capacity.
    Refund,
    /// Make the bucket full again, whatever the cost says.
    Reset,
}

impl Verb {
    /// Reports whether this verb needs tokens that are there, or will be, and so can be refused. The others never are.
    #[inline]
    #[must_use]
    pub const fn takes(self) -> bool {
        matches!(self, Self::Consume | Self::Reserve { .. } | Self::Borrow { .. } | Self::ConsumeUpTo)
    }

    /// The verb for a part with this cost of a policy, some part of which has a cost if `has_cost`: a part with a cost of zero has no say
    /// beside another, since giving back nothing is granted in any debt.
    #[inline]
    #[must_use]
    pub(crate) const fn beside(self, cost: u64, has_cost: bool) -> Self {
        if self.takes() && has_cost && cost == 0 { Self::Refund } else { self }
    }

    /// The verb as a number, counted from 0 in the order of this list, and its longest wait if it has one. Use this
    /// where only numbers can pass.
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

    /// The verb of a number from [`Verb::to_number`]; `None` for any other number. Verbs that do not wait ignore
    /// `max_wait_ms`.
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
#[must_use = "a request that is not allowed must not go on"]
pub enum Decision {
    /// Yes.
    Allow {
        /// Whole tokens taken, or given back by a refund or a reset: the cost, unless the verb clips it.
        tokens: u64,
        /// When they may be used: `now`, or later for a reservation.
        ready_at: i64,
    },
    /// Not now.
    Wait {
        /// The same request is refused at every millisecond before this one and granted at it, if no other comes
        /// between.
        retry_at: i64,
    },
    /// Never: the cost is larger than anything this limit can grant.
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

    /// How many tokens are granted; 0 if none are.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        match self {
            Self::Allow { tokens, .. } => tokens,
            _ => 0,
        }
    }

    /// The answer of two limits that must both agree. `Never` outweighs `Wait`, which outweighs `Allow`; of two alike,
    /// the smaller `max`, the later `retry_at`, the larger `tokens` and the later `ready_at` win.
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
