//! Counters: decisions, failures, calls of objects, polls of the registry, and the keys refused most.
//!
//! Each isolate counts in its own [`Counts`]. With a registry, it sends them as a [`Report`] with every poll, and the registry adds them up
//! in [`Totals`], which are rendered for Prometheus. Everything here is in memory: a restart begins at zero, which Prometheus understands
//! as a counter reset.
//!
//! The sets of labels are bounded: outcomes, causes and reasons are the few words below, and at most [`MAX_POLICIES`] policies are counted
//! under their own names; those from requests share one. A key is never a label.
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

mod counts;
mod histogram;
mod live;
mod refused_keys;
mod report;
mod sample;
mod text;
mod totals;
mod words;

pub use counts::{Counts, INLINE_POLICIES, MAX_POLICIES, OTHER_POLICIES};
pub use histogram::{BOUNDS_MS, Histogram};
pub use live::{
    Audience, Cursor, DecidedBy, KEPT, LISTEN_MS, Listener, Listeners, LiveBatch, LiveDecision, LiveFilter, LivePage,
    MAX_DECISIONS, MAX_LISTENERS, MAX_OWN_LISTENERS, MAX_PER_SECOND, MAX_RESTRICTED_LISTENERS, POLL_AFTER_MS, TooMany,
};
pub use refused_keys::{CAPACITY, RefusedKeys};
pub use report::Report;
pub use sample::{SAMPLE_SETTING, sample, weight};
pub use text::{MEDIA_TYPE, exposition};
pub use totals::{TopKey, TopRefused, Totals, WINDOW_MS};
pub use words::{CallOutcome, NoticeOutcome, Outcome, PollOutcome, Repeat, RowAccess, Word};
