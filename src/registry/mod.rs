//! The registry of policies: those of the deployments, and what operators have changed since.
//!
//! `wrangler.toml` gives the first policies. Every frontend asks the registry every few seconds what has changed, and says
//! which policies its deployment has. So a deployment is a change too, with its moment, and all frontends follow it: also
//! those of the deployment before.
//!
//! * A policy's *version* is the moment since which it is in force. Moments are unique and only grow: a change is at
//!   `max(latest + 1, now)`, also if the clock steps back, and also if the registry's rows are lost.
//! * The policies of a deployment that is *new* (its frontends ask for the first time) count at once, wherever they differ from
//!   those that a deployment has given last. During a roll-out the older deployment still asks; its policies count again only
//!   when no frontend with the newer ones has asked for [`ROLL_OUT_MS`]: then it is a rollback.
//! * Where no frontend asks, the registry itself runs in the newer deployment, and looks at its policies every [`BEAT_MS`].
//! * What an operator has changed or deleted stays so until a deployment gives another text for that policy.
//!
//! A [`Registry`] does not know where rows are kept. The time and the stored rows are arguments; the rows to write are a result,
//! which [`Kept`] writes before the answer is given, all or none.
//!
//! # Rows
//!
//! | row | what |
//! |---|---|
//! | `registry` | the moments, and the numbers of the audit log |
//! | `policy:` and a name | a policy, or one that was deleted |
//! | `deployment:` and an id | the hashes of a deployment's policies, and when it was last heard of |
//! | `override:` and its id, a keyed hash | an override, or one that has ended |
//! | `kept acts` | the numbers of the acts that the audit log keeps, of each actor |
//! | `audit:` and a number | an act. These are not loaded: see [`Registry::audit_rows`] |
//!
//! The row of a policy that cannot be read counts as lost: the next frontend that asks brings its deployment's. An override
//! whose row cannot be read is lost alone.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod audit;
mod change;
mod deployment;
mod entry;
mod kept;
mod log;
mod names;
mod overrides;
mod poll;
mod room;
mod stored_overrides;

use self::deployment::Deployment;
use self::entry::Entry;
use self::log::{KEPT, Log};
use self::names::{DEPLOYMENT, MOMENTS, OVERRIDE, POLICY};
use self::stored_overrides::StoredOverrides;
use crate::json::Json;
use crate::key_hash::KeyHasher;
use crate::protocol::Standing;
use crate::sorted::SortedMap;

pub use self::audit::{MAX_KEY_ACTS, MAX_POLICY_ACTS};
pub use self::change::{MAX_POLICIES, MAX_POLICY_LEN};
pub use self::deployment::{BEAT_MS, ROLL_OUT_MS};
pub use self::kept::{Kept, Storage};
pub use self::log::{AUDIT, JOINED_MS};
pub use self::overrides::{MAX_OVERRIDE_LEN, MAX_OVERRIDES_AT_ONCE};
pub use self::poll::PollError;
pub use self::room::{
    MAX_FORGOTTEN_AT_ONCE, MAX_OVERRIDES, MAX_OVERRIDES_OF_RESTRICTED, MAX_PREFIX_LENS, PREFIX_LENS_FOR_BANS,
    PREFIX_LENS_FOR_UNRESTRICTED, RESERVED_FOR_BANS, RESERVED_FOR_UNRESTRICTED,
};
pub use self::stored_overrides::HEARD_MS;

/// The policies of a service.
#[derive(Debug, Default)]
pub struct Registry {
    hasher: KeyHasher,
    moments: Moments,
    /// Also those that were deleted.
    policies: SortedMap<String, Entry>,
    deployments: Vec<Deployment>,
    overrides: StoredOverrides,
    log: Log,
    unreadable_rows: Vec<String>,
}

/// Rows to write, all or none; `None` deletes one.
pub type Writes = Vec<(String, Option<String>)>;

/// What the registry knows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moments {
    /// When it was empty; 0 as long as it is.
    born_at: i64,
    /// The latest change.
    latest: i64,
    /// The latest deletion of a policy, or end of an override, of which nothing is kept any more.
    forgotten_at: i64,
    /// The number of the next act.
    next_audit: u64,
}

impl Registry {
    /// The registry for which storage has `rows`, without those of the audit log, where keys are hashed so.
    pub fn new<T: AsRef<str>>(hasher: KeyHasher, rows: impl IntoIterator<Item = (T, T)>) -> Self {
        let mut registry = Self { hasher, ..Self::default() };
        let mut is_whole = true;
        for (name, row) in rows {
            let (name, row) = (name.as_ref(), row.as_ref());
            let is_read = if let Some(name) = name.strip_prefix(POLICY) {
                let entry = Entry::read(name, row);
                entry.map(|entry| registry.policies.insert(name.to_owned(), entry)).is_some()
            } else if let Some(id) = name.strip_prefix(DEPLOYMENT) {
                Deployment::read(id, row).map(|deployment| registry.deployments.push(deployment)).is_some()
            } else if name.starts_with(OVERRIDE) {
                registry.overrides.load(name, row)
            } else if name == KEPT {
                Log::read(row).map(|log| registry.log = log).is_some()
            } else if name == MOMENTS {
                Moments::read(row).map(|moments| registry.moments = moments).is_some()
            } else {
                true // of a later version
            };
            if !is_read {
                registry.unreadable_rows.push(name.to_owned());
                is_whole &= name.starts_with(OVERRIDE) || name == KEPT; // which no deployment brings
            }
        }
        if !is_whole {
            registry.deployments.clear(); // so that each counts as new, and brings its policies
        }
        let latest = registry.policies.values().map(|entry| entry.since).max();
        let latest = latest.max(registry.overrides.latest());
        registry.moments.latest = registry.moments.latest.max(latest.unwrap_or(0));
        registry
    }

    /// The latest change; 0 if there was none.
    #[must_use]
    pub const fn as_of(&self) -> i64 {
        self.moments.latest
    }

    /// The names of the rows that it could not read.
    #[must_use]
    pub fn unreadable_rows(&self) -> &[String] {
        &self.unreadable_rows
    }

    /// All policies, by name.
    pub fn policies(&self) -> impl Iterator<Item = Standing> {
        self.policies.values().filter_map(Entry::standing)
    }

    /// The policy of that name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<Standing> {
        self.policies.get(name)?.standing()
    }

    /// The moment of a change at `now`.
    fn next_moment(&self, now: i64) -> i64 {
        self.moments.latest.saturating_add(1).max(now)
    }
}

impl Moments {
    fn read(row: &str) -> Option<Self> {
        let fields = Json::parse(row).ok()?.fields().ok()?;
        let number = |name: &str| fields.get(name)?.integer();
        let moment = |name: &str| i64::try_from(number(name)?).ok();
        Some(Self {
            born_at: moment("born_at")?,
            latest: moment("latest")?,
            forgotten_at: moment("forgotten_at")?,
            next_audit: number("next_audit")?,
        })
    }

    fn row(self) -> (String, Option<String>) {
        let Self { born_at, latest, forgotten_at, next_audit } = self;
        let row = format!(
            r#"{{"born_at":{born_at},"latest":{latest},"forgotten_at":{forgotten_at},"next_audit":{next_audit}}}"#
        );
        (MOMENTS.to_owned(), Some(row))
    }
}
