//! An object's ledger and its disk, over crashes.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use tollgate::ledger::{Background, Kept};
use tollgate::policy::Policy;
use tollgate::protocol::{ObjectReply, ObjectRequest};

use super::disk::{Disk, State};

/// An object's ledger and its disk.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) kept: Kept<Disk>,
    pub(crate) disk: Disk,
    phase: u64,
}

impl Stored {
    pub(crate) fn new(phase: u64) -> Self {
        Self::on(Disk::default(), phase)
    }

    fn on(disk: Disk, phase: u64) -> Self {
        Self { kept: Kept::new(disk.clone(), phase, 7), disk, phase }
    }

    pub(crate) fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> ObjectReply {
        let reply = self.kept.ask(asked, request, now, random).unwrap();
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
        self.disk.get_mut().in_flight.clear();
        *self = Self::on(self.disk.clone(), self.phase);
    }

    /// A new object, in the state of this one after a crash.
    pub(crate) fn restarted(&self) -> Self {
        let state = State { in_flight: Vec::new(), ..self.disk.get().clone() };
        Self::on(Disk(Rc::new(RefCell::new(state))), self.phase)
    }
}
