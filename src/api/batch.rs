//! What the objects of a batch decided, as one response.

use serde::Serialize;

use super::answer::decided;
use super::problem::Problem;
use super::refusal::{Refusal, respond, violated};
use super::reply::Reply;
use super::resolve::{Answered, ResolvedItem, ResolvedRequest};
use super::verdict::{Verdict, is_false, until_ms};
use crate::policy::Cause;
use crate::protocol::{Decided, ObjectReply};

impl ResolvedRequest {
    /// The response to a batch, given what each object was asked for (the indices of its items) and what it answered, or why
    /// it did not. Once one has refused, the batch is refused whatever happened to the others: of theirs, the response says
    /// only that they were not decided.
    ///
    /// # Errors
    /// The problem that one of the replies is, and [`Problem::Unavailable`] if none refused and one did not answer.
    pub fn batch_reply(&self, calls: &[(&[usize], Result<ObjectReply, Cause>)]) -> Result<Reply, Problem> {
        let mut items = Vec::new();
        let mut unanswered = None;
        for (indices, reply) in calls {
            let decided = match reply {
                Ok(reply) => Ok(decided(reply)?),
                Err(cause) => {
                    unanswered = Some(*cause);
                    Err(*cause)
                }
            };
            let mut rest = decided.map_or(&[][..], |decided| &decided.limits);
            for &index in *indices {
                let Some(item) = self.items.get(index) else { continue };
                let (own, others) = rest.split_at_checked(item.policy.limits().len()).unwrap_or_default();
                rest = others;
                let decision = match decided {
                    Ok(decided) => Ok((item.answers(own)?, decided)),
                    Err(cause) => Err(cause),
                };
                items.push((index, item, decision));
            }
        }
        items.sort_by_key(|(index, ..)| *index);
        let response = self.response(&items);
        match unanswered {
            Some(cause) if response.allowed => Err(Problem::Unavailable { cause }),
            _ => Ok(respond(response.refusal(&items), &response)),
        }
    }

    fn response<'a>(&self, items: &[BatchItem<'a>]) -> Batch<'a> {
        let replayed = decided_of(items).all(|(_, decided)| decided.is_replayed);
        let result = |&(_, item, ref decision): &BatchItem<'a>| match decision {
            Err(cause) => ItemResult::Undecided { policy: item.policy.name(), undecided: cause.word() },
            Ok((answers, decided)) => ItemResult::Decided(Box::new(Verdict {
                reservation: None,
                expires_at: None,
                replayed: decided.is_replayed && !replayed,
                ..self.verdict(item, answers, decided)
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

/// The index of an item, the item, and its limits' answers beside what its object decided.
type BatchItem<'a> = (usize, &'a ResolvedItem, Result<(Vec<Answered<'a>>, &'a Decided), Cause>);

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
    Undecided { policy: &'a str, undecided: &'static str },
}

impl Batch<'_> {
    fn refusal<'a>(&self, items: &'a [BatchItem<'a>]) -> Option<Refusal<'a>> {
        let first = verdicts(&self.results).find(|verdict| !verdict.allowed)?.refusal();
        let detail = if decided_of(items).any(|(_, decided)| decided.is_replayed) {
            format!("an earlier attempt took what is marked as replayed; now {first}")
        } else {
            format!("nothing was taken: {first}")
        };
        let violated = violated(decided_of(items).flat_map(|(answers, _)| answers));
        Some(Refusal { detail, violated, retry_after_ms: self.retry_after_ms })
    }
}

fn decided_of<'i, 'a>(items: &'i [BatchItem<'a>]) -> impl Iterator<Item = &'i (Vec<Answered<'a>>, &'a Decided)> {
    items.iter().filter_map(|(.., decision)| decision.as_ref().ok())
}

fn verdicts<'r, 'a>(results: &'r [ItemResult<'a>]) -> impl Iterator<Item = &'r Verdict<'a>> {
    results.iter().filter_map(|result| match result {
        ItemResult::Decided(verdict) => Some(&**verdict),
        ItemResult::Undecided { .. } => None,
    })
}
