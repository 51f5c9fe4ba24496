//! The registry of policies: those of the deployments, and operators' changes since.
//!
//! `wrangler.toml` has the first policies. Every frontend polls the registry every few seconds for changes, and sends the id of its
//! deployment's policies. So a deployment is a change too, with its moment, and all frontends follow it, including those of the previous
//! deployment.
//!
//! * A policy's *version* is the moment it came into force. Moments are unique and only grow: a change is at `max(latest + 1, now)`, even
//!   if the clock steps back, and even if the registry's rows are lost.
//! * The policies of a *new* deployment (its frontends poll for the first time) take effect at once, wherever they differ from the last
//!   that a deployment set. During a roll-out the older deployment still polls; its policies take effect again only when no frontend with
//!   the newer ones has polled for [`ROLL_OUT_MS`]: then it is a rollback.
//! * If no frontend polls, the registry itself runs in the newer deployment, and checks its policies every [`BEAT_MS`].
//! * A policy changed or deleted by an operator stays so until a deployment brings another text for it.
//!
//! A [`Registry`] does not depend on where rows are kept. The time and the stored rows are arguments; the rows to write are a result, which
//! [`Kept`] writes before the reply, all or none.
//!
//! # Rows
//!
//! | row | what |
//! |---|---|
//! | `registry` | the moments, and the numbers of the audit log |
//! | `policy:` and a name | a policy, possibly deleted |
//! | `deployment:` and an id | the hashes of a deployment's policies, and when it last polled |
//! | `override:` and its id, a keyed hash | an override, possibly ended |
//! | `kept acts` | the numbers of the acts kept in the audit log, by actor |
//! | `audit:` and a number | an act. These are not loaded: see [`Registry::audit_rows`] |
//!
//! An unreadable policy row counts as lost: the next frontend to poll brings its deployment's policy. An unreadable override row loses only
//! that override.
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
    /// Including deleted ones.
    policies: SortedMap<String, Entry>,
    deployments: Vec<Deployment>,
    overrides: StoredOverrides,
    log: Log,
    unreadable_rows: Vec<String>,
}

/// Rows to write, all or none; `None` deletes one.
pub type Writes = Vec<(String, Option<String>)>;

/// The registry's own state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moments {
    /// When it was empty; 0 while it still is.
    born_at: i64,
    /// The latest change.
    latest: i64,
    /// The latest forgotten deletion of a policy or end of an override.
    forgotten_at: i64,
    /// The number of the next act.
    next_audit: u64,
}

impl Registry {
    /// The registry with these stored `rows`, without those of the audit log, and this hasher for keys.
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
                is_whole &= name.starts_with(OVERRIDE) || name == KEPT; // no deployment brings these
            }
        }
        if !is_whole {
            registry.deployments.clear(); // each counts as new, and brings its policies
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

    /// The names of unreadable rows.
    #[must_use]
    pub fn unreadable_rows(&self) -> &[String] {
        &self.unreadable_rows
    }

    /// All policies, by name.
    pub fn policies(&self) -> impl Iterator<Item = Standing> {
        self.policies.values().filter_map(Entry::standing)
    }

    /// The policy with that name.
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
