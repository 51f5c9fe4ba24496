//! Bans: by an override, and of keys that are refused often, for longer each time.
//!
//! Everything about the field `ban` is here: its meaning, its default and bounds, how it is parsed and sent, and how a change of it is
//! described.

use serde::Serialize;

use super::reader::{Reader, table};
use super::shown::shown_value;
use crate::json::{Fields, Json};
use crate::length;
use crate::limit::Decision;

/// The ban of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// When it ends, if ever.
    pub until: Option<i64>,
}

impl Ban {
    /// A limit's decision about a request that takes tokens, `own` without the ban: when it ends, the limit may still refuse.
    pub fn decision(self, own: Decision) -> Decision {
        match (self.until, own) {
            (Some(until), Decision::Wait { retry_at }) => Decision::Wait { retry_at: retry_at.max(until) },
            (Some(retry_at), _) => Decision::Wait { retry_at },
            (None, _) => Decision::Never { max: 0 },
        }
    }

    /// The one that ends last.
    #[must_use]
    pub fn or_later(self, other: Self) -> Self {
        let until = self.until.zip(other.until).map(|(one, other)| one.max(other));
        Self { until }
    }

    /// Whether it is in force at that moment.
    #[must_use]
    pub fn is_in_force(self, now: i64) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Which keys a policy bans, and for how long.
///
/// | field of `ban` | meaning | default |
/// |---|---|---|
/// | `after` | how many refusals ban a key: 1 to 100 | required |
/// | `within` | in which time: `"1s"` to `"1day"` | required |
/// | `for` | for how long: `"1s"` to `"365days"` | required |
/// | `grow` | how many times as long as the one before each further ban lasts: 1 to 10 | 2 |
/// | `max` | for how long at most, and after how long without a ban `for` applies again: up to `"365days"` | `"1day"`, or `for` if that is longer |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanTerms {
    /// How many refusals ban a key.
    pub after: u8,
    /// The time in milliseconds within which they count.
    pub within_ms: u64,
    /// How long the first ban lasts, in milliseconds.
    pub for_ms: u64,
    /// How many times as long as the one before each further ban is.
    pub grow: u8,
    /// How long a ban lasts at most, and after how long without one the next is a first one, in milliseconds.
    pub max_ms: u64,
}

impl BanTerms {
    /// Each refusal of a key until then calls its object, and the row has the moments of all.
    const MAX_AFTER: u8 = 100;
    /// Refusals that are further apart are not an attack that a ban could slow down.
    const MAX_WITHIN_MS: u64 = 86_400_000;
    const MIN_MS: u64 = 1_000;
    /// About a year: more is an operator's decision.
    pub(crate) const MAX_MS: u64 = 365 * 86_400_000;
    const MAX_GROW: u8 = 10;
    const DEFAULT_GROW: u8 = 2;
    const DEFAULT_MAX_MS: u64 = 86_400_000;

    /// How long a ban lasts in milliseconds after one that lasted `before`, if any.
    #[must_use]
    pub fn length_ms(self, before: Option<u64>) -> u64 {
        let longer = before.map(|before| before.saturating_mul(self.grow.into()));
        longer.unwrap_or(self.for_ms).max(self.for_ms).min(self.max_ms)
    }

    /// `None` if keys are not to be banned, or if the fields are invalid.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let value = reader.fields.get("ban")?;
        let place = format!("{}.ban", reader.place);
        let fields = table(&place, value, "after, within and for", reader.errors)?;
        let before = reader.errors.len();
        let mut reader = Reader { place, fields: &fields, errors: &mut *reader.errors };
        reader.only(&["after", "within", "for", "grow", "max"]);
        for field in ["after", "within", "for"] {
            if fields.get(field).is_none() {
                reader.error(field, "is missing".to_owned());
            }
        }
        let after = reader.small("after", "refusals", 1..=Self::MAX_AFTER);
        let within_ms = length_in(&mut reader, "within", Self::MAX_WITHIN_MS);
        let for_ms = length_in(&mut reader, "for", Self::MAX_MS);
        let grow = reader.small("grow", "times", 1..=Self::MAX_GROW).unwrap_or(Self::DEFAULT_GROW);
        let max_ms = length_in(&mut reader, "max", Self::MAX_MS);
        let max_ms = max_ms.unwrap_or(Self::DEFAULT_MAX_MS.max(for_ms.unwrap_or_default()));
        if for_ms.is_some_and(|for_ms| max_ms < for_ms) {
            reader.error("max", "must not be shorter than `for`, the length of the first ban".to_owned());
        }
        if reader.errors.len() > before {
            return None;
        }
        Some(Self { after: after?, within_ms: within_ms?, for_ms: for_ms?, grow, max_ms })
    }

    pub(super) const fn written(self) -> Written {
        let Self { after, within_ms, for_ms, grow, max_ms } = self;
        Written { after, within_ms, for_ms, grow, max_ms }
    }

    /// What [`BanTerms::written`] wrote, if it can be read.
    pub(super) fn of_fields(fields: &Fields<'_>) -> Option<Self> {
        let number = |name: &str| fields.get(name).and_then(Json::integer);
        let small = |name: &str| number(name).and_then(|number| u8::try_from(number).ok());
        Some(Self {
            after: small("after")?,
            within_ms: number("within_ms")?,
            for_ms: number("for_ms")?,
            grow: small("grow")?,
            max_ms: number("max_ms")?,
        })
    }

    pub(super) fn shown(terms: Option<Self>) -> String {
        let Some(Self { after, within_ms, for_ms, grow, max_ms }) = terms else { return "none".to_owned() };
        let [within, first, max] = [within_ms, for_ms, max_ms].map(length::shown);
        let refusals = if after == 1 { "refusal" } else { "refusals" };
        let then =
            if grow > 1 { format!(", each further one {grow} times as long, up to {max}") } else { String::new() };
        format!("{first} after {after} {refusals} within {within}{then}")
    }
}

/// The field's length of time in milliseconds, if it has one of at most that much.
fn length_in(reader: &mut Reader<'_>, field: &str, max_ms: u64) -> Option<u64> {
    let found = reader.millis(field)?;
    if (BanTerms::MIN_MS..=max_ms).contains(&found) {
        return Some(found);
    }
    let shown = reader.fields.get(field).map(shown_value).unwrap_or_default();
    reader.error(field, format!("must be from 1s to {}, not {shown}", length::shown(max_ms)));
    None
}

/// In a [definition](super::Policy::definition).
#[derive(Serialize)]
pub(super) struct Written {
    after: u8,
    within_ms: u64,
    for_ms: u64,
    grow: u8,
    max_ms: u64,
}
