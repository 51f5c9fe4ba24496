//! The frontend: whether a request is valid, what it asks, and which objects decide. `frontend.mjs` calls it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use worker::{Env, console_error};

use super::call::{Call, Object};
use super::clock::moment;
use super::route::{Route, caller, no_sessions, not_found, permitted, require_registry, target};
use super::settings::{Settings, SettingsErrors};
use super::{clock, live, metrics};
use crate::access::{Caller, CaptchaError, Sessions};
use crate::api::{
    AdminQuestion, AdminRequest, Endpoint, MAX_BODY_LEN, Problem, Reply, Request, ResolvedRequest, SessionRequest,
    require_json,
};
use crate::edge::{Due, POLL_MS, PolicySnapshot, WAIT_MS};
use crate::frontend::{Address, Target};
use crate::metrics::{INLINE_POLICIES, LiveDecision, NoticeOutcome, Outcome, PollOutcome};
use crate::policy::Cause;
use crate::protocol::{Action, RequestId};

/// Answers requests that need no object, and prepares the calls of those that do. Replies are texts: see
/// [`Reply::to_text`].
#[wasm_bindgen]
pub struct Frontend {
    settings: Result<Settings, SettingsErrors>,
}

#[wasm_bindgen]
#[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
#[expect(clippy::unused_self, reason = "only calls on an object revive an instance that has panicked")]
impl Frontend {
    /// A frontend with the settings in `env`.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(env: Env) -> Self {
        Self { settings: Settings::read(&env) }
    }

    /// A frontend for callers in the same program, with the policies in `env`, or those of this JSON text.
    #[must_use]
    pub fn trusting(env: &Env, policies: Option<String>) -> Self {
        Self { settings: Settings::trusting(env, policies.as_deref()) }
    }

    /// A frontend of the service for callers who hold a binding to it: in the place of the header `Authorization` they have its `props`,
    /// as JSON.
    #[must_use]
    pub fn bound(env: &Env) -> Self {
        Self { settings: Settings::bound(env) }
    }

    /// What is wrong with the settings, line by line; `undefined` if nothing is.
    #[must_use]
    pub fn errors(&self) -> Option<String> {
        self.settings.as_ref().err().map(|errors| errors.lines.join("\n"))
    }

    /// The reply to a request whose body need not be read, a text; else the [`Route`] by which to go on.
    #[must_use]
    pub fn head(
        &self,
        method: &str,
        url: &str,
        authorization: Option<String>,
        content_type: Option<String>,
        content_encoding: Option<String>,
        content_length: Option<String>,
    ) -> JsValue {
        if method == "OPTIONS" {
            return Reply::preflight().to_text().into();
        }
        let route = self.route_of(
            method,
            url,
            authorization.as_deref(),
            content_type.as_deref(),
            content_encoding.as_deref(),
            content_length.as_deref(),
        );
        match route {
            Ok(Ok(route)) => route.into(),
            Ok(Err(reply)) => reply.to_text().into(),
            Err(problem) => text_of(&problem).into(),
        }
    }

    /// The [`Route`] of what is at `path`, for a request that did not come by HTTP.
    #[must_use]
    pub fn route(&self, path: &str) -> Option<Route> {
        Target::of(Address::parse(path).ok()?).ok().map(Route::from)
    }

    /// What to do about a request that [`Frontend::head`] let pass: a [`Call`], or the text of a reply, if nothing else is to be done.
    #[must_use]
    pub fn ask(
        &self,
        url: &str,
        authorization: Option<String>,
        idempotency_key: Option<String>,
        body: &[u8],
        now: f64,
    ) -> JsValue {
        self.begun(self.call(url, authorization.as_deref(), idempotency_key.as_deref(), body, moment(now)))
    }

    /// The same about a request that did not come by HTTP: `path` is that of its verb, and `body` is text.
    #[must_use]
    pub fn ask_text(
        &self,
        path: &str,
        authorization: Option<String>,
        idempotency_key: Option<String>,
        body: &str,
        now: f64,
    ) -> JsValue {
        self.ask(path, authorization, idempotency_key, body.as_bytes(), now)
    }

    /// What to do first about a visitor's request for a session, which [`Frontend::head`] let pass: see [`Frontend::ask`].
    /// `address` is the client's.
    #[must_use]
    pub fn ask_session(&self, body: &[u8], address: Option<String>, now: f64) -> JsValue {
        self.begun(self.session_call(body, address.as_deref(), moment(now)))
    }

    /// What to do next, line by line: the address of the captcha's verifier, the secret to send there, and the captcha, which
    /// may have several lines.
    #[must_use]
    pub fn verification(&self, body: &[u8], address: Option<String>) -> String {
        let sessions = self.sessions();
        let request = SessionRequest::parse(body, address.as_deref());
        let (Ok(sessions), Ok(SessionRequest { captcha, .. })) = (sessions, request) else { return String::new() };
        [sessions.verify_url(), sessions.secret(), &captcha].join("\n")
    }

    /// The reply at last, when the verifier has answered so.
    #[must_use]
    pub fn session(&self, status: u16, answer: &[u8]) -> String {
        self.session_reply(status, answer).map_or_else(|problem| text_of(&problem), |reply| reply.to_text())
    }

    /// The reply when the verifier has not answered, perhaps because it is late.
    #[must_use]
    pub fn unverified(&self, is_late: bool) -> String {
        text_of(&Problem::Captcha { error: if is_late { CaptchaError::Late } else { CaptchaError::Unanswered } })
    }

    /// Whether to ask the registry of policies: 0 no, 1 in the background, 2 before the request is answered.
    #[must_use]
    pub fn due(&self) -> u32 {
        match self.snapshot(|known, now| known.due(now)) {
            None | Some(Due::Nothing) => 0,
            Some(Due::InBackground) => 1,
            Some(Due::BeforeAnswer) => 2,
        }
    }

    /// The question to ask it; `undefined` while it is being asked. Then call [`Frontend::updated`] or
    /// [`Frontend::not_updated`].
    #[must_use]
    pub fn poll(&self) -> Option<String> {
        self.snapshot(PolicySnapshot::poll).flatten()
    }

    /// Takes over its answer. Returns another question, if there is one.
    #[must_use]
    pub fn updated(&self, answer: &str) -> Option<String> {
        metrics::count(|counts| counts.polled(PollOutcome::Answered));
        let updated = self.snapshot(|known, _| (known.update(answer), known.listeners().map(str::to_owned)));
        updated.and_then(|(asked, listeners)| {
            live::hear(listeners.as_deref());
            asked.unwrap_or_else(|errors| {
                for error in errors {
                    console_error!("registry: {error}");
                }
                None
            })
        })
    }

    /// Records that it did not answer.
    pub fn not_updated(&self) {
        metrics::count(|counts| counts.polled(PollOutcome::Failed));
        self.snapshot(|known, _| known.fail());
    }

    /// What this isolate has counted, for the registry. Then call [`Frontend::reported`] if it has it.
    #[must_use]
    pub fn report(&self) -> String {
        metrics::report()
    }

    /// Records that the registry has that report.
    pub fn reported(&self, report: &str) {
        metrics::confirm(report);
    }

    /// The share of decisions to be written as data points; 0 if there is nowhere to write them.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn sample(&self) -> f64 {
        self.settings.as_ref().map_or(0.0, |settings| settings.sample)
    }

    /// Where the webhook is, and the signature of a message to it that is sent at this moment, in Unix seconds. `undefined` if
    /// there is no webhook.
    #[must_use]
    pub fn signed(&self, id: &str, timestamp: f64, body: &str) -> Option<Array> {
        let webhook = self.settings.as_ref().ok()?.receivers.webhook.as_ref()?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole seconds since 1970")]
        let signature = webhook.signature(id, timestamp as u64, body);
        Some([JsValue::from(webhook.url()), signature.into()].iter().collect())
    }

    /// Counts what became of a notice, in the words of [`NoticeOutcome`].
    pub fn noticed(&self, outcome: &str) {
        metrics::count(|counts| counts.noticed(NoticeOutcome::of(outcome)));
    }

    /// What is known of the registry, for [`Frontend::restore`] of a new instance; `undefined` if that has not changed since the
    /// last call.
    #[must_use]
    pub fn news(&self) -> Option<String> {
        self.snapshot(|known, _| known.news()).flatten()
    }

    /// Takes over what another instance knew.
    pub fn restore(&self, known: &str) {
        self.snapshot(|snapshot, _| snapshot.restore(known));
    }

    /// Takes over policies that an object has been asked under by a frontend that knew the changes up to `as_of`.
    pub fn learn(&self, definitions: &str, as_of: f64) {
        self.snapshot(|known, _| known.learn(definitions, moment(as_of)));
    }

    /// Forgets what it has learned: the request that was asked again has begun.
    pub fn forget(&self) {
        self.snapshot(|known, _| known.forget());
    }

    /// How many milliseconds a request waits for the registry.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn wait_ms(&self) -> u32 {
        WAIT_MS
    }

    /// How many milliseconds its answer is waited for in the background.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn poll_ms(&self) -> u32 {
        POLL_MS
    }

    /// What to do about an operator's request, which [`Frontend::head`] let pass: the text of a reply, or a list with the text of a
    /// question to the registry, and whether its answer may be news for this isolate.
    #[must_use]
    pub fn administer(
        &self,
        method: &str,
        url: &str,
        authorization: Option<String>,
        if_match: Option<String>,
        if_none_match: Option<String>,
        body: &[u8],
    ) -> JsValue {
        match self.question(method, url, authorization.as_deref(), if_match.as_deref(), if_none_match.as_deref(), body)
        {
            Ok(Ok((question, is_news))) => Array::of2(&question.into(), &is_news.into()).into(),
            Ok(Err(reply)) => reply.to_text().into(),
            Err(problem) => text_of(&problem).into(),
        }
    }

    /// The reply when the registry has not answered that, perhaps because it is late.
    #[must_use]
    pub fn not_administered(&self, is_late: bool) -> String {
        text_of(&Problem::RegistryUnavailable { cause: if is_late { Cause::Timeout } else { Cause::Failed } })
    }

    /// The reply to a request whose body did not arrive in time.
    #[must_use]
    pub fn too_slow(&self) -> String {
        Problem::RequestTimeout.reply().to_text()
    }

    /// The reply to a request whose body could not be read.
    #[must_use]
    pub fn unreadable(&self, error: &str) -> String {
        Problem::BadRequest { detail: format!("the body cannot be read: {error}") }.reply().to_text()
    }

    /// The reply after an internal error that should be impossible.
    #[must_use]
    pub fn failed(&self) -> String {
        self.marked(&Problem::Unavailable { cause: Cause::Failed })
    }

    /// The most bytes to read of a body that was sent to `url`.
    #[must_use]
    pub fn max_body_len(&self, url: &str) -> usize {
        target(url).map_or(MAX_BODY_LEN, Target::max_body_len)
    }

    /// Sets the clock as a test asks.
    #[cfg(feature = "test-clock")]
    pub fn set_clock(&self, headers: worker::web_sys::Headers) {
        super::clock::set_by(&headers);
    }
}

impl Frontend {
    pub(super) fn settings(&self) -> Result<&Settings, Problem> {
        self.settings.as_ref().map_err(|errors| Problem::Misconfigured { missing: errors.missing.clone() })
    }

    /// The text of the reply to a problem, marked if the policies may be out of date and have a part in it.
    fn marked(&self, problem: &Problem) -> String {
        if problem.is_under_policies() && self.settings.as_ref().is_ok_and(Settings::is_stale) {
            return problem.reply().under_stale_policies().to_text();
        }
        text_of(problem)
    }

    fn route_of(
        &self,
        method: &str,
        url: &str,
        authorization: Option<&str>,
        content_type: Option<&str>,
        content_encoding: Option<&str>,
        content_length: Option<&str>,
    ) -> Result<Result<Route, Reply>, Problem> {
        let (address, settings) = (Address::parse(url)?, self.settings());
        let target = Target::of(address);
        let is_open = match target {
            // It is the same for all callers, and needs no settings.
            Ok(target @ Target::Contract) => {
                target.require_method(method)?;
                return Ok(Ok(target.into()));
            }
            Ok(target @ Target::Health) => {
                target.require_method(method)?;
                return match &self.settings {
                    Ok(_) => Ok(Err(Reply::healthy())),
                    Err(errors) => Err(Problem::Unhealthy { missing: errors.missing.clone() }),
                };
            }
            Ok(Target::Session) => settings.as_ref().is_ok_and(|settings| settings.sessions().is_some()),
            _ => false,
        };
        let settings = settings?;
        let caller = if is_open { None } else { Some(caller(settings, authorization)?) };
        let target = target?;
        if let (Target::Session, Some(_)) = (target, &caller) {
            return Err(no_sessions());
        }
        target.require_method(method)?;
        if let Some(caller) = &caller {
            target.require(caller)?;
        }
        if let Target::Admin(at) = target {
            require_registry(settings, at)?;
            if method != "PUT" {
                return Ok(Ok(target.into())); // a body is not read
            }
        }
        require_json(content_type, content_encoding)?;
        // A declared length is trusted: the runtime holds the client to it.
        match content_length.and_then(|length| length.parse::<u64>().ok()) {
            Some(length) if length > target.max_body_len() as u64 => {
                Err(Problem::BodyTooLarge { max: target.max_body_len() })
            }
            _ => Ok(Ok(target.into())),
        }
    }

    fn call(
        &self,
        url: &str,
        authorization: Option<&str>,
        idempotency_key: Option<&str>,
        body: &[u8],
        now: i64,
    ) -> Result<Call, Problem> {
        let settings = self.settings()?;
        let (caller, target) = permitted(settings, authorization, target(url)?)?;
        let Target::Endpoint(endpoint) = target else { return Err(not_found(url)) };
        let request = Request::parse(endpoint, body)?;
        call_of(settings, &caller, &request, idempotency_key, now)
    }

    /// The text of a question to the registry, and whether its answer may be news here; or a reply, if there is no registry and it is
    /// about this isolate.
    fn question(
        &self,
        method: &str,
        url: &str,
        authorization: Option<&str>,
        if_match: Option<&str>,
        if_none_match: Option<&str>,
        body: &[u8],
    ) -> Result<Result<(String, bool), Reply>, Problem> {
        let settings = self.settings()?;
        let (caller, target) = permitted(settings, authorization, target(url)?)?;
        let Target::Admin(at) = target else { return Err(not_found(url)) };
        require_registry(settings, at)?;
        if body.len() > target.max_body_len() {
            return Err(Problem::BodyTooLarge { max: target.max_body_len() });
        }
        let body = str::from_utf8(body)
            .map_err(|error| Problem::BadRequest { detail: format!("the body is not valid JSON: {error}") })?;
        let question = AdminQuestion {
            method: method.into(),
            path: Address::parse(url)?.path_and_query().into(),
            if_match: if_match.map(Into::into),
            if_none_match: if_none_match.map(Into::into),
            by: caller.name().into(),
            only: caller.policies().map(<[String]>::to_vec),
            body: body.into(),
        };
        if settings.snapshot.is_some() {
            return Ok(Ok((question.to_text(), question.may_be_news())));
        }
        match question.request()? {
            AdminRequest::Metrics => Ok(Err(metrics::own(|totals, _| question.metrics(totals, None)))),
            AdminRequest::TopRefused => Ok(Err(metrics::own(|totals, now| question.top_refused(totals, now)))),
            _ => Err(Problem::NoRegistry),
        }
    }

    /// What is known of the registry, if there is one.
    fn snapshot<T>(&self, step: impl FnOnce(&mut PolicySnapshot, i64) -> T) -> Option<T> {
        let known = self.settings.as_ref().ok()?.snapshot.as_ref()?;
        Some(step(&mut known.borrow_mut(), clock::now()))
    }

    /// A request as JavaScript goes on with it.
    fn begun(&self, call: Result<Call, Problem>) -> JsValue {
        match call {
            Ok(call) if self.sample() == 0.0 && call.needs_only_reply() => call.reply().into(),
            Ok(call) => call.into(),
            Err(problem) => self.marked(&problem).into(),
        }
    }

    fn session_call(&self, body: &[u8], address: Option<&str>, now: i64) -> Result<Call, Problem> {
        let settings = self.settings()?;
        let request = SessionRequest::parse(body, address)?.into_limited(self.sessions()?.policy());
        call_of(settings, &Caller::TRUSTED, &request, None, now)
    }

    fn session_reply(&self, status: u16, answer: &[u8]) -> Result<Reply, Problem> {
        let sessions = self.sessions()?;
        sessions.verify(status, answer).map_err(|error| Problem::Captcha { error })?;
        let random = || random().ok_or(Problem::Unavailable { cause: Cause::Failed });
        Ok(Reply::session(&sessions.open([random()?, random()?], clock::now())))
    }

    fn sessions(&self) -> Result<&Sessions, Problem> {
        self.settings()?.sessions().ok_or_else(no_sessions)
    }
}

/// The calls that answer a valid request.
fn call_of(
    settings: &Settings,
    caller: &Caller<'_>,
    request: &Request<'_>,
    idempotency_key: Option<&str>,
    now: i64,
) -> Result<Call, Problem> {
    let asked = ResolvedRequest::new(request, &settings.policies(), caller, clock::now())
        .inspect_err(|problem| count_too_large(request, problem))?
        .within_shards(idempotency_key.is_some())?
        .spread(random);
    let names: Vec<_> = asked.items().iter().map(|item| settings.names.object_name(&item.key)).collect();
    // A batch is short. In the order of their names, as other frontends ask them.
    let mut objects: Vec<Object> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let at = objects.partition_point(|object| object.name < *name);
        match objects.get_mut(at) {
            Some(object) if object.name == *name => object.items.push(index),
            _ => objects.insert(at, Object::new(name.clone(), index)),
        }
    }
    let by_grant = caller.has_grant();
    let request_id = match idempotency_key {
        Some(key) => RequestId {
            id: settings.names.request_id_of(require_idempotency_key(key)?, caller),
            fingerprint: request.fingerprint(&names),
            ttl_ms: asked.idempotency_ttl_ms(),
            by_grant,
        },
        None => RequestId { id: next_id()?, fingerprint: 0, ttl_ms: 0, by_grant },
    };
    if asked.is_sharded() {
        return sharded_call(settings, asked, request_id, now);
    }
    let is_over_several = objects.len() > 1;
    let hold_ids = objects.iter().filter(|_| is_over_several).map(|_| hold_id()).collect::<Result<Vec<_>, _>>()?;
    Ok(Call::new(asked, request.endpoint == Endpoint::Batch, objects, request_id, &hold_ids, now, settings))
}

/// The calls that answer a request about one budget in several shards.
fn sharded_call(settings: &Settings, asked: ResolvedRequest, request_id: RequestId, now: i64) -> Result<Call, Problem> {
    // A repetition is to be shared out in the same way.
    let random = if request_id.is_lasting() { Some(request_id.fingerprint) } else { random() };
    let random = random.ok_or(Problem::Unavailable { cause: Cause::Failed })?;
    let of_shards = asked.recalled().unwrap_or_else(|| asked.of_shards());
    let names = of_shards.items().iter().filter_map(|item| {
        let shard = item.policy.shard()?;
        Some(settings.names.shard_name(&item.key, shard.index))
    });
    let objects = names.enumerate().map(|(index, name)| Object::new(name, index)).collect();
    Ok(Call::of_shards(asked, of_shards, objects, request_id, random, now, settings))
}

/// A cost that can never be granted is refused here already.
fn count_too_large(request: &Request<'_>, problem: &Problem) {
    if let (Action::Take(_) | Action::Reserve(_), Problem::CostTooLarge { limit, cost, .. }) = (request.action, problem)
    {
        let (policy, limit) = limit.split_once('/').map_or((&**limit, None), |(policy, limit)| (policy, Some(limit)));
        let is_inline = request.items.iter().any(|item| item.policy == policy && item.inline.is_some());
        let policy = if is_inline { INLINE_POLICIES } else { policy };
        metrics::count(|counts| counts.decided(policy, Outcome::Never, false));
        live::observe(|at, show| {
            show(&LiveDecision {
                at,
                policy,
                outcome: Outcome::Never,
                source: "frontend",
                cost: *cost,
                remaining: None,
                retry_at: None,
                limit,
                object: None,
                shards: None,
                cause: None,
                is_refused_in_shadow: false,
            });
        });
    }
}

/// The text of the reply to a problem. After the status is what the log should say of it and the client must not know.
pub(super) fn text_of(problem: &Problem) -> String {
    let text = problem.reply().to_text();
    let note = match problem {
        Problem::Unauthorized { denied } => denied.to_string(),
        // session.mjs has said why.
        Problem::Captcha { error: CaptchaError::Late | CaptchaError::Unanswered } => return text,
        Problem::Captcha { error } => error.to_string(),
        _ => return text,
    };
    let status = text.get(..3).unwrap_or_default();
    text.replacen('\n', &format!(" {status}: {note}\n"), 1)
}

/// As long as the longest that payment APIs accept.
const MAX_IDEMPOTENCY_KEY_LEN: usize = 255;

/// The key, if it is unambiguous. The runtime replaces bytes that are not UTF-8 with U+FFFD, so different keys could
/// become equal.
fn require_idempotency_key(key: &str) -> Result<&str, Problem> {
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_LEN || key.contains(char::REPLACEMENT_CHARACTER) {
        let detail = format!("an Idempotency-Key has 1 to {MAX_IDEMPOTENCY_KEY_LEN} bytes of UTF-8");
        return Err(Problem::BadRequest { detail });
    }
    Ok(key)
}

/// An id for a hold: as long as those that objects make, and never 0, which would ask the object to choose one.
fn hold_id() -> Result<u64, Problem> {
    let id = random().ok_or(Problem::Unavailable { cause: Cause::Failed })?;
    Ok((id >> 12).max(1))
}

/// A unique request id: a random half, generated once, and a counter.
fn next_id() -> Result<u128, Problem> {
    static HALF: OnceLock<Option<u64>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let half = HALF.get_or_init(random).ok_or(Problem::Unavailable { cause: Cause::Failed })?;
    Ok((u128::from(half) << 64) | u128::from(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// 64 random bits. Every Workers runtime has them; without them there is no safe substitute.
pub(super) fn random() -> Option<u64> {
    getrandom::u64().ok()
}
