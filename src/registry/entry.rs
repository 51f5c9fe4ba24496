//! A policy in the registry, and its row.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::json::Json;
use crate::limit::Carry;
use crate::policy::{Policy, Timeline};
use crate::protocol::{Source, Standing, Versioned};

/// A policy, possibly deleted.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The policy with its timeline; if deleted, the last version.
    pub(super) policy: Arc<Policy>,
    /// As written: JSON.
    pub(super) text: String,
    pub(super) is_deleted: bool,
    /// The moment of the latest change, which may be the deletion.
    pub(super) since: i64,
    pub(super) source: Source,
    /// The hash of the last text from a deployment; `None` if there was none.
    pub(super) seed: Option<String>,
}

impl Entry {
    /// The entry in the row with this name; `None` if it is unreadable.
    pub(super) fn read(name: &str, row: &str) -> Option<Self> {
        let fields = Json::parse(row).ok()?.fields().ok()?;
        let text = fields.get("text")?.raw().to_owned();
        let timeline = Timeline::from_json(fields.get("timeline")?.raw()).ok()?;
        let policy = Policy::parse(name, &text).ok()?.with_timeline(timeline);
        let source = match fields.get("source")?.string()?.as_ref() {
            "deployment" => Source::Deployment,
            "admin" => Source::Admin,
            _ => return None,
        };
        Some(Self {
            policy: Arc::new(policy),
            text,
            is_deleted: fields.get("deleted")?.bool()?,
            since: i64::try_from(fields.get("since")?.integer()?).ok()?,
            source,
            seed: fields.get("seed")?.string().map(std::borrow::Cow::into_owned),
        })
    }

    pub(super) fn row(&self) -> String {
        #[derive(Serialize)]
        struct Row<'a> {
            text: Option<&'a RawValue>,
            timeline: Option<&'a RawValue>,
            deleted: bool,
            since: i64,
            source: &'static str,
            seed: Option<&'a str>,
        }
        let timeline = self.policy.timeline().to_json();
        let row = Row {
            text: raw(&self.text),
            timeline: raw(&timeline),
            deleted: self.is_deleted,
            since: self.since,
            source: self.source.word(),
            seed: self.seed.as_deref(),
        };
        serde_json::to_string(&row).unwrap_or_default() // our own type cannot fail to serialize
    }

    pub(super) fn standing(&self) -> Option<Standing> {
        (!self.is_deleted).then(|| Standing {
            policy: Arc::clone(&self.policy),
            text: self.text.clone(),
            version: self.since,
            source: self.source,
            is_fixed: self.policy.registry().is_fixed,
        })
    }

    /// The form that frontends receive; `None` if deleted.
    pub(super) fn versioned(&self) -> Option<Versioned> {
        (!self.is_deleted).then(|| Versioned { text: self.text.clone(), timeline: self.policy.timeline().to_json() })
    }

    /// The text, unless deleted.
    pub(super) fn current(&self) -> Option<&str> {
        (!self.is_deleted).then_some(&*self.text)
    }
}

/// The policy, replacing the previous one, if any.
pub(super) fn succeeding(policy: Policy, before: Option<&Entry>, since: i64, carry: Carry) -> Policy {
    match before {
        Some(before) => policy.succeeding(&before.policy, since, carry),
        None => policy.with_timeline(Timeline::new(since, carry, Vec::new())),
    }
}

/// How tokens are carried over unless the change says it. Shards keep theirs as they are: a new one would get what the others have spent.
pub(super) fn usual_carry(before: Option<&Entry>, after: &Policy) -> Carry {
    if has_shards(before, after) { Carry::AsIs } else { after.registry().carry.unwrap_or_default() }
}

pub(super) fn has_shards(before: Option<&Entry>, after: &Policy) -> bool {
    before.map(|entry| &*entry.policy).into_iter().chain([after]).any(|policy| policy.declared_shards() > 1)
}

/// By which the texts of deployments are told apart.
pub(super) fn hash_of(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.first_chunk().map_or_else(String::new, |bytes| format!("{:016x}", u64::from_be_bytes(*bytes)))
}

pub(super) fn raw(json: &str) -> Option<&RawValue> {
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format in the storage of every deployment. If it changes, old rows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let text = r#"{"rate":1,"period":"1s","fixed":true}"#;
        let policy = Arc::new(Policy::parse("api", text).unwrap().in_force_since(5));
        let (source, seed) = (Source::Deployment, Some("00ff".to_owned()));
        let entry = Entry { policy, text: text.to_owned(), is_deleted: false, since: 5, source, seed };
        let timeline = entry.policy.timeline().to_json();
        let row = format!(
            r#"{{"text":{text},"timeline":{timeline},"deleted":false,"since":5,"source":"deployment","seed":"00ff"}}"#
        );
        assert_eq!(entry.row(), row);
        let later = row.replace("\"since\":5,\"source", "\"more\":[1],\"since\":5,\"source");
        for row in [&row, &later] {
            let read = Entry::read("api", row).unwrap();
            assert_eq!(read.row(), entry.row());
            assert_eq!(read.policy.timeline(), entry.policy.timeline());
            assert!(read.standing().unwrap().is_fixed);
        }
        let deleted = row.replace("false", "true").replace("\"00ff\"", "null").replace("deployment", "admin");
        let read = Entry::read("api", &deleted).unwrap();
        assert_eq!((read.row(), read.seed.is_none(), read.standing().is_none()), (deleted, true, true));
    }

    #[test]
    fn anything_else_is_rejected() {
        let text = r#""1/s""#;
        let policy = Arc::new(Policy::parse("api", text).unwrap().in_force_since(5));
        let entry =
            Entry { policy, text: text.to_owned(), is_deleted: false, since: 5, source: Source::Admin, seed: None };
        let row = entry.row();
        assert!(Entry::read("api", &row).is_some());
        for wrong in
            ["", "[]", "{}", &row.replace("1/s", "1/x"), &row.replace("admin", "x"), &row.replace("false", "0")]
        {
            assert!(Entry::read("api", wrong).is_none(), "{wrong}");
        }
        assert!(Entry::read("not a name", &row).is_none());
    }
}
