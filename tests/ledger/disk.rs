//! Storage in memory, which a test lets fail.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate::ledger::{Background, RowWrite, Storage};

/// Storage that outlives its objects. A copy is the same storage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Rc<RefCell<State>>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) rows: BTreeMap<String, Vec<u8>>,
    /// The names of rows that were written in the background, with what confirms them: the ledger's number and the ticket.
    pub(crate) unconfirmed: Vec<(String, u32, u32)>,
    pub(crate) alarm_at: Option<i64>,
    /// How many timers were set.
    pub(crate) timers: usize,
    /// How often all rows were read.
    pub(crate) reads: usize,
    /// Writing a row fails if its name begins so.
    pub(crate) failing: Option<&'static str>,
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
    fn check(&self, name: &str) -> Result<(), &'static str> {
        match self.failing {
            Some(failing) if name.starts_with(failing) => Err("the disk is full"),
            _ => Ok(()),
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
        rows.iter().try_for_each(|(name, _)| self.get().check(name))?;
        for (name, row) in rows {
            match row {
                Some(row) => _ = self.get_mut().rows.insert(name.clone(), row.clone()),
                None => _ = self.get_mut().rows.remove(name),
            }
        }
        Ok(())
    }

    fn write_background(&mut self, row: &Background, ledger: u32) -> Result<(), &'static str> {
        self.get().check(&row.name)?;
        let Background { name, row, ticket } = row;
        self.get_mut().rows.insert(name.clone(), row.clone());
        self.get_mut().unconfirmed.push((name.clone(), ledger, *ticket));
        Ok(())
    }

    fn clear(&mut self) -> Result<(), &'static str> {
        self.get_mut().rows.clear();
        self.get_mut().alarm_at = None;
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
