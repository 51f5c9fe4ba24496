//! A frontend's poll every few seconds for changes, with its deployment's policies.

use std::fmt;
use std::sync::Arc;

use super::deployment::{Deployment, HEARD_EVERY_MS, MAX_DEPLOYMENTS, row_name};
use super::entry::{Entry, hash_of, succeeding, usual_carry};
use super::log::DEPLOYMENT;
use super::{Moments, Registry, Writes};
use crate::json::Json;
use crate::limit::Carry;
use crate::policy::{Policies, Policy, PolicyErrors};
use crate::protocol::{Poll, Source, Update, deployment_id};
use crate::sorted::SortedMap;

impl Registry {
    /// Answers a frontend, after taking over new policies of its deployment.
    ///
    /// # Errors
    /// [`PollError`]. Nothing has changed.
    pub fn poll(&mut self, poll: &Poll<'_>, now: i64) -> Result<(Update, Writes), PollError> {
        let sent = poll.policies.map(|json| Sent::read(json, &poll.deployment)).transpose()?;
        let mut writes = Writes::new();
        self.end_overrides(now, &mut writes);
        // A registry that lost its rows continues after the moments it gave before.
        self.moments.latest = self.moments.latest.max(poll.as_of);
        if self.take_over(&poll.deployment, sent.as_ref(), now, &mut writes) {
            return Ok((self.changes_since(poll), writes));
        }
        let Moments { latest: as_of, born_at, .. } = self.moments;
        Ok((Update { as_of, born_at, wants_policies: true, ..Update::default() }, writes))
    }

    /// Takes over new policies of the registry's own deployment, the JSON of `POLICIES`, even if no frontend has polled for hours. Call
    /// it every [`BEAT_MS`](super::BEAT_MS).
    ///
    /// # Errors
    /// [`PollError`]. Nothing has changed.
    pub fn beat(&mut self, policies: &str, now: i64) -> Result<Writes, PollError> {
        let id = deployment_id(policies);
        let sent = Sent::read(policies, &id)?;
        let mut writes = Writes::new();
        self.end_overrides(now, &mut writes);
        self.take_over(&id, Some(&sent), now, &mut writes);
        Ok(writes)
    }

    /// Records that a deployment exists, and takes over its policies where they take effect. Returns `false` if it needs their texts.
    fn take_over(&mut self, id: &str, sent: Option<&Sent>, now: i64, writes: &mut Writes) -> bool {
        let is_new = self.record_poll(id, sent.map(|sent| &sent.texts), now, writes);
        is_new.is_some_and(|is_new| self.seed(id, sent, is_new, now, writes))
    }

    /// Takes over the policies of a deployment where they take effect: see the module. Returns `false` if it needs their texts.
    fn seed(&mut self, id: &str, sent: Option<&Sent>, is_new: bool, now: i64, writes: &mut Writes) -> bool {
        let due = self.due(id, is_new, now);
        if due.is_empty() {
            return true;
        }
        let Some(sent) = sent else { return false };
        let since = self.next_moment(now);
        let mut changed = Vec::new();
        for name in due {
            let entry = self.policies.get(&name);
            let text = sent.texts.get(&name);
            let mut carry = Carry::default();
            let (source, seed) = (Source::Deployment, text.map(|text| hash_of(text)));
            let entry = match (entry, text) {
                (None, None) => continue,
                (Some(entry), None) if entry.is_deleted => Entry { seed, ..entry.clone() },
                (Some(entry), None) => Entry { is_deleted: true, since, source, seed, ..entry.clone() },
                (Some(entry), Some(text)) if entry.current() == Some(text) => Entry { source, seed, ..entry.clone() },
                (entry, Some(text)) => {
                    let Some(policy) = sent.policies.get(&name) else { continue };
                    let policy = Policy::clone(policy);
                    carry = usual_carry(entry, &policy);
                    let policy = succeeding(policy, entry, since, carry);
                    let (text, is_deleted) = (text.clone(), false);
                    Entry { policy: Arc::new(policy), text, is_deleted, since, source, seed }
                }
            };
            changed.push((name, entry, carry));
        }
        let by = format!("{DEPLOYMENT}{id}");
        for (name, entry, carry) in changed {
            self.put(&name, entry, &by, carry, now, writes);
        }
        writes.push(self.moments.row());
        true
    }

    /// The names of policies for which this deployment takes effect, and whose texts differ from the last that a deployment set.
    fn due(&self, id: &str, is_new: bool, now: i64) -> Vec<String> {
        let Some(deployment) = self.deployments.iter().find(|deployment| deployment.id == id) else {
            return Vec::new();
        };
        let is_due = |name: &String| {
            let seed = self.policies.get(name).and_then(|entry| entry.seed.as_ref());
            deployment.policies.get(name) != seed && (is_new || self.is_quiet(name, seed, now))
        };
        let new = deployment.policies.keys().filter(|name| !self.policies.contains_key(*name));
        self.policies.keys().chain(new).filter(|name| is_due(name)).cloned().collect()
    }

    fn changes_since(&self, poll: &Poll<'_>) -> Update {
        let is_whole =
            poll.as_of == 0 || poll.born_at != self.moments.born_at || poll.as_of < self.moments.forgotten_at;
        let news = self.policies.iter().filter(
            |(_, entry)| {
                if is_whole { !entry.is_deleted } else { entry.since > poll.as_of }
            },
        );
        let (as_of, born_at) = (self.moments.latest, self.moments.born_at);
        let page = self.overrides.page(poll, born_at, is_whole, self.moments.forgotten_at);
        let policies = || news.map(|(name, entry)| (name.clone(), entry.versioned())).collect();
        if !page.has_more {
            return Update { as_of, born_at, is_whole, policies: policies(), ..page };
        }
        // A frontend that knows nothing need not wait for the last page to get the policies.
        let is_whole = is_whole && page.overrides_are_first;
        let policies = if is_whole { policies() } else { Vec::new() };
        Update { as_of: poll.as_of, born_at: poll.born_at, is_whole, policies, ..page }
    }

    /// Records a poll from this deployment at `now`. `policies` are the texts of its policies, if sent. `None` if the deployment is unknown
    /// and they are missing; otherwise whether it is new.
    pub(super) fn record_poll(
        &mut self,
        id: &str,
        policies: Option<&SortedMap<String, String>>,
        now: i64,
        writes: &mut Writes,
    ) -> Option<bool> {
        // After the clock stepped back, a future moment would keep all others waiting.
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
        while self.deployments.len() > MAX_DEPLOYMENTS {
            let oldest = (0..).zip(&self.deployments).min_by_key(|(_, other)| other.heard_at);
            let oldest = oldest.filter(|(_, other)| other.is_quiet(now)).map(|(index, _)| index);
            let Some(index) = oldest else { break };
            writes.push((row_name(&self.deployments.remove(index).id), None));
        }
        Some(true)
    }

    /// Whether all deployments with this text for the policy are quiet.
    pub(super) fn is_quiet(&self, policy: &str, hash: Option<&String>, now: i64) -> bool {
        let mut holders = self.deployments.iter().filter(|deployment| deployment.policies.get(policy) == hash);
        holders.all(|deployment| deployment.is_quiet(now))
    }
}

/// The policies that a frontend sent for its deployment.
struct Sent {
    /// As written, by name.
    texts: SortedMap<String, String>,
    policies: Policies,
}

impl Sent {
    fn read(json: &str, id: &str) -> Result<Self, PollError> {
        let policies = Policies::parse(json).map_err(PollError::Policies)?;
        if deployment_id(json) != id {
            return Err(PollError::Mismatch);
        }
        let fields = Json::parse(json).ok().and_then(|json| json.fields().ok());
        let fields = fields.ok_or(PollError::Mismatch)?;
        let texts = fields.iter().map(|(name, text)| (name.clone().into_owned(), text.compact())).collect();
        Ok(Self { texts, policies })
    }
}

/// Why a poll fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollError {
    /// It is not a poll.
    Unreadable,
    /// Its deployment's policies have errors.
    Policies(PolicyErrors),
    /// They do not match the poll's id, which is their hash.
    Mismatch,
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the question of a frontend cannot be read"),
            Self::Policies(errors) => {
                let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
                write!(f, "the policies of a frontend have errors: {}", errors.join("; "))
            }
            Self::Mismatch => f.write_str("the policies of a frontend do not match their hash"),
        }
    }
}

impl std::error::Error for PollError {}
