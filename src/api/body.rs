//! The fields of bodies, each with its check.

use std::borrow::Cow;
use std::sync::Arc;

use super::cost::Cost;
use super::lease::LEASE_ID_LEN;
use super::problem::{Problem, bad_request};
use super::text::shown;
use super::value::{integer, must_be, shown_json};
use super::verdict::RESERVATION_ID_LEN;
use crate::access::{Key, KeyError};
use crate::json::{Fields, FieldsError, Json};
use crate::policy::Policy;

/// Maximum characters of a captcha response, from Turnstile's documentation.
const MAX_CAPTCHA_CHARS: usize = 2_048;

/// The fields of a body, or of one request in a batch.
pub(super) struct Body<'a>(Fields<'a>);

#[derive(Clone, Copy)]
pub(super) enum Mode {
    Take,
    Reserve,
    Borrow,
    UpTo,
}

/// Parses the whole body.
pub(super) fn parse(body: &[u8]) -> Result<Json<'_>, Problem> {
    let invalid = |why: String| Problem::BadRequest { detail: format!("the body is not valid JSON: {why}") };
    if body.trim_ascii().is_empty() {
        return bad_request("the body is empty: send a JSON object".to_owned());
    }
    let text = str::from_utf8(body).map_err(|error| invalid(error.to_string()))?;
    // serde_json's word "key" would read as the field of that name.
    let clear = |why: String| why.replace("key must be a string", "expected a field's name in double quotes");
    Json::parse(text).map_err(|error| invalid(clear(error.to_string())))
}

impl<'a> Body<'a> {
    /// The fields of `json`, described as `what`: an object with only `known` fields.
    pub(super) fn of(json: Json<'a>, what: &str, known: &[&str]) -> Result<Self, Problem> {
        let fields = json.fields().or_else(|error| match error {
            FieldsError::NotAnObject => bad_request(format!("{what} must be a JSON object, not {}", shown_json(json))),
            FieldsError::InvalidName => {
                bad_request(format!("{what} has a field whose name contains an unpaired surrogate"))
            }
            FieldsError::Duplicate(name) => bad_request(format!("{what} has the field {} twice", shown(&name))),
        })?;
        if let Some(name) = fields.names().find(|name| !known.contains(name)) {
            let known = known.join(", ");
            return bad_request(format!("{what} cannot have the field {}; its fields are {known}", shown(name)));
        }
        Ok(Self(fields))
    }

    pub(super) fn policy(&self) -> Result<Cow<'a, str>, Problem> {
        let policy = self.required("policy")?;
        policy.string().map_or_else(|| must_be("policy", "a string", policy), Ok)
    }

    /// The policy with the limits in the request, if any.
    pub(super) fn inline(&self, policy: &str) -> Result<Option<Arc<Policy>>, Problem> {
        let Some(limits) = self.0.get("limits") else { return Ok(None) };
        let policy = Policy::inline(policy, limits);
        policy.map(|policy| Some(Arc::new(policy))).or_else(|error| bad_request(error.to_string()))
    }

    /// `None` if absent: a grant has its own.
    pub(super) fn key(&self) -> Result<Option<Key<'a>>, Problem> {
        self.0.get("key").map(key_of).transpose()
    }

    /// An operator's key, possibly given by its hash.
    pub(super) fn operated_key(&self) -> Result<Option<Key<'a>>, Problem> {
        let key = self.0.get("key");
        key.map(|key| Key::parse_operated(key).or_else(|error| wrong_key(error, key))).transpose()
    }

    /// The key as written.
    pub(super) fn written_key(&self) -> Option<Json<'a>> {
        self.0.get("key")
    }

    /// How long to block a key.
    pub(super) fn for_ms(&self) -> Result<u64, Problem> {
        integer(self.required("for_ms")?, || "`for_ms`".to_owned())
    }

    pub(super) fn cost(&self) -> Result<Option<Cost<'a>>, Problem> {
        self.0.get("cost").map(|cost| Cost::parse("cost", cost)).transpose()
    }

    /// How many tokens to lease.
    pub(super) fn tokens(&self) -> Result<Option<Cost<'a>>, Problem> {
        self.0.get("tokens").map(|tokens| Cost::parse("tokens", tokens)).transpose()
    }

    pub(super) fn spent(&self) -> Result<Cost<'a>, Problem> {
        Cost::parse("spent", self.required("spent")?)
    }

    /// A lease's id: random, 64 bits.
    pub(super) fn lease(&self) -> Result<u64, Problem> {
        let lease = self.required("lease")?;
        let digits = lease.string().filter(|text| text.len() == LEASE_ID_LEN);
        let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        digits
            .and_then(|digits| u64::from_str_radix(&digits, 16).ok())
            .map_or_else(|| must_be("lease", &format!("a lease's id of {LEASE_ID_LEN} hex digits"), lease), Ok)
    }

    /// The ended leases.
    pub(super) fn returned(&self) -> Result<Vec<Json<'a>>, Problem> {
        let Some(returned) = self.0.get("returned") else { return Ok(Vec::new()) };
        returned.array().map_or_else(|| must_be("returned", "an array", returned), Ok)
    }

    pub(super) fn mode(&self) -> Result<Option<Mode>, Problem> {
        let Some(mode) = self.0.get("mode") else { return Ok(None) };
        match mode.string().as_deref() {
            Some("take") => Ok(Some(Mode::Take)),
            Some("reserve") => Ok(Some(Mode::Reserve)),
            Some("borrow") => Ok(Some(Mode::Borrow)),
            Some("up_to") => Ok(Some(Mode::UpTo)),
            _ => must_be("mode", "\"take\", \"reserve\", \"borrow\" or \"up_to\"", mode),
        }
    }

    pub(super) fn max_wait_ms(&self) -> Result<Option<u64>, Problem> {
        self.0.get("max_wait_ms").map(|wait| integer(wait, || "`max_wait_ms`".to_owned())).transpose()
    }

    pub(super) fn snapshot(&self) -> Result<bool, Problem> {
        let Some(snapshot) = self.0.get("snapshot") else { return Ok(false) };
        snapshot.bool().map_or_else(|| must_be("snapshot", "true or false", snapshot), Ok)
    }

    /// A reservation's id in hexadecimal digits, as clients have it.
    pub(super) fn reservation(&self) -> Result<u64, Problem> {
        let Some(reservation) = self.0.get("reservation") else {
            let what = "the id in the answer that reserved the tokens";
            return bad_request(format!("the field `reservation` is missing: {what}"));
        };
        let id = reservation.string().filter(|text| !text.is_empty() && text.len() <= RESERVATION_ID_LEN);
        let digits = id.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok()).map_or_else(
            || must_be("reservation", &format!("a reservation's id of {RESERVATION_ID_LEN} hex digits"), reservation),
            Ok,
        )
    }

    /// A captcha response, no longer than Turnstile's.
    pub(super) fn captcha(&self) -> Result<Cow<'a, str>, Problem> {
        let captcha = self.required("captcha")?.string();
        let captcha = captcha.filter(|text| !text.is_empty() && text.chars().nth(MAX_CAPTCHA_CHARS).is_none());
        captcha.map_or_else(
            || bad_request(format!("`captcha` must be a string of 1 to {MAX_CAPTCHA_CHARS} characters")),
            Ok,
        )
    }

    pub(super) fn requests(&self) -> Result<Vec<Json<'a>>, Problem> {
        let requests = self.required("requests")?;
        requests.array().map_or_else(|| must_be("requests", "an array", requests), Ok)
    }

    fn required(&self, field: &str) -> Result<Json<'a>, Problem> {
        self.0.get(field).map_or_else(|| missing(field), Ok)
    }
}

/// The key of a request that no operator has sent.
pub(crate) fn key_of(key: Json<'_>) -> Result<Key<'_>, Problem> {
    Key::parse(key).or_else(|error| wrong_key(error, key))
}

fn wrong_key<T>(error: KeyError, key: Json<'_>) -> Result<T, Problem> {
    match error {
        KeyError::NotAKey => must_be("key", &KeyError::rule(), key),
        error => bad_request(format!("`key` {error}")),
    }
}

pub(super) fn missing<T>(field: &str) -> Result<T, Problem> {
    bad_request(format!("the field `{field}` is missing"))
}
