//! What JavaScript does next with a request: a list of a [`Step`] and its arguments.

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use crate::api::Reply;
use crate::frontend::{Head, LastStep, Newer, Recording, Verification};

/// The first element of such a list.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Send a reply: its text, see [`Reply::to_text`].
    Reply,
    /// Send the contract: the text of a reply without its body, which is in JavaScript.
    Contract,
    /// Read the body: its maximum length in bytes, whether `Frontend::ask` needs the method and the headers too, and whether to report this
    /// isolate's counts before it.
    Read,
    /// Call objects: a `Call`.
    Call,
    /// Forward to the registry: a question, as text, and whether its answer may be news for this isolate.
    Administer,
    /// Call objects: object, question, object, question, ... The answers are texts for `Frontend::inspected`.
    Inspect,
    /// Make the request again: the parts of a [`Newer`], and whether to poll the registry before. Nothing was done.
    Again,
    /// Record an act, a text. After it come the replies if that succeeds and if it fails.
    Record,
    /// Call a captcha's verifier: its URL, the secret, the captcha and the visitor's address. The reply is that of `Frontend::session`.
    Verify,
}

/// [`Step::Reply`].
pub(super) fn reply(reply: &Reply) -> Array {
    list_of_text(Step::Reply, &reply.to_text())
}

/// The step after the head of a request.
pub(super) fn head(head: Head) -> Array {
    match head {
        Head::Contract => list_of_text(Step::Contract, &Reply::contract().to_text()),
        Head::Ask { max_len } => list_of_read(Step::Read, max_len, false, false),
        Head::AskMore { max_len } => list_of_read(Step::Read, max_len, true, false),
        Head::Report { max_len } => list_of_read(Step::Read, max_len, true, true),
    }
}

/// The last step.
pub(super) fn last(last: LastStep<'_>) -> Array {
    match last {
        LastStep::Again(newer) => again(newer),
        LastStep::Record(recording) => {
            let Recording { act, recorded, unrecorded } = *recording;
            list(Step::Record, [act.to_text(), recorded.to_text(), unrecorded.to_text()].map(JsValue::from))
        }
        LastStep::Verify(Verification { url, secret, captcha, address }) => {
            list(Step::Verify, [url, secret, captcha, address].map(JsValue::from))
        }
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
    fn list_of_read(step: Step, max_len: usize, needs_more: bool, reports: bool) -> Array;
}
