//! The response when no decision could be made and the policy fails open.

use serde::Serialize;

use super::reply::Reply;
use crate::policy::Cause;

/// The response when no decision could be made because of `cause`, and all `policies` fail open for it.
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
