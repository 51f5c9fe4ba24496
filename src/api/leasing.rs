//! The lease messages of `POST /v1/lease`: tokens for a server that decides by itself, and what it has spent of earlier ones.

use super::body::Body;
use super::cost::{Cost, SlotCost};
use super::problem::{Problem, bad_request};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::{EndedLease, LeaseRequest};

/// The lease messages of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Leasing<'a> {
    /// How many tokens are wanted, if any.
    pub tokens: Option<Cost<'a>>,
    /// The ended leases, and what was spent of each.
    pub returned: Vec<(u64, Cost<'a>)>,
}

impl<'a> Leasing<'a> {
    pub(super) fn of(body: &Body<'a>) -> Result<Self, Problem> {
        let tokens = body.tokens()?;
        let entries = body.returned()?;
        if entries.len() > LeaseRequest::MAX_ENDED {
            return bad_request(format!(
                "`returned` has at most {} leases, not {}",
                LeaseRequest::MAX_ENDED,
                entries.len()
            ));
        }
        let mut returned = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let fields = Body::of(entry, "it", &["lease", "spent"]);
            let ended = fields.and_then(|fields| Ok((fields.lease()?, fields.spent()?)));
            returned.push(ended.map_err(|problem| match problem {
                Problem::BadRequest { detail } => {
                    Problem::BadRequest { detail: format!("returned[{index}]: {detail}") }
                }
                other => other,
            })?);
        }
        Ok(Self { tokens, returned })
    }

    /// The lease request for the limits of `policy`.
    pub(super) fn resolve(&self, policy: &Policy) -> Result<LeaseRequest, Problem> {
        let Some(terms) = policy.frontend().lease else {
            return bad_request(format!("policy {} has no `lease`: its tokens cannot be leased", policy.name()));
        };
        // May exceed the capacity: a lease has what can be spared.
        let costs_of = |tokens: &Cost<'_>| tokens.of(policy, Verb::ConsumeUpTo, SlotCost::Untouched);
        let mut wanted = vec![0; policy.limits().len()];
        if let Some(tokens) = &self.tokens {
            wanted = costs_of(tokens)?.enforced;
            if wanted.contains(&0) {
                return bad_request(
                    "`tokens` must be at least 1, of each limit; to lease none, leave it out".to_owned(),
                );
            }
        }
        for wanted in &mut wanted {
            *wanted = (*wanted).min(terms.max_tokens);
        }
        let mut ended = Vec::new();
        for (id, spent) in &self.returned {
            ended.push(EndedLease { id: *id, spent: costs_of(spent)?.enforced });
        }
        let horizon_ms = policy.frontend().horizon_ms(terms.lease_ms);
        Ok(LeaseRequest { lease_ms: terms.lease_ms, horizon_ms, wanted, ended })
    }
}
