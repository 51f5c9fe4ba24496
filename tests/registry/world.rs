//! Storage, a registry in front of it, and a clock that the tests move.

use std::collections::BTreeMap;

use tollgate::edge::PolicySnapshot;
use tollgate::key_hash::KeyHasher;
use tollgate::limit::Carry;
use tollgate::policy::Policies;
use tollgate::protocol::{ChangeError, Changed, Condition, PolicyChange, Poll};
use tollgate::registry::{AUDIT, Registry, Writes};

pub(crate) const START: i64 = 1_700_000_000_000;

pub(crate) struct World {
    pub(crate) registry: Registry,
    pub(crate) storage: BTreeMap<String, String>,
    pub(crate) now: i64,
    pub(crate) rows_written: usize,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { registry: Registry::default(), storage: BTreeMap::new(), now: START, rows_written: 0 }
    }

    pub(crate) fn write(&mut self, writes: Writes) {
        self.rows_written += writes.len();
        for (name, row) in writes {
            match row {
                Some(row) => _ = self.storage.insert(name, row),
                None => _ = self.storage.remove(&name),
            }
        }
    }

    /// The process ends, and a new one reads the rows.
    pub(crate) fn crash(&mut self) {
        let rows = self.storage.iter().filter(|(name, _)| !name.starts_with(AUDIT));
        self.registry = Registry::new(KeyHasher::default(), rows.map(|(name, row)| (&**name, &**row)));
    }

    pub(crate) fn lose_storage(&mut self) {
        self.storage.clear();
        self.crash();
    }

    /// A frontend polls, and again if it should send its policies.
    pub(crate) fn refresh(&mut self, frontend: &mut PolicySnapshot) {
        let mut question = frontend.poll(self.now);
        while let Some(text) = question {
            let (update, writes) = self.registry.poll(&Poll::from_text(&text).unwrap(), self.now).unwrap();
            self.write(writes);
            question = frontend.update(&update.to_text()).unwrap();
        }
    }

    pub(crate) fn change(
        &mut self,
        name: &str,
        text: Option<&str>,
        condition: Condition,
        is_dry_run: bool,
    ) -> Result<Changed, ChangeError> {
        let change = PolicyChange { name, text, condition, carry: None, by: "ops", is_dry_run };
        self.make(&change)
    }

    /// The same of a policy that there is, carried over in that way.
    pub(crate) fn change_by(
        &mut self,
        name: &str,
        text: Option<&str>,
        carry: Carry,
        is_dry_run: bool,
    ) -> Result<Changed, ChangeError> {
        self.make(&PolicyChange {
            name,
            text,
            condition: Condition::Present,
            carry: Some(carry),
            by: "ops",
            is_dry_run,
        })
    }

    fn make(&mut self, change: &PolicyChange<'_>) -> Result<Changed, ChangeError> {
        let (changed, writes) = self.registry.change(change, self.now)?;
        self.write(writes);
        Ok(changed)
    }

    /// The policies: name, text and version.
    pub(crate) fn policies(&self) -> Vec<(String, String, i64)> {
        let policies = self.registry.policies();
        policies.map(|standing| (standing.policy.name().to_owned(), standing.text, standing.version)).collect()
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.registry.policy(name).map(|standing| standing.text)
    }

    /// The latest acts, the latest first.
    pub(crate) fn audit(&self, limit: usize) -> Vec<String> {
        self.registry.audit_rows(None, limit, false).iter().map(|name| self.storage[name].clone()).collect()
    }
}

/// A frontend of a deployment with these policies.
pub(crate) fn frontend(policies: &str) -> PolicySnapshot {
    PolicySnapshot::new(policies, &Policies::parse(policies).unwrap())
}
