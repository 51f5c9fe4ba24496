//! Live decisions.

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::problem::Problem;
use super::super::reply::Reply;
use super::{AdminQuestion, AdminReply};
use crate::metrics::{LiveFilter, LivePage, Outcome, POLL_AFTER_MS, TooMany};
use crate::protocol::Standing;

impl AdminQuestion<'_> {
    /// The filter of its sender: decisions of `policy`, or of all policies that the token may name.
    #[must_use]
    pub fn live_filter(&self, policy: Option<String>, outcomes: Option<Vec<Outcome>>) -> LiveFilter {
        LiveFilter { policies: policy.map(|policy| vec![policy]).or_else(|| self.only.clone()), outcomes }
    }

    /// The problem of a policy that does not exist, or that its token may not name.
    #[must_use]
    pub fn unknown_policy(&self, name: &str, policies: impl Iterator<Item = Standing>) -> Problem {
        let names = policies.map(|standing| standing.policy.name().to_owned());
        let known = names.filter(|name| self.may_name(name)).collect();
        Problem::UnknownPolicy { policy: name.to_owned(), known, request: None }
    }

    /// The answer to a listener.
    ///
    /// # Errors
    /// [`Problem::TooManyListeners`].
    pub fn decisions(&self, page: Result<LivePage, TooMany>) -> AdminReply {
        #[derive(Serialize)]
        struct Body<'a> {
            decisions: Vec<&'a RawValue>,
            omitted: u64,
            interrupted: bool,
            cursor: String,
            poll_after_ms: u64,
        }
        let page = page.map_err(|which| Problem::TooManyListeners { which })?;
        let body = Body {
            decisions: page.decisions.iter().filter_map(|text| serde_json::from_str(text).ok()).collect(),
            omitted: page.omitted,
            interrupted: page.is_interrupted,
            cursor: page.cursor.to_text(),
            poll_after_ms: POLL_AFTER_MS,
        };
        Ok(Reply::json(200, "application/json", &body))
    }
}
