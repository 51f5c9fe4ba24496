//! One value of a body, and the error if it is wrong.

use super::problem::{Problem, bad_request};
use super::text::{MOST_SHOWN, shortened};
use crate::json::Json;
use crate::limit::MAX_TOKENS;

/// A whole number from 0 to [`MAX_TOKENS`].
pub(super) fn integer(json: Json<'_>, what: impl FnOnce() -> String) -> Result<u64, Problem> {
    match json.integer() {
        Some(number) if number <= MAX_TOKENS => Ok(number),
        _ => bad_request(format!("{} must be a whole number from 0 to {MAX_TOKENS}, not {}", what(), shown_json(json))),
    }
}

pub(super) fn must_be<T>(field: &str, expected: &str, json: Json<'_>) -> Result<T, Problem> {
    bad_request(format!("`{field}` must be {expected}, not {}", shown_json(json)))
}

/// The value as written, shortened.
pub(super) fn shown_json(json: Json<'_>) -> String {
    shortened(&json.to_string(), MOST_SHOWN)
}
