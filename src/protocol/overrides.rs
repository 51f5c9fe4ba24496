//! Operators' changes of overrides, and the answers.

use std::borrow::Cow;

use crate::access::Key;
use crate::json::Json;
use crate::limit::Carry;
use crate::policy::PolicyErrors;
use crate::policy::overrides::{InForce, WrittenKeys, WrittenOverride};

/// A change of overrides, all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesChange<'a> {
    /// Each override to set or to remove, or what is wrong with it, one line each.
    pub changes: Vec<Result<OverrideChange, Vec<String>>>,
    /// The name of the token that makes the change.
    pub by: &'a str,
    /// The only policies that the token may name, unless all.
    pub only: Option<&'a [String]>,
    /// How tokens are carried over; `None` for the default.
    pub carry: Option<Carry>,
    /// Whether only to return what would change.
    pub is_dry_run: bool,
}

/// A change of one override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideChange {
    /// The keys it is for.
    pub keys: OverrideKeys,
    /// The new one; `None` removes it.
    pub set: Option<NewOverride>,
}

/// The keys that an override is for, as an operator names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideKeys {
    /// What names them in errors, such as `overrides[3]`.
    pub place: String,
    /// The policy's name, not yet known to exist.
    pub policy: String,
    /// The keys of the policy.
    pub keys: NamedKeys,
}

/// One key, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedKeys {
    /// A single one.
    One(Key<'static>),
    /// All text keys with this prefix.
    Prefix(String),
}

/// An override to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOverride {
    /// As it is stored and listed: JSON.
    pub text: String,
    /// Its effect, and its end.
    pub in_force: InForce,
}

/// A change of overrides, made or only tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverridesChanged {
    /// The number of new ones.
    pub created: usize,
    /// The number of replaced ones.
    pub replaced: usize,
    /// The number of removed ones.
    pub removed: usize,
    /// The number of unchanged ones.
    pub unchanged: usize,
    /// The moment of the change; `None` if there was none.
    pub at: Option<i64>,
}

/// Why overrides were not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverridesError {
    /// The errors, one line each.
    Invalid(Vec<String>),
    /// There would be more than `max`.
    TooMany {
        /// The maximum that was exceeded.
        max: usize,
        /// Whether it is the maximum for the policies of the token, rather than for all.
        is_own: bool,
        /// Whether the token is restricted to some policies.
        is_restricted: bool,
        /// Whether all overrides that the change would add are bans.
        are_bans: bool,
    },
}

/// An override's current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideStanding {
    /// As written: JSON.
    pub text: String,
    /// The moment it came into force.
    pub since: i64,
    /// Its unique id: 32 hexadecimal digits.
    pub id: String,
    /// The hash of its key; `None` if it is for a prefix.
    pub object: Option<String>,
}

/// Maximum overrides in one change.
pub const MAX_OVERRIDES_AT_ONCE: usize = 2_000;

/// Maximum length of an override's text, in bytes: that of a policy.
pub const MAX_OVERRIDE_LEN: usize = 4_096;

/// Maximum lines of an error.
pub(crate) const MAX_ERROR_LINES: usize = 20;

impl OverrideChange {
    /// Parses `{"overrides": [...], "removed": [...]}`.
    ///
    /// # Errors
    /// [`OverridesError::Invalid`] with what is wrong with the whole.
    pub fn parse_all(text: &str) -> Result<Vec<Result<Self, Vec<String>>>, OverridesError> {
        let invalid = |line: String| OverridesError::Invalid(vec![line]);
        let fields = Json::parse(text)
            .map_err(|error| invalid(format!("the body is not valid JSON: {error}")))?
            .fields()
            .map_err(|_| invalid("the body must be an object with `overrides`, `removed` or both".to_owned()))?;
        if let Some(other) = fields.names().find(|name| !["overrides", "removed"].contains(name)) {
            return Err(invalid(format!("the body has the field {other:?}; it may have `overrides` and `removed`")));
        }
        let list = |name: &str| match fields.get(name) {
            None => Ok(Vec::new()),
            Some(list) => list.array().ok_or_else(|| invalid(format!("`{name}` must be a list of overrides"))),
        };
        let (set, removed) = (list("overrides")?, list("removed")?);
        let count = set.len().saturating_add(removed.len());
        if count == 0 || count > MAX_OVERRIDES_AT_ONCE {
            return Err(invalid(format!("a change has 1 to {MAX_OVERRIDES_AT_ONCE} overrides, not {count}")));
        }
        let set = set.into_iter().enumerate().map(|(index, json)| (format!("overrides[{index}]"), json, true));
        let removed = removed.into_iter().enumerate().map(|(index, json)| (format!("removed[{index}]"), json, false));
        let (mut all, mut count) = (Vec::new(), 0_usize);
        for (place, json, is_set) in set.chain(removed) {
            let change = Self::parse(place, json, is_set);
            count = count.saturating_add(change.as_ref().err().map_or(0, Vec::len));
            all.push(change);
            if count > MAX_ERROR_LINES {
                break; // no more are shown
            }
        }
        Ok(all)
    }

    fn parse(place: String, json: Json<'_>, is_set: bool) -> Result<Self, Vec<String>> {
        let text = json.compact();
        let len = text.len();
        if len > MAX_OVERRIDE_LEN {
            return Err(vec![format!(
                "{place}: has {len} bytes, without spaces between its fields; an override has at most {MAX_OVERRIDE_LEN}"
            )]);
        }
        let (policy, keys, in_force) = if is_set {
            let WrittenOverride { policy, keys, plan, until } = WrittenOverride::of(&place, json).map_err(lines)?;
            (policy, keys, Some(InForce { plan, until }))
        } else {
            let (policy, keys) = WrittenKeys::of(&place, json).map_err(lines)?;
            (policy, keys, None)
        };
        let set = in_force.map(|in_force| NewOverride { text, in_force });
        Ok(Self { keys: OverrideKeys::of(place, policy, keys)?, set })
    }
}

impl OverrideKeys {
    /// Those that a query names.
    ///
    /// # Errors
    /// What is wrong with them, one line each.
    pub(crate) fn of_query(place: &str, policy: &str, keys: WrittenKeys<'_>) -> Result<Self, Vec<String>> {
        keys.check(place, policy).map_err(lines)?;
        Self::of(place.to_owned(), policy.into(), keys)
    }

    fn of(place: String, policy: Cow<'_, str>, keys: WrittenKeys<'_>) -> Result<Self, Vec<String>> {
        let keys = match keys {
            WrittenKeys::One(key) => Key::parse_operated(key).map(|key| NamedKeys::One(key.into_owned())),
            WrittenKeys::Prefix(prefix) => Ok(NamedKeys::Prefix(prefix.into_owned())),
        };
        let keys = keys.map_err(|error| vec![format!("{place}.key: {error}")])?;
        Ok(Self { place, policy: policy.into_owned(), keys })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for errors")]
fn lines(errors: PolicyErrors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
