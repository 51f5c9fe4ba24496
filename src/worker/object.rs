//! The object of one key: keeps its buckets, one for each policy, and decides.
//!
//! Every call reads, decides and writes without an await in between, so nothing can come between them; the runtime
//! holds the answer back until the write is on disk, and resets the object if it fails.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use worker::worker_sys::DurableObjectState;
use worker::{Env, Error, Result, SqlStorage, SqlStorageValue, State as ObjectState};

use super::clock;
use super::settings::Settings;
use crate::api::{Answer, Policy, Stored};
use crate::limit::State;

/// What `entry.mjs` wraps into a class that answers RPC.
#[wasm_bindgen]
pub struct KeyObject {
    env: Env,
    /// Places the windows of limits without an offset: some bits of the object's name, so the same for a key always.
    phase: u64,
    sql: SqlStorage,
    /// Whether the table is there. An object that never wrote has none, and so leaves nothing behind.
    has_table: Cell<bool>,
    /// The states under the numbers of today, as far as they have been asked for.
    states: RefCell<HashMap<String, State>>,
}

#[wasm_bindgen]
impl KeyObject {
    /// Called by the runtime when the object wakes.
    ///
    /// # Errors
    /// When the storage cannot be read.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, env: Env) -> std::result::Result<Self, JsValue> {
        let state = ObjectState::from(state);
        let sql = state.storage().sql();
        let tables = sql.exec("SELECT 1 FROM sqlite_master WHERE name = 'bucket'", None)?;
        Ok(Self {
            env,
            phase: phase_of(&state.id().to_string()),
            has_table: Cell::new(tables.raw().next().is_some()),
            sql,
            states: RefCell::default(),
        })
    }

    /// Takes `cost` tokens of the bucket of `policy` or refuses: the numbers of an [`Answer`].
    ///
    /// # Errors
    /// When no decision can be made: the policy is not known here, or the storage fails. Nothing has changed then.
    pub fn consume(&self, policy: &str, cost: f64) -> std::result::Result<Vec<f64>, JsValue> {
        Ok(self.decide(policy, cost, Effect::Kept)?)
    }

    /// The answer that [`KeyObject::consume`] would give, with nothing taken.
    ///
    /// # Errors
    /// As [`KeyObject::consume`].
    pub fn peek(&self, policy: &str, cost: f64) -> std::result::Result<Vec<f64>, JsValue> {
        Ok(self.decide(policy, cost, Effect::Dropped)?)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Kept,
    Dropped,
}

impl KeyObject {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the front sends a cost that it checked"
    )]
    fn decide(&self, policy: &str, cost: f64, effect: Effect) -> Result<Vec<f64>> {
        let settings = Settings::of(&self.env).map_err(|_| Error::from("the settings have mistakes"))?;
        let policy = settings.policies.get(policy).ok_or_else(|| Error::from("this version has no such policy"))?;
        let now = clock::now();
        let (before, is_kept) = self.load(policy, now)?;
        let mut state = before;
        let decision = policy.limit().consume(&mut state, now, cost as u64);
        // What a refusal leaves is kept whoever asked: it differs only after a clock has stepped back far, and then the
        // moment to retry at is counted from there.
        if effect == Effect::Dropped && decision.is_allow() {
            state = before;
        }
        if !is_kept || state != before {
            self.save(policy, state)?;
        }
        Ok(Answer::new(decision, policy.limit(), &state, now).to_numbers().to_vec())
    }

    /// The state from memory, else from storage, else a new one, and whether a later load would find the same. If not,
    /// it must be saved even by a refusal or a peek, or each would count its moment to retry at from a new beginning.
    fn load(&self, policy: &Policy, now: i64) -> Result<(State, bool)> {
        if let Some(state) = self.states.borrow().get(policy.name()) {
            return Ok((*state, true));
        }
        let Some(stored) = self.stored(policy)? else {
            let state = policy.limit().new_state(now, self.phase);
            // A new bucket that is full is as good later; one that is not fills from now on.
            return Ok((state, policy.limit().expires_at(&state, now) == Some(now)));
        };
        let state = stored.state(policy, now, self.phase).map_err(|error| Error::from(error.to_string()))?;
        if stored.numbers != policy.numbers() {
            return Ok((state, false));
        }
        self.states.borrow_mut().insert(policy.name().to_owned(), state);
        Ok((state, true))
    }

    fn stored(&self, policy: &Policy) -> Result<Option<Stored>> {
        if !self.has_table.get() {
            return Ok(None);
        }
        let query = "SELECT numbers, record FROM bucket WHERE policy = ? LIMIT 1";
        let Some(row) = self.sql.exec(query, vec![policy.name().into()])?.raw().next().transpose()? else {
            return Ok(None);
        };
        match <[SqlStorageValue; 2]>::try_from(row) {
            Ok([SqlStorageValue::String(numbers), SqlStorageValue::Blob(record)]) => {
                Ok(Some(Stored { numbers, record }))
            }
            _ => Err(Error::from("a stored bucket is not a text and a blob")),
        }
    }

    /// Writes first, so that memory is never ahead of a write that failed.
    fn save(&self, policy: &Policy, state: State) -> Result<()> {
        if !self.has_table.get() {
            // WITHOUT ROWID: the row is its own index, and one row is written, not two.
            let table = "CREATE TABLE IF NOT EXISTS bucket \
                         (policy TEXT PRIMARY KEY, numbers TEXT NOT NULL, record BLOB NOT NULL) WITHOUT ROWID";
            self.sql.exec(table, None)?;
            self.has_table.set(true);
        }
        let Stored { numbers, record } = Stored::new(policy, state);
        let upsert = "INSERT INTO bucket VALUES (?, ?, ?) \
                      ON CONFLICT (policy) DO UPDATE SET numbers = excluded.numbers, record = excluded.record";
        self.sql.exec(upsert, vec![policy.name().into(), numbers.into(), record.into()])?;
        self.states.borrow_mut().insert(policy.name().to_owned(), state);
        Ok(())
    }
}

/// The first 64 of the 256 bits of an object's id, which is made of its name.
fn phase_of(id: &str) -> u64 {
    id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}
