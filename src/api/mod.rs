//! The HTTP API: requests, answers, problems, headers. Without a clock, storage or runtime, so it runs anywhere.
//!
//! [`Request::parse`] turns a body into a valid request or a [`Problem`]; [`ResolvedRequest`] looks up its policies if the caller may use
//! them, and turns the objects' answers into a [`Reply`]: status, headers and body.
#![forbid(unsafe_code)]
// Links to what only the service has.
#![cfg_attr(not(feature = "service"), allow(rustdoc::broken_intra_doc_links))]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

#[cfg(feature = "service")]
mod admin;
mod answer;
mod ban_status;
mod batch;
#[cfg(feature = "service")]
mod beyond_shards;
#[cfg(feature = "service")]
mod body;
mod cost;
mod decisive;
mod degraded;
mod endpoint;
#[cfg(feature = "service")]
mod fingerprint;
mod inspect;
mod keys;
mod lease;
#[cfg(feature = "service")]
mod leasing;
mod limit_body;
#[cfg(feature = "service")]
mod media_type;
mod missing;
#[cfg(feature = "service")]
mod notice;
mod problem;
mod rate_limit;
mod refusal;
mod reply;
#[cfg(feature = "service")]
mod request;
#[cfg(feature = "service")]
mod resolve;
mod resolved;
#[cfg(feature = "service")]
mod session;
mod shards;
#[cfg(feature = "service")]
mod tally;
mod text;
mod value;
mod verdict;

pub use crate::policy::Cause;
#[cfg(feature = "service")]
pub use admin::{AdminAct, AdminPath, AdminQuestion, AdminReply, AdminRequest};
#[cfg(feature = "service")]
pub(crate) use body::key_of;
pub use cost::{Cost, Costs, SlotCost};
pub use endpoint::Endpoint;
#[cfg(feature = "service")]
pub use keys::{BLOCK_PATH, BlockRequest, INSPECT_KEY_PATH, InspectKeyRequest, KeyQuestion, inspected, key_state};
#[cfg(feature = "service")]
pub use media_type::require_json;
pub use missing::Missing;
#[cfg(feature = "service")]
pub use notice::Notice;
pub use problem::Problem;
pub use reply::{Header, Marks, Reply};
#[cfg(feature = "service")]
pub use request::{Item, MAX_BATCH, Request};
pub use resolved::{ResolvedItem, ResolvedRequest};
#[cfg(feature = "service")]
pub use session::{SESSION_PATH, SessionRequest};
#[cfg(feature = "service")]
pub use tally::Tally;
