//! `POST /v1/session`: exchanges a visitor's captcha for a grant.

use std::borrow::Cow;

use serde::Serialize;

use super::body::{Body, parse};
use super::problem::{Problem, bad_request};
use super::reply::Reply;
use super::request::Request;
use crate::access::{Key, Session};

/// The path. It is not an [`Endpoint`](super::Endpoint), since it needs no credential and grants do not name it.
pub const SESSION_PATH: &str = "/v1/session";

const ADDRESS_HEADER: &str = "CF-Connecting-IP";

/// A visitor's request.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionRequest<'a> {
    /// The captcha response, which only its verifier can read.
    pub captcha: Cow<'a, str>,
    address: Key<'a>,
}

impl<'a> SessionRequest<'a> {
    /// Parses a body such as `{"captcha":"..."}`. `address` is the client's, from the header `CF-Connecting-IP`.
    ///
    /// # Errors
    /// [`Problem::BadRequest`].
    pub fn parse(body: &'a [u8], address: Option<&str>) -> Result<Self, Problem> {
        let captcha = Body::of(parse(body)?, "the body", &["captcha"])?.captcha()?;
        match address.map(Key::of_address) {
            Some(Ok(address)) => Ok(Self { captcha, address }),
            Some(Err(_)) => bad_request(format!("the header {ADDRESS_HEADER} must be one IP address")),
            None => bad_request(format!(
                "the header {ADDRESS_HEADER}, which Cloudflare sets to the client's address, is missing"
            )),
        }
    }

    /// The request for a token of `policy`, for the client's address.
    #[must_use]
    pub fn into_limited(self, policy: &'a str) -> Request<'a> {
        Request::for_token(policy.into(), Some(self.address))
    }
}

impl Reply {
    /// The answer to a solved captcha.
    #[must_use]
    pub fn session(session: &Session) -> Self {
        #[derive(Serialize)]
        struct Opened<'a> {
            grant: &'a str,
            expires_at: i64,
            key: &'a str,
        }
        let Session { grant, expires_at, key } = session;
        Self::json(200, "application/json", &Opened { grant, expires_at: *expires_at, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Endpoint, Item};
    use crate::limit::Verb;
    use crate::protocol::Action;

    fn parse(body: &str, address: Option<&str>) -> Result<(String, Key<'static>), String> {
        match SessionRequest::parse(body.as_bytes(), address) {
            Ok(request) => {
                let captcha = request.captcha.clone().into_owned();
                let Request { endpoint, action, mut items, .. } = request.into_limited("visits");
                assert_eq!((endpoint, action), (Endpoint::Consume, Action::Take(Verb::Consume)));
                let Item { policy, key, cost, snapshot, inline } = items.remove(0);
                assert!(policy == "visits" && cost.is_none() && !snapshot && inline.is_none() && items.is_empty());
                match key {
                    Some(Key::Ip(address)) => Ok((captcha, Key::Ip(address))),
                    other => panic!("{other:?}"),
                }
            }
            Err(Problem::BadRequest { detail }) => Err(detail),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_address_is_charged_a_token() {
        let body = r#"{"captcha":"a\u0062"}"#;
        for (address, expected) in
            [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::1")]
        {
            assert_eq!(parse(body, Some(address)), Ok(("ab".to_owned(), Key::Ip(expected.parse().unwrap()))));
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let address = Some("192.0.2.1");
        let rule = "`captcha` must be a string of 1 to 2048 characters";
        for (body, expected) in [
            ("{}".to_owned(), "the field `captcha` is missing"),
            (r#"{"captcha":""}"#.to_owned(), rule),
            (r#"{"captcha":["x"]}"#.to_owned(), rule),
            (r#"{"captcha":"\udc00"}"#.to_owned(), rule),
            (format!(r#"{{"captcha":"{}"}}"#, "x".repeat(2_049)), rule),
            (
                r#"{"captcha":"x","policy":"api"}"#.to_owned(),
                "the body cannot have the field \"policy\"; its fields are captcha",
            ),
        ] {
            assert_eq!(parse(&body, address), Err(expected.to_owned()), "{body:.40}");
        }
        assert!(parse(&format!(r#"{{"captcha":"{}"}}"#, "語".repeat(2_048)), address).is_ok());
        let body = r#"{"captcha":"x"}"#;
        let missing = "the header CF-Connecting-IP, which Cloudflare sets to the client's address, is missing";
        assert_eq!(parse(body, None), Err(missing.to_owned()));
        for address in ["", "unknown", "192.0.2.1:80", "192.0.2.1, 192.0.2.2", "192.0.2.1%eth0"] {
            let wrong = "the header CF-Connecting-IP must be one IP address";
            assert_eq!(parse(body, Some(address)), Err(wrong.to_owned()), "{address}");
        }
    }

    #[test]
    fn the_answer_has_the_grant_and_is_not_cacheable() {
        let session = Session { grant: "a.b.c".to_owned(), expires_at: 5, key: "session:x".to_owned() };
        let reply = Reply::session(&session);
        let (body, status, headers) = (reply.body(), reply.status, reply.headers);
        assert_eq!((status, &*body), (200, "{\"grant\":\"a.b.c\",\"expires_at\":5,\"key\":\"session:x\"}\n"));
        assert!(headers.contains(&("cache-control", "no-store".into())));
    }
}
