//! The audit log: numbered acts. Policy changes have room of their own, so that the thousands of acts on keys cannot push them out. When
//! either is full, the actor with the most lines loses its oldest one: so others' acts stay, even if one token acts endlessly. Repeated
//! resets of one key by one actor share a line, as do repeated acts that leave the key in the same state: a shared line hides nothing.

use serde_json::value::RawValue;

use super::entry::raw;
use super::log::{Act, KEPT, Latest, actor, row_name};
use super::{Registry, Writes};
use crate::limit::Carry;
use crate::protocol::{AuditLine, KeyAct};
use crate::sorted::sort_by;

/// Maximum policy changes kept. Each has the policy before and after, at most 8 KB; usually 500 bytes.
pub const MAX_POLICY_ACTS: usize = 1_000;

/// Maximum acts on keys and overrides kept: usually 300 bytes each.
pub const MAX_KEY_ACTS: usize = 1_000;

impl Registry {
    /// The names of the latest acts' rows, newest first: at most `limit`, with numbers below `before`; only acts `on_keys`, or all. A row
    /// is the JSON of an [`AuditLine`].
    #[must_use]
    pub fn audit_rows(&self, before: Option<u64>, limit: usize, on_keys: bool) -> Vec<String> {
        let policies = self.log.policies.numbers().filter(|_| !on_keys);
        let mut numbers: Vec<_> = policies.chain(self.log.keys.numbers()).collect();
        numbers.retain(|&number| before.is_none_or(|before| number < before));
        sort_by(&mut numbers, |a, b| b.cmp(a));
        numbers.into_iter().take(limit).map(row_name).collect()
    }

    /// Adds a line about an act at `at`.
    pub(super) fn record(&mut self, act: &Act<'_>, at: i64, writes: &mut Writes) {
        let what = match (act.before, act.after) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "replaced",
        };
        let carry =
            act.carry.filter(|_| act.of == "override" || act.before.is_some() && act.after.is_some()).map(Carry::word);
        let line = AuditLine {
            number: 0,
            at,
            by: act.by,
            act: &format!("{}.{what}", act.of),
            policy: act.policy,
            key: act.key,
            carry,
            before: act.before.and_then(raw),
            after: act.after.and_then(raw),
            replayed: false,
            count: None,
            first_at: None,
        };
        self.append(&line, writes);
    }

    /// Records an operator's act on a key at `now`.
    pub fn record_key_act(&mut self, act: &KeyAct, now: i64) -> Writes {
        let mut writes = Writes::new();
        let line = AuditLine {
            number: 0,
            at: now,
            by: &act.by,
            act: &act.act,
            policy: &act.policy,
            key: Some(&act.key),
            carry: None,
            before: act.before.as_deref().and_then(raw),
            after: act.after.as_deref().and_then(raw),
            replayed: act.is_replayed,
            count: None,
            first_at: None,
        };
        self.append(&line, &mut writes);
        writes.push(self.moments.row());
        writes
    }

    /// Writes the line under the next number, merged with one that it repeats; the actor with the most lines makes room.
    fn append(&mut self, line: &AuditLine<'_>, writes: &mut Writes) {
        let number = self.moments.next_audit;
        self.moments.next_audit = number.saturating_add(1);
        let actor = actor(line.by);
        let is_on_policy = line.act.starts_with("policy.");
        let repeated = self.log.latest.remove(actor).filter(|latest| !is_on_policy && latest.is_repeated_by(line));
        // Its line may have been dropped to make room.
        let is_kept = |latest: &Latest| self.log.keys.numbers().any(|number| number == latest.number);
        let repeated = repeated.filter(is_kept);
        let (kept, max) =
            if is_on_policy { (&mut self.log.policies, MAX_POLICY_ACTS) } else { (&mut self.log.keys, MAX_KEY_ACTS) };
        let mut forgotten = None;
        if let Some(latest) = &repeated {
            kept.remove(actor, latest.number);
            forgotten = Some(latest.number);
        } else if kept.numbers().count() >= max {
            forgotten = kept.forget_one();
        }
        kept.0.change(actor.to_owned(), |numbers| numbers.push_back(number));
        writes.extend(forgotten.map(|number| (row_name(number), None)));
        let owned = |value: Option<&RawValue>| value.map(|value| value.get().to_owned());
        let latest = Latest {
            number,
            act: line.act.to_owned(),
            policy: line.policy.to_owned(),
            key: line.key.map(str::to_owned),
            is_replayed: line.replayed,
            first_at: repeated.as_ref().map_or(line.at, |first| first.first_at),
            count: repeated.as_ref().map_or(1, |first| first.count.saturating_add(1)),
            before: repeated.map_or_else(|| owned(line.before), |first| first.before),
            after: owned(line.after),
        };
        let is_joined = latest.count > 1;
        let line = AuditLine {
            number,
            before: latest.before.as_deref().and_then(raw),
            count: is_joined.then_some(latest.count),
            first_at: is_joined.then_some(latest.first_at),
            ..line.clone()
        };
        writes.push((row_name(number), serde_json::to_string(&line).ok()));
        if !is_on_policy {
            self.log.latest.insert(actor.to_owned(), latest);
        }
        writes.retain(|(name, _)| name != KEPT);
        writes.push(self.log.row());
    }
}
