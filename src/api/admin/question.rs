//! Operators' requests: conditions, queries and bodies, each with its check.

use std::borrow::Cow;

use serde::Serialize;

use super::super::keys::BlockRequest;
use super::super::problem::{Problem, bad_request};
use super::super::text::shown;
use super::act::AdminAct;
use crate::access::Key;
use crate::json::Json;
use crate::limit::{Carry, MAX_TOKENS};
use crate::metrics::{Cursor, LiveFilter, Outcome, Word};
use crate::policy::overrides::WrittenKeys;
use crate::protocol::{Condition, OverrideChange, OverrideKeys, OverridesChange, PolicyChange};

/// An operator's request, after authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminQuestion<'a> {
    /// What it asks for.
    pub act: AdminAct<'a>,
    /// The query of its URL, possibly empty.
    pub query: Cow<'a, str>,
    /// The header `If-Match`.
    pub if_match: Option<Cow<'a, str>>,
    /// The header `If-None-Match`.
    pub if_none_match: Option<Cow<'a, str>>,
    /// The name of the token.
    pub by: Cow<'a, str>,
    /// The only policies that the token may name, unless all.
    pub only: Option<Vec<String>>,
    /// The body, possibly empty.
    pub body: Cow<'a, str>,
}

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest<'a> {
    /// All policies.
    Policies,
    /// One policy.
    Policy {
        /// Its name.
        name: &'a str,
    },
    /// Change one policy.
    Change(PolicyChange<'a>),
    /// Overrides, in the order of their ids.
    Overrides {
        /// Only those of this policy.
        policy: Option<String>,
        /// Only those after this id.
        after: Option<String>,
        /// At most this many.
        limit: usize,
    },
    /// The override for these keys.
    Override(OverrideKeys),
    /// Change overrides.
    ChangeOverrides(OverridesChange<'a>),
    /// Block a key.
    Block(BlockRequest),
    /// The latest acts.
    Audit {
        /// Only those on this key.
        key: Option<Key<'static>>,
        /// Only those with numbers below this.
        before: Option<u64>,
        /// At most this many.
        limit: usize,
    },
    /// The counters.
    Metrics,
    /// The keys refused most.
    TopRefused,
    /// Live decisions.
    Decisions {
        /// Only under this policy.
        policy: Option<String>,
        /// Only with these outcomes.
        outcomes: Option<Vec<Outcome>>,
        /// Only those after this cursor.
        after: Option<Cursor>,
    },
}

impl AdminRequest<'_> {
    /// Whether it is to change anything. If it changes nothing, an earlier try may have done so, whose answer was lost.
    #[must_use]
    pub const fn changes(&self) -> bool {
        match self {
            Self::Change(PolicyChange { is_dry_run, .. })
            | Self::ChangeOverrides(OverridesChange { is_dry_run, .. }) => !*is_dry_run,
            Self::Block(_) => true,
            _ => false,
        }
    }
}

/// Maximum acts in one answer.
const MAX_ACTS: usize = 100;

/// Maximum overrides in one answer.
const MAX_LISTED: usize = 1_000;

impl<'a> AdminQuestion<'a> {
    /// The question as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            act: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            policy: Option<&'a str>,
            query: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            if_match: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            if_none_match: Option<&'a str>,
            by: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            only: Option<&'a [String]>,
            body: &'a str,
        }
        let written = Written {
            act: self.act.word(),
            policy: self.act.policy(),
            query: &self.query,
            if_match: self.if_match.as_deref(),
            if_none_match: self.if_none_match.as_deref(),
            by: &self.by,
            only: self.only.as_deref(),
            body: &self.body,
        };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses a question; `None` if it is malformed, or of a version with other acts.
    #[must_use]
    pub fn from_text(text: &'a str) -> Option<Self> {
        let fields = Json::parse(text).ok()?.fields().ok()?;
        let field = |name: &str| fields.get(name).and_then(Json::string);
        let only = match fields.get("only") {
            Some(only) => {
                let names = only.array()?.into_iter().map(|name| name.string().map(Cow::into_owned));
                Some(names.collect::<Option<_>>()?)
            }
            None => None,
        };
        Some(Self {
            act: AdminAct::from_word(&field("act")?, field("policy"))?,
            query: field("query")?,
            if_match: field("if_match"),
            if_none_match: field("if_none_match"),
            by: field("by")?,
            only,
            body: field("body")?,
        })
    }

    /// Parses the request.
    ///
    /// # Errors
    /// [`Problem::BadRequest`], and [`Problem::PreconditionRequired`] for a change without a condition.
    pub fn request(&self) -> Result<AdminRequest<'_>, Problem> {
        let query = |known: &[&str]| Query::of(&self.query, known);
        match &self.act {
            AdminAct::Policies => query(&[]).map(|_| AdminRequest::Policies),
            AdminAct::Policy(name) => query(&[]).map(|_| AdminRequest::Policy { name }),
            AdminAct::SetPolicy(name) => self.change(name, Some(self.body.trim()), &query(&["dry_run", "carry"])?),
            AdminAct::DeletePolicy(name) => self.change(name, None, &query(&["dry_run"])?),
            AdminAct::Metrics => query(&[]).map(|_| AdminRequest::Metrics),
            AdminAct::TopRefused => query(&[]).map(|_| AdminRequest::TopRefused),
            AdminAct::Decisions => decisions(&query(&["policy", "outcome", "after"])?),
            AdminAct::Audit => {
                let query = query(&["key", "before", "limit"])?;
                let limit = query.number("limit", 1..=MAX_ACTS as u64)?.and_then(|limit| usize::try_from(limit).ok());
                let before = query.number("before", 0..=MAX_TOKENS)?;
                let key = query.key()?.map(Key::parse_operated).transpose();
                let key = key.or_else(|error| bad_request(format!("`key` {error}")))?.map(Key::into_owned);
                Ok(AdminRequest::Audit { key, before, limit: limit.unwrap_or(MAX_ACTS) })
            }
            AdminAct::Overrides => {
                let query = query(&["policy", "key", "prefix", "after", "limit"])?;
                if let Some(keys) = keys(&query, "override")? {
                    return keys.map(AdminRequest::Override).or_else(|lines| bad_request(lines.join("; ")));
                }
                let limit = query.number("limit", 1..=MAX_LISTED as u64)?.and_then(|limit| usize::try_from(limit).ok());
                let [policy, after] = ["policy", "after"].map(|name| query.get(name).map(str::to_owned));
                Ok(AdminRequest::Overrides { policy, after, limit: limit.unwrap_or(MAX_LISTED) })
            }
            AdminAct::SetOverrides => {
                let query = query(&["dry_run", "carry"])?;
                let (carry, is_dry_run) = (query.override_carry()?, query.is_dry_run()?);
                let changes = OverrideChange::parse_all(&self.body).map_err(Problem::of_overrides)?;
                Ok(AdminRequest::ChangeOverrides(self.overrides_change(changes, carry, is_dry_run)))
            }
            AdminAct::RemoveOverride => {
                let query = query(&["policy", "key", "prefix", "dry_run", "carry"])?;
                let Some(keys) = keys(&query, "removed[0]")? else {
                    return bad_request("give `policy`, and `key` or `prefix`: which override to remove".to_owned());
                };
                let changes = vec![keys.map(|keys| OverrideChange { keys, set: None })];
                let change = self.overrides_change(changes, query.override_carry()?, query.is_dry_run()?);
                Ok(AdminRequest::ChangeOverrides(change))
            }
            AdminAct::Block => {
                query(&[])?;
                BlockRequest::parse(self.body.as_bytes()).map(AdminRequest::Block)
            }
        }
    }

    /// A change of overrides by its sender.
    #[must_use]
    pub fn overrides_change(
        &self,
        changes: Vec<Result<OverrideChange, Vec<String>>>,
        carry: Option<Carry>,
        is_dry_run: bool,
    ) -> OverridesChange<'_> {
        OverridesChange { changes, by: &self.by, only: self.only.as_deref(), carry, is_dry_run }
    }

    /// A change of the policy with this `name` to that `text`; without one, it is deleted.
    fn change<'q>(
        &'q self,
        name: &'q str,
        text: Option<&'q str>,
        query: &Query<'_>,
    ) -> Result<AdminRequest<'q>, Problem> {
        let is_dry_run = query.is_dry_run()?;
        let carry = query.carry()?;
        let condition = self.condition()?;
        if text.is_none() && condition == Condition::Absent {
            return bad_request(
                "`If-None-Match: *` is for creating: to delete, send `If-Match` with a version".to_owned(),
            );
        }
        if text.is_some_and(str::is_empty) {
            return bad_request("the body is empty: send the policy as JSON".to_owned());
        }
        Ok(AdminRequest::Change(PolicyChange { name, text, condition, carry, by: &self.by, is_dry_run }))
    }

    /// The condition in the headers, RFC 9110 §13.1.
    fn condition(&self) -> Result<Condition, Problem> {
        match (&self.if_match, &self.if_none_match) {
            (None, None) => Err(Problem::PreconditionRequired),
            (Some(_), Some(_)) => bad_request("send `If-Match` or `If-None-Match`, not both".to_owned()),
            (None, Some(none)) if none.trim() == "*" => Ok(Condition::Absent),
            (None, Some(none)) => bad_request(format!("`If-None-Match` must be *, not {}", shown(none))),
            (Some(versions), None) if versions.trim() == "*" => Ok(Condition::Present),
            (Some(versions), None) => {
                let all: Option<Vec<_>> = versions.split(',').map(version).collect();
                let wrong = || {
                    let found = shown(versions);
                    bad_request(format!(
                        "`If-Match` must be a version in quotes, such as \"1795214376930\", not {found}"
                    ))
                };
                all.map(Condition::Version).map_or_else(wrong, Ok)
            }
        }
    }
}

/// The version in an entity tag. A weak tag is accepted: a proxy that compresses an answer weakens its tag, and the version identifies the
/// policy fully.
fn version(tag: &str) -> Option<i64> {
    let tag = tag.trim();
    let quoted = tag.strip_prefix("W/").unwrap_or(tag);
    quoted.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// The query of live decisions.
fn decisions<'a>(query: &Query<'_>) -> Result<AdminRequest<'a>, Problem> {
    let outcomes = query.get("outcome").map(LiveFilter::outcomes).transpose().or_else(|word| {
        let known: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.word()).collect();
        bad_request(format!(
            "`outcome` is a list of {}, with commas between them, not {}",
            known.join(", "),
            shown(word)
        ))
    })?;
    let after = query.get("after").map(|text| {
        let wrong = || bad_request(format!("`after` must be the `cursor` of an earlier answer, not {}", shown(text)));
        Cursor::from_text(text).map_or_else(wrong, Ok)
    });
    Ok(AdminRequest::Decisions { policy: query.get("policy").map(str::to_owned), outcomes, after: after.transpose()? })
}

/// The keys in a query, called `place` in what is wrong with them; `None` if there are none.
fn keys(query: &Query<'_>, place: &str) -> Result<Option<Result<OverrideKeys, Vec<String>>>, Problem> {
    let (field, keys) = match (query.get("key"), query.get("prefix")) {
        (Some(_), Some(_)) => return bad_request("give `key` or `prefix`, not both".to_owned()),
        (None, Some(prefix)) => ("prefix", WrittenKeys::Prefix(prefix.into())),
        (_, None) => match query.key()? {
            Some(key) => ("key", WrittenKeys::One(key)),
            None => return Ok(None),
        },
    };
    match query.get("policy") {
        Some(policy) => Ok(Some(OverrideKeys::of_query(place, policy, keys))),
        None => bad_request(format!("`policy` is missing: give it beside `{field}`")),
    }
}

/// The parameters of a query.
struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    fn of(query: &'a str, known: &[&str]) -> Result<Self, Problem> {
        let all: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        for (index, (name, _)) in all.iter().enumerate() {
            if !known.contains(&&**name) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return bad_request(format!("there is no parameter {} here; there is {known}", shown(name)));
            }
            if all.iter().take(index).any(|(other, _)| other == name) {
                return bad_request(format!("the parameter {name} is there twice"));
            }
        }
        Ok(Self(all))
    }

    /// The key, as JSON.
    fn key(&self) -> Result<Option<Json<'_>>, Problem> {
        let wrong = |key| bad_request(format!("`key` must be JSON, such as \"alice\" in quotes, not {}", shown(key)));
        self.get("key").map(|key| Json::parse(key).or_else(|_| wrong(key))).transpose()
    }

    fn carry(&self) -> Result<Option<Carry>, Problem> {
        self.carry_among("additive, as_is, proportional or reset", |_| true)
    }

    /// Without `proportional`: a bucket may be carried over to an override several times, while some frontends have it and others have
    /// forgotten it or see its end later, and the share would be taken each time.
    fn override_carry(&self) -> Result<Option<Carry>, Problem> {
        self.carry_among("additive, as_is or reset", |carry| carry != Carry::Proportional)
    }

    fn carry_among(&self, known: &str, is_known: impl Fn(Carry) -> bool) -> Result<Option<Carry>, Problem> {
        let Some(word) = self.get("carry") else { return Ok(None) };
        match Carry::from_word(word).filter(|carry| is_known(*carry)) {
            None => bad_request(format!("`carry` must be {known}, not {}", shown(word))),
            carry => Ok(carry),
        }
    }

    fn is_dry_run(&self) -> Result<bool, Problem> {
        match self.get("dry_run") {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => bad_request(format!("`dry_run` must be true or false, not {}", shown(other))),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = range.into_inner();
                bad_request(format!("`{name}` must be a whole number from {least} to {most}, not {}", shown(text)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::act::AdminPath;
    use super::*;
    use crate::protocol::NamedKeys;

    fn question<'a>(method: &str, url: &'a str) -> AdminQuestion<'a> {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        AdminQuestion {
            act: AdminPath::of(path).unwrap().act(method).unwrap(),
            query: query.into(),
            if_match: Some("\"5\"".into()),
            if_none_match: None,
            by: "ops".into(),
            only: None,
            body: if method == "PUT" { "\"1/s\"".into() } else { "".into() },
        }
    }

    fn detail(question: &AdminQuestion<'_>) -> String {
        match question.request() {
            Err(Problem::BadRequest { detail }) => detail,
            other => format!("{other:?}"),
        }
    }

    /// Frontends and registries of neighbouring versions exchange it.
    #[test]
    fn the_format_is_unchanged() {
        let whole = AdminQuestion {
            if_none_match: Some("*".into()),
            only: Some(vec!["api".to_owned()]),
            ..question("PUT", "/v1/policies/api?dry_run=true")
        };
        let text = r#"{"act":"policy.set","policy":"api","query":"dry_run=true","if_match":"\"5\"","if_none_match":"*","by":"ops","only":["api"],"body":"\"1/s\""}"#;
        assert_eq!((whole.to_text(), AdminQuestion::from_text(text)), (text.to_owned(), Some(whole)));
        let least = AdminQuestion { if_match: None, ..question("GET", "/v1/policies") };
        assert_eq!(AdminQuestion::from_text(&least.to_text()), Some(least));
        for (wrong, is_right) in [
            ("", false),
            ("{}", false),
            (r#"{"act":"policies","query":"","by":"ops","only":["api"],"body":""}"#, true),
            (r#"{"act":"policies","query":"","by":"ops","only":[1],"body":""}"#, false),
            (r#"{"act":"policies","policy":"api","query":"","by":"ops","body":""}"#, false),
            (r#"{"act":"policy","query":"","by":"ops","body":""}"#, false),
            (r#"{"act":"policy.rename","policy":"api","query":"","by":"ops","body":""}"#, false), // of a newer version
        ] {
            assert_eq!(AdminQuestion::from_text(wrong).is_some(), is_right, "{wrong}");
        }
    }

    #[test]
    fn every_act_arrives_as_it_was_sent() {
        let paths =
            ["policies", "policies/api", "overrides", "audit", "metrics", "metrics/top", "decisions", "keys/block"]
                .map(|path| format!("/v1/{path}"));
        let methods = ["GET", "PUT", "DELETE", "POST"];
        let all = paths.iter().flat_map(|path| methods.map(|method| (method, path)));
        let acts = all.filter_map(|(method, path)| Some((method, path, AdminPath::of(path)?.act(method).ok()?)));
        let acts: Vec<_> = acts.collect();
        assert_eq!(acts.len(), 12);
        for (method, path, act) in acts {
            let text = question(method, path).to_text();
            assert_eq!(AdminQuestion::from_text(&text).map(|question| question.act), Some(act), "{method} {path}");
        }
        assert_eq!(AdminPath::of("/v1/other"), None);
        assert!(matches!(AdminPath::Audit.act("POST"), Err(Problem::MethodNotAllowed { allow: "GET", .. })));
    }

    #[test]
    fn reads_a_valid_query() {
        let request = |method, path| format!("{:?}", question(method, path).request().unwrap());
        assert_eq!(request("GET", "/v1/policies"), "Policies");
        assert_eq!(request("GET", "/v1/policies/api"), r#"Policy { name: "api" }"#);
        assert_eq!(request("GET", "/v1/audit"), "Audit { key: None, before: None, limit: 100 }");
        assert_eq!(request("GET", "/v1/audit?limit=7&before=9"), "Audit { key: None, before: Some(9), limit: 7 }");
        let of_key = r#"Audit { key: Some(Text("alice")), before: None, limit: 100 }"#;
        assert_eq!(request("GET", "/v1/audit?key=%22alice%22"), of_key);
        for (key, error) in
            [("a", "`key` must be JSON"), ("%7B%22hash%22:%2200%22%7D", "`key` has a `hash` that is not ")]
        {
            assert!(detail(&question("GET", &format!("/v1/audit?key={key}"))).starts_with(error), "{key}");
        }
        let decisions = "Decisions { policy: None, outcomes: None, after: None }";
        assert_eq!(request("GET", "/v1/decisions"), decisions);
        let some = r#"Decisions { policy: Some("api"), outcomes: Some([Refused, Banned]), after: Some(Cursor { listener: 10, last: 31 }) }"#;
        assert_eq!(request("GET", "/v1/decisions?policy=api&outcome=refused,banned&after=a-1f"), some);
        let overrides = "Overrides { policy: None, after: None, limit: 1000 }";
        assert_eq!(request("GET", "/v1/overrides"), overrides);
        let some = r#"Overrides { policy: Some("api"), after: Some("00ff"), limit: 7 }"#;
        assert_eq!(request("GET", "/v1/overrides?policy=api&after=00ff&limit=7"), some);
        let keys = |place: &str, keys| OverrideKeys { place: place.to_owned(), policy: "api".to_owned(), keys };
        let one = question("GET", "/v1/overrides?policy=api&key=%22a%22");
        let key = NamedKeys::One(Key::Text("a".into()));
        assert_eq!(one.request(), Ok(AdminRequest::Override(keys("override", key))));
        let remove = question("DELETE", "/v1/overrides?policy=api&prefix=a%22&dry_run=true");
        let removed = OverrideChange { keys: keys("removed[0]", NamedKeys::Prefix("a\"".to_owned())), set: None };
        let change = remove.overrides_change(vec![Ok(removed)], None, true);
        assert_eq!(remove.request(), Ok(AdminRequest::ChangeOverrides(change)));
        let body = r#"{"overrides":[{"policy":"api","prefix":"a","banned":true}]}"#;
        let set = AdminQuestion { body: body.into(), ..question("PUT", "/v1/overrides?carry=reset") };
        let change = set.overrides_change(OverrideChange::parse_all(body).unwrap(), Some(Carry::Reset), false);
        assert_eq!(set.request(), Ok(AdminRequest::ChangeOverrides(change)));
        for (method, query, error) in [
            ("GET", "key=a&policy=api", r#"`key` must be JSON, such as "alice" in quotes, not "a""#),
            ("GET", "key=%22a%22", "`policy` is missing: give it beside `key`"),
            ("GET", "key=1&prefix=a", "give `key` or `prefix`, not both"),
            ("GET", "limit=1001", r#"`limit` must be a whole number from 1 to 1000, not "1001""#),
            ("DELETE", "policy=api", "give `policy`, and `key` or `prefix`: which override to remove"),
            ("GET", "key=[7]&policy=api", "override.key: has a part 0 that is not a string"),
            (
                "GET",
                "policy=a%20b&prefix=",
                "override.policy: must be the name of a policy: a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'; \
                 override.prefix: must be the beginning of text keys, 1 to 512 bytes, not \"\"",
            ),
            ("PUT", "dry_run=1", r#"`dry_run` must be true or false, not "1""#),
            ("PUT", "", "nothing was changed: the body must be an object with `overrides`, `removed` or both"),
        ] {
            assert_eq!(detail(&question(method, &format!("/v1/overrides?{query}"))), error, "{query}");
        }
        let change = PolicyChange {
            name: "api",
            text: Some("\"1/s\""),
            condition: Condition::Version(vec![5]),
            carry: None,
            by: "ops",
            is_dry_run: false,
        };
        let put = question("PUT", "/v1/policies/api");
        assert_eq!(put.request(), Ok(AdminRequest::Change(change.clone())));
        let dry = question("PUT", "/v1/policies/api?dry_run=true&carry=additive");
        let expected = PolicyChange { is_dry_run: true, carry: Some(Carry::Additive), ..change.clone() };
        assert_eq!(dry.request(), Ok(AdminRequest::Change(expected)));
        let delete = question("DELETE", "/v1/policies/api?dry_run=false");
        assert_eq!(delete.request(), Ok(AdminRequest::Change(PolicyChange { text: None, ..change })));
    }

    #[test]
    fn a_change_has_one_condition() {
        let condition = |if_match: Option<&'static str>, if_none_match: Option<&'static str>| {
            let put = question("PUT", "/v1/policies/api");
            let put =
                AdminQuestion { if_match: if_match.map(Cow::from), if_none_match: if_none_match.map(Cow::from), ..put };
            match put.request() {
                Ok(AdminRequest::Change(change)) => Ok(change.condition),
                Ok(other) => panic!("{other:?}"),
                Err(Problem::BadRequest { detail }) => Err(detail),
                Err(other) => Err(format!("{other:?}")),
            }
        };
        for (if_match, expected) in [
            ("\"5\"", Condition::Version(vec![5])),
            (" W/\"5\" ", Condition::Version(vec![5])),
            ("\"5\", W/\"6\"", Condition::Version(vec![5, 6])),
            ("*", Condition::Present),
        ] {
            assert_eq!(condition(Some(if_match), None), Ok(expected), "{if_match}");
        }
        assert_eq!(condition(None, Some(" *")), Ok(Condition::Absent));
        assert_eq!(condition(None, None), Err("PreconditionRequired".to_owned()));
        assert_eq!(condition(Some("*"), Some("*")), Err("send `If-Match` or `If-None-Match`, not both".to_owned()));
        for wrong in ["5", "\"5", "\"x\"", "", "\"5\",", "\"5\" \"6\""] {
            let error = condition(Some(wrong), None).unwrap_err();
            assert!(error.starts_with("`If-Match` must be a version in quotes"), "{wrong}: {error}");
        }
        assert_eq!(condition(None, Some("\"5\"")).unwrap_err(), "`If-None-Match` must be *, not \"\\\"5\\\"\"");
        let delete =
            AdminQuestion { if_match: None, if_none_match: Some("*".into()), ..question("DELETE", "/v1/policies/api") };
        assert!(detail(&delete).starts_with("`If-None-Match: *` is for creating"));
    }

    #[test]
    fn explains_an_invalid_query() {
        for (method, path, expected) in [
            ("GET", "/v1/policies?carry=reset", "there is no parameter \"carry\" here; there is none"),
            ("GET", "/v1/audit?limit=0", "`limit` must be a whole number from 1 to 100, not \"0\""),
            ("GET", "/v1/audit?limit=101", "`limit` must be a whole number from 1 to 100, not \"101\""),
            ("GET", "/v1/audit?before=x", "`before` must be a whole number from 0 to 9007199254740991, not \"x\""),
            ("POST", "/v1/keys/block?dry_run=true", "there is no parameter \"dry_run\" here; there is none"),
            ("PUT", "/v1/policies/a?dry_run=yes", "`dry_run` must be true or false, not \"yes\""),
            ("PUT", "/v1/policies/a?carry=all", "`carry` must be additive, as_is, proportional or reset, not \"all\""),
            ("PUT", "/v1/policies/a?dry%5Frun=true&dry_run=true", "the parameter dry_run is there twice"),
            (
                "GET",
                "/v1/decisions?outcome=refused,denied",
                "`outcome` is a list of allowed, refused, never, banned, unlimited, replayed, dropped, degraded, unavailable, \
                 with commas between them, not \"denied\"",
            ),
            ("GET", "/v1/decisions?after=x", "`after` must be the `cursor` of an earlier answer, not \"x\""),
            ("DELETE", "/v1/policies/a?carry=as_is", "there is no parameter \"carry\" here; there is dry_run"),
        ] {
            assert_eq!(detail(&question(method, path)), expected, "{method} {path}");
        }
        let empty = AdminQuestion { body: " ".into(), ..question("PUT", "/v1/policies/a") };
        assert_eq!(detail(&empty), "the body is empty: send the policy as JSON");
    }
}
