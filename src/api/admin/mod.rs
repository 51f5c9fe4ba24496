//! The admin API: operators' requests to the registry of policies, and the answers.
//!
//! A frontend finds the [`AdminAct`] by its path and method, checks the caller's rights, and sends the act to the registry in an
//! [`AdminQuestion`]. The registry's object parses query and body, so that one place, of one version, decides what they mean.

mod act;
mod decisions;
mod metrics;
mod overrides;
mod overrides_error;
mod policies;
mod question;

pub use act::{AdminAct, AdminPath};
pub use question::{AdminQuestion, AdminRequest};

use super::problem::Problem;
use super::reply::Reply;

/// The answer to an operator.
pub type AdminReply = Result<Reply, Problem>;
