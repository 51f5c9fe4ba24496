//! The response without a decision when the policy fails open.

use serde::Serialize;

use super::endpoint::Endpoint;
use super::reply::Reply;
use super::resolved::{ResolvedItem, ResolvedRequest};
use crate::policy::Cause;
use crate::protocol::Action;

impl ResolvedRequest {
    /// The response when `causes` prevented a decision, if all policies of the request fail open for all of them. It names `cause`.
    ///
    /// Only requests that take tokens now fail open: callers of others must learn of the failure.
    #[must_use]
    pub fn degraded_reply(&self, causes: &[Cause], cause: Cause) -> Option<Reply> {
        let takes = matches!(self.action, Action::Take(verb) if verb.takes()) && !self.is_recalled();
        let opens = |item: &ResolvedItem| {
            // Limits that could not have refused it let it pass.
            !item.is_enforced() || causes.iter().all(|&cause| item.policy.frontend().on_error.opens(cause))
        };
        (takes && self.items.iter().all(opens)).then(|| self.let_pass(cause))
    }

    fn let_pass(&self, cause: Cause) -> Reply {
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
