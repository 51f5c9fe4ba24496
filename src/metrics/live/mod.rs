//! Decisions as they are made, for operators who listen to them.
//!
//! Decisions are made in many isolates and collected in the registry. An operator requests new ones about every second, and is a listener
//! of the [`Audience`] while doing so. Isolates receive the [`Listeners`] with their polls. From then on they send matching decisions as a
//! [`LiveBatch`], a few times in ten seconds, and get the listeners in the answer. Without listeners nothing is made, sent or kept.
//!
//! All of it is bounded: what an isolate sends, how often, and what the registry keeps. Omitted decisions are counted and reported to each
//! listener.

mod audience;
mod batch;
mod decision;
mod filter;
mod listeners;

pub use audience::{
    Audience, Cursor, KEPT, LISTEN_MS, LivePage, MAX_LISTENERS, MAX_OWN_LISTENERS, MAX_PER_SECOND,
    MAX_RESTRICTED_LISTENERS, POLL_AFTER_MS, TooMany,
};
pub use batch::{LiveBatch, MAX_DECISIONS};
pub use decision::{DecidedBy, LiveDecision};
pub use filter::LiveFilter;
pub use listeners::{Listener, Listeners};
