//! What an isolate calls a budget by: one policy for one key.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::policy::Policy;

/// 128 bits of the object's name, and a hash of the policy's.
pub(super) type Budget = (u128, u64);

/// `None` if that is not the name of an object.
pub(super) fn budget(object: &str, policy: &Policy) -> Option<Budget> {
    let object = u128::from_str_radix(object.get(..32)?, 16).ok()?;
    let mut hasher = DefaultHasher::new();
    policy.name().hash(&mut hasher);
    Some((object, hasher.finish()))
}
