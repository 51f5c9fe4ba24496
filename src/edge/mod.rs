//! What an isolate decides while it answers a request: which objects to call, when to call again, and when to give up.
//!
//! Nothing here waits. A state machine takes events (an answer, a failure, a moment) and returns the next step; JavaScript makes the calls
//! and waits for them. So a test can play any order of answers, failures and crashes, thousands of times a second.
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

mod answer_time;
mod batch;
mod budget;
mod deliveries;
mod generations;
mod lease_pool;
mod leases;
mod local_state;
mod outbox;
mod refusals;
mod shard_levels;
mod shards;
mod snapshot;
mod tap;

#[cfg(feature = "leases")]
pub(crate) use answer_time::AnswerTime;
pub use batch::{BATCH_MS, Batch, CALL_MS, Dialect, Failure, ObjectCall, Outcome};
pub use deliveries::{Attempt, Deliveries, Receiver};
pub use generations::MAX_BUDGETS;
pub use lease_pool::Return;
#[cfg(feature = "leases")]
pub(crate) use lease_pool::{LeaseNeeds, LeasePool, Worth};
pub use leases::Leased;
pub use local_state::LocalState;
pub use outbox::Outbox;
pub use refusals::Bound;
pub use shard_levels::ShardLevels;
pub use shards::ShardCalls;
pub use snapshot::{Due, FRESH_MS, InForce, POLL_MS, PolicySnapshot, REFRESH_MS, WAIT_MS};
pub use tap::Tap;
