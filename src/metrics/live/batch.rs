//! Decisions on their way from an isolate to the registry, as JSON. Readers ignore unknown fields.

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::words::{Outcome, Word};
use crate::json::Json;

/// A batch of decisions from an isolate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveBatch {
    /// Decisions, each as [JSON](super::LiveDecision::to_text).
    pub decisions: Vec<String>,
    /// How many decisions were omitted, by the number of the listener who would have seen them.
    pub omitted: Vec<(u64, u64)>,
}

/// Maximum length of an accepted decision, in bytes. Names have at most 64 each.
const MAX_DECISION_LEN: usize = 1_024;

/// Maximum decisions in a batch.
pub const MAX_DECISIONS: usize = 50;

impl LiveBatch {
    /// The batch as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            decisions: Vec<&'a RawValue>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            omitted: &'a [(u64, u64)],
        }
        let decisions = self.decisions.iter().filter_map(|text| serde_json::from_str(text).ok());
        let written = Written { decisions: decisions.collect(), omitted: &self.omitted };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses a batch; `None` if it is malformed or too large.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let decisions = fields.get("decisions")?.array()?;
        let is_short = |decision: &Json<'_>| decision.raw().len() <= MAX_DECISION_LEN;
        if decisions.len() > MAX_DECISIONS || !decisions.iter().all(is_short) {
            return None;
        }
        let omitted = fields.get("omitted").map_or_else(|| Some(Vec::new()), Json::array)?;
        let omitted = omitted.into_iter().map(|pair| match *pair.array()? {
            [listener, count] => Some((listener.integer()?, count.integer()?)),
            _ => None,
        });
        let decisions = decisions.into_iter().map(|decision| decision.raw().to_owned()).collect();
        Some(Self { decisions, omitted: omitted.collect::<Option<_>>()? })
    }

    /// The policy and the outcome of a decision; `None` for an outcome of a later version.
    pub(super) fn subject(decision: &str) -> Option<(String, Outcome)> {
        let fields = Json::parse(decision).ok()?.fields().ok()?;
        let outcome = Outcome::from_word(&fields.get("outcome")?.string()?)?;
        Some((fields.get("policy")?.string()?.into_owned(), outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbouring versions exchange it.
    #[test]
    fn the_format_is_unchanged() {
        let batch = LiveBatch { decisions: vec![r#"{"at":1}"#.to_owned(), "{}".to_owned()], omitted: vec![(7, 3)] };
        let text = r#"{"decisions":[{"at":1},{}],"omitted":[[7,3]]}"#;
        assert_eq!((batch.to_text(), LiveBatch::from_text(text)), (text.to_owned(), Some(batch)));
        let text = r#"{"decisions":[]}"#;
        let nothing = LiveBatch::default();
        assert_eq!((nothing.to_text(), LiveBatch::from_text(text)), (text.to_owned(), Some(nothing)));
        for text in ["", "{}", r#"{"decisions":[],"omitted":[[7]]}"#, r#"{"decisions":[],"omitted":[7]}"#] {
            assert_eq!(LiveBatch::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn a_batch_is_bounded() {
        let read = |decision: &str, count| {
            LiveBatch { decisions: vec![decision.to_owned(); count], omitted: Vec::new() }.to_text()
        };
        let is_read = |decision: &str, count| LiveBatch::from_text(&read(decision, count)).is_some();
        assert!(is_read("{}", MAX_DECISIONS) && !is_read("{}", MAX_DECISIONS + 1));
        let long = |len: usize| format!("\"{}\"", "x".repeat(len - 2));
        assert!(is_read(&long(MAX_DECISION_LEN), 1) && !is_read(&long(MAX_DECISION_LEN + 1), 1));
    }
}
