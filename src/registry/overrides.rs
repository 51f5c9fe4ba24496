//! Overrides of keys: what operators set and remove, what frontends get of them, and their end.
//!
//! Each has a row. One that was removed, or has ended, is kept for a month: buckets that are asked for again must know under what
//! they were. What is kept of keys is what the operator wrote, so that it can be listed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::Serialize;
use serde_json::value::RawValue;

use super::audit::Act;
use super::entry::raw;
use super::{OVERRIDE, Registry, Writes};
use crate::access::Key;
use crate::json::Json;
use crate::policy::overrides::{History, InForce, Selector, SelectorHash, WrittenKeys, WrittenOverride};
use crate::protocol::{OverrideStanding, OverridesChange, OverridesChanged, OverridesError, Poll, Update};

/// The most overrides. An isolate keeps them all, some 100 bytes each: see [`crate::policy::overrides`].
pub const MAX_OVERRIDES: usize = 100_000;

/// The most in one change.
pub const MAX_OVERRIDES_AT_ONCE: usize = 2_000;

/// For so long one that is in force no more is kept: 31 days.
const KEPT_MS: i64 = 31 * 86_400_000;

/// So many bytes a page of them has, or few more: as text less than a megabyte.
const PAGE_LEN: usize = 512 * 1_024;

/// So many lines an error has at most.
const MAX_LINES: usize = 20;

/// So many are each recorded; of more, only how many there were.
const MAX_RECORDED: usize = 20;

#[derive(Debug, Default)]
pub(super) struct StoredOverrides {
    all: BTreeMap<SelectorHash, Entry>,
    /// In the order of their latest changes: pages follow it.
    by_change: BTreeSet<(i64, SelectorHash)>,
    /// When those that are in force end.
    ends: BTreeSet<(i64, SelectorHash)>,
    /// Since when others are in force no more.
    ended: BTreeSet<(i64, SelectorHash)>,
}

#[derive(Clone, Debug)]
struct Entry {
    selector: Selector,
    /// As written: JSON.
    text: String,
    history: History,
    changed_at: i64,
    /// Since when it is in force no more.
    ended_at: Option<i64>,
}

impl Registry {
    /// Sets and removes overrides at `now`, or says what would change.
    ///
    /// # Errors
    /// [`OverridesError`]. Nothing has changed.
    pub fn change_overrides(
        &mut self,
        change: &OverridesChange<'_>,
        now: i64,
    ) -> Result<(OverridesChanged, Writes), OverridesError> {
        let mut writes = Writes::new();
        let asked = self.asked(change, now).map_err(OverridesError::Invalid)?;
        let since = self.next_moment(now);
        let mut changed = OverridesChanged::default();
        let mut entries = Vec::new();
        for Asked { selector, text, state } in asked {
            let before = self.overrides.all.get(&selector.hash());
            let current = before.and_then(|before| before.history.at(now));
            let count = match (current, &state) {
                _ if current == state.as_ref() => &mut changed.unchanged,
                (None, _) => &mut changed.created,
                (Some(_), None) => &mut changed.removed,
                (Some(_), Some(_)) => &mut changed.replaced,
            };
            *count = count.saturating_add(1);
            if current == state.as_ref() {
                continue;
            }
            let mut history = before.map(|before| before.history.clone()).unwrap_or_default();
            let ended_at = state.is_none().then_some(since);
            history.push(since, state);
            let text =
                if text.is_empty() { before.map(|before| before.text.clone()).unwrap_or_default() } else { text };
            entries.push(Entry { selector, text, history, changed_at: since, ended_at });
        }
        let new = entries.iter().filter(|entry| !self.overrides.all.contains_key(&entry.selector.hash())).count();
        if self.overrides.all.len().saturating_add(new) > MAX_OVERRIDES {
            return Err(OverridesError::TooMany { max: MAX_OVERRIDES });
        }
        if entries.is_empty() {
            return Ok((changed, writes));
        }
        changed.at = Some(since);
        if change.is_dry_run {
            return Ok((changed, writes));
        }
        self.end_overrides(now, &mut writes);
        self.moments.latest = since;
        if self.moments.born_at == 0 {
            self.moments.born_at = since;
        }
        self.record_overrides(&entries, change.by, now, &mut writes);
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

    /// The override in force at `now` for these keys: `{"policy": ..., "key": ...}` or with a `prefix`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn override_for(
        &self,
        keys: &str,
        only: Option<&[String]>,
        now: i64,
    ) -> Result<Option<OverrideStanding>, Vec<String>> {
        let (selector, _) = self.selector("override", keys, only, false)?;
        Ok(self.overrides.all.get(&selector.hash()).and_then(|entry| entry.standing(now)))
    }

    /// Carries out the ends that have come by `now`, and forgets what ended long ago.
    pub(super) fn end_overrides(&mut self, now: i64, writes: &mut Writes) {
        while let Some(&(at, hash)) = self.overrides.ends.first()
            && at <= now
        {
            self.overrides.ends.pop_first();
            let Some(entry) = self.overrides.all.get(&hash) else { continue };
            let entry = Entry { ended_at: Some(at), ..entry.clone() };
            let before = entry.text.clone();
            let policy = entry.selector.policy().to_owned();
            writes.push(entry.row());
            self.overrides.put(entry);
            let act =
                Act { of: "override", by: "until", policy: &policy, before: Some(&before), after: None, carry: None };
            self.record(&act, at, writes);
        }
        while let Some(&(at, hash)) = self.overrides.ended.first()
            && at.saturating_add(KEPT_MS) <= now
        {
            self.overrides.remove(&hash);
            writes.push((row_name(&hash), None));
        }
        if !writes.is_empty() {
            writes.push(self.moments.row());
        }
    }

    /// What is to be changed.
    fn asked(&self, change: &OverridesChange<'_>, now: i64) -> Result<Vec<Asked>, Vec<String>> {
        let one = |line: String| vec![line];
        let fields = Json::parse(change.text)
            .map_err(|error| one(format!("the body is not valid JSON: {error}")))?
            .fields()
            .map_err(|_| one("the body must be an object with `overrides`, `removed` or both".to_owned()))?;
        if let Some(other) = fields.names().find(|name| !["overrides", "removed"].contains(name)) {
            return Err(one(format!("the body has the field {other:?}; it may have `overrides` and `removed`")));
        }
        let list = |name: &str| match fields.get(name) {
            None => Ok(Vec::new()),
            Some(list) => list.array().ok_or_else(|| one(format!("`{name}` must be a list of overrides"))),
        };
        let (set, removed) = (list("overrides")?, list("removed")?);
        let count = set.len().saturating_add(removed.len());
        if count == 0 || count > MAX_OVERRIDES_AT_ONCE {
            return Err(one(format!("a change has 1 to {MAX_OVERRIDES_AT_ONCE} overrides, not {count}")));
        }
        let set = set.into_iter().enumerate().map(|(index, json)| (format!("overrides[{index}]"), json, true));
        let removed = removed.into_iter().enumerate().map(|(index, json)| (format!("removed[{index}]"), json, false));
        let (mut all, mut errors) = (Vec::new(), Vec::new());
        let mut places = BTreeMap::new();
        for (place, json, is_set) in set.chain(removed) {
            let asked = self.one(&place, json, is_set, change.only, now).and_then(|asked| {
                match places.insert(asked.selector.hash(), place.clone()) {
                    Some(first) => Err(one(format!("{place}: is for the same keys as {first}"))),
                    None => Ok(asked),
                }
            });
            match asked {
                Ok(asked) => all.push(asked),
                Err(lines) => errors.extend(lines),
            }
            if errors.len() > MAX_LINES {
                errors.truncate(MAX_LINES);
                errors.push("there are more errors".to_owned());
                break;
            }
        }
        if errors.is_empty() { Ok(all) } else { Err(errors) }
    }

    fn one(
        &self,
        place: &str,
        json: Json<'_>,
        is_set: bool,
        only: Option<&[String]>,
        now: i64,
    ) -> Result<Asked, Vec<String>> {
        let (selector, written) = self.selector(place, json.raw(), only, is_set)?;
        let Some(WrittenOverride { plan, until, .. }) = written else {
            return Ok(Asked { selector, text: String::new(), state: None });
        };
        if let Some(until) = until.filter(|&until| until <= now) {
            return Err(vec![format!("{place}.until: {until} is not in the future: it is {now}")]);
        }
        if let Some(problem) = self.policies.get(selector.policy()).and_then(|entry| plan.misfit(&entry.policy)) {
            return Err(vec![format!("{place}: {problem}")]);
        }
        Ok(Asked { selector, text: json.compact(), state: Some(InForce { plan, until }) })
    }

    /// Which keys are meant, and the override if one `is_set`.
    fn selector<'a>(
        &self,
        place: &str,
        text: &'a str,
        only: Option<&[String]>,
        is_set: bool,
    ) -> Result<(Selector, Option<WrittenOverride<'a>>), Vec<String>> {
        let lines =
            |errors: Vec<crate::policy::PolicyError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (policy, keys, written) = if is_set {
            let written = WrittenOverride::parse(place, text).map_err(lines)?;
            (written.policy.clone(), written.keys.clone(), Some(written))
        } else {
            let (policy, keys) = WrittenKeys::parse(place, text).map_err(lines)?;
            (policy, keys, None)
        };
        let known = self.policies.get(&*policy).filter(|entry| !entry.is_deleted);
        let Some(known) = known.filter(|_| only.is_none_or(|only| only.iter().any(|name| *name == *policy))) else {
            return Err(vec![format!("{place}.policy: there is no policy {policy:?}")]);
        };
        let selector = match keys {
            WrittenKeys::Prefix(prefix) => Selector::prefix(&policy, &prefix),
            WrittenKeys::One(key) => {
                let json = Json::parse(key).map_err(|error| vec![format!("{place}.key: {error}")])?;
                let key = Key::parse(json).map_err(|error| vec![format!("{place}.key: {error}")])?;
                Selector::key(&policy, &key.to_bytes(known.policy.ipv6_prefix()))
            }
        };
        Ok((selector, written))
    }

    /// Each, if they are few; else, for each policy, how many.
    fn record_overrides(&mut self, entries: &[Entry], by: &str, at: i64, writes: &mut Writes) {
        let mut all: Vec<(String, Option<String>, Option<String>)> = Vec::new();
        if entries.len() <= MAX_RECORDED {
            for entry in entries {
                let before = self.overrides.all.get(&entry.selector.hash());
                let before = before.filter(|before| before.ended_at.is_none()).map(|before| before.text.clone());
                let after = entry.ended_at.is_none().then(|| entry.text.clone());
                all.push((entry.selector.policy().to_owned(), before, after));
            }
        } else {
            let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
            for entry in entries {
                let (set, removed) = counts.entry(entry.selector.policy()).or_default();
                let count = if entry.ended_at.is_none() { set } else { removed };
                *count = count.saturating_add(1);
            }
            for (policy, (set, removed)) in counts {
                let after = format!(r#"{{"set":{set},"removed":{removed}}}"#);
                all.push((policy.to_owned(), None, Some(after)));
            }
        }
        for (policy, before, after) in all {
            let (before, after) = (before.as_deref(), after.as_deref());
            self.record(&Act { of: "override", by, policy: &policy, before, after, carry: None }, at, writes);
        }
    }
}

/// One change.
struct Asked {
    selector: Selector,
    /// As written; empty to remove it.
    text: String,
    state: Option<InForce>,
}

impl StoredOverrides {
    /// Takes over a row; reports whether it can be read.
    pub(super) fn load(&mut self, name: &str, row: &str) -> bool {
        let entry = Entry::read(row).filter(|entry| row_name(&entry.selector.hash()) == name);
        let is_read = entry.is_some();
        if let Some(entry) = entry {
            self.put(entry);
        }
        is_read
    }

    /// The latest change.
    pub(super) fn latest(&self) -> Option<i64> {
        self.by_change.last().map(|(at, _)| *at)
    }

    /// What a frontend does not have yet, or the beginning of it.
    pub(super) fn page(&self, poll: &Poll<'_>, born_at: i64, is_whole: bool) -> Update {
        let known = poll.overrides_at.as_deref().and_then(|text| cursor_of(text, born_at));
        let known = known.filter(|_| !is_whole || poll.is_loading);
        if self.all.is_empty() && poll.overrides_at.is_none() {
            return Update::default();
        }
        let overrides_are_first = known.is_none();
        let mut last = known.unwrap_or_default();
        let mut overrides = Vec::new();
        let mut has_more = false;
        let after = if overrides_are_first { Bound::Unbounded } else { Bound::Excluded(last) };
        for change in self.by_change.range((after, Bound::Unbounded)) {
            if overrides.len() >= PAGE_LEN {
                has_more = true;
                break;
            }
            if let Some(entry) = self.all.get(&change.1) {
                entry.selector.record(&entry.history.encode(), &mut overrides);
            }
            last = *change;
        }
        let overrides_at = format!("{born_at}-{}-{}", last.0, hex(&last.1));
        Update { overrides, overrides_are_first, overrides_at, has_more, ..Update::default() }
    }

    fn put(&mut self, entry: Entry) {
        let hash = entry.selector.hash();
        self.remove(&hash);
        self.by_change.insert((entry.changed_at, hash));
        match (entry.ended_at, entry.until()) {
            (Some(at), _) => _ = self.ended.insert((at, hash)),
            (None, Some(until)) => _ = self.ends.insert((until, hash)),
            (None, None) => {}
        }
        self.all.insert(hash, entry);
    }

    fn remove(&mut self, hash: &SelectorHash) {
        let Some(entry) = self.all.remove(hash) else { return };
        self.by_change.remove(&(entry.changed_at, *hash));
        if let Some(at) = entry.ended_at {
            self.ended.remove(&(at, *hash));
        }
        if let Some(until) = entry.until() {
            self.ends.remove(&(until, *hash));
        }
    }
}

impl Entry {
    fn until(&self) -> Option<i64> {
        self.history.latest()?.1?.until
    }

    fn standing(&self, now: i64) -> Option<OverrideStanding> {
        self.history.at(now)?;
        let (since, _) = self.history.latest()?;
        Some(OverrideStanding { text: self.text.clone(), since, id: hex(&self.selector.hash()) })
    }

    fn row(&self) -> (String, Option<String>) {
        #[derive(Serialize)]
        struct Row<'a> {
            text: Option<&'a RawValue>,
            record: String,
            changed_at: i64,
            #[serde(skip_serializing_if = "Option::is_none")]
            ended_at: Option<i64>,
        }
        let mut record = Vec::new();
        self.selector.record(&self.history.encode(), &mut record);
        let Self { changed_at, ended_at, .. } = *self;
        let row = Row { text: raw(&self.text), record: hex(&record), changed_at, ended_at };
        (row_name(&self.selector.hash()), serde_json::to_string(&row).ok())
    }

    fn read(row: &str) -> Option<Self> {
        let fields = Json::parse(row).ok()?.fields().ok()?;
        let moment = |name: &str| i64::try_from(fields.get(name)?.integer()?).ok();
        let record = bytes_of(&fields.get("record")?.string()?)?;
        let (selector, history) = Selector::of_record(&record)?;
        Some(Self {
            selector,
            text: fields.get("text")?.raw().to_owned(),
            history: History::decode(history)?,
            changed_at: moment("changed_at")?,
            ended_at: moment("ended_at"),
        })
    }
}

fn row_name(hash: &SelectorHash) -> String {
    format!("{OVERRIDE}{}", hex(hash))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}"); // a text takes everything
        text
    })
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| u8::from_str_radix(hex.get(at..at.checked_add(2)?)?, 16).ok();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn hash_of(id: &str) -> Option<SelectorHash> {
    bytes_of(id)?.try_into().ok()
}

/// Up to where a frontend has the overrides of the registry that was born then.
fn cursor_of(text: &str, born_at: i64) -> Option<(i64, SelectorHash)> {
    let mut parts = text.split('-');
    let (born, at, hash) = (parts.next()?, parts.next()?, parts.next()?);
    (born.parse() == Ok(born_at)).then_some((at.parse().ok()?, hash_of(hash)?))
}
