//! Who asks, and what they may do.

use super::grants::Grant;
use super::key::Key;
use super::scope::Scope;
use super::tokens::Token;

/// Who asks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller<'a>(Credential<'a>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Credential<'a> {
    Binding,
    Token(&'a Token),
    Grant(Grant),
}

impl<'a> Caller<'a> {
    /// A caller that holds a binding to the service, or has it in its own program. It may do everything.
    pub const TRUSTED: Self = Self(Credential::Binding);

    pub(super) const fn token(token: &'a Token) -> Self {
        Self(Credential::Token(token))
    }

    pub(super) const fn grant(grant: Grant) -> Self {
        Self(Credential::Grant(grant))
    }

    /// The caller with a grant for this key and these policies.
    #[cfg(test)]
    pub(crate) fn of_key(key: Key<'static>, policies: &[&str]) -> Self {
        let policies = policies.iter().map(|&policy| policy.to_owned()).collect();
        Self::grant(Grant { key, policies, verbs: vec!["consume", "peek"] })
    }

    /// Whether the caller may use an endpoint: `verb` is the last part of its path.
    ///
    /// # Errors
    /// [`Forbidden::Scope`] and [`Forbidden::Verb`].
    pub fn may(&self, scope: Scope, verb: &'static str) -> Result<(), Forbidden> {
        match &self.0 {
            Credential::Binding => Ok(()),
            Credential::Token(token) if token.scopes.contains(&scope) => Ok(()),
            Credential::Token(token) => Err(Forbidden::Scope { missing: scope, verb, has: Some(token.scopes.clone()) }),
            // First: operators' endpoints have verbs of the same names.
            Credential::Grant(_) if scope != Scope::Consume => {
                Err(Forbidden::Scope { missing: scope, verb, has: None })
            }
            Credential::Grant(grant) if grant.verbs.contains(&verb) => Ok(()),
            Credential::Grant(grant) => Err(Forbidden::Verb { verb, has: grant.verbs.clone() }),
        }
    }

    /// Whether the caller may use the policy of that name. Say nothing about it before: it may not even exist.
    ///
    /// # Errors
    /// [`Forbidden::Policy`].
    pub fn may_use(&self, policy: &str) -> Result<(), Forbidden> {
        match self.policies() {
            Some(policies) if !policies.iter().any(|other| other == policy) => {
                Err(Forbidden::Policy { policy: policy.to_owned(), has: policies.to_vec() })
            }
            _ => Ok(()),
        }
    }

    /// Whether the caller's requests may bring the numbers of their limits.
    ///
    /// # Errors
    /// [`Forbidden::Inline`].
    pub fn may_inline(&self) -> Result<(), Forbidden> {
        match &self.0 {
            Credential::Binding => Ok(()),
            Credential::Token(token) if token.may_inline => Ok(()),
            Credential::Token(_) => Err(Forbidden::Inline { is_grant: false }),
            Credential::Grant(_) => Err(Forbidden::Inline { is_grant: true }),
        }
    }

    /// The key of the request: the one it asks for, or that of the grant, `None` if there is neither. `ipv6_prefix` is the
    /// policy's.
    ///
    /// # Errors
    /// [`Forbidden::Key`].
    pub fn key<'k>(&'k self, asked: Option<&'k Key<'k>>, ipv6_prefix: u8) -> Result<Option<&'k Key<'k>>, Forbidden> {
        let Credential::Grant(grant) = &self.0 else { return Ok(asked) };
        match asked {
            Some(key) if key.to_bytes(ipv6_prefix) != grant.key.to_bytes(ipv6_prefix) => Err(Forbidden::Key),
            _ => Ok(Some(&grant.key)),
        }
    }

    /// Who asks, for the audit log: the name of the token. None is secret.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Credential::Binding => "a binding",
            Credential::Token(token) => &token.name,
            Credential::Grant(_) => "a grant",
        }
    }

    /// The only policies that the caller may use, if not all.
    #[must_use]
    pub fn policies(&self) -> Option<&[String]> {
        match &self.0 {
            Credential::Binding => None,
            Credential::Token(token) => token.policies.as_deref(),
            Credential::Grant(grant) => Some(&grant.policies),
        }
    }

    /// Whether it holds a grant, also one of a session.
    #[must_use]
    pub const fn has_grant(&self) -> bool {
        matches!(self.0, Credential::Grant(_))
    }
}

/// What a caller may not do.
#[expect(missing_docs, reason = "the sentence of a variant says what its fields are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The endpoint needs a scope that the token has not; `has` is `None` for a grant, which can never have it.
    Scope { missing: Scope, verb: &'static str, has: Option<Vec<Scope>> },
    /// The grant is for other verbs.
    Verb { verb: &'static str, has: Vec<&'static str> },
    /// The token or grant is for other policies.
    Policy { policy: String, has: Vec<String> },
    /// The request brings numbers of its own, and the token does not allow that; a grant never does.
    Inline { is_grant: bool },
    /// The grant is for another key.
    Key,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{CredentialSettings, Credentials};

    const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of abc

    /// Calls `check` with the caller of a token with that JSON besides its hash.
    fn with_token(fields: &str, check: impl Fn(Caller<'_>)) {
        let tokens = format!(r#"{{"t":{{"sha256":"{SHA256}",{fields}}}}}"#);
        let settings = CredentialSettings { tokens: Some(&tokens), ..CredentialSettings::default() };
        let credentials = Credentials::new(settings).unwrap_or_else(|errors| panic!("{errors:?}"));
        check(credentials.check(Some("Bearer abc"), 0).unwrap());
    }

    fn granted() -> Caller<'static> {
        let policies = vec!["api".to_owned(), "daily".to_owned()];
        Caller::grant(Grant { key: Key::Text("alice".into()), policies, verbs: vec!["consume", "peek"] })
    }

    #[test]
    fn a_token_may_use_the_endpoints_of_its_scopes() {
        for scope in Scope::ALL {
            with_token(&format!(r#""scopes":["{}"]"#, scope.word()), |caller| {
                for other in Scope::ALL {
                    let missing = Forbidden::Scope { missing: other, verb: "x", has: Some(vec![scope]) };
                    let expected = if other == scope { Ok(()) } else { Err(missing) };
                    assert_eq!(caller.may(other, "x"), expected);
                    assert_eq!(Caller::TRUSTED.may(other, "x"), Ok(()));
                }
            });
        }
        with_token(r#""scopes":["consume","adjust"]"#, |caller| {
            assert_eq!(caller.may(Scope::Consume, "peek"), Ok(()));
            assert_eq!(caller.may(Scope::Adjust, "reset"), Ok(()));
        });
    }

    #[test]
    fn only_a_token_that_says_so_may_bring_numbers_of_its_own() {
        assert_eq!(Caller::TRUSTED.may_inline(), Ok(()));
        assert_eq!(granted().may_inline(), Err(Forbidden::Inline { is_grant: true }));
        for (more, expected) in [
            ("", Err(Forbidden::Inline { is_grant: false })),
            (r#","inline":false"#, Err(Forbidden::Inline { is_grant: false })),
            (r#","inline":true"#, Ok(())),
        ] {
            with_token(&format!(r#""scopes":["consume"]{more}"#), |caller| assert_eq!(caller.may_inline(), expected));
        }
    }

    #[test]
    fn a_grant_may_use_its_verbs_and_never_another_scope() {
        assert_eq!(granted().may(Scope::Consume, "consume"), Ok(()));
        assert_eq!(granted().may(Scope::Consume, "peek"), Ok(()));
        let has = vec!["consume", "peek"];
        assert_eq!(granted().may(Scope::Consume, "settle"), Err(Forbidden::Verb { verb: "settle", has }));
        for (scope, verb) in [(Scope::Adjust, "reset"), (Scope::Admin, "x"), (Scope::Admin, "consume")] {
            assert_eq!(granted().may(scope, verb), Err(Forbidden::Scope { missing: scope, verb, has: None }));
        }
    }

    #[test]
    fn policies_are_all_or_those_that_are_named() {
        with_token(r#""scopes":["consume"]"#, |caller| assert_eq!(caller.may_use("any"), Ok(())));
        assert_eq!(Caller::TRUSTED.may_use("any"), Ok(()));
        let forbidden = |policy: &str, has: &[&str]| {
            let has = has.iter().map(|&name| name.to_owned()).collect();
            Err(Forbidden::Policy { policy: policy.to_owned(), has })
        };
        with_token(r#""scopes":["consume"],"policies":["api"]"#, |caller| {
            assert_eq!(caller.may_use("api"), Ok(()));
            for other in ["daily", "Api", "api ", ""] {
                assert_eq!(caller.may_use(other), forbidden(other, &["api"]));
            }
        });
        assert_eq!(granted().may_use("daily"), Ok(()));
        assert_eq!(granted().may_use("llm"), forbidden("llm", &["api", "daily"]));
    }

    #[test]
    fn a_grant_has_its_key_and_no_other() {
        let (alice, bob) = (Key::Text("alice".into()), Key::Text("bob".into()));
        let list = Key::List(vec!["alice".into()]);
        assert_eq!(granted().key(None, 64), Ok(Some(&alice)));
        assert_eq!(granted().key(Some(&alice), 64), Ok(Some(&alice)));
        for other in [&bob, &list] {
            assert_eq!(granted().key(Some(other), 64), Err(Forbidden::Key));
        }
        assert_eq!(Caller::TRUSTED.key(Some(&bob), 64), Ok(Some(&bob)));
        assert_eq!(Caller::TRUSTED.key(None, 64), Ok(None));
        with_token(r#""scopes":["consume"]"#, |caller| assert_eq!(caller.key(Some(&bob), 64), Ok(Some(&bob))));
    }

    #[test]
    fn the_address_of_a_grant_is_its_network() {
        let ip = |text: &str| Key::Ip(text.parse().unwrap());
        let grant = Grant { key: ip("2001:db8::1"), policies: vec!["api".to_owned()], verbs: vec!["consume"] };
        let caller = Caller::grant(grant);
        assert!(caller.key(Some(&ip("2001:db8::2")), 64).is_ok());
        assert_eq!(caller.key(Some(&ip("2001:db8::2")), 128), Err(Forbidden::Key));
        assert_eq!(caller.key(Some(&ip("2001:db8:0:1::1")), 64), Err(Forbidden::Key));
    }
}
