//! A policy, ready to decide, with the constant parts of its answers precomputed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::ban::Ban;
use super::frontend_terms::FrontendTerms;
use super::named_limit::NamedLimit;
use super::object_terms::ObjectTerms;
use super::registry_terms::RegistryTerms;
use super::shard::Shard;
use super::timeline::Timeline;
use crate::limit::Carry;

/// A named set of limits, all of which must pass.
#[derive(Clone)]
pub struct Policy {
    name: String,
    rules: Rules,
    frontend: FrontendTerms,
    registry: RegistryTerms,
    timeline: Timeline,
    pub(super) computed: Computed,
}

/// What objects decide by.
#[derive(Clone, Debug, PartialEq)]
struct Rules {
    limits: Vec<NamedLimit>,
    /// Its limits that only report, as a policy of their own: their buckets are separate from those of the others.
    shadow: Option<Arc<Policy>>,
    /// The names of its disabled limits.
    off: Vec<Option<String>>,
    terms: ObjectTerms,
    is_inline: bool,
    /// Whether it is specific to a key that has or had overrides.
    is_of_key: bool,
    standing: Standing,
    shards: u8,
    /// Which shard this is, if one.
    shard: Option<Shard>,
}

/// What is computed from the rest of a policy once needed.
#[derive(Clone, Default)]
pub(super) struct Computed {
    /// Its names for objects and storage.
    #[cfg(feature = "service")]
    pub(super) labels: OnceLock<Labels>,
    /// A hash of its definition.
    #[cfg(feature = "service")]
    pub(super) id: OnceLock<u64>,
    /// [`Policy::shards`].
    pub(super) shards: OnceLock<Box<[Arc<Policy>]>>,
}

/// Without what is computed.
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
        let Self { name, rules, frontend, registry: _, timeline, computed: _ } = self;
        (name, rules, frontend, timeline)
    }

    /// The name: 1 to 64 letters, digits, `_`, `-` or `.`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits that it enforces. Without any it admits everything.
    #[must_use]
    pub fn limits(&self) -> &[NamedLimit] {
        &self.rules.limits
    }

    /// Its limits that decide and count, but never refuse, as a policy of their own, with a name that no other policy can have.
    #[must_use]
    pub const fn shadow(&self) -> Option<&Arc<Self>> {
        self.rules.shadow.as_ref()
    }

    /// The limits of [`Policy::shadow`].
    #[must_use]
    pub fn shadow_limits(&self) -> &[NamedLimit] {
        self.rules.shadow.as_ref().map_or(&[], |shadow| &shadow.rules.limits)
    }

    /// The names of its disabled limits, which keep no state.
    #[must_use]
    pub fn off_limits(&self) -> &[Option<String>] {
        &self.rules.off
    }

    /// Its terms for objects besides its limits.
    #[doc(hidden)]
    #[must_use]
    pub const fn object(&self) -> &ObjectTerms {
        &self.rules.terms
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
        self.rules.is_inline
    }

    /// How many objects share the budget of one key; 1 by default. [`Policy::shards`] are fewer for a key that has fewer tokens.
    #[doc(hidden)]
    #[must_use]
    pub const fn declared_shards(&self) -> u8 {
        self.rules.shards
    }

    /// Which shard of a policy it is, if it is one.
    #[doc(hidden)]
    #[must_use]
    pub const fn shard(&self) -> Option<Shard> {
        self.rules.shard
    }

    /// Whether it limits the key at all: an override may change that.
    #[doc(hidden)]
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.rules.standing
    }

    /// The key's ban at `now` by an override or, until that moment, of its own. A policy that enforces nothing refuses nothing, and neither
    /// does one for an unlimited key.
    #[doc(hidden)]
    #[must_use]
    pub fn ban(&self, own_until: Option<i64>, now: i64) -> Option<Ban> {
        let of_override = match self.rules.standing {
            _ if self.rules.limits.is_empty() => return None,
            Standing::Unlimited => return None,
            Standing::Limited => None,
            Standing::Banned { until } => Some(Ban { until }),
        };
        let own = own_until.filter(|_| self.rules.terms.ban.is_some()).map(|until| Ban { until: Some(until) });
        let bans = [of_override, own].into_iter().flatten().filter(|ban| ban.is_in_force(now));
        bans.reduce(Ban::or_later)
    }

    /// Whether it is specific to a key that has or had overrides.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_of_key(&self) -> bool {
        self.rules.is_of_key
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
        let own = || self.rules.limits.iter().map(|limit| (limit.account(), limit.limit()));
        let goes_on = |carry| carry != Carry::Reset;
        goes_on(self.timeline.carry())
            && self.timeline.earlier_after(since).all(|version| {
                goes_on(version.carry)
                    && version.shards == self.rules.shards
                    && own().eq(version.limits.iter().map(|(name, limit)| (name.as_deref(), limit)))
            })
    }

    /// The name of the one of `limits` that continues the policy's unnamed limit, if any: the first with the same numbers, else the first
    /// of the same kind and period, else the first.
    pub(crate) fn continued_by<'a>(&self, limits: impl Iterator<Item = &'a NamedLimit>) -> Option<String> {
        let old = self.rules.limits.iter().find(|limit| limit.name().is_none())?;
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
        let timeline = before.timeline.succeeded(&before.rules.limits, before.rules.shards, since, carry).bounded();
        let timeline = timeline.with_unnamed(unnamed(&self.rules.limits, before));
        let after = self.with_rules(|rules| {
            let shadow = match (rules.shadow, before.shadow()) {
                (Some(shadow), Some(before)) => Some(Arc::new(Self::clone(&shadow).succeeding(before, since, carry))),
                (shadow, _) => shadow,
            };
            Rules { shadow, ..rules }
        });
        after.with_timeline(timeline)
    }

    /// The policy with that timeline. Its limits in shadow are in force since the same moment.
    #[doc(hidden)]
    #[must_use]
    pub fn with_timeline(self, timeline: Timeline) -> Self {
        let (since, carry) = (timeline.since(), timeline.carry());
        let policy = self.with_rules(|rules| {
            let shadow = rules.shadow.map(|shadow| match shadow.timeline.since() {
                own if own == since => shadow,
                _ => Arc::new(Self::clone(&shadow).with_timeline(Timeline::new(since, carry, Vec::new()))),
            });
            let limits = rules.limits.into_iter().map(|limit| limit.with_unnamed(timeline.unnamed())).collect();
            Rules { limits, shadow, ..rules }
        });
        Self { timeline, ..policy }
    }

    /// The policy with other terms for frontends: definitions lack them.
    #[must_use]
    pub(crate) fn with_frontend(self, frontend: FrontendTerms) -> Self {
        Self { frontend, ..self }
    }

    pub(super) fn with_registry(self, registry: RegistryTerms) -> Self {
        Self { registry, ..self }
    }

    pub(super) fn new(name: &str, limits: Vec<NamedLimit>, terms: ObjectTerms) -> Self {
        let (frontend, registry, standing, timeline, computed) = Default::default();
        let (shadow, off, is_inline, is_of_key, shards, shard) = (None, Vec::new(), false, false, 1, None);
        let rules = Rules { limits, shadow, off, terms, is_inline, is_of_key, standing, shards, shard };
        Self { name: name.to_owned(), rules, frontend, registry, timeline, computed }
    }

    /// The policy with other rules, without what was computed from the earlier ones.
    fn with_rules(self, change: impl FnOnce(Rules) -> Rules) -> Self {
        Self { rules: change(self.rules), computed: Computed::default(), ..self }
    }

    /// The policy as if its numbers came with a request. No object has a policy with this wire name.
    pub(crate) fn into_inline(self) -> Self {
        self.with_rules(|rules| Rules { is_inline: true, ..rules })
    }

    /// The policy for a key with overrides: other limits, with a timeline of their own, or a standing.
    pub(super) fn of_key(
        &self,
        limits: Vec<NamedLimit>,
        timeline: Timeline,
        shadow: Option<Arc<Self>>,
        standing: Standing,
    ) -> Self {
        let Rules { off, shards, terms, .. } = &self.rules;
        let policy = Self::new(&self.name, limits, *terms).with_frontend(self.frontend);
        let (off, shards) = (off.clone(), *shards);
        let policy = policy.with_rules(|rules| Rules { shadow, off, shards, standing, is_of_key: true, ..rules });
        Self { timeline, ..policy }
    }

    pub(crate) fn with_standing(self, standing: Standing, is_of_key: bool) -> Self {
        self.with_rules(|rules| Rules { is_of_key, standing, ..rules })
    }

    pub(super) fn with_shards(self, shards: u8) -> Self {
        self.with_rules(|rules| Rules { shards, ..rules })
    }

    /// The policy with a key's whole budget in one place: a single process needs no shards.
    pub(crate) fn undivided(&self) -> Self {
        self.clone().with_shards(1)
    }

    /// The policy with nothing ahead of storage or remembered beside it: each change is written, and each request decided by its object.
    pub(crate) fn exact(&self) -> Self {
        let written = |limit: &NamedLimit| limit.with_numbers(*limit.limit(), 0);
        let limits = self.limits().iter().map(written).collect();
        let shadow = self.shadow().map(|shadow| Arc::new(shadow.exact()));
        let policy = self.undivided().with_frontend(self.frontend.exact());
        policy.with_rules(|rules| Rules { limits, shadow, ..rules })
    }

    /// One of its shards, with these parts of its limits.
    pub(super) fn with_shard(&self, limits: Vec<NamedLimit>, shard: Shard) -> Self {
        self.clone().with_rules(|rules| Rules { limits, shards: 1, shard: Some(shard), ..rules })
    }

    pub(super) fn with_shadow(self, limits: Vec<NamedLimit>, timeline: Timeline) -> Self {
        if limits.is_empty() {
            return self;
        }
        let limits = limits.into_iter().map(|limit| limit.with_unnamed(timeline.unnamed())).collect();
        let shadow =
            Self::new(&shadow_of(&self.name), limits, ObjectTerms { notify: None, ban: None, ..self.rules.terms });
        let shadow = Some(Arc::new(Self { timeline, ..shadow }));
        self.with_rules(|rules| Rules { shadow, ..rules })
    }

    pub(super) fn with_off(self, off: Vec<Option<String>>) -> Self {
        self.with_rules(|rules| Rules { off, ..rules })
    }

    /// Whether any limit but those in shadow is a rolling window.
    pub(crate) fn has_own_rolling_windows(&self) -> bool {
        self.rules.limits.iter().any(|limit| limit.limit().is_rolling())
    }

    /// Whether any of its limits can refuse: those in shadow and soft ones never do, but a ban does.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        let is_banned = matches!(self.rules.standing, Standing::Banned { .. });
        self.rules.limits.iter().any(|limit| is_banned || !limit.limit().is_soft())
    }

    /// Whether any of its enforced limits is one of slots.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.rules.limits.iter().any(NamedLimit::is_slots)
    }
}

/// Which of `limits`, replacing `before`, is the one that had no name in an earlier version. It stays the same even while removed. If
/// `before` has it without a name, it is chosen among the names that no earlier version has: see [`Policy::continued_by`].
pub(super) fn unnamed(limits: &[NamedLimit], before: &Policy) -> Option<String> {
    if limits.iter().any(|limit| limit.name().is_none()) {
        return None;
    }
    if before.rules.limits.iter().all(|limit| limit.name().is_some()) {
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
