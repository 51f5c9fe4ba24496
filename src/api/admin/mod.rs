//! The admin API: operators' requests to the registry of policies, and the answers.
//!
//! A frontend checks the caller's rights, by [`AdminPath`], and forwards the request as an [`AdminQuestion`]. The registry's object parses
//! it, so that one place, of one version, decides.

mod decisions;
mod metrics;
mod overrides;
mod policies;
mod question;

pub use question::{AdminPath, AdminQuestion, AdminRequest, MAX_OVERRIDES_LEN};

use super::problem::Problem;
use super::reply::Reply;

/// The answer to an operator.
pub type AdminReply = Result<Reply, Problem>;
