//! The settings of a deployment: its policies and secrets, as they are in its environment.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use js_sys::{JSON, Reflect};
use worker::{Env, console_error, console_log};

use crate::access::{CredentialSettings, Credentials, Names, SessionSettings, Webhook};
use crate::api::Missing;
use crate::edge::PolicySnapshot;
use crate::frontend::{self, Callers, Settings, SettingsErrors};
use crate::key_hash::KeyHasher;
use crate::metrics::sample;
use crate::policy::{Policies, PolicyError};

/// What the settings of a frontend say.
pub(super) struct Read {
    pub(super) settings: Result<Settings, SettingsErrors>,
    /// Who is told of notices.
    pub(super) receivers: Receivers,
    /// The share of decisions to be written as data points.
    pub(super) sample: f64,
}

/// The settings of the service. Logs a line for each policy, or for each error.
pub(super) fn read(env: &Env) -> Read {
    let token = setting(env, "TOLLGATE_TOKEN");
    let policies = policies_in(env).policies;
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
    let credentials = credentials.map(|credentials| Callers::WithCredentials(Box::new(credentials)));
    let credentials = credentials.map_err(|errors| errors.iter().map(line).collect());
    let names = Names::new(setting(env, KEY_SECRET).as_deref()).map_err(line);
    let parts = Parts { policies: lines_of(policies), names, callers: credentials, missing: missing_in(env) };
    let read = parts.read(env, true, false);
    match &read.settings {
        Ok(settings) => {
            for policy in settings.policies.iter() {
                console_log!("policy {}", policy.lint());
            }
            if settings.receivers == frontend::Receivers::None
                && settings.policies.iter().any(|policy| policy.object().notify.is_some())
            {
                console_log!(
                    "policies have notices, but there is no receiver: set TOLLGATE_WEBHOOK_URL, or bind a queue as NOTICES"
                );
            }
            if token.is_some() {
                console_log!(
                    "TOLLGATE_TOKEN may consume and adjust: TOLLGATE_TOKENS can have several tokens, each with less"
                );
            }
        }
        Err(errors) => {
            for error in &errors.lines {
                console_error!("settings: {error}");
            }
        }
    }
    read
}

/// The settings of a frontend whose callers are trusted, with the policies in `env`, or those of this JSON text. It is told
/// where the objects are.
pub(super) fn trusting(env: &Env, in_code: Option<&str>) -> Read {
    let missing = if in_code.is_none() { missing_in(env) } else { Vec::new() };
    let policies = match in_code {
        None => lines_of(policies_in(env).policies),
        Some("{}") => Ok(Arc::default()), // requests bring their own limits
        Some(json) => Policies::parse(json).map(Arc::new).map_err(|errors| {
            // They are the option `policies`, not the variable.
            errors.iter().map(|error| line(error).replacen(POLICIES, "policies", 1)).collect()
        }),
    };
    let missing = missing.into_iter().filter(|missing| *missing != Missing::Objects).collect();
    let parts = Parts { policies, names: names_in(env), callers: Ok(Callers::Trusted), missing };
    parts.read(env, in_code.is_none(), in_code.is_some())
}

/// The settings of the service for callers who hold a binding to it.
pub(super) fn bound(env: &Env) -> Read {
    let policies = lines_of(policies_in(env).policies);
    let parts = Parts { policies, names: names_in(env), callers: Ok(Callers::Bound), missing: missing_in(env) };
    parts.read(env, true, false)
}

/// What differs between frontends, each part perhaps with errors.
struct Parts {
    policies: Result<Arc<Policies>, Vec<String>>,
    names: Result<Names, String>,
    callers: Result<Callers, Vec<String>>,
    missing: Vec<Missing>,
}

impl Parts {
    /// The settings, with what is the same for all frontends.
    fn read(self, env: &Env, may_have_registry: bool, sends_definitions: bool) -> Read {
        let Self { policies, names, callers, missing } = self;
        let registry = if may_have_registry { registry_in(env) } else { Ok(()) };
        let (receivers, receiver_errors) = match Receivers::read(env) {
            Ok(receivers) => (receivers, Vec::new()),
            Err(errors) => (Receivers::default(), errors),
        };
        let (sample, sample_error) = match sample_in(env) {
            Ok(sample) => (sample, None),
            Err(error) => (0.0, Some(error)),
        };
        let is_right = missing.is_empty() && receiver_errors.is_empty() && sample_error.is_none() && registry.is_ok();
        let settings = match (policies, names, callers) {
            (Ok(policies), Ok(names), Ok(callers)) if is_right => Ok(Settings {
                registry: if may_have_registry { snapshot_in(env, &policies, &names) } else { None },
                policies,
                sends_definitions,
                names,
                receivers: receivers.told(),
                callers,
                memory: Rc::default(),
            }),
            (policies, names, callers) => {
                let errors = policies.err().into_iter().flatten().chain(callers.err().into_iter().flatten());
                let errors = errors.chain(names.err()).chain(sample_error).chain(receiver_errors).chain(registry.err());
                Err(SettingsErrors::new(missing, errors.collect()))
            }
        };
        Read { settings, receivers, sample }
    }
}

fn lines_of(policies: Parsed) -> Result<Arc<Policies>, Vec<String>> {
    policies.map_err(|errors| errors.iter().map(line).collect())
}

/// Who is told of notices.
#[derive(Default)]
pub(super) struct Receivers {
    pub(super) webhook: Option<Webhook>,
    has_queue: bool,
    /// Whether notices have the keys as callers write them.
    get_keys: bool,
}

impl Receivers {
    const fn told(&self) -> frontend::Receivers {
        match (self.webhook.is_some() || self.has_queue, self.get_keys) {
            (false, _) => frontend::Receivers::None,
            (true, false) => frontend::Receivers::OfHashes,
            (true, true) => frontend::Receivers::OfKeys,
        }
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
