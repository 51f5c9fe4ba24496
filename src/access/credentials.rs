//! A deployment's credentials: the API tokens and grants that it accepts.

use super::caller::Caller;
use super::denied::Denied;
use super::error::{Errors, SettingError};
use super::grants::{Grants, MAX_CREDENTIAL_LEN};
use super::session::{SessionSettings, Sessions};
use super::setting::{GRANT_KEYS, TOKENS};
use super::tokens::Tokens;

/// The settings for credentials, as texts; `None` if unset.
#[derive(Clone, Copy, Default)]
pub struct CredentialSettings<'a> {
    /// `TOLLGATE_TOKENS`: JSON such as `{"web":{"sha256":"<64 hex digits>","scopes":["consume"],"policies":["api"]}}`.
    pub tokens: Option<&'a str>,
    /// `TOLLGATE_GRANT_KEYS`: JSON such as `{"2026":"<base64url of 32 random bytes or more>"}`.
    pub grant_keys: Option<&'a str>,
    /// `TOLLGATE_AUDIENCE`: the `aud` of grants, if not `tollgate`.
    pub audience: Option<&'a str>,
    /// The settings of sessions.
    pub sessions: SessionSettings<'a>,
}

/// The credentials that a deployment accepts. Secrets are never printed, and compared in constant time.
pub struct Credentials {
    tokens: Tokens,
    grants: Grants,
    sessions: Option<Sessions>,
}

impl Credentials {
    /// Parses and checks all settings.
    ///
    /// # Errors
    /// All [`SettingError`]s, and one if there is no credential at all.
    pub fn new(settings: CredentialSettings<'_>) -> Result<Self, Vec<SettingError>> {
        let CredentialSettings { tokens, grant_keys, audience, sessions } = settings;
        let tokens = tokens.filter(|tokens| *tokens != "{}"); // the initial value in `wrangler.toml`
        let mut errors = Errors::default();
        if tokens.or(grant_keys).is_none() {
            let problem =
                format!("has no token, and {GRANT_KEYS} is not set: without any of them no request can be answered");
            errors.add(TOKENS, &problem);
        }
        let tokens = Tokens::new(tokens, &mut errors);
        let grants = Grants::new(grant_keys, audience, &mut errors);
        let sessions = Sessions::new(sessions, grant_keys.is_some(), grants.signer(), &mut errors);
        if errors.0.is_empty() { Ok(Self { tokens, grants, sessions }) } else { Err(errors.0) }
    }

    /// The sessions that visitors may open, if enabled.
    #[must_use]
    pub const fn sessions(&self) -> Option<&Sessions> {
        self.sessions.as_ref()
    }

    /// Authenticates this `Authorization` header at `now`. For API tokens the time depends only on the lengths.
    ///
    /// # Errors
    /// [`Denied`], for the log only: the client gets the same answer in all cases.
    pub fn check(&self, authorization: Option<&str>, now: i64) -> Result<Caller<'_>, Denied> {
        let authorization = authorization.ok_or(Denied::NoHeader)?;
        let (scheme, text) = authorization.split_once(' ').unwrap_or_default();
        let text = text.trim();
        if !scheme.eq_ignore_ascii_case("Bearer") {
            return Err(Denied::NotBearer);
        }
        if text.len() > MAX_CREDENTIAL_LEN {
            return Err(Denied::TooLong { len: text.len(), max: MAX_CREDENTIAL_LEN });
        }
        if let Some(token) = self.tokens.find(text) {
            return Ok(Caller::token(&token.name, &token.rights));
        }
        match text.matches('.').count() {
            2 => self.grants.verify(text, now).map(Caller::grant).map_err(Denied::Grant),
            _ => Err(Denied::WrongToken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::GrantError;

    fn credentials(settings: CredentialSettings<'_>) -> Credentials {
        Credentials::new(settings).unwrap_or_else(|errors| panic!("{errors:?}"))
    }

    fn of_token() -> Credentials {
        let tokens = r#"{"backend":{"sha256":"718fe96542de1e87c6268ced6ead95c57bac0edd3ae58d33c6d378c69d28fcf5","scopes":["consume"]}}"#;
        credentials(CredentialSettings { tokens: Some(tokens), ..CredentialSettings::default() })
    }

    fn errors(settings: CredentialSettings<'_>) -> Vec<String> {
        Credentials::new(settings).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_the_whole_token_with_its_scheme_is_accepted() {
        let longest = format!("Bearer {}", "x".repeat(MAX_CREDENTIAL_LEN));
        let too_long = format!("Bearer {}", "x".repeat(MAX_CREDENTIAL_LEN + 1));
        for (authorization, expected) in [
            (Some("Bearer a token of length"), Ok(())),
            (Some("bearer a token of length"), Ok(())), // the scheme's case does not matter, RFC 9110 §11.1
            (Some("Bearer  a token of length "), Ok(())),
            (Some("Bearer a token of lengt"), Err(Denied::WrongToken)),
            (Some("Bearer a token of length!"), Err(Denied::WrongToken)),
            (Some("Bearer A token of length"), Err(Denied::WrongToken)),
            (Some("Bearer "), Err(Denied::WrongToken)),
            (Some("Bearer a.b"), Err(Denied::WrongToken)),
            (Some("Bearer a.b.c"), Err(Denied::Grant(GrantError::Malformed { part: "the header" }))),
            (Some("Bearer a.b.c.d"), Err(Denied::WrongToken)),
            (Some("Bearer"), Err(Denied::NotBearer)),
            (Some("Basic a token of length"), Err(Denied::NotBearer)),
            (Some("a token of length"), Err(Denied::NotBearer)),
            (Some(""), Err(Denied::NotBearer)),
            (None, Err(Denied::NoHeader)),
            (Some(&longest), Err(Denied::WrongToken)),
            (Some(&too_long), Err(Denied::TooLong { len: MAX_CREDENTIAL_LEN + 1, max: MAX_CREDENTIAL_LEN })),
        ] {
            let credentials = of_token();
            assert_eq!(credentials.check(authorization, 0).map(|_| ()), expected, "{authorization:?}");
        }
    }

    #[test]
    fn at_least_one_credential_is_required() {
        let none = "TOLLGATE_TOKENS: has no token, and TOLLGATE_GRANT_KEYS is not set: without any of them no request can be \
                    answered";
        assert_eq!(errors(CredentialSettings::default()), [none]);
        assert_eq!(errors(CredentialSettings { audience: Some("x"), ..CredentialSettings::default() }), [none]);
        assert_eq!(errors(CredentialSettings { tokens: Some("{}"), ..CredentialSettings::default() }), [none]);
        let key = format!(r#"{{"k":"{}"}}"#, "A".repeat(43));
        assert_eq!(errors(CredentialSettings { grant_keys: Some(&key), ..CredentialSettings::default() }), [""; 0]);
    }

    #[test]
    fn errors_in_all_settings_are_reported_at_once() {
        let settings = CredentialSettings {
            tokens: Some(""),
            grant_keys: Some("[]"),
            audience: Some(""),
            ..CredentialSettings::default()
        };
        assert_eq!(
            errors(settings),
            [
                "TOLLGATE_TOKENS: is not valid JSON: it must be an object of tokens by name",
                "TOLLGATE_GRANT_KEYS: must be an object of keys by kid",
                "TOLLGATE_AUDIENCE: is empty: it must be the `aud` of grants, or not be set",
            ]
        );
    }

    #[test]
    fn the_log_says_why_a_request_is_denied() {
        for (denied, expected) in [
            (Denied::NoHeader, "no Authorization header"),
            (Denied::NotBearer, "the Authorization header is not `Bearer <token>`"),
            (Denied::TooLong { len: 4097, max: 4096 }, "a credential of 4097 bytes: at most 4096 are allowed"),
            (Denied::WrongToken, "wrong token"),
            (Denied::Grant(GrantError::NoKid), "a grant: it has no `kid`"),
        ] {
            assert_eq!(denied.to_string(), expected);
        }
    }

    #[test]
    fn the_reason_for_a_denial_reveals_nothing_of_the_request() {
        let secret = "c2VjcmV0";
        for text in [secret.to_owned(), format!("{secret}.{secret}.{secret}"), secret.repeat(1_000)] {
            let credentials = of_token();
            let denied = credentials.check(Some(&format!("Bearer {text}")), 0).unwrap_err().to_string();
            assert!(!denied.contains(secret), "{denied}");
        }
    }
}
