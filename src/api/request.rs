//! Turns a body into a valid request or a precise error.

use std::borrow::Cow;
use std::sync::Arc;

use super::body::{Body, Mode, parse};
use super::cost::Cost;
use super::endpoint::Endpoint;
use super::leasing::Leasing;
use super::problem::{Problem, bad_request};
use crate::access::{Key, Scope};
use crate::key_hash::KeyHasher;
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::Action;

/// Maximum requests in a batch. Each key is a call to another object, and all tokens are held until the last object has answered.
pub const MAX_BATCH: usize = 16;

/// A request: the action, and the budgets.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// The action, the same for all items.
    pub action: Action,
    /// One, or those of a batch: 1 to [`MAX_BATCH`].
    pub items: Vec<Item<'a>>,
    /// Its lease messages; only for [`Endpoint::Lease`].
    pub leasing: Option<Leasing<'a>>,
}

/// One budget, and the cost.
#[derive(Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The policy's name, not yet known to exist.
    pub policy: Cow<'a, str>,
    /// The key; `None` if the grant's is meant.
    pub key: Option<Key<'a>>,
    /// `None` if absent.
    pub cost: Option<Cost<'a>>,
    /// Whether the answer includes the exact states of the buckets.
    pub snapshot: bool,
    /// The policy with that name, if the request brings its limits; not yet known to be allowed.
    pub inline: Option<Arc<Policy>>,
}

impl<'a> Request<'a> {
    /// Replaces the hash of the key without parts by that key.
    pub fn recognize_keys(&mut self, hasher: &KeyHasher) {
        for item in &mut self.items {
            item.key = item.key.take().map(|key| key.recognized(hasher));
        }
    }

    /// The request for a token of `policy`.
    pub(crate) fn for_token(policy: Cow<'a, str>, key: Option<Key<'a>>) -> Self {
        let item = Item { policy, key, cost: None, snapshot: false, inline: None };
        Self { endpoint: Endpoint::Consume, action: Action::Take(Verb::Consume), items: vec![item], leasing: None }
    }

    /// Parses the body of a request to `endpoint`, such as `{"policy":"api","key":"alice","cost":1}`.
    ///
    /// # Errors
    /// [`Problem::BadRequest`] with what was wrong and where.
    pub fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, Problem> {
        let body = Body::of(parse(body)?, "the body", endpoint.fields())?;
        let items = match endpoint {
            Endpoint::Batch => batch(&body)?,
            _ => vec![Item::of(&body, endpoint.scope() == Scope::Admin)?],
        };
        let mode = body.mode()?;
        let verb = verb(mode.unwrap_or(Mode::Take), body.max_wait_ms()?)?;
        let leasing = if endpoint == Endpoint::Lease { Some(Leasing::of(&body)?) } else { None };
        let action = match endpoint {
            // Without a cost it only checks whether any tokens are left.
            Endpoint::Lease if items.iter().all(|item| item.cost.is_none()) => Action::Look(verb),
            Endpoint::Consume if matches!(mode, Some(Mode::Reserve)) => Action::Reserve(verb),
            Endpoint::Consume | Endpoint::Batch | Endpoint::Lease => Action::Take(verb),
            Endpoint::Peek | Endpoint::Inspect | Endpoint::Explain => Action::Look(verb),
            Endpoint::Charge => Action::Take(Verb::Charge),
            Endpoint::Refund | Endpoint::Credit => Action::Take(Verb::Refund),
            Endpoint::Reset | Endpoint::ResetKey => Action::Take(Verb::Reset),
            Endpoint::Settle => Action::Settle(body.reservation()?),
            Endpoint::Cancel => Action::Cancel(body.reservation()?),
            Endpoint::Extend => Action::Extend(body.reservation()?),
        };
        Ok(Self { endpoint, action, items, leasing })
    }
}

impl<'a> Item<'a> {
    const FIELDS: [&'static str; 5] = ["policy", "key", "cost", "snapshot", "limits"];

    fn of(body: &Body<'a>, is_operated: bool) -> Result<Self, Problem> {
        let policy = body.policy()?;
        let inline = body.inline(&policy)?;
        let key = if is_operated { body.operated_key()? } else { body.key()? };
        Ok(Self { policy, key, cost: body.cost()?, snapshot: body.snapshot()?, inline })
    }
}

fn batch<'a>(body: &Body<'a>) -> Result<Vec<Item<'a>>, Problem> {
    let requests = body.requests()?;
    if requests.is_empty() || requests.len() > MAX_BATCH {
        return bad_request(format!("a batch has 1 to {MAX_BATCH} requests, not {}", requests.len()));
    }
    let mut items = Vec::new();
    for (index, request) in requests.into_iter().enumerate() {
        let item = Body::of(request, "it", &Item::FIELDS).and_then(|body| Item::of(&body, false));
        let item = item.map_err(|problem| problem.of_request(index))?;
        items.push(item);
    }
    Ok(items)
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
        Item { policy: policy.into(), key: Some(Key::Text(key.into())), cost, snapshot: false, inline: None }
    }

    /// The endpoints of callers, except the lease endpoint.
    fn callers() -> impl Iterator<Item = Endpoint> {
        let is_meant = |endpoint: &Endpoint| endpoint.scope() != Scope::Admin && *endpoint != Endpoint::Lease;
        Endpoint::ALL.into_iter().filter(is_meant)
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
            assert_eq!(
                parse(endpoint, &body),
                Ok(Request { endpoint, action, items, leasing: None }),
                "{endpoint:?} {body}"
            );
        }
    }

    #[test]
    fn every_endpoint_of_callers_takes_snapshot_and_so_does_each_request_of_a_batch() {
        let of = |endpoint, body: String| {
            Request::parse(endpoint, body.as_bytes())
                .map(|request| request.items.iter().map(|item| item.snapshot).collect())
        };
        for endpoint in callers() {
            let more = match endpoint {
                Endpoint::Settle | Endpoint::Cancel | Endpoint::Extend => r#","reservation":"1""#,
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
    fn every_endpoint_of_callers_takes_limits_and_so_does_each_request_of_a_batch() {
        let of = |endpoint, body: String| {
            let request = Request::parse(endpoint, body.as_bytes())?;
            let limits = request.items.iter().map(|item| item.inline.as_ref().map(|policy| policy.limits().len()));
            Ok(limits.collect::<Vec<_>>())
        };
        for endpoint in callers() {
            let more = match endpoint {
                Endpoint::Settle | Endpoint::Cancel | Endpoint::Extend => r#","reservation":"1""#,
                _ => "",
            };
            let wrong = "limits[1].rate: is missing";
            for (limits, expected) in [
                ("", Ok(None)),
                (r#","limits":"9/1m""#, Ok(Some(1))),
                (r#","limits":[{"name":"a","rate":"1/s"},{"name":"b","rate":"1/s"}]"#, Ok(Some(2))),
                (r#","limits":[{"name":"a","rate":"1/s"},{"name":"b","period":"1s"}]"#, Err(wrong)),
            ] {
                let body = format!(r#"{{"policy":"plan","key":"x"{limits}{more}}}"#);
                let (body, expected) = match endpoint {
                    Endpoint::Batch => {
                        let body = format!(r#"{{"requests":[{{"policy":"a","key":"y"}},{body}]}}"#);
                        (body, expected.map(|limits| vec![None, limits]).map_err(|wrong| format!("request 1: {wrong}")))
                    }
                    _ => (body, expected.map(|limits| vec![limits]).map_err(str::to_owned)),
                };
                assert_eq!(
                    of(endpoint, body),
                    expected.map_err(|detail| Problem::BadRequest { detail }),
                    "{endpoint:?}"
                );
            }
        }
    }

    #[test]
    fn parses_a_batch() {
        let body = r#"{"requests":[{"policy":"a","key":"x"},{"policy":"a","key":"y","cost":2}]}"#;
        let items = vec![item("a", "x", None), item("a", "y", Some(Cost::Each(2)))];
        assert_eq!(
            parse(Endpoint::Batch, body),
            Ok(Request { endpoint: Endpoint::Batch, action: Action::Take(Verb::Consume), items, leasing: None })
        );
        let many = |count: usize| {
            let items: Vec<_> = (0..count).map(|i| format!(r#"{{"policy":"a","key":"{i}"}}"#)).collect();
            format!(r#"{{"requests":[{}]}}"#, items.join(","))
        };
        assert!(parse(Endpoint::Batch, &many(16)).is_ok());
        for (body, expected) in [
            (many(0), "a batch has 1 to 16 requests, not 0"),
            (many(17), "a batch has 1 to 16 requests, not 17"),
            ("[]".into(), "the body must be a JSON object, not an array"),
            ("{}".into(), "the field `requests` is missing"),
            (r#"{"requests":7}"#.into(), "`requests` must be an array, not 7"),
            (
                r#"{"requests":[],"snapshot":true}"#.into(),
                "the body cannot have the field \"snapshot\"; its fields are requests",
            ),
            (
                r#"{"requests":[{"policy":"a","key":"x","snapshot":"yes"}]}"#.into(),
                "request 0: `snapshot` must be true or false, not \"yes\"",
            ),
            (
                r#"{"requests":[{"policy":"a","key":"x"},["b"]]}"#.into(),
                "request 1: it must be a JSON object, not an array",
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
                "the body cannot have the field \"mode\"; its fields are policy, key, cost, snapshot",
            ),
            (
                Endpoint::Reset,
                r#","cost":1"#,
                "the body cannot have the field \"cost\"; its fields are policy, key, snapshot",
            ),
            (
                Endpoint::Consume,
                r#","reservation":"1""#,
                "the body cannot have the field \"reservation\"; its fields are policy, key, cost, mode, max_wait_ms, snapshot",
            ),
            (Endpoint::Consume, r#","max_wait_ms":1"#, "`max_wait_ms` needs a `mode` of \"reserve\" or \"borrow\""),
            (
                Endpoint::Consume,
                r#","mode":"lend""#,
                "`mode` must be \"take\", \"reserve\", \"borrow\" or \"up_to\", not \"lend\"",
            ),
            (
                Endpoint::Consume,
                r#","mode":"reserve","max_wait_ms":-1"#,
                "`max_wait_ms` must be a whole number from 0 to 9007199254740991, not -1",
            ),
            (Endpoint::Settle, r#","cost":1"#, "the field `reservation` is missing"),
            (Endpoint::Cancel, r#","reservation":"xyz""#, "must be a reservation's id of 13 hex digits, not \"xyz\""),
            (Endpoint::Cancel, r#","reservation":"10000000000000""#, "must be a reservation's id of 13 hex digits"),
            (
                Endpoint::Cancel,
                r#","reservation":7"#,
                "`reservation` must be a reservation's id of 13 hex digits, not 7",
            ),
            (Endpoint::Consume, r#","cost":{"a":1,"a":2}"#, "the cost of \"a\" is given twice"),
            (
                Endpoint::Consume,
                r#","cost":{"a":1.5}"#,
                "the cost of \"a\" must be a whole number from 0 to 9007199254740991, not 1.5",
            ),
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
            ("", "the body is empty: send a JSON object"),
            (" ", "the body is empty: send a JSON object"),
            (
                r#"{"policy":"p",}"#,
                "the body is not valid JSON: expected a field's name in double quotes at line 1 column 15",
            ),
            ("null", "the body must be a JSON object, not null"),
            (r#" ["p","a",1]"#, "the body must be a JSON object, not an array"),
            (r#"{"key":"a"}"#, "the field `policy` is missing"),
            (
                r#"{"policy":"p","key":"a","amount":1}"#,
                "the body cannot have the field \"amount\"; its fields are policy, key, cost, mode, max_wait_ms, snapshot",
            ),
            (r#"{"policy":"p","key":"a","key":"b"}"#, "the body has the field \"key\" twice"),
            (r#"{"policy":"p","key":""}"#, "`key` is empty: it must have 1 to 512 bytes"),
            (r#"{"policy":"p","key":7}"#, "a list of 1 to 8 strings, or {\"ip\":\"<address>\"}, not 7"),
            (r#"{"policy":"p","key":"\ud800"}"#, "`key` contains an unpaired surrogate, so it is not valid Unicode"),
            (r#"{"policy":"p","key":"a","cost":-1}"#, "`cost` must be a whole number from 0 to 9007199254740991, or"),
            (r#"{"policy":"p","key":"a","cost":1.5}"#, "or an object with one for each limit, not 1.5"),
            (r#"{"policy":"p","key":"a","cost":9007199254740992}"#, ", not 9007199254740992"),
            (r#"{"policy":"p","key":"a","cost":1e300}"#, ", not 1e300"),
            (r#"{"policy":"p","key":"a","cost":1e999}"#, ", not 1e999"),
            (r#"{"policy":"p","key":"a","cost":NaN}"#, "expected value at line 1 column 32"),
            (r#"{"policy":"p","key":"a","cost":"1"}"#, ", not \"1\""),
            (r#"{"policy":"p","key":"a","cost":null}"#, ", not null"),
            (r#"{"policy":"p","key":"a","snapshot":1}"#, "`snapshot` must be true or false, not 1"),
            (r#"{"policy":"p","key":"a","snapshot":null}"#, "`snapshot` must be true or false, not null"),
            (r#"{"policy":"p","key":"a"} x"#, "trailing characters at line 1 column 26"),
        ] {
            let detail = detail(body);
            assert!(detail.contains(expected), "{body}\n  said     {detail}\n  expected {expected}");
        }
    }

    #[test]
    fn accepts_a_key_of_512_bytes_and_rejects_one_of_513() {
        let body = |len: usize| format!(r#"{{"policy":"p","key":"{}"}}"#, "k".repeat(len));
        assert!(Request::parse(Endpoint::Consume, body(512).as_bytes()).is_ok());
        assert!(detail(&body(513)).contains("`key` is 513 bytes long; at most 512 are allowed"));
        // 171 characters of three bytes are 513 bytes: bytes are counted, not characters.
        assert!(
            detail(&format!(r#"{{"policy":"p","key":"{}"}}"#, "語".repeat(171))).contains("`key` is 513 bytes long")
        );
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
}
