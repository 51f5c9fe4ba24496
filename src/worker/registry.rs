//! The registry's object: connects the [registry](Kept), the clock and the storage. `registry.mjs` is its other half.
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
use crate::protocol::{KeyAct, Poll};
use crate::registry::{BEAT_MS, Kept, Storage, Writes};

/// Wrapped by `registry.mjs` into a class that answers RPC.
#[wasm_bindgen]
pub struct PolicyRegistry {
    registry: RefCell<Kept<OfHost>>,
    service: RefCell<RegistryService>,
}

#[wasm_bindgen]
impl PolicyRegistry {
    /// Called when the object wakes.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(host: RegistryHost, env: &Env) -> Self {
        let service = RefCell::new(RegistryService::new(clock::now(), random().unwrap_or_default()));
        Self { registry: RefCell::new(Kept::new(OfHost(host), hasher_in(&OfWorker(env)))), service }
    }

    /// Answers a [`Poll`] with an [`Update`](crate::protocol::Update), both as text. `report` is a [`Report`](crate::metrics::Report) of
    /// the frontend's counts, as text.
    ///
    /// # Errors
    /// If the poll or the frontend's policies are malformed, or the storage fails.
    #[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
    pub fn poll(&self, question: &str, report: Option<String>) -> Result<String, JsValue> {
        if let Some(report) = &report {
            self.service.borrow_mut().report(report, clock::now());
        }
        let Some(poll) = Poll::from_text(question) else {
            return Err(JsError::new("the question of a frontend cannot be read").into());
        };
        // A refused poll has changed nothing, so it fails alone: the state in memory stays.
        let update = self.registry.borrow_mut().step(|registry, _| {
            match self.service.borrow_mut().poll(registry, &poll, clock::now()) {
                Ok((update, writes)) => Ok((Ok(update), writes)),
                Err(error) => Ok((Err(error), Writes::new())),
            }
        })?;
        Ok(update.map_err(JsError::from)?.to_text())
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
        let beat = self.registry.borrow_mut().step(|registry, _| {
            match self.service.borrow_mut().beat(registry, &OfWorker(env), clock::now()) {
                Ok(writes) => Ok((Ok(()), writes)),
                Err(error) => Ok((Err(error), Writes::new())),
            }
        })?;
        Ok(beat.map_err(JsError::from)?)
    }

    /// Answers an [`AdminQuestion`] with a reply, as text.
    ///
    /// # Errors
    /// If the question is malformed, or the storage fails.
    pub fn administer(&self, question: &str) -> Result<String, JsValue> {
        let Some(question) = AdminQuestion::from_text(question) else {
            return Err(JsError::new("the question of a frontend cannot be read").into());
        };
        // A malformed request is refused without reading the registry.
        let request = match question.request() {
            Ok(request) => request,
            Err(problem) => return Ok(problem.reply().to_text()),
        };
        let reply = self.registry.borrow_mut().step(|registry, host| {
            let rows_of = |names: &[String]| host.rows_of(names);
            let mut service = self.service.borrow_mut();
            let AdminOutcome { reply, writes, changed } =
                service.administer(registry, (&question, request), clock::now(), rows_of)?;
            if let Some(changed) = changed {
                console_log!("registry: {changed}");
            }
            Ok((reply, writes))
        })?;
        Ok(reply.to_text())
    }

    /// Takes a [`LiveBatch`], as text. Returns the listeners: the text of [`Listeners`](crate::metrics::Listeners); `undefined` if there
    /// are none.
    ///
    /// # Errors
    /// If the batch is malformed.
    pub fn show(&self, batch: &str) -> Result<Option<String>, JsValue> {
        let batch = LiveBatch::from_text(batch).ok_or_else(|| JsError::new("the decisions cannot be read"))?;
        Ok(self.service.borrow_mut().take_batch(&batch, clock::now()))
    }

    /// Records a [`KeyAct`], as text.
    ///
    /// # Errors
    /// If the act is malformed, or the storage fails.
    pub fn record(&self, act: &str) -> Result<(), JsValue> {
        let Some(act) = KeyAct::from_text(act) else {
            return Err(JsError::new("the act cannot be read").into());
        };
        self.registry.borrow_mut().step(|registry, _| Ok(((), registry.record_key_act(&act, clock::now()))))
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
