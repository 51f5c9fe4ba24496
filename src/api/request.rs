//! A body to a valid request, or to a precise error.

use std::borrow::Cow;

use serde::Deserialize;

use super::body::{BATCH_BODY, BODY, BatchBody, Body, Mode, key};
use super::cost::{Cost, cost};
use super::endpoint::Endpoint;
use super::json::{bad_request, from_json};
use super::problem::Problem;
use super::text::shown;
use crate::limit::Verb;
use crate::protocol::Action;

/// The longest body that is read, in bytes. A batch of the longest keys, all of them escaped, would be four times as long;
/// callers with such keys must send fewer at once.
pub const MAX_BODY_LEN: usize = 16 * 1024;

/// The longest key in bytes of UTF-8: room for a URL, or an e-mail address after a tenant. Callers with longer ones must
/// hash them.
pub const MAX_KEY_LEN: usize = 512;

/// The most requests in a batch. Each key is a call to another object, and all tokens are held until the last object has
/// answered.
pub const MAX_BATCH: usize = 16;

/// A request: what is to be done, and with which budgets.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// What is to be done: the same for all items.
    pub action: Action,
    /// One, or those of a batch: 1 to [`MAX_BATCH`], no two with the same policy and key.
    pub items: Vec<Item<'a>>,
}

/// One budget, and the cost.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with \"policy\", \"key\" and optional fields")]
pub struct Item<'a> {
    /// The policy's name, not yet known to exist.
    #[serde(borrow)]
    pub policy: Cow<'a, str>,
    /// Whose budget it is: 1 to [`MAX_KEY_LEN`] bytes of any text.
    #[serde(borrow, deserialize_with = "key")]
    pub key: Cow<'a, str>,
    /// `None` if none was given.
    #[serde(borrow, default, deserialize_with = "cost")]
    pub cost: Option<Cost<'a>>,
    /// Whether the answer includes the exact states of the buckets.
    #[serde(default)]
    pub snapshot: bool,
}

impl<'a> Request<'a> {
    /// Parses the body of a request to `endpoint`, such as `{"policy":"api","key":"alice","cost":1}`.
    ///
    /// # Errors
    /// [`Problem::BodyTooLarge`] and [`Problem::BadRequest`], which says what was wrong and where.
    pub fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, Problem> {
        if body.len() > MAX_BODY_LEN {
            return Err(Problem::BodyTooLarge);
        }
        if endpoint == Endpoint::Batch {
            return batch(body);
        }
        let body: Body<'a> = from_json(body, BODY)?;
        let given = [
            ("cost", body.cost.is_some()),
            ("mode", body.mode.is_some()),
            ("max_wait_ms", body.max_wait_ms.is_some()),
            ("reservation", body.reservation.is_some()),
        ];
        let known = endpoint.optional_fields();
        if let Some((field, _)) = given.iter().find(|(field, is_given)| *is_given && !known.contains(field)) {
            return bad_request(format!("`{field}` is not a field of this endpoint; its fields are {}", fields(known)));
        }
        let Body { policy, key, cost, snapshot, mode, max_wait_ms, reservation } = body;
        let verb = verb(mode.unwrap_or(Mode::Take), max_wait_ms)?;
        let action = match endpoint {
            Endpoint::Consume if matches!(mode, Some(Mode::Reserve)) => Action::Reserve(verb),
            Endpoint::Consume => Action::Take(verb),
            Endpoint::Peek => Action::Look(verb),
            Endpoint::Charge => Action::Take(Verb::Charge),
            Endpoint::Refund => Action::Take(Verb::Refund),
            Endpoint::Reset => Action::Take(Verb::Reset),
            Endpoint::Inspect | Endpoint::Batch => Action::Look(Verb::Consume),
            Endpoint::Settle => Action::Settle(reservation_id(reservation.as_deref())?),
            Endpoint::Cancel => Action::Cancel(reservation_id(reservation.as_deref())?),
        };
        Ok(Self { endpoint, action, items: vec![Item { policy, key, cost, snapshot }] })
    }
}

fn batch(body: &[u8]) -> Result<Request<'_>, Problem> {
    let BatchBody { requests } = from_json(body, BATCH_BODY)?;
    if requests.is_empty() || requests.len() > MAX_BATCH {
        return bad_request(format!("a batch has 1 to {MAX_BATCH} requests, not {}", requests.len()));
    }
    for (index, item) in requests.iter().enumerate() {
        let mut earlier = requests.iter().take(index);
        if let Some(first) = earlier.position(|other| other.policy == item.policy && other.key == item.key) {
            let both = format!("requests {first} and {index} have the same policy and key");
            return bad_request(format!("{both}: combine them, with the sum of their costs"));
        }
    }
    Ok(Request { endpoint: Endpoint::Batch, action: Action::Take(Verb::Consume), items: requests })
}

fn fields(optional: &[&str]) -> String {
    [&["policy", "key"], optional, &["snapshot"]].concat().join(", ")
}

fn verb(mode: Mode, max_wait_ms: Option<u64>) -> Result<Verb, Problem> {
    match (mode, max_wait_ms) {
        (Mode::Reserve, _) => Ok(Verb::Reserve { max_wait_ms }),
        (Mode::Borrow, _) => Ok(Verb::Borrow { max_wait_ms }),
        (_, Some(_)) => bad_request("`max_wait_ms` needs a `mode` of \"reserve\" or \"borrow\"".to_owned()),
        (Mode::Take, None) => Ok(Verb::Consume),
        (Mode::UpTo, None) => Ok(Verb::ConsumeUpTo),
    }
}

/// A reservation's id as clients have it: hexadecimal digits.
fn reservation_id(text: Option<&str>) -> Result<u64, Problem> {
    let Some(text) = text else {
        return bad_request("missing field `reservation`: the id in the answer that reserved the tokens".to_owned());
    };
    let is_id = !text.is_empty() && text.len() <= RESERVATION_ID_LEN && text.bytes().all(|b| b.is_ascii_hexdigit());
    match u64::from_str_radix(text, 16) {
        Ok(id) if is_id => Ok(id),
        _ => bad_request(format!("{} is not a reservation id ({RESERVATION_ID_LEN} hex digits)", shown(text))),
    }
}

/// 52 bits, so that an id is exact as a JavaScript number.
pub(super) const RESERVATION_ID_LEN: usize = 13;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MAX_TOKENS;

    fn detail(body: &str) -> String {
        match Request::parse(Endpoint::Consume, body.as_bytes()) {
            Err(Problem::BadRequest { detail }) => detail,
            other => format!("{other:?}"),
        }
    }

    fn parse(endpoint: Endpoint, body: &str) -> Result<Request<'_>, Problem> {
        Request::parse(endpoint, body.as_bytes())
    }

    fn item<'a>(policy: &'a str, key: &'a str, cost: Option<Cost<'a>>) -> Item<'a> {
        Item { policy: policy.into(), key: key.into(), cost, snapshot: false }
    }

    #[test]
    fn parses_a_policy_a_key_and_optional_fields() {
        let reserve = |max_wait_ms| Action::Reserve(Verb::Reserve { max_wait_ms });
        let by_limit = Cost::ByLimit(vec![("a".into(), 2), ("b".into(), 0)]);
        for (endpoint, more, (action, cost)) in [
            (Endpoint::Consume, "", (Action::Take(Verb::Consume), None)),
            (Endpoint::Consume, r#","mode":"take","cost":3"#, (Action::Take(Verb::Consume), Some(Cost::Each(3)))),
            (Endpoint::Consume, r#","mode":"reserve""#, (reserve(None), None)),
            (Endpoint::Consume, r#","mode":"reserve","max_wait_ms":0"#, (reserve(Some(0)), None)),
            (
                Endpoint::Consume,
                r#","mode":"borrow","max_wait_ms":5"#,
                (Action::Take(Verb::Borrow { max_wait_ms: Some(5) }), None),
            ),
            (Endpoint::Consume, r#","mode":"up_to","cost":9"#, (Action::Take(Verb::ConsumeUpTo), Some(Cost::Each(9)))),
            (Endpoint::Peek, r#","mode":"reserve""#, (Action::Look(Verb::Reserve { max_wait_ms: None }), None)),
            (Endpoint::Charge, r#","cost":{"a":2,"b":0}"#, (Action::Take(Verb::Charge), Some(by_limit))),
            (Endpoint::Refund, "", (Action::Take(Verb::Refund), None)),
            (Endpoint::Reset, "", (Action::Take(Verb::Reset), None)),
            (Endpoint::Inspect, "", (Action::Look(Verb::Consume), None)),
            (
                Endpoint::Settle,
                r#","reservation":"00000000000ff","cost":1"#,
                (Action::Settle(255), Some(Cost::Each(1))),
            ),
            (Endpoint::Cancel, r#","reservation":"fffffffffffff""#, (Action::Cancel((1 << 52) - 1), None)),
        ] {
            let body = format!(r#"{{"policy":"api","key":"alice"{more}}}"#);
            let items = vec![item("api", "alice", cost)];
            assert_eq!(parse(endpoint, &body), Ok(Request { endpoint, action, items }), "{endpoint:?} {body}");
        }
    }

    #[test]
    fn every_endpoint_takes_snapshot_and_so_does_each_request_of_a_batch() {
        let of = |endpoint, body: String| {
            Request::parse(endpoint, body.as_bytes())
                .map(|request| request.items.iter().map(|item| item.snapshot).collect())
        };
        for endpoint in Endpoint::ALL {
            let more = match endpoint {
                Endpoint::Settle | Endpoint::Cancel => r#","reservation":"1""#,
                _ => "",
            };
            for (asked, expected) in [("", false), (r#","snapshot":false"#, false), (r#","snapshot":true"#, true)] {
                let body = format!(r#"{{"policy":"a","key":"x"{asked}{more}}}"#);
                if endpoint == Endpoint::Batch {
                    let batch = format!(r#"{{"requests":[{body},{{"policy":"a","key":"y"}}]}}"#);
                    assert_eq!(of(endpoint, batch), Ok(vec![expected, false]));
                } else {
                    assert_eq!(of(endpoint, body), Ok(vec![expected]), "{endpoint:?}");
                }
            }
        }
    }

    #[test]
    fn parses_a_batch() {
        let body = r#"{"requests":[{"policy":"a","key":"x"},{"policy":"a","key":"y","cost":2}]}"#;
        let items = vec![item("a", "x", None), item("a", "y", Some(Cost::Each(2)))];
        assert_eq!(
            parse(Endpoint::Batch, body),
            Ok(Request { endpoint: Endpoint::Batch, action: Action::Take(Verb::Consume), items })
        );
        let many = |count: usize| {
            let items: Vec<_> = (0..count).map(|i| format!(r#"{{"policy":"a","key":"{i}"}}"#)).collect();
            format!(r#"{{"requests":[{}]}}"#, items.join(","))
        };
        assert!(parse(Endpoint::Batch, &many(16)).is_ok());
        for (body, expected) in [
            (many(0), "a batch has 1 to 16 requests, not 0"),
            (many(17), "a batch has 1 to 16 requests, not 17"),
            (
                r#"{"requests":[{"policy":"a","key":"x"},{"policy":"b","key":"x"},{"policy":"a","key":"x"}]}"#.into(),
                "requests 0 and 2 have the same policy and key: combine them, with the sum of their costs",
            ),
            ("[]".into(), "invalid type: sequence, expected a JSON object with a list \"requests\""),
            ("{}".into(), "missing field `requests`"),
            (r#"{"requests":[],"snapshot":true}"#.into(), "unknown field `snapshot`, expected `requests`"),
            (
                r#"{"requests":[{"policy":"a","key":"x","snapshot":"yes"}]}"#.into(),
                "invalid type: string \"yes\", expected a boolean",
            ),
        ] {
            let Err(Problem::BadRequest { detail }) = parse(Endpoint::Batch, &body) else { panic!("{body}") };
            assert!(detail.contains(expected), "{body}\n{detail}");
        }
    }

    #[test]
    fn rejects_fields_that_an_endpoint_does_not_take() {
        for (endpoint, more, expected) in [
            (
                Endpoint::Refund,
                r#","mode":"reserve""#,
                "`mode` is not a field of this endpoint; its fields are policy, key, cost, snapshot",
            ),
            (
                Endpoint::Reset,
                r#","cost":1"#,
                "`cost` is not a field of this endpoint; its fields are policy, key, snapshot",
            ),
            (
                Endpoint::Consume,
                r#","reservation":"1""#,
                "`reservation` is not a field of this endpoint; its fields are policy, key, cost, mode, max_wait_ms, snapshot",
            ),
            (Endpoint::Consume, r#","max_wait_ms":1"#, "`max_wait_ms` needs a `mode` of \"reserve\" or \"borrow\""),
            (
                Endpoint::Consume,
                r#","mode":"lend""#,
                "unknown variant `lend`, expected one of `take`, `reserve`, `borrow`, `up_to`",
            ),
            (
                Endpoint::Consume,
                r#","mode":"reserve","max_wait_ms":-1"#,
                "integer `-1`, expected a wait in milliseconds that is a whole number",
            ),
            (Endpoint::Settle, r#","cost":1"#, "missing field `reservation`"),
            (Endpoint::Cancel, r#","reservation":"xyz""#, "\"xyz\" is not a reservation id"),
            (Endpoint::Cancel, r#","reservation":"10000000000000""#, "is not a reservation id (13 hex digits)"),
            (Endpoint::Cancel, r#","reservation":7"#, "invalid type: integer `7`, expected a string"),
            (Endpoint::Consume, r#","cost":{"a":1,"a":2}"#, "the cost of \"a\" is given twice"),
            (Endpoint::Consume, r#","cost":{"a":1.5}"#, "floating point `1.5`, expected a cost that is a whole number"),
            (
                Endpoint::Consume,
                r#","cost":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}"#,
                "a policy has at most 8 limits",
            ),
        ] {
            let body = format!(r#"{{"policy":"api","key":"alice"{more}}}"#);
            let Err(Problem::BadRequest { detail }) = parse(endpoint, &body) else { panic!("{body}") };
            assert!(detail.contains(expected), "{body}\n{detail}");
        }
    }

    #[test]
    fn says_what_is_wrong_and_what_would_be_right() {
        for (body, expected) in [
            ("", "the body is not valid JSON: EOF while parsing a value at line 1 column 0"),
            ("null", "invalid type: null, expected a JSON object with \"policy\", \"key\" and optional fields"),
            ("[]", "invalid type: sequence, expected a JSON object with \"policy\", \"key\" and optional fields"),
            (r#" ["p","a",1]"#, "invalid type: sequence, expected a JSON object"),
            (r#"{"key":"a"}"#, "missing field `policy`"),
            (r#"{"policy":"p"}"#, "missing field `key`"),
            (
                r#"{"policy":"p","key":"a","amount":1}"#,
                "unknown field `amount`, expected one of `policy`, `key`, `cost`, `snapshot`, `mode`, `max_wait_ms`, `reservation`",
            ),
            (r#"{"policy":"p","key":"a","key":"b"}"#, "duplicate field `key`"),
            (r#"{"policy":"p","key":""}"#, "the key is empty: it must have 1 to 512 bytes"),
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
            (r#"{"policy":"p","key":"a","snapshot":1}"#, "invalid type: integer `1`, expected a boolean"),
            (r#"{"policy":"p","key":"a","snapshot":null}"#, "invalid type: null, expected a boolean"),
            (r#"{"policy":"p","key":"a"} x"#, "trailing characters at line 1 column 26"),
        ] {
            let detail = detail(body);
            assert!(detail.contains(expected), "{body}\n  said     {detail}\n  expected {expected}");
        }
    }

    #[test]
    fn accepts_a_key_of_512_bytes_and_rejects_one_of_513() {
        let body = |len: usize| format!(r#"{{"policy":"p","key":"{}"}}"#, "k".repeat(len));
        assert_eq!(
            Request::parse(Endpoint::Consume, body(512).as_bytes()).map(|request| request.items[0].key.len()),
            Ok(512)
        );
        assert!(detail(&body(513)).contains("a key of 513 bytes is too long: at most 512"));
        // 171 characters of three bytes are 513 bytes: bytes are counted, not characters.
        assert!(detail(&format!(r#"{{"policy":"p","key":"{}"}}"#, "語".repeat(171))).contains("a key of 513 bytes"));
    }

    #[test]
    fn rejects_a_key_that_is_not_utf_8() {
        assert!(matches!(
            Request::parse(Endpoint::Consume, b"{\"policy\":\"p\",\"key\":\"\xff\"}"),
            Err(Problem::BadRequest { .. })
        ));
    }

    #[test]
    fn accepts_whole_costs_with_a_decimal_point() {
        for (cost, expected) in [("1.0", 1), ("1e3", 1000), ("-0.0", 0), ("9007199254740991.0", MAX_TOKENS), ("0", 0)] {
            let body = format!(r#"{{"policy":"p","key":"a","cost":{cost}}}"#);
            assert_eq!(
                Request::parse(Endpoint::Consume, body.as_bytes()).map(|mut request| request.items.remove(0).cost),
                Ok(Some(Cost::Each(expected))),
                "{cost}"
            );
        }
    }

    #[test]
    fn accepts_a_body_of_the_largest_size_and_rejects_one_byte_more() {
        let body = |len: usize| format!("{:len$}", r#"{"policy":"p","key":"a"}"#);
        assert!(Request::parse(Endpoint::Consume, body(MAX_BODY_LEN).as_bytes()).is_ok());
        assert_eq!(Request::parse(Endpoint::Consume, body(MAX_BODY_LEN + 1).as_bytes()), Err(Problem::BodyTooLarge));
    }
}
