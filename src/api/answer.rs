//! What was asked and what was decided, as a response.

use serde::Serialize;

use super::fields::{limit_field, policy_field};
use super::problem::{Cause, Problem};
use super::reply::Reply;
use super::request::{Endpoint, RESERVATION_ID_LEN, Request};
use crate::limit::{Config, Decision, Kind, Snapshot, Verb};
use crate::policy::{NamedLimit, Policies, Policy};
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply};

/// A request whose policies are known and whose costs fit them.
#[derive(Clone, Debug)]
pub struct ResolvedRequest<'p> {
    endpoint: Endpoint,
    action: Action,
    /// One, or those of a batch.
    items: Vec<ResolvedItem<'p>>,
}

/// One budget that is asked.
#[derive(Clone, Debug)]
pub struct ResolvedItem<'p> {
    /// The policy.
    pub policy: &'p Policy,
    /// The cost of each of its limits.
    pub costs: Vec<u64>,
    wants_snapshot: bool,
}

impl<'p> ResolvedRequest<'p> {
    /// Finds the policies that `ask` names.
    ///
    /// # Errors
    /// [`Problem::UnknownPolicy`], and what is wrong with the costs: see [`Cost::of`](super::Cost::of).
    pub fn new(endpoint: Endpoint, ask: &Request<'_>, policies: &'p Policies) -> Result<Self, Problem> {
        let verb = match ask.action {
            Action::Look(verb) | Action::Take(verb) | Action::Reserve(verb) => verb,
            Action::Hold => Verb::Consume,
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
                (None, _) => super::Cost::Each(1).of(policy, verb)?,
            };
            Ok(ResolvedItem { policy, costs, wants_snapshot: item.snapshot })
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
    pub fn items(&self) -> &[ResolvedItem<'p>] {
        &self.items
    }

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
        let next_s = |answer: &LimitAnswer| match answer.decision {
            Decision::Wait { retry_at } => Some(until_s(decided.now, retry_at).max(1)),
            Decision::Never { .. } => None,
            Decision::Allow { .. } => retry_after_s.or_else(|| answer.reset_at.map(|at| until_s(decided.now, at))),
        };
        let field =
            limit_field(answers.iter().map(|(limit, _, answer)| (limit.full_name(), answer.remaining, next_s(answer))));
        let reply = respond(refused, &verdict);
        Ok(reply.with("ratelimit-policy", policy_field(item.policy.limits())).with("ratelimit", field))
    }

    /// The response to a batch, given what each object decided and which of the items it was asked for.
    ///
    /// # Errors
    /// The problem that one of the replies is.
    pub fn batch_reply(&self, calls: &[(&[usize], ObjectReply)]) -> Result<Reply, Problem> {
        #[derive(Serialize)]
        struct Body<'a> {
            allowed: bool,
            now: i64,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_at: Option<i64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after_ms: Option<u64>,
            #[serde(skip_serializing_if = "is_false")]
            replayed: bool,
            results: Vec<Verdict<'a>>,
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
        let verdict =
            |(_, item, answers, decided): &(usize, &'_ ResolvedItem<'p>, Vec<Answered<'p>>, &Decided)| Verdict {
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

    fn verdict(&self, item: &ResolvedItem<'p>, answers: &[Answered<'p>], decided: &Decided) -> Verdict<'p> {
        let now = decided.now;
        let details: Vec<_> = answers.iter().map(|answered| self.details(answered, now)).collect();
        let mut decisive = details.iter();
        let first = decisive.next();
        let decisive = decisive.fold(first, |most, next| match most {
            Some(most) if most.outweighs(next) => Some(most),
            _ => Some(next),
        });
        let near_limit = details.iter().any(|details| details.near_limit);
        let top = decisive.cloned().unwrap_or_default();
        Verdict {
            allowed: details.iter().all(|details| details.allowed),
            policy: item.policy.name(),
            cost: top.cost,
            tokens: top.tokens,
            limit: top.limit,
            remaining: top.remaining,
            owed: top.owed,
            near_limit,
            now,
            reset_at: top.reset_at,
            ready_at: details.iter().filter_map(|details| details.ready_at).max(),
            retry_at: top.retry_at,
            retry_after_ms: top.retry_after_ms,
            reservation: decided.reservation.map(|reserved| format!("{:0RESERVATION_ID_LEN$x}", reserved.id)),
            expires_at: decided.reservation.map(|reserved| reserved.expires_at),
            replayed: decided.is_replayed,
            full_name: top.full_name,
            limits: if item.policy.limits().iter().any(|limit| limit.name().is_some()) { details } else { Vec::new() },
            snapshot: item.snapshot(answers),
        }
    }

    fn details(&self, &(limit, cost, answer): &Answered<'p>, now: i64) -> Details<'p> {
        let capacity = limit.limit().config().capacity;
        let verb = match self.action {
            Action::Look(verb) | Action::Take(verb) | Action::Reserve(verb) => verb,
            Action::Cancel(_) => Verb::Refund,
            Action::Hold | Action::Settle(_) => Verb::Consume,
        };
        let (moved, ready_at, retry_at) = match answer.decision {
            Decision::Allow { tokens, ready_at } => (Some(tokens), Some(ready_at), None),
            Decision::Wait { retry_at } => (None, None, Some(retry_at)),
            Decision::Never { .. } => (None, None, None),
        };
        let waits = matches!(verb, Verb::Reserve { .. } | Verb::Borrow { .. });
        let clips = matches!(verb, Verb::ConsumeUpTo | Verb::Charge | Verb::Refund | Verb::Reset);
        Details {
            name: limit.name(),
            allowed: answer.decision.is_allow(),
            cost,
            tokens: moved.filter(|_| clips),
            limit: capacity,
            remaining: answer.remaining,
            owed: answer.owed,
            near_limit: is_near(answer.remaining, capacity),
            reset_at: answer.reset_at,
            ready_at: ready_at.filter(|_| waits),
            retry_at,
            retry_after_ms: retry_at.map(|at| until_ms(now, at)),
            full_name: limit.full_name(),
        }
    }
}

/// A limit, what was asked of it, and its answer.
type Answered<'a> = (&'a NamedLimit, u64, LimitAnswer);

impl<'p> ResolvedItem<'p> {
    fn answers(&self, answers: &[LimitAnswer]) -> Result<Vec<Answered<'p>>, Problem> {
        let limits = self.policy.limits();
        if answers.len() != limits.len() {
            return Err(Problem::Unavailable { cause: Cause::Failed }); // an object of another version, for a moment
        }
        let all = limits.iter().zip(&self.costs).zip(answers);
        Ok(all.map(|((limit, &cost), &answer)| (limit, cost, answer)).collect())
    }

    /// Empty unless it was asked for.
    fn snapshot(&self, answers: &[Answered<'p>]) -> Vec<LimitBody<'p, Exact>> {
        let asked = answers.iter().filter(|_| self.wants_snapshot);
        let exact = |Snapshot { tokens, drops, at }| Exact { tokens, drops, at };
        asked.map(|(limit, _, answer)| LimitBody::of(limit, exact(answer.snapshot))).collect()
    }
}

/// The response where a policy lets pass what cannot be decided.
#[must_use]
pub fn degraded_reply(policies: &[&str], cause: Cause) -> Reply {
    #[derive(Serialize)]
    struct Body<'a> {
        allowed: bool,
        policy: &'a str,
        degraded: &'static str,
    }
    #[derive(Serialize)]
    struct Batch<'a> {
        allowed: bool,
        degraded: &'static str,
        results: Vec<Body<'a>>,
    }
    let degraded = cause.word();
    let body = |policy| Body { allowed: true, policy, degraded };
    if let [policy] = policies {
        return Reply::json(200, "application/json", &body(policy));
    }
    let results = policies.iter().map(|policy| body(policy)).collect();
    Reply::json(200, "application/json", &Batch { allowed: true, degraded, results })
}

fn decided(reply: &ObjectReply) -> Result<&Decided, Problem> {
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

/// Less than a fifth is left: time to slow down.
const fn is_near(remaining: u64, capacity: u64) -> bool {
    remaining.saturating_mul(5) < capacity
}

/// What a decision says to its client.
#[derive(Serialize)]
struct Verdict<'a> {
    allowed: bool,
    policy: &'a str,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "is_zero")]
    owed: u64,
    near_limit: bool,
    now: i64,
    reset_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<i64>,
    #[serde(skip_serializing_if = "is_false")]
    replayed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<Details<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    snapshot: Vec<LimitBody<'a, Exact>>,
    #[serde(skip)]
    full_name: &'a str,
}

impl Verdict<'_> {
    fn refusal(&self) -> String {
        let Self { full_name, cost, limit, remaining, owed, retry_after_ms, .. } = self;
        let when = match retry_after_ms {
            Some(ms) => format!("retry in {ms} ms"),
            None => "this budget never refills".to_owned(),
        };
        match owed {
            0 => format!("policy {full_name} has {remaining} of {limit} tokens left and the cost is {cost}; {when}"),
            _ => format!("policy {full_name} owes {owed} tokens, of {limit}, and the cost is {cost}; {when}"),
        }
    }
}

/// The same of one limit.
#[derive(Clone, Default, Serialize)]
struct Details<'a> {
    name: Option<&'a str>,
    allowed: bool,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "is_zero")]
    owed: u64,
    near_limit: bool,
    reset_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip)]
    full_name: &'a str,
}

impl Details<'_> {
    /// Whether this limit tells more of the whole than `other`: it refused, for longer, or has the smaller share left.
    fn outweighs(&self, other: &Self) -> bool {
        let never = |details: &Self| !details.allowed && details.retry_at.is_none();
        let rank = |details: &Self| (never(details), !details.allowed, details.retry_at);
        match rank(self).cmp(&rank(other)) {
            std::cmp::Ordering::Equal => {
                let level = |details: &Self| i128::from(details.remaining).saturating_sub(details.owed.into());
                level(self).saturating_mul(other.limit.into()) <= level(other).saturating_mul(self.limit.into())
            }
            order => order.is_gt(),
        }
    }
}

/// Why and until when: what a 429 has beside its verdict.
struct Refusal<'a> {
    detail: String,
    violated: Vec<&'a str>,
    retry_after_ms: Option<u64>,
}

impl Refusal<'_> {
    /// Rounded up, since a client that came back a moment too early would be refused again.
    fn retry_after_s(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1_000).max(1))
    }
}

fn respond(refused: Option<Refusal<'_>>, verdict: &impl Serialize) -> Reply {
    #[derive(Serialize)]
    struct Body<'a, V> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: String,
        #[serde(rename = "violated-policies")]
        violated_policies: Vec<&'a str>,
        #[serde(flatten)]
        verdict: &'a V,
    }
    let Some(refusal) = refused else {
        return Reply::json(200, "application/json", verdict);
    };
    let retry_after_s = refusal.retry_after_s();
    let body = Body {
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Quota exceeded",
        status: 429,
        detail: refusal.detail,
        violated_policies: refusal.violated,
        verdict,
    };
    let reply = Reply::json(429, "application/problem+json", &body);
    match retry_after_s {
        Some(seconds) => reply.with("retry-after", seconds.to_string()),
        None => reply,
    }
}

fn violated<'a, 'p: 'a>(answers: impl Iterator<Item = &'a Answered<'p>>) -> Vec<&'p str> {
    let mut names = Vec::new();
    for (limit, _, answer) in answers {
        if !answer.decision.is_allow() && !names.contains(&limit.full_name()) {
            names.push(limit.full_name());
        }
    }
    names
}

/// How the buckets of a policy stand.
fn inspection<'p>(item: &ResolvedItem<'p>, answers: &[Answered<'p>], decided: &Decided) -> Reply {
    #[derive(Serialize)]
    struct Body<'a> {
        policy: &'a str,
        now: i64,
        open_reservations: u64,
        limits: Vec<LimitBody<'a, Standing>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        snapshot: Vec<LimitBody<'a, Exact>>,
    }
    #[derive(Serialize)]
    struct Standing {
        remaining: u64,
        owed: u64,
        reset_at: Option<i64>,
    }
    let limits = answers.iter().map(|(limit, _, answer)| {
        let LimitAnswer { remaining, owed, reset_at, .. } = *answer;
        LimitBody::of(limit, Standing { remaining, owed, reset_at })
    });
    let Decided { now, open_reservations, .. } = *decided;
    let (policy, snapshot) = (item.policy.name(), item.snapshot(answers));
    let body = Body { policy, now, open_reservations, limits: limits.collect(), snapshot };
    Reply::json(200, "application/json", &body)
}

/// The numbers of a limit, and how its bucket stands.
#[derive(Serialize)]
struct LimitBody<'a, S> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    kind: &'static str,
    rate: u64,
    period_ms: u64,
    capacity: u64,
    max_debt: u64,
    #[serde(flatten)]
    standing: S,
}

impl<'a, S> LimitBody<'a, S> {
    fn of(limit: &'a NamedLimit, standing: S) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, .. } = *limit.limit().config();
        let kind = match kind {
            Kind::TokenBucket => "token_bucket",
            Kind::FixedWindow => "fixed_window",
        };
        Self { name: limit.name(), kind, rate, period_ms, capacity, max_debt, standing }
    }
}

/// A [`Snapshot`] as JSON has it.
#[derive(Serialize)]
struct Exact {
    tokens: i64,
    drops: u64,
    at: i64,
}

fn until_ms(now: i64, at: i64) -> u64 {
    u64::try_from(at.saturating_sub(now)).unwrap_or(0)
}

fn until_s(now: i64, at: i64) -> u64 {
    until_ms(now, at).div_ceil(1_000)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so; on wasm32 it is not even small")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(value: &bool) -> bool {
    !*value
}
