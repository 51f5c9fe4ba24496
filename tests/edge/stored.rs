//! An object's ledger and its disk, over crashes.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use tollgate::frontend::SentRequest;
use tollgate::ledger::Kept;
use tollgate::policy::Policy;
use tollgate::protocol::{Definitions, ObjectReply, ObjectRequest, Rows};

use super::disk::{Disk, State};
use super::key::Key;
use super::pairs::{Mechanism, Trace};

/// An object without policies of its own.
#[derive(Debug)]
pub(crate) struct Stored {
    key: Key,
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
        Self { key: Key::new("{}", disk, phase), phase, trace: Trace::default() }
    }

    pub(crate) const fn kept(&mut self) -> &mut Kept<Disk> {
        self.key.service.kept()
    }

    pub(crate) fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> ObjectReply {
        let reply = self.kept().ask(asked, request, now, random).unwrap();
        self.trace.answered(KEY, asked, request, &reply, now);
        self.arrive(0);
        reply
    }

    /// Answers a request about these policies as it is sent. `known` are the definitions that its isolate knows.
    pub(crate) fn decide(
        &mut self,
        asked: &[Arc<Policy>],
        sent: SentRequest,
        known: &mut Definitions,
        now: i64,
    ) -> (ObjectReply, Rows) {
        let (request, _) = ObjectRequest::from_text(&sent.request).unwrap();
        let text = self.key.service.decide(sent, known, now, || Some(1)).unwrap();
        let answer = ObjectReply::from_text(&text).unwrap();
        self.trace.answered(KEY, asked, &request, &answer.0, now);
        self.arrive(0);
        answer
    }

    /// See [`Key::arrive`].
    pub(crate) fn arrive(&mut self, count: usize) {
        self.key.arrive(count);
    }

    /// The first `arrived` rows in flight arrive, the others are lost, and the object restarts.
    pub(crate) fn crash(&mut self, arrived: usize) {
        self.arrive(arrived);
        let lost = mem::take(&mut self.key.disk.get_mut().in_flight);
        self.trace.restarted(KEY, !lost.is_empty());
        *self = Self { trace: mem::take(&mut self.trace), ..Self::on(self.key.disk.clone(), self.phase) };
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
        let state = State { in_flight: Vec::new(), ..self.key.disk.get().clone() };
        Self::on(Disk(Rc::new(RefCell::new(state))), self.phase)
    }
}
