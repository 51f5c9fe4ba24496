//! A batch over several keys: all of its requests are granted, or none.
//!
//! Two-phase commit after a peek; each step calls all objects in parallel:
//!
//! 1. *Peek.* If one refuses, the batch is refused. Nothing was held, so there is nothing to abort, and no other caller
//!    was refused because of a batch that could not pass.
//! 2. *Hold.* Each object withholds the tokens from other callers. If one refuses or fails, the other holds are
//!    aborted.
//! 3. *Commit.* Each object takes what it held. If one fails, all are undone, including those already committed.
//!
//! An object may know newer versions of the policies than the frontend. Then nothing is done, or it is undone, and the outcome is to retry
//! under the newer ones: [`Outcome::Outdated`].
//!
//! An object whose requested policies refuse nothing does not affect the outcome: if it does not answer, its part is granted. But a batch
//! of only such objects fails if none of them answers. With soft limits alone it can still refuse a banned key.
//!
//! A refusal is final, whatever else fails before or after it. The reply does not wait for aborts. If an abort fails too, an uncommitted
//! hold expires after ten seconds; only a commit that can be neither confirmed nor undone leaves some keys charged and others not.
//!
//! A request to one object takes a single call.

use std::mem;

use crate::limit::Verb;
use crate::policy::Cause;
use crate::protocol::{Action, Decided, Format, ObjectReply, ObjectRequest, RequestId};

/// All calls to the objects of one request. Call [`Batch::next`] until it returns `None`, at the start and after each [`Batch::answered`].
#[derive(Debug)]
pub struct Batch {
    objects: Vec<Object>,
    step: Step,
    /// When the answer is due.
    deadline: i64,
    /// Whether the only object may have applied its request although its answer was lost.
    may_be_done: bool,
    outcome: Option<Outcome>,
}

/// A call to make now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectCall {
    /// The object, by its position in the batch.
    pub object: usize,
    /// The request to it.
    pub request: ObjectRequest,
    /// How to encode the request.
    pub dialect: Dialect,
    /// Whether this is a retry after a transient failure.
    pub is_repeated: bool,
    /// Timeout for the answer; after it the result is a [`Cause::Timeout`].
    pub wait_ms: u64,
}

/// How to encode a request for an object of another version or with other policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The format of the request.
    pub format: Format,
    /// Whether to include the policies' definitions.
    pub has_definitions: bool,
}

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// Whether the runtime calls the failure retryable.
    pub is_retryable: bool,
}

impl Failure {
    /// The failure of a call without an answer in time, or with an error that the runtime calls overloaded, retryable or both.
    #[must_use]
    pub const fn of(is_late: bool, is_overloaded: bool, is_retryable: bool) -> Self {
        let cause = match (is_late, is_overloaded) {
            (true, _) => Cause::Timeout,
            (false, true) => Cause::Overloaded,
            (false, false) => Cause::Failed,
        };
        Self { cause, is_retryable }
    }
}

/// The outcome of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A decision, with the reply of each object. A batch may be refused even if some objects failed.
    Decided(Vec<Result<ObjectReply, Cause>>),
    /// No decision: the frontend's policies are older than the objects'. Nothing was done, except by other shards of a divided budget.
    Outdated {
        /// The latest change known to every frontend that used these policies.
        as_of: i64,
        /// The definitions of the changed policies, one to a line.
        definitions: String,
    },
    /// No decision.
    Failed {
        /// Why, each cause once.
        causes: Vec<Cause>,
        /// The cause to report: [`Cause::Overloaded`] only if nothing was done.
        cause: Cause,
    },
}

/// The deadline of the whole request: well below the ten seconds of a hold, so no commit comes too late.
pub const BATCH_MS: u64 = 5_000;

/// Timeout of one call: enough to wake an object at the other end of the world, and no longer than clients tolerate.
pub const CALL_MS: u64 = 2_000;

#[derive(Debug)]
struct Object {
    /// The request to send in the end; with several objects, a hold.
    request: ObjectRequest,
    dialect: Dialect,
    call: Option<Call>,
    /// The hold it may have, to be committed or aborted.
    hold: Option<u64>,
    /// Its latest reply to the request.
    reply: Option<ObjectReply>,
    failure: Option<Cause>,
    /// Its answer if the frontend's policies were older.
    newer: Option<(i64, String)>,
    /// Whether its part is granted whatever fails.
    is_open: bool,
}

/// A call to make or in flight.
#[derive(Clone, Copy, Debug)]
struct Call {
    step: Step,
    is_in_flight: bool,
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The request itself, to a single object.
    Ask,
    Peek,
    Hold,
    Commit,
    /// Drops a hold, or undoes its commit. Runs beside the other steps, even after the outcome.
    Abort,
}

impl Batch {
    /// Starts at `now` with a request for each object. A single request is sent as is; several must be [`Action::Hold`], each with a unique
    /// id.
    #[must_use]
    pub fn new(requests: Vec<ObjectRequest>, now: i64) -> Self {
        let step = if requests.len() == 1 { Step::Ask } else { Step::Peek };
        let call = Some(Call::new(step));
        let dialect = Dialect { format: Format::NEWEST, has_definitions: false };
        let object = |request| Object {
            request,
            dialect,
            call,
            hold: None,
            reply: None,
            failure: None,
            newer: None,
            is_open: false,
        };
        let objects = requests.into_iter().map(object).collect();
        let deadline = now.saturating_add_unsigned(BATCH_MS);
        Self { objects, step, deadline, may_be_done: false, outcome: None }
    }

    /// A batch without calls, for objects whose answers are known.
    #[must_use]
    pub fn known(replies: Vec<Result<ObjectReply, Cause>>) -> Self {
        let (objects, outcome) = (Vec::new(), Some(Outcome::Decided(replies)));
        Self { objects, step: Step::Peek, deadline: 0, may_be_done: false, outcome }
    }

    /// Of several objects, grants the parts of these whatever fails there: their policies have no limit that could have refused.
    #[must_use]
    pub fn with_open(mut self, is_open: impl IntoIterator<Item = bool>) -> Self {
        for (object, is_open) in self.objects.iter_mut().zip(is_open) {
            object.is_open = is_open;
        }
        self
    }

    /// Sends the definitions of the policies with the first calls.
    #[must_use]
    pub fn with_definitions(mut self) -> Self {
        for object in &mut self.objects {
            object.dialect.has_definitions = true;
        }
        self
    }

    /// The next call to make at `now`, in flight from then on; `None` while there is nothing to do but wait.
    pub fn next(&mut self, now: i64) -> Option<ObjectCall> {
        loop {
            let waiting = |object: &Object| object.call.is_some_and(|call| !call.is_in_flight);
            let index = self.objects.iter().position(waiting)?;
            let object = self.objects.get_mut(index)?;
            let call = object.call.as_mut()?;
            let left_ms = u64::try_from(self.deadline.saturating_sub(now)).unwrap_or(0);
            // An abort is sent even after the deadline.
            let wait_ms = if call.step == Step::Abort { CALL_MS } else { left_ms.min(CALL_MS) };
            if wait_ms > 0 {
                call.is_in_flight = true;
                let (step, is_repeated) = (call.step, call.is_repeated);
                let (dialect, mut request) = (object.dialect, object.request_of(step));
                // The first try may have got a lease whose id was lost.
                if is_repeated && let Some(lease) = &mut request.lease {
                    lease.wanted.fill(0);
                }
                return Some(ObjectCall { object: index, request, dialect, is_repeated, wait_ms });
            }
            // A single object that was not called has done nothing.
            let is_undone = call.step == Step::Ask && !call.is_repeated;
            object.call = None;
            object.failure = Some(if is_undone { Cause::Overloaded } else { Cause::Timeout });
            self.advance();
        }
    }

    /// Records the result of the call in flight to an object.
    pub fn answered(&mut self, object: usize, result: Result<ObjectReply, Failure>) {
        let is_doomed = self.is_doomed();
        let Some(object) = self.objects.get_mut(object) else { return };
        let Some(call) = object.call.take_if(|call| call.is_in_flight) else { return };
        let is_abort = call.step == Step::Abort;
        let is_made_again = match &result {
            Err(failure) => failure.is_worth_a_retry() && !call.is_repeated && (is_abort || !is_doomed),
            Ok(reply) => object.dialect.learns_from(reply),
        };
        if is_made_again {
            let is_repeated = call.is_repeated || result.is_err();
            object.call = Some(Call { is_repeated, ..Call::new(call.step) });
            self.may_be_done |= is_repeated && call.step == Step::Ask;
        } else if is_abort {
            object.hold = None; // a hold that could not be aborted expires
        } else {
            object.record(call.step, result);
        }
        self.advance();
    }

    /// The outcome, as soon as it is known. There may still be calls to make.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether the outcome is known and no call is in flight or to be made.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.outcome.is_some() && self.objects.iter().all(|object| object.call.is_none())
    }

    /// Starts the next step once all objects have answered in this one.
    fn advance(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.is_doomed() {
            // At once, while other calls are in flight: one of them may still refuse, which is final.
            let held = self.objects.iter_mut().filter(|object| object.hold.is_some() && object.call.is_none());
            held.for_each(|object| object.call = Some(Call::new(Step::Abort)));
        }
        let is_asked = |object: &Object| object.call.is_some_and(|call| call.step == self.step);
        if self.objects.iter().any(is_asked) {
            return;
        }
        let is_any_held = self.objects.iter().any(|object| object.hold.is_some() && object.failure.is_none());
        match self.step {
            _ if self.is_doomed() => self.outcome = Some(self.failed_or_refused()),
            Step::Peek => self.begin(Step::Hold),
            Step::Hold if is_any_held => self.begin(Step::Commit),
            // An earlier try committed everywhere, or this one did.
            Step::Ask | Step::Hold | Step::Commit | Step::Abort => self.outcome = Some(self.decided()),
        }
    }

    fn begin(&mut self, step: Step) {
        self.step = step;
        for object in &mut self.objects {
            if object.failure.is_none() && (step != Step::Commit || object.hold.is_some()) {
                object.call = Some(Call::new(step));
            }
        }
    }

    fn is_doomed(&self) -> bool {
        self.objects.iter().any(|object| object.newer.is_some())
            || self.decisive().any(Object::is_refused)
            || self.failures().next().is_some()
    }

    /// The objects that can refuse; a single object always counts.
    fn decisive(&self) -> impl Iterator<Item = &Object> {
        let is_only = self.objects.len() == 1;
        self.objects.iter().filter(move |object| is_only || object.enforces())
    }

    /// Why those of them failed whose part is not granted all the same.
    fn failures(&self) -> impl Iterator<Item = Cause> {
        let is_only = self.objects.len() == 1;
        let counts = move |object: &&Object| is_only || !object.is_open;
        self.decisive().filter(counts).filter_map(|object| object.failure)
    }

    fn decided(&mut self) -> Outcome {
        let replies = self.objects.iter_mut().map(|object| {
            let cause = object.failure.unwrap_or(Cause::Failed); // no answer is a failure
            // What is granted although it failed may not be taken, whatever the peek said.
            let reply = object.reply.take().filter(|_| !object.is_open || object.failure.is_none());
            reply.ok_or(cause)
        });
        Outcome::Decided(replies.collect())
    }

    fn failed_or_refused(&mut self) -> Outcome {
        if self.decisive().any(Object::is_refused) {
            return self.decided();
        }
        // If another object failed, retrying may succeed too, since nothing was committed. A single call whose first try got no answer may
        // have been applied under the older policies.
        let newer = self.objects.iter_mut().filter_map(|object| object.newer.take()).filter(|_| !self.may_be_done);
        let newer: Vec<_> = newer.collect();
        if let Some(as_of) = newer.iter().map(|(as_of, _)| *as_of).min() {
            let definitions: Vec<_> = newer.into_iter().map(|(_, definitions)| definitions).collect();
            return Outcome::Outdated { as_of, definitions: definitions.join("\n") };
        }
        let mut causes = Vec::new();
        for cause in self.failures() {
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
        if causes.is_empty() {
            causes.push(Cause::Failed); // a retry under newer policies is impossible
        }
        // A commit may have been applied, whatever the other objects did.
        let may_be_done = self.may_be_done || self.step == Step::Commit;
        let is_reported = |cause: &Cause| (*cause == Cause::Overloaded) != may_be_done;
        let cause =
            causes.iter().copied().find(is_reported).or_else(|| causes.first().copied().filter(|_| !may_be_done));
        Outcome::Failed { causes, cause: cause.unwrap_or(Cause::Failed) }
    }
}

impl Object {
    fn request_of(&mut self, step: Step) -> ObjectRequest {
        let ObjectRequest { request_id, ref known, has_consequences, .. } = self.request;
        let of_hold = |action: fn(u64) -> Action, request_id| ObjectRequest {
            action: action(self.hold.unwrap_or_default()),
            request_id,
            costs: Vec::new(),
            shadow_costs: Vec::new(),
            known: known.clone(),
            has_consequences,
            lease: None,
        };
        match step {
            Step::Ask => self.request.clone(),
            // Only a request that its client may repeat can have been applied before.
            Step::Peek => ObjectRequest {
                action: Action::Look(Verb::Consume),
                request_id: request_id.filter(RequestId::is_lasting),
                costs: self.request.costs.clone(),
                shadow_costs: self.request.shadow_costs.clone(),
                known: known.clone(),
                has_consequences,
                lease: None,
            },
            Step::Hold => {
                if let Action::Hold(id) = self.request.action {
                    self.hold = Some(id); // it may exist from now on
                }
                self.request.clone()
            }
            Step::Commit => of_hold(Action::Settle, request_id),
            Step::Abort => of_hold(Action::Cancel, None),
        }
    }

    /// Records the result of a call that is not retried, in any step but the abort.
    fn record(&mut self, step: Step, result: Result<ObjectReply, Failure>) {
        let reply = match result {
            Ok(ObjectReply::FormatUnknown { .. } | ObjectReply::PolicyUnknown) => {
                return self.failure = Some(Cause::Failed);
            }
            Ok(ObjectReply::PolicyOutdated { as_of, definitions }) => {
                if step == Step::Hold {
                    self.hold = None; // it holds nothing for this batch
                }
                return self.newer = Some((as_of, definitions));
            }
            Ok(ObjectReply::Decided(decided)) if step != Step::Ask && !self.fits(&decided) => {
                return self.failure = Some(Cause::Failed);
            }
            Ok(reply) => reply,
            Err(failure) => return self.failure = Some(failure.cause),
        };
        let hold = match &reply {
            ObjectReply::Decided(decided) => decided.reservation.map(|hold| hold.id),
            _ => None,
        };
        match (step, &reply) {
            // Held. Its answer to the peek stands, in which nothing is held yet.
            (Step::Hold, _) if hold.is_some() => self.hold = hold,
            // It has no room for a hold, and holds nothing for this batch.
            (Step::Hold, ObjectReply::TooManyReservations { .. }) => {
                (self.hold, self.failure) = (None, Some(Cause::Overloaded));
            }
            // Refused, or already committed by an earlier try.
            (Step::Hold, _) => (self.hold, self.reply) = (None, Some(reply)),
            // The hold expired, or the object lost it.
            (Step::Commit, ObjectReply::NoReservation) => (self.hold, self.failure) = (None, Some(Cause::Failed)),
            _ => self.reply = Some(reply),
        }
        if !self.enforces() && step != Step::Ask && self.is_refused() {
            (self.reply, self.failure) = (None, Some(Cause::Overloaded));
        }
    }

    /// Whether any policy in its request enforces a limit.
    fn enforces(&self) -> bool {
        self.request.costs.iter().any(|costs| !costs.is_empty())
    }

    /// Whether a decision covers every limit of the request: one that covers none is not a refusal.
    fn fits(&self, decided: &Decided) -> bool {
        decided.limits.len() == self.request.costs.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether it refused in any way.
    fn is_refused(&self) -> bool {
        match &self.reply {
            None => false,
            Some(ObjectReply::Decided(decided)) => !decided.decision().is_allow(),
            Some(_) => true,
        }
    }
}

impl Call {
    const fn new(step: Step) -> Self {
        Self { step, is_in_flight: false, is_repeated: false }
    }
}

impl Dialect {
    /// Whether the object did nothing, and will understand the call in another encoding.
    fn learns_from(&mut self, reply: &ObjectReply) -> bool {
        match *reply {
            ObjectReply::FormatUnknown { newest } => match Format::from_number(newest) {
                Some(older) if older < self.format => {
                    self.format = older;
                    true
                }
                _ => false,
            },
            ObjectReply::PolicyUnknown => !mem::replace(&mut self.has_definitions, true),
            _ => false,
        }
    }
}

impl Failure {
    /// An overloaded object is not called again.
    fn is_worth_a_retry(self) -> bool {
        self.is_retryable && self.cause != Cause::Overloaded
    }
}
