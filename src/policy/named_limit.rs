//! One limit of a policy, with its name.

use crate::limit::{DEFAULT_GRAINS, Limit, grain_ms};

/// One limit of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    name: Option<String>,
    full_name: String,
    limit: Limit,
    write_ahead: u64,
    /// How many grains there are in a period of a rolling window.
    grains: u8,
    /// The account of its name, if it is a number of slots.
    slots: Option<String>,
    /// Whether it had no name in an earlier version.
    was_unnamed: bool,
}

impl NamedLimit {
    /// The limit's name within its policy; `None` for the only limit of a policy without `limits`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The name under which its buckets, leases and reservations were created, so that naming a limit gives nothing away. Slots have other
    /// accounts than the tokens of a limit with the same name: a limit that becomes one of slots has no tokens to give back.
    #[doc(hidden)]
    #[must_use]
    pub fn account(&self) -> Option<&str> {
        if self.was_unnamed { self.unnamed_account() } else { self.own_account() }
    }

    /// The account that it would have if it had always had its name.
    pub(crate) fn own_account(&self) -> Option<&str> {
        self.slots.as_deref().or(self.name.as_deref())
    }

    /// The account that it would have if it had no name.
    pub(crate) const fn unnamed_account(&self) -> Option<&'static str> {
        if self.is_slots() { Some(SLOTS_MARK) } else { None }
    }

    /// The name in answers: `policy/limit`, or the policy's.
    #[must_use]
    pub fn full_name(&self) -> &str {
        &self.full_name
    }

    /// The limit itself. Slots are a bucket that never refills.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether its tokens are slots: only reservations take them, and they are back when those end, however they end.
    #[must_use]
    pub const fn is_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Its kind in answers.
    #[doc(hidden)]
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        if self.is_slots() { SLOTS } else { self.limit.config().kind.word() }
    }

    /// Whether less than a fifth of it is left: time to slow down.
    #[must_use]
    pub const fn is_near(&self, remaining: u64) -> bool {
        remaining.saturating_mul(5) < self.limit.config().capacity
    }

    /// Tokens that may be spent without a write, and so the maximum that a crash may cost.
    #[doc(hidden)]
    #[must_use]
    pub const fn write_ahead(&self) -> u64 {
        self.write_ahead
    }

    /// How many grains there are in a period of a rolling window.
    pub(super) const fn grains(&self) -> u8 {
        self.grains
    }

    /// The length of a grain of a rolling window, in milliseconds: tokens that were taken in one grain come back together. 0 if the rate is so
    /// small that each comes back by itself, a period after it was taken.
    #[doc(hidden)]
    #[must_use]
    pub fn grain_ms(&self) -> u64 {
        grain_ms(self.limit.config(), self.grains)
    }

    /// The limit with that account.
    pub(super) fn new(policy: &str, account: Option<&str>, limit: Limit, write_ahead: u64) -> Self {
        let name = name_of(account);
        let full_name = name.map_or_else(|| policy.to_owned(), |name| format!("{policy}/{name}"));
        let slots = account.filter(|_| is_of_slots(account)).map(str::to_owned);
        Self {
            name: name.map(str::to_owned),
            full_name,
            limit,
            write_ahead,
            grains: DEFAULT_GRAINS,
            slots,
            was_unnamed: false,
        }
    }

    /// The limit, marked if its name is that of the one that had none in an earlier version.
    pub(super) fn with_unnamed(self, unnamed: Option<&str>) -> Self {
        Self { was_unnamed: unnamed.is_some() && self.name() == unnamed, ..self }
    }

    /// The same limit with this many grains in a period.
    pub(super) fn with_grains(self, grains: u8) -> Self {
        Self { grains, ..self }
    }

    /// The same limit with other numbers.
    pub(super) fn with_numbers(&self, limit: Limit, write_ahead: u64) -> Self {
        Self { limit, write_ahead, ..self.clone() }
    }
}

/// The account of slots with that name.
pub(super) fn slots_account(name: Option<&str>) -> String {
    format!("{}{SLOTS_MARK}", name.unwrap_or_default())
}

/// Whether an account is of slots.
pub(crate) fn is_of_slots(account: Option<&str>) -> bool {
    account.is_some_and(|account| account.ends_with(SLOTS_MARK))
}

/// The name of the limit with that account.
pub(crate) fn name_of(account: Option<&str>) -> Option<&str> {
    let name = account.map(|account| account.strip_suffix(SLOTS_MARK).unwrap_or(account));
    name.filter(|name| !name.is_empty())
}

/// The names of the policy and of the limit in a [full name](NamedLimit::full_name).
pub(crate) fn names_in(full_name: &str) -> (&str, Option<&str>) {
    full_name.split_once('/').map_or((full_name, None), |(policy, limit)| (policy, Some(limit)))
}

/// The kind of limit that a number of slots is.
pub(super) const SLOTS: &str = "slots";

/// The end of the accounts of slots: no limit can have such a name.
const SLOTS_MARK: &str = "~slots";
