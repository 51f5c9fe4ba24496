//! A ledger with its object's storage: when it is read, the order of writes, and the meaning of failures.

use std::fmt;
use std::sync::Arc;

use super::{Background, Ledger, LedgerError, RowWrite, Writes};
use crate::policy::Policy;
use crate::protocol::{KeyState, ObjectReply, ObjectRequest, Rows};

/// An object's storage and timers.
pub trait Storage {
    /// The reason for a failure.
    type Error;

    /// All rows.
    ///
    /// # Errors
    /// The runtime's error.
    fn rows(&mut self) -> Result<Vec<(String, Vec<u8>)>, Self::Error>;

    /// Writes rows, all or none, before the reply.
    ///
    /// # Errors
    /// The runtime's error. Then none is written.
    fn write(&mut self, rows: &[RowWrite]) -> Result<(), Self::Error>;

    /// Writes a row that no reply waits for. Once it is persisted, call [`Kept::confirm`] with its name, `ledger` and its ticket.
    ///
    /// # Errors
    /// The runtime's error.
    fn write_background(&mut self, row: &Background, ledger: u32) -> Result<(), Self::Error>;

    /// Deletes all rows and the alarm.
    ///
    /// # Errors
    /// The runtime's error.
    fn clear(&mut self) -> Result<(), Self::Error>;

    /// Sets the alarm, which calls [`Kept::clean`].
    ///
    /// # Errors
    /// The runtime's error.
    fn wake_at(&mut self, at: i64) -> Result<(), Self::Error>;

    /// Sets a timer, which calls [`Kept::flush_idle`].
    ///
    /// # Errors
    /// The runtime's error.
    fn flush_in(&mut self, ms: u64) -> Result<(), Self::Error>;
}

/// A ledger with its storage.
#[derive(Debug)]
pub struct Kept<S> {
    storage: S,
    phase: u64,
    /// `None` until read, and again after a failure, which may have left it half changed.
    ledger: Option<Ledger>,
    /// Changes with every read, so that rows of an earlier ledger are not confirmed to this one.
    number: u32,
    /// Whether the timer for [`Kept::flush_idle`] is set.
    has_timer: bool,
    /// Rows that storage has read and written since the last [`Kept::take_rows`].
    rows: Rows,
}

/// Why a step failed.
#[derive(Debug)]
pub enum KeptError<E> {
    /// The step is impossible. Nothing has changed.
    Ledger(LedgerError),
    /// Storage failed.
    Storage(E),
}

impl<E> From<LedgerError> for KeptError<E> {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl<E: fmt::Display> fmt::Display for KeptError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ledger(error) => error.fmt(f),
            Self::Storage(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for KeptError<E> {}

type Step<T> = Result<(T, Writes), LedgerError>;

impl<S: Storage> Kept<S> {
    /// A ledger to be read on first use. `phase` is that of [`Ledger::new`]. Make `number` random: an object that replaces another may get
    /// confirmations of the other's rows.
    pub fn new(storage: S, phase: u64, number: u32) -> Self {
        Self { storage, phase, ledger: None, number, has_timer: false, rows: Rows::default() }
    }

    /// See [`Ledger::ask`].
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> Result<ObjectReply, KeptError<S::Error>> {
        self.step(|ledger| ledger.ask(asked, request, now, random))
    }

    /// See [`Ledger::inspect`].
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn inspect(&mut self, policies: &[Arc<Policy>], as_of: i64, now: i64) -> Result<KeyState, KeptError<S::Error>> {
        self.step(|ledger| Ok((ledger.inspect(policies, as_of, now), Writes::default())))
    }

    /// The alarm: deletes expired state.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn clean(&mut self, now: i64) -> Result<(), KeptError<S::Error>> {
        self.step(|ledger| Ok(((), ledger.clean(now))))
    }

    /// The timer: writes the exact levels if spending has paused.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn flush_idle(&mut self, now: i64) -> Result<(), KeptError<S::Error>> {
        self.has_timer = false;
        match self.ledger {
            Some(_) => self.step(|ledger| Ok(((), ledger.flush_idle(now)))),
            None => Ok(()), // storage has everything
        }
    }

    /// If the runtime lost the alarm, the moment to set it to; `None` if none is missing.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn alarm_is_missing(&mut self, now: i64) -> Result<Option<i64>, KeptError<S::Error>> {
        let at = self.step(|ledger| Ok((ledger.alarm_is_missing(now).alarm_at, Writes::default())))?;
        self.count_written(usize::from(at.is_some()));
        Ok(at)
    }

    /// Records that a row of that ledger is persisted.
    pub fn confirm(&mut self, name: &str, ledger: u32, ticket: u32) {
        if let Some(kept) = &mut self.ledger
            && ledger == self.number
        {
            kept.confirm(name, ticket);
        }
    }

    /// Storage operations since the last call, including those of alarms and timers.
    pub fn take_rows(&mut self) -> Rows {
        std::mem::take(&mut self.rows)
    }

    /// Runs a step and writes its rows.
    fn step<T>(&mut self, step: impl FnOnce(&mut Ledger) -> Step<T>) -> Result<T, KeptError<S::Error>> {
        let mut ledger = match self.ledger.take() {
            Some(ledger) => ledger,
            None => self.read().map_err(KeptError::Storage)?,
        };
        let done = step(&mut ledger);
        if let Ok((_, writes)) = &done {
            self.write(writes).map_err(KeptError::Storage)?;
        }
        self.ledger = Some(ledger);
        Ok(done?.0)
    }

    fn read(&mut self) -> Result<Ledger, S::Error> {
        let rows = self.storage.rows()?;
        self.number = self.number.wrapping_add(1);
        self.rows.read = self.rows.read.saturating_add(rows.len() as u64);
        Ok(Ledger::new(rows, self.phase))
    }

    fn write(&mut self, writes: &Writes) -> Result<(), S::Error> {
        if writes.clear {
            return self.storage.clear();
        }
        self.write_rows(&writes.before_reply)?;
        _ = self.write_rows(&writes.consequences); // at worst a notice is sent twice, or a refusal counts only until a crash
        for row in &writes.background {
            self.storage.write_background(row, self.number)?;
            self.count_written(1);
        }
        if let Some(at) = writes.alarm_at {
            self.storage.wake_at(at)?;
            self.count_written(1);
        }
        if writes.wants_flush && !std::mem::replace(&mut self.has_timer, true) {
            self.storage.flush_in(Writes::IDLE_MS)?;
        }
        Ok(())
    }

    fn write_rows(&mut self, rows: &[RowWrite]) -> Result<(), S::Error> {
        if !rows.is_empty() {
            self.storage.write(rows)?;
            self.count_written(rows.len());
        }
        Ok(())
    }

    fn count_written(&mut self, rows: usize) {
        self.rows.written = self.rows.written.saturating_add(rows as u64);
    }
}
