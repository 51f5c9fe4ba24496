//! `POST /v1/keys/block`: refuses a key for a time, by an override with an end.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::body::{Body, parse};
use super::super::problem::{Problem, bad_request};

/// The path.
pub(in crate::api) const BLOCK_PATH: &str = "/v1/keys/block";

/// The shortest time: as long as a change takes to be in effect everywhere. It exceeds the timeout of the registry's answer, so that no
/// block is over when it arrives.
const MIN_BLOCK_MS: u64 = 10_000;

/// The longest time: 366 days. For longer or indefinite bans, use overrides.
const MAX_BLOCK_MS: u64 = 366 * 86_400_000;

/// The key to block, the policy, and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRequest<'a> {
    /// The policy.
    pub policy: Cow<'a, str>,
    /// As written.
    key: &'a str,
    for_ms: u64,
}

impl<'a> BlockRequest<'a> {
    /// Parses a body such as `{"policy":"api","key":"alice","for_ms":3600000}`.
    ///
    /// # Errors
    /// [`Problem::BadRequest`].
    pub fn parse(body: &'a [u8]) -> Result<Self, Problem> {
        let body = Body::of(parse(body)?, "the body", &["policy", "key", "for_ms"])?;
        body.operated_key()?;
        let (policy, key, for_ms) = (body.policy()?, body.written_key()?, body.for_ms()?);
        if !(MIN_BLOCK_MS..=MAX_BLOCK_MS).contains(&for_ms) {
            return bad_request(format!("`for_ms` must be from {MIN_BLOCK_MS} to {MAX_BLOCK_MS}, not {for_ms}"));
        }
        Ok(Self { policy, key, for_ms })
    }

    /// The body for `PUT /v1/overrides` that blocks the key at `now`.
    #[must_use]
    pub fn overrides(&self, now: i64) -> String {
        #[derive(Serialize)]
        struct Overrides<'a> {
            overrides: [Blocked<'a>; 1],
        }
        #[derive(Serialize)]
        struct Blocked<'a> {
            policy: &'a str,
            key: Option<&'a RawValue>,
            banned: bool,
            until: i64,
        }
        let key = serde_json::from_str(self.key).ok();
        let until = now.saturating_add_unsigned(self.for_ms);
        let body = Overrides { overrides: [Blocked { policy: &self.policy, key, banned: true, until }] };
        serde_json::to_string(&body).unwrap_or_default() // our own type cannot fail to serialize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_an_override_with_an_end() {
        let body = br#"{"policy":"api","key":["t", "u"],"for_ms":6e4}"#;
        assert_eq!(
            BlockRequest::parse(body).unwrap().overrides(1_000),
            r#"{"overrides":[{"policy":"api","key":["t", "u"],"banned":true,"until":61000}]}"#
        );
        for for_ms in ["10000", "31622400000"] {
            let body = format!(r#"{{"policy":"api","key":"a","for_ms":{for_ms}}}"#);
            assert!(BlockRequest::parse(body.as_bytes()).is_ok(), "{for_ms}");
        }
        for (body, expected) in [
            (r#"{"policy":"api","key":"a"}"#, "the field `for_ms` is missing"),
            (r#"{"policy":"api","for_ms":1}"#, "the field `key` is missing"),
            (r#"{"key":"a","for_ms":1}"#, "the field `policy` is missing"),
            (r#"{"policy":"api","key":"a","for_ms":9999}"#, "`for_ms` must be from 10000 to 31622400000, not 9999"),
            (
                r#"{"policy":"api","key":"a","for_ms":31622400001}"#,
                "`for_ms` must be from 10000 to 31622400000, not 31622400001",
            ),
            (
                r#"{"policy":"api","key":"a","for_ms":"1h"}"#,
                "`for_ms` must be a whole number from 0 to 9007199254740991, not \"1h\"",
            ),
        ] {
            match BlockRequest::parse(body.as_bytes()) {
                Err(Problem::BadRequest { detail }) => assert_eq!(detail, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
