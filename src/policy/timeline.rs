//! When a policy changed, and its earlier versions, so that a bucket refills at the numbers of each moment.
//!
//! A version of a policy is identified by the moment it came into force, which is unique. A bucket follows the versions one by one, at its
//! next request: see `ledger/follow.rs`.
//!
//! At most [`Timeline::MAX_EARLIER`] earlier versions are kept, of which one may stand for several: see `weakest.rs`.

use serde::Serialize;

use super::named_limit::{NamedLimit, is_of_slots};
use super::stored::{StoredConfig, StoredConfigError, limits_of};
use crate::json::{Fields, Json};
use crate::limit::{Calendar, Carry, Config, Kind, Limit};

/// The versions of a policy up to the one in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// When the policy came into force, in Unix milliseconds. 0 if unknown.
    since: i64,
    /// How buckets are carried over from the previous version.
    carry: Carry,
    /// Oldest first.
    pub(super) earlier: Vec<Version>,
    /// The name of the limit that had none in an earlier version.
    unnamed: Option<String>,
}

/// An earlier version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// When it came into force, in Unix milliseconds.
    pub since: i64,
    /// How buckets are carried over from the previous version.
    pub carry: Carry,
    /// Its limits, by [`NamedLimit::account`].
    pub limits: Vec<(Option<String>, Limit)>,
    /// How many objects were to share a key's budget.
    pub shards: u8,
    /// If it stands for several: see `weakest.rs`.
    pub merged: Option<Merged>,
}

/// What is known of the versions that one stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// How buckets were carried over between them.
    pub carry: Carry,
    /// The fewest objects that were to share a key's budget; [`Version::shards`] is the most.
    pub fewest_shards: u8,
}

impl Timeline {
    /// Maximum earlier versions: a change every minute for an hour.
    pub const MAX_EARLIER: usize = 64;

    /// A policy in force since that moment, after these versions, oldest first. `carry` says how buckets are carried over from the last.
    #[must_use]
    pub const fn new(since: i64, carry: Carry, earlier: Vec<Version>) -> Self {
        Self { since, carry, earlier, unnamed: None }
    }

    /// The timeline of a policy whose limit with that name had none in an earlier version.
    pub(super) fn with_unnamed(self, unnamed: Option<String>) -> Self {
        Self { unnamed, ..self }
    }

    /// The name of the limit that had none in an earlier version, even if the policy lacks it now.
    pub(crate) fn unnamed(&self) -> Option<&str> {
        self.unnamed.as_deref()
    }

    /// When the policy came into force, in Unix milliseconds. 0 if unknown: no registry has seen it.
    #[must_use]
    pub const fn since(&self) -> i64 {
        self.since
    }

    /// How buckets are carried over from the previous version.
    #[must_use]
    pub const fn carry(&self) -> Carry {
        self.carry
    }

    /// The versions before it, oldest first.
    #[must_use]
    pub fn earlier(&self) -> &[Version] {
        &self.earlier
    }

    /// The earlier versions that a bucket at the version `since` may have to go through.
    pub(crate) fn earlier_after(&self, since: i64) -> impl Iterator<Item = &Version> {
        let ends = self.earlier.iter().skip(1).map(|version| version.since).chain([self.since]);
        let is_later =
            move |(version, end): &(&Version, i64)| version.since > since || version.merged.is_some() && *end > since;
        self.earlier.iter().zip(ends).filter(is_later).map(|(version, _)| version)
    }

    /// The timeline after replacing the policy with these `limits` and this number of `shards`. It has one more version, so it may need to
    /// be [bounded](Timeline::bounded).
    pub(super) fn succeeded(&self, limits: &[NamedLimit], shards: u8, since: i64, carry: Carry) -> Self {
        let limits = limits.iter().map(|limit| (limit.account().map(str::to_owned), *limit.limit())).collect();
        let last = Version { since: self.since, carry: self.carry, limits, shards, merged: None };
        Self::new(since, carry, self.earlier.iter().cloned().chain([last]).collect())
    }

    /// Drops the versions before one that stayed in force until all their buckets were full, and ended by then. Only a reservation that is
    /// older may still need them: it keeps what refilled above the capacity.
    pub(super) fn without_settled(mut self, by: i64) -> Self {
        let settled = self.settled(by);
        self.earlier.drain(..settled);
        self
    }

    /// How many versions come before one that stayed in force until all their buckets were full, and ended by then.
    pub(super) fn settled(&self, by: i64) -> usize {
        let ends = self.earlier.iter().skip(1).map(|version| version.since).chain([self.since]);
        let is_settled = |(index, end): &(usize, i64)| {
            let (before, rest) = self.earlier.split_at_checked(*index).unwrap_or_default();
            *end <= by && rest.first().is_some_and(|version| version.has_settled(before, *end))
        };
        ends.enumerate().filter(is_settled).last().map_or(0, |(index, _)| index)
    }

    /// Its fields for storage and messages; `None` if nothing is known.
    pub(super) fn fields(&self) -> Option<TimelineFields> {
        (self.since != 0).then(|| TimelineFields {
            since: self.since,
            carry: self.carry.word(),
            earlier: self.earlier.iter().map(VersionFields::of).collect(),
            unnamed: self.unnamed.clone(),
        })
    }

    /// Its fields without the earlier versions.
    #[cfg(any(test, feature = "service"))]
    pub(super) fn fields_alone(&self) -> Option<TimelineFields> {
        Self { unnamed: self.unnamed.clone(), ..Self::new(self.since, self.carry, Vec::new()) }.fields()
    }

    /// Parses the fields.
    pub(super) fn of(json: Json<'_>) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = json.fields().map_err(|_| unreadable())?;
        let earlier = fields.get("earlier").map_or(Some(Vec::new()), Json::array).ok_or_else(unreadable)?;
        Ok(Self {
            since: fields.get("since").and_then(moment).ok_or_else(unreadable)?,
            carry: carry_in(&fields, "carry")?.ok_or_else(unreadable)?,
            earlier: earlier.into_iter().map(Version::of).collect::<Result<_, _>>()?,
            unnamed: match fields.get("unnamed") {
                None => None,
                Some(name) => Some(name.string().ok_or_else(unreadable)?.into_owned()),
            },
        })
    }

    /// The timeline as JSON, for storage.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.fields()).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses the output of [`Timeline::to_json`].
    ///
    /// # Errors
    /// [`StoredConfigError`] for text that is not a timeline.
    pub fn from_json(json: &str) -> Result<Self, StoredConfigError> {
        let json = Json::parse(json).map_err(|_| StoredConfigError::Unreadable)?;
        if json.raw() == "null" { Ok(Self::default()) } else { Self::of(json) }
    }
}

impl Version {
    /// Whether the buckets of all these earlier versions, carried over to this one, are full at its end.
    fn has_settled(&self, before: &[Self], end: i64) -> bool {
        let all_carries = |version: &Self| [Some(version.carry), version.merged.map(|merged| merged.carry)];
        let carries = || before.iter().skip(1).chain([self]).flat_map(all_carries).flatten();
        // A proportional carry may lead to a debt larger than any limit's.
        let is_simple = carries().all(|carry| carry != Carry::Proportional);
        // Earlier numbers may have an account that refills at their own rate.
        let has_accounts = carries().any(|carry| carry == Carry::Additive);
        // The buckets of slots are always full.
        let refills = |limit: &&(Option<String>, Limit)| !is_of_slots(limit.0.as_deref());
        let all = || before.iter().chain([self]).flat_map(|version| &version.limits).filter(refills);
        let max_debt = all().map(|(_, limit)| limit.config().max_debt).max().unwrap_or(0);
        let is_full = |limit: &Limit| {
            let ms = fill_ms(limit, max_debt, self.shards);
            ms.is_some_and(|ms| self.since.checked_add_unsigned(ms).is_some_and(|at| at <= end))
        };
        let is_here = |(name, limit): &(Option<String>, Limit)| {
            self.limits.iter().any(|(other, own)| other == name && own.config().kind == limit.config().kind)
        };
        is_simple
            && self.limits.iter().filter(refills).all(|(_, limit)| is_full(limit))
            && all().all(|limit| is_here(limit) && (!has_accounts || is_full(&limit.1)))
    }

    fn of(json: Json<'_>) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = json.fields().map_err(|_| unreadable())?;
        let shards = shards_in(&fields, "shards")?.unwrap_or(1);
        let fewest_shards = shards_in(&fields, "fewest_shards")?.unwrap_or(shards);
        Ok(Self {
            since: fields.get("since").and_then(moment).ok_or_else(unreadable)?,
            carry: carry_in(&fields, "carry")?.ok_or_else(unreadable)?,
            limits: limits_of(fields.get("numbers").ok_or_else(unreadable)?)?,
            shards,
            merged: carry_in(&fields, "merged")?.map(|carry| Merged { carry, fewest_shards }),
        })
    }
}

/// How long a bucket with that debt takes to fill, in milliseconds, rounded up; `None` if it never does. With several shards, that of the
/// last: its capacity may be rounded up.
pub(super) fn fill_ms(limit: &Limit, max_debt: u64, shards: u8) -> Option<u64> {
    let Config { kind, rate, period_ms, capacity, calendar, .. } = *limit.config();
    let rounded = u64::from(shards).saturating_sub(1);
    let tokens = u128::from(capacity.saturating_add(max_debt).saturating_add(rounded));
    let (rate, period_ms) = (u128::from(rate), u128::from(period_ms));
    if rate == 0 {
        return None;
    }
    let ms = match kind {
        Kind::TokenBucket => tokens.saturating_mul(period_ms).div_ceil(rate),
        Kind::FixedWindow | Kind::FirstUseWindow => tokens.div_ceil(rate).saturating_mul(period_ms),
        Kind::RollingWindow => period_ms.saturating_mul(2), // a grain is no longer than the period
    };
    // A calendar's clocks may be set back.
    let ms = ms.saturating_add(if calendar.is_some() { Calendar::MAX_SET_BACK_MS.unsigned_abs().into() } else { 0 });
    u64::try_from(ms).ok()
}

/// A whole number, possibly negative.
fn moment(json: Json<'_>) -> Option<i64> {
    json.raw().parse().ok()
}

fn carry_in(fields: &Fields<'_>, name: &str) -> Result<Option<Carry>, StoredConfigError> {
    let Some(word) = fields.get(name) else { return Ok(None) };
    word.string().and_then(|word| Carry::from_word(&word)).map(Some).ok_or(StoredConfigError::Unreadable)
}

/// A number of shards; `None` if absent.
pub(super) fn shards_in(fields: &Fields<'_>, name: &str) -> Result<Option<u8>, StoredConfigError> {
    let Some(shards) = fields.get(name) else { return Ok(None) };
    let shards = shards.integer().and_then(|shards| u8::try_from(shards).ok()).filter(|shards| *shards > 0);
    shards.map(Some).ok_or(StoredConfigError::Unreadable)
}

/// [`Timeline`] with the field names for storage and messages.
#[derive(Serialize)]
pub(super) struct TimelineFields {
    since: i64,
    carry: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<VersionFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unnamed: Option<String>,
}

#[derive(Serialize)]
struct VersionFields {
    since: i64,
    carry: &'static str,
    numbers: Vec<StoredConfig>,
    #[serde(skip_serializing_if = "is_one")]
    shards: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    merged: Option<&'static str>,
    /// `None` if equal to `shards`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fewest_shards: Option<u8>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(super) const fn is_one(shards: &u8) -> bool {
    *shards == 1
}

impl VersionFields {
    fn of(version: &Version) -> Self {
        let numbers = version.limits.iter().map(|(name, limit)| StoredConfig::new(name.as_deref(), limit)).collect();
        let Version { since, carry, shards, merged, .. } = *version;
        let fewest_shards = merged.map(|merged| merged.fewest_shards).filter(|&fewest| fewest != shards);
        let merged = merged.map(|merged| merged.carry.word());
        Self { since, carry: carry.word(), numbers, shards, merged, fewest_shards }
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::*;
    use crate::policy::{Policies, Policy};

    fn policy(json: &str) -> Policy {
        Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
    }

    /// Stored by the registry and sent to objects.
    #[test]
    fn the_format_is_unchanged() {
        let one = policy(r#"{"rate":3,"period":"1s"}"#).in_force_since(5);
        let two = r#"{"limits":[{"name":"a","rate":4,"period":"1s"},{"name":"b","rate":5,"period":"1s"}]}"#;
        let two = policy(two).succeeding(&one, 6, Carry::Additive);
        let three = policy(r#"{"rate":0,"period":"1s"}"#).succeeding(&two, 7, Carry::AsIs);
        let json = r#"{"since":7,"carry":"as_is","earlier":[{"since":5,"carry":"additive","numbers":[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]},{"since":6,"carry":"additive","numbers":[{"kind":"token_bucket","rate":4,"period_ms":1000,"capacity":4,"max_debt":0,"initial":null,"offset_ms":null},{"name":"b","kind":"token_bucket","rate":5,"period_ms":1000,"capacity":5,"max_debt":0,"initial":null,"offset_ms":null}]}]}"#;
        assert_eq!(three.timeline().to_json(), json);
        assert_eq!(Timeline::from_json(json).as_ref(), Ok(three.timeline()));
        let merged = json.replacen("\"offset_ms\":null}]}", "\"offset_ms\":null}],\"merged\":\"additive\"}", 1);
        let read = Timeline::from_json(&merged).unwrap();
        let of = |fewest_shards| Some(Merged { carry: Carry::Additive, fewest_shards });
        assert_eq!((read.earlier()[0].merged, read.to_json()), (of(1), merged.clone()));
        let shared = r#""shards":8,"merged":"additive","fewest_shards":3"#;
        let shared = merged.replacen(r#""merged":"additive""#, shared, 1);
        let read = Timeline::from_json(&shared).unwrap();
        assert_eq!((read.earlier()[0].merged, read.to_json()), (of(3), shared));
        let named = policy(r#"{"limits":[{"name":"a","rate":4,"period":"1s"}]}"#).succeeding(&three, 8, Carry::Reset);
        let json = named.timeline().to_json();
        assert!(json.ends_with(r#"],"unnamed":"a"}"#), "{json}");
        assert_eq!(Timeline::from_json(&json).as_ref(), Ok(named.timeline()));
        assert_eq!(Timeline::from_json("null"), Ok(Timeline::default()));
        for wrong in [
            "",
            "{}",
            r#"{"since":"7"}"#,
            &json.replace(r#":"a"}"#, ":1}"),
            r#"{"since":7,"carry":"x"}"#,
            &json.replace("\"rate\":4", "\"rate\":-4"),
        ] {
            assert!(Timeline::from_json(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_definition_travels_with_its_timeline_and_keeps_its_id() {
        let one = policy(r#"{"rate":3,"period":"1s"}"#).in_force_since(5);
        let two = policy(r#"{"rate":4,"period":"1s"}"#).succeeding(&one, 6, Carry::Reset);
        let sent = Policy::from_definition(&two.definition()).unwrap();
        assert_eq!((sent.timeline(), sent.id(), sent.definition()), (two.timeline(), two.id(), two.definition()));
        assert_ne!(one.id(), two.id());
        // A newer version may have put more into it.
        let newer = two.definition().replacen('{', r#"{"colour":1,"#, 1);
        let sent = Policy::from_definition(&newer).unwrap();
        assert_ne!(sent.id(), two.id());
        assert_eq!(sent.timeline(), two.timeline());
        // Where only the version in force matters.
        let alone = Policy::from_definition(&two.definition_alone()).unwrap();
        assert_eq!((alone.timeline().since(), alone.timeline().earlier()), (6, &[][..]));
    }

    /// The one with the same numbers, or else the first; it keeps its account for as long as it exists.
    #[test]
    fn a_limit_that_had_no_name_is_still_recognized() {
        let limits = |limits: &[(&str, u32)]| {
            let limits: Vec<_> =
                limits.iter().map(|(name, rate)| format!(r#"{{"name":"{name}","rate":"{rate}/1s"}}"#)).collect();
            policy(&format!(r#"{{"limits":[{}]}}"#, limits.join(",")))
        };
        let accounts = |policy: &Policy| {
            let accounts = policy.limits().iter().map(|limit| limit.account().map(str::to_owned));
            accounts.collect::<Vec<_>>()
        };
        let other = |name: &str| Some(name.to_owned());
        let one = policy(r#""3/1s""#).in_force_since(5);
        for (after, expected) in [
            (&[("a", 3)][..], vec![None]),
            (&[("a", 4)], vec![None]),
            (&[("a", 4), ("b", 3)], vec![other("a"), None]),
            (&[("a", 4), ("b", 5)], vec![None, other("b")]),
        ] {
            let after = limits(after).succeeding(&one, 6, Carry::Additive);
            assert_eq!(accounts(&after), expected);
            let sent = Policy::from_definition(&after.definition()).unwrap();
            assert_eq!((accounts(&sent), sent.id(), sent.numbers()), (expected, after.id(), after.numbers()));
        }
        let two = limits(&[("a", 3)]).succeeding(&one, 6, Carry::Additive);
        let moved = limits(&[("b", 3), ("a", 9)]).succeeding(&two, 7, Carry::Additive);
        assert_eq!(accounts(&moved), [other("b"), None]);
        let renamed = limits(&[("b", 3)]).succeeding(&moved, 8, Carry::Additive);
        assert_eq!(accounts(&renamed), [other("b")]);
        let again = limits(&[("a", 3)]).succeeding(&renamed, 9, Carry::Additive);
        assert_eq!(accounts(&again), [None]);
        // A limit that goes into shadow and back continues.
        let shadow = r#"{"limits":[{"name":"a","rate":"3/1s","mode":"shadow"}]}"#;
        let back =
            limits(&[("a", 3)]).succeeding(&policy(shadow).succeeding(&two, 7, Carry::Additive), 8, Carry::Additive);
        assert_eq!(accounts(&back), [None]);
        // One that existed before under its name continues as that.
        let zero = limits(&[("a", 3)]).in_force_since(4);
        let before = policy(r#""3/1s""#).succeeding(&zero, 5, Carry::Additive);
        assert_eq!(accounts(&limits(&[("a", 3)]).succeeding(&before, 6, Carry::Additive)), [other("a")]);
        let shared = policy(r#"{"limits":[{"name":"a","rate":"9/1s"}],"shards":3}"#).succeeding(&one, 6, Carry::AsIs);
        assert!(shared.shards().iter().all(|shard| accounts(shard) == [None]));
    }

    #[test]
    fn versions_before_one_in_which_all_buckets_filled_are_settled() {
        let version = |json: &str, before: &Policy, since| policy(json).succeeding(before, since, Carry::AsIs);
        let earlier = |policy: &Policy| {
            let timeline = policy.timeline();
            timeline.earlier().iter().skip(timeline.settled(i64::MAX)).map(|version| version.since).collect::<Vec<_>>()
        };
        let slow = policy(r#"{"rate":1,"period":"1s","capacity":10,"max_debt":5}"#).in_force_since(1);
        let same = version(r#"{"rate":1,"period":"1s","capacity":10}"#, &slow, 2);
        // Ten seconds for the capacity, and five for the debt of the version before.
        for (since, expected) in [(15_001, vec![1, 2]), (15_002, vec![2])] {
            assert_eq!(earlier(&version(r#"{"rate":2,"period":"1s"}"#, &same, since)), expected);
        }
        // In shards a part of the capacity is rounded up: three of ten fill in as long as twelve in one.
        let whole = policy(r#"{"rate":1,"period":"1s","capacity":10}"#).in_force_since(1);
        let divided = version(r#"{"rate":1,"period":"1s","capacity":10,"shards":3}"#, &whole, 2);
        for (since, expected) in [(12_001, vec![1, 2]), (12_002, vec![2])] {
            assert_eq!(earlier(&version(r#"{"rate":2,"period":"1s"}"#, &divided, since)), expected);
        }
        let named = |name: &str| format!(r#"{{"limits":[{{"name":"{name}","rate":9,"period":"1s"}}]}}"#);
        let other = version(&named("b"), &policy(&named("a")).in_force_since(1), 2);
        let last = version(r#"{"rate":1,"period":"1s"}"#, &other, 1_000_000);
        assert_eq!(earlier(&last), [1, 2], "it lacks a limit, whose buckets go on");
        let share = policy(r#"{"rate":1,"period":"1s","capacity":10}"#).succeeding(&slow, 2, Carry::Proportional);
        let last = version(r#"{"rate":1,"period":"1s"}"#, &share, 1_000_000);
        assert_eq!(earlier(&last), [1, 2], "it may have made a larger debt");
        let never = version(r#"{"rate":0,"period":"1s","capacity":10}"#, &slow, 2);
        let last = version(r#"{"rate":1,"period":"1s"}"#, &never, 1_000_000);
        assert_eq!(earlier(&last), [1, 2], "it never fills");
    }
}
