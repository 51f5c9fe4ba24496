//! A request with known policies and valid costs.

use std::sync::Arc;

use super::cost::Costs;
#[cfg(any(feature = "answers", feature = "tower"))]
use super::cost::{Cost, SlotCost};
use super::endpoint::Endpoint;
use super::problem::Problem;
#[cfg(any(feature = "answers", feature = "tower"))]
use crate::limit::Verb;
#[cfg(doc)]
use crate::limit::jitter;
#[cfg(doc)]
use crate::policy::FrontendTerms;
use crate::policy::{Ban, Cause, NamedLimit, Policy};
use crate::protocol::{Action, LeaseRequest, LimitAnswer};

/// A request with known policies and valid costs that its caller may make.
#[derive(Clone, Debug)]
pub struct ResolvedRequest {
    pub(super) endpoint: Endpoint,
    pub(super) action: Action,
    /// One, or those of a batch.
    pub(super) items: Vec<ResolvedItem>,
    /// The lease request for its only policy.
    pub(super) lease: Option<LeaseRequest>,
    /// Random bits for the [`jitter`] of refusals; 0 for none.
    pub(super) random: u64,
    /// Whether its caller has a grant.
    pub(super) by_grant: bool,
    /// Why its policy cannot do it. It may have been done before the policy had shards, or when it had more tokens: see
    /// [`ResolvedRequest::recalled`].
    pub(super) impossible: Option<Problem>,
}

/// One budget of the request.
#[derive(Clone, Debug)]
pub struct ResolvedItem {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The [bytes](crate::access::Key::to_bytes) of the key. No two items have the same policy and the same bytes.
    pub key: Vec<u8>,
    /// The cost of each of its limits; `None` to settle a reservation at the reserved cost.
    pub costs: Option<Costs>,
    /// The largest cost in the request.
    pub(super) cost: Option<u64>,
    pub(super) wants_snapshot: bool,
}

impl ResolvedRequest {
    /// A request for `cost` tokens of `policy`.
    ///
    /// # Errors
    /// If the policy has slots, for which there are no reservations here, and as [`Cost::of`].
    #[cfg(any(feature = "answers", feature = "tower"))]
    pub(crate) fn consume(policy: &Arc<Policy>, cost: &Cost<'_>) -> Result<Self, Problem> {
        let (endpoint, action) = (Endpoint::Consume, Action::Take(Verb::Consume));
        if policy.has_slots() {
            return Err(Problem::WrongServer { detail: HAS_SLOTS });
        }
        let costs = cost.of(policy, Verb::Consume, SlotCost::Untouched)?;
        let item = ResolvedItem {
            policy: Arc::clone(policy),
            key: Vec::new(),
            costs: Some(costs),
            cost: Some(cost.largest()),
            wants_snapshot: false,
        };
        Ok(Self { endpoint, action, items: vec![item], lease: None, by_grant: false, random: 0, impossible: None })
    }

    /// Adds random bits, if refusals are to be spread: see [`FrontendTerms::jitter_ms`]. Without bits, they are not.
    #[must_use]
    pub fn spread(self, random: impl FnOnce() -> Option<u64>) -> Self {
        let is_spread = self.items.iter().any(|item| item.policy.frontend().jitter_ms > 0);
        let random = if is_spread { random().unwrap_or(0) } else { 0 };
        Self { random, ..self }
    }

    /// Whether an item brings its own numbers: then no object has all policies.
    #[must_use]
    pub fn has_inline(&self) -> bool {
        self.items.iter().any(|item| item.policy.is_inline())
    }

    /// Whether its caller leases tokens: then the object must be called.
    #[must_use]
    pub const fn is_about_leases(&self) -> bool {
        self.lease.is_some()
    }

    /// The lease request to the object. None for a policy with limits in shadow: each request must be tried.
    #[must_use]
    pub fn lease(&self) -> Option<&LeaseRequest> {
        self.lease.as_ref().filter(|_| self.items.iter().all(|item| item.policy.shadow_limits().is_empty()))
    }

    /// Whether it is a batch over several budgets, all or none.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        self.endpoint == Endpoint::Batch
    }

    /// The action.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// The requested budgets: at least one.
    #[must_use]
    pub fn items(&self) -> &[ResolvedItem] {
        &self.items
    }
}

/// The detail of the answer under a policy that nothing here can decide.
#[cfg(any(feature = "answers", feature = "tower"))]
const HAS_SLOTS: &str = "the server's policy has slots, which only reservations of the service take; nothing was taken";

/// A limit, its requested cost, and its answer.
pub(super) type Answered<'a> = (&'a NamedLimit, u64, LimitAnswer);

/// The key's ban from the policy whose limits have answered: each of them says it.
pub(super) fn ban_in(answers: &[Answered<'_>]) -> Option<Ban> {
    answers.first().and_then(|(.., answer)| answer.ban)
}

impl ResolvedItem {
    /// Whether its policy can refuse it.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.policy.is_enforced()
    }

    /// The cost of each of its limits; empty to settle a reservation at the reserved cost.
    #[must_use]
    pub fn enforced_costs(&self) -> &[u64] {
        self.costs.as_ref().map_or(&[], |costs| &costs.enforced)
    }

    /// Whether the answer includes the exact state of the buckets.
    #[must_use]
    pub const fn wants_snapshot(&self) -> bool {
        self.wants_snapshot
    }

    pub(super) fn answers(&self, answers: &[LimitAnswer]) -> Result<Vec<Answered<'_>>, Problem> {
        let limits = self.policy.limits();
        if answers.len() != limits.len() {
            return Err(Problem::Unavailable { cause: Cause::Failed }); // from an object of another version
        }
        let costs = self.enforced_costs();
        let all = limits.iter().zip(answers).enumerate();
        Ok(all.map(|(index, (limit, answer))| (limit, cost_of(costs, index, answer), *answer)).collect())
    }

    /// The answers of the limits in shadow that were tried. `answers` has an entry for each, and so has `reserved`, if a reservation could
    /// not be settled at its own costs.
    pub(super) fn tried(&self, answers: &[Option<LimitAnswer>], reserved: &[u64]) -> Vec<Answered<'_>> {
        let limits = self.policy.shadow_limits();
        if answers.len() != limits.len() {
            return Vec::new(); // from an object whose policy has other limits
        }
        let costs = self.costs.as_ref().map_or(reserved, |costs| &costs.shadow);
        let all = limits.iter().zip(answers).enumerate();
        let asked = all.filter_map(|(index, (limit, answer))| Some((index, limit, (*answer)?)));
        asked.map(|(index, limit, answer)| (limit, cost_of(costs, index, &answer), answer)).collect()
    }
}

/// The requested cost, or the reserved one from the answer.
fn cost_of(costs: &[u64], index: usize, answer: &LimitAnswer) -> u64 {
    costs.get(index).copied().unwrap_or_else(|| answer.decision.tokens())
}
