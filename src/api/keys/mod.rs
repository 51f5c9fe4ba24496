//! What operators do with one key, under `/v1/keys/`: see how it stands, ask why, fill its buckets, give tokens, block it.
//!
//! The key is in the body: keys are personal data, and addresses of requests are logged. For the same reason the audit log has
//! the hash of the key. Who has no key but a hash, from a log or a list, gives that: `{"hash":"…"}`.

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
