//! The scopes of credentials.

/// A group of endpoints that a credential may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Requesting tokens, and related endpoints. The only scope that a grant can have.
    Consume,
    /// Changing budgets from outside: charging, refunding, resetting; and leasing tokens to count them oneself.
    Adjust,
    /// Operating the service: its policies, overrides, single keys, and the audit log.
    Admin,
}

impl Scope {
    /// All scopes.
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

    /// The scope with that name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }

    /// Its verbs, by the last part of the endpoint's path.
    #[must_use]
    pub const fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Consume => &["consume", "peek", "inspect", "settle", "cancel", "extend", "batch"],
            Self::Adjust => &["charge", "refund", "reset", "lease"],
            Self::Admin => &["explain", "reset", "credit"],
        }
    }
}
