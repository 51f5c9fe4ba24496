//! An object's decision, as a response.

use super::endpoint::Endpoint;
use super::inspect::inspection;
use super::problem::Problem;
use super::rate_limit::{limit_field, policy_field};
use super::refusal::{Refusal, respond, violated};
use super::reply::Reply;
use super::resolve::{Answered, ResolvedItem, ResolvedRequest};
use crate::policy::Cause;
use crate::protocol::{Decided, ObjectReply};

impl ResolvedRequest {
    /// The response to all but batches.
    ///
    /// # Errors
    /// If the object's reply is not a decision: the matching problem.
    pub fn reply(&self, reply: &ObjectReply) -> Result<Reply, Problem> {
        let decided = decided(reply)?;
        let [item] = self.items.as_slice() else {
            return Err(Problem::Unavailable { cause: Cause::Failed });
        };
        let answers = item.answers(&decided.limits)?;
        let tried = item.tried(&decided.shadow);
        if self.endpoint == Endpoint::Inspect {
            return Ok(inspection(item, &answers, &tried, decided));
        }
        let verdict = self.verdict(item, &answers, &tried, decided);
        let refused = (!verdict.allowed).then(|| Refusal {
            detail: verdict.refusal(),
            violated: violated(answers.iter()),
            retry_after_ms: verdict.retry_after_ms,
        });
        let retry_after_s = refused.as_ref().and_then(Refusal::retry_after_s);
        let mut reply = respond(refused, &verdict);
        reply.headers.extend(rate_limit(item, &answers, decided.now, retry_after_s));
        Ok(reply)
    }

    /// The rate-limit fields of a granted request, for a response that is someone else's.
    ///
    /// # Errors
    /// If the decision is not about this request.
    #[cfg(feature = "tower")]
    pub(crate) fn fields(&self, decided: &Decided) -> Result<Vec<(&'static str, String)>, Problem> {
        let [item] = self.items.as_slice() else {
            return Err(Problem::Unavailable { cause: Cause::Failed });
        };
        Ok(rate_limit(item, &item.answers(&decided.limits)?, decided.now, None))
    }
}

/// The rate-limit fields: none if nothing is enforced, since a list without members is no field.
fn rate_limit(
    item: &ResolvedItem,
    answers: &[Answered<'_>],
    now: i64,
    retry_after_s: Option<u64>,
) -> Vec<(&'static str, String)> {
    if answers.is_empty() {
        return Vec::new();
    }
    let policy = policy_field(item.policy.limits());
    vec![("ratelimit-policy", policy), ("ratelimit", limit_field(answers, now, retry_after_s))]
}

pub(super) fn decided(reply: &ObjectReply) -> Result<&Decided, Problem> {
    match reply {
        ObjectReply::Decided(decided) => Ok(decided),
        ObjectReply::NoReservation => Err(Problem::UnknownReservation),
        ObjectReply::RequestIdReused => Err(Problem::IdempotencyKeyReused),
        ObjectReply::TooManyReservations { max } => Err(Problem::TooManyReservations { max: *max }),
        // The frontend has retried by now, and got the same reply.
        ObjectReply::PolicyUnknown | ObjectReply::PolicyOutdated { .. } | ObjectReply::FormatUnknown { .. } => {
            Err(Problem::Unavailable { cause: Cause::Failed })
        }
        ObjectReply::ReservationClosed => Err(Problem::ReservationClosed),
        ObjectReply::TooManyRequestIds { used, retry_after_ms } => {
            Err(Problem::TooManyIdempotencyKeys { used: *used, retry_after_ms: *retry_after_ms })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::limit::{Decision, Snapshot};
    use crate::policy::Policies;
    use crate::protocol::LimitAnswer;

    /// A settled reservation whose work finally cost `tokens`: the costs requested from the object, and the body of the
    /// reply.
    fn settle(cost: &str, tokens: u64) -> (Vec<u64>, Value) {
        let policies = Policies::parse(r#"{"api":{"rate":10,"period":"10s"}}"#).unwrap();
        let body = format!(r#"{{"policy":"api","key":"alice","reservation":"1"{cost}}}"#);
        let request = Request::parse(Endpoint::Settle, body.as_bytes()).unwrap();
        let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED).unwrap();
        let decision = Decision::Allow { tokens, ready_at: 0 };
        let snapshot = Snapshot { tokens: 0, drops: 0, at: 0 };
        let limits = vec![LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot }];
        let decided = Decided {
            now: 0,
            is_replayed: false,
            open_reservations: 0,
            reservation: None,
            limits,
            shadow: Vec::new(),
            before: Vec::new(),
        };
        let Reply { body, .. } = resolved.reply(&ObjectReply::Decided(decided)).unwrap();
        (resolved.items[0].costs.clone().unwrap_or_default(), serde_json::from_str(&body).unwrap())
    }

    #[test]
    fn settle_says_what_was_asked_and_what_the_work_has_cost() {
        let (costs, body) = settle(r#","cost":1000"#, 10);
        assert_eq!(costs, [1_000]);
        assert_eq!((&body["cost"], &body["tokens"]), (&1_000.into(), &10.into()));
    }

    #[test]
    fn settle_without_a_cost_takes_what_was_reserved() {
        let (costs, body) = settle("", 7);
        assert_eq!(costs, [0_u64; 0]);
        assert_eq!((&body["cost"], &body["tokens"]), (&7.into(), &7.into()));
    }

    #[test]
    fn each_reply_without_a_decision_is_a_problem_of_its_own() {
        for (reply, problem) in [
            (ObjectReply::NoReservation, Problem::UnknownReservation),
            (ObjectReply::ReservationClosed, Problem::ReservationClosed),
            (ObjectReply::RequestIdReused, Problem::IdempotencyKeyReused),
            (ObjectReply::TooManyReservations { max: 1_000 }, Problem::TooManyReservations { max: 1_000 }),
            (
                ObjectReply::TooManyRequestIds { used: 16_384, retry_after_ms: 1_001 },
                Problem::TooManyIdempotencyKeys { used: 16_384, retry_after_ms: 1_001 },
            ),
            (ObjectReply::PolicyUnknown, Problem::Unavailable { cause: Cause::Failed }),
            (ObjectReply::FormatUnknown { newest: 1 }, Problem::Unavailable { cause: Cause::Failed }),
        ] {
            assert_eq!(decided(&reply).err(), Some(problem));
        }
    }
}
