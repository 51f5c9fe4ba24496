//! A frontend's question about a key's state.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::json::Json;
use crate::policy::Policy;

/// A question to a key's object about its state. An object of a version without it fails, and nothing is done.
#[derive(Clone, Debug)]
pub struct KeyQuestion {
    /// The name of the key in the answer.
    pub object: String,
    /// The registry version known to the frontend; 0 without a registry.
    pub as_of: i64,
    /// The only policies to include, unless all.
    pub only: Option<Vec<String>>,
    /// The frontend's policies, as they apply to this key.
    pub policies: Vec<Arc<Policy>>,
}

impl KeyQuestion {
    /// The question as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            object: &'a str,
            as_of: i64,
            #[serde(skip_serializing_if = "Option::is_none")]
            only: Option<&'a [String]>,
            policies: Vec<Box<RawValue>>,
        }
        let definitions = self.policies.iter().filter_map(|policy| RawValue::from_string(policy.definition()).ok());
        let Self { object, as_of, only, .. } = self;
        let written = Written { object, as_of: *as_of, only: only.as_deref(), policies: definitions.collect() };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses a question; `None` if it is malformed. A policy that this version cannot read is left out.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let only = match fields.get("only") {
            Some(only) => {
                Some(only.array()?.into_iter().map(|name| Some(name.string()?.into_owned())).collect::<Option<_>>()?)
            }
            None => None,
        };
        let policies = fields.get("policies")?.array()?;
        let policies =
            policies.into_iter().filter_map(|policy| Policy::from_definition(policy.raw()).ok().map(Arc::new));
        Some(Self {
            object: fields.get("object")?.string()?.into_owned(),
            as_of: fields.get("as_of")?.raw().parse().ok()?,
            only,
            policies: policies.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policies;

    #[test]
    fn a_question_survives_a_round_trip() {
        let policies = Policies::parse(r#"{"a":"9/s","b":{"limits":[{"name":"x","rate":1,"period":"1s"}]}}"#).unwrap();
        for (only, as_of) in [(None, 0), (Some(vec!["a".to_owned(), "\"".to_owned()]), 1_700_000_000_000)] {
            let policies = policies.iter().cloned().collect();
            let question = KeyQuestion { object: "0123".to_owned(), as_of, only: only.clone(), policies };
            let read = KeyQuestion::from_text(&question.to_text()).unwrap();
            assert_eq!((&*read.object, read.as_of, &read.only), ("0123", as_of, &only));
            let ids = |question: &KeyQuestion| question.policies.iter().map(|policy| policy.id()).collect::<Vec<_>>();
            assert_eq!(ids(&read), ids(&question));
        }
        for wrong in ["", "{}", r#"{"object":"0","as_of":0,"only":[1],"policies":[]}"#] {
            assert!(KeyQuestion::from_text(wrong).is_none(), "{wrong}");
        }
    }
}
