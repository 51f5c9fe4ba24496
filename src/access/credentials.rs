//! The token that callers send.

use std::fmt;

use subtle::ConstantTimeEq;

/// The token of a deployment: never printed, and compared in constant time.
pub struct Credentials {
    token: String,
}

impl Credentials {
    /// Checks the secret `TOLLGATE_TOKEN`.
    ///
    /// # Errors
    /// If it is missing or shorter than 16 bytes, and if no caller could send it.
    pub fn new(token: Option<String>) -> Result<Self, Vec<CredentialsError>> {
        let is_sendable =
            |token: &String| token.trim().len() == token.len() && token.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let unsendable =
            token.as_ref().filter(|token| !is_sendable(token)).map(|_| CredentialsError::Unsendable { name: TOKEN });
        match (require_long_enough(TOKEN, token), unsendable) {
            (Ok(token), None) => Ok(Self { token }),
            (token, unsendable) => Err(token.err().into_iter().chain(unsendable).collect()),
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

/// The secret of that name, if it can be used.
pub(super) fn require_long_enough(name: &'static str, secret: Option<String>) -> Result<String, CredentialsError> {
    match secret {
        Some(secret) if secret.len() >= MIN_SECRET_LEN => Ok(secret),
        Some(secret) => Err(CredentialsError::TooShort { name, len: secret.len() }),
        None => Err(CredentialsError::Missing { name }),
    }
}

/// 16 random bytes cannot be guessed. A text of 16 characters holds less, but is longer than any word.
const MIN_SECRET_LEN: usize = 16;

const TOKEN: &str = "TOLLGATE_TOKEN";

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        match Credentials::new(Some("a token of length".into())) {
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
    fn a_token_that_is_too_short_or_missing_is_named() {
        assert!(Credentials::new(Some("t".repeat(16))).is_ok());
        let errors = |token| Credentials::new(token).err().unwrap_or_default();
        let short = CredentialsError::TooShort { name: "TOLLGATE_TOKEN", len: 15 };
        assert_eq!(errors(Some("t".repeat(15))), [short]);
        assert_eq!(errors(Some(" ".repeat(15))), [short, CredentialsError::Unsendable { name: "TOLLGATE_TOKEN" }]);
        assert_eq!(errors(None), [CredentialsError::Missing { name: "TOLLGATE_TOKEN" }]);
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_an_error() {
        let errors = |token: &str| Credentials::new(Some(token.to_owned())).err();
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
    }
}
