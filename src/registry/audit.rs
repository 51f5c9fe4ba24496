//! The audit log: every act, numbered, the oldest of which are forgotten.

use super::entry::raw;
use super::{Registry, Writes};
use crate::limit::Carry;
use crate::protocol::{AuditLine, KeyAct};

/// So many acts are kept. Each has the policy before and after, at most 8 KB; usually 500 bytes.
pub const MAX_AUDIT: u64 = 1_000;

/// What the names of its rows begin with. They are before all others, so that a list of the others can begin behind them.
pub const AUDIT: &str = "audit:";

/// What was done to a policy.
pub(super) struct Act<'a> {
    /// Of what: `policy` or `override`.
    pub(super) of: &'static str,
    pub(super) by: &'a str,
    pub(super) policy: &'a str,
    /// The id of the override, if it is of one.
    pub(super) key: Option<&'a str>,
    pub(super) before: Option<&'a str>,
    pub(super) after: Option<&'a str>,
    pub(super) carry: Option<Carry>,
}

impl Registry {
    /// The names of the rows of the latest acts, the latest first: at most `limit`, with numbers below `before`. A row is the
    /// JSON of an [`AuditLine`].
    #[must_use]
    pub fn audit_rows(&self, before: Option<u64>, limit: usize) -> Vec<String> {
        let next = self.moments.next_audit;
        let oldest = next.saturating_sub(MAX_AUDIT);
        (oldest..next.min(before.unwrap_or(next))).rev().take(limit).map(row_name).collect()
    }

    /// Adds a line about an act at `at`.
    pub(super) fn record(&mut self, act: &Act<'_>, at: i64, writes: &mut Writes) {
        let what = match (act.before, act.after) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "replaced",
        };
        let carry = act.carry.filter(|_| act.before.is_some() && act.after.is_some()).map(Carry::word);
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
        };
        self.append(&line, writes);
    }

    /// Records at `now` what an operator has done to a key.
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
        };
        self.append(&line, &mut writes);
        writes.push(self.moments.row());
        writes
    }

    /// Writes the line under the next number, and forgets the oldest.
    fn append(&mut self, line: &AuditLine<'_>, writes: &mut Writes) {
        let number = self.moments.next_audit;
        self.moments.next_audit = number.saturating_add(1);
        let line = AuditLine { number, ..line.clone() };
        writes.push((row_name(number), serde_json::to_string(&line).ok()));
        if let Some(forgotten) = number.checked_sub(MAX_AUDIT) {
            writes.push((row_name(forgotten), None));
        }
    }
}

fn row_name(number: u64) -> String {
    format!("{AUDIT}{number:016}")
}
