//! The names of objects: keyed hashes, so that neither names nor logs give a key away.

use hmac::digest::Key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::caller::Caller;
use super::error::{SettingError, require_long_enough};
use crate::hex::hex_of;

/// Names the objects of keys, and hashes what clients choose.
pub struct Names {
    /// HMAC with its key already absorbed: saves half the work of each [`Names::object_name`].
    hmac: Hmac<Sha256>,
}

impl Names {
    /// Checks the secret `TOLLGATE_KEY_SECRET`.
    ///
    /// # Errors
    /// If it is missing or shorter than 16 bytes.
    pub fn new(key_secret: Option<&str>) -> Result<Self, SettingError> {
        require_long_enough(KEY_SECRET, key_secret).map(Self::of)
    }

    /// Names without a secret. An attacker who sees the name of an object can find its key by trying the likely ones.
    #[must_use]
    pub fn without_secret() -> Self {
        Self::of("")
    }

    /// The name of the object that keeps all buckets of a key, given as [its bytes](super::Key::to_bytes): 64 hexadecimal digits of HMAC-SHA-256. With a secret it does
    /// not give the key away, not even to an attacker who tries all IP addresses.
    #[must_use]
    pub fn object_name(&self, key: impl AsRef<[u8]>) -> String {
        let digest = self.hmac.clone().chain_update(key).finalize().into_bytes();
        hex_of(&digest)
    }

    /// The name of the object of a shard of the key's budgets. The first is the key's own, so that a budget can be divided that was whole.
    #[must_use]
    pub fn shard_name(&self, key: impl AsRef<[u8]>, shard: u8) -> String {
        if shard == 0 {
            return self.object_name(key);
        }
        // No key has these bytes: they are no text, and of no other form.
        let digest = self.hmac.clone().chain_update([0xff, 0, shard]).chain_update(key).finalize().into_bytes();
        hex_of(&digest)
    }

    /// The id of a client's `Idempotency-Key`: 128 bits of HMAC-SHA-256, so that its text is not stored. Holders of grants have ids of
    /// their own: what they choose must not get in the way of their backend's.
    #[must_use]
    pub fn request_id_of(&self, idempotency_key: &str, caller: &Caller<'_>) -> u128 {
        // The prefixes keep it apart from the name of any key in use.
        let prefix: &[u8] = if caller.has_grant() { b"\0grant idempotency\0" } else { b"\0idempotency\0" };
        let digest = self.hmac.clone().chain_update(prefix).chain_update(idempotency_key);
        digest.finalize().into_bytes().first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }

    fn of(secret: &str) -> Self {
        // HMAC takes keys of any length; that of none has the hash of no bytes as its block.
        let hmac =
            Hmac::new_from_slice(secret.as_bytes()).unwrap_or_else(|_| Hmac::new(&Key::<Hmac<Sha256>>::default()));
        Self { hmac }
    }
}

const KEY_SECRET: &str = "TOLLGATE_KEY_SECRET";

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new(Some("another secret 16")).unwrap()
    }

    /// A change here loses every stored bucket. The digests are those of any other HMAC-SHA-256 implementation.
    #[test]
    fn object_names_are_unchanged() {
        let name = names().object_name("alice");
        assert_eq!(name, "55db67a2116548932fc4d6df88bed29c633ab1b55ea8ec6f5f06ad5276d79149");
        assert_ne!(name, names().object_name("Alice"));
        let without = Names::without_secret().object_name("alice");
        assert_eq!(without, "ce3837f76a54a635191b1704ac7672264fc17c3397ff52e7dacfc1ef3603a493");
    }

    /// A change here loses what shards have.
    #[test]
    fn shard_names_are_unchanged() {
        assert_eq!(names().shard_name("alice", 0), names().object_name("alice"));
        let name = names().shard_name("alice", 1);
        assert_eq!(name, names().object_name(b"\xff\0\x01alice"));
        assert_ne!(name, names().shard_name("alice", 2));
    }

    /// A change here forgets what was done under an `Idempotency-Key`.
    #[test]
    fn request_ids_are_unchanged() {
        let id_of = |text| names().request_id_of(text, &Caller::TRUSTED);
        assert_eq!(id_of("order-1234"), 0x9d66_0b12_27a2_ac84_c832_502f_b912_6b44);
        assert_ne!(id_of("order-1235"), id_of("order-1234"));
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_named() {
        let error = |secret| Names::new(secret).err().map(|error| error.to_string());
        assert_eq!(error(Some("16 bytes of text")), None);
        // It is never sent, so a line break at its end is harmless.
        assert_eq!(error(Some("16 bytes of text\n")), None);
        let short = "the secret TOLLGATE_KEY_SECRET has 15 bytes: it needs 16 random ones";
        assert_eq!(error(Some("15 bytes of tex")).as_deref(), Some(short));
        let missing =
            "the secret TOLLGATE_KEY_SECRET is missing: set it with `wrangler secret put TOLLGATE_KEY_SECRET`";
        assert_eq!(error(None).as_deref(), Some(missing));
    }
}
