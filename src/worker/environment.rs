//! This Worker's deployment.

use js_sys::{JSON, Reflect};
use wasm_bindgen::prelude::JsValue;
use worker::{Env, console_error};

use crate::frontend::{Binding, Environment, Variable};

/// The variables, secrets and bindings of `env`.
pub(super) struct OfWorker<'a>(pub(super) &'a Env);

impl Environment for OfWorker<'_> {
    // Not `Env::object_var`: it takes an own member `constructor`, as of a policy with that name, for the object's class.
    fn variable(&self, name: &str) -> Option<Variable> {
        let value = Reflect::get(self.0, &name.into()).ok().filter(|value| !value.is_null_or_undefined())?;
        if let Some(text) = value.as_string() {
            return Some(Variable::Text(text));
        }
        // A function has no JSON: its empty text is invalid for every setting.
        Some(Variable::Json(JSON::stringify(&value).ok().and_then(|json| json.as_string()).unwrap_or_default()))
    }

    fn binding(&self, name: &str) -> Binding {
        binding(&Reflect::get(self.0, &name.into()).unwrap_or_default())
    }
}

/// What a value is as a binding.
pub(super) fn binding(value: &JsValue) -> Binding {
    if value.is_falsy() {
        Binding::Nothing
    } else if Reflect::get(value, &"getByName".into()).is_ok_and(|method| method.is_function()) {
        Binding::Namespace
    } else {
        Binding::Other
    }
}

/// Logs errors in the settings.
pub(super) fn log_errors<'a>(errors: impl IntoIterator<Item = &'a String>) {
    for error in errors {
        console_error!("settings: {error}");
    }
}
