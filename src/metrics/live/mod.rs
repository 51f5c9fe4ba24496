//! Decisions as they are made, for operators who look on.
//!
//! Decisions are made in many isolates, and they meet in the registry. An operator asks it again and again, each second or so, for
//! what came since; as long as that goes on, the operator is a listener of the [`Audience`]. Isolates hear who listens to what with
//! their polls: [`Listeners`]. From then on they send what matches as a [`LiveBatch`], a few times in ten seconds, and the answer is
//! again who listens. With no listener nothing is made, sent or kept.
//!
//! All of it is bounded: what an isolate sends, how often, and what the registry keeps. What is left out is counted, for each
//! listener, and told.

mod audience;
mod batch;
mod decision;
mod filter;
mod listeners;

pub use audience::{
    Audience, Cursor, Heard, KEPT, LISTEN_MS, MAX_LISTENERS, MAX_OWN_LISTENERS, MAX_PER_SECOND,
    MAX_RESTRICTED_LISTENERS, POLL_AFTER_MS, TooMany,
};
pub use batch::{LiveBatch, MAX_DECISIONS};
pub use decision::{DecidedBy, LiveDecision};
pub use filter::LiveFilter;
pub use listeners::{Listener, Listeners};
