//! An object called by a request.

use crate::api::{ResolvedItem, ResolvedRequest};

/// An object, and the indices of its items.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) items: Vec<usize>,
    /// When it was last called.
    pub(super) called_at: i64,
    /// When it was first called, and when it last answered, by the clock of decisions.
    pub(super) asked_at: Option<i64>,
    pub(super) answered_at: i64,
    /// Whether that call failed.
    pub(super) has_failed: bool,
}

impl Object {
    pub(super) const fn new(name: String, items: Vec<usize>) -> Self {
        Self { name, items, called_at: 0, asked_at: None, answered_at: 0, has_failed: false }
    }

    /// The items in its request.
    pub(super) fn items_of<'a>(&'a self, asked: &'a ResolvedRequest) -> impl Iterator<Item = &'a ResolvedItem> + Clone {
        self.items.iter().filter_map(|&item| asked.items().get(item))
    }
}
