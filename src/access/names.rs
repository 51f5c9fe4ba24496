//! The names of objects: keyed hashes, so that neither names nor logs reveal a key.

use hmac::Mac;

use super::caller::Caller;
use super::error::{SettingError, require_long_enough};
use super::setting::KEY_SECRET;
use crate::hex::hex_of;
use crate::key_hash::{KeyHash, KeyHasher};

/// How many digits of an object's name are the hash of its key; the shard's follow.
const HASH_DIGITS: usize = 32;

/// Names the objects of keys, and hashes texts that clients choose.
pub struct Names {
    hasher: KeyHasher,
}

impl Names {
    /// Checks the secret `TOLLGATE_KEY_SECRET`.
    ///
    /// # Errors
    /// If it is missing or shorter than 16 bytes.
    pub fn new(key_secret: Option<&str>) -> Result<Self, SettingError> {
        require_long_enough(KEY_SECRET, key_secret).map(Self::of)
    }

    /// Names without a secret. An attacker who sees an object's name can find its key by trying likely ones.
    #[must_use]
    pub fn without_secret() -> Self {
        Self::of("")
    }

    /// The hash of a key, given as [its bytes](super::Key::to_bytes).
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// The hasher.
    #[must_use]
    pub const fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The name of the object with all buckets of a key, given as [its bytes](super::Key::to_bytes): the 32 hexadecimal digits of its hash.
    /// So the hash is enough to reach the object.
    #[must_use]
    pub fn object_name(&self, key: impl AsRef<[u8]>) -> String {
        hex_of(&self.hash(key.as_ref()))
    }

    /// The id of a client's `Idempotency-Key`: 128 bits of HMAC-SHA-256, so that its text is not stored. Each key with grants has ids of
    /// its own: one visitor's choice must not collide with the backend's, nor, in a budget that all share, with another visitor's.
    #[must_use]
    pub fn request_id_of(&self, idempotency_key: &str, caller: &Caller<'_>) -> u128 {
        // The prefixes prevent collisions with the name of any key in use.
        let hmac = match caller.grant_key() {
            None => self.hasher.hmac().chain_update(b"\0idempotency\0"),
            Some(key) => {
                let key = key.to_bytes(WHOLE_ADDRESS);
                let len = (key.len() as u64).to_le_bytes();
                self.hasher.hmac().chain_update(b"\0grant idempotency\0").chain_update(len).chain_update(key)
            }
        };
        let digest = hmac.chain_update(idempotency_key);
        digest.finalize().into_bytes().first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }

    fn of(secret: &str) -> Self {
        Self { hasher: KeyHasher::new(secret) }
    }
}

/// The name of the object of a shard of a key's budgets, from that of the key's own object. The first shard is the key's own object, so
/// that an existing budget can be divided.
#[must_use]
pub fn shard_name(own: &str, shard: u8) -> String {
    if shard == 0 { own.to_owned() } else { format!("{own}-{shard}") }
}

/// The hash of the key in an object's name, the same for all shards: the name of the key in answers, logs and the audit log.
#[must_use]
pub fn key_hash_in(object: &str) -> &str {
    object.get(..HASH_DIGITS).unwrap_or(object)
}

/// The full address that a grant is for, not a policy's network.
const WHOLE_ADDRESS: u8 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Key;

    fn names() -> Names {
        Names::new(Some("another secret 16")).unwrap()
    }

    /// A change here loses every stored bucket.
    #[test]
    fn an_object_is_named_by_the_hash_of_its_key() {
        let name = names().object_name("alice");
        assert_eq!(name, "55db67a2116548932fc4d6df88bed29c");
        assert_eq!(names().object_name(crate::key_hash::bytes_of(&names().hash(b"alice"))), name);
        assert_eq!(Names::without_secret().object_name("alice"), "ce3837f76a54a635191b1704ac767226");
    }

    /// A change here loses the shards' buckets.
    #[test]
    fn shard_names_are_unchanged() {
        let (alice, by_hash) = ("alice", crate::key_hash::bytes_of(&names().hash(b"alice")));
        for (shard, end) in [(0, ""), (1, "-1"), (15, "-15")] {
            let name = shard_name(&names().object_name(alice), shard);
            assert_eq!(name, format!("55db67a2116548932fc4d6df88bed29c{end}"));
            assert_eq!(shard_name(&names().object_name(&by_hash), shard), name);
            assert_eq!(key_hash_in(&name), names().object_name(alice));
        }
    }

    /// A change here forgets all `Idempotency-Key`s.
    #[test]
    fn request_ids_are_unchanged() {
        let id_of = |text| names().request_id_of(text, &Caller::TRUSTED);
        assert_eq!(id_of("order-1234"), 0x9d66_0b12_27a2_ac84_c832_502f_b912_6b44);
        assert_ne!(id_of("order-1235"), id_of("order-1234"));
    }

    #[test]
    fn holders_of_grants_for_other_keys_have_other_request_ids() {
        let id_of = |key: &str| names().request_id_of("1", &Caller::of_key(Key::Text(key.to_owned().into()), &["all"]));
        assert_eq!(id_of("alice"), id_of("alice"));
        assert_ne!(id_of("alice"), id_of("bob"));
        assert_ne!(id_of("alice"), names().request_id_of("1", &Caller::TRUSTED));
    }

    #[test]
    fn an_unusable_secret_is_named() {
        let error = |secret| Names::new(secret).err().map(|error| error.to_string());
        assert_eq!(error(Some("16 bytes of text")), None);
        // The secret is never sent, so a line break at its end is harmless.
        assert_eq!(error(Some("16 bytes of text\n")), None);
        let short = "the secret TOLLGATE_KEY_SECRET has 15 bytes: it needs 16 random ones";
        assert_eq!(error(Some("15 bytes of tex")).as_deref(), Some(short));
        let missing =
            "the secret TOLLGATE_KEY_SECRET is missing: set it with `wrangler secret put TOLLGATE_KEY_SECRET`";
        assert_eq!(error(None).as_deref(), Some(missing));
    }
}
