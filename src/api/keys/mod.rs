//! Operators' endpoints for one key, under `/v1/keys/`: inspect, explain, reset, credit, block.
//!
//! The key is in the body: keys are personal data, and URLs are logged. For the same reason the audit log has the key's hash. Operators who
//! only have a hash, from a log or a list, send that: `{"hash":"…"}`.

mod act;
mod block;
mod explain;
mod inspect;
mod question;

pub use block::{BLOCK_PATH, BlockRequest};
pub use inspect::{INSPECT_KEY_PATH, InspectKeyRequest, inspected, key_state};
pub use question::KeyQuestion;

pub(super) use act::Act;
pub(super) use explain::explanation;
