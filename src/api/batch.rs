//! The decisions of a batch's objects as one response.

use serde::Serialize;

use super::answer::decided;
use super::problem::Problem;
use super::refusal::{Refusal, respond, violated};
use super::reply::Reply;
use super::resolved::{Answered, ResolvedItem, ResolvedRequest};
use super::verdict::{Verdict, is_false, until_ms};
use crate::policy::Cause;
use crate::protocol::{Decided, ObjectReply, take_part};

impl ResolvedRequest {
    /// The response to a batch, from each object's items (as indices) and its reply, or why there is none. If any object refused, the batch
    /// is refused whatever the others did: items without a decision are marked as undecided. Those of policies that enforce nothing are
    /// granted in any case.
    ///
    /// # Errors
    /// The problem in a reply that is not a decision; [`Problem::Unavailable`] if none refused and one did not answer.
    pub fn batch_reply(&self, calls: &[(&[usize], Result<ObjectReply, Cause>)]) -> Result<Reply, Problem> {
        let mut items: Vec<_> = self.items.iter().map(|_| None).collect();
        let mut unanswered = None;
        for (indices, reply) in calls {
            let decided = match reply {
                Ok(reply) => Ok(decided(reply, self.by_grant)?),
                Err(cause) => {
                    let is_enforced = |&index: &usize| self.items.get(index).is_some_and(ResolvedItem::is_enforced);
                    unanswered = unanswered.or(indices.iter().any(is_enforced).then_some(*cause));
                    Err(*cause)
                }
            };
            let mut rest = decided.map_or(&[][..], |decided| &decided.limits);
            let mut rest_of_shadow = decided.map_or(&[][..], |decided| &decided.shadow);
            for &index in *indices {
                let (Some(item), Some(slot)) = (self.items.get(index), items.get_mut(index)) else { continue };
                let own = take_part(&mut rest, item.policy.limits().len());
                let tried = take_part(&mut rest_of_shadow, item.policy.shadow_limits().len());
                let decision = match decided {
                    Ok(decided) => Ok((item.answers(own)?, item.tried(tried, &[]), decided)),
                    Err(cause) => Err(cause),
                };
                *slot = Some((index, item, decision));
            }
        }
        let items: Vec<_> = items.into_iter().flatten().collect();
        if decided_of(&items).next().is_none() {
            unanswered = unanswered.or_else(|| calls.iter().find_map(|(_, reply)| reply.as_ref().err().copied()));
        }
        let response = self.response(&items);
        match unanswered {
            Some(cause) if response.allowed => Err(Problem::Unavailable { cause }),
            _ => Ok(respond(response.refusal(&items), &response)),
        }
    }

    fn response<'a>(&self, items: &[BatchItem<'a>]) -> Batch<'a> {
        let replayed = decided_of(items).all(|(.., decided)| decided.is_replayed);
        let result = |&(_, item, ref decision): &BatchItem<'a>| match decision {
            Err(cause) if item.is_enforced() => {
                ItemResult::Undecided { policy: item.policy.name(), undecided: cause.word() }
            }
            Err(cause) => ItemResult::Degraded { allowed: true, policy: item.policy.name(), degraded: cause.word() },
            Ok((answers, tried, decided)) => ItemResult::Decided(Box::new(Verdict {
                reservation: None,
                expires_at: None,
                replayed: decided.is_replayed && !replayed,
                ..self.verdict(item, answers, tried, decided)
            })),
        };
        let results: Vec<_> = items.iter().map(result).collect();
        let now = verdicts(&results).map(|verdict| verdict.now).max().unwrap_or_default();
        let mut refused = verdicts(&results).filter(|verdict| !verdict.allowed).peekable();
        let allowed = refused.peek().is_none();
        // None if one of them can never pass.
        let retry_at = refused.map(|verdict| verdict.retry_at).try_fold(now, |latest, at| Some(latest.max(at?)));
        let retry_at = retry_at.filter(|_| !allowed);
        let retry_after_ms = retry_at.map(|at| until_ms(now, at));
        Batch { allowed, now, retry_at, retry_after_ms, replayed, results }
    }
}

/// An item's index, the item, and its outcome.
type BatchItem<'a> = (usize, &'a ResolvedItem, Result<DecidedItem<'a>, Cause>);

/// The answers of its limits, those of its limits in shadow, and its object's decision.
type DecidedItem<'a> = (Vec<Answered<'a>>, Vec<Answered<'a>>, &'a Decided);

#[derive(Serialize)]
struct Batch<'a> {
    allowed: bool,
    now: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    replayed: bool,
    results: Vec<ItemResult<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ItemResult<'a> {
    Decided(Box<Verdict<'a>>),
    Undecided {
        policy: &'a str,
        undecided: &'static str,
    },
    /// Of a policy that enforces nothing.
    Degraded {
        allowed: bool,
        policy: &'a str,
        degraded: &'static str,
    },
}

impl Batch<'_> {
    fn refusal<'a>(&self, items: &'a [BatchItem<'a>]) -> Option<Refusal<'a>> {
        let first = verdicts(&self.results).find(|verdict| !verdict.allowed)?.refusal();
        let detail = if decided_of(items).any(|(.., decided)| decided.is_replayed) {
            format!("an earlier attempt took what is marked as replayed; now {first}")
        } else {
            format!("nothing was taken: {first}")
        };
        let violated = violated(decided_of(items).flat_map(|(answers, ..)| answers));
        Some(Refusal { detail, violated, retry_after_ms: self.retry_after_ms })
    }
}

fn decided_of<'i, 'a>(items: &'i [BatchItem<'a>]) -> impl Iterator<Item = &'i DecidedItem<'a>> {
    items.iter().filter_map(|(.., decision)| decision.as_ref().ok())
}

fn verdicts<'r, 'a>(results: &'r [ItemResult<'a>]) -> impl Iterator<Item = &'r Verdict<'a>> {
    results.iter().filter_map(|result| match result {
        ItemResult::Decided(verdict) => Some(&**verdict),
        ItemResult::Undecided { .. } | ItemResult::Degraded { .. } => None,
    })
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use serde_json::{Value, json};

    use super::super::endpoint::Endpoint;
    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::limit::{Decision, Snapshot};
    use crate::policy::Policies;
    use crate::protocol::LimitAnswer;

    const NOW: i64 = 1_000;

    fn batch() -> ResolvedRequest {
        let policies = Policies::parse(r#"{"api":{"rate":10,"period":"10s"}}"#).unwrap();
        let body = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"api","key":"b"},{"policy":"api","key":"c"}]}"#;
        let request = Request::parse(Endpoint::Batch, body.as_bytes()).unwrap();
        ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0).unwrap()
    }

    fn object_reply(decision: Decision) -> ObjectReply {
        let snapshot = Snapshot { tokens: 0, drops: 0, at: NOW };
        let limits = vec![LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot, ban: None }];
        ObjectReply::Decided(Decided::new(NOW, limits))
    }

    /// The response to these replies of each key's object: its status, `Retry-After`, and body.
    fn reply(replies: [Result<ObjectReply, Cause>; 3]) -> Result<(u16, Option<String>, Value), Problem> {
        let calls: Vec<_> = [&[0][..], &[1], &[2]].into_iter().zip(replies).collect();
        let reply = batch().batch_reply(&calls)?;
        let (body, status, headers) = (reply.body(), reply.status, reply.headers);
        let retry_after =
            headers.into_iter().find_map(|(name, value)| (name == "retry-after").then(|| value.into_owned()));
        Ok((status, retry_after, serde_json::from_str(&body).unwrap()))
    }

    #[test]
    fn a_refusal_is_final_whatever_the_others_did() {
        let allow = || Ok(object_reply(Decision::Allow { tokens: 1, ready_at: NOW }));
        let wait = || Ok(object_reply(Decision::Wait { retry_at: NOW + 1_500 }));
        for (replies, undecided) in [
            ([wait(), Err(Cause::Timeout), allow()], [None, Some("timeout"), None]),
            ([Err(Cause::Failed), Err(Cause::Overloaded), wait()], [Some("failed"), Some("overloaded"), None]),
        ] {
            let (status, retry_after, body) = reply(replies).unwrap();
            assert_eq!((status, retry_after.as_deref()), (429, Some("2")));
            assert_eq!(
                body["detail"],
                "nothing was taken: policy api has 0 of 10 tokens left and the cost is 1; retry in 1500 ms"
            );
            for (result, undecided) in body["results"].as_array().unwrap().iter().zip(undecided) {
                match undecided {
                    Some(cause) => assert_eq!(*result, json!({"policy": "api", "undecided": cause})),
                    None => assert!(result["allowed"].is_boolean()),
                }
            }
        }
    }

    #[test]
    fn without_a_refusal_one_missing_answer_leaves_it_undecided() {
        let allow = || Ok(object_reply(Decision::Allow { tokens: 1, ready_at: NOW }));
        assert_eq!(reply([allow(), Err(Cause::Timeout), allow()]), Err(Problem::Unavailable { cause: Cause::Timeout }));
        assert_eq!(reply([allow(), allow(), allow()]).map(|(status, ..)| status), Ok(200));
    }

    /// With the second of its policies in shadow.
    fn reply_beside_shadow(replies: [Result<ObjectReply, Cause>; 2]) -> Result<(u16, Value), Problem> {
        let json = r#"{"api":{"rate":10,"period":"10s"},"new":{"rate":10,"period":"10s","mode":"shadow"}}"#;
        let body = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"new","key":"b"}]}"#;
        let request = Request::parse(Endpoint::Batch, body.as_bytes()).unwrap();
        let batch = ResolvedRequest::new(&request, &Policies::parse(json).unwrap(), &Caller::TRUSTED, 0).unwrap();
        let calls: Vec<_> = [&[0][..], &[1]].into_iter().zip(replies).collect();
        let reply = batch.batch_reply(&calls)?;
        let (body, status) = (reply.body(), reply.status);
        Ok((status, serde_json::from_str(&body).unwrap()))
    }

    #[test]
    fn a_policy_that_enforces_nothing_is_granted_even_if_its_object_does_not_answer() {
        let allow = || Ok(object_reply(Decision::Allow { tokens: 1, ready_at: NOW }));
        let degraded = json!({"allowed": true, "policy": "new", "degraded": "timeout"});
        let (status, body) = reply_beside_shadow([allow(), Err(Cause::Timeout)]).unwrap();
        assert_eq!((status, &body["allowed"], &body["results"][1]), (200, &true.into(), &degraded));
        assert_eq!(body.get("replayed"), None);
        let wait = Ok(object_reply(Decision::Wait { retry_at: NOW + 1_500 }));
        let (status, body) = reply_beside_shadow([wait, Err(Cause::Timeout)]).unwrap();
        assert_eq!((status, &body["results"][1]), (429, &degraded));
        let late = || Err(Cause::Timeout);
        let unavailable = |cause| Err(Problem::Unavailable { cause });
        assert_eq!(reply_beside_shadow([Err(Cause::Failed), late()]), unavailable(Cause::Failed));
    }

    #[test]
    fn what_can_never_pass_has_no_time_to_retry_at() {
        let wait = Ok(object_reply(Decision::Wait { retry_at: NOW + 1_500 }));
        let never = Ok(object_reply(Decision::Never { max: 0 }));
        let (status, retry_after, body) = reply([wait, never, Err(Cause::Failed)]).unwrap();
        assert_eq!((status, retry_after), (429, None));
        assert_eq!((body.get("retry_at"), body.get("retry_after_ms")), (None, None));
    }
}
