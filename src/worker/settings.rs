//! The settings of a deployment: its policies and secrets, as they are in its environment.

use std::sync::{Arc, Mutex, PoisonError};

use js_sys::{JSON, Reflect};
use worker::{Env, console_error, console_log};

use crate::access::{CredentialSettings, Credentials, Names};
use crate::policy::{Policies, PolicyError};

/// What a frontend answers with, without errors.
pub(super) struct Settings {
    pub(super) policies: Arc<Policies>,
    pub(super) names: Names,
    pub(super) credentials: Credentials,
}

impl Settings {
    /// The settings of the service. Logs a line for each policy, or for each error.
    pub(super) fn read(env: &Env) -> Option<Self> {
        let Policed { policies, .. } = policies_in(env);
        let token = setting(env, "TOLLGATE_TOKEN");
        let credentials = Credentials::new(CredentialSettings {
            tokens: setting(env, "TOLLGATE_TOKENS").as_deref(),
            token: token.as_deref(),
            grant_keys: setting(env, "TOLLGATE_GRANT_KEYS").as_deref(),
            audience: setting(env, "TOLLGATE_AUDIENCE").as_deref(),
        });
        let names = Names::new(setting(env, "TOLLGATE_KEY_SECRET").as_deref());
        for error in policies.as_ref().err().into_iter().flat_map(|errors| errors.iter()) {
            console_error!("settings: {error}");
        }
        for error in credentials.as_ref().err().into_iter().flatten().chain(names.as_ref().err()) {
            console_error!("settings: {error}");
        }
        let settings = Self { policies: policies.ok()?, names: names.ok()?, credentials: credentials.ok()? };
        if token.is_some() {
            console_log!(
                "TOLLGATE_TOKEN has the scopes consume and adjust: TOLLGATE_TOKENS may have several tokens, each with less"
            );
        }
        for policy in settings.policies.iter() {
            console_log!("policy {policy}");
        }
        Some(settings)
    }
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

/// A variable or a secret: a text as it is, an object as JSON.
fn setting(env: &Env, name: &str) -> Option<String> {
    let value = Reflect::get(env, &name.into()).ok()?;
    value.as_string().or_else(|| JSON::stringify(&value).ok()?.as_string())
}

/// The policies in `env`. All objects of an isolate, and its frontends, share those of the same text.
fn policies_in(env: &Env) -> Policed {
    static LAST: Mutex<Option<(String, Parsed)>> = Mutex::new(None);
    // Not `Env::object_var`: it takes the object's own member `constructor`, should a policy have that name, for its class.
    let text = Reflect::get(env, &POLICIES.into()).and_then(|value| JSON::stringify(&value));
    let text = text.ok().and_then(|text| text.as_string()).unwrap_or_else(|| "null".to_owned());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, policies)) = last.as_ref().filter(|(last, _)| *last == text) {
        return Policed { policies: policies.clone(), is_new: false };
    }
    let policies = Policies::parse(&text).map(Arc::new).map_err(Arc::from);
    *last = Some((text, policies.clone()));
    Policed { policies, is_new: true }
}

type Parsed = Result<Arc<Policies>, Arc<[PolicyError]>>;

struct Policed {
    policies: Parsed,
    /// Whether nothing has read them before.
    is_new: bool,
}

const POLICIES: &str = "POLICIES";
