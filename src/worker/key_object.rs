//! The object of one key: connects the [`KeyService`], the clock and the storage. `key_object.mjs` is its other half, which answers calls
//! and accesses storage.
//!
//! Every call reads, decides and writes without an await in between. The runtime holds back the reply until the rows written for it are on
//! disk, and resets the object if that fails.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use js_sys::{Array, JsString, Uint8Array};
use wasm_bindgen::prelude::{JsCast, JsError, JsValue, wasm_bindgen};
use worker::Env;

use super::clock;
use super::environment::{OfWorker, log_errors};
use super::isolate::random;
use crate::frontend::{KeyService, SentRequest};
use crate::ledger::{Background, KeptError, RowWrite, Storage, failed_again, retry_ms};
use crate::protocol::Definitions;

/// Wrapped by `key_object.mjs` into a class that answers RPC.
#[wasm_bindgen]
pub struct KeyObject(RefCell<KeyService<OfHost>>);

#[wasm_bindgen]
impl KeyObject {
    /// Called when the object wakes, with its id in hexadecimal.
    ///
    /// # Errors
    /// Without randomness.
    #[wasm_bindgen(constructor)]
    #[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen passes it so")]
    pub fn new(id: &str, env: Env, host: Host) -> Result<Self, JsError> {
        let (service, errors) = KeyService::new(OfHost(host), id, random(), &OfWorker(&env))?;
        log_errors(&errors);
        Ok(Self(RefCell::new(service)))
    }

    /// See [`KeyService::decide`].
    ///
    /// # Errors
    /// If no decision is possible: the request's numbers are malformed, or the storage fails.
    pub fn decide(&self, names: String, request: String, definitions: Option<String>) -> Result<String, JsValue> {
        static DEFINITIONS: Mutex<Definitions> = Mutex::new(Definitions::new());
        let mut sent = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let request = SentRequest { names, request, definitions };
        self.0.borrow_mut().decide(request, &mut sent, clock::now(), random).map_err(thrown)
    }

    /// See [`KeyService::inspect`].
    ///
    /// # Errors
    /// If the question is malformed, or the storage fails.
    pub fn inspect(&self, question: &str) -> Result<String, JsValue> {
        self.0.borrow_mut().inspect(question, clock::now()).map_err(thrown)
    }

    /// Deletes state that is no longer needed.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn clean(&self) -> Result<(), JsValue> {
        self.0.borrow_mut().kept().clean(clock::now()).map_err(thrown)
    }

    /// See [`failed_again`].
    #[must_use]
    pub fn failed_again(before: &[u8]) -> u8 {
        failed_again(before)
    }

    /// When to clean again after that many successive failures, in Unix milliseconds.
    #[must_use]
    pub fn retry_at(failures: u8) -> f64 {
        clock::wall_clock_at(clock::now().saturating_add(retry_ms(failures)))
    }

    /// When the missing alarm should ring; `undefined` if none is missing.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn alarm_is_missing(&self) -> Result<Option<f64>, JsValue> {
        let at = self.0.borrow_mut().kept().alarm_is_missing(clock::now()).map_err(thrown)?;
        Ok(at.map(clock::wall_clock_at))
    }

    /// Records that a row of that ledger is persisted.
    pub fn confirm(&self, name: &str, ledger_number: u32, ticket: u32) {
        self.0.borrow_mut().kept().confirm(name, ledger_number, ticket);
    }

    /// Writes the exact levels if spending has paused.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn flush_idle(&self) -> Result<(), JsValue> {
        self.0.borrow_mut().kept().flush_idle(clock::now()).map_err(thrown)
    }
}

fn thrown(error: KeptError<JsValue>) -> JsValue {
    match error {
        KeptError::Ledger(error) => JsError::from(error).into(),
        KeptError::Storage(error) => error,
    }
}

struct OfHost(Host);

impl Storage for OfHost {
    type Error = JsValue;

    fn rows(&mut self) -> Result<Vec<(String, Vec<u8>)>, JsValue> {
        let rows = self.0.rows()?;
        let pairs = (0..rows.length()).step_by(2).map(|index| {
            let (name, row) = (rows.get(index), rows.get(index + 1));
            // Only bytes are written here. Anything else counts as an empty, unreadable row, so that only what needs it fails.
            let row = row.dyn_into::<Uint8Array>().map(|row| row.to_vec()).unwrap_or_default();
            Some((name.as_string()?, row))
        });
        Ok(pairs.flatten().collect())
    }

    fn write(&mut self, rows: &[RowWrite]) -> Result<(), JsValue> {
        self.0.write(&array_of(rows))
    }

    fn write_background(&mut self, row: &Background, ledger: u32) -> Result<(), JsValue> {
        self.0.write_background(&row.name, Uint8Array::from(row.row.as_slice()), ledger, row.ticket)
    }

    fn clear(&mut self) -> Result<(), JsValue> {
        self.0.clear()
    }

    fn wake_at(&mut self, at: i64) -> Result<(), JsValue> {
        self.0.wake_at(clock::wall_clock_at(at))
    }

    #[expect(clippy::cast_precision_loss, reason = "a short time")]
    fn flush_in(&mut self, ms: u64) -> Result<(), JsValue> {
        self.0.flush_in(ms as f64)
    }
}

/// Rows as [`Host::write`] takes them.
fn array_of(rows: &[RowWrite]) -> Array {
    let array = Array::new();
    for (name, row) in rows {
        array.push(&JsString::from(name.as_str()));
        array.push(&row.as_ref().map_or(JsValue::UNDEFINED, |row| Uint8Array::from(row.as_slice()).into()));
    }
    array
}

#[wasm_bindgen]
extern "C" {
    /// The other half, in `key_object.mjs`: storage, alarms and timers.
    pub type Host;

    /// All rows: name, bytes, name, bytes, ...
    #[wasm_bindgen(method, catch)]
    fn rows(this: &Host) -> Result<Array, JsValue>;

    /// Writes rows in the same form, all or none; without bytes a row is deleted.
    #[wasm_bindgen(method, catch)]
    fn write(this: &Host, rows: &Array) -> Result<(), JsValue>;

    /// Writes a row in the background, and calls [`KeyObject::confirm`] when it is persisted.
    #[wasm_bindgen(method, catch)]
    fn write_background(
        this: &Host,
        name: &str,
        row: Uint8Array,
        ledger_number: u32,
        ticket: u32,
    ) -> Result<(), JsValue>;

    /// Deletes all rows and alarms.
    #[wasm_bindgen(method, catch)]
    fn clear(this: &Host) -> Result<(), JsValue>;

    /// Schedules [`KeyObject::clean`] at a moment of the wall clock.
    #[wasm_bindgen(method, catch)]
    fn wake_at(this: &Host, at: f64) -> Result<(), JsValue>;

    /// Schedules [`KeyObject::flush_idle`] in `ms` milliseconds.
    #[wasm_bindgen(method, catch)]
    fn flush_in(this: &Host, ms: f64) -> Result<(), JsValue>;
}
