//! Messages between a frontend and the registry of policies. They are rare, at most every few seconds, so they are JSON, and readers ignore
//! unknown fields.

use std::borrow::Cow;

use base64ct::{Base64, Encoding};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::json::{Fields, Json};

/// A frontend's poll for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll<'a> {
    /// The latest change that the frontend knows; 0 if it knows none.
    pub as_of: i64,
    /// The registry that it knows: see [`Update::born_at`].
    pub born_at: i64,
    /// Identifies the policies of the frontend's deployment: see [`deployment_id`].
    pub deployment: Cow<'a, str>,
    /// These policies: the JSON of `POLICIES`. Only sent when the registry requests them.
    pub policies: Option<&'a str>,
    /// The cursor after the frontend's overrides, from the last answer.
    pub overrides_at: Option<Cow<'a, str>>,
    /// Whether it is loading all overrides, page by page.
    pub is_loading: bool,
}

/// The registry's answer.
#[expect(clippy::struct_excessive_bools, reason = "the fields of a message")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The latest change of the registry.
    pub as_of: i64,
    /// When the registry was empty. A frontend with another moment knows another registry, whose rows were lost.
    pub born_at: i64,
    /// Whether the frontend should poll again, with the policies of its deployment.
    pub wants_policies: bool,
    /// Whether `policies` has all policies, rather than only changed ones.
    pub is_whole: bool,
    /// Policies by name; `None` for a deleted one.
    pub policies: Vec<(String, Option<Versioned>)>,
    /// [Records](crate::policy::overrides::Selector::record) of changed overrides.
    pub overrides: Vec<u8>,
    /// Whether this is the first page of all overrides.
    pub overrides_are_first: bool,
    /// Cursor after this page.
    pub overrides_at: String,
    /// Whether there are more. Then the frontend polls again, and the rest of the answer comes with the last page; if it has all policies,
    /// they are also on the first.
    pub has_more: bool,
    /// The [live listeners](crate::metrics::Listeners), if any, as JSON.
    pub listeners: Option<String>,
}

/// A policy in the registry.
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
    /// The poll as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            as_of: i64,
            born_at: i64,
            deployment: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            policies: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            overrides_at: Option<&'a str>,
            #[serde(skip_serializing_if = "is_false")]
            is_loading: bool,
        }
        let written = Written {
            as_of: self.as_of,
            born_at: self.born_at,
            deployment: &self.deployment,
            policies: self.policies.and_then(raw),
            overrides_at: self.overrides_at.as_deref(),
            is_loading: self.is_loading,
        };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses a poll; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &'a str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        Some(Self {
            as_of: moment(&fields, "as_of")?,
            born_at: moment(&fields, "born_at")?,
            deployment: fields.get("deployment")?.string()?,
            policies: fields.get("policies").map(Json::raw),
            overrides_at: fields.get("overrides_at").and_then(Json::string),
            is_loading: flag(&fields, "is_loading"),
        })
    }
}

impl Update {
    /// The answer as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[expect(clippy::struct_excessive_bools, reason = "the fields of a message")]
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
            #[serde(skip_serializing_if = "String::is_empty")]
            overrides: String,
            #[serde(skip_serializing_if = "is_false")]
            overrides_are_first: bool,
            #[serde(skip_serializing_if = "str::is_empty")]
            overrides_at: &'a str,
            #[serde(skip_serializing_if = "is_false")]
            has_more: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            listeners: Option<&'a RawValue>,
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
            overrides: Base64::encode_string(&self.overrides),
            overrides_are_first: self.overrides_are_first,
            overrides_at: &self.overrides_at,
            has_more: self.has_more,
            listeners: self.listeners.as_deref().and_then(raw),
        };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses an answer; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let text = |name: &str| fields.get(name).and_then(Json::string).unwrap_or_default();
        let policies = fields.get("policies").map_or_else(|| Some(Vec::new()), Json::array)?;
        let policies = policies.into_iter().map(|policy| {
            let fields = policy.fields().ok()?;
            let raw = |field: &str| fields.get(field).map(|value| value.raw().to_owned());
            let versioned = match raw("policy") {
                Some(policy) => Some(Versioned { text: policy, timeline: raw("timeline")? }),
                None => None,
            };
            Some((fields.get("name")?.string()?.into_owned(), versioned))
        });
        Some(Self {
            as_of: moment(&fields, "as_of")?,
            born_at: moment(&fields, "born_at")?,
            wants_policies: flag(&fields, "wants_policies"),
            is_whole: flag(&fields, "is_whole"),
            policies: policies.collect::<Option<_>>()?,
            overrides: Base64::decode_vec(&text("overrides")).ok()?,
            overrides_are_first: flag(&fields, "overrides_are_first"),
            overrides_at: text("overrides_at").into_owned(),
            has_more: flag(&fields, "has_more"),
            listeners: fields.get("listeners").map(|listeners| listeners.raw().to_owned()),
        })
    }
}

fn moment(fields: &Fields<'_>, name: &str) -> Option<i64> {
    i64::try_from(fields.get(name)?.integer()?).ok()
}

fn flag(fields: &Fields<'_>, name: &str) -> bool {
    fields.get(name).is_some_and(|flag| flag.bool() == Some(true))
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

    /// Neighbouring versions exchange them.
    #[test]
    fn the_formats_are_unchanged() {
        let own = Some(r#"{"api":"1/s"}"#);
        let none =
            Poll { as_of: 0, born_at: 0, deployment: "".into(), policies: None, overrides_at: None, is_loading: false };
        let poll = Poll { as_of: 5, born_at: 3, deployment: "00ff".into(), policies: own, ..none.clone() };
        let text = r#"{"as_of":5,"born_at":3,"deployment":"00ff","policies":{"api":"1/s"}}"#;
        assert_eq!((poll.to_text(), Poll::from_text(text)), (text.to_owned(), Some(poll)));
        assert_eq!(Poll::from_text(r#"{"as_of":0,"born_at":0,"deployment":"","more":[1]}"#), Some(none.clone()));
        let poll = Poll { overrides_at: Some("3-5-00ff".into()), is_loading: true, ..none };
        let text = r#"{"as_of":0,"born_at":0,"deployment":"","overrides_at":"3-5-00ff","is_loading":true}"#;
        assert_eq!((poll.to_text(), Poll::from_text(text)), (text.to_owned(), Some(poll)));

        let versioned = Versioned { text: r#"{"rate":1}"#.to_owned(), timeline: r#"{"since":5}"#.to_owned() };
        let update = Update {
            as_of: 5,
            born_at: 3,
            wants_policies: false,
            is_whole: true,
            policies: vec![("api".to_owned(), Some(versioned)), ("gone".to_owned(), None)],
            ..Update::default()
        };
        let text = r#"{"as_of":5,"born_at":3,"is_whole":true,"policies":[{"name":"api","policy":{"rate":1},"timeline":{"since":5}},{"name":"gone"}]}"#;
        assert_eq!((update.to_text(), Update::from_text(text)), (text.to_owned(), Some(update)));
        let nothing = Update { as_of: 5, born_at: 3, ..Update::default() };
        assert_eq!(nothing.to_text(), r#"{"as_of":5,"born_at":3}"#);
        let page = Update {
            overrides: vec![0, 255, 7],
            overrides_are_first: true,
            overrides_at: "3-5-00ff".to_owned(),
            has_more: true,
            ..nothing.clone()
        };
        let text = r#"{"as_of":5,"born_at":3,"overrides":"AP8H","overrides_are_first":true,"overrides_at":"3-5-00ff","has_more":true}"#;
        assert_eq!((page.to_text(), Update::from_text(text)), (text.to_owned(), Some(page)));
        let listened = Update { listeners: Some(r#"{"for_ms":1}"#.to_owned()), ..nothing.clone() };
        let text = r#"{"as_of":5,"born_at":3,"listeners":{"for_ms":1}}"#;
        assert_eq!((listened.to_text(), Update::from_text(text)), (text.to_owned(), Some(listened)));
        let wants = Update { wants_policies: true, ..nothing.clone() };
        assert_eq!(Update::from_text(&wants.to_text()), Some(wants));
        assert_eq!(Update::from_text(r#"{"as_of":5,"born_at":3,"more":{}}"#), Some(nothing));
    }

    #[test]
    fn anything_else_is_rejected() {
        for text in ["", "[]", "{}", r#"{"as_of":1}"#, r#"{"as_of":-1,"born_at":0,"deployment":"x"}"#] {
            assert_eq!((Poll::from_text(text), Update::from_text(text)), (None, None), "{text}");
        }
        for policies in ["7", "[7]", "[{}]", r#"[{"name":"a","policy":{}}]"#] {
            let text = format!(r#"{{"as_of":1,"born_at":0,"policies":{policies}}}"#);
            assert_eq!(Update::from_text(&text), None, "{text}");
        }
    }
}
