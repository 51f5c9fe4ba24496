//! A body to a valid request, or to a precise error.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor};

use super::problem::Problem;
use crate::limit::{MAX_TOKENS, Verb};
use crate::policy::{MAX_LIMITS, Policy};
use crate::protocol::Action;

/// The longest body that is read, in bytes. The longest valid one, a batch with keys of escapes, is four times as long;
/// whoever has such keys sends fewer at once.
pub const MAX_BODY_LEN: usize = 16 * 1024;

/// The longest key in bytes of UTF-8. Room for a URL or an e-mail address with a tenant before it; whoever has longer
/// ones hashes them.
pub const MAX_KEY_LEN: usize = 512;

/// The most requests in a batch. Each key of it is a call to another object, and all of them are held until the last
/// has answered.
pub const MAX_BATCH: usize = 16;

/// What can be asked, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/consume`: take tokens now or in advance.
    Consume,
    /// `/v1/peek`: the same answer, nothing taken.
    Peek,
    /// `/v1/charge`: debit what has already happened.
    Charge,
    /// `/v1/refund`: give back.
    Refund,
    /// `/v1/reset`: full again.
    Reset,
    /// `/v1/inspect`: how the buckets stand.
    Inspect,
    /// `/v1/settle`: close a reservation at its real cost.
    Settle,
    /// `/v1/cancel`: close a reservation and give everything back.
    Cancel,
    /// `/v1/batch`: several at once, all or none.
    Batch,
}

impl Endpoint {
    /// The paths of all endpoints.
    pub const PATHS: [&str; 9] = [
        "/v1/consume",
        "/v1/peek",
        "/v1/charge",
        "/v1/refund",
        "/v1/reset",
        "/v1/inspect",
        "/v1/settle",
        "/v1/cancel",
        "/v1/batch",
    ];

    /// The endpoint at `path`.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        const ALL: [Endpoint; 9] = [
            Endpoint::Consume,
            Endpoint::Peek,
            Endpoint::Charge,
            Endpoint::Refund,
            Endpoint::Reset,
            Endpoint::Inspect,
            Endpoint::Settle,
            Endpoint::Cancel,
            Endpoint::Batch,
        ];
        Self::PATHS.iter().zip(ALL).find_map(|(known, endpoint)| (*known == path).then_some(endpoint))
    }

    /// Optional fields that this endpoint accepts.
    const fn optional_fields(self) -> &'static [&'static str] {
        match self {
            Self::Consume | Self::Peek => &["cost", "mode", "max_wait_ms"],
            Self::Charge | Self::Refund | Self::Batch => &["cost"],
            Self::Reset | Self::Inspect => &[],
            Self::Settle => &["reservation", "cost"],
            Self::Cancel => &["reservation"],
        }
    }
}

/// A request: what is to be done, and with which budgets.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The same for all items.
    pub action: Action,
    /// One, or those of a batch: 1 to [`MAX_BATCH`], no two with the same policy and key.
    pub items: Vec<Item<'a>>,
}

/// One budget that is asked, and for how much.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with \"policy\", \"key\" and perhaps more")]
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
    /// Whether the answer is to have the exact states of the buckets.
    #[serde(default)]
    pub snapshot: bool,
}

/// How many tokens are asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Cost<'a> {
    /// So many of each limit: 0 to [`MAX_TOKENS`].
    Each(u64),
    /// So many of the limit of this name.
    ByLimit(Vec<(Cow<'a, str>, u64)>),
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
            return bad_request(format!("`{field}` has no meaning here; fields are {}", fields(known)));
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
        Ok(Self { action, items: vec![Item { policy, key, cost, snapshot }] })
    }
}

impl Cost<'_> {
    /// The cost of each limit of `policy`, in its order.
    ///
    /// # Errors
    /// [`Problem::BadRequest`] when a limit is named that is not there, or one is not named, and
    /// [`Problem::CostTooLarge`] for more than `verb` could ever grant.
    pub fn of(&self, policy: &Policy, verb: Verb) -> Result<Vec<u64>, Problem> {
        let costs = self.by_limit(policy)?;
        for (limit, &cost) in policy.limits().iter().zip(&costs) {
            let max = limit.limit().largest(verb);
            if cost > max {
                return Err(Problem::CostTooLarge { limit: limit.full_name().to_owned(), cost, max });
            }
        }
        Ok(costs)
    }

    fn by_limit(&self, policy: &Policy) -> Result<Vec<u64>, Problem> {
        let limits = policy.limits();
        let named = match self {
            Self::Each(cost) => return Ok(vec![*cost; limits.len()]),
            Self::ByLimit(named) => named,
        };
        if let [only] = limits
            && only.name().is_none()
        {
            return bad_request(format!(
                "policy {} has one limit, without a name: its cost is a number",
                policy.name()
            ));
        }
        let known = || limits.iter().filter_map(|limit| limit.name()).collect::<Vec<_>>().join(", ");
        if let Some((name, _)) = named.iter().find(|(name, _)| limits.iter().all(|limit| limit.name() != Some(name))) {
            let name = shown(name);
            return bad_request(format!("policy {} has no limit {name}; its limits are {}", policy.name(), known()));
        }
        let cost_of = |name: Option<&str>| named.iter().find(|(named, _)| Some(&**named) == name);
        let costs = limits.iter().map(|limit| cost_of(limit.name()).map(|(_, cost)| *cost)).collect();
        match costs {
            Some(costs) => Ok(costs),
            None => bad_request(format!("the cost must name every limit of policy {}: {}", policy.name(), known())),
        }
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

/// The body of all requests but batches.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with \"policy\", \"key\" and perhaps more")]
struct Body<'a> {
    #[serde(borrow)]
    policy: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "key")]
    key: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "cost")]
    cost: Option<Cost<'a>>,
    #[serde(default)]
    snapshot: bool,
    #[serde(default, deserialize_with = "mode")]
    mode: Option<Mode>,
    #[serde(default, deserialize_with = "max_wait_ms")]
    max_wait_ms: Option<u64>,
    #[serde(default, deserialize_with = "reservation")]
    reservation: Option<String>,
}

const BODY: &str = "a JSON object with \"policy\", \"key\" and perhaps more";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with \"requests\", a list")]
struct BatchBody<'a> {
    #[serde(borrow, deserialize_with = "items")]
    requests: Vec<Item<'a>>,
}

const BATCH_BODY: &str = "a JSON object with \"requests\", a list";

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Take,
    Reserve,
    Borrow,
    UpTo,
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
            return bad_request(format!("{both}: make them one, with the sum of their costs"));
        }
    }
    Ok(Request { action: Action::Hold, items: requests })
}

fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8], expected: &str) -> Result<T, Problem> {
    // What serde derives would take an array for the fields without their names.
    match body.trim_ascii_start().first() {
        Some(b'[') => bad_request(format!("invalid type: sequence, expected {expected}")),
        _ => serde_json::from_slice(body).or_else(|error| {
            let about = if error.is_data() { "" } else { "the body cannot be read as JSON: " };
            bad_request(shortened(&format!("{about}{error}")))
        }),
    }
}

fn bad_request<T>(detail: String) -> Result<T, Problem> {
    Err(Problem::BadRequest { detail })
}

fn fields(optional: &[&str]) -> String {
    [&["policy", "key"], optional, &["snapshot"]].concat().join(", ")
}

fn verb(mode: Mode, max_wait_ms: Option<u64>) -> Result<Verb, Problem> {
    match (mode, max_wait_ms) {
        (Mode::Reserve, _) => Ok(Verb::Reserve { max_wait_ms }),
        (Mode::Borrow, _) => Ok(Verb::Borrow { max_wait_ms }),
        (_, Some(_)) => bad_request("`max_wait_ms` goes with a `mode` of \"reserve\" or \"borrow\"".to_owned()),
        (Mode::Take, None) => Ok(Verb::Consume),
        (Mode::UpTo, None) => Ok(Verb::ConsumeUpTo),
    }
}

/// A reservation's id as clients have it: hexadecimal digits.
fn reservation_id(text: Option<&str>) -> Result<u64, Problem> {
    let Some(text) = text else {
        return bad_request("missing field `reservation`: the id that the reserving answer gave".to_owned());
    };
    let is_id = !text.is_empty() && text.len() <= RESERVATION_ID_LEN && text.bytes().all(|b| b.is_ascii_hexdigit());
    match u64::from_str_radix(text, 16) {
        Ok(id) if is_id => Ok(id),
        _ => bad_request(format!("{} is not a reservation id ({RESERVATION_ID_LEN} hex digits)", shown(text))),
    }
}

/// A message of which a client's text may be a part: its beginning and its end, which say what was wrong and where.
fn shortened(message: &str) -> String {
    const MOST: usize = 200;
    let mut all = message.char_indices();
    match (all.nth(MOST), all.nth_back(MOST)) {
        (Some((head, _)), Some((tail, _))) => {
            let (head, tail) = (message.get(..head).unwrap_or_default(), message.get(tail..).unwrap_or_default());
            format!("{head} ... {tail}")
        }
        _ => message.to_owned(),
    }
}

/// A client's text in an answer to it: in quotes, escaped, and no longer than helps.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// 52 bits, so that an id is exact as a JavaScript number.
pub(super) const RESERVATION_ID_LEN: usize = 13;

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

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    /// A text and nothing else: what serde derives would take an object too.
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Mode;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mode: \"take\", \"reserve\", \"borrow\" or \"up_to\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Mode, E> {
            Mode::deserialize(text.into_deserializer())
        }
    }
    deserializer.deserialize_any(Text).map(Some)
}

fn items<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Item<'de>>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<Item<'de>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of requests")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(Object(item)) = list.next_element()? {
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_any(List)
}

/// An item, and no list of its fields without their names.
struct Object<'a>(Item<'a>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Item<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with \"policy\", \"key\" and perhaps more")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Item::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(Fields).map(Self)
    }
}

fn max_wait_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Whole("a wait in milliseconds")).map(Some)
}

fn reservation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

/// A whole number from 0 to [`MAX_TOKENS`] of what it says.
struct Whole(&'static str);

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

const COST: Whole = Whole("a cost");

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cost<'de>>, D::Error> {
    struct AnyCost;
    impl<'de> Visitor<'de> for AnyCost {
        type Value = Cost<'de>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a cost that is a whole number from 0 to {MAX_TOKENS}, or an object with one for each limit")
        }
        fn visit_u64<E: Error>(self, cost: u64) -> Result<Self::Value, E> {
            COST.visit_u64(cost).map(Cost::Each)
        }
        fn visit_i64<E: Error>(self, cost: i64) -> Result<Self::Value, E> {
            COST.visit_i64(cost).map(Cost::Each)
        }
        fn visit_f64<E: Error>(self, cost: f64) -> Result<Self::Value, E> {
            COST.visit_f64(cost).map(Cost::Each)
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut named = Vec::new();
            while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                if named.len() == MAX_LIMITS {
                    return Err(A::Error::custom(format_args!("a policy has at most {MAX_LIMITS} limits")));
                }
                if named.iter().any(|(other, _)| *other == name) {
                    return Err(A::Error::custom(format_args!("the cost of {name:?} is given twice")));
                }
                named.push((name, map.next_value::<Tokens>()?.0));
            }
            Ok(Cost::ByLimit(named))
        }
    }
    deserializer.deserialize_any(AnyCost).map(Some)
}

struct Tokens(u64);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(COST).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_request_is_a_policy_a_key_and_perhaps_more() {
        let one = |action, cost| Ok(Request { action, items: vec![item("api", "alice", cost)] });
        let reserve = |max_wait_ms| Action::Reserve(Verb::Reserve { max_wait_ms });
        let by_limit = Cost::ByLimit(vec![("a".into(), 2), ("b".into(), 0)]);
        for (endpoint, more, expected) in [
            (Endpoint::Consume, "", one(Action::Take(Verb::Consume), None)),
            (Endpoint::Consume, r#","mode":"take","cost":3"#, one(Action::Take(Verb::Consume), Some(Cost::Each(3)))),
            (Endpoint::Consume, r#","mode":"reserve""#, one(reserve(None), None)),
            (Endpoint::Consume, r#","mode":"reserve","max_wait_ms":0"#, one(reserve(Some(0)), None)),
            (
                Endpoint::Consume,
                r#","mode":"borrow","max_wait_ms":5"#,
                one(Action::Take(Verb::Borrow { max_wait_ms: Some(5) }), None),
            ),
            (
                Endpoint::Consume,
                r#","mode":"up_to","cost":9"#,
                one(Action::Take(Verb::ConsumeUpTo), Some(Cost::Each(9))),
            ),
            (Endpoint::Peek, r#","mode":"reserve""#, one(Action::Look(Verb::Reserve { max_wait_ms: None }), None)),
            (Endpoint::Charge, r#","cost":{"a":2,"b":0}"#, one(Action::Take(Verb::Charge), Some(by_limit))),
            (Endpoint::Refund, "", one(Action::Take(Verb::Refund), None)),
            (Endpoint::Reset, "", one(Action::Take(Verb::Reset), None)),
            (Endpoint::Inspect, "", one(Action::Look(Verb::Consume), None)),
            (
                Endpoint::Settle,
                r#","reservation":"00000000000ff","cost":1"#,
                one(Action::Settle(255), Some(Cost::Each(1))),
            ),
            (Endpoint::Cancel, r#","reservation":"fffffffffffff""#, one(Action::Cancel((1 << 52) - 1), None)),
        ] {
            let body = format!(r#"{{"policy":"api","key":"alice"{more}}}"#);
            assert_eq!(parse(endpoint, &body), expected, "{endpoint:?} {body}");
        }
    }

    #[test]
    fn a_snapshot_is_asked_for_on_every_path_and_of_each_request_in_a_batch() {
        let of = |endpoint, body: String| {
            Request::parse(endpoint, body.as_bytes()).map(|ask| ask.items.iter().map(|item| item.snapshot).collect())
        };
        for endpoint in Endpoint::PATHS.iter().filter_map(|path| Endpoint::of(path)) {
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
    fn a_batch_is_a_list_of_them() {
        let body = r#"{"requests":[{"policy":"a","key":"x"},{"policy":"a","key":"y","cost":2}]}"#;
        let items = vec![item("a", "x", None), item("a", "y", Some(Cost::Each(2)))];
        assert_eq!(parse(Endpoint::Batch, body), Ok(Request { action: Action::Hold, items }));
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
                "requests 0 and 2 have the same policy and key: make them one, with the sum of their costs",
            ),
            ("[]".into(), "invalid type: sequence, expected a JSON object with \"requests\", a list"),
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
    fn what_has_no_meaning_for_a_path_is_not_ignored() {
        for (endpoint, more, expected) in [
            (
                Endpoint::Refund,
                r#","mode":"reserve""#,
                "`mode` has no meaning here; fields are policy, key, cost, snapshot",
            ),
            (Endpoint::Reset, r#","cost":1"#, "`cost` has no meaning here; fields are policy, key, snapshot"),
            (
                Endpoint::Consume,
                r#","reservation":"1""#,
                "`reservation` has no meaning here; fields are policy, key, cost, mode, max_wait_ms, snapshot",
            ),
            (Endpoint::Consume, r#","max_wait_ms":1"#, "`max_wait_ms` goes with a `mode` of \"reserve\" or \"borrow\""),
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
    fn a_cost_by_limit_names_every_limit_and_no_other() {
        let json = r#"{"two":{"limits":[{"name":"a","rate":5,"period":"1s"},{"name":"b","rate":9,"period":"1s"}]},
            "one":{"rate":5,"period":"1s"}}"#;
        let policies = crate::policy::Policies::parse(json).unwrap();
        let [one, two] = ["one", "two"].map(|name| policies.get(name).unwrap());
        let named = |costs: &[(&'static str, u64)]| {
            Cost::ByLimit(costs.iter().map(|&(name, cost)| (name.into(), cost)).collect())
        };
        assert_eq!(Cost::Each(3).of(two, Verb::Consume), Ok(vec![3, 3]));
        assert_eq!(named(&[("b", 9), ("a", 0)]).of(two, Verb::Consume), Ok(vec![0, 9]));
        let too_large = |limit: &str, cost, max| Err(Problem::CostTooLarge { limit: limit.into(), cost, max });
        assert_eq!(named(&[("b", 10), ("a", 0)]).of(two, Verb::Consume), too_large("two/b", 10, 9));
        assert_eq!(Cost::Each(6).of(one, Verb::Consume), too_large("one", 6, 5));
        assert_eq!(Cost::Each(6).of(one, Verb::Charge), Ok(vec![6]));
        let wrong = |detail: &str| bad_request::<Vec<u64>>(detail.to_owned());
        assert_eq!(
            named(&[("a", 1)]).of(two, Verb::Consume),
            wrong("the cost must name every limit of policy two: a, b")
        );
        assert_eq!(
            named(&[("a", 1), ("c", 1)]).of(two, Verb::Consume),
            wrong("policy two has no limit \"c\"; its limits are a, b")
        );
        assert_eq!(
            named(&[("a", 1)]).of(one, Verb::Consume),
            wrong("policy one has one limit, without a name: its cost is a number")
        );
    }

    #[test]
    fn every_mistake_is_named_with_what_would_be_right() {
        for (body, expected) in [
            ("", "the body cannot be read as JSON: EOF while parsing a value at line 1 column 0"),
            ("null", "invalid type: null, expected a JSON object with \"policy\", \"key\" and perhaps more"),
            ("[]", "invalid type: sequence, expected a JSON object with \"policy\", \"key\" and perhaps more"),
            (r#" ["p","a",1]"#, "invalid type: sequence, expected a JSON object"),
            (r#"{"key":"a"}"#, "missing field `policy`"),
            (r#"{"policy":"p"}"#, "missing field `key`"),
            (
                r#"{"policy":"p","key":"a","amount":1}"#,
                "unknown field `amount`, expected one of `policy`, `key`, `cost`, `snapshot`, `mode`, `max_wait_ms`, `reservation`",
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
            (r#"{"policy":"p","key":"a","snapshot":1}"#, "invalid type: integer `1`, expected a boolean"),
            (r#"{"policy":"p","key":"a","snapshot":null}"#, "invalid type: null, expected a boolean"),
            (r#"{"policy":"p","key":"a"} x"#, "trailing characters at line 1 column 26"),
        ] {
            let detail = detail(body);
            assert!(detail.contains(expected), "{body}\n  said     {detail}\n  expected {expected}");
        }
    }

    #[test]
    fn a_key_of_512_bytes_passes_and_one_of_513_does_not() {
        let body = |len: usize| format!(r#"{{"policy":"p","key":"{}"}}"#, "k".repeat(len));
        assert_eq!(Request::parse(Endpoint::Consume, body(512).as_bytes()).map(|ask| ask.items[0].key.len()), Ok(512));
        assert!(detail(&body(513)).contains("a key of 513 bytes is too long: it must have 1 to 512"));
        // 171 characters of three bytes are 513 bytes: bytes are counted, not characters.
        assert!(detail(&format!(r#"{{"policy":"p","key":"{}"}}"#, "語".repeat(171))).contains("a key of 513 bytes"));
    }

    #[test]
    fn a_key_with_invalid_utf_8_is_refused_rather_than_mended() {
        assert!(matches!(
            Request::parse(Endpoint::Consume, b"{\"policy\":\"p\",\"key\":\"\xff\"}"),
            Err(Problem::BadRequest { .. })
        ));
    }

    #[test]
    fn a_cost_may_be_written_with_a_point_if_it_is_whole() {
        for (cost, expected) in [("1.0", 1), ("1e3", 1000), ("-0.0", 0), ("9007199254740991.0", MAX_TOKENS), ("0", 0)] {
            let body = format!(r#"{{"policy":"p","key":"a","cost":{cost}}}"#);
            assert_eq!(
                Request::parse(Endpoint::Consume, body.as_bytes()).map(|mut ask| ask.items.remove(0).cost),
                Ok(Some(Cost::Each(expected))),
                "{cost}"
            );
        }
    }

    #[test]
    fn a_body_of_the_largest_size_is_read_and_one_byte_more_is_not() {
        let body = |len: usize| format!("{:len$}", r#"{"policy":"p","key":"a"}"#);
        assert!(Request::parse(Endpoint::Consume, body(MAX_BODY_LEN).as_bytes()).is_ok());
        assert_eq!(Request::parse(Endpoint::Consume, body(MAX_BODY_LEN + 1).as_bytes()), Err(Problem::BodyTooLarge));
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
