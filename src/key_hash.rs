//! The hash that identifies a key where its text is not used: in object names, overrides, logs and operators' lists.

use hmac::digest::Key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// 128 bits of HMAC-SHA-256 of a key's [bytes](crate::access::Key::to_bytes). No two keys share a hash. With a secret it does not reveal
/// the key, not even to an attacker who tries all IP addresses.
pub type KeyHash = [u8; 16];

/// Hashes keys with the secret of a deployment.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    /// Has already absorbed the secret, which halves the work per hash.
    hmac: Hmac<Sha256>,
}

impl KeyHasher {
    /// A hasher with this secret. With an empty one, a hash can be reversed by trying likely keys.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        // HMAC takes keys of any length, so the fallback is never used.
        let hmac =
            Hmac::new_from_slice(secret.as_bytes()).unwrap_or_else(|_| Hmac::new(&Key::<Hmac<Sha256>>::default()));
        Self { hmac }
    }

    /// The hash of the key with these bytes. Bytes that stand for a hash give that hash.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        hash_of(key).unwrap_or_else(|| first(self.hmac.clone().chain_update(key)))
    }

    /// An HMAC that takes more bytes and can be [finished](first) any number of times.
    pub(crate) fn hmac(&self) -> Hmac<Sha256> {
        self.hmac.clone()
    }
}

/// A hasher without a secret.
impl Default for KeyHasher {
    fn default() -> Self {
        Self::new("")
    }
}

/// The first half of the digest.
pub(crate) fn first(hmac: Hmac<Sha256>) -> KeyHash {
    hmac.finalize().into_bytes().first_chunk().copied().unwrap_or_default()
}

/// The bytes of a key known only by its hash; no other key has them.
pub(crate) fn bytes_of(hash: &KeyHash) -> Vec<u8> {
    [&FORM[..], hash].concat()
}

/// The hash encoded in these bytes; `None` if they are another key's.
pub(crate) fn hash_of(key: &[u8]) -> Option<KeyHash> {
    key.strip_prefix(&FORM)?.try_into().ok()
}

/// A byte that no text starts with, then one that no other form of key uses.
const FORM: [u8; 2] = [0xff, 8];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::hex_of;

    /// A change here loses every stored bucket. The digests match other HMAC-SHA-256 implementations.
    #[test]
    fn hashes_are_unchanged() {
        let hash = |secret: &str, key: &str| hex_of(&KeyHasher::new(secret).hash(key.as_bytes()));
        assert_eq!(hash("another secret 16", "alice"), "55db67a2116548932fc4d6df88bed29c");
        assert_ne!(hash("another secret 16", "Alice"), hash("another secret 16", "alice"));
        assert_eq!(hash("", "alice"), "ce3837f76a54a635191b1704ac767226");
    }

    #[test]
    fn a_hash_names_its_key() {
        let hasher = KeyHasher::new("another secret 16");
        for key in [&b"alice"[..], b"", b"\xff\x04\xc0\0\x02\x01", &[0xff, 8, 1], &[0xff, 8].repeat(9)[..17]] {
            let hash = hasher.hash(key);
            assert_eq!((hash_of(key), hasher.hash(&bytes_of(&hash))), (None, hash));
        }
    }
}
