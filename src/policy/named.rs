//! A policy, ready to decide, with the constant parts of its answers precomputed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::frontend_terms::FrontendTerms;
use super::named_limit::NamedLimit;
use super::object_terms::ObjectTerms;
use super::registry_terms::RegistryTerms;
use super::shard::Shard;
use super::timeline::Timeline;
use crate::limit::{Carry, Decision, Verb};

/// A named set of limits, all of which must pass.
#[derive(Clone)]
pub struct Policy {
    name: String,
    limits: Vec<NamedLimit>,
    /// Its limits that only report, as a policy of their own: their buckets are separate from those of the others.
    shadow: Option<Arc<Self>>,
    /// The names of its disabled limits.
    off: Vec<Option<String>>,
    object: ObjectTerms,
    frontend: FrontendTerms,
    registry: RegistryTerms,
    is_inline: bool,
    /// Whether it is specific to a key that has or had overrides.
    is_of_key: bool,
    standing: Standing,
    timeline: Timeline,
    /// Its names for objects and storage, once needed.
    #[cfg(feature = "service")]
    pub(super) labels: OnceLock<Labels>,
    /// A hash of its definition, once needed.
    #[cfg(feature = "service")]
    pub(super) id: OnceLock<u64>,
    shards: u8,
    /// Which shard this is, if one.
    shard: Option<Shard>,
    shard_policies: OnceLock<Box<[Arc<Self>]>>,
}

/// Without what is computed from the rest once needed.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Policy").field(&self.parts()).field(&self.registry).finish()
    }
}

/// Two policies are equal if objects and clients cannot distinguish them.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Policy {}

/// A policy's names for objects and storage.
#[cfg(feature = "service")]
#[derive(Clone, Debug)]
pub(super) struct Labels {
    /// The numbers as stored beside a bucket, and their hash.
    pub(super) numbers: String,
    pub(super) version: u64,
    pub(super) wire_name: String,
}

/// Whether the policy's limits apply to a key at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// They do.
    #[default]
    Limited,
    /// Nothing is refused. The buckets count what there is to take.
    Unlimited,
    /// Nothing may be taken. The buckets still refill.
    Banned {
        /// When the ban ends, in Unix milliseconds; `None` if it is indefinite.
        until: Option<i64>,
    },
}

impl Policy {
    /// All that objects and clients can see.
    fn parts(&self) -> impl PartialEq + fmt::Debug {
        let Self {
            name,
            limits,
            shadow,
            off,
            object,
            frontend,
            registry: _,
            is_inline,
            is_of_key,
            standing,
            timeline,
            #[cfg(feature = "service")]
                labels: _,
            #[cfg(feature = "service")]
                id: _,
            shards,
            shard,
            shard_policies: _,
        } = self;
        let terms = (object, frontend, is_inline, is_of_key, standing, timeline);
        (name, limits, shadow, off, terms, shards, shard)
    }

    /// The name: 1 to 64 letters, digits, `_`, `-` or `.`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits that it enforces. Without any it admits everything.
    #[must_use]
    pub fn limits(&self) -> &[NamedLimit] {
        &self.limits
    }

    /// Its limits that decide and count, but never refuse, as a policy of their own, with a name that no other policy can have.
    #[must_use]
    pub const fn shadow(&self) -> Option<&Arc<Self>> {
        self.shadow.as_ref()
    }

    /// The limits of [`Policy::shadow`].
    #[must_use]
    pub fn shadow_limits(&self) -> &[NamedLimit] {
        self.shadow.as_ref().map_or(&[], |shadow| &shadow.limits)
    }

    /// The names of its disabled limits, which keep no state.
    #[must_use]
    pub fn off_limits(&self) -> &[Option<String>] {
        &self.off
    }

    /// Its terms for objects besides its limits.
    #[doc(hidden)]
    #[must_use]
    pub const fn object(&self) -> &ObjectTerms {
        &self.object
    }

    /// Its terms for frontends.
    #[doc(hidden)]
    #[must_use]
    pub const fn frontend(&self) -> &FrontendTerms {
        &self.frontend
    }

    /// Its terms for the registry.
    #[doc(hidden)]
    #[must_use]
    pub const fn registry(&self) -> &RegistryTerms {
        &self.registry
    }

    /// Whether its numbers came with a request. Then the next may bring others, and go back to these.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.is_inline
    }

    /// How many objects share the budget of one key; 1 by default. [`Policy::shards`] are fewer for a key that has fewer tokens.
    #[doc(hidden)]
    #[must_use]
    pub const fn declared_shards(&self) -> u8 {
        self.shards
    }

    /// Which shard of a policy it is, if it is one.
    #[doc(hidden)]
    #[must_use]
    pub const fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// Whether it limits the key at all: an override may change that.
    #[doc(hidden)]
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// The decision for a verb that takes, if the key is banned at `now`. A policy that enforces nothing refuses nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn ban(&self, verb: Verb, now: i64) -> Option<Decision> {
        if !verb.takes() || self.limits.is_empty() {
            return None;
        }
        match self.standing {
            Standing::Banned { until: None } => Some(Decision::Never { max: 0 }),
            Standing::Banned { until: Some(until) } if now < until => Some(Decision::Wait { retry_at: until }),
            _ => None,
        }
    }

    /// Whether it is specific to a key that has or had overrides.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_of_key(&self) -> bool {
        self.is_of_key
    }

    /// When it came into force, and its earlier versions.
    #[doc(hidden)]
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Whether all versions after the one of that moment have the same numbers, and none resets buckets.
    #[doc(hidden)]
    #[must_use]
    pub fn is_unchanged_since(&self, since: i64) -> bool {
        let own = || self.limits.iter().map(|limit| (limit.account(), limit.limit()));
        let goes_on = |carry| carry != Carry::Reset;
        goes_on(self.timeline.carry())
            && self.timeline.earlier_after(since).all(|version| {
                goes_on(version.carry)
                    && version.shards == self.shards
                    && own().eq(version.limits.iter().map(|(name, limit)| (name.as_deref(), limit)))
            })
    }

    /// The name of the one of `limits` that continues the policy's unnamed limit, if any: the first with the same numbers, else the first
    /// of the same kind and period, else the first.
    pub(crate) fn continued_by<'a>(&self, limits: impl Iterator<Item = &'a NamedLimit>) -> Option<String> {
        let old = self.limits.iter().find(|limit| limit.name().is_none())?;
        let limits = limits.filter(|limit| limit.is_slots() == old.is_slots());
        let difference = |limit: &&NamedLimit| {
            let (new, old) = (limit.limit().config(), old.limit().config());
            (new != old, (new.kind, new.period_ms, new.calendar) != (old.kind, old.period_ms, old.calendar))
        };
        limits.min_by_key(difference)?.name().map(str::to_owned)
    }

    /// Whether a version before it had the limit.
    pub(super) fn had_limit(&self, limit: &NamedLimit) -> bool {
        let mut earlier = self.timeline.earlier().iter().flat_map(|version| &version.limits);
        earlier.any(|(account, _)| account.as_deref() == limit.account())
    }

    /// The policy, in force since that moment: the first version in a registry.
    #[doc(hidden)]
    #[must_use]
    pub fn in_force_since(self, since: i64) -> Self {
        self.with_timeline(Timeline::new(since, Carry::default(), Vec::new()))
    }

    /// The policy, which replaces `before` at the moment `since`. Buckets are carried over by `carry`.
    #[doc(hidden)]
    #[must_use]
    pub fn succeeding(self, before: &Self, since: i64, carry: Carry) -> Self {
        let timeline = before.timeline.succeeded(&before.limits, before.shards, since, carry).bounded();
        let timeline = timeline.with_unnamed(unnamed(&self.limits, before));
        let shadow = match (self.shadow.as_deref(), before.shadow.as_deref()) {
            (Some(shadow), Some(before)) => Some(Arc::new(shadow.clone().succeeding(before, since, carry))),
            _ => self.shadow.clone(),
        };
        Self { shadow, ..self }.with_timeline(timeline)
    }

    /// The policy with that timeline. Its limits in shadow are in force since the same moment.
    #[doc(hidden)]
    #[must_use]
    pub fn with_timeline(self, timeline: Timeline) -> Self {
        let (since, carry) = (timeline.since(), timeline.carry());
        let shadow = self.shadow.map(|shadow| match shadow.timeline.since() {
            own if own == since => shadow,
            _ => Arc::new(Self::clone(&shadow).with_timeline(Timeline::new(since, carry, Vec::new()))),
        });
        let limits = self.limits.into_iter().map(|limit| limit.with_unnamed(timeline.unnamed())).collect();
        Self { limits, shadow, timeline, ..self }.changed()
    }

    /// The policy with other terms for frontends: definitions lack them.
    #[must_use]
    pub(crate) fn with_frontend(self, frontend: FrontendTerms) -> Self {
        Self { frontend, ..self }
    }

    pub(super) fn with_registry(self, registry: RegistryTerms) -> Self {
        Self { registry, ..self }
    }

    pub(super) fn new(name: &str, limits: Vec<NamedLimit>, object: ObjectTerms) -> Self {
        let (frontend, registry, standing, timeline) = Default::default();
        Self {
            name: name.to_owned(),
            limits,
            shadow: None,
            off: Vec::new(),
            object,
            frontend,
            registry,
            is_inline: false,
            is_of_key: false,
            standing,
            timeline,
            #[cfg(feature = "service")]
            labels: OnceLock::new(),
            #[cfg(feature = "service")]
            id: OnceLock::new(),
            shards: 1,
            shard: None,
            shard_policies: OnceLock::new(),
        }
    }

    /// The policy as if its numbers came with a request. No object has a policy with this wire name.
    pub(crate) fn into_inline(self) -> Self {
        Self { is_inline: true, ..self }.changed()
    }

    /// The policy for a key with overrides: other limits, with a timeline of their own, or a standing.
    pub(super) fn of_key(
        &self,
        limits: Vec<NamedLimit>,
        timeline: Timeline,
        shadow: Option<Arc<Self>>,
        standing: Standing,
    ) -> Self {
        let policy = Self::new(&self.name, limits, self.object).with_frontend(self.frontend);
        Self { shadow, off: self.off.clone(), shards: self.shards, timeline, standing, is_of_key: true, ..policy }
    }

    pub(crate) fn with_standing(self, standing: Standing, is_of_key: bool) -> Self {
        Self { is_of_key, standing, ..self }.changed()
    }

    pub(super) fn with_shards(self, shards: u8) -> Self {
        Self { shards, ..self }.changed()
    }

    /// The policy with a key's whole budget in one place: a single process needs no shards.
    pub(crate) fn undivided(&self) -> Self {
        self.clone().with_shards(1)
    }

    /// The policy with nothing ahead of storage or remembered beside it: each change is written, and each request decided by its object.
    pub(crate) fn exact(&self) -> Self {
        let written = |limit: &NamedLimit| limit.with_numbers(*limit.limit(), 0);
        let shadow = self.shadow.as_deref().map(|shadow| Arc::new(shadow.exact()));
        let (limits, frontend) = (self.limits.iter().map(written).collect(), self.frontend.exact());
        Self { limits, shadow, frontend, ..self.undivided() }.changed()
    }

    /// One of its shards, with these parts of its limits.
    pub(super) fn with_shard(&self, limits: Vec<NamedLimit>, shard: Shard) -> Self {
        Self { limits, shards: 1, shard: Some(shard), ..self.clone() }.changed()
    }

    /// [`Policy::shards`], cached.
    pub(super) fn shard_policies(&self, make: impl FnOnce() -> Vec<Arc<Self>>) -> &[Arc<Self>] {
        self.shard_policies.get_or_init(|| make().into())
    }

    /// Drops everything computed from earlier values.
    fn changed(self) -> Self {
        Self {
            #[cfg(feature = "service")]
            labels: OnceLock::new(),
            #[cfg(feature = "service")]
            id: OnceLock::new(),
            shard_policies: OnceLock::new(),
            ..self
        }
    }

    pub(super) fn with_shadow(self, limits: Vec<NamedLimit>, timeline: Timeline) -> Self {
        if limits.is_empty() {
            return self;
        }
        let limits = limits.into_iter().map(|limit| limit.with_unnamed(timeline.unnamed())).collect();
        let shadow = Self::new(&shadow_of(&self.name), limits, ObjectTerms { notify: None, ..self.object });
        Self { shadow: Some(Arc::new(Self { timeline, ..shadow })), ..self }
    }

    pub(super) fn with_off(self, off: Vec<Option<String>>) -> Self {
        Self { off, ..self }
    }

    /// Whether any limit but those in shadow is a rolling window.
    pub(crate) fn has_own_rolling_windows(&self) -> bool {
        self.limits.iter().any(|limit| limit.limit().is_rolling())
    }

    /// Whether any limit, also in shadow, is a rolling window.
    #[doc(hidden)]
    #[must_use]
    pub fn has_rolling_windows(&self) -> bool {
        self.limits.iter().chain(self.shadow_limits()).any(|limit| limit.limit().is_rolling())
    }

    /// Whether any of its enforced limits is one of slots.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.limits.iter().any(NamedLimit::is_slots)
    }

    /// Maximum open reservations of a key: see `ledger/quota.rs`.
    #[doc(hidden)]
    pub const MAX_RESERVATIONS: usize = 1_000;

    /// Maximum idempotency keys remembered for a key: see `ledger/replays.rs`.
    #[doc(hidden)]
    pub const MAX_IDEMPOTENCY_KEYS: usize = 16_384;
}

/// Which of `limits`, replacing `before`, is the one that had no name in an earlier version. It stays the same even while removed. If
/// `before` has it without a name, it is chosen among the names that no earlier version has: see [`Policy::continued_by`].
pub(super) fn unnamed(limits: &[NamedLimit], before: &Policy) -> Option<String> {
    if limits.iter().any(|limit| limit.name().is_none()) {
        return None;
    }
    if before.limits.iter().all(|limit| limit.name().is_some()) {
        return before.timeline.unnamed().map(str::to_owned);
    }
    before.continued_by(limits.iter().filter(|limit| !before.had_limit(limit)))
}

/// The suffix of a [`Policy::shadow`]'s name: no policy can have such a name.
const SHADOW: &str = "~shadow";

/// The policy's name without the suffix of a [`Policy::shadow`].
#[must_use]
pub fn without_shadow(policy: &str) -> &str {
    policy.strip_suffix(SHADOW).unwrap_or(policy)
}

/// The name of the policy's [`Policy::shadow`].
#[must_use]
pub fn shadow_of(policy: &str) -> String {
    format!("{policy}{SHADOW}")
}
