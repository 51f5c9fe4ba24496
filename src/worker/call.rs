//! A [`Call`](frontend::Call) in the form that `objects.mjs` uses.

use std::cell::RefCell;

use js_sys::{Array, JsString};
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use super::isolate::now;
use super::step;
#[cfg(doc)]
use super::step::Step;
use crate::api::Notice;
use crate::edge::{self, Failure};
use crate::frontend::{self, Left, Point, SentRequest};
use crate::protocol::ObjectReply;

/// A request decided by objects: one object, or one per key of a batch.
#[wasm_bindgen]
pub struct Call(frontend::Call);

impl From<frontend::Call> for Call {
    fn from(call: frontend::Call) -> Self {
        Self(call)
    }
}

/// Who receives a notice.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub enum Receiver {
    Queue,
    Webhook,
}

impl From<edge::Receiver> for Receiver {
    fn from(receiver: edge::Receiver) -> Self {
        match receiver {
            edge::Receiver::Queue => Self::Queue,
            edge::Receiver::Webhook => Self::Webhook,
        }
    }
}

impl From<Receiver> for edge::Receiver {
    fn from(receiver: Receiver) -> Self {
        match receiver {
            Receiver::Queue => Self::Queue,
            Receiver::Webhook => Self::Webhook,
        }
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
    /// The number of deciding objects. Reading it fails after a panic.
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
        match self.0.answered(index, ObjectReply::from_text(text).ok(), now()) {
            Left::Unreadable => Answered::Unreadable,
            Left::Calls => Answered::Calls,
            Left::ReplyAndMore => Answered::ReplyAndMore,
            Left::Reply => Answered::Reply,
        }
    }

    /// Records that a call failed: see [`Failure::of`].
    pub fn failed(&mut self, index: usize, is_late: bool, is_overloaded: bool, is_retryable: bool) {
        self.0.failed(index, Failure::of(is_late, is_overloaded, is_retryable), now());
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

    /// The data points to write, once there is a reply: index, blobs, doubles, index, ... See [`Point`]: `colo` is the location that received
    /// the request, and `weight` how many requests each stands for.
    #[must_use]
    pub fn points(&mut self, colo: &str, weight: f64) -> Array {
        let parts = |point: Point| {
            let blobs = Array::from_iter(point.blobs(colo).map(JsValue::from));
            let doubles = Array::from_iter(point.doubles(weight).map(JsValue::from));
            [point.policy.into(), blobs.into(), doubles.into()]
        };
        self.0.points().into_iter().flat_map::<[JsValue; 3], _>(parts).collect()
    }

    /// The notices to send, once there is a reply: receiver, id, JSON, receiver, ...
    #[must_use]
    pub fn notices(&mut self) -> Array {
        let parts = |(to, notice): (edge::Receiver, Notice)| {
            [JsValue::from(Receiver::from(to)), notice.id.into(), notice.body.into()]
        };
        self.0.notices().into_iter().flat_map(parts).collect()
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
