//! A body to a valid request, or to a precise error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};

use super::problem::Problem;
use crate::limit::MAX_TOKENS;

/// The longest body that is read, in bytes. The longest valid one, with a key of escapes, has about 4 KiB.
pub const MAX_BODY_LEN: usize = 16 * 1024;

/// The longest key in bytes of UTF-8. Room for a URL or an e-mail address with a tenant before it; whoever has longer
/// ones hashes them.
pub const MAX_KEY_LEN: usize = 512;

/// What a client asks: `cost` tokens of a key's bucket.
#[derive(Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with \"policy\", \"key\" and perhaps \"cost\"")]
pub struct Ask<'a> {
    /// The policy's name, not yet known to exist.
    #[serde(borrow)]
    pub policy: Cow<'a, str>,
    /// Whose budget it is: 1 to [`MAX_KEY_LEN`] bytes of any text.
    #[serde(borrow, deserialize_with = "key")]
    pub key: Cow<'a, str>,
    /// 0 to [`MAX_TOKENS`].
    #[serde(default = "one", deserialize_with = "cost")]
    pub cost: u64,
}

impl<'a> Ask<'a> {
    /// Parses a body such as `{"policy":"api","key":"alice","cost":1}`; `cost` is 1 if it is not there.
    ///
    /// # Errors
    /// [`Problem::BodyTooLarge`] and [`Problem::BadRequest`], which says what was wrong and where.
    pub fn parse(body: &'a [u8]) -> Result<Self, Problem> {
        if body.len() > MAX_BODY_LEN {
            return Err(Problem::BodyTooLarge);
        }
        // What serde derives would take an array for the fields without their names.
        if body.trim_ascii_start().starts_with(b"[") {
            let detail = "invalid type: sequence, expected a JSON object with \"policy\", \"key\" and perhaps \"cost\"";
            return Err(Problem::BadRequest { detail: detail.to_owned() });
        }
        serde_json::from_slice(body).map_err(|error| {
            let about = if error.is_data() { "" } else { "the body cannot be read as JSON: " };
            Problem::BadRequest { detail: format!("{about}{error}") }
        })
    }
}

/// Checks that a request says its body is JSON.
///
/// # Errors
/// [`Problem::UnsupportedMediaType`] for any other `Content-Type`, and for none: a form sent by mistake must not pass.
pub fn require_json(content_type: Option<&str>) -> Result<(), Problem> {
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::UnsupportedMediaType { found: essence.to_owned() })
    }
}

fn one() -> u64 {
    1
}

fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    /// `Cow` alone would always copy; this borrows whatever has no escapes.
    struct Key;
    impl<'de> Visitor<'de> for Key {
        type Value = Cow<'de, str>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a key of 1 to {MAX_KEY_LEN} bytes of text")
        }
        fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
            checked_key(key).map(Cow::Borrowed)
        }
        fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
            checked_key(key).map(|key| Cow::Owned(key.to_owned()))
        }
    }
    deserializer.deserialize_str(Key)
}

fn checked_key<E: Error>(key: &str) -> Result<&str, E> {
    match key.len() {
        0 => Err(E::custom(format_args!("an empty key: it must have 1 to {MAX_KEY_LEN} bytes"))),
        len if len > MAX_KEY_LEN => {
            Err(E::custom(format_args!("a key of {len} bytes is too long: it must have 1 to {MAX_KEY_LEN}")))
        }
        _ => Ok(key),
    }
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Cost;
    impl Visitor<'_> for Cost {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a cost that is a whole number from 0 to {MAX_TOKENS}")
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
    deserializer.deserialize_any(Cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(body: &str) -> String {
        match Ask::parse(body.as_bytes()) {
            Err(Problem::BadRequest { detail }) => detail,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_three_fields_and_cost_is_1_if_absent() {
        let ask = Ask::parse(br#"{"policy":"api","key":"alice"}"#);
        assert_eq!(ask, Ok(Ask { policy: "api".into(), key: "alice".into(), cost: 1 }));
    }

    #[test]
    fn every_mistake_is_named_with_what_would_be_right() {
        for (body, expected) in [
            ("", "the body cannot be read as JSON: EOF while parsing a value at line 1 column 0"),
            ("null", "invalid type: null, expected a JSON object with \"policy\", \"key\" and perhaps \"cost\""),
            ("[]", "invalid type: sequence, expected a JSON object with \"policy\", \"key\" and perhaps \"cost\""),
            (r#" ["p","a",1]"#, "invalid type: sequence, expected a JSON object"),
            (r#"{"key":"a"}"#, "missing field `policy`"),
            (r#"{"policy":"p"}"#, "missing field `key`"),
            (
                r#"{"policy":"p","key":"a","amount":1}"#,
                "unknown field `amount`, expected one of `policy`, `key`, `cost`",
            ),
            (r#"{"policy":"p","key":"a","key":"b"}"#, "duplicate field `key`"),
            (r#"{"policy":"p","key":""}"#, "an empty key: it must have 1 to 512 bytes"),
            (r#"{"policy":"p","key":7}"#, "invalid type: integer `7`, expected a key of 1 to 512 bytes of text"),
            (r#"{"policy":"p","key":"\ud800"}"#, "unexpected end of hex escape at line 1 column 28"),
            (r#"{"policy":"p","key":"a","cost":-1}"#, "integer `-1`, expected a cost that is a whole number from 0 to"),
            (r#"{"policy":"p","key":"a","cost":1.5}"#, "floating point `1.5`, expected a cost that is a whole number"),
            (r#"{"policy":"p","key":"a","cost":9007199254740992}"#, "integer `9007199254740992`, expected a cost"),
            (r#"{"policy":"p","key":"a","cost":1e300}"#, "floating point `1e+300`, expected a cost"),
            (r#"{"policy":"p","key":"a","cost":1e999}"#, "number out of range"),
            (r#"{"policy":"p","key":"a","cost":NaN}"#, "expected value at line 1 column 32"),
            (r#"{"policy":"p","key":"a","cost":"1"}"#, "invalid type: string \"1\", expected a cost"),
            (r#"{"policy":"p","key":"a","cost":null}"#, "invalid type: null, expected a cost"),
            (r#"{"policy":"p","key":"a"} x"#, "trailing characters at line 1 column 26"),
        ] {
            let detail = detail(body);
            assert!(detail.contains(expected), "{body}\n  said     {detail}\n  expected {expected}");
        }
    }

    #[test]
    fn a_key_of_512_bytes_passes_and_one_of_513_does_not() {
        let body = |len: usize| format!(r#"{{"policy":"p","key":"{}"}}"#, "k".repeat(len));
        assert_eq!(Ask::parse(body(512).as_bytes()).map(|ask| ask.key.len()), Ok(512));
        assert!(detail(&body(513)).contains("a key of 513 bytes is too long: it must have 1 to 512"));
        // 171 characters of three bytes are 513 bytes: bytes are counted, not characters.
        assert!(detail(&format!(r#"{{"policy":"p","key":"{}"}}"#, "語".repeat(171))).contains("a key of 513 bytes"));
    }

    #[test]
    fn a_key_with_invalid_utf_8_is_refused_rather_than_mended() {
        assert!(matches!(Ask::parse(b"{\"policy\":\"p\",\"key\":\"\xff\"}"), Err(Problem::BadRequest { .. })));
    }

    #[test]
    fn a_cost_may_be_written_with_a_point_if_it_is_whole() {
        for (cost, expected) in [("1.0", 1), ("1e3", 1000), ("-0.0", 0), ("9007199254740991.0", MAX_TOKENS), ("0", 0)] {
            let body = format!(r#"{{"policy":"p","key":"a","cost":{cost}}}"#);
            assert_eq!(Ask::parse(body.as_bytes()).map(|ask| ask.cost), Ok(expected), "{cost}");
        }
    }

    #[test]
    fn a_body_of_the_largest_size_is_read_and_one_byte_more_is_not() {
        let body = |len: usize| format!("{:len$}", r#"{"policy":"p","key":"a"}"#);
        assert!(Ask::parse(body(MAX_BODY_LEN).as_bytes()).is_ok());
        assert_eq!(Ask::parse(body(MAX_BODY_LEN + 1).as_bytes()), Err(Problem::BodyTooLarge));
    }

    #[test]
    fn only_json_is_json() {
        for accepted in ["application/json", "Application/JSON; charset=utf-8", " application/json "] {
            assert_eq!(require_json(Some(accepted)), Ok(()), "{accepted}");
        }
        for refused in [Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonp"), None]
        {
            assert!(matches!(require_json(refused), Err(Problem::UnsupportedMediaType { .. })), "{refused:?}");
        }
    }
}
