//! The platform's own rate limiting binding: `limit({ key })`, which answers with `{ success }`.

use super::settings::wrong_binding;
use crate::access::Caller;
use crate::api::{Problem, Request, key_of};
use crate::json::{Fields, Json};

/// A call of `limit`: a request for a token, from a caller without any other right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlatformLimit<'a> {
    pub(super) caller: Caller<'static>,
    pub(super) request: Request<'a>,
}

impl<'a> PlatformLimit<'a> {
    /// The call with this `argument`, through a service binding with these `props`. Both are JSON; `None` is `undefined`.
    ///
    /// # Errors
    /// [`Problem::BadRequest`] and [`Problem::WrongBinding`].
    pub(super) fn parse(props: Option<&'a str>, argument: Option<&'a str>) -> Result<Self, Problem> {
        let wrong_props = || wrong(WRONG_PROPS);
        let props = props.and_then(fields).ok_or_else(wrong_props)?;
        let policy = props.get("policy").and_then(Json::string).filter(|policy| !policy.is_empty());
        let policy = policy.ok_or_else(wrong_props)?;
        if props.names().any(|name| !["policy", "key_prefix"].contains(&name)) {
            return Err(wrong_props());
        }
        let no_object = || wrong("limit takes { key }, an object");
        let argument = argument.map(|text| fields(text).ok_or_else(no_object)).transpose()?;
        if let Some(unknown) = argument.iter().flat_map(Fields::names).find(|name| *name != "key") {
            return Err(wrong(format!("limit takes {{ key }}, not {unknown}")));
        }
        let caller = Caller::limiter(&policy, &props).map_err(wrong_binding)?;
        // Without a key, the policy says what is wrong.
        let key = argument.and_then(|argument| argument.get("key")).map(key_of).transpose()?;
        Ok(Self { caller, request: Request::for_token(policy, key) })
    }
}

fn fields(text: &str) -> Option<Fields<'_>> {
    Json::parse(text).ok()?.fields().ok()
}

fn wrong(detail: impl Into<String>) -> Problem {
    Problem::BadRequest { detail: detail.into() }
}

const WRONG_PROPS: &str = "the `props` of a service binding to the entry point RateLimit have the name of its policy, such as { policy = \"api\" }, \
     and perhaps a key_prefix";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Endpoint;

    #[test]
    fn a_call_of_limit_is_a_request_to_consume_with_no_other_right() {
        for (props, argument, [same_props, same_body]) in [
            (
                r#"{"policy":"api"}"#,
                Some(r#"{"key":"a\"b"}"#),
                [r#"{"scopes":["consume"],"policies":["api"]}"#, r#"{"policy":"api","key":"a\"b"}"#],
            ),
            (
                r#"{"key_prefix":"acme:","policy":"api"}"#,
                Some(r#"{"key":["acme:1","2"]}"#),
                [
                    r#"{"scopes":["consume"],"policies":["api"],"key_prefix":"acme:"}"#,
                    r#"{"policy":"api","key":["acme:1","2"]}"#,
                ],
            ),
            // The policy says what is wrong with it.
            (r#"{"policy":"api"}"#, None, [r#"{"scopes":["consume"],"policies":["api"]}"#, r#"{"policy":"api"}"#]),
            (
                r#"{"policy":"api"}"#,
                Some("{}"),
                [r#"{"scopes":["consume"],"policies":["api"]}"#, r#"{"policy":"api"}"#],
            ),
        ] {
            let caller = Caller::binding(Some(same_props)).unwrap_or_else(|errors| panic!("{errors:?}"));
            let request = Request::parse(Endpoint::Consume, same_body.as_bytes()).unwrap();
            let expected = PlatformLimit { caller, request };
            assert_eq!(PlatformLimit::parse(Some(props), argument), Ok(expected), "{props} {argument:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let of = |props: Option<&str>, argument: &str| match PlatformLimit::parse(props, Some(argument)) {
            Err(Problem::BadRequest { detail }) => detail,
            other => panic!("{props:?} {argument}: {other:?}"),
        };
        for props in [
            None,
            Some("null"),
            Some("{}"),
            Some(r#"{"policy":7}"#),
            Some(r#"{"policy":""}"#),
            Some(r#"{"key_prefix":"a"}"#),
            Some(r#"{"policy":"api","key_prefx":"a"}"#),
            Some(r#"{"policy":"api","scopes":["admin"]}"#),
        ] {
            assert_eq!(of(props, r#"{"key":"a"}"#), WRONG_PROPS, "{props:?}");
        }
        let props = Some(r#"{"policy":"api"}"#);
        assert_eq!(of(props, r#"{"key":"a","delta":2}"#), "limit takes { key }, not delta");
        for argument in ["7", "null", "\"alice\"", r#"["alice"]"#] {
            assert_eq!(of(props, argument), "limit takes { key }, an object", "{argument}");
        }
        assert!(of(props, r#"{"key":7}"#).starts_with("`key` must be "));
        let errors = vec![
            "the service binding's props.key_prefix: must be the beginning of text keys, 1 to 512 bytes; leave it out for all keys"
                .to_owned(),
        ];
        let wrong = PlatformLimit::parse(Some(r#"{"policy":"api","key_prefix":""}"#), None);
        assert_eq!(wrong, Err(Problem::WrongBinding { errors }));
    }
}
