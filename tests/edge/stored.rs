//! An object's ledger and its disk, over crashes.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use tollgate::ledger::{Background, Kept};
use tollgate::policy::Policy;
use tollgate::protocol::{ObjectReply, ObjectRequest};

use super::disk::{Disk, State};
use super::pairs::{Mechanism, Trace};

/// An object's ledger and its disk.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) kept: Kept<Disk>,
    pub(crate) disk: Disk,
    phase: u64,
    trace: Trace,
}

/// Each object has one key.
const KEY: &str = "k";

impl Stored {
    pub(crate) fn new(phase: u64) -> Self {
        Self::on(Disk::default(), phase)
    }

    fn on(disk: Disk, phase: u64) -> Self {
        Self { kept: Kept::new(disk.clone(), phase, 7), disk, phase, trace: Trace::default() }
    }

    pub(crate) fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> ObjectReply {
        let reply = self.kept.ask(asked, request, now, random).unwrap();
        self.trace.answered(KEY, asked, request, &reply, now);
        self.arrive(0);
        reply
    }

    /// The first `count` rows in flight arrive, and the ledger learns of all that have.
    pub(crate) fn arrive(&mut self, count: usize) {
        self.disk.get_mut().arrive(count);
        let arrived = mem::take(&mut self.disk.get_mut().arrived);
        for (Background { name, ticket, .. }, ledger) in arrived {
            self.kept.confirm(&name, ledger, ticket);
        }
    }

    /// The first `arrived` rows in flight arrive, the others are lost, and the object restarts.
    pub(crate) fn crash(&mut self, arrived: usize) {
        self.arrive(arrived);
        let lost = mem::take(&mut self.disk.get_mut().in_flight);
        self.trace.restarted(KEY, !lost.is_empty());
        *self = Self { trace: mem::take(&mut self.trace), ..Self::on(self.disk.clone(), self.phase) };
    }

    /// Something has happened to a call of it.
    pub(crate) fn happened(&mut self, mechanism: Mechanism) {
        self.trace.happened(KEY, mechanism);
    }

    /// A frontend has answered a request about this policy without it.
    pub(crate) fn answered_from(&mut self, policy: &Policy, source: Option<&str>) {
        self.trace.answered_from(KEY, policy.name(), source);
    }

    /// A new object, in the state of this one after a crash.
    pub(crate) fn restarted(&self) -> Self {
        let state = State { in_flight: Vec::new(), ..self.disk.get().clone() };
        Self::on(Disk(Rc::new(RefCell::new(state))), self.phase)
    }
}
