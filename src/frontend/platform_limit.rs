//! The platform's own rate limiting binding: `limit({ key })`, which answers with `{ success }`.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::json::{Fields, Json};

/// The request to consume that is equivalent to a call of `limit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformLimit {
    /// The `props` of a service binding that may only take tokens under the policy.
    pub props: String,
    /// The body for `/v1/consume`.
    pub body: String,
}

impl PlatformLimit {
    /// The request for a call with this `argument`, through a service binding with these `props`. Both are JSON; `None` is `undefined`.
    ///
    /// # Errors
    /// The message for the caller.
    pub fn of(props: Option<&str>, argument: Option<&str>) -> Result<Self, String> {
        let props = props.and_then(fields).ok_or(WRONG_PROPS)?;
        let policy = props.get("policy").filter(|policy| policy.string().is_some()).ok_or(WRONG_PROPS)?;
        if props.names().any(|name| !["policy", "key_prefix"].contains(&name)) {
            return Err(WRONG_PROPS.to_owned());
        }
        let argument = argument.map_or(Some(None), |text| fields(text).map(Some));
        let argument = argument.ok_or("tollgate: limit takes { key }, an object")?;
        let mut names = argument.iter().flat_map(Fields::names);
        if let Some(unknown) = names.find(|name| *name != "key") {
            return Err(format!("tollgate: limit takes {{ key }}, not {unknown}"));
        }
        let policy = raw(policy);
        let key_prefix = props.get("key_prefix").and_then(raw);
        // Without a key, the request itself is refused.
        let key = argument.as_ref().and_then(|argument| argument.get("key")).and_then(raw);
        // Our own types cannot fail to serialize.
        let props =
            serde_json::to_string(&Props { scopes: ["consume"], policies: [policy], key_prefix }).unwrap_or_default();
        let body = serde_json::to_string(&Body { policy, key }).unwrap_or_default();
        Ok(Self { props, body })
    }

    /// Whether that reply allows the request.
    ///
    /// # Errors
    /// The message for the caller.
    pub fn success(status: u16, body: &str) -> Result<bool, String> {
        match status {
            200 => Ok(true),
            // Without a decision it is refused, too: such a policy does not fail open.
            429 | 503 => Ok(false),
            _ => {
                let detail = fields(body).and_then(|fields| Some(fields.get("detail")?.string()?.into_owned()));
                Err(format!("tollgate: {}", detail.unwrap_or_else(|| body.trim().to_owned())))
            }
        }
    }
}

#[derive(Serialize)]
struct Props<'a> {
    scopes: [&'static str; 1],
    policies: [Option<&'a RawValue>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    key_prefix: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Body<'a> {
    policy: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a RawValue>,
}

fn fields(text: &str) -> Option<Fields<'_>> {
    Json::parse(text).ok()?.fields().ok()
}

fn raw(json: Json<'_>) -> Option<&RawValue> {
    serde_json::from_str(json.raw()).ok()
}

const WRONG_PROPS: &str = "tollgate: the `props` of a service binding to the entry point RateLimit have the name of its policy, such as { policy = \
     \"api\" }, and perhaps a key_prefix";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_limit_is_a_request_to_consume_with_no_other_right() {
        let of = |props: &str, argument: &str| {
            let PlatformLimit { props, body } = PlatformLimit::of(Some(props), Some(argument)).unwrap();
            [props, body]
        };
        assert_eq!(
            of(r#"{"policy":"api"}"#, r#"{"key":"a\"b"}"#),
            [r#"{"scopes":["consume"],"policies":["api"]}"#, r#"{"policy":"api","key":"a\"b"}"#]
        );
        assert_eq!(
            of(r#"{"key_prefix":"acme:","policy":"api"}"#, r#"{"key":["acme:1",2]}"#),
            [
                r#"{"scopes":["consume"],"policies":["api"],"key_prefix":"acme:"}"#,
                r#"{"policy":"api","key":["acme:1",2]}"#
            ]
        );
        // The request says what is wrong with it.
        for argument in [None, Some("{}")] {
            let of = PlatformLimit::of(Some(r#"{"policy":"api"}"#), argument).unwrap();
            assert_eq!(of.body, r#"{"policy":"api"}"#, "{argument:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let of = |props: Option<&str>, argument: &str| PlatformLimit::of(props, Some(argument));
        let wrong = Err(WRONG_PROPS.to_owned());
        for props in [
            None,
            Some("null"),
            Some("{}"),
            Some(r#"{"policy":7}"#),
            Some(r#"{"key_prefix":"a"}"#),
            Some(r#"{"policy":"api","key_prefx":"a"}"#),
            Some(r#"{"policy":"api","scopes":["admin"]}"#),
        ] {
            assert_eq!(of(props, r#"{"key":"a"}"#), wrong, "{props:?}");
        }
        assert_eq!(
            of(Some(r#"{"policy":"api"}"#), r#"{"key":"a","delta":2}"#),
            Err("tollgate: limit takes { key }, not delta".to_owned())
        );
        for argument in ["7", "null", "\"alice\"", r#"["alice"]"#] {
            let no_object = Err("tollgate: limit takes { key }, an object".to_owned());
            assert_eq!(of(Some(r#"{"policy":"api"}"#), argument), no_object, "{argument}");
        }
    }

    #[test]
    fn what_is_not_decided_is_refused_and_mistakes_are_told() {
        for (status, success) in [(200, true), (429, false), (503, false)] {
            assert_eq!(PlatformLimit::success(status, "{}"), Ok(success));
        }
        assert_eq!(
            PlatformLimit::success(404, r#"{"title":"t","detail":"there is no policy \"x\""}"#),
            Err("tollgate: there is no policy \"x\"".to_owned())
        );
        assert_eq!(PlatformLimit::success(500, "down\n"), Err("tollgate: down".to_owned()));
    }
}
