//! The caller of a request and its rights.

use super::denied::{Forbidden, Holder};
use super::error::SettingError;
use super::key::Key;
use super::rights::Rights;
use super::scope::Scope;
use crate::json::Fields;

/// The caller of a request and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller<'a>(Credential<'a>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Credential<'a> {
    Trusted,
    Inside(&'a Key<'static>),
    Binding(Rights),
    Token { name: &'a str, rights: &'a Rights },
    Grant(Grant),
}

/// The rights of a grant: these verbs, with this key, under these policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) key: Key<'static>,
    pub(super) policies: Vec<String>,
    pub(super) verbs: Vec<&'static str>,
}

impl<'a> Caller<'a> {
    /// A caller with the service in its own program. It may do everything.
    pub const TRUSTED: Self = Self(Credential::Trusted);

    /// Code of an application's own Durable Object, in whose storage the budgets are. It may do everything; `own` is the key of requests
    /// that name none. Its rollbacks must take effect, so nothing of a budget may be cached outside that storage.
    #[must_use]
    pub const fn inside(own: &'a Key<'static>) -> Self {
        Self(Credential::Inside(own))
    }

    /// A caller with a service binding whose `props` are this JSON: `scopes`, `policies`, `inline` and `key_prefix`, each as for a token.
    /// Missing ones have the defaults: to consume and to adjust, under all policies, for all keys.
    ///
    /// # Errors
    /// All [`SettingError`]s.
    pub fn binding(props: Option<&str>) -> Result<Self, Vec<SettingError>> {
        Rights::of_binding(props).map(|rights| Self(Credential::Binding(rights)))
    }

    /// A caller with a service binding that only takes tokens, under this policy. Its `props` may have a `key_prefix`.
    ///
    /// # Errors
    /// All [`SettingError`]s.
    pub(crate) fn limiter(policy: &str, props: &Fields<'_>) -> Result<Self, Vec<SettingError>> {
        Rights::of_limiter(policy, props).map(|rights| Self(Credential::Binding(rights)))
    }

    pub(super) const fn token(name: &'a str, rights: &'a Rights) -> Self {
        Self(Credential::Token { name, rights })
    }

    pub(super) const fn grant(grant: Grant) -> Self {
        Self(Credential::Grant(grant))
    }

    /// A caller with a grant for this key and these policies.
    #[cfg(test)]
    pub(crate) fn of_key(key: Key<'static>, policies: &[&str]) -> Self {
        let policies = policies.iter().map(|&policy| policy.to_owned()).collect();
        Self::grant(Grant { key, policies, verbs: vec!["consume", "peek"] })
    }

    /// Checks the right to an endpoint: `verb` is the last part of its path.
    ///
    /// # Errors
    /// [`Forbidden::Scope`] and [`Forbidden::Verb`].
    pub fn may(&self, scope: Scope, verb: &'static str) -> Result<(), Forbidden> {
        let has = match &self.0 {
            Credential::Trusted | Credential::Inside(_) => return Ok(()),
            Credential::Binding(rights) => Some(&rights.scopes),
            Credential::Token { rights, .. } => Some(&rights.scopes),
            // The scope first: operators' endpoints have verbs with the same names.
            Credential::Grant(grant) if scope == Scope::Consume => {
                let is_granted = grant.verbs.contains(&verb);
                return if is_granted { Ok(()) } else { Err(Forbidden::Verb { verb, has: grant.verbs.clone() }) };
            }
            Credential::Grant(_) => None,
        };
        match has {
            Some(has) if has.contains(&scope) => Ok(()),
            has => Err(Forbidden::Scope { missing: scope, verb, has: has.cloned(), holder: self.holder() }),
        }
    }

    /// Checks the right to the policy with that name. Reveal nothing about the policy before: it may not even exist.
    ///
    /// # Errors
    /// [`Forbidden::Policy`].
    pub fn may_use(&self, policy: &str) -> Result<(), Forbidden> {
        match self.policies() {
            Some(policies) if !policies.iter().any(|other| other == policy) => {
                Err(Forbidden::Policy { policy: policy.to_owned(), has: policies.to_vec(), holder: self.holder() })
            }
            _ => Ok(()),
        }
    }

    /// Checks the right to requests with limits of their own.
    ///
    /// # Errors
    /// [`Forbidden::Inline`].
    pub fn may_inline(&self) -> Result<(), Forbidden> {
        let may_inline = match &self.0 {
            Credential::Trusted | Credential::Inside(_) => true,
            Credential::Binding(rights) => rights.may_inline,
            Credential::Token { rights, .. } => rights.may_inline,
            Credential::Grant(_) => false,
        };
        if may_inline { Ok(()) } else { Err(Forbidden::Inline { holder: self.holder() }) }
    }

    /// The key of the request: the requested one, the grant's, or the caller's own, if any. `ipv6_prefix` is the policy's.
    ///
    /// # Errors
    /// [`Forbidden::Key`] and [`Forbidden::KeyPrefix`].
    pub fn key<'k>(&'k self, asked: Option<&'k Key<'k>>, ipv6_prefix: u8) -> Result<Option<&'k Key<'k>>, Forbidden> {
        self.require_prefix(asked)?;
        match (&self.0, asked) {
            (Credential::Grant(grant), Some(key)) if key.to_bytes(ipv6_prefix) != grant.key.to_bytes(ipv6_prefix) => {
                Err(Forbidden::Key)
            }
            (Credential::Grant(grant), _) => Ok(Some(&grant.key)),
            (Credential::Inside(own), None) => Ok(Some(own)),
            _ => Ok(asked),
        }
    }

    /// The key of the caller's grant, if it has one.
    pub(super) const fn grant_key(&self) -> Option<&Key<'static>> {
        if let Credential::Grant(grant) = &self.0 { Some(&grant.key) } else { None }
    }

    /// Checks the right to a budget that all keys share.
    ///
    /// # Errors
    /// [`Forbidden::KeyPrefix`].
    pub fn may_share(&self) -> Result<(), Forbidden> {
        self.require_prefix(None)
    }

    fn require_prefix(&self, asked: Option<&Key<'_>>) -> Result<(), Forbidden> {
        let rights = match &self.0 {
            Credential::Trusted | Credential::Inside(_) | Credential::Grant(_) => return Ok(()),
            Credential::Binding(rights) => rights,
            Credential::Token { rights, .. } => rights,
        };
        let prefix = rights.key_prefix.as_ref().filter(|_| !rights.have_key(asked));
        let forbidden = |prefix: &String| Forbidden::KeyPrefix { prefix: prefix.clone(), holder: self.holder() };
        prefix.map_or(Ok(()), |prefix| Err(forbidden(prefix)))
    }

    /// The caller's name in the audit log: that of the token. It is never secret.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Credential::Trusted | Credential::Inside(_) | Credential::Binding(_) => "a binding",
            Credential::Token { name, .. } => name,
            Credential::Grant(_) => "a grant",
        }
    }

    /// The only policies that the caller may use, unless all.
    #[must_use]
    pub fn policies(&self) -> Option<&[String]> {
        match &self.0 {
            Credential::Trusted | Credential::Inside(_) => None,
            Credential::Binding(rights) => rights.policies.as_deref(),
            Credential::Token { rights, .. } => rights.policies.as_deref(),
            Credential::Grant(grant) => Some(&grant.policies),
        }
    }

    const fn holder(&self) -> Holder {
        match &self.0 {
            Credential::Grant(_) => Holder::Grant,
            Credential::Token { .. } => Holder::Token,
            Credential::Binding(_) | Credential::Trusted | Credential::Inside(_) => Holder::Binding,
        }
    }

    /// Whether the caller is code of an application's own Durable Object: see [`Caller::inside`].
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        matches!(self.0, Credential::Inside(_))
    }

    /// Whether the caller has a grant, including one from a session.
    #[must_use]
    pub const fn has_grant(&self) -> bool {
        matches!(self.0, Credential::Grant(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{CredentialSettings, Credentials};

    const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of abc

    /// Calls `check` with the caller of a token with these JSON fields besides its hash.
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
                    let missing =
                        Forbidden::Scope { missing: other, verb: "x", has: Some(vec![scope]), holder: Holder::Token };
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
    fn only_a_token_that_says_so_may_bring_its_own_numbers() {
        assert_eq!(Caller::TRUSTED.may_inline(), Ok(()));
        assert_eq!(granted().may_inline(), Err(Forbidden::Inline { holder: Holder::Grant }));
        for (more, expected) in [
            ("", Err(Forbidden::Inline { holder: Holder::Token })),
            (r#","inline":false"#, Err(Forbidden::Inline { holder: Holder::Token })),
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
            assert_eq!(
                granted().may(scope, verb),
                Err(Forbidden::Scope { missing: scope, verb, has: None, holder: Holder::Grant })
            );
        }
    }

    #[test]
    fn a_token_may_use_all_policies_or_those_it_names() {
        with_token(r#""scopes":["consume"]"#, |caller| assert_eq!(caller.may_use("any"), Ok(())));
        assert_eq!(Caller::TRUSTED.may_use("any"), Ok(()));
        let forbidden = |policy: &str, has: &[&str], holder| {
            let has = has.iter().map(|&name| name.to_owned()).collect();
            Err(Forbidden::Policy { policy: policy.to_owned(), has, holder })
        };
        with_token(r#""scopes":["consume"],"policies":["api"]"#, |caller| {
            assert_eq!(caller.may_use("api"), Ok(()));
            for other in ["daily", "Api", "api ", ""] {
                assert_eq!(caller.may_use(other), forbidden(other, &["api"], Holder::Token));
            }
        });
        assert_eq!(granted().may_use("daily"), Ok(()));
        assert_eq!(granted().may_use("llm"), forbidden("llm", &["api", "daily"], Holder::Grant));
    }

    #[test]
    fn a_binding_follows_its_props_and_without_them_may_not_operate_or_bring_numbers() {
        let bound = |props| Caller::binding(props).unwrap_or_else(|errors| panic!("{errors:?}"));
        for none in [None, Some("{}")] {
            let caller = bound(none);
            assert_eq!(caller.may(Scope::Consume, "consume"), Ok(()));
            assert_eq!(caller.may(Scope::Adjust, "reset"), Ok(()));
            let (missing, has) = (Scope::Admin, Some(vec![Scope::Consume, Scope::Adjust]));
            let forbidden = Forbidden::Scope { missing, verb: "reset", has, holder: Holder::Binding };
            assert_eq!(caller.may(Scope::Admin, "reset"), Err(forbidden));
            assert_eq!((caller.may_use("any"), caller.key(None, 64)), (Ok(()), Ok(None)));
            assert_eq!(caller.may_inline(), Err(Forbidden::Inline { holder: Holder::Binding }));
        }
        let caller = bound(Some(r#"{"policies":["api"],"key_prefix":"acme:","inline":true}"#));
        let (has, holder) = (vec!["api".to_owned()], Holder::Binding);
        assert_eq!(caller.may_use("api"), Ok(()));
        assert_eq!(caller.may_use("daily"), Err(Forbidden::Policy { policy: "daily".to_owned(), has, holder }));
        assert_eq!(caller.may_inline(), Ok(()));
        let (ours, theirs) = (Key::Text("acme:alice".into()), Key::Text("other:alice".into()));
        assert_eq!(caller.key(Some(&ours), 64), Ok(Some(&ours)));
        for other in [None, Some(&theirs)] {
            let forbidden = Forbidden::KeyPrefix { prefix: "acme:".to_owned(), holder };
            assert_eq!(caller.key(other, 64), Err(forbidden));
        }
        assert!(caller.may_share().is_err(), "not what all keys share");
        assert_eq!(bound(None).may_share(), Ok(()));
        assert_eq!(bound(Some(r#"{"scopes":["admin"]}"#)).may(Scope::Admin, "reset"), Ok(()));
        assert!(bound(Some(r#"{"scopes":["admin"]}"#)).may(Scope::Consume, "consume").is_err());
        assert!(Caller::binding(Some("[]")).is_err());
    }

    #[test]
    fn a_token_with_a_key_prefix_has_those_keys_only() {
        with_token(r#""scopes":["consume"],"key_prefix":"acme:""#, |caller| {
            let (ours, theirs) = (Key::Text("acme:alice".into()), Key::Text("alice".into()));
            assert_eq!(caller.key(Some(&ours), 64), Ok(Some(&ours)));
            let forbidden = Forbidden::KeyPrefix { prefix: "acme:".to_owned(), holder: Holder::Token };
            assert_eq!(caller.key(Some(&theirs), 64), Err(forbidden));
        });
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
