//! The registry's object: connects the [`RegistryService`], the clock and the storage. `registry.mjs` is its other half.
//!
//! Every call reads, decides and writes without an await in between. The runtime holds back the reply until the rows written for it are on
//! disk, and resets the object if that fails.

use std::cell::RefCell;

use js_sys::{Array, JsString};
use wasm_bindgen::prelude::{JsError, JsValue, wasm_bindgen};
use worker::{Env, console_error, console_log};

use super::clock;
use super::environment::OfWorker;
use super::isolate::random;
use crate::api::AdminQuestion;
use crate::frontend::{AdminOutcome, RegistryService, hasher_in};
use crate::metrics::LiveBatch;
use crate::protocol::KeyAct;
use crate::registry::{BEAT_MS, Kept, Storage, Writes};

/// Wrapped by `registry.mjs` into a class that answers RPC.
#[wasm_bindgen]
pub struct PolicyRegistry(RefCell<RegistryService<OfHost>>);

#[wasm_bindgen]
impl PolicyRegistry {
    /// Called when the object wakes.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(host: RegistryHost, env: &Env) -> Self {
        let registry = Kept::new(OfHost(host), hasher_in(&OfWorker(env)));
        Self(RefCell::new(RegistryService::new(registry, clock::now(), random())))
    }

    /// See [`RegistryService::poll`].
    ///
    /// # Errors
    /// If the poll or the frontend's policies are malformed, or the storage fails.
    #[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
    pub fn poll(&self, question: &str, report: Option<String>) -> Result<String, JsValue> {
        Ok(self.0.borrow_mut().poll(question, report.as_deref(), clock::now())?.map_err(JsError::from)?)
    }

    /// When its alarm should ring next, in Unix milliseconds.
    #[must_use]
    pub fn beats_at() -> f64 {
        clock::wall_clock_at(clock::now().saturating_add(BEAT_MS))
    }

    /// Takes over the policies of its own deployment.
    ///
    /// # Errors
    /// If they are malformed, or the storage fails.
    pub fn beat(&self, env: &Env) -> Result<(), JsValue> {
        Ok(self.0.borrow_mut().beat(&OfWorker(env), clock::now())?.map_err(JsError::from)?)
    }

    /// Answers an [`AdminQuestion`], as text: a reply, as text, and whether it is news for the frontend: see [`AdminOutcome`].
    ///
    /// # Errors
    /// If the question is malformed, or the storage fails.
    pub fn administer(&self, question: &str) -> Result<Array, JsValue> {
        let Some(question) = AdminQuestion::from_text(question) else {
            return Err(JsError::new("the question of a frontend cannot be read").into());
        };
        let AdminOutcome { reply, changed, is_news } = self.0.borrow_mut().administer(&question, clock::now())?;
        if let Some(changed) = changed {
            console_log!("registry: {changed}");
        }
        Ok([JsValue::from(reply.to_text()), is_news.into()].iter().collect())
    }

    /// Takes a [`LiveBatch`], as text. Returns the listeners: the text of [`Listeners`](crate::metrics::Listeners); `undefined` if there
    /// are none.
    ///
    /// # Errors
    /// If the batch is malformed.
    pub fn show(&self, batch: &str) -> Result<Option<String>, JsValue> {
        let batch = LiveBatch::from_text(batch).ok_or_else(|| JsError::new("the decisions cannot be read"))?;
        Ok(self.0.borrow_mut().take_batch(&batch, clock::now()))
    }

    /// Records a [`KeyAct`], as text.
    ///
    /// # Errors
    /// If the act is malformed, or the storage fails.
    pub fn record(&self, act: &str) -> Result<(), JsValue> {
        let Some(act) = KeyAct::from_text(act) else {
            return Err(JsError::new("the act cannot be read").into());
        };
        self.0.borrow_mut().record(&act, clock::now())
    }
}

struct OfHost(RegistryHost);

impl Storage for OfHost {
    type Error = JsValue;

    fn rows(&mut self, after: &str, count: u32) -> Result<Vec<(String, String)>, JsValue> {
        let rows = self.0.rows(after, count)?;
        let text = |index| rows.get(index).as_string().unwrap_or_default();
        Ok((0..rows.length()).step_by(2).map(|index| (text(index), text(index + 1))).collect())
    }

    fn rows_of(&mut self, names: &[String]) -> Result<Vec<String>, JsValue> {
        let names = names.iter().map(|name| JsValue::from_str(name)).collect();
        Ok(self.0.rows_of(&names)?.iter().filter_map(|row| row.as_string()).collect())
    }

    fn write(&mut self, rows: &Writes) -> Result<(), JsValue> {
        let array = Array::new();
        for (name, row) in rows {
            array.push(&JsString::from(name.as_str()));
            array.push(&row.as_ref().map_or(JsValue::UNDEFINED, JsValue::from));
        }
        self.0.write(&array)
    }

    fn unreadable(&mut self, names: &[String]) {
        let some: Vec<_> = names.iter().take(MAX_NAMED).map(String::as_str).collect();
        console_error!("registry: {} rows cannot be read: {} ...", names.len(), some.join(", "));
    }
}

/// Maximum row names in a log line: all rows may be unreadable.
const MAX_NAMED: usize = 20;

#[wasm_bindgen]
extern "C" {
    /// The other half, in `registry.mjs`: storage.
    pub type RegistryHost;

    /// The first `count` rows with names above `after`: name, text, name, text, ...
    #[wasm_bindgen(method, catch)]
    fn rows(this: &RegistryHost, after: &str, count: u32) -> Result<Array, JsValue>;

    /// The rows with these names; `undefined` for missing ones.
    #[wasm_bindgen(method, catch)]
    fn rows_of(this: &RegistryHost, names: &Array) -> Result<Array, JsValue>;

    /// Writes rows in the same form, all or none; without a text a row is deleted.
    #[wasm_bindgen(method, catch)]
    fn write(this: &RegistryHost, rows: &Array) -> Result<(), JsValue>;
}
