//! The frontend as called by `frontend.mjs` and its neighbours: [`Service`] decides.

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use worker::{Env, console_error, console_log};

use super::call::{Call, Receiver};
use super::environment::{OfWorker, binding, log_errors};
use super::isolate::{isolate, now, random};
use super::step::{self, Step};
use crate::access::Webhook;
use crate::api::Reply;
use crate::edge::{Attempt, Deliveries, Due, POLL_MS, Tap, WAIT_MS};
use crate::frontend::{self, Arrival, Asked, Newer, Service, Setup, Undecided, key_verbs, verbs};

/// Answers requests that need no object, and prepares the calls of those that do. Replies are texts: see [`Reply::to_text`].
#[wasm_bindgen]
pub struct Frontend {
    service: Service,
    webhook: Option<Webhook>,
}

/// Whether to poll the registry: see [`Due`].
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Not,
    InBackground,
    BeforeAnswer,
}

#[wasm_bindgen]
#[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
#[expect(clippy::unused_self, reason = "only calls on an object revive an instance that has panicked")]
impl Frontend {
    /// A frontend with the settings in `env`. Logs a line for each policy, or for each error.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(env: &Env) -> Self {
        Self::logged(Setup::of_service(&OfWorker(env)))
    }

    /// A frontend for callers in the same program, with the policies in `env`, or those of this JSON text. `keys` should be the namespace of
    /// the objects.
    #[must_use]
    pub fn trusting(env: &Env, policies: Option<String>, keys: &JsValue) -> Self {
        Self::of(Setup::trusting(&OfWorker(env), policies.as_deref(), binding(keys)))
    }

    /// A frontend inside an application's own Durable Object with the id `own`, and the policies of this JSON text.
    #[must_use]
    pub fn inside(own: &str, policies: &str) -> Self {
        Self::of(Setup::inside(own, policies))
    }

    /// A frontend of the service for callers with a binding to it: its `props`, as JSON, are their rights.
    /// Logs a line for each error in the settings.
    #[must_use]
    pub fn bound(env: &Env) -> Self {
        Self::logged(Setup::of_binding(&OfWorker(env)))
    }

    /// The errors in the settings; `undefined` if there are none.
    #[must_use]
    pub fn errors(&self) -> Option<Vec<String>> {
        self.service.errors().map(|errors| errors.lines.clone())
    }

    /// The first step of a request, before its body is read: [`Step::Reply`], [`Step::Contract`] or [`Step::Read`].
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "one crossing")]
    pub fn head(
        &self,
        method: &str,
        url: &str,
        authorization: Option<String>,
        props: Option<String>,
        content_type: Option<String>,
        content_encoding: Option<String>,
        content_length: Option<String>,
    ) -> Array {
        let arrival = Arrival {
            method,
            url,
            authorization: authorization.as_deref(),
            props: props.as_deref(),
            content_type: content_type.as_deref(),
            content_encoding: content_encoding.as_deref(),
            content_length: content_length.as_deref(),
        };
        match self.service.head(&arrival, now()) {
            Ok(head) => step::head(head),
            Err(reply) => step::reply(&reply),
        }
    }

    /// The next step of a request that [`Frontend::head`] has let pass. `newer` is that of [`Step::Again`], for a retry. Without HTTP, `url`
    /// is the path, the method is POST, and there are no headers; [`Step::Read`] says whether HTTP needs them.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "one crossing; what is `undefined` costs nothing")]
    pub fn ask(
        &self,
        url: &str,
        authorization: Option<String>,
        props: Option<String>,
        idempotency_key: Option<String>,
        body: &[u8],
        newer: Option<Array>,
        method: Option<String>,
        headers: Option<worker::web_sys::Headers>,
    ) -> Array {
        let header = |name: &str| headers.as_ref()?.get(name).ok()?;
        let [if_match, if_none_match, address] = ["if-match", "if-none-match", "cf-connecting-ip"].map(header);
        let (newer, is_lost) = repeat_of(newer.as_ref());
        let asked = Asked {
            url,
            authorization: authorization.as_deref(),
            props: props.as_deref(),
            idempotency_key: idempotency_key.as_deref(),
            body,
            newer: newer.as_ref(),
            is_lost,
            method: method.as_deref().unwrap_or("POST"),
            if_match: if_match.as_deref(),
            if_none_match: if_none_match.as_deref(),
            address: address.as_deref(),
        };
        Self::next(self.service.ask(&asked, now(), &mut random))
    }

    fn next(step: frontend::Step<'_>) -> Array {
        match step {
            frontend::Step::Reply(reply) => step::reply(&reply),
            frontend::Step::Call(mut call) => {
                if let Some(reply) = call.only_reply(now()) {
                    return step::reply(reply);
                }
                let is_of_several = call.count() > 1;
                step::list(Step::Call, [Call::from(*call).into(), is_of_several.into()])
            }
            frontend::Step::Administer(question) => step::list(Step::Administer, [question.to_text().into()]),
            frontend::Step::InspectKey(questions) => {
                let questions = questions.into_iter().flat_map(|(object, question)| [object, question.to_text()]);
                step::list(Step::Inspect, questions.map(JsValue::from))
            }
        }
    }

    /// The same for a request not sent by HTTP, with a text as body.
    #[must_use]
    pub fn ask_text(
        &self,
        path: &str,
        props: Option<String>,
        idempotency_key: Option<String>,
        body: &str,
        newer: Option<Array>,
    ) -> Array {
        self.ask(path, None, props, idempotency_key, body.as_bytes(), newer, None, None)
    }

    /// The same for a call of the platform's own rate limiting binding: see [`Service::limit`].
    #[must_use]
    pub fn limit(&self, props: Option<String>, argument: Option<String>, newer: Option<Array>) -> Array {
        let (newer, is_lost) = repeat_of(newer.as_ref());
        let again = (newer.as_ref(), is_lost);
        match self.service.limit(props.as_deref(), argument.as_deref(), again, now(), &mut random) {
            Ok(call) => Self::next(frontend::Step::Call(call)),
            Err(Undecided { mistake, note }) => step::list(Step::Limited, [false.into(), mistake.into(), note.into()]),
        }
    }

    /// The reply about an inspected key, from the answers in the order of the questions.
    #[must_use]
    pub fn inspected(&self, answers: Vec<String>) -> String {
        Service::inspected(&answers).to_text()
    }

    /// The reply to a visitor, from the captcha verifier's answer.
    #[must_use]
    pub fn session(&self, status: u16, answer: &[u8]) -> String {
        self.service.session(status, answer, now(), &mut random).to_text()
    }

    /// The reply when the verifier did not answer, in time or at all.
    #[must_use]
    pub fn unverified(&self, is_late: bool) -> String {
        Service::unverified(is_late).to_text()
    }

    /// See [`Service::OPERATOR_MS`].
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn operator_ms(&self) -> u32 {
        Service::OPERATOR_MS
    }

    /// The reply to an operator when the registry did not answer, in time or at all.
    #[must_use]
    pub fn not_administered(&self, is_late: bool) -> String {
        Service::not_administered(is_late).to_text()
    }

    /// The reply about a key when one of its objects did not answer, in time or at all.
    #[must_use]
    pub fn not_inspected(&self, is_late: bool) -> String {
        self.service.not_inspected(is_late, now()).to_text()
    }

    /// The reply when the body could not be read; without an error, it did not arrive in time.
    #[must_use]
    pub fn unreadable(&self, error: Option<String>) -> String {
        Service::unreadable(error.as_deref()).to_text()
    }

    /// The reply after an internal error that should be impossible.
    #[must_use]
    pub fn failed(&self) -> String {
        self.service.failed(now()).to_text()
    }

    /// See [`frontend::is_request_id`].
    #[must_use]
    pub fn is_request_id(id: &str) -> bool {
        frontend::is_request_id(id)
    }

    /// See [`Reply::letters`]: a list of letters, each with the entries of an object.
    #[must_use]
    pub fn letters(is_http: bool) -> Array {
        let letters = Reply::letters(is_http);
        letters.map(|(letter, headers)| Array::of2(&letter.to_string().into(), &entries(headers))).collect()
    }

    /// The paths for callers in a Worker by the names of their functions: see [`verbs`].
    #[must_use]
    pub fn verbs() -> Array {
        entries(verbs())
    }

    /// The same for the operators' acts on one key: see [`key_verbs`].
    #[must_use]
    pub fn key_verbs() -> Array {
        entries(key_verbs())
    }

    /// Sets the clock for a test.
    #[cfg(feature = "test-clock")]
    pub fn set_clock(&self, headers: worker::web_sys::Headers) {
        super::clock::set_by(&headers);
    }
}

/// The frontend's exchange with the registry of policies.
#[wasm_bindgen]
#[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
#[expect(clippy::unused_self, reason = "only calls on an object revive an instance that has panicked")]
impl Frontend {
    /// Whether there is a registry.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn has_registry(&self) -> bool {
        self.service.has_registry()
    }

    /// Whether to poll the registry.
    #[must_use]
    pub fn due(&self) -> Ask {
        match self.service.due(now()) {
            Due::Nothing => Ask::Not,
            Due::InBackground => Ask::InBackground,
            Due::BeforeAnswer => Ask::BeforeAnswer,
        }
    }

    /// The poll to send; `undefined` while one is in flight. Then call [`Frontend::updated`] or [`Frontend::not_updated`].
    #[must_use]
    pub fn poll(&self) -> Option<String> {
        self.service.poll(now())
    }

    /// Takes the registry's answer. Returns the next poll, if there is one.
    #[must_use]
    pub fn updated(&self, answer: &str) -> Option<String> {
        self.service.updated(answer, now()).unwrap_or_else(|errors| {
            for error in errors {
                console_error!("registry: {error}");
            }
            None
        })
    }

    /// Records that the registry did not answer.
    pub fn not_updated(&self) {
        self.service.not_updated();
    }

    /// This isolate's counts, for the registry. Then call [`Frontend::reported`] once it has them.
    #[must_use]
    pub fn report(&self) -> Option<String> {
        self.service.isolate().report(now(), &mut random)
    }

    /// Records that the registry received that report.
    pub fn reported(&self, report: &str) {
        self.service.isolate().confirm(report);
    }

    /// The known state of the registry, for a new instance's [`Frontend::restore`]; `undefined` if unchanged since the last call.
    #[must_use]
    pub fn news(&self) -> Option<String> {
        self.service.news()
    }

    /// Takes over another instance's known state.
    pub fn restore(&self, known: &str) {
        self.service.restore(known);
    }

    /// Milliseconds that a request waits for the registry.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn wait_ms(&self) -> u32 {
        WAIT_MS
    }

    /// Timeout in milliseconds for a poll in the background.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn poll_ms(&self) -> u32 {
        POLL_MS
    }

    /// See [`Service::point_weight`].
    #[must_use]
    pub fn point_weight(&self, random: f64) -> Option<f64> {
        self.service.point_weight(random)
    }

    /// Whether notices have a receiver.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn has_receivers(&self) -> bool {
        self.service.has_receivers()
    }

    /// Of a message sent to the webhook now: the URL, the moment in Unix seconds, and the signature. `undefined` if there is no webhook.
    #[must_use]
    pub fn signed(&self, id: &str, body: &str) -> Option<Vec<String>> {
        let webhook = self.webhook.as_ref()?;
        let timestamp = now().waiting.unsigned_abs() / 1_000;
        Some(vec![webhook.url().to_owned(), timestamp.to_string(), webhook.signature(id, timestamp, body)])
    }

    /// Starts to deliver a notice: its number, for [`Frontend::attempted`], which gets `undefined` from another instance. `undefined` if it is
    /// lost.
    #[must_use]
    pub fn deliver(&self, to: Receiver) -> Option<u32> {
        self.service.isolate().deliver(to.into(), now())
    }

    /// Records the last of this many `attempts`: the status with which a receiver by HTTP answered, or the error, if it failed. Returns the
    /// milliseconds before the next; `undefined` if there is none.
    #[must_use]
    pub fn attempted(
        &self,
        number: Option<u32>,
        attempts: usize,
        status: Option<u16>,
        error: Option<String>,
    ) -> Option<u32> {
        let attempt = match (&error, status) {
            (Some(error), _) => Attempt::Failed(error),
            (None, Some(status)) => Attempt::Answered(status),
            (None, None) => Attempt::Taken,
        };
        self.service.isolate().attempted(number, attempts, attempt)
    }

    /// The line to log about lost notices, if one is due.
    pub fn notices_lost(&self) -> Option<String> {
        self.service.isolate().notices_lost(now())
    }

    /// Timeout in milliseconds for each attempt.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn attempt_ms(&self) -> u32 {
        Deliveries::ATTEMPT_MS
    }

    /// See [`Tap::ANSWER_MS`].
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn live_answer_ms(&self) -> u32 {
        Tap::ANSWER_MS
    }

    /// Whether there are live listeners.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.service.isolate().tap(|tap| tap.has_listeners())
    }

    /// Records the Cloudflare location that receives this isolate's requests.
    pub fn live_from(&self, colo: &str) {
        self.service.isolate().tap(|tap| tap.set_colo(colo));
    }

    /// Delay in milliseconds before the next batch; `undefined` if there is none, or if the delay was already returned.
    #[must_use]
    pub fn live_due(&self) -> Option<u32> {
        self.service.isolate().tap(|tap| tap.due(now().at))
    }

    /// The same for the request that has sent the last batch.
    #[must_use]
    pub fn live_due_again(&self) -> Option<u32> {
        self.service.isolate().tap(|tap| tap.due_again(now().at))
    }

    /// The batch to send. Then call [`Frontend::live_answered`] or [`Frontend::live_failed`]. `undefined` if there is none.
    #[must_use]
    pub fn live_batch(&self) -> Option<String> {
        self.service.isolate().tap(|tap| tap.take(now().at))
    }

    /// Takes the registry's answer to the batch: the listeners, if any.
    pub fn live_answered(&self, listeners: Option<String>) {
        self.service.isolate().tap(|tap| tap.answered(listeners.as_deref(), now().at));
    }

    /// Records that the registry did not answer.
    pub fn live_failed(&self) {
        self.service.isolate().tap(Tap::fail);
    }
}

impl Frontend {
    /// A frontend whose callers cannot be shown errors in the settings.
    fn logged(setup: Setup) -> Self {
        for remark in &setup.remarks {
            console_log!("{remark}");
        }
        let errors = setup.settings.as_ref().err();
        log_errors(errors.into_iter().flat_map(|errors| &errors.lines));
        Self::of(setup)
    }

    fn of(Setup { settings, webhook, .. }: Setup) -> Self {
        Self { service: Service::new(settings, isolate()), webhook }
    }
}

/// The entries of a JavaScript object.
fn entries<'a>(pairs: impl IntoIterator<Item = (&'a str, impl AsRef<str>)>) -> Array {
    pairs.into_iter().map(|(name, value)| Array::of2(&name.into(), &value.as_ref().into())).collect()
}

/// What a request is made again with: the first argument of [`Step::Again`], or an empty list if its call was lost.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a moment, below 2⁵³, and a small number")]
fn repeat_of(parts: Option<&Array>) -> (Option<Newer>, bool) {
    let newer = |parts: &Array| {
        let [as_of, tries] = [parts.get(0).as_f64()?, parts.get(2).as_f64()?];
        let [definitions, id] = [parts.get(1).as_string()?, parts.get(3).as_string()?];
        Some(Newer { as_of: as_of as i64, definitions, tries: tries as u8, id: id.parse().ok()? })
    };
    (parts.and_then(newer), parts.is_some_and(|parts| parts.length() == 0))
}
