//! The secrets of a deployment: the token that callers send, and the key of the hash that names objects.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The two secrets of a deployment: never printed, and compared in constant time.
pub struct Credentials {
    token: String,
    /// HMAC with its key already absorbed: saves half the work of each [`Credentials::object_name`].
    names: Hmac<Sha256>,
}

impl Credentials {
    /// Checks the secrets `TOLLGATE_TOKEN` and `TOLLGATE_KEY_SECRET`.
    ///
    /// # Errors
    /// One for each secret that is missing or shorter than 16 bytes, and for a token that no caller could send.
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
        let token = long_enough(TOKEN, token);
        let key_secret = long_enough("TOLLGATE_KEY_SECRET", key_secret);
        if token.trim().len() < token.len() || !token.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            errors.push(CredentialsError::Unsendable { name: TOKEN });
        }
        match Hmac::new_from_slice(key_secret.as_bytes()) {
            Ok(names) if errors.is_empty() => Ok(Self { token, names }),
            _ => Err(errors), // HMAC takes keys of any length, so `errors` is not empty
        }
    }

    /// Checks an `Authorization` header against the bearer token, in a time that depends only on the lengths.
    ///
    /// # Errors
    /// [`Denied`], for the log only: the client gets the same answer in all cases.
    pub fn check(&self, authorization: Option<&str>) -> Result<(), Denied> {
        let authorization = authorization.ok_or(Denied::NoHeader)?;
        let (scheme, token) = authorization.split_once(' ').unwrap_or_default();
        if !scheme.eq_ignore_ascii_case("Bearer") {
            return Err(Denied::NotBearer);
        }
        let is_same = token.trim().as_bytes().ct_eq(self.token.as_bytes());
        if bool::from(is_same) { Ok(()) } else { Err(Denied::WrongToken) }
    }

    /// The name of the object that keeps all buckets of `key`: 64 hexadecimal digits of HMAC-SHA-256. It does not give the
    /// key away, not even to an attacker who tries all IP addresses.
    #[must_use]
    pub fn object_name(&self, key: &str) -> String {
        let digest = self.names.clone().chain_update(key).finalize().into_bytes();
        digest.iter().flat_map(|byte| [hex_digit(byte >> 4), hex_digit(byte & 15)]).collect()
    }

    /// The id of a client's `Idempotency-Key`: 128 bits of HMAC-SHA-256, so that its text is not stored.
    #[must_use]
    pub fn request_id_of(&self, idempotency_key: &str) -> u128 {
        // The prefix keeps it apart from the name of any key in use.
        let digest = self.names.clone().chain_update(b"\0idempotency\0").chain_update(idempotency_key);
        digest.finalize().into_bytes().first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }
}

/// Why a request is denied. Reveals nothing about the token that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no `Authorization` header.
    NoHeader,
    /// The header is not `Bearer` and a token.
    NotBearer,
    /// The token is wrong.
    WrongToken,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHeader => "no Authorization header",
            Self::NotBearer => "the Authorization header is not `Bearer <token>`",
            Self::WrongToken => "wrong token",
        })
    }
}

impl std::error::Error for Denied {}

/// Why a secret cannot be used.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialsError {
    /// It is not set.
    Missing { name: &'static str },
    /// It is shorter than 16 bytes.
    TooShort { name: &'static str, len: usize },
    /// It has white space at an end or a character that is not printable ASCII, which an HTTP header cannot carry.
    Unsendable { name: &'static str },
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Missing { name } => {
                write!(f, "the secret {name} is missing: set it with `wrangler secret put {name}`")
            }
            Self::TooShort { name, len } => {
                write!(f, "the secret {name} has {len} bytes: it needs {MIN_SECRET_LEN} random ones")
            }
            Self::Unsendable { name } => {
                write!(f, "the secret {name} cannot be sent in a header: ")?;
                f.write_str("it must be printable ASCII, with no white space at either end")
            }
        }
    }
}

impl std::error::Error for CredentialsError {}

/// 16 random bytes cannot be guessed. A text of 16 characters holds less, but is longer than any word.
const MIN_SECRET_LEN: usize = 16;

const TOKEN: &str = "TOLLGATE_TOKEN";

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
    fn only_the_whole_token_with_its_scheme_is_let_in() {
        for (authorization, expected) in [
            (Some("Bearer a token of length"), Ok(())),
            (Some("bearer a token of length"), Ok(())), // the scheme's case does not matter, RFC 9110 §11.1
            (Some("Bearer  a token of length "), Ok(())),
            (Some("Bearer a token of lengt"), Err(Denied::WrongToken)),
            (Some("Bearer a token of length!"), Err(Denied::WrongToken)),
            (Some("Bearer A token of length"), Err(Denied::WrongToken)),
            (Some("Bearer "), Err(Denied::WrongToken)),
            (Some("Bearer"), Err(Denied::NotBearer)),
            (Some("Basic a token of length"), Err(Denied::NotBearer)),
            (Some("a token of length"), Err(Denied::NotBearer)),
            (Some(""), Err(Denied::NotBearer)),
            (None, Err(Denied::NoHeader)),
        ] {
            assert_eq!(credentials().check(authorization), expected, "{authorization:?}");
        }
    }

    #[test]
    fn every_secret_that_cannot_be_used_is_named() {
        assert!(Credentials::new(Some("t".repeat(16)), Some("k".repeat(16))).is_ok());
        let errors = Credentials::new(Some("t".repeat(15)), None).err();
        let expected = [
            CredentialsError::TooShort { name: "TOLLGATE_TOKEN", len: 15 },
            CredentialsError::Missing { name: "TOLLGATE_KEY_SECRET" },
        ];
        assert_eq!(errors.as_deref(), Some(&expected[..]));
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_an_error() {
        let errors = |token: &str| Credentials::new(Some(token.to_owned()), Some("k".repeat(16))).err();
        assert_eq!(errors("inner white space is fine"), None);
        assert_eq!(errors(&"!~".repeat(8)), None);
        let unsendable = Some(vec![CredentialsError::Unsendable { name: "TOLLGATE_TOKEN" }]);
        for token in [
            "a token of length ",
            " a token of length",
            "a token of length\n",
            "a token\nof length",
            "ein Schlüssel dafür",
        ] {
            assert_eq!(errors(token), unsendable, "{token:?}");
        }
        // The other secret is never sent, so a line break at its end is harmless.
        assert!(Credentials::new(Some("t".repeat(16)), Some("k".repeat(16) + "\n")).is_ok());
    }

    /// A change here loses every stored bucket. The digest is that of any other HMAC-SHA-256 implementation.
    #[test]
    fn object_names_are_unchanged() {
        let name = credentials().object_name("alice");
        assert_eq!(name, "55db67a2116548932fc4d6df88bed29c633ab1b55ea8ec6f5f06ad5276d79149");
        assert_ne!(name, credentials().object_name("Alice"));
    }
}
