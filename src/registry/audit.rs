//! The audit log: acts, numbered. Changes of policies have room of their own, so that acts on keys, which come by the thousand, cannot
//! push them out. In both, when there is no room, the actor with the most lines loses its oldest one: so what others have done stays, even
//! if one token acts without end. Resets of one key that an actor repeats share a line, as do other acts on it that change it to the same:
//! a shared line hides nothing.

use std::collections::VecDeque;

use serde_json::value::RawValue;

use super::entry::raw;
use super::{Registry, Writes};
use crate::json::Json;
use crate::limit::Carry;
use crate::protocol::{AuditLine, KeyAct};
use crate::sorted::{SortedMap, sort_by};

/// Maximum changes of policies that are kept. Each has the policy before and after, at most 8 KB; usually 500 bytes.
pub const MAX_POLICY_ACTS: usize = 1_000;

/// Maximum acts on keys and overrides that are kept: usually 300 bytes each.
pub const MAX_KEY_ACTS: usize = 1_000;

/// How long after the first of repeated acts others join its line: a line stays about one occasion.
pub const JOINED_MS: i64 = 3_600_000;

/// What the names of its rows begin with. They are before all others, so that a list of the others can begin behind them.
pub const AUDIT: &str = "audit:";

/// The row that lists which acts are kept.
pub(super) const KEPT: &str = "kept acts";

/// Which acts are kept, and what the latest ones were.
#[derive(Debug, Default)]
pub(super) struct Log {
    policies: Kept,
    keys: Kept,
    /// The latest act on a key or an override of each actor. In memory alone: after a restart a new line begins.
    latest: SortedMap<String, Latest>,
}

/// The numbers of the acts that are kept, which grow, of each actor.
#[derive(Debug, Default)]
struct Kept(SortedMap<String, VecDeque<u64>>);

#[derive(Debug)]
struct Latest {
    number: u64,
    act: String,
    policy: String,
    key: Option<String>,
    is_replayed: bool,
    first_at: i64,
    count: u64,
    before: Option<String>,
    after: Option<String>,
}

/// What was done to a policy.
pub(super) struct Act<'a> {
    /// Of what: `policy` or `override`.
    pub(super) of: &'static str,
    pub(super) by: &'a str,
    pub(super) policy: &'a str,
    /// The id of the override, if it is of one.
    pub(super) key: Option<&'a str>,
    pub(super) before: Option<&'a str>,
    pub(super) after: Option<&'a str>,
    pub(super) carry: Option<Carry>,
}

impl Registry {
    /// The names of the rows of the latest acts, the latest first: at most `limit`, with numbers below `before`; only those `on_keys`,
    /// or all. A row is the JSON of an [`AuditLine`].
    #[must_use]
    pub fn audit_rows(&self, before: Option<u64>, limit: usize, on_keys: bool) -> Vec<String> {
        let policies = self.log.policies.numbers().filter(|_| !on_keys);
        let mut numbers: Vec<_> = policies.chain(self.log.keys.numbers()).collect();
        numbers.retain(|&number| before.is_none_or(|before| number < before));
        sort_by(&mut numbers, |a, b| b.cmp(a));
        numbers.into_iter().take(limit).map(row_name).collect()
    }

    /// Adds a line about an act at `at`.
    pub(super) fn record(&mut self, act: &Act<'_>, at: i64, writes: &mut Writes) {
        let what = match (act.before, act.after) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "replaced",
        };
        let carry = act.carry.filter(|_| act.before.is_some() && act.after.is_some()).map(Carry::word);
        let line = AuditLine {
            number: 0,
            at,
            by: act.by,
            act: &format!("{}.{what}", act.of),
            policy: act.policy,
            key: act.key,
            carry,
            before: act.before.and_then(raw),
            after: act.after.and_then(raw),
            replayed: false,
            count: None,
            first_at: None,
        };
        self.append(&line, writes);
    }

    /// Records at `now` what an operator has done to a key.
    pub fn record_key_act(&mut self, act: &KeyAct, now: i64) -> Writes {
        let mut writes = Writes::new();
        let line = AuditLine {
            number: 0,
            at: now,
            by: &act.by,
            act: &act.act,
            policy: &act.policy,
            key: Some(&act.key),
            carry: None,
            before: act.before.as_deref().and_then(raw),
            after: act.after.as_deref().and_then(raw),
            replayed: act.is_replayed,
            count: None,
            first_at: None,
        };
        self.append(&line, &mut writes);
        writes.push(self.moments.row());
        writes
    }

    /// Writes the line under the next number, joined to one that it repeats; the actor with the most lines makes room.
    fn append(&mut self, line: &AuditLine<'_>, writes: &mut Writes) {
        let number = self.moments.next_audit;
        self.moments.next_audit = number.saturating_add(1);
        let actor = actor(line.by);
        let is_on_policy = line.act.starts_with("policy.");
        let repeated = self.log.latest.remove(actor).filter(|latest| !is_on_policy && latest.is_repeated_by(line));
        // Its line may have made room for others'.
        let is_kept = |latest: &Latest| self.log.keys.numbers().any(|number| number == latest.number);
        let repeated = repeated.filter(is_kept);
        let (kept, max) =
            if is_on_policy { (&mut self.log.policies, MAX_POLICY_ACTS) } else { (&mut self.log.keys, MAX_KEY_ACTS) };
        let mut forgotten = None;
        if let Some(latest) = &repeated {
            kept.remove(actor, latest.number);
            forgotten = Some(latest.number);
        } else if kept.numbers().count() >= max {
            forgotten = kept.forget_one();
        }
        kept.0.change(actor.to_owned(), |numbers| numbers.push_back(number));
        writes.extend(forgotten.map(|number| (row_name(number), None)));
        let owned = |value: Option<&RawValue>| value.map(|value| value.get().to_owned());
        let latest = Latest {
            number,
            act: line.act.to_owned(),
            policy: line.policy.to_owned(),
            key: line.key.map(str::to_owned),
            is_replayed: line.replayed,
            first_at: repeated.as_ref().map_or(line.at, |first| first.first_at),
            count: repeated.as_ref().map_or(1, |first| first.count.saturating_add(1)),
            before: repeated.map_or_else(|| owned(line.before), |first| first.before),
            after: owned(line.after),
        };
        let is_joined = latest.count > 1;
        let line = AuditLine {
            number,
            before: latest.before.as_deref().and_then(raw),
            count: is_joined.then_some(latest.count),
            first_at: is_joined.then_some(latest.first_at),
            ..line.clone()
        };
        writes.push((row_name(number), serde_json::to_string(&line).ok()));
        if !is_on_policy {
            self.log.latest.insert(actor.to_owned(), latest);
        }
        writes.retain(|(name, _)| name != KEPT);
        writes.push(self.log.row());
    }
}

/// Of a key: however often it is repeated, the budget is full afterwards.
const RESET: &str = "key.reset";

impl Latest {
    fn is_repeated_by(&self, line: &AuditLine<'_>) -> bool {
        let same = (&*self.act, &*self.policy, self.key.as_deref(), self.is_replayed);
        same == (line.act, line.policy, line.key, line.replayed)
            && line.key.is_some()
            && (line.act == RESET || self.after.as_deref() == line.after.map(RawValue::get))
            && (0..JOINED_MS).contains(&line.at.saturating_sub(self.first_at))
    }
}

impl Log {
    /// Reads [`KEPT`]; `None` if it is malformed.
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

    fn row(&self) -> (String, Option<String>) {
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
    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|(_, numbers)| numbers.iter().copied())
    }

    fn remove(&mut self, actor: &str, number: u64) {
        self.0.change(actor.to_owned(), |numbers: &mut VecDeque<u64>| numbers.retain(|&other| other != number));
        self.0.retain(|_, numbers| !numbers.is_empty());
    }

    /// Forgets the oldest act of the actor with the most; of several such actors, of the one that acted first.
    fn forget_one(&mut self) -> Option<u64> {
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

/// Whose share of the log an act takes: all deployments have one.
fn actor(by: &str) -> &str {
    if by.starts_with("deployment ") { "deployment" } else { by }
}

fn row_name(number: u64) -> String {
    format!("{AUDIT}{number:016}")
}
