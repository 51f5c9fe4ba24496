//! The registry with its object's storage: when it is read, and the meaning of failures.

use std::iter;

use super::{AUDIT, Registry, Writes};
use crate::key_hash::KeyHasher;

/// The storage of the registry's object.
pub trait Storage {
    /// The reason for a failure.
    type Error;

    /// The first `count` rows with names above `after`: names and texts, by name.
    ///
    /// # Errors
    /// The runtime's error.
    fn rows(&mut self, after: &str, count: u32) -> Result<Vec<(String, String)>, Self::Error>;

    /// The rows with these names, without missing ones.
    ///
    /// # Errors
    /// The runtime's error.
    fn rows_of(&mut self, names: &[String]) -> Result<Vec<String>, Self::Error>;

    /// Writes rows, all or none, before the reply.
    ///
    /// # Errors
    /// The runtime's error. Then none is written.
    fn write(&mut self, rows: &Writes) -> Result<(), Self::Error>;

    /// Reports the names of rows that the registry could not read.
    fn unreadable(&mut self, names: &[String]);
}

/// A registry with its storage.
#[derive(Debug)]
pub struct Kept<S> {
    storage: S,
    hasher: KeyHasher,
    /// `None` until read, and again after a failure, which may have left it half changed.
    registry: Option<Registry>,
}

impl<S: Storage> Kept<S> {
    /// A registry to be read on first use, with this hasher for keys.
    pub const fn new(storage: S, hasher: KeyHasher) -> Self {
        Self { storage, hasher, registry: None }
    }

    /// Runs a step and writes its rows.
    ///
    /// # Errors
    /// The errors of the step and of the storage.
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

    /// Runs a step that may be refused, and writes its rows. A refused step has changed nothing, so the registry stays in memory.
    ///
    /// # Errors
    /// The errors of the storage; within, those of the step.
    pub fn attempt<T, E>(
        &mut self,
        step: impl FnOnce(&mut Registry) -> Result<(T, Writes), E>,
    ) -> Result<Result<T, E>, S::Error> {
        self.step(|registry, _| {
            Ok(match step(registry) {
                Ok((done, writes)) => (Ok(done), writes),
                Err(error) => (Err(error), Writes::new()),
            })
        })
    }

    /// Page by page: all rows at once, as JavaScript texts and again here, would need more memory than the resulting registry.
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

/// Rows per read: at most a few megabytes.
const PAGE_ROWS: u32 = 500;
