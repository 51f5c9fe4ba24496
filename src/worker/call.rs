//! A [`Call`](frontend::Call) in the form that `objects.mjs` uses.

use std::cell::RefCell;

use js_sys::{Array, JsString};
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use super::isolate::now;
use super::step;
#[cfg(doc)]
use super::step::Step;
use crate::edge::Failure;
use crate::frontend::{self, Left, SentRequest};
use crate::policy::Cause;
use crate::protocol::ObjectReply;

/// A request decided by objects: one object, or one per key of a batch.
#[wasm_bindgen]
pub struct Call(frontend::Call);

impl From<frontend::Call> for Call {
    fn from(call: frontend::Call) -> Self {
        Self(call)
    }
}

/// The work left after an answer.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub enum Answered {
    /// The answer is malformed.
    Unreadable,
    /// Make more calls.
    Calls,
    /// Reply, and more: see [`Call::end`], [`Call::points`], [`Call::notices`], [`Call::renewal`] and [`Call::lease_ms`].
    ReplyAndMore,
    /// Reply, nothing else.
    Reply,
}

#[wasm_bindgen]
impl Call {
    /// The number of deciding objects.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Whether it must finish even if the client disconnects.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn must_finish(&self) -> bool {
        self.0.must_finish()
    }

    /// The next call, in one crossing: the object's index and name, the names of its policies, the request, their definitions if it lacks
    /// them, and the timeout in milliseconds. `undefined` while there is nothing to do but wait. Call it until then, at the start and after
    /// each answer.
    pub fn next(&mut self) -> Option<Array> {
        let next = self.0.next(now())?;
        let SentRequest { names, request, definitions } = self.0.sent(&next);
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let wait_ms = next.wait_ms as f64;
        Some(parts(next.object, self.0.object(next.object), &shared(names), &request, definitions, wait_ms))
    }

    /// Takes an object's answer. Returns the work left.
    pub fn answered(&mut self, index: usize, text: &str) -> Answered {
        let answer = ObjectReply::from_text(text).ok();
        let is_readable = answer.is_some();
        match (is_readable, self.0.answered(index, answer, now())) {
            (false, _) => Answered::Unreadable,
            (true, Left::Calls) => Answered::Calls,
            (true, Left::ReplyAndMore) => Answered::ReplyAndMore,
            (true, Left::Reply) => Answered::Reply,
        }
    }

    /// Records that a call failed, and why, in the words of [`Cause::of`].
    pub fn failed(&mut self, index: usize, cause: &str, is_retryable: bool) {
        self.0.failed(index, Failure { cause: Cause::of(cause), is_retryable }, now());
    }

    /// Whether [`Call::reply`] can be sent. Some holds may still have to be aborted.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.0.is_decided()
    }

    /// The last step: [`Step::Reply`], or [`Step::Again`], [`Step::Record`] or [`Step::Verify`] before it.
    pub fn end(&mut self) -> Array {
        step::last(self.0.last(now()))
    }

    /// The reply: a text, see [`Reply::to_text`](crate::api::Reply::to_text).
    #[must_use]
    pub fn reply(&mut self) -> String {
        self.0.reply(now()).to_text()
    }

    /// [`Call::end`] of a call that has only a reply left to send, and is no longer used.
    #[must_use]
    pub fn into_end(mut self) -> Array {
        step::reply(self.0.reply(now()))
    }

    /// Ends the request without knowing its outcome.
    pub fn lose(&mut self) {
        self.0.lose(now());
    }

    /// The lease call to make in the background of this one.
    #[must_use]
    pub fn renewal(&mut self) -> Option<Self> {
        self.0.renewal(now()).map(Self)
    }

    /// Delay in milliseconds before [`Call::end_lease`]; `undefined` if no lease came with the answer.
    #[wasm_bindgen(getter)]
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a minute at most")]
    pub fn lease_ms(&self) -> Option<f64> {
        self.0.lease_ms().map(|ms| ms as f64)
    }

    /// The call that returns the lease, if it is idle or over; `undefined` if there is nothing to return, or not yet: see
    /// [`Call::lease_ms`].
    #[must_use]
    pub fn end_lease(&mut self) -> Option<Self> {
        self.0.end_lease(now()).map(Self)
    }

    /// The outcome for each budget, once there is a reply: policy, outcome, where it was decided, cost and milliseconds taken; policy,
    /// outcome, ... Empty for requests that take no tokens.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "costs are below 2⁵³, and so are seconds")]
    pub fn points(&self) -> Array {
        use crate::metrics::Word;

        let points = Array::new();
        let took_ms = self.0.took_ms(now()) as f64;
        self.0.events(now(), &mut |event| {
            let decision = &event.decision;
            for part in [decision.policy, decision.outcome.word(), decision.source.word()] {
                points.push(&part.into());
            }
            points.push(&(decision.cost as f64).into());
            points.push(&took_ms.into());
        });
        points
    }

    /// The notices that are due, once there is a reply: id, JSON, id, JSON, ...
    #[must_use]
    pub fn notices(&self) -> Array {
        self.0.notices(now()).into_iter().flat_map(|notice| [JsValue::from(notice.id), notice.body.into()]).collect()
    }
}

/// The names of policies as a JavaScript string, made once for requests with the same policies.
fn shared(names: String) -> JsString {
    thread_local! {
        static LATEST: RefCell<Option<(String, JsString)>> = const { RefCell::new(None) };
    }
    LATEST.with_borrow_mut(|latest| match latest {
        Some((known, text)) if *known == names => text.clone(),
        _ => {
            let text = JsString::from(names.as_str());
            *latest = Some((names, text.clone()));
            text
        }
    })
}

#[wasm_bindgen(inline_js = "export const parts = (...parts) => parts;")]
extern "C" {
    /// The result of [`Call::next`], made in a single crossing.
    fn parts(
        index: usize,
        name: &str,
        names: &JsString,
        request: &str,
        definitions: Option<String>,
        wait_ms: f64,
    ) -> Array;
}
