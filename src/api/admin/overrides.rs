//! The registry's answers about overrides of keys.

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::problem::Problem;
use super::super::reply::Reply;
use super::{AdminQuestion, AdminReply};
use crate::limit::Carry;
use crate::protocol::{OverrideStanding, OverridesChanged, OverridesError};

impl AdminQuestion<'_> {
    /// A page of overrides; `has_more` if others follow.
    #[must_use]
    pub fn overrides(&self, as_of: i64, overrides: &[OverrideStanding], has_more: bool) -> Reply {
        #[derive(Serialize)]
        struct Body<'a> {
            as_of: i64,
            overrides: Vec<One<'a>>,
            next: Option<&'a str>,
        }
        #[derive(Serialize)]
        struct One<'a> {
            id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            object: Option<&'a str>,
            since: i64,
            #[serde(rename = "override")]
            written: Option<&'a RawValue>,
        }
        let next = overrides.last().filter(|_| has_more).map(|last| &*last.id);
        let overrides = overrides.iter().map(|standing| One {
            id: &standing.id,
            object: standing.object.as_deref(),
            since: standing.since,
            written: raw(standing),
        });
        Reply::json(200, "application/json", &Body { as_of, overrides: overrides.collect(), next })
    }

    /// The changes, made or only tried.
    ///
    /// # Errors
    /// [`Problem::BadRequest`] if an error prevented all changes.
    pub fn overrides_changed(
        &self,
        carry: Option<Carry>,
        is_dry_run: bool,
        changed: Result<OverridesChanged, OverridesError>,
    ) -> AdminReply {
        #[derive(Serialize)]
        struct Body {
            dry_run: bool,
            changes: Vec<String>,
            created: usize,
            replaced: usize,
            removed: usize,
            unchanged: usize,
            at: Option<i64>,
        }
        let OverridesChanged { created, replaced, removed, unchanged, at } = changed.map_err(Problem::of_overrides)?;
        let tokens = match carry {
            None => "what is spent stays spent (with shards: keys keep their tokens)",
            Some(Carry::Additive) => "what is spent stays spent",
            Some(Carry::AsIs) => "keys keep their tokens, up to the new capacity",
            // Not possible for overrides.
            Some(Carry::Proportional) => "keys keep their share of the capacity",
            Some(Carry::Reset) => "keys are reset",
        };
        let line = |count: usize, what: &str| {
            let keys = if count == 1 { "1 key or prefix".to_owned() } else { format!("{count} keys or prefixes") };
            (count > 0).then(|| format!("{keys}: {what}"))
        };
        let lines = [
            line(created, "under an override; time before the change counts as the policy says"),
            line(replaced, "under another override; time before the change counts as the one before says"),
            line(
                removed,
                "under the policy again, or under a shorter prefix; time before the change counts as the override says",
            ),
            line(unchanged, "nothing changes"),
            at.map(|_| format!("{tokens}; at the latest ten seconds from then")),
        ];
        let words = lines.into_iter().flatten().collect();
        let body = Body { dry_run: is_dry_run, changes: words, created, replaced, removed, unchanged, at };
        Ok(Reply::json(200, "application/json", &body))
    }
}

fn raw(standing: &OverrideStanding) -> Option<&RawValue> {
    serde_json::from_str(&standing.text).ok()
}
