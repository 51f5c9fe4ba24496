//! `POST /v1/keys/block`: refuses a key for a time, by an override with an end.

use super::super::body::{Body, missing, parse};
use super::super::problem::{Problem, bad_request};
use crate::access::Key;
use crate::policy::overrides::{InForce, Plan};
use crate::protocol::{NamedKeys, NewOverride, OverrideChange, OverrideKeys};

/// The path.
pub const BLOCK_PATH: &str = "/v1/keys/block";

/// The shortest time: as long as a change takes to be in effect everywhere. It exceeds the timeout of the registry's answer, so that no
/// block is over when it arrives.
const MIN_BLOCK_MS: u64 = 10_000;

/// The longest time: 366 days. For longer or indefinite bans, use overrides.
const MAX_BLOCK_MS: u64 = 366 * 86_400_000;

/// The key to block, the policy, and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The policy.
    pub policy: String,
    key: Key<'static>,
    /// As written, without spaces.
    written_key: String,
    for_ms: u64,
}

impl BlockRequest {
    /// Parses a body such as `{"policy":"api","key":"alice","for_ms":3600000}`.
    ///
    /// # Errors
    /// [`Problem::BadRequest`].
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let body = Body::of(parse(body)?, "the body", &["policy", "key", "for_ms"])?;
        let key = body.operated_key()?;
        let policy = body.policy()?.into_owned();
        let (Some(key), Some(written)) = (key, body.written_key()) else { return missing("key") };
        let for_ms = body.for_ms()?;
        if !(MIN_BLOCK_MS..=MAX_BLOCK_MS).contains(&for_ms) {
            return bad_request(format!("`for_ms` must be from {MIN_BLOCK_MS} to {MAX_BLOCK_MS}, not {for_ms}"));
        }
        Ok(Self { policy, key: key.into_owned(), written_key: written.compact(), for_ms })
    }

    /// The override that blocks the key from `now` on.
    #[must_use]
    pub fn into_change(self, now: i64) -> OverrideChange {
        let Self { policy, key, written_key, for_ms } = self;
        let until = now.saturating_add_unsigned(for_ms);
        let name = serde_json::to_string(&policy).unwrap_or_default(); // a text is always JSON
        let text = format!(r#"{{"policy":{name},"key":{written_key},"banned":true,"until":{until}}}"#);
        let keys = OverrideKeys { place: "overrides[0]".to_owned(), policy, keys: NamedKeys::One(key) };
        let in_force = InForce { plan: Plan::Banned, until: Some(until) };
        OverrideChange { keys, set: Some(NewOverride { text, in_force }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_an_override_with_an_end() {
        let body = br#"{"policy":"api","key":["t", "u"],"for_ms":6e4}"#;
        let change = BlockRequest::parse(body).unwrap().into_change(1_000);
        let same = r#"{"overrides":[{"policy":"api","key":["t", "u"],"banned":true,"until":61000}]}"#;
        assert_eq!(OverrideChange::parse_all(same), Ok(vec![Ok(change)]));
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
