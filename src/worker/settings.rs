//! The settings of a deployment: its policies and secrets, as they are in its environment.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use js_sys::{JSON, Reflect};
use worker::{Env, console_error, console_log};

use super::clock;
use super::local_state::OwnState;
use crate::access::{CredentialSettings, Credentials, Names, SessionSettings, Sessions, Webhook};
use crate::api::Missing;
use crate::edge::PolicySnapshot;
use crate::key_hash::KeyHasher;
use crate::metrics::sample;
use crate::policy::{Policies, PolicyError};

/// What a frontend answers with, without errors.
pub(super) struct Settings {
    policies: Arc<Policies>,
    /// What is known of the registry, if there is one.
    pub(super) snapshot: Option<RefCell<PolicySnapshot>>,
    /// Whether objects are sent the definitions of the policies at once: those that are written in code, no object has.
    pub(super) sends_definitions: bool,
    pub(super) names: Names,
    /// The share of decisions to be written as data points.
    pub(super) sample: f64,
    /// Who is told of notices.
    pub(super) receivers: Receivers,
    pub(super) local_state: OwnState,
    pub(super) callers: Callers,
}

/// How callers show who they are.
pub(super) enum Callers {
    /// By a header.
    WithCredentials(Box<Credentials>),
    /// By a service binding, whose `props` say what they may do.
    Bound,
    /// Not at all: they have the service in their own program.
    Trusted,
}

/// What is wrong with settings.
pub(super) struct SettingsErrors {
    /// A line for each error.
    pub(super) lines: Vec<String>,
    /// What is missing altogether; there is a line for each.
    pub(super) missing: Vec<Missing>,
}

impl SettingsErrors {
    /// What is missing has no other errors.
    fn new(missing: Vec<Missing>, others: Vec<String>) -> Self {
        let hidden = missing.contains(&Missing::Policies).then_some(POLICIES);
        let others = others.into_iter().filter(|line| hidden.is_none_or(|name| !line.starts_with(name)));
        let lines = missing.iter().map(|missing| missing.advice().to_owned()).chain(others).collect();
        Self { lines, missing }
    }
}

impl Settings {
    /// The settings of the service. Logs a line for each policy, or for each error.
    ///
    /// # Errors
    /// A line for each.
    pub(super) fn read(env: &Env) -> Result<Self, SettingsErrors> {
        let token = setting(env, "TOLLGATE_TOKEN");
        let Policed { policies, .. } = policies_in(env);
        let policy_names: Option<Vec<_>> =
            policies.as_ref().ok().map(|policies| policies.iter().map(|policy| policy.name()).collect());
        let credentials = Credentials::new(CredentialSettings {
            tokens: setting(env, "TOLLGATE_TOKENS").as_deref(),
            token: token.as_deref(),
            grant_keys: setting(env, "TOLLGATE_GRANT_KEYS").as_deref(),
            audience: setting(env, "TOLLGATE_AUDIENCE").as_deref(),
            sessions: SessionSettings {
                sessions: setting(env, "TOLLGATE_SESSIONS").as_deref(),
                secret: setting(env, "TURNSTILE_SECRET").as_deref(),
                policies: policy_names.as_deref(),
            },
        });
        let names = Names::new(setting(env, KEY_SECRET).as_deref());
        let (sample, receivers, registry) = (sample_in(env), Receivers::read(env), registry_in(env));
        let missing = missing_in(env);
        match (policies, names, credentials, sample, receivers, registry) {
            (Ok(policies), Ok(names), Ok(credentials), Ok(sample), Ok(receivers), Ok(())) if missing.is_empty() => {
                for policy in policies.iter() {
                    console_log!("policy {}", policy.lint());
                }
                if !receivers.is_any() && policies.iter().any(|policy| policy.notify().is_some()) {
                    console_log!(
                        "policies have notices, but there is no receiver: set TOLLGATE_WEBHOOK_URL, or bind a queue as NOTICES"
                    );
                }
                if token.is_some() {
                    console_log!(
                        "TOLLGATE_TOKEN may consume and adjust: TOLLGATE_TOKENS can have several tokens, each with less"
                    );
                }
                let snapshot = snapshot_in(env, &policies, &names);
                Ok(Self {
                    policies,
                    snapshot,
                    sends_definitions: false,
                    names,
                    sample,
                    receivers,
                    local_state: OwnState::default(),
                    callers: Callers::WithCredentials(Box::new(credentials)),
                })
            }
            (policies, names, credentials, sample, receivers, registry) => {
                let mut errors: Vec<_> = policies.err().iter().flat_map(|all| all.iter()).map(line).collect();
                errors.extend(credentials.err().into_iter().flatten().map(line));
                errors.extend(names.err().map(line));
                errors.extend(sample.err());
                errors.extend(receivers.err().into_iter().flatten());
                errors.extend(registry.err());
                let errors = SettingsErrors::new(missing, errors);
                for error in &errors.lines {
                    console_error!("settings: {error}");
                }
                Err(errors)
            }
        }
    }

    /// The policies to answer under: those of the registry as far as it is known, else those of the deployment.
    pub(super) fn policies(&self) -> Arc<Policies> {
        self.snapshot.as_ref().map_or_else(|| Arc::clone(&self.policies), |known| Arc::clone(known.borrow().policies()))
    }

    /// The registry's latest change that is known for all of these policies; `None` without a registry.
    pub(super) fn as_of<'a>(&self, policies: impl IntoIterator<Item = &'a str>) -> Option<i64> {
        self.snapshot.as_ref().map(|known| known.borrow().as_of(policies))
    }

    /// Whether there may be newer policies, since the registry has not answered for too long.
    pub(super) fn is_stale(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|known| known.borrow().is_stale(clock::now()))
    }

    /// The sessions that visitors may open, if there are any.
    pub(super) fn sessions(&self) -> Option<&Sessions> {
        match &self.callers {
            Callers::WithCredentials(credentials) => credentials.sessions(),
            Callers::Bound | Callers::Trusted => None,
        }
    }

    /// The settings of a frontend whose callers are trusted, with the policies in `env`, or those of this JSON text. It is told
    /// where the objects are.
    ///
    /// # Errors
    /// A line for each.
    pub(super) fn trusting(env: &Env, in_code: Option<&str>) -> Result<Self, SettingsErrors> {
        let missing = if in_code.is_none() { missing_in(env) } else { Vec::new() };
        let missing = missing.into_iter().filter(|missing| *missing != Missing::Objects).collect();
        Self::without_credentials(env, in_code, missing, Callers::Trusted)
    }

    /// The settings of the service for callers who hold a binding to it.
    ///
    /// # Errors
    /// A line for each.
    pub(super) fn bound(env: &Env) -> Result<Self, SettingsErrors> {
        Self::without_credentials(env, None, missing_in(env), Callers::Bound)
    }

    fn without_credentials(
        env: &Env,
        in_code: Option<&str>,
        missing: Vec<Missing>,
        callers: Callers,
    ) -> Result<Self, SettingsErrors> {
        let policies = match in_code {
            None => policies_in(env).policies.map_err(|errors| errors.iter().map(line).collect()),
            Some("{}") => Ok(Arc::default()), // requests bring their own limits
            Some(json) => Policies::parse(json).map(Arc::new).map_err(|errors| {
                // They are the option `policies`, not the variable.
                errors.iter().map(|error| line(error).replacen(POLICIES, "policies", 1)).collect::<Vec<_>>()
            }),
        };
        let registry = if in_code.is_none() { registry_in(env) } else { Ok(()) };
        match (policies, names_in(env), sample_in(env), Receivers::read(env), registry) {
            (Ok(policies), Ok(names), Ok(sample), Ok(receivers), Ok(())) if missing.is_empty() => {
                let snapshot = if in_code.is_none() { snapshot_in(env, &policies, &names) } else { None };
                let sends_definitions = in_code.is_some();
                Ok(Self {
                    policies,
                    snapshot,
                    sends_definitions,
                    names,
                    sample,
                    receivers,
                    local_state: OwnState::default(),
                    callers,
                })
            }
            (policies, names, sample, receivers, registry) => {
                let errors = policies.err().into_iter().flatten().chain(names.err()).chain(sample.err());
                let errors = errors.chain(receivers.err().into_iter().flatten()).chain(registry.err());
                Err(SettingsErrors::new(missing, errors.collect()))
            }
        }
    }
}

/// Who is told of notices.
pub(super) struct Receivers {
    pub(super) webhook: Option<Webhook>,
    has_queue: bool,
    /// Whether notices have the keys as callers write them.
    pub(super) get_keys: bool,
}

impl Receivers {
    /// Whether there are any.
    pub(super) const fn is_any(&self) -> bool {
        self.webhook.is_some() || self.has_queue
    }

    fn read(env: &Env) -> Result<Self, Vec<String>> {
        let (url, secret) = (setting(env, "TOLLGATE_WEBHOOK_URL"), setting(env, "TOLLGATE_WEBHOOK_SECRET"));
        let webhook = Webhook::new(url.as_deref(), secret.as_deref());
        let get_keys = match setting(env, NOTICE_KEYS).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(format!("{NOTICE_KEYS} must be true or false")),
        };
        match (webhook, get_keys) {
            (Ok(webhook), Ok(get_keys)) => Ok(Self { webhook, has_queue: has(env, "NOTICES"), get_keys }),
            (webhook, get_keys) => Err(webhook.err().into_iter().flatten().map(line).chain(get_keys.err()).collect()),
        }
    }
}

const NOTICE_KEYS: &str = "TOLLGATE_NOTICE_KEYS";

/// Whether there is a binding of that name.
fn has(env: &Env, binding: &str) -> bool {
    Reflect::get(env, &binding.into()).is_ok_and(|value| !value.is_null_or_undefined())
}

/// Whether a Durable Object namespace is bound under that name.
fn is_namespace(env: &Env, binding: &str) -> bool {
    let value = Reflect::get(env, &binding.into()).unwrap_or_default();
    value.is_object() && Reflect::get(&value, &"getByName".into()).is_ok_and(|method| method.is_function())
}

/// What a service lacks altogether.
fn missing_in(env: &Env) -> Vec<Missing> {
    let objects = (!is_namespace(env, "KEYS")).then_some(Missing::Objects);
    let policies = matches!(policies_text(env).as_str(), "null" | "{}").then_some(Missing::Policies);
    objects.into_iter().chain(policies).collect()
}

/// Whether the registry may be used, if there is one.
///
/// # Errors
/// If something else is bound in its place.
fn registry_in(env: &Env) -> Result<(), String> {
    if has(env, REGISTRY) && !is_namespace(env, REGISTRY) {
        return Err(format!(
            "{REGISTRY}: is not a Durable Object namespace: bind the class PolicyRegistry under this name, or nothing"
        ));
    }
    Ok(())
}

/// What is to be known of the registry, if `env` has one.
fn snapshot_in(env: &Env, policies: &Policies, names: &Names) -> Option<RefCell<PolicySnapshot>> {
    let snapshot = || PolicySnapshot::new(&policies_text(env), policies).hashing(names.hasher().clone());
    has(env, REGISTRY).then(|| RefCell::new(snapshot()))
}

/// What hashes keys in this deployment. Without a usable secret no frontend asks for it.
pub(super) fn hasher_in(env: &Env) -> KeyHasher {
    names_in(env).map(|names| names.hasher().clone()).unwrap_or_default()
}

/// The names of objects; without a secret, anybody can find the key of one.
fn names_in(env: &Env) -> Result<Names, String> {
    let secret = Reflect::get(env, &KEY_SECRET.into()).ok().filter(|secret| !secret.is_null_or_undefined());
    match secret.map(|secret| secret.as_string()) {
        None => Ok(Names::without_secret()),
        Some(None) => Err(format!("{KEY_SECRET} must be text")),
        Some(secret) => Names::new(secret.as_deref()).map_err(line),
    }
}

fn line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The share of decisions that are written: none without a data set.
fn sample_in(env: &Env) -> Result<f64, String> {
    let share = sample(setting(env, "TOLLGATE_METRICS_SAMPLE").as_deref())?;
    let has_data_set = Reflect::get(env, &"METRICS".into()).is_ok_and(|data_set| data_set.is_truthy());
    Ok(if has_data_set { share } else { 0.0 })
}

/// A variable or a secret: a text as it is, an object as JSON.
fn setting(env: &Env, name: &str) -> Option<String> {
    let value = Reflect::get(env, &name.into()).ok()?;
    value.as_string().or_else(|| JSON::stringify(&value).ok()?.as_string())
}

/// The policies of an object's own deployment: none if there are none, or if they have errors. It decides all the same, under
/// the definitions that come with requests.
pub(super) fn own_policies(env: &Env) -> Arc<Policies> {
    if Reflect::get(env, &POLICIES.into()).is_ok_and(|value| value.is_undefined()) {
        return Arc::default();
    }
    let Policed { policies, is_new } = policies_in(env);
    policies.unwrap_or_else(|errors| {
        for error in errors.iter().filter(|_| is_new) {
            console_error!("settings: {error}");
        }
        Arc::default()
    })
}

/// The policies in `env`. All objects of an isolate, and its frontends, share those of the same text.
fn policies_in(env: &Env) -> Policed {
    static LAST: Mutex<Option<(String, Parsed)>> = Mutex::new(None);
    let text = policies_text(env);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, policies)) = last.as_ref().filter(|(last, _)| *last == text) {
        return Policed { policies: policies.clone(), is_new: false };
    }
    let policies = Policies::parse(&text).map(Arc::new).map_err(Arc::from);
    *last = Some((text, policies.clone()));
    Policed { policies, is_new: true }
}

fn policies_text(env: &Env) -> String {
    // Not `Env::object_var`: it takes the object's own member `constructor`, should a policy have that name, for its class.
    let text = Reflect::get(env, &POLICIES.into()).and_then(|value| JSON::stringify(&value));
    text.ok().and_then(|text| text.as_string()).unwrap_or_else(|| "null".to_owned())
}

type Parsed = Result<Arc<Policies>, Arc<[PolicyError]>>;

struct Policed {
    policies: Parsed,
    /// Whether nothing has read them before.
    is_new: bool,
}

const POLICIES: &str = "POLICIES";
const REGISTRY: &str = "REGISTRY";
const KEY_SECRET: &str = "TOLLGATE_KEY_SECRET";
