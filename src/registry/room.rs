//! The maximum of overrides, and whose overrides may reach it.
//!
//! A ban must find room however many other overrides there are, and an unrestricted token whatever restricted ones do. So the last part is
//! reserved for them, in steps: bans by restricted tokens, anything by unrestricted ones, bans by unrestricted ones. The policies of one
//! restricted token never have more than about half, so that another team finds room too.
//!
//! The different prefix lengths of a policy are few, and have the same steps. A length whose prefixes have all ended makes room, if one
//! change can forget all of them. One with more counts as in use: so the work of a change is bounded, and a restricted token that leaves
//! many ended prefixes behind still cannot reach the last part.

use std::collections::BTreeMap;

use super::stored_overrides::{Entry, StoredOverrides, hashes};
use crate::policy::overrides::SelectorHash;
use crate::protocol::OverridesError;
use crate::sorted::{SortedMap, sort_by};

/// Maximum overrides. An isolate keeps them all, about 100 bytes each: see [`crate::policy::overrides`].
pub const MAX_OVERRIDES: usize = 100_000;

/// Reserved for bans: as many keys as an operator can ban in an emergency with a few requests.
pub const RESERVED_FOR_BANS: usize = 5_000;

/// Reserved for unrestricted tokens: twice as much, so that they have it for bans and for other overrides.
pub const RESERVED_FOR_UNRESTRICTED: usize = 10_000;

/// Maximum under a restricted token's policies, without bans: half.
pub const MAX_OVERRIDES_OF_RESTRICTED: usize = MAX_OVERRIDES / 2;

/// Maximum different prefix lengths of one policy. Each costs every request under it a hash.
pub const MAX_PREFIX_LENS: usize = 16;

/// Lengths reserved for bans: an attack has a common prefix, and perhaps a second when it moves.
pub const PREFIX_LENS_FOR_BANS: usize = 2;

/// Lengths reserved for unrestricted tokens: twice as many, so that they have them for bans and for other overrides.
pub const PREFIX_LENS_FOR_UNRESTRICTED: usize = 4;

/// Maximum prefixes that one change forgets to make room for other lengths: as many as it can set, since each is also a row to write.
pub const MAX_FORGOTTEN_AT_ONCE: usize = 2_000;

/// Who adds overrides, and which ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room<'a> {
    /// The only policies of its token.
    pub(super) only: Option<&'a [String]>,
    pub(super) are_bans: bool,
}

impl Room<'_> {
    /// Checks that there is room for `changed`, of which `new` come into force.
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

    /// The maximum in total.
    const fn max(self) -> usize {
        let reserved_for_bans = if self.are_bans { 0 } else { RESERVED_FOR_BANS };
        let reserved_for_unrestricted = if self.only.is_some() { RESERVED_FOR_UNRESTRICTED } else { 0 };
        MAX_OVERRIDES.saturating_sub(reserved_for_bans).saturating_sub(reserved_for_unrestricted)
    }

    /// The maximum under the token's policies.
    const fn max_own(self) -> usize {
        match (self.only, self.are_bans) {
            (None, _) => MAX_OVERRIDES,
            (Some(_), true) => MAX_OVERRIDES_OF_RESTRICTED + RESERVED_FOR_BANS,
            (Some(_), false) => MAX_OVERRIDES_OF_RESTRICTED,
        }
    }

    /// The maximum of different prefix lengths of one policy.
    const fn max_prefix_lens(self) -> usize {
        let reserved_for_bans = if self.are_bans { 0 } else { PREFIX_LENS_FOR_BANS };
        let reserved_for_unrestricted = if self.only.is_some() { PREFIX_LENS_FOR_UNRESTRICTED } else { 0 };
        MAX_PREFIX_LENS.saturating_sub(reserved_for_bans).saturating_sub(reserved_for_unrestricted)
    }
}

/// Checks that the prefixes that `changed` sets have room, by length, and returns those to forget for it: all prefixes of the ended lengths
/// with the fewest, at most [`MAX_FORGOTTEN_AT_ONCE`]. A counted length can always be used again.
pub(super) fn room_for_prefixes(
    only: Option<&[String]>,
    overrides: &StoredOverrides,
    changed: &[Entry],
    now: i64,
) -> Result<Vec<SelectorHash>, OverridesError> {
    let mut policies: SortedMap<&str, PrefixLens> = SortedMap::new();
    for entry in changed.iter().filter(|entry| entry.ended_at.is_none()) {
        if let Some(len) = entry.prefix_len() {
            policies.change(entry.policy(), |lens| lens.set.push((len, entry.is_ban())));
        }
    }
    if policies.is_empty() {
        return Ok(Vec::new());
    }
    for entry in overrides.all.values() {
        if let Some(len) = entry.prefix_len()
            && let Some(lens) = policies.get_mut(entry.policy())
        {
            lens.known.change(len, |len| len.add(entry.over_since(now)));
        }
    }
    let mut forgotten: SortedMap<&str, Vec<u16>> = SortedMap::new();
    let mut count: usize = 0;
    let mut problems = Vec::new();
    for (policy, lens) in policies.iter() {
        match lens.to_forget(policy, only) {
            Ok(lens) => {
                for (_, prefixes) in &lens {
                    count = count.saturating_add(*prefixes);
                }
                forgotten.insert(policy, lens.into_iter().map(|(len, _)| len).collect());
            }
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() && count > MAX_FORGOTTEN_AT_ONCE {
        problems.push(format!(
            "to make room for prefixes of other lengths, {count} prefixes of several policies that have ended would be forgotten, at most \
             {MAX_FORGOTTEN_AT_ONCE} can be at once. Send the prefixes of each policy in a change of its own"
        ));
    }
    if !problems.is_empty() {
        return Err(OverridesError::Invalid(problems));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let is_forgotten = |entry: &Entry| {
        let lens = forgotten.get(entry.policy());
        entry.prefix_len().is_some_and(|len| lens.is_some_and(|lens| lens.contains(&len)))
    };
    Ok(overrides.all.values().filter(|entry| is_forgotten(entry)).map(|entry| entry.hash()).collect())
}

/// The prefix lengths of one policy.
#[derive(Debug, Default)]
struct PrefixLens {
    /// Those that a change sets, and whether as a ban.
    set: Vec<(u16, bool)>,
    /// Those of prefixes that frontends know.
    known: SortedMap<u16, Known>,
}

/// The prefixes of one length.
#[derive(Debug, Default)]
struct Known {
    prefixes: usize,
    /// Whether one of them is in force, or ended too recently to be forgotten.
    is_in_use: bool,
    /// The latest end of the others.
    over_since: i64,
}

impl Known {
    fn add(&mut self, over_since: Option<i64>) {
        self.prefixes = self.prefixes.saturating_add(1);
        match over_since {
            Some(at) => self.over_since = self.over_since.max(at),
            None => self.is_in_use = true,
        }
    }
}

impl PrefixLens {
    /// The lengths that a change can forget, each with its number of prefixes; all others count. Those with the fewest prefixes come first,
    /// which frees the most lengths, then those that ended first.
    fn over(&self) -> Vec<(u16, usize)> {
        let over = self.known.iter().filter(|(_, known)| !known.is_in_use);
        let mut over: Vec<_> = over.map(|(len, known)| (known.prefixes, known.over_since, *len)).collect();
        sort_by(&mut over, Ord::cmp);
        let mut rest = MAX_FORGOTTEN_AT_ONCE;
        let fits = over.iter().map_while(|&(prefixes, _, len)| {
            rest = rest.checked_sub(prefixes)?;
            Some((len, prefixes))
        });
        fits.collect()
    }

    /// The lengths to forget so that the policy has at most [`MAX_PREFIX_LENS`] including those to be set, each with its number of
    /// prefixes; otherwise why there is no room.
    fn to_forget(&self, policy: &str, only: Option<&[String]>) -> Result<Vec<(u16, usize)>, String> {
        let mut over = self.over();
        let mut counted: SortedMap<u16, &Known> = self.known.iter().map(|(len, known)| (*len, known)).collect();
        for (len, _) in &over {
            counted.remove(len);
        }
        let new = self.set.iter().filter(|(len, _)| !counted.contains_key(len));
        let are_bans = new.clone().all(|(_, is_ban)| *is_ban);
        let new: SortedMap<u16, ()> = new.map(|(len, _)| (*len, ())).collect();
        over.retain(|(len, _)| !new.contains_key(len));
        let count = counted.len().saturating_add(new.len());
        let room = Room { only, are_bans };
        if !new.is_empty() && count > room.max_prefix_lens() {
            return Err(no_room(policy, room, &counted, &new));
        }
        // `count <= MAX_PREFIX_LENS`, so enough have ended.
        let surplus = count.saturating_add(over.len()).saturating_sub(MAX_PREFIX_LENS);
        over.truncate(surplus);
        Ok(over)
    }
}

/// Why there is no room for these new lengths.
fn no_room(policy: &str, room: Room<'_>, counted: &SortedMap<u16, &Known>, new: &SortedMap<u16, ()>) -> String {
    let max = room.max_prefix_lens();
    let reserve = match (room.only.is_some(), room.are_bans) {
        (true, true) => " (an unrestricted token has more room)",
        (true, false) => " (bans alone, or an unrestricted token, have more room)",
        (false, false) => " (bans alone have more room)",
        (false, true) => "",
    };
    let count = counted.len().saturating_add(new.len());
    let (mut in_use, mut ended) = (Vec::new(), Vec::new());
    for (len, known) in counted.iter() {
        if known.is_in_use {
            in_use.push(len.to_string());
        } else {
            ended.push(format!("{len} ({} prefixes)", known.prefixes));
        }
    }
    let lists = [
        ("in use", in_use),
        ("ended, and forgotten within 31 days", ended),
        ("new", new.keys().map(u16::to_string).collect()),
    ];
    let lists = lists.iter().filter(|(_, lens)| !lens.is_empty());
    let lists: Vec<_> = lists.map(|(name, lens)| format!("{name}: {}", lens.join(", "))).collect();
    let lists = lists.join("; ");
    let advice = if new.len() > max {
        "Use fewer lengths".to_owned()
    } else {
        format!(
            "Use a length that is not new. A length of at most {MAX_FORGOTTEN_AT_ONCE} prefixes is free a minute after the last was removed"
        )
    };
    format!(
        "the prefixes of the policy {policy} would have {count} different lengths in bytes, at most {max} are possible{reserve}: {lists}. {advice}"
    )
}
