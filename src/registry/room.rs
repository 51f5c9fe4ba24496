//! How many overrides there can be, and who may reach how many of them.
//!
//! A ban must find room however many other overrides there are, and an unrestricted token whatever restricted ones do. So the last part is
//! for these alone, in steps: bans of restricted tokens, anything of unrestricted ones, bans of unrestricted ones. The policies of one
//! restricted token never have more than about half, so that another team finds room too.
//!
//! The different lengths of the prefixes of a policy are few, and have the same steps.

use std::collections::BTreeMap;

use super::stored_overrides::{Entry, StoredOverrides, hashes};
use crate::policy::overrides::SelectorHash;
use crate::protocol::OverridesError;
use crate::sorted::SortedMap;

/// Maximum number of overrides. An isolate keeps them all, some 100 bytes each: see [`crate::policy::overrides`].
pub const MAX_OVERRIDES: usize = 100_000;

/// What only bans can reach: as many keys as an operator can ban in an emergency with a few requests.
pub const RESERVED_FOR_BANS: usize = 5_000;

/// What only unrestricted tokens can reach: twice as much, so that they have it for bans and for other overrides.
pub const RESERVED_FOR_UNRESTRICTED: usize = 10_000;

/// Maximum under the policies of a restricted token, without bans: half.
pub const MAX_OVERRIDES_OF_RESTRICTED: usize = MAX_OVERRIDES / 2;

/// Maximum number of different lengths of the prefixes of one policy. Each costs every request under it a hash.
pub const MAX_PREFIX_LENS: usize = 16;

/// Lengths that only bans can add: an attack has a common beginning, and perhaps a second when it moves.
pub const PREFIX_LENS_FOR_BANS: usize = 2;

/// Lengths that only unrestricted tokens can add: twice as many, so that they have them for bans and for other overrides.
pub const PREFIX_LENS_FOR_UNRESTRICTED: usize = 4;

/// Who adds overrides, and which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room<'a> {
    /// The only policies of its token.
    pub(super) only: Option<&'a [String]>,
    pub(super) are_bans: bool,
}

impl Room<'_> {
    /// Whether there is room for `changed`; `new` is how many of them are in force and were not before.
    pub(super) fn check(
        self,
        all: &BTreeMap<SelectorHash, Box<Entry>>,
        changed: &[Entry],
        new: usize,
        now: i64,
    ) -> Result<(), OverridesError> {
        let Self { only, are_bans } = self;
        let is_restricted = only.is_some();
        let checks = [(self.max(), None), (self.max_own(), only)];
        for (max, only) in checks.into_iter().filter(|(max, _)| all.len().saturating_add(new) > *max) {
            let counts = |entry: &Entry| only.is_none_or(|only| only.iter().any(|name| name == entry.policy()));
            let changed_hashes = hashes(changed);
            let is_other = |entry: &Entry| changed_hashes.binary_search(&entry.hash()).is_err();
            let others = all.values().filter(|entry| counts(entry) && is_other(entry) && !entry.can_be_forgotten(now));
            let others = others.count();
            if others.saturating_add(changed.len()) > max {
                return Err(OverridesError::TooMany { max, is_own: only.is_some(), is_restricted, are_bans });
            }
        }
        Ok(())
    }

    /// In all.
    const fn max(self) -> usize {
        let reserved_for_bans = if self.are_bans { 0 } else { RESERVED_FOR_BANS };
        let reserved_for_unrestricted = if self.only.is_some() { RESERVED_FOR_UNRESTRICTED } else { 0 };
        MAX_OVERRIDES.saturating_sub(reserved_for_bans).saturating_sub(reserved_for_unrestricted)
    }

    /// Under the policies of the token.
    const fn max_own(self) -> usize {
        match (self.only, self.are_bans) {
            (None, _) => MAX_OVERRIDES,
            (Some(_), true) => MAX_OVERRIDES_OF_RESTRICTED + RESERVED_FOR_BANS,
            (Some(_), false) => MAX_OVERRIDES_OF_RESTRICTED,
        }
    }

    /// Different lengths of the prefixes of one policy.
    const fn max_prefix_lens(self) -> usize {
        let reserved_for_bans = if self.are_bans { 0 } else { PREFIX_LENS_FOR_BANS };
        let reserved_for_unrestricted = if self.only.is_some() { PREFIX_LENS_FOR_UNRESTRICTED } else { 0 };
        MAX_PREFIX_LENS.saturating_sub(reserved_for_bans).saturating_sub(reserved_for_unrestricted)
    }
}

/// Whether the prefixes that `changed` sets have room, by their lengths. One that is in use can always be used again.
pub(super) fn check_prefix_lens(
    only: Option<&[String]>,
    overrides: &StoredOverrides,
    changed: &[Entry],
    now: i64,
) -> Result<(), OverridesError> {
    let mut set: SortedMap<&str, Vec<(u16, bool)>> = SortedMap::new();
    for entry in changed.iter().filter(|entry| entry.ended_at.is_none()) {
        if let Some(len) = entry.prefix_len() {
            set.change(entry.policy(), |set| set.push((len, entry.is_ban())));
        }
    }
    let problem = |(policy, set): (&&str, &Vec<(u16, bool)>)| {
        let used = overrides.prefixes(policy).filter(|(_, entry)| !entry.can_be_forgotten(now));
        let mut lens: SortedMap<u16, ()> = used.map(|(len, _)| (len, ())).collect();
        let mut new = set.clone();
        new.retain(|(len, _)| !lens.contains_key(len));
        let are_bans = new.iter().all(|(_, is_ban)| *is_ban);
        for (len, _) in &new {
            lens.insert(*len, ());
        }
        let max = Room { only, are_bans }.max_prefix_lens();
        (!new.is_empty() && lens.len() > max).then(|| {
            let count = lens.len();
            let lens: Vec<_> = lens.keys().map(u16::to_string).collect();
            let reserve = match (only.is_some(), are_bans) {
                (true, true) => " (an unrestricted token has more room)",
                (true, false) => " (bans alone, or an unrestricted token, have more room)",
                (false, false) => " (bans alone have more room)",
                (false, true) => "",
            };
            format!(
                "the prefixes of the policy {policy} would have {count} different lengths, at most {max} are possible{reserve}. \
                 Remove all of one length and try again a minute later: {} bytes",
                lens.join(", ")
            )
        })
    };
    let problems: Vec<_> = set.iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(OverridesError::Invalid(problems)) }
}
