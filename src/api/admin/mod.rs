//! The admin API: what operators ask of the registry of policies, and what they are answered.
//!
//! A frontend checks who asks, by [`AdminPath`], and passes the request on as an [`AdminQuestion`]. The registry's object reads it,
//! so that one place decides, of one version.

mod decisions;
mod metrics;
mod overrides;
mod policies;
mod question;

pub use question::{AdminPath, AdminQuestion, AdminRequest, MAX_OVERRIDES_LEN};

use super::problem::Problem;
use super::reply::Reply;

/// What an operator is answered.
pub type AdminReply = Result<Reply, Problem>;
