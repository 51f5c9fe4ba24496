//! The frontend: what a request asks, of which objects, and what the answer is. `frontend.mjs` takes it there and back.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use worker::{Env, console_log};

use super::settings::Settings;
use crate::api::{
    Cause, Endpoint, MAX_BODY_LEN, Problem, Reply, Request, ResolvedItem, ResolvedRequest, degraded_reply, require_json,
};
use crate::limit::{Decision, Verb};
use crate::protocol::{Action, Format, ObjectReply, ObjectRequest, RequestId};

/// Answers requests, as far as that needs nobody else. Replies are texts: see [`Reply::to_text`].
#[wasm_bindgen]
pub struct Frontend {
    env: Env,
}

#[wasm_bindgen]
#[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
#[expect(clippy::unused_self, reason = "only calls on an object revive an instance that has panicked")]
impl Frontend {
    /// A front with the settings in `env`.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(env: Env) -> Self {
        Self { env }
    }

    /// The reply to a request that needs no look at its body; `undefined` when the body is to be read.
    #[must_use]
    pub fn head(
        &self,
        method: &str,
        url: &str,
        authorization: Option<String>,
        content_type: Option<String>,
        content_encoding: Option<String>,
        content_length: Option<String>,
    ) -> Option<String> {
        if method == "OPTIONS" {
            return Some(Reply::preflight().to_text());
        }
        let reply = self.head_reply(
            method,
            path(url),
            authorization.as_deref(),
            content_type.as_deref(),
            content_encoding.as_deref(),
            content_length.as_deref(),
        );
        reply.unwrap_or_else(|problem| Some(problem.reply())).map(|reply| reply.to_text())
    }

    /// What to do about a request that [`Frontend::head`] let pass: a [`Call`], or the text of a reply.
    #[must_use]
    pub fn ask(&self, url: &str, idempotency_key: Option<String>, body: &[u8]) -> JsValue {
        match self.call(path(url), idempotency_key.as_deref(), body) {
            Ok(call) => call.into(),
            Err(problem) => problem.reply().to_text().into(),
        }
    }

    /// The reply to a request whose body could not be read.
    #[must_use]
    pub fn unreadable(&self, error: &str) -> String {
        Problem::BadRequest { detail: format!("the body cannot be read: {error}") }.reply().to_text()
    }

    /// The reply when something failed that cannot.
    #[must_use]
    pub fn failed(&self) -> String {
        Problem::Unavailable { cause: Cause::Failed }.reply().to_text()
    }

    /// How many bytes of a body are worth reading.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn max_body_len(&self) -> usize {
        MAX_BODY_LEN
    }

    /// Sets the clock as a test asks.
    #[cfg(feature = "test-clock")]
    pub fn set_clock(&self, headers: worker::web_sys::Headers) {
        super::clock::set_by(&headers);
    }
}

impl Frontend {
    fn head_reply(
        &self,
        method: &str,
        path: &str,
        authorization: Option<&str>,
        content_type: Option<&str>,
        content_encoding: Option<&str>,
        content_length: Option<&str>,
    ) -> Result<Option<Reply>, Problem> {
        let settings = Settings::of(&self.env)?;
        if path == "/healthz" {
            require_method(method, &["GET", "HEAD"], "GET, HEAD")?;
            return Ok(Some(Reply::healthy()));
        }
        if let Err(denied) = settings.credentials.check(authorization) {
            console_log!("401: {denied}"); // the client is not told which
            return Err(Problem::Unauthorized);
        }
        if Endpoint::of(path).is_none() {
            return Err(Problem::NotFound { path: path.to_owned() });
        }
        require_method(method, &["POST"], "POST")?;
        require_json(content_type, content_encoding)?;
        // A length that is announced is believed: the runtime holds a client to it.
        match content_length.and_then(|length| length.parse::<u64>().ok()) {
            Some(length) if length > MAX_BODY_LEN as u64 => Err(Problem::BodyTooLarge),
            _ => Ok(None),
        }
    }

    fn call(&self, path: &str, idempotency_key: Option<&str>, body: &[u8]) -> Result<Call, Problem> {
        let settings = Settings::of(&self.env)?;
        let endpoint = Endpoint::of(path).ok_or_else(|| Problem::NotFound { path: path.to_owned() })?;
        let request = Request::parse(endpoint, body)?;
        let asked = ResolvedRequest::new(&request, &settings.policies)?;
        let names: Vec<_> = request.items.iter().map(|item| settings.credentials.object_name(&item.key)).collect();
        let mut objects: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            objects.entry(name.clone()).or_default().push(index);
        }
        let id = match idempotency_key {
            Some(key) if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_LEN => {
                let detail = format!("an Idempotency-Key has 1 to {MAX_IDEMPOTENCY_KEY_LEN} bytes");
                return Err(Problem::BadRequest { detail });
            }
            key => key.map(|key| settings.credentials.request_id_of(key)),
        };
        let objects = objects.into_iter().map(|(name, items)| Object { name, items, reply: None }).collect();
        let own_id = next_id()?;
        // The frontend never gives one id to two requests, but a client may.
        let fingerprint = id.map_or(0, |_| request.fingerprint(&names));
        let request_id = RequestId { id: id.unwrap_or(own_id), fingerprint, is_lasting: id.is_some() };
        Ok(Call { asked, is_batch: endpoint == Endpoint::Batch, objects, request_id, own_id })
    }
}

/// As long as the longest that the payment interfaces take.
const MAX_IDEMPOTENCY_KEY_LEN: usize = 255;

/// A request that objects decide: one, or for a batch one for each key.
///
/// A batch over several keys is asked twice, the objects in the order of their names so that two batches never wait for
/// each other: first each holds what it can grant, and then, if all can, each keeps it taken. Until the last has kept it
/// the batch is not granted: what the others hold can still be given back, and what they have kept is lost at worst.
#[wasm_bindgen]
pub struct Call {
    asked: ResolvedRequest,
    is_batch: bool,
    /// In the order of their names.
    objects: Vec<Object>,
    /// By what the objects know this call: by the client's `Idempotency-Key`, or the front's own id.
    request_id: RequestId,
    /// An id that nothing else has.
    own_id: u128,
}

struct Object {
    name: String,
    /// Which of the items are its.
    items: Vec<usize>,
    reply: Option<ObjectReply>,
}

#[wasm_bindgen]
impl Call {
    /// How many objects decide.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// The name of an object.
    #[must_use]
    pub fn name(&self, index: usize) -> String {
        self.objects.get(index).map(|object| object.name.clone()).unwrap_or_default()
    }

    /// The names of the policies it is asked for.
    #[must_use]
    pub fn policies(&self, index: usize) -> String {
        let names: Vec<_> = self.policies_of(index).collect();
        names.join(",")
    }

    /// What it is asked, or first asked.
    #[must_use]
    pub fn request(&self, index: usize) -> Vec<f64> {
        let request = self.first_question(index);
        let request_id = (!matches!(request.action, Action::Look(_))).then_some(self.request_id);
        ObjectRequest { request_id, ..request }.to_numbers(Format::NEWEST)
    }

    /// What it is asked when another has refused already: only what it would have said.
    #[must_use]
    pub fn look(&self, index: usize) -> Vec<f64> {
        ObjectRequest { action: Action::Look(Verb::Consume), ..self.first_question(index) }.to_numbers(Format::NEWEST)
    }

    /// What it is asked when all have granted, if it holds anything: to keep it taken. The same twice is the same once.
    #[must_use]
    pub fn keep(&self, index: usize) -> Option<Vec<f64>> {
        let action = Action::Settle(self.held(index)?);
        let request_id = Some(self.request_id);
        Some(ObjectRequest { action, request_id, costs: Vec::new() }.to_numbers(Format::NEWEST))
    }

    /// What it is asked when one has refused, if it holds anything: to give it back.
    #[must_use]
    pub fn give_back(&self, index: usize) -> Option<Vec<f64>> {
        // So that asking again after a lost answer says what is left. The first request was known by another id, or the
        // same if the client gave none: its memory is of what was kept, and nothing was.
        let request_id = Some(RequestId { id: !self.own_id, fingerprint: 0, is_lasting: false });
        Some(
            ObjectRequest { action: Action::Cancel(self.held(index)?), request_id, costs: Vec::new() }
                .to_numbers(Format::NEWEST),
        )
    }

    /// Takes note of its answer; whether it granted.
    ///
    /// # Errors
    /// When the numbers are no answer.
    pub fn heard(&mut self, index: usize, numbers: &[f64]) -> Result<bool, JsValue> {
        let reply = reply(numbers)?;
        let is_granted = match &reply {
            ObjectReply::Decided(decided) => matches!(decided.decision(), Decision::Allow { .. }),
            _ => false,
        };
        if let Some(object) = self.objects.get_mut(index) {
            object.reply = Some(reply);
        }
        Ok(is_granted)
    }

    /// Takes note that it has kept what it held, so that there is nothing to give back; or says that it has not, since
    /// that had come back by itself, or another try has given it back.
    ///
    /// # Errors
    /// When the numbers are no answer.
    pub fn kept(&mut self, index: usize, numbers: &[f64]) -> Result<bool, JsValue> {
        let kept = reply(numbers)?;
        if let Some(ObjectReply::Decided(decided)) =
            self.objects.get_mut(index).and_then(|object| object.reply.as_mut())
        {
            decided.reservation = None;
            if let ObjectReply::Decided(kept) = &kept {
                // A bucket that is full loses what comes back while a part of it is held: it stands as it does now.
                for (limit, kept) in decided.limits.iter_mut().zip(&kept.limits) {
                    limit.snapshot = kept.snapshot;
                }
            }
        }
        Ok(matches!(kept, ObjectReply::Decided(_)))
    }

    /// Takes note of what is left now that it has given back what it held.
    ///
    /// # Errors
    /// When the numbers are no answer.
    pub fn given_back(&mut self, index: usize, numbers: &[f64]) -> Result<(), JsValue> {
        // Whatever else it says, nothing is held any more: it has come back, or another try has given it back.
        if let (reply @ ObjectReply::Decided(_), Some(object)) = (reply(numbers)?, self.objects.get_mut(index)) {
            object.reply = Some(reply);
        }
        Ok(())
    }

    /// The reply once all have answered.
    #[must_use]
    pub fn reply(self) -> String {
        let all = self.objects.iter().map(|object| Some((object.items.as_slice(), Ok(object.reply.clone()?))));
        let reply = match all.collect::<Option<Vec<_>>>() {
            Some(replies) if self.is_batch => self.asked.batch_reply(&replies),
            Some(replies) => match replies.as_slice() {
                [(_, Ok(reply))] => self.asked.reply(reply),
                _ => Err(Problem::Unavailable { cause: Cause::Failed }),
            },
            None => Err(Problem::Unavailable { cause: Cause::Failed }),
        };
        match reply {
            Ok(reply) => reply.to_text(),
            Err(Problem::Unavailable { cause }) => self.unanswered(cause.word()),
            Err(problem) => problem.reply().to_text(),
        }
    }

    /// The reply when one has not answered, for the reason of that name: see [`Cause::of`].
    #[must_use]
    pub fn unanswered(self, cause: &str) -> String {
        let cause = Cause::of(cause);
        let policies: Vec<_> = self.asked.items().iter().map(|item| &item.policy).collect();
        // Only a request that would take tokens is let pass; a caller who looks, reports or gives back must hear of the failure.
        let would_take = match self.asked.action() {
            Action::Take(verb) => matches!(verb, Verb::Consume | Verb::Borrow { .. } | Verb::ConsumeUpTo),
            _ => false,
        };
        let reply = if would_take && policies.iter().all(|policy| policy.on_error().opens(cause)) {
            let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
            degraded_reply(&names, cause)
        } else {
            Problem::Unavailable { cause }.reply()
        };
        reply.to_text()
    }
}

impl Call {
    fn items_of(&self, index: usize) -> impl Iterator<Item = &ResolvedItem> {
        let items = self.objects.get(index).map(|object| object.items.as_slice()).unwrap_or_default();
        items.iter().filter_map(|&item| self.asked.items().get(item))
    }

    fn policies_of(&self, index: usize) -> impl Iterator<Item = &str> {
        self.items_of(index).map(|item| item.policy.wire_name())
    }

    fn first_question(&self, index: usize) -> ObjectRequest {
        let action = match self.asked.action() {
            Action::Take(Verb::Consume) if self.objects.len() > 1 => Action::Hold(0),
            action => action,
        };
        let costs = self.items_of(index).map(|item| item.costs.clone()).filter(|costs| !costs.is_empty());
        ObjectRequest { action, request_id: None, costs: costs.collect() }
    }

    /// The reservation in which it holds its part of a batch.
    fn held(&self, index: usize) -> Option<u64> {
        match self.objects.get(index)?.reply.as_ref()? {
            ObjectReply::Decided(decided) => decided.reservation.map(|reserved| reserved.id),
            _ => None,
        }
    }
}

fn reply(numbers: &[f64]) -> Result<ObjectReply, JsValue> {
    ObjectReply::from_numbers(numbers).map_err(|_| JsValue::from_str("numbers that are no answer"))
}

/// An id that no other request has: a random half, made once, and a count.
fn next_id() -> Result<u128, Problem> {
    static HALF: OnceLock<Option<u64>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let half = HALF.get_or_init(random).ok_or(Problem::Unavailable { cause: Cause::Failed })?;
    Ok((u128::from(half) << 64) | u128::from(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// 64 random bits. Every runtime for Workers has them; where there are none, nothing may be made up.
pub(super) fn random() -> Option<u64> {
    getrandom::u64().ok()
}

/// The path of an absolute URL, without the query.
fn path(url: &str) -> &str {
    let after_scheme = url.find("://").and_then(|at| url.get(at + 3..)).unwrap_or(url);
    let path = after_scheme.find('/').and_then(|at| after_scheme.get(at..)).unwrap_or("/");
    path.split(['?', '#']).next().unwrap_or(path)
}

fn require_method(method: &str, methods: &[&str], allow: &'static str) -> Result<(), Problem> {
    if methods.contains(&method) {
        return Ok(());
    }
    Err(Problem::MethodNotAllowed { method: method.to_owned(), allow })
}
