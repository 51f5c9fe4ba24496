//! A policy's terms for objects besides its limits.
//!
//! Everything about a field is here: its meaning, its default and bounds, how it is parsed and sent, and how a change of it is described.

use serde::Serialize;

use super::ban::{self, BanTerms};
use super::notify::{NoticeKind, Notify};
use super::reader::Reader;
use super::shown::shown_value;
use super::stored::StoredConfigError;
use crate::json::{Fields, Json};
use crate::length;

/// A policy's terms for objects besides its limits.
///
/// | field | meaning | default |
/// |---|---|---|
/// | `reservation_ttl` | how long a reservation lasts, from its start or its last extension | `"10m"` |
/// | `unsettled` | what an unsettled reservation costs when it expires: `"keep"` all of it, `"refund"` nothing | `"keep"` |
/// | `notify` | events that the webhook or the queue receives: a list of `"1%"` to `"100%"` of a limit, `"over"`, `"refused"` | nothing |
/// | `notify_every` | minimum interval between notices of one kind about a limit of a key: `"10s"` to `"30days"` | `"10m"` |
/// | `ban` | when a key is banned for being refused often, and for how long: see [`BanTerms`] | never |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectTerms {
    /// The terms of its reservations.
    pub reservations: ReservationTerms,
    /// Its notices, if any.
    pub notify: Option<Notify>,
    /// When it bans a key, if ever.
    pub ban: Option<BanTerms>,
}

/// How long reservations stay open, and what an unsettled one costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReservationTerms {
    /// Counted from when the tokens are ready, in milliseconds.
    pub ttl_ms: u64,
    /// What happens to one that is still open then.
    pub unsettled: Unsettled,
}

/// What happens to a reservation that was neither settled nor cancelled in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// It costs what was reserved: the work may have been done.
    Keep,
    /// It costs nothing: the tokens are given back.
    Refund,
}

/// Ten minutes: longer than nearly every answer of a language model takes.
const RESERVATION_TTL_MS: u64 = 600_000;

impl Default for ReservationTerms {
    fn default() -> Self {
        Self { ttl_ms: RESERVATION_TTL_MS, unsettled: Unsettled::Keep }
    }
}

impl ReservationTerms {
    /// Maximum open reservations of a key; each raise counts as one, and lengthens its reservation's row. Each takes a row and a few
    /// hundred bytes of memory; an object has at most 128 MB.
    #[doc(hidden)]
    pub const MAX_OPEN: usize = 1_000;
}

impl Unsettled {
    const CHOICES: [(&str, Self); 2] = [("keep", Self::Keep), ("refund", Self::Refund)];
}

/// In a [definition](super::Policy::definition).
#[derive(Serialize)]
pub(super) struct Written {
    reservation_ttl_ms: u64,
    unsettled: &'static str,
    /// A version that does not know them gives no notices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notify: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notify_every_ms: Option<u64>,
    /// Older versions ignore it, and ban no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    ban: Option<ban::Written>,
}

impl ObjectTerms {
    /// The names of their fields.
    pub(super) const FIELDS: [&str; 5] = ["reservation_ttl", "unsettled", "notify", "notify_every", "ban"];

    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let [keep, refund] = Unsettled::CHOICES;
        let unsettled = reader.choice("unsettled", keep, &[refund]);
        let ttl_ms = reader.millis("reservation_ttl").unwrap_or(RESERVATION_TTL_MS);
        if ttl_ms == 0 {
            reader.error("reservation_ttl", "must be at least 1ms, or no reservation could be settled".to_owned());
        }
        let reservations = ReservationTerms { ttl_ms, unsettled };
        Self { reservations, notify: notify(reader), ban: BanTerms::read(reader) }
    }

    pub(super) fn written(&self) -> Written {
        let ReservationTerms { ttl_ms, unsettled } = self.reservations;
        let word = Unsettled::CHOICES.into_iter().find(|(_, choice)| *choice == unsettled).map(|(word, _)| word);
        Written {
            reservation_ttl_ms: ttl_ms,
            unsettled: word.unwrap_or_default(),
            notify: self.notify.map(words).unwrap_or_default(),
            notify_every_ms: self.notify.map(Notify::every_ms),
            ban: self.ban.map(BanTerms::written),
        }
    }

    /// Parses what [`ObjectTerms::written`] wrote. Kinds of notices of a later version are ignored.
    pub(super) fn of_fields(fields: &Fields<'_>) -> Result<Self, StoredConfigError> {
        let unreadable = || StoredConfigError::Unreadable;
        let ttl_ms = fields.get("reservation_ttl_ms").and_then(Json::integer).ok_or_else(unreadable)?;
        let word = fields.get("unsettled").and_then(Json::string).ok_or_else(unreadable)?;
        let unsettled = Unsettled::CHOICES.into_iter().find(|(known, _)| *known == word).ok_or_else(unreadable)?.1;
        let notify = || {
            let words = fields.get("notify")?.array()?;
            let kinds: Vec<_> = words.into_iter().filter_map(|word| NoticeKind::from_word(&word.string()?)).collect();
            Notify::new(&kinds, fields.get("notify_every_ms")?.integer()?)
        };
        let ban = fields.get("ban").and_then(|ban| BanTerms::of_fields(&ban.fields().ok()?));
        Ok(Self { reservations: ReservationTerms { ttl_ms, unsettled }, notify: notify(), ban })
    }

    /// The changes when these replace `before`, one line each.
    pub(super) fn describe_change(&self, before: &Self, lines: &mut Vec<String>) {
        if before.reservations != self.reservations {
            lines.push("reservations that are opened from then on have the new terms".to_owned());
        }
        if before.notify != self.notify {
            let (new, old) = (shown_notify(self.notify), shown_notify(before.notify));
            lines.push(format!("notices: {new} instead of {old}"));
        }
        if before.ban != self.ban {
            let (new, old) = (BanTerms::shown(self.ban), BanTerms::shown(before.ban));
            let ends = if self.ban.is_none() { "; keys that are banned by it no longer are" } else { "" };
            lines.push(format!("ban: {new} instead of {old}{ends}"));
        }
    }
}

/// `None` if there are to be no notices, or if the fields are invalid.
fn notify(reader: &mut Reader<'_>) -> Option<Notify> {
    let every_ms = reader.millis("notify_every");
    let every = Notify::MIN_EVERY_MS..=Notify::MAX_EVERY_MS;
    if every_ms.is_some_and(|ms| !every.contains(&ms)) {
        let shown = reader.fields.get("notify_every").map(shown_value).unwrap_or_default();
        reader.error("notify_every", format!("must be from 10s to 30days, not {shown}"));
    }
    let Some(value) = reader.fields.get("notify") else {
        if reader.fields.get("notify_every").is_some() {
            reader.error("notify_every", "needs `notify`, which says of what".to_owned());
        }
        return None;
    };
    match kinds(value) {
        Ok(kinds) => Notify::new(&kinds, every_ms.unwrap_or(Notify::EVERY_MS)),
        Err(problem) => {
            reader.error("notify", problem);
            None
        }
    }
}

fn words(notify: Notify) -> Vec<String> {
    notify.kinds().map(|kind| kind.to_string()).collect()
}

/// A list of different kinds of notices, or what is wrong with it.
fn kinds(value: Json<'_>) -> Result<Vec<NoticeKind>, String> {
    let rule = "\"1%\" to \"100%\" of a limit, \"over\" or \"refused\"";
    let Some(words) = value.array() else {
        return Err(format!("must be a list of {rule}, not {}", shown_value(value)));
    };
    let (count, most) = (words.len(), Notify::MAX_KINDS);
    if !(1..=most).contains(&count) {
        return Err(format!("must have 1 to {most} entries, not {count}"));
    }
    let mut kinds = Vec::new();
    for word in words {
        let kind = word.string().and_then(|word| NoticeKind::from_word(&word));
        let kind = kind.ok_or_else(|| format!("each must be {rule}, not {}", shown_value(word)))?;
        if kinds.contains(&kind) {
            return Err(format!("has \"{kind}\" twice"));
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

fn shown_notify(notify: Option<Notify>) -> String {
    let shown = |notify: Notify| {
        let every = length::shown(notify.every_ms());
        format!("{} at most every {every}", words(notify).join(", "))
    };
    notify.map_or_else(|| "none".to_owned(), shown)
}
