//! `POST /v1/session`: a visitor's captcha, for a grant.

use std::borrow::Cow;

use serde::Serialize;

use super::body::{Body, parse};
use super::endpoint::Endpoint;
use super::problem::{Problem, bad_request};
use super::reply::Reply;
use super::request::{Item, MAX_BODY_LEN, Request};
use crate::access::{Key, Session};
use crate::limit::Verb;
use crate::protocol::Action;

/// Where it is. It is no [`Endpoint`]: it needs no credential, and grants do not name it.
pub const SESSION_PATH: &str = "/v1/session";

/// What a visitor sends.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionRequest<'a> {
    /// The captcha's token, which only its verifier can read.
    pub captcha: Cow<'a, str>,
    address: Key<'a>,
}

impl<'a> SessionRequest<'a> {
    /// Parses a body such as `{"captcha":"..."}`. `address` is that of the client, in the header `CF-Connecting-IP`.
    ///
    /// # Errors
    /// [`Problem::BodyTooLarge`] and [`Problem::BadRequest`].
    pub fn parse(body: &'a [u8], address: Option<&str>) -> Result<Self, Problem> {
        if body.len() > MAX_BODY_LEN {
            return Err(Problem::BodyTooLarge);
        }
        let captcha = Body::of(parse(body)?, "the body", &["captcha"])?.captcha()?;
        let Some(address) = address else {
            return bad_request(
                "the header CF-Connecting-IP, which Cloudflare sets to the client's address, is missing".to_owned(),
            );
        };
        match Key::of_address(address) {
            Ok(address) => Ok(Self { captcha, address }),
            Err(error) => bad_request(format!("the header CF-Connecting-IP: the address {error}")),
        }
    }

    /// The request for a token of `policy`, for the client's address.
    #[must_use]
    pub fn into_limited(self, policy: &'a str) -> Request<'a> {
        let item = Item { policy: policy.into(), key: Some(self.address), cost: None, snapshot: false };
        Request { endpoint: Endpoint::Consume, action: Action::Take(Verb::Consume), items: vec![item] }
    }
}

impl Reply {
    /// The answer to a captcha that was right.
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
