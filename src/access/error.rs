//! Errors in the settings for credentials. Secrets are never shown.

use std::fmt;

use crate::json::{Fields, FieldsError, Json};

/// An error in a setting: its place and the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError(String);

impl SettingError {
    pub(super) fn of_secret(name: &str, problem: &str) -> Self {
        Self(format!("the secret {name} {problem}"))
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingError {}

/// The named secret, if it is long enough.
pub(super) fn require_long_enough<'a>(name: &str, secret: Option<&'a str>) -> Result<&'a str, SettingError> {
    let problem = match secret {
        Some(secret) if secret.len() >= MIN_SECRET_LEN => return Ok(secret),
        Some(secret) => format!("has {} bytes: it needs {MIN_SECRET_LEN} random ones", secret.len()),
        None => format!("is missing: set it with `wrangler secret put {name}`"),
    };
    Err(SettingError::of_secret(name, &problem))
}

/// 16 random bytes cannot be guessed. A text of 16 characters has less entropy, but is longer than any word.
const MIN_SECRET_LEN: usize = 16;

/// All errors found so far.
#[derive(Default)]
pub(super) struct Errors(pub(super) Vec<SettingError>);

impl Errors {
    /// `place` is for example `TOLLGATE_TOKENS.web.scopes`.
    pub(super) fn add(&mut self, place: &str, problem: &str) {
        self.0.push(SettingError(format!("{place}: {problem}")));
    }

    /// The fields of the object in `json`, described as `what`; otherwise adds an error.
    pub(super) fn fields<'a>(&mut self, place: &str, json: Json<'a>, what: &str) -> Option<Fields<'a>> {
        let problem = match json.fields() {
            Ok(fields) => return Some(fields),
            Err(FieldsError::NotAnObject) => format!("must be an object of {what}"),
            Err(FieldsError::InvalidName) => "has a name with an unpaired surrogate".to_owned(),
            Err(FieldsError::Duplicate(name)) => format!("gives {} twice", shown(&name)),
        };
        self.add(place, &problem);
        None
    }

    /// The fields of the object in `json`, described as `what`, if all are among the `known` ones; otherwise adds an error.
    pub(super) fn fields_of<'a>(
        &mut self,
        place: &str,
        json: Json<'a>,
        what: &str,
        known: &[&str],
    ) -> Option<Fields<'a>> {
        let fields = self.fields(place, json, what)?;
        for field in fields.names().filter(|field| !known.contains(field)) {
            self.add(place, &format!("{} is not a field of it; its fields are {}", shown(field), known.join(", ")));
        }
        Some(fields)
    }

    /// The entries with valid names of a setting that is an object, such as `TOLLGATE_TOKENS`, given as JSON.
    pub(super) fn entries<'a>(&mut self, setting: &str, text: &'a str, what: &str) -> Vec<(String, Json<'a>)> {
        let Ok(json) = Json::parse(text) else {
            self.add(setting, &format!("is not valid JSON: it must be an object of {what}"));
            return Vec::new();
        };
        let Some(fields) = self.fields(setting, json, what) else { return Vec::new() };
        let count = fields.iter().count();
        if count == 0 || count > MAX_ENTRIES {
            self.add(setting, &format!("must have 1 to {MAX_ENTRIES} entries, not {count}"));
            return Vec::new();
        }
        let mut entries = Vec::new();
        for (index, (name, value)) in fields.iter().enumerate() {
            if is_name(name) {
                entries.push((name.clone().into_owned(), value));
            } else {
                self.add(setting, &format!("the name of entry {index} is not valid: {}", name_rule()));
            }
        }
        entries
    }
}

/// Each entry is compared with the credential of every request.
const MAX_ENTRIES: usize = 100;

/// Room for a UUID, and shorter than any API token or key: one in place of a name would be logged.
const MAX_NAME_LEN: usize = 40;

pub(super) fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= MAX_NAME_LEN && name.chars().all(is_allowed)
}

fn name_rule() -> String {
    format!("it must be 1 to {MAX_NAME_LEN} ASCII letters, digits, '_', '-' or '.'")
}

/// A safe form of a text that may be a secret in the wrong place.
pub(super) fn shown(text: &str) -> String {
    if is_name(text) { text.to_owned() } else { format!("a text of {} bytes", text.len()) }
}
