//! A request whose policies are known and whose costs fit them.

use std::sync::Arc;

use super::cost::Cost;
use super::endpoint::Endpoint;
use super::problem::Problem;
use super::request::{Item, Request};
use crate::limit::{Decision, Verb};
use crate::policy::{Cause, NamedLimit, Policies, Policy};
use crate::protocol::{Action, LimitAnswer};

/// A request whose policies are known and whose costs fit them.
#[derive(Clone, Debug)]
pub struct ResolvedRequest {
    pub(super) endpoint: Endpoint,
    pub(super) action: Action,
    /// One, or those of a batch.
    pub(super) items: Vec<ResolvedItem>,
}

/// One budget of the request.
#[derive(Clone, Debug)]
pub struct ResolvedItem {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The cost of each of its limits. Empty to settle a reservation at the cost that was reserved.
    pub costs: Vec<u64>,
    pub(super) wants_snapshot: bool,
}

impl ResolvedRequest {
    /// Finds the policies that `request` names.
    ///
    /// # Errors
    /// [`Problem::UnknownPolicy`], and what is wrong with the costs: see [`Cost::of`].
    pub fn new(request: &Request<'_>, policies: &Policies) -> Result<Self, Problem> {
        let Request { endpoint, action, .. } = *request;
        let verb = match action {
            Action::Look(verb) | Action::Take(verb) | Action::Reserve(verb) => verb,
            Action::Settle(_) | Action::Cancel(_) => Verb::Charge,
            Action::Hold(_) => Verb::Consume,
        };
        let resolved = |item: &Item<'_>| {
            let Some(policy) = policies.get(&item.policy) else {
                let known = policies.iter().map(|policy| policy.name().to_owned()).collect();
                return Err(Problem::UnknownPolicy { policy: item.policy.clone().into_owned(), known, request: None });
            };
            let costs = match (&item.cost, endpoint) {
                (Some(cost), _) => cost.of(policy, verb)?,
                (None, Endpoint::Settle) => Vec::new(),
                (None, Endpoint::Reset | Endpoint::Inspect | Endpoint::Cancel) => vec![0; policy.limits().len()],
                (None, _) => Cost::DEFAULT.of(policy, verb)?,
            };
            Ok(ResolvedItem { policy: Arc::clone(policy), costs, wants_snapshot: item.snapshot })
        };
        let mut items = Vec::new();
        for (index, item) in request.items.iter().enumerate() {
            items.push(resolved(item).map_err(|problem| match endpoint {
                Endpoint::Batch => problem.of_request(index),
                _ => problem,
            })?);
        }
        Ok(Self { endpoint, action, items })
    }

    /// A request for `cost` tokens of each limit of `policy`.
    ///
    /// # Errors
    /// [`Problem::CostTooLarge`] if that can never be granted.
    #[cfg(feature = "tower")]
    pub(crate) fn consume(policy: &Arc<Policy>, cost: u64) -> Result<Self, Problem> {
        let costs = Cost::Each(cost).of(policy, Verb::Consume)?;
        let item = ResolvedItem { policy: Arc::clone(policy), costs, wants_snapshot: false };
        Ok(Self { endpoint: Endpoint::Consume, action: Action::Take(Verb::Consume), items: vec![item] })
    }

    /// What is to be done.
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

/// A limit, the cost that was asked of it, and its answer.
pub(super) type Answered<'a> = (&'a NamedLimit, u64, LimitAnswer);

impl ResolvedItem {
    pub(super) fn answers(&self, answers: &[LimitAnswer]) -> Result<Vec<Answered<'_>>, Problem> {
        let limits = self.policy.limits();
        if answers.len() != limits.len() {
            return Err(Problem::Unavailable { cause: Cause::Failed }); // from an object of another version
        }
        let reserved = |answer: &LimitAnswer| match answer.decision {
            Decision::Allow { tokens, .. } => tokens,
            Decision::Wait { .. } | Decision::Never { .. } => 0,
        };
        let costs = (0..).map(|index| self.costs.get(index).copied());
        let all = limits.iter().zip(costs).zip(answers);
        Ok(all.map(|((limit, cost), answer)| (limit, cost.unwrap_or_else(|| reserved(answer)), *answer)).collect())
    }
}
