//! One request while it is being answered: which objects to call, what to send them, and the reply.
//!
//! [`Batch`] and [`ShardCalls`](crate::edge::ShardCalls) decide the order of calls; this module adds the names of the objects, answers from
//! memory and the reply. The caller runs [`Call::next`] at the start and after each answer, makes the calls it returns, and reports the
//! results to [`Call::answered`] and [`Call::failed`].

mod asked;
mod lease_calls;
mod leases;
mod plan;
mod report;
mod requests;
mod sent_request;

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::rc::Rc;

use leases::Leasing;
use plan::{Calls, Plan};
use report::{End, Reports};
use requests::{batch_of, requests_of};

pub use asked::Verification;
pub(super) use asked::{Asked, Purpose, Terms};
pub use report::Point;
pub use sent_request::SentRequest;

use super::event::{Budget, Event};
use super::isolate::Isolate;
use super::memory::Memory;
use super::newer::Newer;
use super::object::Object;
use super::settings::Settings;
use super::{Now, shards};
use crate::access::key_hash_in;
use crate::api::{Notice, Problem, Reply};
use crate::edge::{Batch, Failure, Leased, ObjectCall, Outcome, Receiver};
use crate::metrics::{CallOutcome, DecidedBy, Repeat};
use crate::policy::{Cause, Policy};
use crate::protocol::{KeyAct, ObjectReply, RequestId, Rows};

/// A request decided by objects: one object, or one per key of a batch.
pub struct Call {
    asked: Asked,
    plan: Plan,
    shared: Shared,
    /// The reply, once there is one.
    done: Option<Reply>,
    reports: Reports,
}

/// What all calls of its frontend share.
#[derive(Clone)]
struct Shared {
    memory: Rc<RefCell<Memory>>,
    isolate: Rc<Isolate>,
}

/// All of it but what it shares with its frontend.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, plan, shared: _, done, reports } = self;
        f.debug_tuple("Call").field(&(asked, plan, done, reports)).finish()
    }
}

/// An act to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The act.
    pub act: KeyAct,
    reply: Reply,
}

impl Recording {
    /// The reply, which says whether the act was recorded. If not, it is in the log.
    #[must_use]
    pub fn reply(self, is_recorded: bool) -> Reply {
        let Self { act, reply } = self;
        let mut reply = reply.marked(|marks| marks.recorded = Some(is_recorded));
        if !is_recorded {
            reply.note = Some(format!("an act on a key is recorded only in this log: {}", act.to_text()));
        }
        reply
    }
}

/// The last step of a request.
#[derive(Clone, PartialEq, Eq)]
pub enum LastStep<'a> {
    /// Make the request again: nothing was decided.
    Again(Newer),
    /// Record an act, and send [its reply](Recording::reply).
    Record(Box<Recording>),
    /// Call the captcha's verifier and make the reply from its answer.
    Verify(Verification),
    /// Say whether a call of the platform's own rate limiting binding is allowed.
    Limited(bool),
    /// Send the reply.
    Reply(&'a Reply),
}

/// The work left after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The answer is malformed. Make more calls, if there are any.
    Unreadable,
    /// Make more calls.
    Calls,
    /// Take the [last step](Call::last), and handle reports and leases: [`Call::points`], [`Call::notices`], [`Call::renewal`] and
    /// [`Call::lease_ms`].
    ReplyAndMore,
    /// Reply, nothing else.
    Reply,
}

impl Call {
    /// Starts a request, which may use leases unless it is a repetition. `hold_ids` are random: one per object of a batch over several keys,
    /// otherwise empty.
    pub(super) fn new(
        asked: Asked,
        objects: Vec<Object>,
        (request_id, is_repeated): (RequestId, bool),
        hold_ids: &[u64],
        (settings, isolate): (&Settings, &Rc<Isolate>),
        now: Now,
    ) -> Self {
        let mut memory = settings.memory.borrow_mut();
        let mut leasing = Leasing::default();
        let whole = &asked.whole;
        // Leases belong to one version of a policy: using another for a single request would drop them.
        let may_lease = !is_repeated;
        let leased = may_lease.then(|| memory.consume(whole, &objects, request_id, now.at)).flatten();
        let (decided_by, batch) = if let Some(leased) = leased {
            let Leased { decided, renewal } = leased;
            leasing.renewal = renewal;
            (DecidedBy::Lease, Batch::known(vec![Ok(ObjectReply::Decided(decided))]))
        } else if let Some(replies) = memory.replies(whole, &objects, request_id, now.at) {
            (DecidedBy::Cache, Batch::known(replies))
        } else {
            leasing.request = may_lease.then(|| memory.ask(whole, &objects, request_id, now.at)).flatten();
            let of_request = (request_id, leasing.request.clone());
            (DecidedBy::Object, batch_of(&asked, &objects, of_request, hold_ids, now))
        };
        for object in &objects {
            memory.forget(whole, object, now.at);
        }
        drop(memory);
        let plan = Plan { objects, calls: Calls::Batch(batch), leasing, decided_by, began_at: now.waiting };
        Self::of_plan(asked, plan, (settings, isolate))
    }

    /// Starts a request about one budget in several shards: its parts have an item for each object, in the same order.
    pub(super) fn of_shards(
        asked: Asked,
        objects: Vec<Object>,
        request_id: RequestId,
        (settings, isolate): (&Settings, &Rc<Isolate>),
        now: Now,
    ) -> Self {
        let mut memory = settings.memory.borrow_mut();
        for object in &objects {
            memory.forget(asked.parts(), object, now.at);
        }
        let requests = requests_of(&asked, &objects, (request_id, None), &[]);
        let calls = shards::calls(
            asked.parts(),
            &objects,
            requests,
            (isolate, &mut memory),
            (shards::bits_of(&request_id), asked.terms.tries > 0),
            now,
        );
        drop(memory);
        let decided_by = if calls.outcome().is_some() { DecidedBy::Cache } else { DecidedBy::Object };
        let calls = Calls::Shards(if asked.terms.sends_definitions { calls.with_definitions() } else { calls });
        let plan = Plan { objects, calls, leasing: Leasing::default(), decided_by, began_at: now.waiting };
        Self::of_plan(asked, plan, (settings, isolate))
    }

    fn of_plan(asked: Asked, plan: Plan, (settings, isolate): (&Settings, &Rc<Isolate>)) -> Self {
        let shared = Shared { memory: Rc::clone(&settings.memory), isolate: Rc::clone(isolate) };
        Self { asked, plan, shared, done: None, reports: Reports::default() }
    }

    /// The number of deciding objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.plan.objects.len()
    }

    /// The object's name.
    #[must_use]
    pub fn object(&self, index: usize) -> &str {
        self.plan.objects.get(index).map_or("", |object| &object.name)
    }

    /// The policies in the object's request.
    pub fn policies_of(&self, index: usize) -> impl Iterator<Item = &Policy> {
        let object = self.plan.objects.get(index);
        object.into_iter().flat_map(|object| object.items_of(self.asked.parts())).map(|item| &*item.policy)
    }

    /// Whether it must finish even if the client disconnects, so that an operator's act is recorded.
    #[must_use]
    pub const fn must_finish(&self) -> bool {
        matches!(self.asked.purpose, Purpose::Act { .. })
    }

    /// The next call to make; `None` while there is nothing to do but wait.
    pub fn next(&mut self, now: Now) -> Option<ObjectCall> {
        let call = self.plan.calls.next(now.waiting)?;
        let object = self.plan.objects.get_mut(call.object)?;
        object.called_at = now.waiting;
        object.asked_at.get_or_insert(now.at);
        if mem::take(&mut object.has_failed) && call.is_repeated {
            self.shared.isolate.count(|counts| counts.repeated(Repeat::Failure));
        }
        Some(call)
    }

    /// Takes an object's answer, with the rows that the object read and wrote; `None` if the answer is malformed.
    pub fn answered(&mut self, index: usize, answer: Option<(ObjectReply, Rows)>, now: Now) -> Left {
        let is_readable = answer.is_some();
        let outcome = if is_readable { CallOutcome::Answered } else { CallOutcome::Failed(Cause::Failed) };
        self.count_call(index, outcome, now);
        if let Some((reply, rows)) = &answer {
            self.shared.isolate.count(|counts| {
                counts.stored(rows.read, rows.written);
                match reply {
                    ObjectReply::PolicyUnknown => counts.repeated(Repeat::PolicyUnknown),
                    ObjectReply::FormatUnknown { .. } => counts.repeated(Repeat::FormatUnknown),
                    _ => {}
                }
            });
        }
        let reply = answer.map(|(reply, _)| reply);
        let parts = self.asked.parts();
        if let Some(object) = self.plan.objects.get_mut(index) {
            object.answered_at = now.at;
            let memory = &mut *self.shared.memory.borrow_mut();
            memory.forget(parts, object, now.at);
            if let (Some(_), Some(ObjectReply::Decided(decided))) = (&self.asked.of_shards, &reply) {
                shards::remember(parts, object, decided, (&self.shared.isolate, memory));
            }
            self.plan.leasing.answered(parts, object, reply.as_ref(), memory, now.at);
        }
        let is_unreadable = Failure { cause: Cause::Failed, is_retryable: false };
        self.plan.calls.answered(index, reply.ok_or(is_unreadable));
        if !is_readable {
            Left::Unreadable
        } else if !self.plan.calls.is_over() {
            Left::Calls
        } else if self.only_reply(now).is_some() {
            Left::Reply
        } else {
            Left::ReplyAndMore
        }
    }

    /// Records that a call to an object failed, and why.
    pub fn failed(&mut self, index: usize, failure: Failure, now: Now) {
        self.count_call(index, CallOutcome::Failed(failure.cause), now);
        let parts = self.asked.parts();
        if let Some(object) = self.plan.objects.get_mut(index) {
            object.has_failed = true;
            let memory = &mut *self.shared.memory.borrow_mut();
            memory.forget(parts, object, now.at); // it may have been applied
            self.plan.leasing.answered(parts, object, None, memory, now.at);
        }
        self.plan.calls.answered(index, Err(failure));
    }

    /// Whether [`Call::reply`] can be sent. Some holds may still have to be aborted.
    #[must_use]
    pub const fn is_decided(&self) -> bool {
        self.plan.calls.outcome().is_some()
    }

    /// The reply if nothing else is left to send: no retry, data point, notice, act, captcha or lease.
    pub fn only_reply(&mut self, now: Now) -> Option<&Reply> {
        let has_reply = self.done.is_some() || matches!(self.plan.calls.outcome(), Some(Outcome::Decided(_)));
        if !has_reply || !matches!(self.asked.purpose, Purpose::Answer) || !self.plan.leasing.is_over() {
            return None;
        }
        self.reply(now);
        self.done.as_ref().filter(|_| self.reports.is_empty())
    }

    /// The last step, once it is [decided](Call::is_decided) or [lost](Call::lose).
    pub fn last(&mut self, now: Now) -> LastStep<'_> {
        if let Some(newer) = self.newer() {
            return LastStep::Again(newer);
        }
        let status = self.reply(now).status;
        match &self.asked.purpose {
            Purpose::Act { by, has_registry } => match self.recording(by) {
                Some(recording) if *has_registry => return LastStep::Record(Box::new(recording)),
                Some(recording) => self.done = Some(recording.reply(false)),
                None => {}
            },
            Purpose::Session(verification) if status == 200 => return LastStep::Verify(verification.clone()),
            Purpose::Limit => return LastStep::Limited(status == 200),
            Purpose::Session(_) | Purpose::Answer | Purpose::Leases => {}
        }
        LastStep::Reply(self.reply(now))
    }

    /// What to retry with, if objects know newer policies and a try is left.
    fn newer(&self) -> Option<Newer> {
        let newer = self.next_try()?;
        self.shared.isolate.count(|counts| counts.repeated(Repeat::PolicyOutdated));
        Some(newer)
    }

    fn next_try(&self) -> Option<Newer> {
        let Some(Outcome::Outdated { as_of, definitions }) = self.plan.calls.outcome() else { return None };
        Newer::after((self.asked.terms.id, self.asked.terms.tries), *as_of, definitions)
    }

    /// The act of the operator with that name to record, if it was done.
    fn recording(&self, by: &str) -> Option<Recording> {
        let Some(Outcome::Decided(replies)) = self.plan.calls.outcome() else { return None };
        let [Ok(reply)] = replies.as_slice() else { return None };
        let act = self.asked.whole.key_act(reply, by, key_hash_in(self.object(0)))?;
        Some(Recording { act, reply: self.done.clone()? })
    }

    /// The reply.
    pub fn reply(&mut self, now: Now) -> &Reply {
        if self.done.is_none() {
            let reply = self.answer(now);
            self.done = Some(self.marked(reply));
        }
        self.done.get_or_insert_with(|| Problem::Unavailable { cause: Cause::Failed }.reply())
    }

    /// Ends the request without knowing its outcome: an object may have granted it.
    pub(super) fn lose(&mut self, now: Now) {
        let reply = self.no_answer(now);
        self.done = Some(self.marked(reply));
    }

    /// The data points to write, once there is a reply: one for each budget of a request that takes tokens.
    #[must_use]
    pub fn points(&mut self) -> Vec<Point> {
        mem::take(&mut self.reports.points)
    }

    /// The notices to send, each with its receiver, once there is a reply.
    #[must_use]
    pub fn notices(&mut self) -> Vec<(Receiver, Notice)> {
        let receivers = self.asked.terms.receivers;
        let notices = mem::take(&mut self.reports.notices).into_iter();
        notices.flat_map(|notice| receivers.all().map(move |receiver| (receiver, notice.clone()))).collect()
    }

    /// Marks the reply if the policies may be stale.
    fn marked(&self, reply: Reply) -> Reply {
        reply.marked(|marks| marks.stale_policies = self.asked.terms.is_stale)
    }

    fn answer(&mut self, now: Now) -> Reply {
        let replies = match self.plan.calls.outcome() {
            Some(Outcome::Decided(replies)) => replies,
            Some(Outcome::Failed { causes, cause }) => {
                let (causes, cause) = (causes.clone(), *cause);
                return self.failure(&causes, cause, now);
            }
            // Not an end: it will be tried again.
            Some(Outcome::Outdated { .. }) if self.next_try().is_some() => {
                return Problem::Unavailable { cause: Cause::Failed }.reply();
            }
            // The newer policies may contain a ban: this does not fail open.
            Some(Outcome::Outdated { .. }) => return self.unavailable(Cause::Failed, now),
            None => return self.no_answer(now),
        };
        let whole = &self.asked.whole;
        let items = self.plan.objects.iter().map(|object| object.items.as_slice());
        let reply = match replies.as_slice() {
            [Ok(reply)] if !whole.is_batch() => whole.reply(reply),
            replies => whole.batch_reply(&items.zip(replies.iter().cloned()).collect::<Vec<_>>()),
        };
        match reply {
            Ok(reply) => {
                let source = self.plan.decided_by;
                if source == DecidedBy::Object && self.asked.of_shards.is_none() {
                    self.shared.memory.borrow_mut().answered(whole, &self.plan.objects, replies); // each shard's answer was recorded already
                }
                self.end(End::Decided, now);
                let is_marked = source != DecidedBy::Object;
                reply.marked(|marks| marks.source = is_marked.then(|| source.word()))
            }
            Err(Problem::Unavailable { cause }) => self.failure(&[cause], cause, now),
            Err(problem) => {
                let (action, is_inline) = (whole.action(), whole.has_inline());
                if let Some(budget) = Budget::too_large(action, &problem, is_inline, now.at) {
                    self.shared.isolate.on(Event::Budget(&budget));
                }
                problem.reply()
            }
        }
    }

    fn no_answer(&mut self, now: Now) -> Reply {
        // A batch may already have been refused, which is final: it does not fail open.
        if self.asked.of_shards.is_none() && self.plan.objects.len() > 1 {
            return self.unavailable(Cause::Failed, now);
        }
        self.failure(&[Cause::Failed], Cause::Failed, now)
    }

    fn unavailable(&mut self, cause: Cause, now: Now) -> Reply {
        self.end(End::Unavailable(cause), now);
        Problem::Unavailable { cause }.reply()
    }

    /// The reply when `causes` prevented a decision; it names `cause`.
    fn failure(&mut self, causes: &[Cause], cause: Cause, now: Now) -> Reply {
        let Some(reply) = self.asked.whole.degraded_reply(causes, cause) else {
            return self.unavailable(cause, now);
        };
        self.end(End::Degraded(cause), now);
        reply
    }

    /// Emits the events of its end.
    fn end(&mut self, end: End, now: Now) {
        let Self { asked, plan, shared: Shared { isolate, .. }, reports, .. } = self;
        let took_ms = length_ms(plan.began_at, now.waiting);
        report::events(asked, plan, end, now, &mut |event| {
            isolate.on(event);
            reports.on(event, &asked.terms, took_ms);
        });
    }

    /// Counts a finished call.
    fn count_call(&self, index: usize, outcome: CallOutcome, now: Now) {
        if let Some(object) = self.plan.objects.get(index) {
            self.shared.isolate.count(|counts| counts.called(outcome, length_ms(object.called_at, now.waiting)));
        }
    }
}

/// The time between two moments; 0 if the clock stepped back.
fn length_ms(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}
