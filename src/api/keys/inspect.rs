//! `POST /v1/keys/inspect`: the state of a key.

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::ban_status::BanStatus;
use super::super::body::{Body, parse};
use super::super::limit_body::{Exact, LimitBody};
use super::super::problem::{Problem, bad_request};
use super::super::reply::Reply;
use super::super::verdict::{is_false, reservation_id};
use super::question::KeyQuestion;
use crate::access::Key;
use crate::json::Json;
use crate::limit::{Decision, Verb};
use crate::policy::{Cause, FrontendTerms, Shard, without_shadow};
use crate::protocol::{Action, BucketState, KeyState, LimitState, PastDecision, PolicyTokens};
use crate::sorted::sort_by;

/// The path. It is not an [`Endpoint`](super::super::Endpoint), since it is not about a policy.
pub const INSPECT_KEY_PATH: &str = "/v1/keys/inspect";

/// The key to inspect.
#[derive(Debug, PartialEq, Eq)]
pub struct InspectKeyRequest<'a>(Key<'a>);

impl<'a> InspectKeyRequest<'a> {
    /// Parses a body such as `{"key":"alice"}`.
    ///
    /// # Errors
    /// [`Problem::BadRequest`].
    pub fn parse(body: &'a [u8]) -> Result<Self, Problem> {
        let key = Body::of(parse(body)?, "the body", &["key"])?.operated_key()?;
        key.map(Self).map_or_else(|| bad_request("the field `key` is missing".to_owned()), Ok)
    }

    /// Whether the key is given by its hash.
    #[must_use]
    pub const fn is_by_hash(&self) -> bool {
        matches!(self.0, Key::Hash(_))
    }

    /// The key's bytes, which name its object. An IPv6 address stands for its network of the default size.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        self.0.to_bytes(FrontendTerms::IPV6_PREFIX)
    }
}

/// An object's answer to `question` about its key's state, for the policies that it may name: JSON for [`inspected`].
#[must_use]
pub fn key_state(question: &KeyQuestion, state: &KeyState) -> String {
    #[derive(Serialize)]
    struct Whole<'a> {
        object: &'a str,
        now: i64,
        policies: Vec<Bucket<'a>>,
        reservations: Vec<Open<'a>>,
        holds: Vec<Hold<'a>>,
        decisions: Vec<Decided<'a>>,
    }
    let may_name = |policy: &str| {
        let policy = without_shadow(policy);
        question.only.as_ref().is_none_or(|only| only.iter().any(|name| name == policy))
    };
    let mut policies: Vec<_> = state.buckets.iter().filter(|bucket| may_name(&bucket.policy)).map(Bucket::of).collect();
    sort_by(&mut policies, |a, b| (a.policy, a.shadow).cmp(&(b.policy, b.shadow)));
    let mut reservations: Vec<_> = state
        .reservations
        .iter()
        .map(|open| Open {
            reservation: reservation_id(open.id),
            opened_at: open.opened_at,
            expires_at: open.expires_at,
            unsettled: if open.is_refunded { "refund" } else { "keep" },
            tokens: borrowed(&open.tokens, &may_name),
        })
        .filter(|open| !open.tokens.is_empty())
        .collect();
    sort_by(&mut reservations, |a, b| (a.opened_at, &a.reservation).cmp(&(b.opened_at, &b.reservation)));
    let holds =
        state.holds.iter().map(|hold| Hold { ends_at: hold.ends_at, tokens: borrowed(&hold.tokens, &may_name) });
    let decisions = state.decisions.iter().rev().filter(|decision| may_name(decision.policy.name()));
    let body = Whole {
        object: &question.object,
        now: state.now,
        policies,
        reservations,
        holds: holds.filter(|hold| !hold.tokens.is_empty()).collect(),
        decisions: decisions.map(Decided::of).collect(),
    };
    serde_json::to_string(&body).unwrap_or_default() // our own type cannot fail to serialize
}

/// The answer about a key, from the answers of its objects, its own first: all their policies, and the latest decisions.
///
/// # Errors
/// [`Problem::Unavailable`], if an answer is unreadable because its object is of another version.
pub fn inspected(states: &[String]) -> Result<Reply, Problem> {
    merged(states).ok_or(Problem::Unavailable { cause: Cause::Failed })
}

fn merged(states: &[String]) -> Option<Reply> {
    #[derive(Serialize)]
    struct Whole<'a> {
        object: &'a RawValue,
        now: &'a RawValue,
        policies: Vec<&'a RawValue>,
        reservations: &'a RawValue,
        holds: &'a RawValue,
        decisions: Vec<&'a RawValue>,
    }
    let fields: Vec<_> = states.iter().map(|text| Json::parse(text).ok()?.fields().ok()).collect::<Option<_>>()?;
    let own = fields.first()?;
    let lists = |name: &str| fields.iter().map(|fields| fields.get(name)?.array()).collect::<Option<Vec<_>>>();
    let (mut policies, mut decisions) = (lists("policies")?.concat(), lists("decisions")?.concat());
    let place = |entry: &Json<'_>| {
        let fields = entry.fields().ok()?;
        let shard = fields.get("shard").and_then(|shard| shard.fields().ok()?.get("index")?.integer());
        Some((fields.get("policy")?.string()?.into_owned(), fields.get("shadow").is_some(), shard))
    };
    let at = |entry: &Json<'_>| entry.fields().ok()?.get("at")?.integer();
    // Each object's decisions are in order, even within a millisecond.
    if states.len() > 1 {
        sort_by(&mut policies, |a, b| place(a).cmp(&place(b)));
        sort_by(&mut decisions, |a, b| at(b).cmp(&at(a)));
        decisions.truncate(KeyState::MAX_DECISIONS);
    }
    let [object, now, reservations, holds] =
        ["object", "now", "reservations", "holds"].map(|name| own.get(name).and_then(raw));
    let whole = Whole {
        object: object?,
        now: now?,
        policies: policies.into_iter().map(raw).collect::<Option<_>>()?,
        reservations: reservations?,
        holds: holds?,
        decisions: decisions.into_iter().map(raw).collect::<Option<_>>()?,
    };
    Some(Reply::json(200, "application/json", &whole))
}

fn raw(json: Json<'_>) -> Option<&RawValue> {
    serde_json::from_str(json.raw()).ok()
}

#[derive(Serialize)]
struct Bucket<'a> {
    policy: &'a str,
    /// The shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<Part>,
    /// Whether it is of limits in shadow.
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(flatten)]
    ban_status: BanStatus,
    /// When the policy's version came into force, if a registry has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    limits: Vec<LimitBody<'a, State>>,
    /// Why it is unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Part {
    index: u8,
    count: u8,
}

#[derive(Serialize)]
struct State {
    remaining: u64,
    owed: u64,
    held: u64,
    reset_at: Option<i64>,
    level: Exact,
}

#[derive(Serialize)]
struct Open<'a> {
    reservation: String,
    opened_at: i64,
    expires_at: i64,
    unsettled: &'static str,
    tokens: Vec<Taken<'a>>,
}

#[derive(Serialize)]
struct Hold<'a> {
    ends_at: i64,
    tokens: Vec<Taken<'a>>,
}

#[derive(Serialize)]
struct Taken<'a> {
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    tokens: u64,
}

#[derive(Serialize)]
struct Decided<'a> {
    at: i64,
    action: &'static str,
    policy: &'a str,
    cost: u64,
    allowed: bool,
    #[serde(skip_serializing_if = "is_false")]
    replayed: bool,
    /// The limit that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
}

impl<'a> Bucket<'a> {
    fn of(bucket: &'a BucketState) -> Self {
        let policy = without_shadow(&bucket.policy);
        let mut body = Self {
            policy,
            shard: None,
            shadow: policy != bucket.policy,
            ban_status: BanStatus::default(),
            since: None,
            limits: Vec::new(),
            error: None,
        };
        match &bucket.limits {
            Ok((policy, limits)) => {
                body.ban_status = BanStatus::of(policy, bucket.ban);
                let shard = policy.shard().filter(|shard| shard.count > 1);
                body.shard = shard.map(|Shard { index, count }| Part { index, count });
                body.since = Some(policy.timeline().since()).filter(|&since| since != 0);
                let all = policy.limits().iter().zip(limits);
                body.limits = all.map(|(limit, state)| LimitBody::of(limit, State::of(state))).collect();
            }
            Err(error) => body.error = Some(error),
        }
        body
    }
}

impl State {
    fn of(state: &LimitState) -> Self {
        let LimitState { remaining, owed, held, reset_at, snapshot } = *state;
        Self { remaining, owed, held, reset_at, level: Exact::of(snapshot) }
    }
}

impl<'a> Decided<'a> {
    fn of(decision: &'a PastDecision) -> Self {
        let limits = decision.policy.limits();
        let refusal = decision.refusal.and_then(|(index, decision)| Some((limits.get(index)?, decision)));
        Self {
            at: decision.at,
            action: action(decision.action),
            policy: decision.policy.name(),
            cost: decision.cost,
            allowed: decision.is_granted,
            replayed: decision.is_replayed,
            limit: refusal.map(|(limit, _)| limit.full_name()),
            retry_at: match refusal {
                Some((_, Decision::Wait { retry_at })) => Some(retry_at),
                _ => None,
            },
        }
    }
}

fn borrowed<'a>(tokens: &'a [PolicyTokens], may_name: &impl Fn(&str) -> bool) -> Vec<Taken<'a>> {
    let mut all = Vec::new();
    for part in tokens.iter().filter(|part| may_name(&part.policy)) {
        let policy = part.policy.as_str();
        all.extend(part.limits.iter().map(|(limit, tokens)| Taken {
            policy,
            limit: limit.as_deref(),
            tokens: *tokens,
        }));
    }
    all
}

/// The action, in the words of the API.
const fn action(action: Action) -> &'static str {
    match action {
        Action::Look(_) => "peek",
        Action::Take(Verb::Charge) => "charge",
        Action::Take(Verb::Refund) => "refund",
        Action::Take(Verb::Reset) => "reset",
        Action::Take(_) => "consume",
        Action::Reserve(_) => "reserve",
        Action::Hold(_) => "hold",
        Action::Settle(_) => "settle",
        Action::Cancel(_) => "cancel",
        Action::Extend(_) => "extend",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_only_field() {
        let detail = |body: &str| match InspectKeyRequest::parse(body.as_bytes()) {
            Err(Problem::BadRequest { detail }) => detail,
            other => format!("{other:?}"),
        };
        assert_eq!(detail("{}"), "the field `key` is missing");
        assert_eq!(
            detail(r#"{"key":"a","policy":"api"}"#),
            "the body cannot have the field \"policy\"; its fields are key"
        );
        let parsed = InspectKeyRequest::parse(br#"{"key":"alice"}"#).unwrap();
        assert_eq!(parsed.key(), Key::Text("alice".into()).to_bytes(64));
    }

    #[test]
    fn answers_of_several_objects_are_merged() {
        let states = |object: &str, policies: &str, decisions: &str| {
            format!(
                r#"{{"object":"{object}","now":5,"policies":[{policies}],"reservations":[1],"holds":[],"decisions":[{decisions}]}}"#
            )
        };
        let shard = |index: u8| format!(r#"{{"policy":"p","shard":{{"index":{index},"count":2}}}}"#);
        let own = states("own", &format!(r#"{{"policy":"q"}},{}"#, shard(0)), r#"{"at":3}"#);
        let other = states("other", &shard(1), r#"{"at":4},{"at":2}"#);
        let answer = inspected(&[own.clone(), other]).unwrap().body();
        let expected = format!(
            r#"{{"object":"own","now":5,"policies":[{},{},{{"policy":"q"}}],"reservations":[1],"holds":[],"decisions":[{{"at":4}},{{"at":3}},{{"at":2}}]}}"#,
            shard(0),
            shard(1)
        );
        assert_eq!(answer, expected + "\n");
        let same = states("own", "", r#"{"at":3,"cost":1},{"at":3,"cost":9},{"at":3,"cost":5}"#);
        assert_eq!(inspected(std::slice::from_ref(&same)).unwrap().body(), same + "\n");
        for wrong in [vec![], vec!["{}".to_owned()], vec![own, "200\n\n{}".to_owned()]] {
            assert_eq!(inspected(&wrong), Err(Problem::Unavailable { cause: Cause::Failed }), "{wrong:?}");
        }
    }
}
