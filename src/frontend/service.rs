//! The service as seen by one frontend.

use std::rc::Rc;

use super::call::{Asked as AskedOfObjects, Call, Purpose, Terms, Verification};
use super::event::{Budget, Event};
use super::isolate::Isolate;
use super::newer::Newer;
use super::object::Object;
use super::platform_limit::PlatformLimit;
use super::settings::{Settings, SettingsErrors};
use super::{Address, Now, Random, Target};
use crate::access::{Caller, CaptchaError, Sessions, shard_name};
use crate::api::{
    AdminPath, AdminQuestion, AdminRequest, Endpoint, KeyQuestion, Problem, Reply, Request, ResolvedRequest,
    SESSION_PATH, SessionRequest, inspected, require_json,
};
use crate::edge::{Due, PolicySnapshot};
use crate::limit::Verb;
use crate::metrics::{PollOutcome, weight};
use crate::policy::{Cause, FrontendTerms, names_in};
use crate::protocol::{Action, RequestId};

/// The service as seen by one frontend.
#[derive(Debug)]
pub struct Service {
    settings: Result<Settings, SettingsErrors>,
    isolate: Rc<Isolate>,
}

/// An HTTP request before its body is read: each header as sent, if present.
#[expect(missing_docs, reason = "the names say what they are")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival<'a> {
    pub method: &'a str,
    pub url: &'a str,
    pub authorization: Option<&'a str>,
    /// The `props` of the service binding through which it came.
    pub props: Option<&'a str>,
    pub content_type: Option<&'a str>,
    pub content_encoding: Option<&'a str>,
    pub content_length: Option<&'a str>,
}

/// A request with its body, from any transport.
#[expect(missing_docs, reason = "the names say what they are")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The URL, or only its path.
    pub url: &'a str,
    pub authorization: Option<&'a str>,
    /// The `props` of the service binding through which it came.
    pub props: Option<&'a str>,
    pub idempotency_key: Option<&'a str>,
    pub body: &'a [u8],
    /// For a retry under newer policies: that of [`LastStep::Again`](super::LastStep::Again).
    pub newer: Option<&'a Newer>,
    /// Whether its call was lost, with the memory of an instance that panicked. Then it is not made again, only ended.
    pub is_lost: bool,
    pub method: &'a str,
    pub if_match: Option<&'a str>,
    pub if_none_match: Option<&'a str>,
    /// The header `CF-Connecting-IP`.
    pub address: Option<&'a str>,
}

/// What must be known of a request to answer it, besides its body.
#[expect(missing_docs, reason = "the names say what they are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing, not even its body: it is for the contract, whose headers are [`Reply::contract`].
    Contract,
    /// Only the members of [`Asked`] up to its body, which has at most `max_len` bytes.
    Ask { max_len: usize },
    /// All of [`Asked`].
    AskMore { max_len: usize },
    /// The same, after this isolate's counts were reported to the registry.
    Report { max_len: usize },
}

/// The next step of a request.
pub enum Step<'a> {
    /// Send this reply at once.
    Reply(Reply),
    /// Call objects.
    Call(Box<Call>),
    /// Forward it to the registry.
    Administer(AdminQuestion<'a>),
    /// Merge the answers of these objects, by name: see [`Service::inspected`].
    InspectKey(Vec<(String, KeyQuestion)>),
}

/// Why a call of the platform's own rate limiting binding is refused without a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The message for the caller, if it has made a mistake.
    pub mistake: Option<String>,
    /// A line for the log.
    pub note: Option<String>,
}

impl Service {
    /// A service with these settings, in this isolate.
    #[must_use]
    pub const fn new(settings: Result<Settings, SettingsErrors>, isolate: Rc<Isolate>) -> Self {
        Self { settings, isolate }
    }

    /// The errors in the settings, if any.
    #[must_use]
    pub const fn errors(&self) -> Option<&SettingsErrors> {
        match &self.settings {
            Ok(_) => None,
            Err(errors) => Some(errors),
        }
    }

    /// The state shared with all frontends of its isolate.
    #[must_use]
    pub const fn isolate(&self) -> &Rc<Isolate> {
        &self.isolate
    }

    /// Whether notices have a receiver.
    #[must_use]
    pub fn has_receivers(&self) -> bool {
        self.settings.as_ref().is_ok_and(|settings| settings.receivers.is_any())
    }

    /// Checks a request before its body is read.
    ///
    /// # Errors
    /// The reply, if the body need not be read.
    pub fn head(&self, arrival: &Arrival<'_>, now: Now) -> Result<Head, Reply> {
        if arrival.method == "OPTIONS" {
            return Err(Reply::preflight());
        }
        match Target::of(Address::parse(arrival.url).map_err(reply_of)?) {
            // The contract is the same for all callers, and needs no settings.
            Ok(Target::Contract) => {
                Target::Contract.require_method(arrival.method).map_err(reply_of)?;
                Ok(Head::Contract)
            }
            Ok(Target::Health) => {
                Target::Health.require_method(arrival.method).map_err(reply_of)?;
                Err(self.settings.as_ref().map_or_else(
                    |errors| Problem::Unhealthy { missing: errors.missing.clone() }.reply(),
                    |_| Reply::healthy(),
                ))
            }
            target => self.head_of(target, arrival, now).map_err(reply_of),
        }
    }

    fn head_of(&self, target: Result<Target<'_>, Problem>, arrival: &Arrival<'_>, now: Now) -> Result<Head, Problem> {
        let settings = self.settings()?;
        let is_open = matches!(target, Ok(Target::Session)) && settings.sessions().is_some();
        let caller =
            if is_open { None } else { Some(settings.caller((arrival.authorization, arrival.props), now.at)?) };
        let target = target?;
        if let (Target::Session, Some(_)) = (target, &caller) {
            return Err(no_sessions());
        }
        target.require_method(arrival.method)?;
        if let Some(caller) = &caller {
            target.require(caller)?;
        }
        let max_len = target.max_body_len();
        let head = match target {
            Target::Admin(AdminPath::Metrics | AdminPath::TopRefused) => Head::Report { max_len },
            Target::Admin(_) | Target::Session => Head::AskMore { max_len },
            _ => Head::Ask { max_len },
        };
        if let Target::Admin(at) = target {
            require_registry(settings, at)?;
            if ["GET", "DELETE"].contains(&arrival.method) {
                return Ok(head); // a body is not read
            }
        }
        require_json(arrival.content_type, arrival.content_encoding)?;
        // A declared length is trusted: the runtime enforces it.
        let declared = arrival.content_length.and_then(|length| length.parse().ok());
        target.require_len(declared.unwrap_or(0)).map(|()| head)
    }

    /// Handles a whole request: parses it, checks its caller's rights and returns the next step.
    pub fn ask<'a>(&'a self, asked: &Asked<'a>, now: Now, random: Random<'_>) -> Step<'a> {
        self.isolate.begin(now);
        let place = Address::parse(asked.url).and_then(|address| Ok((address, Target::of(address)?)));
        let is_by_policies = matches!(place, Ok((_, Target::Endpoint(_) | Target::Session)));
        self.step(place, asked, now, random).unwrap_or_else(|problem| {
            Step::Reply(if is_by_policies { self.marked(&problem, now) } else { problem.reply() })
        })
    }

    /// Makes a [`Call`] of a call of the platform's own rate limiting binding, whose `props` and argument are JSON; `None` is `undefined`. Its
    /// last step is [`LastStep::Limited`](super::LastStep::Limited).
    ///
    /// # Errors
    /// [`Undecided`].
    pub fn limit(
        &self,
        props: Option<&str>,
        argument: Option<&str>,
        (newer, is_lost): (Option<&Newer>, bool),
        now: Now,
        random: Random<'_>,
    ) -> Result<Box<Call>, Undecided> {
        self.isolate.begin(now);
        let call = PlatformLimit::parse(props, argument).and_then(|PlatformLimit { caller, request }| {
            let asked = Asked { newer, is_lost, ..Asked::default() };
            self.call_of(&request, &caller, Purpose::Limit, &asked, now, random)
        });
        call.map(Box::new).map_err(|problem| undecided(&problem))
    }

    fn step<'a>(
        &'a self,
        place: Result<(Address<'a>, Target<'a>), Problem>,
        asked: &Asked<'a>,
        now: Now,
        random: Random<'_>,
    ) -> Result<Step<'a>, Problem> {
        let settings = self.settings()?;
        let (address, target) = place?;
        if let Target::Session = target {
            return self.session_call(asked, now, random).map(|call| Step::Call(Box::new(call)));
        }
        let caller = settings.caller((asked.authorization, asked.props), now.at)?;
        // Checked again here: a grant may have ended while the body arrived.
        target.require(&caller)?;
        target.require_len(asked.body.len() as u64)?;
        match target {
            Target::Endpoint(endpoint) => {
                let mut request = Request::parse(endpoint, asked.body)?;
                request.recognize_keys(settings.names.hasher());
                let purpose = match endpoint {
                    Endpoint::ResetKey | Endpoint::Credit => {
                        Purpose::Act { by: caller.name().to_owned(), has_registry: settings.registry.is_some() }
                    }
                    _ => Purpose::Answer,
                };
                let call = self.call_of(&request, &caller, purpose, asked, now, random)?;
                Ok(Step::Call(Box::new(call)))
            }
            Target::InspectKey => super::keys::questions(settings, &caller, asked.body, now).map(Step::InspectKey),
            Target::Admin(at) => {
                require_registry(settings, at)?;
                self.administer(settings, (at, address.query()), &caller, asked, now, random)
            }
            Target::Contract | Target::Health | Target::Session => Err(not_found(address.path())),
        }
    }

    fn administer<'a>(
        &self,
        settings: &Settings,
        (at, query): (AdminPath<'a>, &'a str),
        caller: &Caller<'_>,
        asked: &Asked<'a>,
        now: Now,
        random: Random<'_>,
    ) -> Result<Step<'a>, Problem> {
        let body = str::from_utf8(asked.body)
            .map_err(|error| Problem::BadRequest { detail: format!("the body is not valid JSON: {error}") })?;
        let question = AdminQuestion {
            act: at.act(asked.method)?,
            query: query.into(),
            if_match: asked.if_match.map(Into::into),
            if_none_match: asked.if_none_match.map(Into::into),
            by: caller.name().to_owned().into(),
            only: caller.policies().map(<[String]>::to_vec),
            body: body.into(),
        };
        if settings.registry.is_some() {
            return Ok(Step::Administer(question));
        }
        let reply = match question.request()? {
            AdminRequest::Metrics => self.isolate.own(now, random, |totals| question.metrics(totals, None)),
            AdminRequest::TopRefused => self.isolate.own(now, random, |totals| question.top_refused(totals, now.at)),
            _ => return Err(Problem::NoRegistry),
        };
        Ok(Step::Reply(reply))
    }

    /// The calls that rate-limit a visitor's request for a session.
    fn session_call(&self, asked: &Asked<'_>, now: Now, random: Random<'_>) -> Result<Call, Problem> {
        let sessions = self.sessions()?;
        Target::Session.require_len(asked.body.len() as u64)?;
        let request = SessionRequest::parse(asked.body, asked.address)?;
        let verification = Verification {
            url: sessions.verify_url().to_owned(),
            secret: sessions.secret().to_owned(),
            captcha: request.captcha.clone().into_owned(),
            address: asked.address.unwrap_or_default().to_owned(),
        };
        let limited = request.into_limited(sessions.policy());
        let asked = Asked { idempotency_key: None, ..*asked };
        self.call_of(&limited, &Caller::TRUSTED, Purpose::Session(verification), &asked, now, random)
    }

    /// The reply to a visitor, from the captcha verifier's answer.
    #[must_use]
    pub fn session(&self, status: u16, answer: &[u8], now: Now, random: Random<'_>) -> Reply {
        self.opened(status, answer, now, random).unwrap_or_else(reply_of)
    }

    fn opened(&self, status: u16, answer: &[u8], now: Now, random: Random<'_>) -> Result<Reply, Problem> {
        let sessions = self.sessions()?;
        sessions.verify(status, answer).map_err(|error| Problem::Captcha { error })?;
        let mut random = || random().ok_or(Problem::Unavailable { cause: Cause::Failed });
        Ok(Reply::session(&sessions.open([random()?, random()?], now.at)))
    }

    /// The reply to a visitor when the verifier did not answer, in time or at all.
    #[must_use]
    pub fn unverified(is_late: bool) -> Reply {
        Problem::Captcha { error: if is_late { CaptchaError::Late } else { CaptchaError::Unanswered } }.reply()
    }

    /// Maximum wait in milliseconds for each answer that an operator's request needs: longer than a caller's, since an operator would rather
    /// wait.
    pub const OPERATOR_MS: u32 = 5_000;

    /// The reply to an operator when the registry did not answer, in time or at all.
    #[must_use]
    pub fn not_administered(is_late: bool) -> Reply {
        Problem::RegistryUnavailable { cause: cause_of(is_late) }.reply()
    }

    /// The reply about an inspected key, from the answers of its objects, its own first.
    #[must_use]
    pub fn inspected(states: &[String]) -> Reply {
        inspected(states).unwrap_or_else(|problem| {
            let mut reply = problem.reply();
            reply.note = Some(
                "the state that an object reports of a key is unreadable: the object is of another version".to_owned(),
            );
            reply
        })
    }

    /// The reply about a key that could not be inspected: one of its objects did not answer, in time or at all.
    #[must_use]
    pub fn not_inspected(&self, is_late: bool, now: Now) -> Reply {
        self.marked(&Problem::Unavailable { cause: cause_of(is_late) }, now)
    }

    /// The reply when the body could not be read; without an error, it did not arrive in time.
    #[must_use]
    pub fn unreadable(error: Option<&str>) -> Reply {
        let why = |error: &str| Problem::BadRequest { detail: format!("the body cannot be read: {error}") };
        error.map_or(Problem::RequestTimeout, why).reply()
    }

    /// The reply after an internal error that should be impossible.
    #[must_use]
    pub fn failed(&self, now: Now) -> Reply {
        self.marked(&Problem::Unavailable { cause: Cause::Failed }, now)
    }

    /// The calls for a valid request.
    fn call_of(
        &self,
        request: &Request<'_>,
        caller: &Caller<'_>,
        purpose: Purpose,
        asked: &Asked<'_>,
        now: Now,
        random: Random<'_>,
    ) -> Result<Call, Problem> {
        let settings = self.settings()?;
        let in_force = settings.in_force(asked.newer);
        let (policies, is_repeatable) = (in_force.policies(), asked.idempotency_key.is_some());
        let whole = match ResolvedRequest::new(request, policies, caller, now.at) {
            Err(problem) if is_repeatable => ResolvedRequest::done_before(request, policies, caller, now.at, problem),
            whole => whole,
        };
        let whole = whole
            .inspect_err(|problem| self.tell_too_large(request, problem, now))?
            .within_shards(is_repeatable)?
            .spread(&mut *random);
        let keys: Vec<_> = whole.items().iter().map(|item| settings.names.object_name(&item.key)).collect();
        let by_grant = caller.has_grant();
        let request_id = if let Some(key) = asked.idempotency_key {
            RequestId {
                id: settings.names.request_id_of(require_idempotency_key(key)?, caller),
                fingerprint: request.fingerprint(&keys),
                ttl_ms: idempotency_ttl_ms(&whole),
                by_grant,
            }
        } else {
            // Shards that did their part of an earlier try recognize it. Other requests were not carried out, or can be repeated.
            let is_once = matches!(whole.action(), Action::Take(Verb::Refund) | Action::Extend(_));
            let of_earlier = asked.newer.filter(|_| whole.items().len() == 1 && is_once).map(|newer| newer.id);
            let id = of_earlier.or_else(|| self.isolate.next_id(&mut *random)).ok_or(NO_RANDOMNESS)?;
            RequestId { id, fingerprint: 0, ttl_ms: 0, by_grant }
        };
        let terms = Terms {
            id: request_id.id,
            tries: asked.newer.map_or(0, |newer| newer.tries),
            in_force,
            is_stale: settings.is_stale(now.at),
            sends_definitions: settings.sends_definitions,
            receivers: settings.receivers,
            has_points: settings.sample > 0.0,
        };
        let is_sharded = whole.is_sharded();
        let of_shards = is_sharded.then(|| whole.recalled().unwrap_or_else(|| whole.of_shards()));
        let of_objects = AskedOfObjects { whole, of_shards, purpose, terms };
        let mut call = if is_sharded {
            let objects = keys.first().map(|own| shards_of(&of_objects, own)).unwrap_or_default();
            Call::of_shards(of_objects, objects, request_id, (settings, &self.isolate), now)
        } else {
            let objects = objects_of(keys);
            let is_over_several = objects.len() > 1;
            let hold_ids = objects.iter().filter(|_| is_over_several).map(|_| hold_id(&mut *random));
            let hold_ids = hold_ids.collect::<Option<Vec<_>>>().ok_or(NO_RANDOMNESS)?;
            let is_repeated = asked.newer.is_some() || asked.is_lost;
            Call::new(of_objects, objects, (request_id, is_repeated), &hold_ids, (settings, &self.isolate), now)
        };
        if asked.is_lost {
            call.lose(now);
        }
        Ok(call)
    }

    /// Reports a cost that can never be granted, which is refused here without a call.
    fn tell_too_large(&self, request: &Request<'_>, problem: &Problem, now: Now) {
        let Problem::CostTooLarge { limit, .. } = problem else { return };
        let (policy, _) = names_in(limit);
        let is_inline = request.items.iter().any(|item| item.policy == policy && item.inline.is_some());
        if let Some(budget) = Budget::too_large(request.action, problem, is_inline, now.at) {
            self.isolate.on(Event::Budget(&budget));
        }
    }

    /// The reply to a problem, marked if stale policies may have contributed to it.
    fn marked(&self, problem: &Problem, now: Now) -> Reply {
        let is_stale = || self.settings.as_ref().is_ok_and(|settings| settings.is_stale(now.at));
        let is_marked = problem.is_under_policies() && is_stale();
        problem.reply().marked(|marks| marks.stale_policies = is_marked)
    }

    fn settings(&self) -> Result<&Settings, Problem> {
        self.settings.as_ref().map_err(|errors| Problem::Misconfigured { missing: errors.missing.clone() })
    }

    fn sessions(&self) -> Result<&Sessions, Problem> {
        self.settings()?.sessions().ok_or_else(no_sessions)
    }
}

/// A frontend's copy of the registry; empty without one.
impl Service {
    /// Whether there is a registry.
    #[must_use]
    pub fn has_registry(&self) -> bool {
        self.registry(|_| ()).is_some()
    }

    /// Whether to poll the registry.
    #[must_use]
    pub fn due(&self, now: Now) -> Due {
        self.registry(|known| known.due(now.at)).unwrap_or(Due::Nothing)
    }

    /// The poll to send; `None` while one is in flight. Then call [`Service::updated`] or [`Service::not_updated`].
    #[must_use]
    pub fn poll(&self, now: Now) -> Option<String> {
        self.registry(|known| known.poll(now.at)).flatten()
    }

    /// Takes the registry's answer. Returns the next poll, if there is one.
    ///
    /// # Errors
    /// The malformed parts of the answer, one line each.
    pub fn updated(&self, answer: &str, now: Now) -> Result<Option<String>, Vec<String>> {
        self.isolate.count(|counts| counts.polled(PollOutcome::Answered));
        let updated = self.registry(|known| (known.update(answer), known.listeners().map(str::to_owned)));
        let Some((asked, listeners)) = updated else { return Ok(None) };
        self.isolate.on_listeners(listeners.as_deref(), now);
        asked
    }

    /// Records that the registry did not answer.
    pub fn not_updated(&self) {
        self.isolate.count(|counts| counts.polled(PollOutcome::Failed));
        self.registry(PolicySnapshot::fail);
    }

    /// The known state of the registry, for another frontend's [`Service::restore`]; `None` if unchanged since the last call.
    #[must_use]
    pub fn news(&self) -> Option<String> {
        self.registry(PolicySnapshot::news).flatten()
    }

    /// Takes over another frontend's known state.
    pub fn restore(&self, known: &str) {
        self.registry(|snapshot| snapshot.restore(known));
    }

    /// See [`weight`]: without a data set no request has one.
    #[must_use]
    pub fn point_weight(&self, random: f64) -> Option<f64> {
        weight(self.settings.as_ref().ok()?.sample, random)
    }

    fn registry<T>(&self, step: impl FnOnce(&mut PolicySnapshot) -> T) -> Option<T> {
        let known = self.settings.as_ref().ok()?.registry.as_ref()?;
        Some(step(&mut known.borrow_mut()))
    }
}

/// Without a registry, only this isolate's counts are available.
fn require_registry(settings: &Settings, at: AdminPath<'_>) -> Result<(), Problem> {
    if settings.registry.is_none() && !matches!(at, AdminPath::Metrics | AdminPath::TopRefused) {
        return Err(Problem::NoRegistry);
    }
    Ok(())
}

/// A problem of a call of the platform's method, which is refused without a decision, too: such a policy does not fail open.
fn undecided(problem: &Problem) -> Undecided {
    let Reply { status, note, .. } = problem.reply();
    let mistake = (![429, 503].contains(&status)).then(|| format!("tollgate: {}", problem.detail()));
    Undecided { mistake, note: note.map(|note| format!("{status}: {note}")) }
}

#[expect(clippy::needless_pass_by_value, reason = "for errors")]
fn reply_of(problem: Problem) -> Reply {
    problem.reply()
}

const fn cause_of(is_late: bool) -> Cause {
    if is_late { Cause::Timeout } else { Cause::Failed }
}

fn no_sessions() -> Problem {
    not_found(SESSION_PATH)
}

/// The problem for a path that is served elsewhere.
fn not_found(path: &str) -> Problem {
    Problem::NotFound { path: path.to_owned() }
}

/// The objects with these names, each with its items of the request, in the order of their names, as all frontends call them. Batches are
/// short.
fn objects_of(names: Vec<String>) -> Vec<Object> {
    let mut objects: Vec<Object> = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let at = objects.partition_point(|object| object.name < name);
        match objects.get_mut(at) {
            Some(object) if object.name == name => object.items.push(index),
            _ => objects.insert(at, Object::new(name, vec![index])),
        }
    }
    objects
}

/// The objects of its only budget's shards, one per item of its parts; `own` is the name of the key's own object.
fn shards_of(asked: &AskedOfObjects, own: &str) -> Vec<Object> {
    let shards = asked.parts().items().iter().filter_map(|item| item.policy.shard());
    shards.enumerate().map(|(index, shard)| Object::new(shard_name(own, shard.index), vec![index])).collect()
}

/// The longest that payment APIs accept.
const MAX_IDEMPOTENCY_KEY_LEN: usize = 255;

/// The key, if unambiguous. The runtime replaces invalid UTF-8 with U+FFFD, so different keys could become equal.
fn require_idempotency_key(key: &str) -> Result<&str, Problem> {
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_LEN || key.contains(char::REPLACEMENT_CHARACTER) {
        let detail = format!("an Idempotency-Key has 1 to {MAX_IDEMPOTENCY_KEY_LEN} bytes of UTF-8");
        return Err(Problem::BadRequest { detail });
    }
    Ok(key)
}

/// How long the request's `Idempotency-Key` is remembered: the longest of its policies' times, so that all its budgets know it.
fn idempotency_ttl_ms(request: &ResolvedRequest) -> u64 {
    let each = request.items().iter().map(|item| item.policy.frontend().idempotency_ttl_ms);
    each.max().unwrap_or(FrontendTerms::IDEMPOTENCY_TTL_MS)
}

/// A hold's id: as long as the objects' own, and never 0, which would ask the object to choose one.
fn hold_id(random: Random<'_>) -> Option<u64> {
    Some((random()? >> 12).max(1))
}

/// All Workers runtimes have a source of randomness; there is no safe substitute.
const NO_RANDOMNESS: Problem = Problem::Unavailable { cause: Cause::Failed };
