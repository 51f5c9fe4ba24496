//! An isolate's identifier for a budget: one policy for one key.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::policy::Policy;

/// The hash of the key that names the object, and a hash of the shard and the policy's name.
pub(super) type Budget = (u128, u64);

/// `None` if that is not an object's name.
pub(super) fn budget(object: &str, policy: &Policy) -> Option<Budget> {
    let (key, shard) = object.split_at_checked(32)?;
    let mut hasher = DefaultHasher::new();
    (shard, policy.name()).hash(&mut hasher);
    Some((u128::from_str_radix(key, 16).ok()?, hasher.finish()))
}
