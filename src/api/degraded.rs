//! The response without a decision when the policy fails open.

use serde::Serialize;

use super::endpoint::Endpoint;
use super::reply::Reply;
use super::resolved::ResolvedRequest;
use crate::policy::Cause;

impl ResolvedRequest {
    /// The response when `cause` prevented a decision, and all policies of the request fail open for it.
    #[must_use]
    pub fn degraded_reply(&self, cause: Cause) -> Reply {
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
        match self.items.as_slice() {
            [item] if self.endpoint != Endpoint::Batch => {
                Reply::json(200, "application/json", &body(item.policy.name()))
            }
            items => {
                let results = items.iter().map(|item| body(item.policy.name())).collect();
                Reply::json(200, "application/json", &Batch { allowed: true, degraded, results })
            }
        }
    }
}
