//! What JavaScript does next with a request: a list of a [`Step`] and its arguments.

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use crate::access::Sessions;
use crate::api::Reply;
use crate::frontend::{self, BODY_MS, Head, LastStep, Newer, Verification};

/// The first element of such a list.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Send a reply: its text, see [`Reply::to_text`].
    Reply,
    /// Send the contract: the text of a reply without its body, which is in JavaScript.
    Contract,
    /// Read the body: its maximum length in bytes, its timeout in milliseconds, whether `Frontend::ask` needs the method and the headers too,
    /// and whether to report this isolate's counts before it.
    Read,
    /// Call objects: a `Call`, and whether it calls several at once.
    Call,
    /// Forward to the registry: a question, as text.
    Administer,
    /// Call objects: object, question, object, question, ... The answers are texts for `Frontend::inspected`.
    Inspect,
    /// Answer a call of the platform's own rate limiting binding: whether it is allowed, the message of a mistake, and a line for the log.
    Limited,
    /// Make the request again: the parts of a [`Newer`], and whether to poll the registry before. Nothing was done.
    Again,
    /// Record an act: a [`Recording`], which has the reply.
    Record,
    /// Call a captcha's verifier: its URL, the secret, the captcha, the visitor's address, and of the answer, which is for `Frontend::session`,
    /// the timeout in milliseconds and the maximum length in bytes.
    Verify,
}

/// An act to record.
#[wasm_bindgen]
pub struct Recording(frontend::Recording);

#[wasm_bindgen]
impl Recording {
    /// The act, for the registry: see [`KeyAct::to_text`](crate::protocol::KeyAct::to_text).
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn act(&self) -> String {
        self.0.act.to_text()
    }

    /// The reply, as text, once it was recorded or that has failed.
    #[must_use]
    pub fn reply(self, is_recorded: bool) -> String {
        self.0.reply(is_recorded).to_text()
    }
}

/// [`Step::Reply`].
pub(super) fn reply(reply: &Reply) -> Array {
    list_of_text(Step::Reply, &reply.to_text())
}

/// The step after the head of a request.
pub(super) fn head(head: Head) -> Array {
    match head {
        Head::Contract => list_of_text(Step::Contract, &Reply::contract().to_text()),
        Head::Ask { max_len } => list_of_read(Step::Read, max_len, BODY_MS, false, false),
        Head::AskMore { max_len } => list_of_read(Step::Read, max_len, BODY_MS, true, false),
        Head::Report { max_len } => list_of_read(Step::Read, max_len, BODY_MS, true, true),
    }
}

/// The last step.
pub(super) fn last(last: LastStep<'_>) -> Array {
    match last {
        LastStep::Again(newer) => again(newer),
        LastStep::Record(recording) => list(Step::Record, [Recording(*recording).into()]),
        LastStep::Verify(Verification { url, secret, captcha, address }) => {
            let bounds = [Sessions::ANSWER_MS, Sessions::MAX_ANSWER_LEN].map(JsValue::from);
            list(Step::Verify, [url, secret, captcha, address].map(JsValue::from).into_iter().chain(bounds))
        }
        LastStep::Limited(is_allowed) => list(Step::Limited, [is_allowed.into()]),
        LastStep::Reply(last) => reply(last),
    }
}

#[expect(clippy::cast_precision_loss, reason = "below 2⁵³")]
fn again(newer: Newer) -> Array {
    let needs_registry = newer.needs_registry();
    let Newer { as_of, definitions, tries, id } = newer;
    let parts = [JsValue::from(as_of as f64), definitions.into(), tries.into(), id.to_string().into()];
    let newer: Array = parts.into_iter().collect();
    list(Step::Again, [newer.into(), needs_registry.into()])
}

/// A list of a step and its arguments.
pub(super) fn list(step: Step, arguments: impl IntoIterator<Item = JsValue>) -> Array {
    [step.into()].into_iter().chain(arguments).collect()
}

// The lists that most requests need, each made in a single crossing.
#[wasm_bindgen(inline_js = "export const list = (...parts) => parts;")]
extern "C" {
    #[wasm_bindgen(js_name = list)]
    fn list_of_text(step: Step, text: &str) -> Array;

    #[wasm_bindgen(js_name = list)]
    fn list_of_read(step: Step, max_len: usize, body_ms: u32, needs_more: bool, reports: bool) -> Array;
}
