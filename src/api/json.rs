//! JSON to values, or to an error that a client can act on.

use std::fmt;

use serde::Deserialize;
use serde::de::{Error, Unexpected, Visitor};

use super::problem::Problem;
use super::text::shortened;
use crate::limit::MAX_TOKENS;

pub(super) fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8], expected: &str) -> Result<T, Problem> {
    // What serde derives would accept an array of the fields too.
    match body.trim_ascii_start().first() {
        Some(b'[') => bad_request(format!("invalid type: sequence, expected {expected}")),
        _ => serde_json::from_slice(body).or_else(|error| {
            let about = if error.is_data() { "" } else { "the body is not valid JSON: " };
            bad_request(shortened(&format!("{about}{error}")))
        }),
    }
}

pub(super) fn bad_request<T>(detail: String) -> Result<T, Problem> {
    Err(Problem::BadRequest { detail })
}

/// A whole number from 0 to [`MAX_TOKENS`] of what it says.
pub(super) struct Whole(pub(super) &'static str);

impl Visitor<'_> for Whole {
    type Value = u64;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} that is a whole number from 0 to {MAX_TOKENS}", self.0)
    }
    fn visit_u64<E: Error>(self, cost: u64) -> Result<u64, E> {
        if cost <= MAX_TOKENS { Ok(cost) } else { Err(E::invalid_value(Unexpected::Unsigned(cost), &self)) }
    }
    fn visit_i64<E: Error>(self, cost: i64) -> Result<u64, E> {
        u64::try_from(cost).map_err(|_| E::invalid_value(Unexpected::Signed(cost), &self))
    }
    /// Some clients write every number with a point: 1.0 is 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "whole numbers of up to 2⁵³ are exact as f64"
    )]
    fn visit_f64<E: Error>(self, cost: f64) -> Result<u64, E> {
        if cost.fract() == 0.0 && (0.0..=MAX_TOKENS as f64).contains(&cost) {
            Ok(cost as u64)
        } else {
            Err(E::invalid_value(Unexpected::Float(cost), &self))
        }
    }
}
