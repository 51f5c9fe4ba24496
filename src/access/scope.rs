//! What a credential may do.

/// A group of endpoints that a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// To ask for tokens, and what belongs to that. The only scope that a grant can have.
    Consume,
    /// To change budgets from outside: to debit, to give back, to fill; and to lease tokens and count them oneself.
    Adjust,
    /// To operate the service: its policies, overrides, single keys, and who has changed them.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Consume, Self::Adjust, Self::Admin];

    /// Its name in settings and answers.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Adjust => "adjust",
            Self::Admin => "admin",
        }
    }

    /// The scope of that name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }

    /// What may be done with it, by the last part of the endpoint's path.
    #[must_use]
    pub const fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Consume => &["consume", "peek", "inspect", "settle", "cancel", "extend", "batch"],
            Self::Adjust => &["charge", "refund", "reset", "lease"],
            Self::Admin => &["explain", "reset", "credit"],
        }
    }
}
