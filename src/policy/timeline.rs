//! When a policy changed, and what it was before, so that a bucket refills at the numbers of each moment.
//!
//! A version of a policy is known by the moment since which it is in force, which no other version has. A bucket follows the
//! versions one by one, whenever it is next asked: see `ledger/follow.rs`.
//!
//! At most [`Timeline::MAX_EARLIER`] earlier versions are kept. Beyond that, those go first that only keys with overrides may need: the
//! ones before a version with the same limits or more that was in force for so long that any bucket of theirs is full. If
//! more are too many, the least level remains that each limit's bucket can have had.

use serde::Serialize;

use super::named::NamedLimit;
use super::stored::{StoredConfig, StoredConfigError, limits_of};
use crate::json::{Fields, Json};
use crate::limit::{Carry, Config, Kind, Limit};

/// The versions of a policy up to the one that is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Since when the policy is in force, in Unix milliseconds. 0 if that is not known.
    since: i64,
    /// How buckets came over from the version before.
    carry: Carry,
    /// Oldest first.
    earlier: Vec<Version>,
    /// Empty if the versions before those are not missing.
    forgotten: Vec<Forgotten>,
}

/// An earlier version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Since when it was in force, in Unix milliseconds.
    pub since: i64,
    /// How buckets came over from the version before.
    pub carry: Carry,
    /// Its limits, by name.
    pub limits: Vec<(Option<String>, Limit)>,
    /// How many objects were to have the budget of a key.
    pub shards: u8,
}

/// What is known of a limit in versions that were dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Forgotten {
    name: Option<String>,
    /// No bucket that went through them had more tokens.
    least: i64,
}

impl Timeline {
    /// The most earlier versions that are kept: a change every minute for an hour.
    pub const MAX_EARLIER: usize = 64;

    /// A policy in force since that moment, after these versions, oldest first. `carry` says how buckets came over from the last
    /// of them.
    #[must_use]
    pub const fn new(since: i64, carry: Carry, earlier: Vec<Version>) -> Self {
        Self { since, carry, earlier, forgotten: Vec::new() }
    }

    /// Since when the policy is in force, in Unix milliseconds. 0 if that is not known: no registry has seen it.
    #[must_use]
    pub const fn since(&self) -> i64 {
        self.since
    }

    /// How buckets came over from the version before.
    #[must_use]
    pub const fn carry(&self) -> Carry {
        self.carry
    }

    /// The versions before it, oldest first.
    #[must_use]
    pub fn earlier(&self) -> &[Version] {
        &self.earlier
    }

    /// The most tokens that a bucket of a version before all of these can have had, if there was such a version.
    #[must_use]
    pub fn least_before(&self, limit: Option<&str>) -> Option<i64> {
        let known = self.forgotten.iter().find(|forgotten| forgotten.name.as_deref() == limit);
        known.map(|forgotten| forgotten.least)
    }

    /// The timeline when the policy with these `limits`, in so many shards, is replaced.
    pub(super) fn succeeded(&self, limits: &[NamedLimit], shards: u8, since: i64, carry: Carry) -> Self {
        let limits = limits.iter().map(|limit| (limit.name().map(str::to_owned), *limit.limit())).collect();
        let last = Version { since: self.since, carry: self.carry, limits, shards };
        let earlier = self.earlier.iter().cloned().chain([last]).collect();
        let mut next = Self { since, carry, earlier, forgotten: self.forgotten.clone() };
        next.prune();
        next
    }

    /// A timeline that begins with this version, and after the same versions that are not known any more.
    pub(super) fn beginning(&self, since: i64, carry: Carry) -> Self {
        Self { since, carry, earlier: Vec::new(), forgotten: self.forgotten.clone() }
    }

    /// The same of a shard, which has this part of each version. How many shards there were before these is not known, so its
    /// buckets are empty when they begin.
    pub(super) fn of_part(&self, carry: Carry, earlier: Vec<Version>) -> Self {
        let empty = |forgotten: &Forgotten| Forgotten { name: forgotten.name.clone(), least: forgotten.least.min(0) };
        Self { since: self.since, carry, earlier, forgotten: self.forgotten.iter().map(empty).collect() }
    }

    /// The same, if before it there were other versions with limits of these names, of which nothing is known: their buckets are
    /// empty when it begins.
    pub(super) fn after_unknown(self, limits: &[NamedLimit]) -> Self {
        let known = limits.iter().map(|limit| limit.name().map(str::to_owned));
        let names = self.forgotten.iter().map(|forgotten| forgotten.name.clone()).chain(known);
        let mut forgotten: Vec<Forgotten> = Vec::new();
        for name in names {
            if forgotten.iter().all(|other| other.name != name) {
                let least = self.least_before(name.as_deref()).unwrap_or(0).min(0);
                forgotten.push(Forgotten { name, least });
            }
        }
        Self { forgotten, ..self }
    }

    /// Without the versions that no bucket of just this policy needs.
    pub(super) fn without_settled(mut self) -> Self {
        self.drop_settled();
        self
    }

    /// Drops what is too much.
    fn prune(&mut self) {
        if self.earlier.len() <= Self::MAX_EARLIER {
            return;
        }
        self.drop_settled();
        let too_many = self.earlier.len().saturating_sub(Self::MAX_EARLIER);
        let dropped: Vec<_> = self.earlier.drain(..too_many).collect();
        let nexts = dropped.iter().skip(1).chain(self.earlier.first()).map(|next| next.carry);
        for (version, next) in dropped.iter().zip(nexts.collect::<Vec<_>>()) {
            self.forget(version, next);
        }
    }

    /// Drops the versions before one that was in force until all buckets of theirs were full.
    fn drop_settled(&mut self) {
        let ends = self.earlier.iter().skip(1).map(|version| version.since).chain([self.since]);
        let is_settled = |(index, end): &(usize, i64)| {
            let (before, rest) = self.earlier.split_at_checked(*index).unwrap_or_default();
            rest.first().is_some_and(|version| version.has_settled(before, *end))
        };
        let settled = ends.enumerate().filter(is_settled).last().map_or(0, |(index, _)| index);
        self.earlier.drain(..settled);
    }

    /// `next` says how buckets came over from this version.
    fn forget(&mut self, version: &Version, next: Carry) {
        for (name, limit) in &version.limits {
            let Config { capacity, max_debt, .. } = *limit.config();
            let least = match next {
                Carry::AsIs | Carry::Reset => capacity.cast_signed(),
                // Such a change may leave any level down to there.
                Carry::Proportional | Carry::Additive => {
                    capacity.saturating_add(max_debt).cast_signed().saturating_neg()
                }
            };
            match self.forgotten.iter_mut().find(|forgotten| forgotten.name == *name) {
                Some(known) => known.least = known.least.min(least),
                None => self.forgotten.push(Forgotten { name: name.clone(), least }),
            }
        }
    }

    /// Its fields, to be stored and sent; `None` if nothing is known.
    pub(super) fn fields(&self) -> Option<TimelineFields> {
        (self.since != 0).then(|| TimelineFields {
            since: self.since,
            carry: self.carry.word(),
            earlier: self.earlier.iter().map(VersionFields::of).collect(),
            forgotten: self.forgotten.iter().map(ForgottenFields::of).collect(),
        })
    }

    /// The same without the earlier versions.
    pub(super) fn fields_alone(&self) -> Option<TimelineFields> {
        Self::new(self.since, self.carry, Vec::new()).fields()
    }

    /// The timeline of these fields.
    pub(super) fn of(json: Json<'_>) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = json.fields().map_err(|_| unreadable())?;
        let list = |name: &str| fields.get(name).map_or(Some(Vec::new()), Json::array);
        let (earlier, forgotten) = list("earlier").zip(list("forgotten")).ok_or_else(unreadable)?;
        Ok(Self {
            since: fields.get("since").and_then(moment).ok_or_else(unreadable)?,
            carry: carry_in(&fields)?,
            earlier: earlier.into_iter().map(Version::of).collect::<Result<_, _>>()?,
            forgotten: forgotten.into_iter().map(Forgotten::of).collect::<Result<_, _>>()?,
        })
    }

    /// The timeline as JSON, for storage.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.fields()).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// The timeline of [`Timeline::to_json`].
    ///
    /// # Errors
    /// [`StoredConfigError`] for text that is not a timeline.
    pub fn from_json(json: &str) -> Result<Self, StoredConfigError> {
        let json = Json::parse(json).map_err(|_| StoredConfigError::Unreadable)?;
        if json.raw() == "null" { Ok(Self::default()) } else { Self::of(json) }
    }
}

impl Version {
    /// Whether the buckets of all these versions before it, carried over to this one, are full at its end.
    fn has_settled(&self, before: &[Self], end: i64) -> bool {
        let carries = before.iter().skip(1).chain([self]).map(|version| version.carry);
        // The others may make a debt that is larger than any limit's.
        let mut is_simple = carries.map(|carry| matches!(carry, Carry::AsIs | Carry::Reset));
        let same = |name: &Option<String>, limit: &Limit| {
            self.limits.iter().find(|(other, own)| other == name && own.config().kind == limit.config().kind)
        };
        let is_full = |(name, limit): &(Option<String>, Limit)| {
            let own = same(name, limit).and_then(|(_, own)| fill_ms(own, limit.config().max_debt, self.shards));
            own.is_some_and(|ms| self.since.checked_add_unsigned(ms).is_some_and(|at| at <= end))
        };
        is_simple.all(|is_simple| is_simple)
            && before.iter().chain([self]).flat_map(|version| &version.limits).all(is_full)
    }

    fn of(json: Json<'_>) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = json.fields().map_err(|_| unreadable())?;
        Ok(Self {
            since: fields.get("since").and_then(moment).ok_or_else(unreadable)?,
            carry: carry_in(&fields)?,
            limits: limits_of(fields.get("numbers").ok_or_else(unreadable)?)?,
            shards: shards_in(&fields)?,
        })
    }
}

impl Forgotten {
    fn of(json: Json<'_>) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = json.fields().map_err(|_| unreadable())?;
        let name = match fields.get("name") {
            Some(name) => Some(name.string().ok_or_else(unreadable)?.into_owned()),
            None => None,
        };
        Ok(Self { name, least: fields.get("least").and_then(moment).ok_or_else(unreadable)? })
    }
}

/// How long a bucket with that debt takes to fill, in milliseconds, rounded up; `None` if it never does. Of several shards, the
/// last: its capacity may be rounded up.
fn fill_ms(limit: &Limit, max_debt: u64, shards: u8) -> Option<u64> {
    let Config { kind, rate, period_ms, capacity, .. } = *limit.config();
    let rounded = u64::from(shards).saturating_sub(1);
    let tokens = u128::from(capacity.saturating_add(max_debt).saturating_add(rounded));
    let (rate, period_ms) = (u128::from(rate), u128::from(period_ms));
    if rate == 0 {
        return None;
    }
    let ms = match kind {
        Kind::TokenBucket => tokens.saturating_mul(period_ms).div_ceil(rate),
        Kind::FixedWindow => tokens.div_ceil(rate).saturating_mul(period_ms),
    };
    u64::try_from(ms).ok()
}

/// A whole number, perhaps negative.
fn moment(json: Json<'_>) -> Option<i64> {
    json.raw().parse().ok()
}

fn carry_in(fields: &Fields<'_>) -> Result<Carry, StoredConfigError> {
    let Some(word) = fields.get("carry") else { return Ok(Carry::AsIs) };
    word.string().and_then(|word| Carry::from_word(&word)).ok_or(StoredConfigError::Unreadable)
}

/// In how many shards; 1 if that is not said.
pub(super) fn shards_in(fields: &Fields<'_>) -> Result<u8, StoredConfigError> {
    let Some(shards) = fields.get("shards") else { return Ok(1) };
    let shards = shards.integer().and_then(|shards| u8::try_from(shards).ok()).filter(|shards| *shards > 0);
    shards.ok_or(StoredConfigError::Unreadable)
}

/// [`Timeline`] with the names that are stored and sent.
#[derive(Serialize)]
pub(super) struct TimelineFields {
    since: i64,
    carry: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<VersionFields>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forgotten: Vec<ForgottenFields>,
}

#[derive(Serialize)]
struct VersionFields {
    since: i64,
    carry: &'static str,
    numbers: Vec<StoredConfig>,
    #[serde(skip_serializing_if = "is_one")]
    shards: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(super) const fn is_one(shards: &u8) -> bool {
    *shards == 1
}

#[derive(Serialize)]
struct ForgottenFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    least: i64,
}

impl VersionFields {
    fn of(version: &Version) -> Self {
        let numbers = version.limits.iter().map(|(name, limit)| StoredConfig::new(name.as_deref(), limit)).collect();
        Self { since: version.since, carry: version.carry.word(), numbers, shards: version.shards }
    }
}

impl ForgottenFields {
    fn of(forgotten: &Forgotten) -> Self {
        Self { name: forgotten.name.clone(), least: forgotten.least }
    }
}

#[cfg(test)]
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
        let two = policy(r#"{"limits":[{"name":"a","rate":4,"period":"1s"}]}"#).succeeding(&one, 6, Carry::Additive);
        let three = policy(r#"{"rate":0,"period":"1s"}"#).succeeding(&two, 7, Carry::AsIs);
        let json = r#"{"since":7,"carry":"as_is","earlier":[{"since":5,"carry":"as_is","numbers":[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]},{"since":6,"carry":"additive","numbers":[{"name":"a","kind":"token_bucket","rate":4,"period_ms":1000,"capacity":4,"max_debt":0,"initial":null,"offset_ms":null}]}]}"#;
        assert_eq!(three.timeline().to_json(), json);
        assert_eq!(Timeline::from_json(json).as_ref(), Ok(three.timeline()));
        assert_eq!(Timeline::from_json("null"), Ok(Timeline::default()));
        for wrong in
            ["", "{}", r#"{"since":"7"}"#, r#"{"since":7,"carry":"x"}"#, &json.replace("\"rate\":4", "\"rate\":-4")]
        {
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
        // Where only what is in force matters.
        let alone = Policy::from_definition(&two.definition_alone()).unwrap();
        assert_eq!((alone.timeline().since(), alone.timeline().earlier()), (6, &[][..]));
    }

    #[test]
    fn what_no_bucket_needs_can_be_dropped() {
        let version = |json: &str, before: &Policy, since| policy(json).succeeding(before, since, Carry::AsIs);
        let earlier = |policy: &Policy| {
            policy
                .timeline()
                .clone()
                .without_settled()
                .earlier()
                .iter()
                .map(|version| version.since)
                .collect::<Vec<_>>()
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
        let other = version(r#"{"limits":[{"name":"a","rate":9,"period":"1s"}]}"#, &slow, 2);
        let last = version(r#"{"rate":1,"period":"1s"}"#, &other, 1_000_000);
        assert_eq!(earlier(&last), [1, 2], "it lacks a limit, whose buckets go on");
        let additive = policy(r#"{"rate":1,"period":"1s","capacity":10}"#).succeeding(&slow, 2, Carry::Additive);
        let last = version(r#"{"rate":1,"period":"1s"}"#, &additive, 1_000_000);
        assert_eq!(earlier(&last), [1, 2], "it may have made a debt");
        let never = version(r#"{"rate":0,"period":"1s","capacity":10}"#, &slow, 2);
        let last = version(r#"{"rate":1,"period":"1s"}"#, &never, 1_000_000);
        assert_eq!(earlier(&last), [1, 2], "it never fills");
    }
}
