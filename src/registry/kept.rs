//! The registry beside its object's storage: when it is read, and what a failure means.

use std::iter;

use super::{AUDIT, Registry, Writes};
use crate::key_hash::KeyHasher;

/// What the registry's object has of its runtime.
pub trait Storage {
    /// Why something has failed.
    type Error;

    /// The first `count` rows whose names are above `after`: names and texts, by name.
    ///
    /// # Errors
    /// As the runtime says.
    fn rows(&mut self, after: &str, count: u32) -> Result<Vec<(String, String)>, Self::Error>;

    /// The rows of these names. One that is not there is left out.
    ///
    /// # Errors
    /// As the runtime says.
    fn rows_of(&mut self, names: &[String]) -> Result<Vec<String>, Self::Error>;

    /// Writes rows, all or none, before the answer is given.
    ///
    /// # Errors
    /// As the runtime says. Then none is written.
    fn write(&mut self, rows: &Writes) -> Result<(), Self::Error>;

    /// Reports the names of rows that the registry could not read.
    fn unreadable(&mut self, names: &[String]);
}

/// A registry, and where its rows are.
#[derive(Debug)]
pub struct Kept<S> {
    storage: S,
    hasher: KeyHasher,
    /// `None` until it is read, and again after a failure, which may have left it half changed.
    registry: Option<Registry>,
}

impl<S: Storage> Kept<S> {
    /// A registry that will be read, where keys are hashed so.
    pub const fn new(storage: S, hasher: KeyHasher) -> Self {
        Self { storage, hasher, registry: None }
    }

    /// Carries out a step and writes the rows that it asks for.
    ///
    /// # Errors
    /// Those of the step and of the storage.
    pub fn step<T>(
        &mut self,
        step: impl FnOnce(&mut Registry, &mut S) -> Result<(T, Writes), S::Error>,
    ) -> Result<T, S::Error> {
        let mut registry = match self.registry.take() {
            Some(registry) => registry,
            None => self.read()?,
        };
        let (done, writes) = step(&mut registry, &mut self.storage)?;
        if !writes.is_empty() {
            self.storage.write(&writes)?;
        }
        self.registry = Some(registry);
        Ok(done)
    }

    /// Page by page: all rows at once, as texts of the runtime and again here, would need more memory than what is made of them.
    fn read(&mut self) -> Result<Registry, S::Error> {
        // The names of the audit log's rows are below all others.
        let mut after = AUDIT.replace(':', ";");
        let mut failure = None;
        let pages = iter::from_fn(|| {
            let rows = self.storage.rows(&after, PAGE_ROWS).map_err(|error| failure = Some(error)).ok()?;
            after.clone_from(&rows.last()?.0);
            Some(rows)
        });
        let registry = Registry::new(self.hasher.clone(), pages.flatten());
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !registry.unreadable_rows().is_empty() {
            self.storage.unreadable(registry.unreadable_rows());
        }
        Ok(registry)
    }
}

/// Rows that are read at once: at most some megabytes.
const PAGE_ROWS: u32 = 500;
