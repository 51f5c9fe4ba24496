//! The object of one key: brings together the key's [`Ledger`], the clock and the storage. `key_object.mjs` is its other half,
//! which answers calls and reaches storage.
//!
//! Every call reads, decides and writes without an await in between. The runtime holds the answer back until the rows that
//! were written for it are on disk, and resets the object if that fails.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use js_sys::{Array, JsString, Uint8Array};
use wasm_bindgen::prelude::{JsCast, JsError, JsValue, wasm_bindgen};
use worker::{Env, console_error};

use super::clock;
use super::environment::OfWorker;
use super::isolate::random;
use crate::api::{KeyQuestion, key_state};
use crate::frontend::own_policies;
use crate::ledger::{Ledger, NOTICES, Writes};
use crate::policy::{Policies, Policy};
use crate::protocol::{Definitions, Format, Known, ObjectReply, ObjectRequest, Rows, Unreadable};

/// What `key_object.mjs` wraps into a class that answers RPC.
#[wasm_bindgen]
pub struct KeyObject {
    /// The policies of its own deployment.
    policies: Arc<Policies>,
    /// The policies of the latest request: a key is mostly asked about the same.
    asked: RefCell<Option<Asked>>,
    host: Host,
    /// Places the windows of limits without an offset: bits of the object's id, so always the same for a key.
    phase: u64,
    /// `None` until it is read, and again after a failure, which may have left it half changed.
    ledger: RefCell<Option<Ledger>>,
    /// Changes whenever it is read, so that rows of an earlier ledger are not confirmed to this one.
    ledger_number: Cell<u32>,
    /// Whether [`KeyObject::flush_idle`] is scheduled.
    flush_scheduled: Cell<bool>,
    /// What storage has done that no reply has told yet: also what alarms and timers have written.
    rows: Cell<Rows>,
}

#[wasm_bindgen]
impl KeyObject {
    /// Called when the object wakes, with its id in hexadecimal.
    #[wasm_bindgen(constructor)]
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen passes it so")]
    pub fn new(id: &str, env: Env, host: Host) -> Self {
        // Random, because a panic replaces the object while rows of its predecessor are in flight.
        let ledger_number = Cell::new(random().map_or(0, |number| (number >> 32) as u32));
        let (asked, ledger, flush_scheduled, rows) = Default::default();
        let (policies, errors) = own_policies(&OfWorker(&env));
        for error in errors {
            console_error!("settings: {error}");
        }
        Self { policies, asked, host, phase: phase_of(id), ledger, ledger_number, flush_scheduled, rows }
    }

    /// Answers an [`ObjectRequest`] about the buckets of `policies` with an [`ObjectReply`]. See [`crate::protocol`] for the
    /// arguments.
    ///
    /// # Errors
    /// If no decision can be made: the request's numbers are malformed, or the storage fails.
    pub fn decide(&self, policies: &str, request: &str, definitions: Option<String>) -> Result<String, JsValue> {
        let (request, format) = match ObjectRequest::from_text(request) {
            Ok(request) => request,
            Err(Unreadable::Format) => {
                let reply = ObjectReply::FormatUnknown { newest: Format::NEWEST.number().into() };
                return Ok(reply.to_text(Format::NEWEST));
            }
            Err(Unreadable::Malformed) => return Err(JsError::new("the request's numbers are malformed").into()),
        };
        let Some(asked) = self.asked(policies, request.known.as_ref(), definitions) else {
            return Ok(ObjectReply::PolicyUnknown.to_text(format));
        };
        let mut reply = self.with_ledger(|ledger, now| {
            let (reply, writes) = ledger.ask(&asked, &request, now, random)?;
            Ok((reply.to_text(format), writes))
        })?;
        self.rows.take().append_to(&mut reply);
        Ok(reply)
    }

    /// How the key stands, in answer to a [`KeyQuestion`], both texts. Nothing is changed and nothing is written.
    ///
    /// # Errors
    /// If it is not one, or the storage fails.
    pub fn inspect(&self, question: &str) -> Result<String, JsValue> {
        let Some(question) = KeyQuestion::from_text(question) else {
            return Err(JsError::new("the question of a frontend cannot be read").into());
        };
        self.with_ledger(|ledger, now| {
            let state = ledger.inspect(&question.policies, question.as_of, now);
            Ok((key_state(&question, &state), Writes::default()))
        })
    }

    /// Forgets what is no longer needed.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn clean(&self) -> Result<(), JsValue> {
        self.with_ledger(|ledger, now| Ok(((), ledger.clean(now))))
    }

    /// When the missing alarm should ring; `undefined` if none is missing.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn alarm_is_missing(&self) -> Result<Option<f64>, JsValue> {
        let alarm_at = self.with_ledger(|ledger, now| {
            let Writes { alarm_at, .. } = ledger.alarm_is_missing(now);
            Ok((alarm_at, Writes::default()))
        })?;
        self.count_written(usize::from(alarm_at.is_some()));
        Ok(alarm_at.map(clock::wall_clock_at))
    }

    /// Records that a row of that ledger is persisted.
    pub fn confirm(&self, name: &str, ledger_number: u32, ticket: u32) {
        if let Some(ledger) = &mut *self.ledger.borrow_mut()
            && ledger_number == self.ledger_number.get()
        {
            ledger.confirm(name, ticket);
        }
    }

    /// Writes the exact levels if spending has paused.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn flush_idle(&self) -> Result<(), JsValue> {
        self.flush_scheduled.set(false);
        if self.ledger.borrow().is_none() {
            return Ok(()); // it was reset in the meantime: storage has everything
        }
        self.with_ledger(|ledger, now| Ok(((), ledger.flush_idle(now))))
    }
}

/// The names, ids and definitions of a request, and their policies.
struct Asked {
    names: String,
    ids: Vec<u64>,
    definitions: Option<String>,
    policies: Rc<[Arc<Policy>]>,
}

type Step<T> = Result<(T, Writes), crate::ledger::LedgerError>;

impl KeyObject {
    /// The policies under which to decide; `None` if they are not known.
    fn asked(&self, names: &str, known: Option<&Known>, definitions: Option<String>) -> Option<Rc<[Arc<Policy>]>> {
        static DEFINITIONS: Mutex<Definitions> = Mutex::new(Definitions::new());
        let ids = known.map(|known| known.ids.as_slice()).unwrap_or_default();
        let mut last = self.asked.borrow_mut();
        if let Some(last) = &*last
            && last.names == names
            && last.ids == ids
            && last.definitions == definitions
        {
            return Some(Rc::clone(&last.policies));
        }
        let mut sent = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let policies: Rc<[_]> = sent.asked(&self.policies, names, known, definitions.as_deref())?.into();
        *last = Some(Asked { names: names.to_owned(), ids: ids.to_vec(), definitions, policies: Rc::clone(&policies) });
        Some(policies)
    }

    /// Runs a step and writes the rows it asks for. If that fails, the next step reloads the ledger.
    fn with_ledger<T>(&self, step: impl FnOnce(&mut Ledger, i64) -> Step<T>) -> Result<T, JsValue> {
        let now = clock::now();
        let mut slot = self.ledger.borrow_mut();
        let mut ledger = match slot.take() {
            Some(ledger) => ledger,
            None => self.read()?,
        };
        let done = step(&mut ledger, now).map_err(JsError::from);
        if let Ok((_, writes)) = &done {
            self.write(writes)?;
        }
        *slot = Some(ledger);
        Ok(done?.0)
    }

    fn read(&self) -> Result<Ledger, JsValue> {
        self.ledger_number.update(|number| number.wrapping_add(1));
        Ok(Ledger::new(self.rows()?, self.phase))
    }

    fn rows(&self) -> Result<Vec<(String, Vec<u8>)>, JsValue> {
        let rows = self.host.rows()?;
        self.rows.update(|Rows { read, written }| Rows { read: read + u64::from(rows.length() / 2), written });
        let pairs = (0..rows.length()).step_by(2).map(|index| {
            let (name, row) = (rows.get(index), rows.get(index + 1));
            // We write only bytes. Anything else counts as empty, an unreadable row, so that only what needs it fails.
            let row = row.dyn_into::<Uint8Array>().map(|row| row.to_vec()).unwrap_or_default();
            Some((name.as_string()?, row))
        });
        Ok(pairs.flatten().collect())
    }

    fn write(&self, writes: &Writes) -> Result<(), JsValue> {
        if writes.clear {
            return self.host.clear();
        }
        let (notices, rows): (Vec<_>, Vec<_>) =
            writes.before_reply.iter().partition(|(name, _)| name.starts_with(NOTICES));
        if !rows.is_empty() {
            self.host.write(&array_of(&rows))?;
            self.count_written(rows.len());
        }
        // A notice decides no answer: at worst it is given once more.
        if !notices.is_empty() {
            match self.host.write(&array_of(&notices)) {
                Ok(()) => self.count_written(notices.len()),
                Err(_) if rows.is_empty() => return Ok(()),
                Err(_) => {}
            }
        }
        for background in &writes.background {
            let row = Uint8Array::from(background.row.as_slice());
            self.host.write_background(&background.name, row, self.ledger_number.get(), background.ticket)?;
            self.count_written(1);
        }
        if let Some(at) = writes.alarm_at {
            self.host.wake_at(clock::wall_clock_at(at))?;
            self.count_written(1);
        }
        if writes.wants_flush && !self.flush_scheduled.replace(true) {
            #[expect(clippy::cast_precision_loss, reason = "a short time")]
            self.host.flush_in(Writes::IDLE_MS as f64)?;
        }
        Ok(())
    }

    fn count_written(&self, rows: usize) {
        self.rows.update(|Rows { read, written }| Rows { read, written: written + rows as u64 });
    }
}

/// Rows as [`Host::write`] takes them.
fn array_of(rows: &[&(String, Option<Vec<u8>>)]) -> Array {
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

    /// Writes rows given in the same way, all or none; without bytes a row is deleted.
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

    /// Deletes everything, alarms too.
    #[wasm_bindgen(method, catch)]
    fn clear(this: &Host) -> Result<(), JsValue>;

    /// Schedules [`KeyObject::clean`] for a moment of the wall clock.
    #[wasm_bindgen(method, catch)]
    fn wake_at(this: &Host, at: f64) -> Result<(), JsValue>;

    /// Schedules [`KeyObject::flush_idle`] in `ms` milliseconds.
    #[wasm_bindgen(method, catch)]
    fn flush_in(this: &Host, ms: f64) -> Result<(), JsValue>;
}

/// The first 64 of the 256 bits of an object's id, which is derived from its name.
fn phase_of(id: &str) -> u64 {
    id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}
