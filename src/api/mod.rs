//! The HTTP API: requests, answers, problems, headers. Without a clock, storage or runtime, so it runs anywhere.
//!
//! [`Request::parse`] turns a body into a valid request or a [`Problem`]; [`ResolvedRequest`] looks up its policies if the caller may use
//! them, and turns the objects' answers into a [`Reply`]: status, headers and body.
#![forbid(unsafe_code)]
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

mod admin;
mod answer;
mod batch;
mod beyond_shards;
mod body;
mod cost;
mod decisive;
mod degraded;
mod endpoint;
mod fingerprint;
mod inspect;
mod keys;
mod lease;
mod leasing;
mod limit_body;
mod media_type;
mod missing;
#[cfg(any(feature = "answers", feature = "tower"))]
mod no_room;
mod notice;
mod problem;
mod rate_limit;
mod refusal;
mod reply;
mod request;
mod resolve;
mod session;
mod shards;
mod tally;
mod text;
mod value;
mod verdict;

pub use crate::policy::Cause;
pub use admin::{AdminPath, AdminQuestion, AdminReply, AdminRequest, MAX_OVERRIDES_LEN};
pub use cost::{Cost, Costs};
pub use endpoint::Endpoint;
pub use keys::{BLOCK_PATH, BlockRequest, INSPECT_KEY_PATH, InspectKeyRequest, KeyQuestion, inspected, key_state};
pub use media_type::require_json;
pub use missing::Missing;
#[cfg(any(feature = "answers", feature = "tower"))]
pub(crate) use no_room::no_room;
pub use notice::Notice;
pub use problem::Problem;
pub use reply::{Header, Marks, Reply};
pub use request::{Item, MAX_BATCH, MAX_BODY_LEN, Request};
pub use resolve::{ResolvedItem, ResolvedRequest};
pub use session::{SESSION_PATH, SessionRequest};
pub use tally::Tally;
