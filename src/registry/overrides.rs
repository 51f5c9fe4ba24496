//! Overrides of keys: setting and removing them, sending them to frontends, and their end.
//!
//! Each has a row. A removed or ended one is kept for a month, if there is room, as a keyed hash without text: buckets with new requests
//! must know what they were under. Those in force keep the operator's text, so that it can be listed.

use std::ops::Bound;

use super::log::{Act, ITS_UNTIL};
use super::room::{MAX_OVERRIDES, Room, room_for_prefixes};
use super::stored_overrides::{Entry, KEPT_MS, NO_TEXT, StoredOverrides, hash_of, hashes, nameless, row_name};
use super::{Registry, Writes};
use crate::access::{Key, KeyMisfit};
use crate::hex::hex_of;
use crate::key_hash::KeyHash;
use crate::limit::Carry;
use crate::policy::overrides::{InForce, Selector, SelectorHash};
use crate::protocol::{
    MAX_ERROR_LINES, NamedKeys, NewOverride, OverrideChange, OverrideKeys, OverrideStanding, OverridesChange,
    OverridesChanged, OverridesError,
};
use crate::sorted::SortedMap;

/// Maximum overrides recorded one by one; beyond it only their number is.
const MAX_RECORDED: usize = 20;

/// Maximum rows ended or forgotten in passing. Late ones change nothing: their histories have the end.
const MAX_ENDS: usize = 500;

impl Registry {
    /// Sets and removes overrides at `now`, or returns what would change.
    ///
    /// # Errors
    /// [`OverridesError`]. Nothing has changed.
    pub fn change_overrides(
        &mut self,
        change: OverridesChange<'_>,
        now: i64,
    ) -> Result<(OverridesChanged, Writes), OverridesError> {
        let mut writes = Writes::new();
        let OverridesChange { changes, by, only, carry, is_dry_run } = change;
        let asked = self.asked(changes, only, carry, now).map_err(OverridesError::Invalid)?;
        let since = self.next_moment(now);
        let mut changed = OverridesChanged::default();
        let mut entries = Vec::new();
        for Asked { selector, text, state } in asked {
            let before = self.overrides.all.get(&selector.hash());
            let current = before.and_then(|before| before.in_force(now));
            let is_same = current == state && (state.is_none() || carry != Some(Carry::Reset));
            let count = match (&current, &state) {
                _ if is_same => &mut changed.unchanged,
                (None, _) => &mut changed.created,
                (Some(_), None) => &mut changed.removed,
                (Some(_), Some(_)) => &mut changed.replaced,
            };
            *count = count.saturating_add(1);
            if is_same {
                continue;
            }
            let mut history = before.map(|before| before.history()).unwrap_or_default();
            let ended_at = state.is_none().then_some(since);
            history.push(since, state, carry);
            entries.push(Entry { selector, text, history: history.encode().into(), changed_at: since, ended_at });
        }
        let forgotten = self.check_room(&entries, only, now)?;
        if entries.is_empty() {
            return Ok((changed, writes));
        }
        changed.at = Some(since);
        if is_dry_run {
            return Ok((changed, writes));
        }
        self.end_overrides(now, &mut writes);
        self.make_room(&entries, now, &mut writes);
        self.forget_prefixes(&forgotten, since, &mut writes);
        self.moments.latest = since;
        if self.moments.born_at == 0 {
            self.moments.born_at = since;
        }
        self.record_overrides(&entries, by, Some(now), carry, &mut writes);
        for entry in entries {
            writes.push(entry.row());
            self.overrides.put(entry);
        }
        writes.push(self.moments.row());
        Ok((changed, writes))
    }

    /// The overrides in force at `now`, of one policy or of all: at most `limit`, after that id. Also whether there are more.
    #[must_use]
    pub fn overrides(
        &self,
        is_asked: impl Fn(&str) -> bool,
        after: Option<&str>,
        limit: usize,
        now: i64,
    ) -> (Vec<OverrideStanding>, bool) {
        let after = after.and_then(hash_of).map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.overrides.all.range((after, Bound::Unbounded)).map(|(_, entry)| entry);
        let mut found = rest.filter(|entry| is_asked(entry.selector.policy())).filter_map(|entry| entry.standing(now));
        let page = found.by_ref().take(limit).collect();
        (page, found.next().is_some())
    }

    /// The override in force at `now` for these keys.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn override_for(
        &self,
        keys: &OverrideKeys,
        only: Option<&[String]>,
        now: i64,
    ) -> Result<Option<OverrideStanding>, String> {
        let selector = self.selector(keys, only, false)?;
        Ok(self.overrides.all.get(&selector.hash()).and_then(|entry| entry.standing(now)))
    }

    /// Ends overrides that are over at `now`, and forgets some that ended long ago.
    pub(super) fn end_overrides(&mut self, now: i64, writes: &mut Writes) {
        let mut ended = Vec::new();
        while let Some(&(at, hash)) = self.overrides.ends.first()
            && at <= now
            && ended.len() < MAX_ENDS
        {
            self.overrides.ends.pop_first();
            let Some(entry) = self.overrides.all.get(&hash) else { continue };
            ended.push(Entry { text: NO_TEXT.to_owned(), ended_at: Some(at), ..(**entry).clone() });
        }
        self.record_overrides(&ended, ITS_UNTIL, None, None, writes);
        for entry in ended {
            writes.push(entry.row());
            self.overrides.put(entry);
        }
        for _ in 0..MAX_ENDS {
            let Some(&(_, hash)) = self.overrides.ended.first().filter(|(at, _)| at.saturating_add(KEPT_MS) <= now)
            else {
                break;
            };
            self.forget_override(&hash, writes);
        }
        if !writes.is_empty() {
            writes.push(self.moments.row());
        }
    }

    fn forget_override(&mut self, hash: &SelectorHash, writes: &mut Writes) {
        if let Some(entry) = self.overrides.all.get(hash) {
            // A frontend without its end must load all again.
            self.moments.forgotten_at = self.moments.forgotten_at.max(entry.changed_at);
        }
        self.overrides.remove(hash);
        writes.push((row_name(hash), None));
    }

    /// Checks that these have room, not counting what can be forgotten. Returns the prefixes that must be forgotten for it.
    fn check_room(
        &self,
        entries: &[Entry],
        only: Option<&[String]>,
        now: i64,
    ) -> Result<Vec<SelectorHash>, OverridesError> {
        let all = &self.overrides.all;
        let was_in_force = |entry: &&Entry| all.get(&entry.hash()).is_some_and(|before| before.in_force(now).is_some());
        let new: Vec<_> = entries.iter().filter(|entry| entry.ended_at.is_none() && !was_in_force(entry)).collect();
        if !new.is_empty() {
            let are_bans = new.iter().all(|entry| entry.is_ban());
            Room { only, are_bans }.check(all, entries, new.len(), now)?;
        }
        room_for_prefixes(only, &self.overrides, entries, now)
    }

    /// Forgets the oldest ended ones until these have room.
    fn make_room(&mut self, entries: &[Entry], now: i64, writes: &mut Writes) {
        let changed = hashes(entries);
        loop {
            let surplus = self.surplus(entries);
            let StoredOverrides { all, ended, ends, .. } = &self.overrides;
            let can_be_forgotten = |hash: &SelectorHash| {
                changed.binary_search(hash).is_err() && all.get(hash).is_some_and(|entry| entry.can_be_forgotten(now))
            };
            let over = ended.iter().map(|(_, hash)| *hash).filter(can_be_forgotten);
            let over: Vec<_> = over.take(surplus).collect();
            if over.len() == surplus || ends.first().is_none_or(|&(at, _)| at > now) {
                for hash in over {
                    self.forget_override(&hash, writes);
                }
                return;
            }
            self.end_overrides(now, writes); // records their ends
        }
    }

    /// Forgets these ended prefixes. Their rows stay, so that running frontends forget them too and look up no more lengths than the
    /// maximum.
    fn forget_prefixes(&mut self, hashes: &[SelectorHash], since: i64, writes: &mut Writes) {
        let known = || hashes.iter().filter_map(|hash| self.overrides.all.get(hash));
        let forgotten = |is_late: bool| {
            let some = known().filter(|entry| entry.ended_at.is_none() == is_late);
            some.map(|entry| entry.without_history(since)).collect::<Vec<_>>()
        };
        let (late, ended) = (forgotten(true), forgotten(false));
        self.record_overrides(&late, ITS_UNTIL, None, None, writes); // their ends were not recorded yet
        for entry in late.into_iter().chain(ended) {
            writes.push(entry.row());
            self.overrides.put(entry);
        }
    }

    /// How many must be forgotten to make room for these.
    fn surplus(&self, entries: &[Entry]) -> usize {
        let all = &self.overrides.all;
        let new = entries.iter().filter(|entry| !all.contains_key(&entry.selector.hash())).count();
        all.len().saturating_add(new).saturating_sub(MAX_OVERRIDES)
    }

    /// The requested changes.
    fn asked(
        &self,
        changes: Vec<Result<OverrideChange, Vec<String>>>,
        only: Option<&[String]>,
        carry: Option<Carry>,
        now: i64,
    ) -> Result<Vec<Asked>, Vec<String>> {
        let (mut all, mut errors) = (Vec::new(), Vec::new());
        let mut places = SortedMap::new();
        for change in changes {
            let asked = change.and_then(|OverrideChange { keys, set }| {
                let asked = self.one(&keys, set, only, carry, now).map_err(|error| vec![error])?;
                let place = keys.place;
                match places.insert(asked.selector.hash(), place.clone()) {
                    Some(first) => Err(vec![format!("{place}: is for the same keys as {first}")]),
                    None => Ok(asked),
                }
            });
            match asked {
                Ok(asked) => all.push(asked),
                Err(lines) => errors.extend(lines),
            }
            if errors.len() > MAX_ERROR_LINES {
                errors.truncate(MAX_ERROR_LINES);
                errors.push("there are more errors".to_owned());
                break;
            }
        }
        if errors.is_empty() { Ok(all) } else { Err(errors) }
    }

    fn one(
        &self,
        keys: &OverrideKeys,
        set: Option<NewOverride>,
        only: Option<&[String]>,
        carry: Option<Carry>,
        now: i64,
    ) -> Result<Asked, String> {
        let (place, policy) = (&keys.place, &keys.policy);
        let selector = self.selector(keys, only, set.is_some())?;
        let known = self.policies.get(policy);
        if carry == Some(Carry::Additive) && known.is_some_and(|entry| entry.policy.declared_shards() > 1) {
            return Err(format!(
                "{place}: the policy {policy} has shards: `carry` must be as_is or reset, not additive"
            ));
        }
        let Some(NewOverride { text, in_force }) = set else {
            return Ok(Asked { selector, text: NO_TEXT.to_owned(), state: None });
        };
        if selector.prefix_len().is_some() && known.is_some_and(|entry| entry.policy.registry().is_fixed) {
            return Err(format!(
                "{place}.prefix: the policy {policy} has `fixed = true`: only single keys can have an override"
            ));
        }
        if let Some(until) = in_force.until.filter(|&until| until <= now) {
            return Err(format!("{place}.until: {until} is not in the future: it is {now}"));
        }
        if let Some(problem) = known.and_then(|entry| in_force.plan.misfit(&entry.policy)) {
            return Err(format!("{place}: {problem}"));
        }
        Ok(Asked { selector, text, state: Some(in_force) })
    }

    /// Selects these keys, to set an override for them if it `is_set`.
    fn selector(&self, keys: &OverrideKeys, only: Option<&[String]>, is_set: bool) -> Result<Selector, String> {
        let OverrideKeys { place, policy, keys } = keys;
        // Those of a deleted policy can still be removed.
        let known = self.policies.get(policy).filter(|entry| !is_set || !entry.is_deleted);
        let Some(known) = known.filter(|_| only.is_none_or(|only| only.contains(policy))) else {
            return Err(format!("{place}.policy: there is no policy {policy:?}"));
        };
        let terms = known.policy.frontend();
        match keys {
            NamedKeys::Prefix(_) if is_set && terms.has_one_budget => {
                Err(format!("{place}.prefix: the policy has one budget for all: give \"key\": []"))
            }
            NamedKeys::Prefix(prefix) => Ok(Selector::prefix(&self.hasher, policy, prefix)),
            NamedKeys::One(key) => {
                let key = key.clone().recognized(&self.hasher);
                match Key::bytes_for(Some(&key), terms.has_one_budget, terms.ipv6_prefix) {
                    Ok(bytes) => Ok(Selector::key(policy, self.hasher.hash(&bytes))),
                    // One from before the policy changed can still be removed.
                    Err(_) if !is_set => Ok(Selector::key(policy, self.hash_of_key(&key, terms.ipv6_prefix))),
                    Err(KeyMisfit::NotTaken) => {
                        Err(format!("{place}.key: must be []: the policy has one budget for all"))
                    }
                    Err(misfit) => Err(format!("{place}.key: {misfit}")),
                }
            }
        }
    }

    /// The hash of a key.
    #[must_use]
    pub fn hash_of_key(&self, key: &Key<'_>, ipv6_prefix: u8) -> KeyHash {
        self.hasher.hash(&key.to_bytes(ipv6_prefix))
    }

    /// Records each if they are few, else their number per policy: at `now`, or when each ended.
    fn record_overrides(
        &mut self,
        entries: &[Entry],
        by: &str,
        now: Option<i64>,
        carry: Option<Carry>,
        writes: &mut Writes,
    ) {
        struct Line {
            policy: String,
            key: Option<String>,
            at: i64,
            before: Option<String>,
            after: Option<String>,
        }
        let at = |entry: &Entry| now.or(entry.ended_at).unwrap_or(entry.changed_at);
        let mut lines = Vec::new();
        if entries.len() <= MAX_RECORDED {
            for entry in entries {
                let before = self.overrides.all.get(&entry.selector.hash());
                let before = before.filter(|before| now.is_none_or(|now| before.in_force(now).is_some()));
                let before = before.and_then(|before| nameless(&before.text));
                let after = nameless(&entry.text).filter(|_| entry.ended_at.is_none());
                let selector = &entry.selector;
                let key = Some(hex_of(&selector.key_hash().unwrap_or_else(|| selector.hash())));
                lines.push(Line { policy: entry.selector.policy().to_owned(), key, at: at(entry), before, after });
            }
        } else {
            let mut counts: SortedMap<&str, (usize, usize, i64)> = SortedMap::new();
            for entry in entries {
                counts.change(entry.selector.policy(), |(set, removed, latest)| {
                    let count = if entry.ended_at.is_none() { set } else { removed };
                    *count = count.saturating_add(1);
                    *latest = at(entry).max(*latest);
                });
            }
            for (policy, &(set, removed, at)) in counts.iter() {
                let counts = Some(format!(r#"{{"set":{set},"removed":{removed}}}"#));
                let (before, after) = if set == 0 { (counts, None) } else { (None, counts) };
                lines.push(Line { policy: (*policy).to_owned(), key: None, at, before, after });
            }
        }
        for Line { policy, key, at, before, after } in &lines {
            let (key, before, after) = (key.as_deref(), before.as_deref(), after.as_deref());
            self.record(&Act { of: "override", by, policy, key, before, after, carry }, *at, writes);
        }
    }
}

/// One requested change.
struct Asked {
    selector: Selector,
    /// The text as written; [`NO_TEXT`] to remove the override.
    text: String,
    state: Option<InForce>,
}
