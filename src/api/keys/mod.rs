//! Operators' endpoints for one key, under `/v1/keys/`: inspect, explain, reset, credit, block.
//!
//! The key is in the body: keys are personal data, and URLs are logged. For the same reason the audit log has the key's hash. Operators who
//! only have a hash, from a log or a list, send that: `{"hash":"…"}`.

mod act;
#[cfg(feature = "service")]
mod block;
mod explain;
#[cfg(feature = "service")]
mod inspect;
#[cfg(feature = "service")]
mod question;

#[cfg(feature = "service")]
pub use block::{BLOCK_PATH, BlockRequest};
#[cfg(feature = "service")]
pub use inspect::{INSPECT_KEY_PATH, InspectKeyRequest, inspected, key_state};
#[cfg(feature = "service")]
pub use question::KeyQuestion;

pub(super) use act::Act;
pub(super) use explain::explanation;
