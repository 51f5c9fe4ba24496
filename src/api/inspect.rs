//! The state of a policy's buckets as a response.

use serde::Serialize;

use super::ban_status::BanStatus;
use super::limit_body::{Exact, LimitBody};
use super::reply::Reply;
use super::resolved::{Answered, ResolvedItem, ban_in};
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
        limits: Vec<LimitBody<'a, Level>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        shadow: Vec<LimitBody<'a, Level>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        off: Vec<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        snapshot: Vec<LimitBody<'a, Exact>>,
        #[serde(flatten)]
        ban_status: BanStatus,
    }
    #[derive(Serialize)]
    struct Level {
        remaining: u64,
        owed: u64,
        reset_at: Option<i64>,
    }
    let levels = |answered: &[Answered<'a>]| {
        let each = answered.iter().map(|(limit, _, answer)| {
            let LimitAnswer { remaining, owed, reset_at, .. } = *answer;
            LimitBody::of(limit, Level { remaining, owed, reset_at })
        });
        each.collect::<Vec<_>>()
    };
    let Decided { now, open_reservations, .. } = *decided;
    let (policy, snapshot) = (item.policy.name(), item.snapshot(answers, now));
    let (limits, shadow) = (levels(answers), levels(tried));
    let off = item.policy.off_limits().iter().filter_map(Option::as_deref).collect();
    let ban_status = BanStatus::of(&item.policy, ban_in(answers));
    let body = Body { policy, now, open_reservations, limits, shadow, off, snapshot, ban_status };
    Reply::json(200, "application/json", &body)
}
