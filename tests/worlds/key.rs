//! The object of a key on its disk, deployed with policies.

use std::mem;

use tollgate::frontend::{Binding, Environment, KeyService, Variable};

use super::disk::Disk;

/// The variables of a Worker with these policies, as JSON.
pub(crate) struct Deployed<'a>(pub(crate) &'a str);

impl Environment for Deployed<'_> {
    fn variable(&self, name: &str) -> Option<Variable> {
        (name == "POLICIES").then(|| Variable::Json(self.0.to_owned()))
    }

    fn binding(&self, _: &str) -> Binding {
        Binding::Nothing
    }
}

/// The object of a key, and its disk.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) service: KeyService<Disk>,
    pub(crate) disk: Disk,
}

impl Key {
    /// An object of a deployment with these policies that has just woken.
    pub(crate) fn new(policies: &str, disk: Disk, phase: u64) -> Self {
        let id = format!("{phase:016x}");
        let made = KeyService::new(disk.clone(), &id, Some(7 << 32), &Deployed(policies));
        let (service, _) = made.unwrap_or_else(|error| panic!("{error}"));
        Self { service, disk }
    }

    /// The first `count` rows in flight arrive, and the ledger learns of all that have.
    pub(crate) fn arrive(&mut self, count: usize) {
        self.disk.get_mut().arrive(count);
        let arrived = mem::take(&mut self.disk.get_mut().arrived);
        for (row, ledger) in arrived {
            self.service.kept().confirm(&row.name, ledger, row.ticket);
        }
    }
}
