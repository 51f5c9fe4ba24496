//! The listeners as the registry sends them to isolates, in JSON. Readers ignore unknown fields and words.

use serde::Serialize;

use super::super::words::{Outcome, Word};
use super::filter::LiveFilter;
use crate::json::Json;

/// All listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// Milliseconds until they expire, unless renewed.
    pub for_ms: u64,
    /// Milliseconds that an isolate waits between batches.
    pub pause_ms: u64,
    /// The listeners.
    pub all: Vec<Listener>,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Its number.
    pub id: u64,
    /// Its filter.
    pub filter: LiveFilter,
}

impl Listeners {
    /// The message as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            for_ms: u64,
            pause_ms: u64,
            listeners: Vec<WrittenListener<'a>>,
        }
        #[derive(Serialize)]
        struct WrittenListener<'a> {
            id: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            policies: Option<&'a [String]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            outcomes: Option<Vec<&'static str>>,
        }
        let listeners = self.all.iter().map(|Listener { id, filter }| WrittenListener {
            id: *id,
            policies: filter.policies.as_deref(),
            outcomes: filter.outcomes.as_ref().map(|outcomes| outcomes.iter().map(|outcome| outcome.word()).collect()),
        });
        let written = Written { for_ms: self.for_ms, pause_ms: self.pause_ms, listeners: listeners.collect() };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses a message; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let all = fields.get("listeners")?.array()?.into_iter().map(|listener| {
            let fields = listener.fields().ok()?;
            let words = |name: &str| match fields.get(name) {
                None => Some(None),
                Some(words) => {
                    let words = words.array()?.into_iter().map(|word| Some(word.string()?.into_owned()));
                    Some(Some(words.collect::<Option<Vec<_>>>()?))
                }
            };
            let known = |word: &String| Outcome::from_word(word);
            let outcomes = words("outcomes")?.map(|words| words.iter().filter_map(known).collect());
            let filter = LiveFilter { policies: words("policies")?, outcomes };
            Some(Listener { id: fields.get("id")?.integer()?, filter })
        });
        Some(Self {
            for_ms: fields.get("for_ms")?.integer()?,
            pause_ms: fields.get("pause_ms")?.integer()?,
            all: all.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbouring versions exchange it.
    #[test]
    fn the_format_is_unchanged() {
        let some = LiveFilter {
            policies: Some(vec!["api".to_owned()]),
            outcomes: Some(vec![Outcome::Refused, Outcome::Banned]),
        };
        let all = vec![Listener { id: 7, filter: some }, Listener { id: 8, filter: LiveFilter::default() }];
        let listeners = Listeners { for_ms: 15_000, pause_ms: 1_000, all };
        let text = concat!(
            r#"{"for_ms":15000,"pause_ms":1000,"listeners":["#,
            r#"{"id":7,"policies":["api"],"outcomes":["refused","banned"]},{"id":8}]}"#,
        );
        assert_eq!((listeners.to_text(), Listeners::from_text(text)), (text.to_owned(), Some(listeners)));
    }

    #[test]
    fn an_outcome_of_a_later_version_is_ignored_and_does_not_mean_all() {
        let text = r#"{"for_ms":1,"pause_ms":1,"listeners":[{"id":7,"outcomes":["later"],"more":1}],"more":1}"#;
        let filter = LiveFilter { policies: None, outcomes: Some(Vec::new()) };
        assert_eq!(Listeners::from_text(text).unwrap().all, [Listener { id: 7, filter }]);
        for text in ["", "{}", r#"{"for_ms":1,"pause_ms":1}"#, r#"{"for_ms":1,"pause_ms":1,"listeners":[{}]}"#] {
            assert_eq!(Listeners::from_text(text), None, "{text}");
        }
    }
}
