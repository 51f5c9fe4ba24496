//! The secrets: who may ask, and under what name a key's object is found.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The two secrets of a deployment. Never printed, never compared in a time that tells anything.
pub struct Credentials {
    token: String,
    /// HMAC with its key already taken in: half the work of each [`Credentials::object_name`].
    names: Hmac<Sha256>,
}

impl Credentials {
    /// Checks the secrets `TOLLGATE_TOKEN` and `TOLLGATE_KEY_SECRET`.
    ///
    /// # Errors
    /// Every one that is missing or shorter than 16 bytes.
    pub fn new(token: Option<String>, key_secret: Option<String>) -> Result<Self, Vec<CredentialsError>> {
        let mut errors = Vec::new();
        let mut long_enough = |name, secret: Option<String>| match secret {
            Some(secret) if secret.len() >= MIN_SECRET_LEN => secret,
            Some(secret) => {
                errors.push(CredentialsError::TooShort { name, len: secret.len() });
                secret
            }
            None => {
                errors.push(CredentialsError::Missing { name });
                String::new()
            }
        };
        let token = long_enough("TOLLGATE_TOKEN", token);
        let key_secret = long_enough("TOLLGATE_KEY_SECRET", key_secret);
        match Hmac::new_from_slice(key_secret.as_bytes()) {
            Ok(names) if errors.is_empty() => Ok(Self { token, names }),
            _ => Err(errors), // HMAC takes keys of any length, so `errors` is not empty
        }
    }

    /// Checks an `Authorization` header against the bearer token, in a time that depends only on the lengths.
    #[must_use]
    pub fn allow(&self, authorization: Option<&str>) -> bool {
        let (scheme, token) = authorization.and_then(|value| value.split_once(' ')).unwrap_or_default();
        let same = token.trim().as_bytes().ct_eq(self.token.as_bytes());
        scheme.eq_ignore_ascii_case("Bearer") && bool::from(same)
    }

    /// The name of the object that keeps all buckets of `key`: 64 hexadecimal digits of HMAC-SHA-256. Whoever sees it
    /// learns nothing of the key, not even by trying all IP addresses.
    #[must_use]
    pub fn object_name(&self, key: &str) -> String {
        let digest = self.names.clone().chain_update(key).finalize().into_bytes();
        digest.iter().flat_map(|byte| [hex_digit(byte >> 4), hex_digit(byte & 15)]).collect()
    }

    /// The id of a client's `Idempotency-Key`: 128 bits of HMAC-SHA-256, so that what a client puts into it is not kept.
    #[must_use]
    pub fn request_id_of(&self, idempotency_key: &str) -> u128 {
        // The byte 0 and the word keep it apart from every name: no key has both.
        let digest = self.names.clone().chain_update(b"\0idempotency\0").chain_update(idempotency_key);
        digest.finalize().into_bytes().first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }
}

/// Why a secret cannot be used.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialsError {
    /// It is not set.
    Missing { name: &'static str },
    /// It is shorter than 16 bytes.
    TooShort { name: &'static str, len: usize },
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Missing { name } => {
                write!(f, "the secret {name} is missing: set it with `wrangler secret put {name}`")
            }
            Self::TooShort { name, len } => {
                write!(f, "the secret {name} has {len} bytes: it needs {MIN_SECRET_LEN}, from a random generator")
            }
        }
    }
}

impl std::error::Error for CredentialsError {}

/// 16 random bytes are out of reach of any guessing; a text of 16 characters may hold less, but never a word.
const MIN_SECRET_LEN: usize = 16;

fn hex_digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).unwrap_or('0') // a nibble is below 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        match Credentials::new(Some("a token of length".into()), Some("another secret 16".into())) {
            Ok(credentials) => credentials,
            Err(errors) => panic!("{errors:?}"),
        }
    }

    #[test]
    fn only_the_whole_token_with_its_scheme_is_allowed() {
        for (authorization, allowed) in [
            (Some("Bearer a token of length"), true),
            (Some("bearer a token of length"), true), // the scheme's case does not matter, RFC 9110 §11.1
            (Some("Bearer  a token of length "), true),
            (Some("Bearer a token of lengt"), false),
            (Some("Bearer a token of length!"), false),
            (Some("Bearer A token of length"), false),
            (Some("Bearer "), false),
            (Some("Bearer"), false),
            (Some("Basic a token of length"), false),
            (Some("a token of length"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(credentials().allow(authorization), allowed, "{authorization:?}");
        }
    }

    #[test]
    fn secrets_of_16_bytes_pass_and_every_one_that_does_not_is_named() {
        assert!(Credentials::new(Some("t".repeat(16)), Some("k".repeat(16))).is_ok());
        let errors = Credentials::new(Some("t".repeat(15)), None).err();
        let expected = [
            CredentialsError::TooShort { name: "TOLLGATE_TOKEN", len: 15 },
            CredentialsError::Missing { name: "TOLLGATE_KEY_SECRET" },
        ];
        assert_eq!(errors.as_deref(), Some(&expected[..]));
    }

    /// Whoever changes this loses every bucket there is. The digest is what any other HMAC-SHA-256 gives.
    #[test]
    fn object_names_are_unchanged() {
        let name = credentials().object_name("alice");
        assert_eq!(name, "55db67a2116548932fc4d6df88bed29c633ab1b55ea8ec6f5f06ad5276d79149");
        assert_ne!(name, credentials().object_name("Alice"));
    }
}
