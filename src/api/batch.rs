//! What several objects decided on the items of a batch, as one response.

use serde::Serialize;

use super::answer::decided;
use super::problem::Problem;
use super::refusal::{Refusal, respond, violated};
use super::reply::Reply;
use super::resolve::{Answered, ResolvedItem, ResolvedRequest};
use super::verdict::{Verdict, is_false, until_ms};
use crate::protocol::{Decided, ObjectReply};

impl ResolvedRequest {
    /// The response to a batch, given what each object decided and which of the items it was asked for.
    ///
    /// # Errors
    /// The problem that one of the replies is.
    pub fn batch_reply<'a>(&'a self, calls: &[(&[usize], ObjectReply)]) -> Result<Reply, Problem> {
        #[derive(Serialize)]
        struct Body<'b> {
            allowed: bool,
            now: i64,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_at: Option<i64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after_ms: Option<u64>,
            #[serde(skip_serializing_if = "is_false")]
            replayed: bool,
            results: Vec<Verdict<'b>>,
        }
        let mut decisions = Vec::new();
        for (indices, reply) in calls {
            let decided = decided(reply)?;
            let mut rest = decided.limits.as_slice();
            for &index in *indices {
                let Some(item) = self.items.get(index) else { continue };
                let (own, others) = rest.split_at_checked(item.policy.limits().len()).unwrap_or_default();
                decisions.push((index, item, item.answers(own)?, decided));
                rest = others;
            }
        }
        decisions.sort_by_key(|(index, ..)| *index);
        let replayed = decisions.iter().all(|(.., decided)| decided.is_replayed);
        let verdict = |(_, item, answers, decided): &(usize, &'a ResolvedItem, Vec<Answered<'a>>, &Decided)| Verdict {
            reservation: None,
            expires_at: None,
            replayed: decided.is_replayed && !replayed,
            ..self.verdict(item, answers, decided)
        };
        let results: Vec<Verdict<'_>> = decisions.iter().map(verdict).collect();
        let now = results.iter().map(|verdict| verdict.now).max().unwrap_or_default();
        let mut refused = results.iter().filter(|verdict| !verdict.allowed);
        // Never, if one of them never can.
        let retry_at =
            refused.clone().map(|verdict| verdict.retry_at).try_fold(now, |latest, at| Some(latest.max(at?)));
        let retry_at = retry_at.filter(|_| refused.clone().next().is_some());
        let retry_after_ms = retry_at.map(|at| until_ms(now, at));
        let refusal = refused.next().map(|first| Refusal {
            detail: if decisions.iter().any(|(.., decided)| decided.is_replayed) {
                format!("an earlier try took what is marked as replayed, and now: {}", first.refusal())
            } else {
                format!("nothing was taken: {}", first.refusal())
            },
            violated: violated(decisions.iter().flat_map(|(_, _, answers, _)| answers)),
            retry_after_ms,
        });
        let allowed = refusal.is_none();
        Ok(respond(refusal, &Body { allowed, now, retry_at, retry_after_ms, replayed, results }))
    }
}
