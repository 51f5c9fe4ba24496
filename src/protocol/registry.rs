//! What a frontend and the registry of policies say to each other. Every few seconds at most, so it is JSON, and readers
//! ignore fields that they do not know.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::json::{Fields, Json};

/// A frontend's question: what has changed since?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll<'a> {
    /// The latest change that the frontend knows; 0 if it knows none.
    pub as_of: i64,
    /// The registry that it knows: see [`Update::born_at`].
    pub born_at: i64,
    /// Identifies the policies of the frontend's deployment: see [`deployment_id`].
    pub deployment: Cow<'a, str>,
    /// These policies: the JSON of `POLICIES`. Only sent when the registry wants them.
    pub policies: Option<&'a str>,
}

/// The registry's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The latest change of the registry.
    pub as_of: i64,
    /// When the registry was empty. A frontend that knows another moment knows another registry, whose rows were lost.
    pub born_at: i64,
    /// Whether the frontend should ask again, with the policies of its deployment.
    pub wants_policies: bool,
    /// Whether `policies` are all there are, and not only those that have changed.
    pub is_whole: bool,
    /// Policies by name; `None` for one that was deleted.
    pub policies: Vec<(String, Option<Versioned>)>,
}

/// A policy as the registry keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// As written: JSON.
    pub text: String,
    /// The JSON of its [timeline](crate::policy::Timeline).
    pub timeline: String,
}

/// Identifies the policies of a deployment by their JSON.
#[must_use]
pub fn deployment_id(policies: &str) -> String {
    let digest = Sha256::digest(policies);
    digest.first_chunk().map_or_else(String::new, |bytes| format!("{:016x}", u64::from_be_bytes(*bytes)))
}

impl<'a> Poll<'a> {
    /// The question as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            as_of: i64,
            born_at: i64,
            deployment: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            policies: Option<&'a RawValue>,
        }
        let policies = self.policies.and_then(raw);
        let written = Written { as_of: self.as_of, born_at: self.born_at, deployment: &self.deployment, policies };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Reads a question; `None` if it is not one.
    #[must_use]
    pub fn from_text(text: &'a str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        Some(Self {
            as_of: moment(&fields, "as_of")?,
            born_at: moment(&fields, "born_at")?,
            deployment: fields.get("deployment")?.string()?,
            policies: fields.get("policies").map(Json::raw),
        })
    }
}

impl Update {
    /// The answer as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            as_of: i64,
            born_at: i64,
            #[serde(skip_serializing_if = "is_false")]
            wants_policies: bool,
            #[serde(skip_serializing_if = "is_false")]
            is_whole: bool,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            policies: Vec<WrittenPolicy<'a>>,
        }
        #[derive(Serialize)]
        struct WrittenPolicy<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            policy: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            timeline: Option<&'a RawValue>,
        }
        let policies = self.policies.iter().map(|(name, versioned)| WrittenPolicy {
            name,
            policy: versioned.as_ref().and_then(|versioned| raw(&versioned.text)),
            timeline: versioned.as_ref().and_then(|versioned| raw(&versioned.timeline)),
        });
        let written = Written {
            as_of: self.as_of,
            born_at: self.born_at,
            wants_policies: self.wants_policies,
            is_whole: self.is_whole,
            policies: policies.collect(),
        };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Reads an answer; `None` if it is not one.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let flag = |name| fields.get(name).is_some_and(|flag| flag.bool() == Some(true));
        let policies = fields.get("policies").map_or_else(|| Some(Vec::new()), Json::array)?;
        let policies = policies.into_iter().map(|policy| {
            let fields = policy.fields().ok()?;
            let text = |field: &str| fields.get(field).map(|value| value.raw().to_owned());
            let versioned = match text("policy") {
                Some(policy) => Some(Versioned { text: policy, timeline: text("timeline")? }),
                None => None,
            };
            Some((fields.get("name")?.string()?.into_owned(), versioned))
        });
        Some(Self {
            as_of: moment(&fields, "as_of")?,
            born_at: moment(&fields, "born_at")?,
            wants_policies: flag("wants_policies"),
            is_whole: flag("is_whole"),
            policies: policies.collect::<Option<_>>()?,
        })
    }
}

fn moment(fields: &Fields<'_>, name: &str) -> Option<i64> {
    i64::try_from(fields.get(name)?.integer()?).ok()
}

fn raw(json: &str) -> Option<&RawValue> {
    serde_json::from_str(json).ok()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The neighbouring versions write and read it too.
    #[test]
    fn the_formats_are_unchanged() {
        let poll = Poll { as_of: 5, born_at: 3, deployment: "00ff".into(), policies: Some(r#"{"api":"1/s"}"#) };
        let text = r#"{"as_of":5,"born_at":3,"deployment":"00ff","policies":{"api":"1/s"}}"#;
        assert_eq!((poll.to_text(), Poll::from_text(text)), (text.to_owned(), Some(poll)));
        let poll = Poll { as_of: 0, born_at: 0, deployment: "".into(), policies: None };
        assert_eq!(Poll::from_text(r#"{"as_of":0,"born_at":0,"deployment":"","more":[1]}"#), Some(poll));

        let versioned = Versioned { text: r#"{"rate":1}"#.to_owned(), timeline: r#"{"since":5}"#.to_owned() };
        let update = Update {
            as_of: 5,
            born_at: 3,
            wants_policies: false,
            is_whole: true,
            policies: vec![("api".to_owned(), Some(versioned)), ("gone".to_owned(), None)],
        };
        let text = r#"{"as_of":5,"born_at":3,"is_whole":true,"policies":[{"name":"api","policy":{"rate":1},"timeline":{"since":5}},{"name":"gone"}]}"#;
        assert_eq!((update.to_text(), Update::from_text(text)), (text.to_owned(), Some(update)));
        let nothing = Update { as_of: 5, born_at: 3, ..Update::default() };
        assert_eq!(nothing.to_text(), r#"{"as_of":5,"born_at":3}"#);
        let wants = Update { wants_policies: true, ..nothing.clone() };
        assert_eq!(Update::from_text(&wants.to_text()), Some(wants));
        assert_eq!(Update::from_text(r#"{"as_of":5,"born_at":3,"more":{}}"#), Some(nothing));
    }

    #[test]
    fn anything_else_is_not_read() {
        for text in ["", "[]", "{}", r#"{"as_of":1}"#, r#"{"as_of":-1,"born_at":0,"deployment":"x"}"#] {
            assert_eq!((Poll::from_text(text), Update::from_text(text)), (None, None), "{text}");
        }
        for policies in ["7", "[7]", "[{}]", r#"[{"name":"a","policy":{}}]"#] {
            let text = format!(r#"{{"as_of":1,"born_at":0,"policies":{policies}}}"#);
            assert_eq!(Update::from_text(&text), None, "{text}");
        }
    }
}
