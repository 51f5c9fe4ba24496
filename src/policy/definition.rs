//! A policy as a frontend sends it to an object that does not have it, because one of them is of a newer deployment.
//!
//! Only what an object needs to decide: the frontend decides what to answer when an object fails. It is never stored.

use serde::Serialize;

use super::named::{NamedLimit, Policy, ReservationTerms, Standing, Unsettled};
use super::on_error::OnError;
use super::stored::{StoredConfig, StoredConfigError, limits_of, version_of};
use super::timeline::{Timeline, TimelineFields};
use crate::json::Json;

/// Readers ignore fields that they do not know, so that the next version can add one; but not within `numbers`, where
/// each field changes the arithmetic.
#[derive(Serialize)]
struct Definition<'a> {
    name: &'a str,
    numbers: Vec<StoredConfig>,
    /// One for each limit.
    write_ahead: Vec<u64>,
    reservation_ttl_ms: u64,
    unsettled: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    standing: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    banned_until: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<TimelineFields>,
}

impl Policy {
    /// Everything an object needs to decide under this policy: one line of JSON.
    #[must_use]
    pub fn definition(&self) -> String {
        self.definition_with(self.timeline().fields())
    }

    /// The same without the versions before it.
    pub(crate) fn definition_alone(&self) -> String {
        self.definition_with(self.timeline().fields_alone())
    }

    fn definition_with(&self, timeline: Option<TimelineFields>) -> String {
        let ReservationTerms { ttl_ms, unsettled } = self.reservations();
        let (standing, banned_until) = match self.standing() {
            Standing::Limited => (None, None),
            Standing::Unlimited => (Some(UNLIMITED), None),
            Standing::Banned { until } => (Some(BANNED), until),
        };
        let definition = Definition {
            name: self.name(),
            numbers: self.limits().iter().map(StoredConfig::of).collect(),
            write_ahead: self.limits().iter().map(NamedLimit::write_ahead).collect(),
            reservation_ttl_ms: ttl_ms,
            unsettled: match unsettled {
                Unsettled::Keep => "keep",
                Unsettled::Refund => "refund",
            },
            standing,
            banned_until,
            timeline,
        };
        serde_json::to_string(&definition).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// The policy of a [`Policy::definition`], perhaps of another version.
    ///
    /// # Errors
    /// [`StoredConfigError`] for text that does not define a policy.
    pub fn from_definition(definition: &str) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let fields = Json::parse(definition).ok().and_then(|json| json.fields().ok()).ok_or_else(unreadable)?;
        let field = |name: &str| fields.get(name).ok_or_else(unreadable);
        let name = field("name")?.string().ok_or_else(unreadable)?;
        let limits = limits_of(field("numbers")?)?;
        let write_ahead = field("write_ahead")?.array().unwrap_or_default();
        let ttl_ms = field("reservation_ttl_ms")?.integer().ok_or_else(unreadable)?;
        let unsettled = match field("unsettled")?.string().as_deref() {
            Some("keep") => Unsettled::Keep,
            Some("refund") => Unsettled::Refund,
            _ => return Err(unreadable()),
        };
        if limits.is_empty() || limits.len() != write_ahead.len() {
            return Err(unreadable());
        }
        let mut named = Vec::new();
        for ((limit, config), write_ahead) in limits.into_iter().zip(write_ahead) {
            let write_ahead = write_ahead.integer().ok_or_else(unreadable)?;
            named.push(NamedLimit::new(&name, limit.as_deref(), config, write_ahead));
        }
        let timeline = fields.get("timeline").map_or(Ok(Timeline::default()), Timeline::of)?;
        let policy = Self::new(&name, named, OnError::CLOSED, ReservationTerms { ttl_ms, unsettled });
        let until = fields.get("banned_until").and_then(Json::integer).and_then(|until| i64::try_from(until).ok());
        let standing = match fields.get("standing").map(Json::string) {
            None => Standing::Limited,
            Some(Some(word)) if word == UNLIMITED => Standing::Unlimited,
            Some(Some(word)) if word == BANNED => Standing::Banned { until },
            Some(_) => return Err(unreadable()),
        };
        Ok(policy.with_timeline(timeline).with_standing(standing).with_id(version_of(definition)))
    }
}

const UNLIMITED: &str = "unlimited";
const BANNED: &str = "banned";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policies;

    fn policies() -> Policies {
        let json = r#"{"p":{"rate":3,"period":"1s","reservation_ttl":"2m","unsettled":"refund"},"q":{"limits":[
            {"name":"a","rate":1,"period":"1m","offset":"5s","kind":"fixed_window","capacity":7,"max_debt":3,"initial":2},
            {"name":"b","rate":600,"period":"1m","write_ahead":0}]}}"#;
        Policies::parse(json).unwrap()
    }

    #[test]
    fn an_object_decides_under_a_definition_as_under_the_policy_itself() {
        for policy in policies().iter() {
            let defined = Policy::from_definition(&policy.definition()).unwrap();
            assert_eq!(defined.wire_name(), policy.wire_name());
            assert_eq!((defined.numbers(), defined.version()), (policy.numbers(), policy.version()));
            assert_eq!(defined.reservations(), policy.reservations());
            assert_eq!(defined.to_string(), policy.to_string());
            let ahead = |policy: &Policy| policy.limits().iter().map(NamedLimit::write_ahead).collect::<Vec<_>>();
            assert_eq!(ahead(&defined), ahead(policy));
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
            let policy = Policy::clone(policy).with_standing(standing);
            let definition = policy.definition();
            assert!(definition.ends_with(&format!("{written}}}")), "{definition}");
            let defined = Policy::from_definition(&definition).unwrap();
            assert_eq!((defined.standing(), defined.id()), (standing, policy.id()));
            assert!(!ids.contains(&policy.id()));
            ids.push(policy.id());
            let unknown = definition.replace("\"unlimited\"", "\"adrift\"").replace("\"banned\"", "\"adrift\"");
            assert!(Policy::from_definition(&unknown).is_err());
        }
    }

    /// The neighbouring versions write and read it too.
    #[test]
    fn the_format_is_unchanged() {
        assert_eq!(
            policies().get("p").unwrap().definition(),
            r#"{"name":"p","numbers":[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}],"write_ahead":[3],"reservation_ttl_ms":120000,"unsettled":"refund"}"#
        );
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
