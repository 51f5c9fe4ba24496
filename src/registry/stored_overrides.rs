//! The stored overrides: those in force, and ended ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::Serialize;
use serde_json::value::RawValue;

use super::entry::raw;
use super::names::OVERRIDE;
use crate::hex::{bytes_of_hex, hex_of};
use crate::json::Json;
use crate::policy::overrides::{History, InForce, Plan, Selector, SelectorHash};
use crate::protocol::{OverrideStanding, Poll, Update};
use crate::sorted::sort_by;

/// Minimum retention of an ended override when full: a minute. Isolates poll every five seconds, so running ones have the end by then; the
/// others load all overrides again.
pub const HEARD_MS: i64 = 60_000;

/// How long an ended override is kept: 31 days.
pub(super) const KEPT_MS: i64 = 31 * 86_400_000;

/// Target page size in bytes: less than a megabyte as text.
const PAGE_LEN: usize = 512 * 1_024;

/// Replaces the text of an ended one.
pub(super) const NO_TEXT: &str = "null";

#[derive(Debug, Default)]
pub(super) struct StoredOverrides {
    /// Boxed: hashes are loaded in order, which leaves half of each node empty.
    pub(super) all: BTreeMap<SelectorHash, Box<Entry>>,
    /// In order of latest change, as pages are.
    pub(super) by_change: BTreeSet<(i64, SelectorHash)>,
    /// The ends of those in force.
    pub(super) ends: BTreeSet<(i64, SelectorHash)>,
    /// The moments when others ended.
    pub(super) ended: BTreeSet<(i64, SelectorHash)>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) selector: Selector,
    /// As written: JSON; [`NO_TEXT`] if ended.
    pub(super) text: String,
    /// The encoded [`History`]: decoded it would need 500 bytes more, and all must fit into an isolate. Empty if frontends are to forget
    /// it.
    pub(super) history: Box<[u8]>,
    pub(super) changed_at: i64,
    /// When it ended.
    pub(super) ended_at: Option<i64>,
}

impl StoredOverrides {
    /// Takes a row; returns whether it was readable.
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

    /// The changes that a frontend lacks, or the first page of them.
    pub(super) fn page(&self, poll: &Poll<'_>, born_at: i64, is_whole: bool, forgotten_at: i64) -> Update {
        let known = poll.overrides_at.as_deref().and_then(|text| Cursor::read(text, born_at));
        // A frontend that is still loading gets ends since it started only if they are still here.
        let is_missing_ends = |cursor: &Cursor| if poll.is_loading { cursor.began_at < forgotten_at } else { is_whole };
        let known = known.filter(|cursor| !is_missing_ends(cursor));
        if self.all.is_empty() && poll.overrides_at.is_none() {
            return Update::default();
        }
        let overrides_are_first = known.is_none();
        let Cursor { mut last, began_at } =
            known.unwrap_or_else(|| Cursor { last: Default::default(), began_at: self.latest().unwrap_or(0) });
        let mut overrides = Vec::new();
        let mut has_more = false;
        let after = if overrides_are_first { Bound::Unbounded } else { Bound::Excluded(last) };
        for change in self.by_change.range((after, Bound::Unbounded)) {
            if overrides.len() >= PAGE_LEN {
                has_more = true;
                break;
            }
            if let Some(entry) = self.all.get(&change.1) {
                entry.selector.record(&entry.history, &mut overrides);
            }
            last = *change;
        }
        let overrides_at = format!("{born_at}-{}-{}-{began_at}", last.0, hex_of(&last.1));
        Update { overrides, overrides_are_first, overrides_at, has_more, ..Update::default() }
    }

    pub(super) fn put(&mut self, entry: Entry) {
        let hash = entry.selector.hash();
        self.remove(&hash);
        self.by_change.insert((entry.changed_at, hash));
        match (entry.ended_at, entry.until()) {
            (Some(at), _) => _ = self.ended.insert((at, hash)),
            (None, Some(until)) => _ = self.ends.insert((until, hash)),
            (None, None) => {}
        }
        self.all.insert(hash, Box::new(entry));
    }

    pub(super) fn remove(&mut self, hash: &SelectorHash) {
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
    pub(super) fn until(&self) -> Option<i64> {
        self.history().latest()?.1?.until
    }

    pub(super) const fn hash(&self) -> SelectorHash {
        self.selector.hash()
    }

    pub(super) fn policy(&self) -> &str {
        self.selector.policy()
    }

    /// Its prefix's length, if it has a prefix and is not [forgotten](Entry::without_history).
    pub(super) fn prefix_len(&self) -> Option<u16> {
        self.selector.prefix_len().filter(|_| !self.history.is_empty())
    }

    /// The entry that makes frontends, from `since` on, forget an ended override, whose end is recorded.
    pub(super) fn without_history(&self, since: i64) -> Self {
        let ended_at = self.ended_at.or_else(|| self.until());
        let (selector, text) = (self.selector.clone(), NO_TEXT.to_owned());
        Self { selector, text, history: Box::default(), changed_at: since, ended_at }
    }

    pub(super) fn is_ban(&self) -> bool {
        let history = self.history();
        matches!(history.latest(), Some((_, Some(InForce { plan: Plan::Banned, .. }))))
    }

    /// Whether it has ended, and its last change has had time to reach all running frontends.
    pub(super) fn can_be_forgotten(&self, now: i64) -> bool {
        self.over_since(now).is_some()
    }

    /// When it ended, if it [can be forgotten](Entry::can_be_forgotten).
    pub(super) fn over_since(&self, now: i64) -> Option<i64> {
        if self.changed_at.saturating_add(HEARD_MS) > now {
            return None;
        }
        self.ended_at.or_else(|| self.until().filter(|&until| until <= now))
    }

    pub(super) fn history(&self) -> History {
        History::decode(&self.history).unwrap_or_default() // encoded here, or checked when read
    }

    pub(super) fn in_force(&self, now: i64) -> Option<InForce> {
        self.history().at(now).filter(|_| self.ended_at.is_none()).cloned()
    }

    pub(super) fn standing(&self, now: i64) -> Option<OverrideStanding> {
        self.in_force(now)?;
        let (since, _) = self.history().latest()?;
        let object = self.selector.key_hash().map(|hash| hex_of(&hash));
        Some(OverrideStanding { text: self.text.clone(), since, id: hex_of(&self.selector.hash()), object })
    }

    pub(super) fn row(&self) -> (String, Option<String>) {
        #[derive(Serialize)]
        struct Row<'a> {
            text: Option<&'a RawValue>,
            record: String,
            changed_at: i64,
            #[serde(skip_serializing_if = "Option::is_none")]
            ended_at: Option<i64>,
        }
        let mut record = Vec::new();
        self.selector.record(&self.history, &mut record);
        let Self { changed_at, ended_at, .. } = *self;
        let row = Row { text: raw(&self.text), record: hex_of(&record), changed_at, ended_at };
        (row_name(&self.selector.hash()), serde_json::to_string(&row).ok())
    }

    pub(super) fn read(row: &str) -> Option<Self> {
        let fields = Json::parse(row).ok()?.fields().ok()?;
        let moment = |name: &str| i64::try_from(fields.get(name)?.integer()?).ok();
        let record = bytes_of_hex(&fields.get("record")?.string()?)?;
        let (selector, history) = Selector::of_record(&record)?;
        History::decode(history)?;
        Some(Self {
            selector,
            text: fields.get("text")?.raw().to_owned(),
            history: history.into(),
            changed_at: moment("changed_at")?,
            ended_at: moment("ended_at"),
        })
    }
}

/// The override's text without the key or prefix, which may be a person's name.
pub(super) fn nameless(text: &str) -> Option<String> {
    let fields = Json::parse(text).ok()?.fields().ok()?;
    let named = |(name, _): &(&Cow<'_, str>, Json<'_>)| !["key", "prefix"].contains(&&***name);
    let fields: Vec<_> = fields.iter().filter(named).map(|(name, json)| format!("\"{name}\":{}", json.raw())).collect();
    Some(format!("{{{}}}", fields.join(",")))
}

/// In order.
pub(super) fn hashes(entries: &[Entry]) -> Vec<SelectorHash> {
    let mut hashes: Vec<_> = entries.iter().map(|entry| entry.selector.hash()).collect();
    sort_by(&mut hashes, SelectorHash::cmp);
    hashes
}

pub(super) fn row_name(hash: &SelectorHash) -> String {
    format!("{OVERRIDE}{}", hex_of(hash))
}

pub(super) fn hash_of(id: &str) -> Option<SelectorHash> {
    bytes_of_hex(id)?.try_into().ok()
}

/// A frontend's position in the overrides.
struct Cursor {
    /// The last change that it has.
    last: (i64, SelectorHash),
    /// The latest change when it started to load them.
    began_at: i64,
}

impl Cursor {
    /// Parses a cursor; `None` if it is not from the registry born at `born_at`.
    pub(super) fn read(text: &str, born_at: i64) -> Option<Self> {
        let mut parts = text.split('-');
        let (born, at, hash, began) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let last = (at.parse().ok()?, hash_of(hash)?);
        (born.parse() == Ok(born_at)).then_some(Self { last, began_at: began.parse().ok()? })
    }
}
