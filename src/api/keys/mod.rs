//! What operators do with one key, under `/v1/keys/`: see how it stands, ask why, fill its buckets, give tokens, block it.
//!
//! The key is in the body: keys are personal data, and addresses of requests are logged. For the same reason the audit log has
//! the beginning of the name of the key's object, a keyed hash.

mod act;
mod block;
mod explain;
mod inspect;
mod question;

pub use act::key_act;
pub use block::{BLOCK_PATH, BlockRequest};
pub use inspect::{INSPECT_KEY_PATH, InspectKeyRequest, key_state, merged_key_states};
pub use question::KeyQuestion;

pub(super) use act::act;
pub(super) use explain::explanation;

/// How a key is called in answers, in the log and in the audit log: the beginning of its object's name, 64 of its 256 bits.
#[must_use]
pub fn short_name(object: &str) -> &str {
    object.get(..16).unwrap_or(object)
}
