//! An operator's act on a key, for the audit log.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::json::Json;

/// An operator's act on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAct {
    /// The act, such as `key.reset`.
    pub act: String,
    /// The name of the token.
    pub by: String,
    /// The key's name in the log, never as callers write it.
    pub key: String,
    /// The policy.
    pub policy: String,
    /// The levels before, JSON.
    pub before: Option<String>,
    /// The levels after, JSON.
    pub after: Option<String>,
    /// Whether it was done before, and its answer was repeated.
    pub is_replayed: bool,
}

impl KeyAct {
    /// The act as text: JSON on one line.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            act: &'a str,
            by: &'a str,
            key: &'a str,
            policy: &'a str,
            before: Option<&'a RawValue>,
            after: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            replayed: bool,
        }
        let &Self { ref act, ref by, ref key, ref policy, ref before, ref after, is_replayed: replayed } = self;
        let [before, after] = [before, after].map(|levels| raw(levels.as_deref()));
        // Our own type cannot fail to serialize.
        serde_json::to_string(&Written { act, by, key, policy, before, after, replayed }).unwrap_or_default()
    }

    /// Parses an act; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let field = |name: &str| Some(fields.get(name)?.string()?.into_owned());
        let levels = |name: &str| fields.get(name).map(|value| value.raw().to_owned()).filter(|raw| raw != "null");
        Some(Self {
            act: field("act")?,
            by: field("by")?,
            key: field("key")?,
            policy: field("policy")?,
            before: levels("before"),
            after: levels("after"),
            is_replayed: fields.get("replayed").and_then(Json::bool).unwrap_or_default(),
        })
    }
}

/// JSON, to be written unchanged.
pub(crate) fn raw(text: Option<&str>) -> Option<&RawValue> {
    serde_json::from_str(text?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frontends and registries of neighbouring versions exchange it.
    #[test]
    fn the_format_is_unchanged() {
        let level = |level: i64| Some(format!(r#"[{{"limit":"api","level":{level}}}]"#));
        let act = KeyAct {
            act: "key.reset".to_owned(),
            by: "ops".to_owned(),
            key: "0123456789abcdef".to_owned(),
            policy: "api".to_owned(),
            before: level(-3),
            after: level(9),
            is_replayed: false,
        };
        let text = r#"{"act":"key.reset","by":"ops","key":"0123456789abcdef","policy":"api","before":[{"limit":"api","level":-3}],"after":[{"limit":"api","level":9}]}"#;
        assert_eq!((act.to_text().as_str(), KeyAct::from_text(text)), (text, Some(act.clone())));
        let replayed = KeyAct { before: None, is_replayed: true, ..act };
        assert_eq!(KeyAct::from_text(&replayed.to_text()), Some(replayed));
        for wrong in ["", "{}", r#"{"act":1,"by":"","key":"","policy":""}"#] {
            assert_eq!(KeyAct::from_text(wrong), None, "{wrong}");
        }
    }
}
