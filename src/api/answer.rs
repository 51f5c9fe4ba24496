//! What an object decided, as a response.

use super::endpoint::Endpoint;
use super::inspect::inspection;
use super::problem::Problem;
use super::rate_limit::{limit_field, policy_field};
use super::refusal::{Refusal, respond, violated};
use super::reply::Reply;
use super::resolve::ResolvedRequest;
use crate::policy::Cause;
use crate::protocol::{Decided, ObjectReply};

impl ResolvedRequest {
    /// The response to all but batches.
    ///
    /// # Errors
    /// The problem that the object's reply is.
    pub fn reply(&self, reply: &ObjectReply) -> Result<Reply, Problem> {
        let decided = decided(reply)?;
        let [item] = self.items.as_slice() else {
            return Err(Problem::Unavailable { cause: Cause::Failed });
        };
        let answers = item.answers(&decided.limits)?;
        if self.endpoint == Endpoint::Inspect {
            return Ok(inspection(item, &answers, decided));
        }
        let verdict = self.verdict(item, &answers, decided);
        let refused = (!verdict.allowed).then(|| Refusal {
            detail: verdict.refusal(),
            violated: violated(answers.iter()),
            retry_after_ms: verdict.retry_after_ms,
        });
        let retry_after_s = refused.as_ref().and_then(Refusal::retry_after_s);
        let current = limit_field(&answers, decided.now, retry_after_s);
        let reply = respond(refused, &verdict);
        Ok(reply.with("ratelimit-policy", policy_field(item.policy.limits())).with("ratelimit", current))
    }
}

pub(super) fn decided(reply: &ObjectReply) -> Result<&Decided, Problem> {
    match reply {
        ObjectReply::Decided(decided) => Ok(decided),
        ObjectReply::NoReservation => Err(Problem::UnknownReservation),
        ObjectReply::RequestIdReused => Err(Problem::IdempotencyKeyReused),
        ObjectReply::TooManyReservations { max } => Err(Problem::TooManyReservations { max: *max }),
        // The frontend has asked again by now, and was answered the same.
        ObjectReply::PolicyUnknown | ObjectReply::FormatUnknown { .. } => {
            Err(Problem::Unavailable { cause: Cause::Failed })
        }
    }
}
