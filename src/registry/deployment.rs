//! What the registry knows of a deployment: which policies it has, and when one of its frontends last asked.

use serde::Serialize;

use super::entry::hash_of;
use super::{DEPLOYMENT, Registry, Writes};
use crate::json::Json;
use crate::sorted::SortedMap;

/// For so long no frontend of a newer deployment has asked when an older one counts again. A roll-out replaces isolates within
/// some minutes; one that answers requests asks every few seconds.
pub const ROLL_OUT_MS: i64 = 120_000;

/// So often at most the row is written again only because a frontend has asked.
const HEARD_EVERY_MS: i64 = 30_000;

/// So many deployments are remembered: more than anyone rolls out within two minutes. One that is forgotten counts as new.
const MAX_DEPLOYMENTS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deployment {
    pub(super) id: String,
    /// When one of its frontends last asked. After a crash that may be too late by [`HEARD_EVERY_MS`], never too early.
    heard_at: i64,
    /// The same, as persisted.
    persisted_at: i64,
    /// The hash of each policy, by its name.
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

impl Registry {
    /// Records that a frontend of this deployment asks at `now`. `policies` are the texts of its policies, if it sent them. `None`
    /// if the deployment is not known and they are missing; else whether it is new.
    pub(super) fn hear(
        &mut self,
        id: &str,
        policies: Option<&SortedMap<String, String>>,
        now: i64,
        writes: &mut Writes,
    ) -> Option<bool> {
        // After the clock stepped back, a moment ahead would keep all others waiting.
        for other in &mut self.deployments {
            other.heard_at = other.heard_at.min(now.saturating_add(HEARD_EVERY_MS));
        }
        if let Some(known) = self.deployments.iter_mut().find(|other| other.id == id) {
            known.heard_at = now;
            let age = now.saturating_sub(known.persisted_at);
            if !(0..HEARD_EVERY_MS).contains(&age) {
                known.persisted_at = now;
                writes.push(known.row());
            }
            return Some(false);
        }
        let deployment = Deployment::new(id, policies?, now);
        writes.push(deployment.row());
        self.deployments.push(deployment);
        if self.deployments.len() > MAX_DEPLOYMENTS {
            let oldest = (0..).zip(&self.deployments).min_by_key(|(_, other)| other.heard_at).map(|(index, _)| index);
            let oldest = self.deployments.remove(oldest.unwrap_or(0));
            writes.push((row_name(&oldest.id), None));
        }
        Some(true)
    }

    /// Whether no frontend that has this text for the policy has asked for [`ROLL_OUT_MS`].
    pub(super) fn is_quiet(&self, policy: &str, hash: Option<&String>, now: i64) -> bool {
        let mut holders = self.deployments.iter().filter(|deployment| deployment.policies.get(policy) == hash);
        holders.all(|deployment| now.saturating_sub(deployment.heard_at) >= ROLL_OUT_MS)
    }
}

fn row_name(id: &str) -> String {
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
