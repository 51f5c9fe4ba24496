//! The acts that the audit log keeps, and the latest ones.

use std::collections::VecDeque;

use serde_json::value::RawValue;

use crate::json::Json;
use crate::limit::Carry;
use crate::protocol::AuditLine;
use crate::sorted::SortedMap;

/// How long after the first of repeated acts others join its line: a line stays about one occasion.
pub const JOINED_MS: i64 = 3_600_000;

/// Prefix of the log's row names. They sort before all others, so that a list of the others can start behind them.
pub const AUDIT: &str = "audit:";

/// The row with the numbers of the kept acts.
pub(super) const KEPT: &str = "kept acts";

/// The kept acts, and the latest ones.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) policies: Kept,
    pub(super) keys: Kept,
    /// Each actor's latest act on a key or an override. In memory only: after a restart a new line starts.
    pub(super) latest: SortedMap<String, Latest>,
}

/// The increasing numbers of the kept acts, by actor.
#[derive(Debug, Default)]
pub(super) struct Kept(pub(super) SortedMap<String, VecDeque<u64>>);

#[derive(Debug)]
pub(super) struct Latest {
    pub(super) number: u64,
    pub(super) act: String,
    pub(super) policy: String,
    pub(super) key: Option<String>,
    pub(super) is_replayed: bool,
    pub(super) first_at: i64,
    pub(super) count: u64,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

/// An act on a policy or an override.
pub(super) struct Act<'a> {
    /// Its object: `policy` or `override`.
    pub(super) of: &'static str,
    pub(super) by: &'a str,
    pub(super) policy: &'a str,
    /// The override's id, if it is about one.
    pub(super) key: Option<&'a str>,
    pub(super) before: Option<&'a str>,
    pub(super) after: Option<&'a str>,
    pub(super) carry: Option<Carry>,
}

impl Latest {
    pub(super) fn is_repeated_by(&self, line: &AuditLine<'_>) -> bool {
        let same = (&*self.act, &*self.policy, self.key.as_deref(), self.is_replayed);
        same == (line.act, line.policy, line.key, line.replayed)
            && line.key.is_some()
            && line.carry.is_none()
            && (line.act == RESET || self.after.as_deref() == line.after.map(RawValue::get))
            && (0..JOINED_MS).contains(&line.at.saturating_sub(self.first_at))
    }
}

impl Log {
    /// Parses [`KEPT`]; `None` if it is malformed.
    pub(super) fn read(row: &str) -> Option<Self> {
        let fields = Json::parse(row).ok()?.fields().ok()?;
        let kept = |name: &str| {
            let actors = fields.get(name)?.fields().ok()?;
            let actors = actors.iter().map(|(actor, numbers)| {
                let numbers = numbers.array()?.into_iter().map(Json::integer).collect::<Option<_>>()?;
                Some((actor.to_string(), numbers))
            });
            Some(Kept(actors.collect::<Option<Vec<_>>>()?.into_iter().collect()))
        };
        Some(Self { policies: kept("policies")?, keys: kept("keys")?, latest: SortedMap::new() })
    }

    pub(super) fn row(&self) -> (String, Option<String>) {
        let kept = |kept: &Kept| {
            let actors = kept.0.iter().map(|(actor, numbers)| {
                let actor = serde_json::to_string(actor).unwrap_or_default(); // a text is always JSON
                let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
                format!("{actor}:[{}]", numbers.join(","))
            });
            actors.collect::<Vec<_>>().join(",")
        };
        let row = format!(r#"{{"policies":{{{}}},"keys":{{{}}}}}"#, kept(&self.policies), kept(&self.keys));
        (KEPT.to_owned(), Some(row))
    }
}

impl Kept {
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|(_, numbers)| numbers.iter().copied())
    }

    pub(super) fn remove(&mut self, actor: &str, number: u64) {
        self.0.change(actor.to_owned(), |numbers: &mut VecDeque<u64>| numbers.retain(|&other| other != number));
        self.0.retain(|_, numbers| !numbers.is_empty());
    }

    /// Forgets the oldest act of the actor with the most; on a tie, of the one that acted first.
    pub(super) fn forget_one(&mut self) -> Option<u64> {
        let most = self.0.iter().map(|(_, numbers)| numbers.len()).max()?;
        let oldest = self.0.iter().filter(|(_, numbers)| numbers.len() == most).filter_map(|(_, all)| all.front());
        let oldest = oldest.min().copied()?;
        self.0.retain(|_, numbers| {
            numbers.retain(|&number| number != oldest);
            !numbers.is_empty()
        });
        Some(oldest)
    }
}

/// Who ended an override whose `until` has passed. Like all such names it has a space, which a token's has not.
pub(super) const ITS_UNTIL: &str = "its until";

/// Precedes the id of a deployment that has changed a policy.
pub(super) const DEPLOYMENT: &str = "deployment ";

/// The actor whose share an act counts toward: all deployments have one.
pub(super) fn actor(by: &str) -> &str {
    if by.starts_with(DEPLOYMENT) { DEPLOYMENT } else { by }
}

pub(super) fn row_name(number: u64) -> String {
    format!("{AUDIT}{number:016}")
}

/// A reset: however often it is repeated, the budget is full afterwards.
pub(super) const RESET: &str = "key.reset";
