//! A policy in the form that a frontend sends to an object without it, because one of them is of a newer deployment.
//!
//! It has only what an object needs to decide: the frontend decides what to answer when an object fails. It is never stored.

use std::sync::OnceLock;

use serde::Serialize;

use super::labels::hash_of;
use super::named::{Policy, Standing};
use super::named_limit::NamedLimit;
use super::object_terms::{self, ObjectTerms};
use super::shard::Shard;
use super::stored::{StoredConfig, StoredConfigError, limits_of, stored_limits};
use super::timeline::{Timeline, TimelineFields, is_one, shards_in};
use crate::json::{Fields, Json};

/// Readers ignore unknown fields, so that the next version can add one; but not within `numbers`, where each field changes the arithmetic.
#[derive(Serialize)]
struct Definition<'a> {
    name: &'a str,
    numbers: Vec<StoredConfig>,
    /// One for each limit.
    write_ahead: Vec<u64>,
    /// One for each limit, if one of them is a rolling window.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    grains: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standing: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    banned_until: Option<i64>,
    /// A frontend must not apply it to other keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    of_key: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<TimelineFields>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inline: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<Shadow>,
    /// The names of disabled limits: callers may still give costs for them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    off: &'a [Option<String>],
    #[serde(skip_serializing_if = "is_one")]
    shards: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<[u8; 2]>,
    #[serde(flatten)]
    terms: object_terms::Written,
}

/// The limits that only report. A version that does not know them decides without them.
#[derive(Serialize)]
struct Shadow {
    numbers: Vec<StoredConfig>,
    write_ahead: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    grains: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<TimelineFields>,
}

impl Policy {
    /// Everything an object needs to decide under this policy: one line of JSON.
    #[doc(hidden)]
    #[must_use]
    pub fn definition(&self) -> String {
        self.definition_with(Timeline::fields)
    }

    /// The definition without earlier versions.
    #[cfg(any(test, feature = "service"))]
    pub(crate) fn definition_alone(&self) -> String {
        self.definition_with(Timeline::fields_alone)
    }

    /// Identifies it: a hash of its definition.
    #[doc(hidden)]
    #[must_use]
    pub fn id(&self) -> u64 {
        *self.computed.id.get_or_init(|| hash_of(&self.definition()))
    }

    /// The policy with the id under which it was sent: a newer version may have put more into the definition.
    #[must_use]
    pub(crate) fn with_id(mut self, id: u64) -> Self {
        self.computed.id = OnceLock::from(id);
        self
    }

    /// The policy as sent in this definition.
    fn defined_by(self, definition: &str) -> Self {
        self.with_id(hash_of(definition))
    }

    fn definition_with(&self, timeline: fn(&Timeline) -> Option<TimelineFields>) -> String {
        let (standing, banned_until) = match self.standing() {
            Standing::Limited => (None, None),
            Standing::Unlimited => (Some(UNLIMITED), None),
            Standing::Banned { until } => (Some(BANNED), until),
        };
        let definition = Definition {
            name: self.name(),
            numbers: self.limits().iter().map(StoredConfig::of).collect(),
            write_ahead: self.limits().iter().map(NamedLimit::write_ahead).collect(),
            grains: grains_of(self.limits()),
            terms: self.object().written(),
            standing,
            banned_until,
            of_key: self.is_of_key(),
            timeline: timeline(self.timeline()),
            shadow: self.shadow().map(|shadow| Shadow {
                numbers: shadow.limits().iter().map(StoredConfig::of).collect(),
                write_ahead: shadow.limits().iter().map(NamedLimit::write_ahead).collect(),
                grains: grains_of(shadow.limits()),
                timeline: timeline(shadow.timeline()),
            }),
            off: self.off_limits(),
            inline: self.is_inline(),
            shards: self.declared_shards(),
            shard: self.shard().map(|shard| [shard.index, shard.count]),
        };
        serde_json::to_string(&definition).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// The policy in a [`Policy::definition`], possibly from another version.
    ///
    /// # Errors
    /// [`StoredConfigError`] for text that does not define a policy.
    #[doc(hidden)]
    pub fn from_definition(definition: &str) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = Json::parse(definition).ok().and_then(|json| json.fields().ok()).ok_or_else(unreadable)?;
        let field = |name: &str| fields.get(name).ok_or_else(unreadable);
        let name = field("name")?.string().ok_or_else(unreadable)?;
        let (limits, timeline) = versions(&name, &fields)?;
        let shadow = fields.get("shadow").map(|shadow| versions(&name, &shadow.fields().map_err(|_| unreadable())?));
        let off = fields.get("off").map_or(Some(Vec::new()), names).ok_or_else(unreadable)?;
        let mut policy = Self::new(&name, limits, ObjectTerms::of_fields(&fields)?)
            .with_shards(shards_in(&fields, "shards")?.unwrap_or(1))
            .with_off(off)
            .with_timeline(timeline);
        if let Some((limits, timeline)) = shadow.transpose()? {
            policy = policy.with_shadow(limits, timeline);
        }
        if fields.get("inline").and_then(Json::bool).unwrap_or_default() {
            policy = policy.into_inline();
        }
        if let Some(shard) = fields.get("shard") {
            policy = policy.with_shard(policy.limits().to_vec(), shard_in(shard).ok_or_else(unreadable)?);
        }
        let until = fields.get("banned_until").and_then(Json::integer).and_then(|until| i64::try_from(until).ok());
        let standing = match fields.get("standing").map(Json::string) {
            None => Standing::Limited,
            Some(Some(word)) if word == UNLIMITED => Standing::Unlimited,
            Some(Some(word)) if word == BANNED => Standing::Banned { until },
            Some(_) => return Err(unreadable()),
        };
        Ok(policy
            .with_standing(standing, fields.get("of_key").and_then(Json::bool) == Some(true))
            .defined_by(definition))
    }
}

impl Policy {
    /// A policy with the first `count` of stored numbers, for a bucket opened before its policy is known. It writes every change.
    ///
    /// # Errors
    /// [`StoredConfigError`] for text that is not a list of valid limits.
    #[cfg(feature = "service")]
    pub(crate) fn from_numbers(name: &str, numbers: &str, count: usize) -> Result<Self, StoredConfigError> {
        let limits = stored_limits(numbers)?.into_iter().take(count);
        let limits = limits.map(|(limit, config)| NamedLimit::new(name, limit.as_deref(), config, 0));
        Ok(Self::new(name, limits.collect(), ObjectTerms::default()))
    }
}

const UNLIMITED: &str = "unlimited";
const BANNED: &str = "banned";

/// The limits in the fields `numbers` and `write_ahead`, and the earlier versions.
fn versions(policy: &str, fields: &Fields<'_>) -> Result<(Vec<NamedLimit>, Timeline), StoredConfigError> {
    let unreadable = || StoredConfigError::Unreadable;
    let limits = limits_of(fields.get("numbers").ok_or_else(unreadable)?)?;
    let write_ahead = fields.get("write_ahead").and_then(Json::array).ok_or_else(unreadable)?;
    let grains = fields.get("grains").map(|grains| grains.array().ok_or_else(unreadable)).transpose()?;
    if limits.len() != write_ahead.len() || grains.as_ref().is_some_and(|grains| grains.len() != limits.len()) {
        return Err(unreadable());
    }
    let mut grains = grains.into_iter().flatten();
    let mut named = Vec::new();
    for ((limit, config), write_ahead) in limits.into_iter().zip(write_ahead) {
        let write_ahead = write_ahead.integer().ok_or_else(unreadable)?;
        let limit = NamedLimit::new(policy, limit.as_deref(), config, write_ahead);
        named.push(match grains.next() {
            Some(grains) => {
                let grains = grains.integer().and_then(|grains| u8::try_from(grains).ok()).ok_or_else(unreadable)?;
                limit.with_grains(grains)
            }
            None => limit,
        });
    }
    Ok((named, fields.get("timeline").map_or(Ok(Timeline::default()), Timeline::of)?))
}

/// For a [`Definition`].
fn grains_of(limits: &[NamedLimit]) -> Vec<u8> {
    let is_any = limits.iter().any(|limit| limit.limit().is_rolling());
    limits.iter().filter(|_| is_any).map(NamedLimit::grains).collect()
}

/// A shard's index and count.
fn shard_in(json: Json<'_>) -> Option<Shard> {
    let numbers = json.array()?.into_iter().map(|number| u8::try_from(number.integer()?).ok());
    match *numbers.collect::<Option<Vec<_>>>()? {
        [index, count] if index < count => Some(Shard { index, count }),
        _ => None,
    }
}

/// A list of names, one of which may be null.
fn names(json: Json<'_>) -> Option<Vec<Option<String>>> {
    let name = |name: Json<'_>| match name.raw() {
        "null" => Some(None),
        _ => name.string().map(|name| Some(name.into_owned())),
    };
    json.array()?.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Carry;
    use crate::policy::{Policies, Version};

    fn policies() -> Policies {
        let json = r#"{"p":{"rate":3,"period":"1s","reservation_ttl":"2m","unsettled":"refund"},"q":{"limits":[
            {"name":"a","rate":1,"period":"1m","offset":"5s","kind":"fixed_window","capacity":7,"max_debt":3,"initial":2},
            {"name":"b","rate":600,"period":"1m","write_ahead":0}]},
            "tried":{"mode":"shadow","limits":[{"name":"a","rate":1,"period":"1m","mode":"enforce"},
            {"name":"b","rate":2,"period":"1m","write_ahead":1},{"name":"c","rate":1,"period":"1m","mode":"off"}]},
            "alone":{"rate":5,"period":"1m","mode":"shadow"},"off":{"rate":5,"period":"1m","mode":"off"}}"#;
        Policies::parse(json).unwrap()
    }

    #[test]
    fn an_object_decides_under_a_definition_as_under_the_policy_itself() {
        for policy in policies().iter() {
            let defined = Policy::from_definition(&policy.definition()).unwrap();
            assert_eq!(defined.wire_name(), policy.wire_name());
            assert_eq!((defined.numbers(), defined.version()), (policy.numbers(), policy.version()));
            assert_eq!(defined.object().reservations, policy.object().reservations);
            assert_eq!(defined.to_string(), policy.to_string());
            let ahead = |limits: &[NamedLimit]| limits.iter().map(NamedLimit::write_ahead).collect::<Vec<_>>();
            assert_eq!(ahead(defined.limits()), ahead(policy.limits()));
            let shadow = |policy: &Policy| policy.shadow().map(|shadow| shadow.numbers().to_owned());
            assert_eq!(shadow(&defined), shadow(policy));
            assert_eq!(ahead(defined.shadow_limits()), ahead(policy.shadow_limits()));
            assert_eq!(defined.off_limits(), policy.off_limits());
            assert!(!policy.definition().contains('\n'), "several travel together, one to a line");
        }
    }

    #[test]
    fn a_standing_travels_with_it() {
        let own = policies();
        let policy = own.get("p").unwrap();
        let mut ids = vec![policy.id()];
        for (standing, written) in [
            (Standing::Unlimited, r#""standing":"unlimited""#),
            (Standing::Banned { until: None }, r#""standing":"banned""#),
            (Standing::Banned { until: Some(7) }, r#""standing":"banned","banned_until":7"#),
        ] {
            let policy = Policy::clone(policy).with_standing(standing, true);
            let definition = policy.definition();
            assert!(definition.contains(&format!(",{written},\"of_key\":true,")), "{definition}");
            let defined = Policy::from_definition(&definition).unwrap();
            assert_eq!((defined.standing(), defined.id(), defined.is_of_key()), (standing, policy.id(), true));
            assert!(!ids.contains(&policy.id()));
            ids.push(policy.id());
            let unknown = definition.replace("\"unlimited\"", "\"adrift\"").replace("\"banned\"", "\"adrift\"");
            assert!(Policy::from_definition(&unknown).is_err());
        }
    }

    #[test]
    fn its_bans_travel_with_it() {
        let policies =
            Policies::parse(r#"{"p":{"rate":"1/s","ban":{"after":5,"within":"1m","for":"2s","max":"1h"}}}"#).unwrap();
        let policy = policies.get("p").unwrap();
        let written = r#","ban":{"after":5,"within_ms":60000,"for_ms":2000,"grow":2,"max_ms":3600000}}"#;
        let definition = policy.definition();
        assert!(definition.ends_with(written), "{definition}");
        let defined = Policy::from_definition(&definition).unwrap();
        assert_eq!((defined.object().ban, defined.id()), (policy.object().ban, policy.id()));
        for other in ["}", r#","ban":{"after":5000}}"#, r#","ban":7}"#] {
            let other = Policy::from_definition(&definition.replace(written, other)).unwrap();
            assert!(other.object().ban.is_none() && other.id() != policy.id());
        }
    }

    #[test]
    fn its_kinds_of_notices_travel_with_it() {
        let policies =
            Policies::parse(r#"{"p":{"rate":"1/s","notify":["refused","5%"],"notify_every":"1m"}}"#).unwrap();
        let policy = policies.get("p").unwrap();
        let written = r#","notify":["5%","refused"],"notify_every_ms":60000}"#;
        let definition = policy.definition();
        assert!(definition.ends_with(written), "{definition}");
        let defined = Policy::from_definition(&definition).unwrap();
        assert_eq!((defined.object().notify, defined.id()), (policy.object().notify, policy.id()));
        let later = definition.replace("\"refused\"]", "\"reset\",\"refused\"]");
        assert_eq!(
            Policy::from_definition(&later).unwrap().object().notify,
            policy.object().notify,
            "a kind of a later version"
        );
        let quiet = Policy::from_definition(&definition.replace(written, "}")).unwrap();
        assert!(quiet.object().notify.is_none() && quiet.id() != policy.id());
    }

    /// Neighbouring versions exchange it.
    #[test]
    fn the_format_is_unchanged() {
        assert_eq!(
            policies().get("p").unwrap().definition(),
            r#"{"name":"p","numbers":[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}],"write_ahead":[3],"reservation_ttl_ms":120000,"unsettled":"refund"}"#
        );
    }

    /// A version that does not know them takes the usual number.
    #[test]
    fn grains_travel_with_rolling_windows() {
        let limit = r#"{"name":"a","kind":"rolling_window","rate":9,"period":"1s","grains":7}"#;
        let shadow = limit.replace("\"a\"", "\"s\"").replace('}', r#","mode":"shadow"}"#);
        let policy =
            Policy::parse("p", &format!(r#"{{"limits":[{limit},{{"name":"b","rate":"1/s"}},{shadow}]}}"#)).unwrap();
        let definition = policy.definition();
        assert!(definition.contains(r#","write_ahead":[9,1],"grains":[7,60],"#), "{definition}");
        assert!(definition.contains(r#","write_ahead":[9],"grains":[7]}"#), "{definition}");
        let defined = Policy::from_definition(&definition).unwrap();
        let grains = |policy: &Policy| grains_of(policy.limits());
        assert_eq!((grains(&defined), grains(defined.shadow().unwrap())), (vec![7, 60], vec![7]));
        let older = Policy::from_definition(&definition.replace("\"grains\"", "\"unknown\"")).unwrap();
        assert_eq!(grains(&older), [60, 60]);
        for wrong in ["[7]", "[7,60,1]", "[7,256]", "[7,\"60\"]", "7"] {
            assert!(Policy::from_definition(&definition.replace("[7,60]", wrong)).is_err(), "{wrong}");
        }
    }

    /// So a version without modes decides without the limits in shadow.
    #[test]
    fn unenforced_limits_are_listed_beside_the_others() {
        let policies = policies();
        let tried = policies.get("tried").unwrap();
        let limit = |name: &str, rate: u32| {
            format!(
                r#"{{"name":"{name}","kind":"token_bucket","rate":{rate},"period_ms":60000,"capacity":{rate},"max_debt":0,"initial":null,"offset_ms":null}}"#
            )
        };
        let (a, b) = (limit("a", 1), limit("b", 2));
        let head = format!(r#"{{"name":"tried","numbers":[{a}],"write_ahead":[0]"#);
        let tail = r#""off":["c"],"reservation_ttl_ms":600000,"unsettled":"keep"}"#;
        let shadow = format!(r#""shadow":{{"numbers":[{b}],"write_ahead":[1]"#);
        assert_eq!(tried.definition(), format!(r"{head},{shadow}}},{tail}"));
        let since = Policy::clone(tried).in_force_since(7);
        let timeline = r#""timeline":{"since":7,"carry":"additive"}"#;
        assert_eq!(since.definition(), format!(r"{head},{timeline},{shadow},{timeline}}},{tail}"));
        let defined = Policy::from_definition(&since.definition()).unwrap();
        assert_eq!(defined.shadow().unwrap().timeline().since(), 7);

        let older = Policy::from_definition(&tried.definition().replace("\"shadow\"", "\"unknown\"")).unwrap();
        assert_eq!(older.wire_name(), tried.wire_name());
        assert!(older.shadow().is_none());
        for wrong in [tried.definition().replace("[1]", "[1,1]"), tried.definition().replace("[\"c\"]", "[3]")] {
            assert!(matches!(Policy::from_definition(&wrong), Err(StoredConfigError::Unreadable)));
        }
    }

    /// Each change of a policy is also a change of its limits in shadow.
    #[test]
    fn limits_in_shadow_follow_their_policy_from_version_to_version() {
        let version = |rate: u32, mode: &str| {
            let limits = format!(
                r#"{{"name":"a","rate":1,"period":"1m"}},{{"name":"s","rate":{rate},"period":"1m","mode":"{mode}"}}"#
            );
            let policies = Policies::parse(&format!(r#"{{"p":{{"limits":[{limits}]}}}}"#)).unwrap();
            Policy::clone(policies.get("p").unwrap())
        };
        let versions = |policy: &Policy| {
            let timeline = policy.shadow().unwrap().timeline();
            let rate = |version: &Version| (version.since, version.limits[0].1.config().rate);
            (timeline.since(), timeline.earlier().iter().map(rate).collect::<Vec<_>>())
        };
        let first = version(1, "shadow").in_force_since(5);
        let second = version(2, "shadow").succeeding(&first, 6, Carry::AsIs);
        let second = Policy::from_definition(&second.definition()).unwrap();
        assert_eq!(versions(&second), (6, vec![(5, 1)]));
        let third = version(3, "enforce").succeeding(&second, 7, Carry::AsIs);
        assert!(third.shadow().is_none());
        let fourth = version(4, "shadow").succeeding(&third, 8, Carry::AsIs);
        assert_eq!(versions(&fourth), (8, vec![]));
    }

    #[test]
    fn a_newer_version_may_add_to_the_policy_but_not_to_the_arithmetic() {
        let good = policies().get("p").unwrap().definition();
        let read = |definition: &str| Policy::from_definition(definition).map(|policy| policy.definition());
        assert_eq!(read(&good.replace("{\"name\"", "{\"colour\":1,\"name\"")), Ok(good.clone()));
        let unreadable = Err(StoredConfigError::Unreadable);
        assert_eq!(read(&good.replace("{\"kind\"", "{\"colour\":1,\"kind\"")), unreadable);
        assert_eq!(read(""), unreadable);
        assert_eq!(read(&good.replace("[3]", "[3,3]")), unreadable);
        assert_eq!(read(&good.replace("[3]", "[]")), unreadable);
        assert!(matches!(read(&good.replace("1000", "0")), Err(StoredConfigError::NoLimit(_))));
    }
}
