//! The settings of a deployment: its policies and secrets, read once for each isolate.

use std::sync::{Arc, OnceLock};

use js_sys::{JSON, Reflect};
use wasm_bindgen::JsValue;
use worker::{Env, console_error, console_log};

use crate::access::{CredentialSettings, Credentials, Names};
use crate::api::Problem;
use crate::policy::Policies;

/// The settings of this deployment, without errors.
pub(super) struct Settings {
    pub(super) policies: Policies,
    pub(super) names: Names,
    pub(super) credentials: Credentials,
}

impl Settings {
    /// The settings in `env`: those of this moment, for as long as a call needs them. The first call checks them, and logs a
    /// line for each policy, or for each error.
    pub(super) fn of(env: &Env) -> Result<Arc<Self>, Problem> {
        static SETTINGS: OnceLock<Option<Arc<Settings>>> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::read(env).map(Arc::new)).clone().ok_or(Problem::Misconfigured)
    }

    fn read(env: &Env) -> Option<Self> {
        // Not `Env::object_var`: it takes the object's own member `constructor`, should a policy have that name, for its class.
        let value = |name: &str| Reflect::get(env, &name.into()).unwrap_or(JsValue::UNDEFINED);
        let json = |value: &JsValue| JSON::stringify(value).ok().and_then(|text| text.as_string());
        // A secret is a text, with JSON in it where a variable would be an object.
        let setting = |name| Some(value(name)).and_then(|value| value.as_string().or_else(|| json(&value)));
        let policies = Policies::parse(&json(&value("POLICIES")).unwrap_or_else(|| "null".to_owned()));
        let names = Names::new(setting("TOLLGATE_KEY_SECRET").as_deref());
        let token = setting("TOLLGATE_TOKEN");
        let credentials = Credentials::new(CredentialSettings {
            tokens: setting("TOLLGATE_TOKENS").as_deref(),
            token: token.as_deref(),
            grant_keys: setting("TOLLGATE_GRANT_KEYS").as_deref(),
            audience: setting("TOLLGATE_AUDIENCE").as_deref(),
        });
        for error in policies.as_ref().err().into_iter().flatten() {
            console_error!("settings: {error}");
        }
        for error in credentials.as_ref().err().into_iter().flatten() {
            console_error!("settings: {error}");
        }
        if let Err(error) = &names {
            console_error!("settings: {error}");
        }
        let settings = Self { policies: policies.ok()?, names: names.ok()?, credentials: credentials.ok()? };
        if token.is_some() {
            console_log!(
                "TOLLGATE_TOKEN has the scopes consume and adjust; TOLLGATE_TOKENS can have several tokens, with less each"
            );
        }
        for policy in settings.policies.iter() {
            console_log!("policy {policy}");
        }
        Some(settings)
    }
}
