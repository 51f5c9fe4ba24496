//! What a deployment is set to: its policies and secrets, read once for each isolate.

use std::sync::OnceLock;

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
    /// The settings in `env`, which are the same for the whole life of an isolate. The first call checks them, and logs
    /// a line for each policy, or for each error.
    pub(super) fn of(env: &Env) -> Result<&'static Self, Problem> {
        static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::read(env)).as_ref().ok_or(Problem::Misconfigured)
    }

    fn read(env: &Env) -> Option<Self> {
        let json = env.object_var::<serde_json::Value>("POLICIES").unwrap_or_default().to_string();
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
