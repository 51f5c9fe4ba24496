//! The state of a policy's buckets as a response.

use serde::Serialize;

use super::limit_body::{Exact, LimitBody};
use super::reply::Reply;
use super::resolved::{Answered, ResolvedItem};
use super::verdict::is_false;
use crate::policy;
use crate::protocol::{Decided, LimitAnswer};

/// The state of a policy's buckets.
pub(super) fn inspection<'a>(
    item: &'a ResolvedItem,
    answers: &[Answered<'a>],
    tried: &[Answered<'a>],
    decided: &Decided,
) -> Reply {
    #[derive(Serialize)]
    struct Body<'a> {
        policy: &'a str,
        now: i64,
        open_reservations: u64,
        limits: Vec<LimitBody<'a, Standing>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        shadow: Vec<LimitBody<'a, Standing>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        off: Vec<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        snapshot: Vec<LimitBody<'a, Exact>>,
        #[serde(skip_serializing_if = "is_false")]
        banned: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        banned_until: Option<i64>,
        #[serde(skip_serializing_if = "is_false")]
        unlimited: bool,
    }
    #[derive(Serialize)]
    struct Standing {
        remaining: u64,
        owed: u64,
        reset_at: Option<i64>,
    }
    let standing = |answered: &[Answered<'a>]| {
        let each = answered.iter().map(|(limit, _, answer)| {
            let LimitAnswer { remaining, owed, reset_at, .. } = *answer;
            LimitBody::of(limit, Standing { remaining, owed, reset_at })
        });
        each.collect::<Vec<_>>()
    };
    let Decided { now, open_reservations, .. } = *decided;
    let (policy, snapshot) = (item.policy.name(), item.snapshot(answers, now));
    let (limits, shadow) = (standing(answers), standing(tried));
    let off = item.policy.off_limits().iter().filter_map(Option::as_deref).collect();
    let (banned, banned_until, unlimited) = match item.policy.standing() {
        policy::Standing::Limited => (false, None, false),
        policy::Standing::Unlimited => (false, None, true),
        policy::Standing::Banned { until } => (true, until, false),
    };
    let body = Body { policy, now, open_reservations, limits, shadow, off, snapshot, banned, banned_until, unlimited };
    Reply::json(200, "application/json", &body)
}
