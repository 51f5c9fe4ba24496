//! Storage in memory: a crash keeps only rows that have arrived, and a test can make it fail.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::rc::Rc;

use tollgate::ledger::{Background, RowWrite, Storage};

/// Storage that outlives its objects. A clone is the same storage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(pub(crate) Rc<RefCell<State>>);

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) rows: BTreeMap<String, Vec<u8>>,
    /// Rows that were written in the background and have not arrived yet, and the numbers of their ledgers.
    pub(crate) in_flight: Vec<(Background, u32)>,
    /// Rows that have arrived without the ledger knowing.
    pub(crate) arrived: Vec<(Background, u32)>,
    pub(crate) alarm_at: Option<i64>,
    /// How many timers were set.
    pub(crate) timers: usize,
    /// How many times all rows were read.
    pub(crate) reads: usize,
    /// How many writes an answer has waited for.
    pub(crate) waits: usize,
    /// How many rows were deleted by clearing the storage.
    pub(crate) cleared: usize,
    /// Writing a row fails if its name begins so.
    pub(crate) failing: Option<&'static str>,
}

/// All of it but what tests count.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, in_flight, arrived, alarm_at, timers: _, reads: _, waits: _, cleared: _, failing } = self;
        f.debug_tuple("State").field(&(rows, in_flight, arrived, alarm_at, failing)).finish()
    }
}

impl Disk {
    pub(crate) fn get(&self) -> Ref<'_, State> {
        self.0.borrow()
    }

    pub(crate) fn get_mut(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }
}

impl State {
    fn check<'a>(&self, mut names: impl Iterator<Item = &'a String>) -> Result<(), &'static str> {
        let is_failing = |name: &String| self.failing.is_some_and(|failing| name.starts_with(failing));
        if names.any(is_failing) { Err("the disk is full") } else { Ok(()) }
    }

    pub(crate) fn arrive(&mut self, count: usize) {
        for (background, ledger) in self.in_flight.drain(..count.min(self.in_flight.len())) {
            self.rows.insert(background.name.clone(), background.row.clone());
            self.arrived.push((background, ledger));
        }
    }
}

impl Storage for Disk {
    type Error = &'static str;

    fn rows(&mut self) -> Result<Vec<(String, Vec<u8>)>, &'static str> {
        self.get_mut().reads += 1;
        Ok(self.get().rows.clone().into_iter().collect())
    }

    fn write(&mut self, rows: &[RowWrite]) -> Result<(), &'static str> {
        let mut state = self.get_mut();
        state.check(rows.iter().map(|(name, _)| name))?;
        state.arrive(usize::MAX); // in order
        state.waits += 1;
        for (name, row) in rows {
            match row {
                Some(row) => _ = state.rows.insert(name.clone(), row.clone()),
                None => _ = state.rows.remove(name),
            }
        }
        Ok(())
    }

    fn write_background(&mut self, row: &Background, ledger: u32) -> Result<(), &'static str> {
        let mut state = self.get_mut();
        state.check([&row.name].into_iter())?;
        state.in_flight.push((row.clone(), ledger));
        Ok(())
    }

    fn clear(&mut self) -> Result<(), &'static str> {
        let mut state = self.get_mut();
        state.waits += 1;
        state.cleared += mem::take(&mut state.rows).len();
        state.in_flight.clear();
        state.alarm_at = None;
        Ok(())
    }

    fn wake_at(&mut self, at: i64) -> Result<(), &'static str> {
        self.get_mut().alarm_at = Some(at);
        Ok(())
    }

    fn flush_in(&mut self, _: u64) -> Result<(), &'static str> {
        self.get_mut().timers += 1;
        Ok(())
    }
}
