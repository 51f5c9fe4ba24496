//! One request while it is being answered: which objects to call, what to ask them, and what the answer is.
//!
//! [`Batch`] decides what happens when; this module adds the names of the objects and the HTTP reply. `objects.mjs`
//! makes the calls.

mod requests;
mod told;

use std::cell::Cell;
use std::mem;

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use requests::{batch_of, known_of, names_of, parts, requests_of};
use told::End;

use super::clock::moment;
use super::local_state::OwnState;
use super::settings::Settings;
use super::{clock, metrics, shards};
use crate::api::{Problem, Reply, ResolvedItem, ResolvedRequest};
use crate::edge::{Batch, Failure, Leased, ObjectCall, Outcome, Return, ShardCalls};
use crate::limit::Verb;
use crate::metrics::{CallOutcome, Outcome as BudgetOutcome, Repeat};
use crate::policy::Cause;
use crate::protocol::{Action, Known, LeaseRequest, ObjectReply, ObjectRequest, RequestId};

/// A request that objects decide: one object, or one per key of a batch.
#[wasm_bindgen]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact about the request")]
pub struct Call {
    /// The request, with the policies it began under, even if those change meanwhile. About a budget in several shards, an item for each.
    asked: ResolvedRequest,
    /// Then, the request as it was asked.
    whole: Option<ResolvedRequest>,
    is_batch: bool,
    objects: Vec<Object>,
    calls: Calls,
    source: Source,
    local_state: OwnState,
    /// What it says about leases, and what to say in the background.
    lease: Option<LeaseRequest>,
    renewal: Option<LeaseRequest>,
    /// The lease that came with the answer, and in how many milliseconds to look at it.
    leased: Option<(u64, u64)>,
    known: Option<Known>,
    sends_definitions: bool,
    /// Whether the policies may be out of date.
    is_stale: bool,
    /// Whether notices have the keys as callers write them.
    notices_get_keys: bool,
    began_at: i64,
    /// What became of it, once there is a reply.
    end: Cell<Option<End>>,
}

/// Which calls to make.
enum Calls {
    Batch(Batch),
    Shards(ShardCalls),
}

impl Calls {
    fn next(&mut self, now: i64) -> Option<ObjectCall> {
        match self {
            Self::Batch(batch) => batch.next(now),
            Self::Shards(shards) => shards.next(now),
        }
    }

    fn answered(&mut self, object: usize, result: Result<ObjectReply, Failure>) {
        match self {
            Self::Batch(batch) => batch.answered(object, result),
            Self::Shards(shards) => shards.answered(object, result),
        }
    }

    const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Batch(batch) => batch.outcome(),
            Self::Shards(shards) => shards.outcome(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Batch(batch) => batch.is_over(),
            Self::Shards(shards) => shards.is_over(),
        }
    }
}

/// Where a request is decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Object,
    /// By an earlier refusal.
    Cache,
    Lease,
}

impl Source {
    const fn word(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Cache => "cache",
            Self::Lease => "lease",
        }
    }
}

/// An object, and the indices of its items.
pub(super) struct Object {
    pub(super) name: String,
    pub(super) items: Vec<usize>,
    /// When it was last called.
    called_at: i64,
    /// When it was first called, and when it had last answered, by the clock of decisions.
    pub(super) asked_at: Option<i64>,
    pub(super) answered_at: i64,
    /// Whether that call has failed.
    has_failed: bool,
}

impl Object {
    pub(super) fn new(name: String, item: usize) -> Self {
        Self { name, items: vec![item], called_at: 0, asked_at: None, answered_at: 0, has_failed: false }
    }

    /// What it is asked for.
    pub(super) fn items_of<'a>(&'a self, asked: &'a ResolvedRequest) -> impl Iterator<Item = &'a ResolvedItem> + Clone {
        self.items.iter().filter_map(|&item| asked.items().get(item))
    }
}

#[wasm_bindgen]
impl Call {
    /// How many objects decide.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// The name of the first.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn object(&self) -> Option<String> {
        self.objects.first().map(|object| object.name.clone())
    }

    /// The call to make at `now`, in one crossing: the object's index and name, the names of the policies that it is asked for,
    /// what it is asked, their definitions if it does not have them, and how many milliseconds to wait for its answer.
    /// `undefined` when there is nothing to do but wait. Call it until then, at the start and after each answer.
    pub fn next(&mut self, now: f64) -> Option<Array> {
        let now = moment(now);
        let ObjectCall { object: index, request, dialect, is_repeated, wait_ms } = self.calls.next(now)?;
        let object = self.objects.get_mut(index)?;
        object.called_at = now;
        object.asked_at.get_or_insert_with(clock::now);
        if mem::take(&mut object.has_failed) && is_repeated {
            metrics::count(|counts| counts.repeated(Repeat::Failure));
        }
        let object = &*object;
        let policies = || object.items.iter().filter_map(|&item| Some(&self.asked.items().get(item)?.policy));
        let definitions = dialect.has_definitions.then(|| {
            let definitions: Vec<_> = policies().map(|policy| policy.definition()).collect();
            definitions.join("\n")
        });
        let names = names_of(policies());
        let request = request.to_text(dialect.format);
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        Some(parts(index, &object.name, &names, &request, definitions, wait_ms as f64))
    }

    /// Records its answer, which came at `now`; returns 0 if it could not be read. If so, and something is left to be called, 1. Else 2 if
    /// there is a reply and nothing more to say of leases: [`Call::newer`], [`Call::renewal`] and [`Call::lease_ms`] have nothing. Else 3.
    pub fn answered(&mut self, index: usize, text: &str, now: f64) -> u32 {
        let reply = ObjectReply::from_text(text);
        let is_readable = reply.is_ok();
        self.count_call(
            index,
            if is_readable { CallOutcome::Answered } else { CallOutcome::Failed(Cause::Failed) },
            now,
        );
        if let Ok((reply, rows)) = &reply {
            metrics::count(|counts| {
                counts.stored(rows.read, rows.written);
                match reply {
                    ObjectReply::PolicyUnknown => counts.repeated(Repeat::PolicyUnknown),
                    ObjectReply::FormatUnknown { .. } => counts.repeated(Repeat::FormatUnknown),
                    _ => {}
                }
            });
        }
        if let Some(object) = self.objects.get_mut(index) {
            object.answered_at = clock::now();
            self.local_state.forget(&self.asked, object);
        }
        let reply = reply.map(|(reply, _)| reply);
        if self.whole.is_some()
            && let (Some(object), Ok(ObjectReply::Decided(decided))) = (self.objects.get(index), &reply)
        {
            shards::remember(&self.asked, object, decided, &self.local_state);
        }
        if let Some(lease) = &self.lease
            && let (Some(object), Some(item)) = (self.objects.get(index), self.asked.items().first())
        {
            match &reply {
                Ok(ObjectReply::Decided(decided)) => {
                    self.leased = self.local_state.leased(object, &item.policy, lease, decided);
                }
                _ => self.local_state.failed(object, &item.policy, lease),
            }
        }
        self.calls.answered(index, reply.map_err(|_| Failure { cause: Cause::Failed, is_retryable: false }));
        match (is_readable, self.calls.is_over()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) if self.has_only_reply() => 2,
            (true, true) => 3,
        }
    }

    /// Records that it had not answered at `now`, and why, in the words of [`Cause::of`].
    pub fn failed(&mut self, index: usize, cause: &str, is_retryable: bool, now: f64) {
        let cause = Cause::of(cause);
        self.count_call(index, CallOutcome::Failed(cause), now);
        if let Some(object) = self.objects.get_mut(index) {
            object.has_failed = true;
            self.local_state.forget(&self.asked, object); // it may have done it
            if let (Some(lease), Some(item)) = (&self.lease, self.asked.items().first()) {
                self.local_state.failed(object, &item.policy, lease);
            }
        }
        self.calls.answered(index, Err(Failure { cause, is_retryable }));
    }

    /// Whether [`Call::reply`] can be sent. There may still be holds to abort.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.calls.outcome().is_some()
    }

    /// If the objects know newer versions of the policies: the moment of the latest change that the frontend must know before it
    /// asks again, and the definitions of those policies, one to a line. Nothing was done.
    #[must_use]
    pub fn newer(&self) -> Option<Array> {
        let Some(Outcome::Outdated { as_of, definitions }) = self.calls.outcome() else { return None };
        metrics::count(|counts| counts.repeated(Repeat::PolicyOutdated));
        #[expect(clippy::cast_precision_loss, reason = "below 2⁵³")]
        let as_of = *as_of as f64;
        Some([JsValue::from(as_of), definitions.as_str().into()].iter().collect())
    }

    /// The reply: a text, see [`Reply::to_short_text`].
    #[must_use]
    pub fn reply(&self) -> String {
        self.marked(self.answer())
    }

    /// The same as [`Call::reply`], of a call that is not used any more.
    #[must_use]
    pub fn into_reply(self) -> String {
        self.reply()
    }

    /// The reply when it is unknown what the objects did.
    #[must_use]
    pub fn unanswered(&self) -> String {
        self.marked(self.no_answer())
    }
}

#[wasm_bindgen]
impl Call {
    /// The call to make in the background of this one, about leases.
    #[must_use]
    pub fn renewal(&mut self, now: f64) -> Option<Self> {
        let renewal = self.renewal.take()?;
        self.about_leases(renewal, moment(now))
    }

    /// In how many milliseconds to call [`Call::end_lease`]; `undefined` if no lease came with the answer.
    #[wasm_bindgen(getter)]
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a minute at most")]
    pub fn lease_ms(&self) -> Option<f64> {
        self.leased.map(|(_, ms)| ms as f64)
    }

    /// The call by which to return the lease, if it is idle or over; `undefined` if there is nothing to do, or only later: see
    /// [`Call::lease_ms`].
    #[must_use]
    pub fn end_lease(&mut self, now: f64) -> Option<Self> {
        let (lease, _) = self.leased.take()?;
        let (object, item) = (self.objects.first()?, self.asked.items().first()?);
        match self.local_state.end(object, &item.policy, lease) {
            Return::Send(ended) => self.about_leases(ended, moment(now)),
            Return::Wait(ms) => {
                self.leased = Some((lease, ms));
                None
            }
            Return::Over => None,
        }
    }
}

impl Call {
    /// A call that asks for nothing but what it says about leases.
    fn about_leases(&self, lease: LeaseRequest, now: i64) -> Option<Self> {
        let object = self.objects.first()?;
        let costs = vec![vec![0; self.asked.items().first()?.policy.limits().len()]];
        let request = ObjectRequest {
            action: Action::Look(Verb::Consume),
            request_id: None,
            costs,
            shadow_costs: Vec::new(),
            known: self.known.clone(),
            wants_notices: false,
            lease: Some(lease.clone()),
        };
        let batch = Batch::new(vec![request], now);
        Some(Self {
            asked: self.asked.clone(),
            whole: None,
            is_batch: false,
            objects: vec![Object::new(object.name.clone(), 0)],
            calls: Calls::Batch(if self.sends_definitions { batch.with_definitions() } else { batch }),
            source: Source::Object,
            local_state: self.local_state.clone(),
            lease: Some(lease),
            renewal: None,
            leased: None,
            known: self.known.clone(),
            sends_definitions: self.sends_definitions,
            is_stale: self.is_stale,
            notices_get_keys: false,
            began_at: now,
            end: Cell::new(None),
        })
    }

    /// Begins a request at `now`. `hold_ids` are random: one per object of a batch over several keys, else none.
    /// The policies are those of `settings`.
    pub(super) fn new(
        asked: ResolvedRequest,
        is_batch: bool,
        objects: Vec<Object>,
        request_id: RequestId,
        hold_ids: &[u64],
        now: i64,
        settings: &Settings,
    ) -> Self {
        let (mut lease, mut renewal) = (None, None);
        let (source, batch) = if let Some(leased) = settings.local_state.consume(&asked, &objects, request_id) {
            let Leased { decided, renewal: asks } = leased;
            renewal = asks;
            (Source::Lease, Batch::known(vec![Ok(ObjectReply::Decided(decided))]))
        } else if let Some(replies) = settings.local_state.replies(&asked, &objects, request_id) {
            (Source::Cache, Batch::known(replies))
        } else {
            lease = settings.local_state.ask(&asked, &objects, request_id);
            (Source::Object, batch_of(&asked, &objects, (request_id, lease.clone()), hold_ids, now, settings))
        };
        let known = renewal.as_ref().or(lease.as_ref()).and_then(|_| known_of(&asked, objects.first()?, settings));
        let sends_definitions = settings.sends_definitions;
        let call = Self {
            calls: Calls::Batch(batch),
            asked,
            whole: None,
            is_batch,
            objects,
            source,
            local_state: settings.local_state.clone(),
            lease,
            renewal,
            leased: None,
            known,
            sends_definitions,
            is_stale: settings.is_stale(),
            notices_get_keys: settings.receivers.get_keys,
            began_at: now,
            end: Cell::new(None),
        };
        for object in &call.objects {
            call.local_state.forget(&call.asked, object);
        }
        call
    }

    /// Begins a request about one budget in several shards at `now`: `asked` has an item for each of the objects, in their order.
    /// `random` are 64 random bits.
    pub(super) fn of_shards(
        whole: ResolvedRequest,
        asked: ResolvedRequest,
        objects: Vec<Object>,
        request_id: RequestId,
        random: u64,
        now: i64,
        settings: &Settings,
    ) -> Self {
        for object in &objects {
            settings.local_state.forget(&asked, object);
        }
        let requests = requests_of(&asked, &objects, (request_id, None), &[], settings);
        let calls = shards::calls(&asked, &objects, requests, &settings.local_state, random, now);
        let source = if calls.outcome().is_some() { Source::Cache } else { Source::Object };
        Self {
            calls: Calls::Shards(if settings.sends_definitions { calls.with_definitions() } else { calls }),
            asked,
            whole: Some(whole),
            is_batch: false,
            objects,
            source,
            local_state: settings.local_state.clone(),
            lease: None,
            renewal: None,
            leased: None,
            known: None,
            sends_definitions: settings.sends_definitions,
            is_stale: settings.is_stale(),
            notices_get_keys: settings.receivers.get_keys,
            began_at: now,
            end: Cell::new(None),
        }
    }

    /// Whether it is decided without a call, and nothing is to be done but to reply.
    pub(super) fn needs_only_reply(&self) -> bool {
        self.source != Source::Object && self.has_only_reply()
    }

    /// Whether there is a reply, and nothing more to say of leases.
    fn has_only_reply(&self) -> bool {
        matches!(self.calls.outcome(), Some(Outcome::Decided(_))) && self.renewal.is_none() && self.leased.is_none()
    }

    /// The request as it was asked.
    fn whole(&self) -> &ResolvedRequest {
        self.whole.as_ref().unwrap_or(&self.asked)
    }

    fn answer(&self) -> Reply {
        let replies = match self.calls.outcome() {
            Some(Outcome::Decided(replies)) => replies,
            Some(Outcome::Failed { causes, cause }) => return self.failure(causes, *cause),
            // What is newer may be a ban: this does not fail open.
            Some(Outcome::Outdated { .. }) => return Problem::Unavailable { cause: Cause::Failed }.reply(),
            None => return self.no_answer(),
        };
        let items = self.objects.iter().map(|object| object.items.as_slice());
        let reply = match replies.as_slice() {
            [Ok(reply)] if !self.is_batch => self.whole().reply(reply),
            replies => self.whole().batch_reply(&items.zip(replies.iter().cloned()).collect::<Vec<_>>()),
        };
        match reply {
            Ok(reply) => {
                self.end(End::Decided);
                if self.source != Source::Object {
                    return reply.from_source(self.source.word());
                }
                if self.whole.is_none() {
                    self.local_state.answered(&self.asked, &self.objects, replies); // of shards, what each has answered is
                }
                reply
            }
            Err(Problem::Unavailable { cause }) => self.failure(&[cause], cause),
            Err(problem) => problem.reply(),
        }
    }

    fn no_answer(&self) -> Reply {
        // A batch may have been refused already, which is final: it does not fail open.
        if self.whole.is_none() && self.objects.len() > 1 {
            return self.unavailable(Cause::Failed);
        }
        self.failure(&[Cause::Failed], Cause::Failed)
    }

    /// The text of the reply, marked if the policies may be out of date.
    fn marked(&self, reply: Reply) -> String {
        if self.is_stale { reply.under_stale_policies().to_short_text() } else { reply.to_short_text() }
    }

    fn unavailable(&self, cause: Cause) -> Reply {
        metrics::count(|counts| counts.unavailable(cause));
        self.end(End::Undecided(BudgetOutcome::Unavailable, cause));
        Problem::Unavailable { cause }.reply()
    }

    /// The reply when no decision could be made because of `causes`; it names `cause`.
    fn failure(&self, causes: &[Cause], cause: Cause) -> Reply {
        let mut policies = self.whole().items().iter().map(|item| &item.policy);
        // Only requests that take tokens fail open; other callers must know that theirs failed.
        let would_take = match self.whole().action() {
            Action::Take(verb) => matches!(verb, Verb::Consume | Verb::Borrow { .. } | Verb::ConsumeUpTo),
            _ => false,
        };
        if would_take && policies.all(|policy| causes.iter().all(|&cause| policy.on_error().opens(cause))) {
            metrics::count(|counts| counts.degraded(cause));
            self.end(End::Undecided(BudgetOutcome::Degraded, cause));
            self.whole().degraded_reply(cause)
        } else {
            self.unavailable(cause)
        }
    }
}
