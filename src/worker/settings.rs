//! The settings of a deployment: its policies and secrets, read once for each isolate.

use std::sync::{Arc, OnceLock};

use js_sys::{JSON, Reflect};
use worker::{Env, console_error, console_log};

use crate::access::Credentials;
use crate::api::Problem;
use crate::policy::Policies;

/// The settings of this deployment, without errors.
pub(super) struct Settings {
    pub(super) policies: Policies,
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
        let policies = Reflect::get(env, &"POLICIES".into()).and_then(|value| JSON::stringify(&value));
        let json = policies.ok().and_then(|text| text.as_string()).unwrap_or_else(|| "null".to_owned());
        let secret = |name| env.secret(name).ok().map(|secret| secret.to_string());
        let policies = Policies::parse(&json);
        let credentials = Credentials::new(secret("TOLLGATE_TOKEN"), secret("TOLLGATE_KEY_SECRET"));
        for error in policies.as_ref().err().into_iter().flatten() {
            console_error!("settings: {error}");
        }
        for error in credentials.as_ref().err().into_iter().flatten() {
            console_error!("settings: {error}");
        }
        let settings = Self { policies: policies.ok()?, credentials: credentials.ok()? };
        for policy in settings.policies.iter() {
            console_log!("policy {policy}");
        }
        Some(settings)
    }
}
