//! A request whose policies are known and whose costs fit them.

use std::sync::Arc;

use super::cost::Cost;
use super::endpoint::Endpoint;
use super::problem::Problem;
use super::request::Request;
use crate::limit::Verb;
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

/// One budget that is asked.
#[derive(Clone, Debug)]
pub struct ResolvedItem {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The cost of each of its limits.
    pub costs: Vec<u64>,
    pub(super) wants_snapshot: bool,
}

impl ResolvedRequest {
    /// Finds the policies that `ask` names.
    ///
    /// # Errors
    /// [`Problem::UnknownPolicy`], and what is wrong with the costs: see [`Cost::of`](super::Cost::of).
    pub fn new(endpoint: Endpoint, ask: &Request<'_>, policies: &Policies) -> Result<Self, Problem> {
        let verb = match ask.action {
            Action::Look(verb) | Action::Take(verb) | Action::Reserve(verb) => verb,
            Action::Hold(_) => Verb::Consume,
            Action::Settle(_) | Action::Cancel(_) => Verb::Charge,
        };
        let items = ask.items.iter().map(|item| {
            let Some(policy) = policies.get(&item.policy) else {
                return Err(Problem::UnknownPolicy { policy: item.policy.clone().into_owned() });
            };
            let costs = match (&item.cost, endpoint) {
                (Some(cost), _) => cost.of(policy, verb)?,
                (None, Endpoint::Settle) => {
                    let detail = "missing field `cost`: what the work did cost in the end".to_owned();
                    return Err(Problem::BadRequest { detail });
                }
                (None, Endpoint::Reset | Endpoint::Inspect | Endpoint::Cancel) => vec![0; policy.limits().len()],
                (None, _) => Cost::Each(1).of(policy, verb)?,
            };
            Ok(ResolvedItem { policy: Arc::clone(policy), costs, wants_snapshot: item.snapshot })
        });
        Ok(Self { endpoint, action: ask.action, items: items.collect::<Result<_, _>>()? })
    }

    /// What is to be done.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// The budgets that are asked: at least one.
    #[must_use]
    pub fn items(&self) -> &[ResolvedItem] {
        &self.items
    }
}

/// A limit, what was asked of it, and its answer.
pub(super) type Answered<'a> = (&'a NamedLimit, u64, LimitAnswer);

impl ResolvedItem {
    pub(super) fn answers(&self, answers: &[LimitAnswer]) -> Result<Vec<Answered<'_>>, Problem> {
        let limits = self.policy.limits();
        if answers.len() != limits.len() {
            return Err(Problem::Unavailable { cause: Cause::Failed }); // an object of another version, for a moment
        }
        let all = limits.iter().zip(&self.costs).zip(answers);
        Ok(all.map(|((limit, &cost), &answer)| (limit, cost, answer)).collect())
    }
}
