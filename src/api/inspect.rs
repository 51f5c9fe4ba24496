//! The state of a policy's buckets, as a response.

use serde::Serialize;

use super::limit_body::{Exact, LimitBody};
use super::reply::Reply;
use super::resolve::{Answered, ResolvedItem};
use crate::protocol::{Decided, LimitAnswer};

/// How the buckets of a policy stand.
pub(super) fn inspection(item: &ResolvedItem, answers: &[Answered<'_>], decided: &Decided) -> Reply {
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
