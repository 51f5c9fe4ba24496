//! A policy's names for objects and storage: hashes of what it is.

use sha2::{Digest, Sha256};

use super::named::{Labels, Policy};
use super::named_limit::NamedLimit;
use super::shard::Shard;
use super::stored::numbers_of;

impl Policy {
    /// The name that a frontend sends to an object: the policy's, with a hash of its limits' names if they have any. So an object of
    /// another deployment, with different limits or another order, does not confuse it with its own.
    #[doc(hidden)]
    #[must_use]
    pub fn wire_name(&self) -> &str {
        &self.labels().wire_name
    }

    /// The limits' numbers, as stored beside a bucket.
    #[doc(hidden)]
    #[must_use]
    pub fn numbers(&self) -> &str {
        &self.labels().numbers
    }

    /// Changes whenever the numbers do.
    #[doc(hidden)]
    #[must_use]
    pub fn version(&self) -> u64 {
        self.labels().version
    }

    fn labels(&self) -> &Labels {
        self.computed.labels.get_or_init(|| {
            let numbers = numbers_of(self.limits().iter().map(|limit| (limit.account(), limit.limit())));
            let version = hash_of(&numbers);
            let names: Vec<_> = self.limits().iter().filter_map(NamedLimit::own_account).collect();
            let inline = if self.is_inline() { "=" } else { "" };
            // Costs for a single unnamed limit must not match a policy that enforces none, nor the other way round.
            let is_plain = names.is_empty() && !self.limits().is_empty();
            let mark = if is_plain { String::new() } else { format!("#{:016x}", hash_of(&names.join(","))) };
            let shard = self.shard().map(|Shard { index, count }| format!("~{index}.{count}")).unwrap_or_default();
            Labels { numbers, version, wire_name: format!("{inline}{}{mark}{shard}", self.name()) }
        })
    }
}

/// 64 bits of a cryptographic hash, so that no two policies share them.
pub(super) fn hash_of(text: &str) -> u64 {
    Sha256::digest(text).first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
