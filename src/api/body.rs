//! The fields of bodies, each with its check.

use std::borrow::Cow;

use super::cost::Cost;
use super::problem::{Problem, bad_request};
use super::text::{shortened, shown};
use crate::json::{Fields, Json, NoFields};
use crate::limit::MAX_TOKENS;

/// The longest key in bytes of UTF-8: room for a URL, or an e-mail address after a tenant. Callers with longer ones must
/// hash them.
pub const MAX_KEY_LEN: usize = 512;

/// 52 bits, so that an id is exact as a JavaScript number.
pub(super) const RESERVATION_ID_LEN: usize = 13;

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
    let text = str::from_utf8(body).map_err(|error| invalid(error.to_string()))?;
    Json::parse(text).map_err(|error| invalid(error.to_string()))
}

impl<'a> Body<'a> {
    /// The fields of `json`, which is `what`: an object that has no fields but the `known` ones.
    pub(super) fn of(json: Json<'a>, what: &str, known: &[&str]) -> Result<Self, Problem> {
        let fields = json.fields().or_else(|problem| match problem {
            NoFields::NotAnObject => {
                let known = known.join(", ");
                bad_request(format!("{what} must be an object with the fields {known}, not {}", short(json)))
            }
            NoFields::NotText => bad_request(format!("{what} has a field whose name is not text")),
            NoFields::Twice(name) => bad_request(format!("{what} has {} twice", shown(&name))),
        })?;
        if let Some(name) = fields.names().find(|name| !known.contains(name)) {
            return bad_request(format!("{what} has no field {}; its fields are {}", shown(name), known.join(", ")));
        }
        Ok(Self(fields))
    }

    pub(super) fn policy(&self) -> Result<Cow<'a, str>, Problem> {
        let policy = self.required("policy")?;
        policy.text().map_or_else(|| wrong("policy", "text", policy), Ok)
    }

    pub(super) fn key(&self) -> Result<Cow<'a, str>, Problem> {
        let key = self.required("key")?;
        match key.text() {
            Some(text) if text.is_empty() => {
                bad_request(format!("`key` is empty: it must have 1 to {MAX_KEY_LEN} bytes"))
            }
            Some(text) if text.len() > MAX_KEY_LEN => {
                bad_request(format!("`key` has {} bytes, which are too many: at most {MAX_KEY_LEN}", text.len()))
            }
            Some(text) => Ok(text),
            None => wrong("key", &format!("1 to {MAX_KEY_LEN} bytes of text"), key),
        }
    }

    pub(super) fn cost(&self) -> Result<Option<Cost<'a>>, Problem> {
        self.0.get("cost").map(Cost::parse).transpose()
    }

    pub(super) fn mode(&self) -> Result<Option<Mode>, Problem> {
        let Some(mode) = self.0.get("mode") else { return Ok(None) };
        match mode.text().as_deref() {
            Some("take") => Ok(Some(Mode::Take)),
            Some("reserve") => Ok(Some(Mode::Reserve)),
            Some("borrow") => Ok(Some(Mode::Borrow)),
            Some("up_to") => Ok(Some(Mode::UpTo)),
            _ => wrong("mode", "\"take\", \"reserve\", \"borrow\" or \"up_to\"", mode),
        }
    }

    pub(super) fn max_wait_ms(&self) -> Result<Option<u64>, Problem> {
        self.0.get("max_wait_ms").map(|wait| whole(wait, || "`max_wait_ms`".to_owned())).transpose()
    }

    pub(super) fn snapshot(&self) -> Result<bool, Problem> {
        let Some(snapshot) = self.0.get("snapshot") else { return Ok(false) };
        snapshot.boolean().map_or_else(|| wrong("snapshot", "true or false", snapshot), Ok)
    }

    /// A reservation's id as clients have it: hexadecimal digits.
    pub(super) fn reservation(&self) -> Result<u64, Problem> {
        let Some(reservation) = self.0.get("reservation") else {
            let what = "the id in the answer that reserved the tokens";
            return bad_request(format!("the field `reservation` is missing: {what}"));
        };
        let id = reservation.text().filter(|text| !text.is_empty() && text.len() <= RESERVATION_ID_LEN);
        let digits = id.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok()).map_or_else(
            || wrong("reservation", &format!("an id of 1 to {RESERVATION_ID_LEN} hex digits"), reservation),
            Ok,
        )
    }

    pub(super) fn requests(&self) -> Result<Vec<Json<'a>>, Problem> {
        let requests = self.required("requests")?;
        requests.list().map_or_else(|| wrong("requests", "a list", requests), Ok)
    }

    fn required(&self, field: &str) -> Result<Json<'a>, Problem> {
        self.0.get(field).map_or_else(|| bad_request(format!("the field `{field}` is missing")), Ok)
    }
}

/// A whole number from 0 to [`MAX_TOKENS`].
pub(super) fn whole(json: Json<'_>, what: impl FnOnce() -> String) -> Result<u64, Problem> {
    match json.whole() {
        Some(number) if number <= MAX_TOKENS => Ok(number),
        _ => bad_request(format!("{} must be a whole number from 0 to {MAX_TOKENS}, not {}", what(), short(json))),
    }
}

fn wrong<T>(field: &str, expected: &str, json: Json<'_>) -> Result<T, Problem> {
    bad_request(format!("`{field}` must be {expected}, not {}", short(json)))
}

/// What was written instead, cut short.
pub(super) fn short(json: Json<'_>) -> String {
    shortened(&json.to_string())
}
