//! Counters, and the keys refused most.

use serde::Serialize;

use super::super::reply::Reply;
use super::AdminQuestion;
use crate::metrics::{MEDIA_TYPE, TopKey, Totals, exposition};

impl AdminQuestion<'_> {
    /// The counters, for Prometheus; those of policies only if the token may name them. `isolates` is the number of isolates that reported
    /// lately; `None` if there is only one.
    #[must_use]
    pub fn metrics(&self, totals: &Totals, isolates: Option<usize>) -> Reply {
        let text = exposition(totals.counts(), totals.began_at(), isolates, |policy| self.may_name(policy));
        Reply::of(200, MEDIA_TYPE, text)
    }

    /// The keys refused most, of the policies that the token may name.
    #[must_use]
    pub fn top_refused(&self, totals: &mut Totals, now: i64) -> Reply {
        #[derive(Serialize)]
        struct Body<'a> {
            since: i64,
            now: i64,
            policies: Vec<PolicyBody<'a>>,
        }
        #[derive(Serialize)]
        struct PolicyBody<'a> {
            policy: &'a str,
            refusals: u64,
            keys: Vec<KeyBody>,
        }
        #[derive(Serialize)]
        struct KeyBody {
            object: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            prefix: Option<String>,
            at_least: u64,
            at_most: u64,
        }
        let (since, top) = totals.top(now);
        let policies = top.into_iter().filter(|top| self.may_name(top.policy)).map(|top| {
            let key = |TopKey { object, prefix, at_least, at_most }| KeyBody { object, prefix, at_least, at_most };
            PolicyBody { policy: top.policy, refusals: top.refusals, keys: top.keys.into_iter().map(key).collect() }
        });
        Reply::json(200, "application/json", &Body { since, now, policies: policies.collect() })
    }
}
