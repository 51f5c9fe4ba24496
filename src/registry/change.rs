//! An operator's change to a policy, and how the changed policy replaces the old one.

use std::sync::Arc;

use super::entry::{Entry, has_shards, succeeding, usual_carry};
use super::log::Act;
use super::names::POLICY;
use super::{Registry, Writes};
use crate::json::Json;
use crate::limit::Carry;
use crate::policy::{Policy, PolicyError, describe_change};
use crate::protocol::{ChangeError, Changed, Condition, PolicyChange, Source};

/// Maximum policies, including those that operators add: each isolate keeps them all.
pub const MAX_POLICIES: usize = 500;

/// Maximum length of a policy's text, in bytes: twice that of one with eight limits and every field.
pub const MAX_POLICY_LEN: usize = 4_096;

impl Registry {
    /// Changes a policy at `now`, or returns what would change. A change to the same text changes nothing, unless it resets every bucket.
    ///
    /// # Errors
    /// [`ChangeError`]. Nothing has changed.
    pub fn change(&mut self, change: &PolicyChange<'_>, now: i64) -> Result<(Changed, Writes), ChangeError> {
        let before = self.policies.get(change.name);
        let current = before.filter(|entry| !entry.is_deleted);
        let since = self.next_moment(now);
        let mut carry = Carry::default();
        let entry = match (before, change.text) {
            (Some(entry), None) if current.is_some() => {
                Entry { is_deleted: true, since, source: Source::Admin, ..entry.clone() }
            }
            (_, None) => return Err(ChangeError::Unknown),
            (_, Some(text)) if text.len() > MAX_POLICY_LEN => return Err(ChangeError::TooLong { max: MAX_POLICY_LEN }),
            (_, Some(text)) => {
                let policy = Policy::parse(change.name, text).map_err(ChangeError::Invalid)?;
                carry = checked_carry(before, &policy, change.carry)?;
                let policy = Arc::new(succeeding(policy, before, since, carry));
                let text = Json::parse(text).map(Json::compact).unwrap_or_default();
                if policy.registry().is_fixed && current.is_none_or(|entry| entry.text != text) {
                    return Err(ChangeError::SetsFixed);
                }
                let seed = before.and_then(|entry| entry.seed.clone());
                Entry { policy, text, is_deleted: false, since, source: Source::Admin, seed }
            }
        };
        let version = current.map(|entry| entry.since);
        let holds = match &change.condition {
            Condition::Absent => version.is_none(),
            Condition::Present => version.is_some(),
            Condition::Version(versions) => version.is_some_and(|version| versions.contains(&version)),
        };
        if !holds {
            return Err(ChangeError::Version(version));
        }
        let is_same = current.is_some_and(|current| current.current() == entry.current());
        if is_same && carry != Carry::Reset {
            let changes = vec!["nothing: the policy is the same".to_owned()];
            let standing = current.and_then(Entry::standing);
            return Ok((Changed { changes, standing, is_new: false }, Writes::new()));
        }
        if current.is_some_and(|current| current.policy.registry().is_fixed) {
            return Err(ChangeError::Fixed);
        }
        if current.is_none() && self.policies().count() >= MAX_POLICIES {
            return Err(ChangeError::TooMany { max: MAX_POLICIES });
        }
        let [old, new] = [current, Some(&entry)].map(|entry| entry.filter(|entry| !entry.is_deleted));
        let [old, new] = [old, new].map(|entry| entry.map(|entry| &*entry.policy));
        let deleted = before.filter(|entry| entry.is_deleted).map(|entry| &*entry.policy);
        let changes = describe_change(old, new, deleted, carry);
        let result = Changed { changes, standing: entry.standing(), is_new: current.is_none() };
        let mut writes = Writes::new();
        if !change.is_dry_run {
            self.put(change.name, entry, change.by, carry, now, &mut writes);
            writes.push(self.moments.row());
        }
        Ok((result, writes))
    }

    /// Replaces an entry, and records the act if it changes anything for a key. The caller writes the moments.
    pub(super) fn put(&mut self, name: &str, entry: Entry, by: &str, carry: Carry, at: i64, writes: &mut Writes) {
        let before = self.policies.get(name).and_then(Entry::current).map(str::to_owned);
        let (before, after) = (before.as_deref(), entry.current());
        let act = Act { of: "policy", by, policy: name, key: None, before, after, carry: Some(carry) };
        if act.before != act.after || carry == Carry::Reset {
            self.record(&act, at, writes);
        }
        self.moments.latest = self.moments.latest.max(entry.since);
        if self.moments.born_at == 0 {
            self.moments.born_at = self.moments.latest;
        }
        writes.push((format!("{POLICY}{name}"), Some(entry.row())));
        self.policies.insert(name.to_owned(), entry);
        self.forget_deleted(writes);
    }

    /// Forgets the policies deleted first, if there are too many. Those that a deployment has only after all others: it would create them
    /// again.
    fn forget_deleted(&mut self, writes: &mut Writes) {
        let deleted = |registry: &Self| registry.policies.values().filter(|entry| entry.is_deleted).count();
        while deleted(self) > MAX_POLICIES {
            let oldest = self
                .policies
                .iter()
                .filter(|(_, entry)| entry.is_deleted)
                .min_by_key(|(_, entry)| (entry.seed.is_some(), entry.since));
            let Some((name, since)) = oldest.map(|(name, entry)| (name.clone(), entry.since)) else { return };
            self.policies.remove(&name);
            self.moments.forgotten_at = self.moments.forgotten_at.max(since);
            writes.push((format!("{POLICY}{name}"), None));
        }
    }
}

fn checked_carry(before: Option<&Entry>, after: &Policy, carry: Option<Carry>) -> Result<Carry, ChangeError> {
    if has_shards(before, after) && matches!(carry, Some(Carry::Proportional | Carry::Additive)) {
        let problem = "cannot be carried over like this: with shards, `carry` must be as_is or reset".to_owned();
        return Err(ChangeError::Invalid(PolicyError::of(after.name(), "shards", problem).into()));
    }
    Ok(carry.unwrap_or_else(|| usual_carry(before, after)))
}
