//! Reads a Worker's deployment: its policies, secrets and bindings.
//!
//! Each kind of frontend needs other settings. All errors are reported at once, one line each, naming the setting.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use super::settings::{Callers, Receivers, Settings, SettingsErrors};
use crate::access::{CredentialSettings, Credentials, Key, Names, SessionSettings, Webhook, setting};
use crate::api::Missing;
use crate::edge::PolicySnapshot;
use crate::json::Json;
use crate::key_hash::KeyHasher;
use crate::metrics::{SAMPLE_SETTING, sample};
use crate::policy::{POLICIES, Policies, Policy, PolicyError, PolicyErrors};

/// A Worker's variables, secrets and bindings.
pub trait Environment {
    /// The variable or secret with this name, if any.
    fn variable(&self, name: &str) -> Option<Variable>;

    /// The binding with this name.
    fn binding(&self, name: &str) -> Binding;
}

/// A variable or secret, therefore not printable.
#[derive(Clone, PartialEq, Eq)]
pub enum Variable {
    /// A text.
    Text(String),
    /// Any other value, as JSON.
    Json(String),
}

impl Variable {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Json(text) => text,
        }
    }
}

/// A binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Nothing.
    Nothing,
    /// A Durable Object namespace.
    Namespace,
    /// Something else.
    Other,
}

/// A frontend's configuration.
pub struct Setup {
    /// The settings.
    pub settings: Result<Settings, SettingsErrors>,
    /// The URL for notices by HTTP, if configured.
    pub webhook: Option<Webhook>,
    /// Remarks for the log about valid settings.
    pub remarks: Vec<String>,
}

impl Setup {
    /// The settings of the service, for callers with credentials.
    pub fn of_service(env: &dyn Environment) -> Self {
        let policies = policies_in(env).policies;
        let policy_names: Option<Vec<_>> =
            policies.as_ref().ok().map(|policies| policies.iter().map(|policy| policy.name()).collect());
        let names_of = |is_meant: fn(&Policy) -> bool| {
            let meant = policies.iter().flat_map(|policies| policies.iter()).filter(|policy| is_meant(policy));
            meant.map(|policy| policy.name()).collect::<Vec<_>>()
        };
        let shared = names_of(|policy| policy.frontend().has_one_budget);
        let with_slots = names_of(Policy::has_slots);
        let credentials = Credentials::new(CredentialSettings {
            tokens: text(env, setting::TOKENS).as_deref(),
            grant_keys: text(env, setting::GRANT_KEYS).as_deref(),
            audience: text(env, setting::AUDIENCE).as_deref(),
            sessions: SessionSettings {
                sessions: text(env, setting::SESSIONS).as_deref(),
                secret: text(env, setting::TURNSTILE_SECRET).as_deref(),
                policies: policy_names.as_deref(),
                shared: &shared,
                with_slots: &with_slots,
            },
        });
        let callers = credentials.map(|credentials| Callers::WithCredentials(Box::new(credentials)));
        let callers = callers.map_err(|errors| errors.iter().map(line).collect());
        let names = Names::new(text(env, setting::KEY_SECRET).as_deref()).map_err(line);
        let parts = Parts { policies: lines_of(policies), names, callers, missing: missing_in(env) };
        let mut setup = parts.read(env, true, false);
        if let Ok(settings) = &setup.settings {
            setup.remarks = remarks_on(settings);
        }
        setup
    }

    /// The settings of the service, for callers who hold a binding to it.
    pub fn of_binding(env: &dyn Environment) -> Self {
        let policies = lines_of(policies_in(env).policies);
        let parts = Parts { policies, names: names_in(env), callers: Ok(Callers::Bound), missing: missing_in(env) };
        parts.read(env, true, false)
    }

    /// The settings of a frontend with trusted callers, with the policies in `env` or in this JSON text. The caller passes `keys`, whatever
    /// `env` has under that name.
    pub fn trusting(env: &dyn Environment, in_code: Option<&str>, keys: Binding) -> Self {
        let policies = match in_code {
            Some(json) => written(json).and_then(|policies| own_names(policies, env)),
            None => lines_of(policies_in(env).policies),
        };
        let missing = missing_of((keys, Missing::Namespace), in_code.is_none().then_some(env));
        let parts = Parts { policies, names: names_in(env), callers: Ok(Callers::Trusted), missing };
        parts.read(env, in_code.is_none(), in_code.is_some())
    }

    /// The settings of a frontend inside an application's own Durable Object with the id `own`, and the policies of this JSON text: see
    /// [`Caller::inside`](crate::access::Caller::inside).
    #[must_use]
    pub fn inside(own: &str, policies: &str) -> Self {
        let policies = written(policies).map(|policies| Arc::new(policies.exact()));
        let callers = Ok(Callers::Inside(Key::Text(own.to_owned().into())));
        let parts = Parts { policies, names: Ok(Names::without_secret()), callers, missing: Vec::new() };
        parts.read(&Nowhere, false, true)
    }
}

/// An empty environment.
struct Nowhere;

impl Environment for Nowhere {
    fn variable(&self, _: &str) -> Option<Variable> {
        None
    }

    fn binding(&self, _: &str) -> Binding {
        Binding::Nothing
    }
}

/// The deployment's key hasher. Without a usable secret no frontend asks for it.
pub fn hasher_in(env: &dyn Environment) -> KeyHasher {
    names_in(env).map(|names| names.hasher().clone()).unwrap_or_default()
}

/// The policies of an object's own deployment, and any errors not yet logged. Empty if absent or invalid: the object still decides, under
/// the definitions sent with requests.
pub fn own_policies(env: &dyn Environment) -> (Arc<Policies>, Vec<String>) {
    let Some(text) = declared_in(env) else { return (Arc::default(), Vec::new()) };
    let Policed { policies, is_new } = parsed(text);
    match policies {
        Ok(policies) => (policies, Vec::new()),
        Err(errors) => (Arc::default(), errors.iter().filter(|_| is_new).map(line).collect()),
    }
}

/// The settings that differ between frontends, each possibly with errors.
struct Parts {
    policies: Result<Arc<Policies>, Vec<String>>,
    names: Result<Names, String>,
    callers: Result<Callers, Vec<String>>,
    missing: Vec<Missing>,
}

impl Parts {
    /// Adds the settings common to all frontends.
    fn read(self, env: &dyn Environment, may_have_registry: bool, sends_definitions: bool) -> Setup {
        let Self { policies, names, callers, missing } = self;
        let registry = if may_have_registry { registry_in(env) } else { Ok(()) };
        let (receivers, webhook, receiver_errors) = match receivers_in(env) {
            Ok((receivers, webhook)) => (receivers, webhook, Vec::new()),
            Err(errors) => (Receivers::default(), None, errors),
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
                receivers,
                sample,
                callers,
                memory: Rc::default(),
            }),
            (policies, names, callers) => {
                let mut errors = policies.err().unwrap_or_default();
                errors.extend(callers.err().unwrap_or_default());
                errors.extend(names.err());
                errors.extend(sample_error);
                errors.extend(receiver_errors);
                errors.extend(registry.err());
                Err(SettingsErrors::new(missing, errors))
            }
        };
        Setup { settings, webhook, remarks: Vec::new() }
    }
}

/// Remarks about valid settings of a service.
fn remarks_on(settings: &Settings) -> Vec<String> {
    let mut remarks: Vec<_> = settings.policies.iter().map(|policy| format!("policy {}", policy.lint())).collect();
    let notify = settings.policies.iter().any(|policy| policy.object().notify.is_some());
    if !settings.receivers.is_any() && notify {
        let how = format!("set {}, or bind a queue as {NOTICES}", setting::WEBHOOK_URL);
        remarks.push(format!("policies have notices, but there is no receiver: {how}"));
    }
    remarks
}

/// Policies in code, as JSON: the option `policies`, not the variable.
fn written(json: &str) -> Result<Arc<Policies>, Vec<String>> {
    if json == "{}" {
        return Ok(Arc::default()); // requests bring their own limits
    }
    let named = |error: &PolicyError| line(error.in_policies("policies"));
    Policies::parse(json).map(Arc::new).map_err(|errors| errors.iter().map(named).collect())
}

/// Policies in code, unless one has the same name as one in the variable: a budget would have two definitions.
fn own_names(policies: Arc<Policies>, env: &dyn Environment) -> Result<Arc<Policies>, Vec<String>> {
    let declared = declared_in(env).unwrap_or_default();
    let declared = Json::parse(&declared).ok().and_then(|declared| declared.fields().ok());
    let is_declared = |name: &&str| declared.as_ref().is_some_and(|declared| declared.get(name).is_some());
    let twice = policies.iter().map(|policy| policy.name()).filter(is_declared);
    let errors: Vec<_> =
        twice.map(|name| format!("policies.{name}: the variable {POLICIES} has it too; remove one of them")).collect();
    if errors.is_empty() { Ok(policies) } else { Err(errors) }
}

/// The receivers of notices, and the webhook's URL.
fn receivers_in(env: &dyn Environment) -> Result<(Receivers, Option<Webhook>), Vec<String>> {
    let (url, secret) = (text(env, setting::WEBHOOK_URL), text(env, setting::WEBHOOK_SECRET));
    let webhook = Webhook::new(url.as_deref(), secret.as_deref());
    let get_keys = match text(env, NOTICE_KEYS).as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(format!("{NOTICE_KEYS} must be true or false")),
    };
    match (webhook, get_keys) {
        (Ok(webhook), Ok(get_keys)) => {
            let has_queue = env.binding(NOTICES) != Binding::Nothing;
            Ok((Receivers { has_queue, has_webhook: webhook.is_some(), get_keys }, webhook))
        }
        (webhook, get_keys) => Err(webhook.err().into_iter().flatten().map(line).chain(get_keys.err()).collect()),
    }
}

/// The settings that a service lacks altogether.
fn missing_in(env: &dyn Environment) -> Vec<Missing> {
    missing_of((env.binding("KEYS"), Missing::Objects), Some(env))
}

/// The same with other `keys`; the policies are not looked for in `None`.
fn missing_of((keys, absent): (Binding, Missing), env: Option<&dyn Environment>) -> Vec<Missing> {
    let objects = (keys != Binding::Namespace).then_some(absent);
    let is_empty = |env: &&dyn Environment| matches!(policies_text(*env).as_str(), "null" | "{}");
    objects.into_iter().chain(env.filter(is_empty).map(|_| Missing::Policies)).collect()
}

/// Checks the registry's binding, if there is one.
///
/// # Errors
/// If the binding is not a namespace.
fn registry_in(env: &dyn Environment) -> Result<(), String> {
    if env.binding(REGISTRY) == Binding::Other {
        return Err(format!(
            "{REGISTRY}: is not a Durable Object namespace: bind the class PolicyRegistry under this name, or nothing"
        ));
    }
    Ok(())
}

/// The registry's snapshot, if `env` has a registry.
fn snapshot_in(env: &dyn Environment, policies: &Policies, names: &Names) -> Option<RefCell<PolicySnapshot>> {
    let snapshot = || PolicySnapshot::new(&policies_text(env), policies).hashing(names.hasher().clone());
    (env.binding(REGISTRY) != Binding::Nothing).then(|| RefCell::new(snapshot()))
}

/// The object names. Without a secret, an attacker can reverse a name by trying likely keys.
fn names_in(env: &dyn Environment) -> Result<Names, String> {
    match env.variable(setting::KEY_SECRET) {
        None => Ok(Names::without_secret()),
        Some(Variable::Json(_)) => Err(format!("{} must be text", setting::KEY_SECRET)),
        Some(Variable::Text(secret)) => Names::new(Some(&secret)).map_err(line),
    }
}

fn line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn lines_of(policies: Parsed) -> Result<Arc<Policies>, Vec<String>> {
    policies.map_err(|errors| errors.iter().map(line).collect())
}

/// The share of decisions that are written; zero without a data set.
fn sample_in(env: &dyn Environment) -> Result<f64, String> {
    let share = sample(text(env, SAMPLE_SETTING).as_deref())?;
    Ok(if env.binding("METRICS") == Binding::Nothing { 0.0 } else { share })
}

fn text(env: &dyn Environment, name: &str) -> Option<String> {
    env.variable(name).map(Variable::into_text)
}

/// The policies in `env`, shared by all objects and frontends of an isolate with the same text.
fn policies_in(env: &dyn Environment) -> Policed {
    parsed(policies_text(env))
}

fn parsed(text: String) -> Policed {
    static LAST: Mutex<Option<(String, Parsed)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, policies)) = last.as_ref().filter(|(last, _)| *last == text) {
        return Policed { policies: policies.clone(), is_new: false };
    }
    let policies = Policies::parse(&text).map(Arc::new).map_err(Arc::new);
    *last = Some((text, policies.clone()));
    Policed { policies, is_new: true }
}

/// The policies as JSON, even if the variable is a text.
pub(super) fn declared_in(env: &dyn Environment) -> Option<String> {
    match env.variable(POLICIES)? {
        Variable::Json(json) => Some(json),
        Variable::Text(text) => serde_json::to_string(&text).ok(),
    }
}

fn policies_text(env: &dyn Environment) -> String {
    declared_in(env).unwrap_or_else(|| "null".to_owned())
}

type Parsed = Result<Arc<Policies>, Arc<PolicyErrors>>;

struct Policed {
    policies: Parsed,
    /// Whether this is the first read.
    is_new: bool,
}

const REGISTRY: &str = "REGISTRY";
const NOTICES: &str = "NOTICES";
const NOTICE_KEYS: &str = "TOLLGATE_NOTICE_KEYS";

#[cfg(test)]
mod tests {
    use super::*;

    struct Deployed(&'static str);

    impl Environment for Deployed {
        fn variable(&self, name: &str) -> Option<Variable> {
            (name == POLICIES).then(|| Variable::Json(self.0.to_owned()))
        }

        fn binding(&self, _: &str) -> Binding {
            Binding::Nothing
        }
    }

    /// Only the latest text is cached, so no other unit test may read policies.
    #[test]
    fn policies_are_parsed_once_for_all_objects_and_their_errors_are_logged_once() {
        let (right, wrong) = (Deployed(r#"{"api":"10/1m"}"#), Deployed(r#"{"api":"ten","other":"ten"}"#));
        let (first, again) = (own_policies(&right).0, own_policies(&right).0);
        assert!(Arc::ptr_eq(&first, &again) && first.get("api").is_some());
        let of_frontend = policies_in(&right).policies;
        assert!(of_frontend.is_ok_and(|policies| Arc::ptr_eq(&policies, &first)));
        for lines in [2, 0, 0] {
            let (policies, errors) = own_policies(&wrong);
            assert_eq!((policies.iter().count(), errors.len()), (0, lines), "{errors:?}");
        }
        // Only the latest text is cached.
        assert!(!Arc::ptr_eq(&own_policies(&right).0, &first));
        assert_eq!(own_policies(&wrong).1.len(), 2);
    }
}
