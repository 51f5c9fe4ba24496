//! The registry's record of a deployment: its policies, and when one of its frontends last polled.

use serde::Serialize;

use super::entry::hash_of;
use super::names::DEPLOYMENT;
use crate::json::Json;
use crate::sorted::SortedMap;

/// A newer deployment silent this long is treated as rolled back. A roll-out replaces isolates within a few minutes; an isolate with
/// traffic polls every few seconds.
pub const ROLL_OUT_MS: i64 = 120_000;

/// Interval in milliseconds at which the registry checks its own deployment's policies. Without requests for hours, a deployment takes
/// effect only then: until it does, tokens refill at the previous rates. Each check is an alarm and two rows, 600 rows a day.
pub const BEAT_MS: i64 = 300_000;

/// Minimum interval between rewrites of the row caused only by a poll.
pub(super) const HEARD_EVERY_MS: i64 = 30_000;

/// Maximum deployments remembered, besides those that have polled within [`ROLL_OUT_MS`]. A forgotten one counts as new, so if one that
/// still polls were forgotten, policies would flip back and forth.
pub(super) const MAX_DEPLOYMENTS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deployment {
    pub(super) id: String,
    /// When one of its frontends last polled. After a crash it may be too late by [`HEARD_EVERY_MS`], never too early.
    pub(super) heard_at: i64,
    /// The same, as persisted.
    pub(super) persisted_at: i64,
    /// The hash of each policy, by name.
    pub(super) policies: SortedMap<String, String>,
}

impl Deployment {
    pub(super) fn new(id: &str, policies: &SortedMap<String, String>, now: i64) -> Self {
        let policies = policies.iter().map(|(name, text)| (name.clone(), hash_of(text))).collect();
        Self { id: id.to_owned(), heard_at: now, persisted_at: now, policies }
    }

    pub(super) fn read(id: &str, row: &str) -> Option<Self> {
        let fields = Json::parse(row).ok()?.fields().ok()?;
        let persisted_at = i64::try_from(fields.get("heard_at")?.integer()?).ok()?;
        let policies = fields.get("policies")?.fields().ok()?;
        let policies =
            policies.iter().map(|(name, hash)| Some((name.clone().into_owned(), hash.string()?.into_owned())));
        let heard_at = persisted_at.saturating_add(HEARD_EVERY_MS);
        Some(Self { id: id.to_owned(), heard_at, persisted_at, policies: policies.collect::<Option<_>>()? })
    }

    /// Whether none of its frontends has polled for [`ROLL_OUT_MS`].
    pub(super) const fn is_quiet(&self, now: i64) -> bool {
        now.saturating_sub(self.heard_at) >= ROLL_OUT_MS
    }

    pub(super) fn row(&self) -> (String, Option<String>) {
        #[derive(Serialize)]
        struct Row<'a> {
            heard_at: i64,
            policies: &'a SortedMap<String, String>,
        }
        let row = Row { heard_at: self.persisted_at, policies: &self.policies };
        (row_name(&self.id), serde_json::to_string(&row).ok())
    }
}

pub(super) fn row_name(id: &str) -> String {
    format!("{DEPLOYMENT}{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_format_is_unchanged() {
        let policies = SortedMap::from_iter([("api".to_owned(), "\"1/s\"".to_owned())]);
        let deployment = Deployment::new("00ff", &policies, 7);
        let row = r#"{"heard_at":7,"policies":{"api":"e765031a360315cb"}}"#;
        assert_eq!(deployment.row(), ("deployment:00ff".to_owned(), Some(row.to_owned())));
        let read = Deployment::read("00ff", row).unwrap();
        assert_eq!(read, Deployment { heard_at: 7 + HEARD_EVERY_MS, ..deployment });
        for wrong in ["", "{}", r#"{"heard_at":7,"policies":{"api":1}}"#, r#"{"heard_at":-7,"policies":{}}"#] {
            assert_eq!(Deployment::read("00ff", wrong), None, "{wrong}");
        }
    }
}
