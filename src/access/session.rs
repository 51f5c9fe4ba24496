//! Sessions: grants for visitors without an account who have solved a captcha.
//!
//! The verifier speaks the protocol of Cloudflare's Turnstile. It accepts a response once, and only from the widget that belongs to the
//! secret. If other pages use the same widget, the host and the action reported by the verifier distinguish them.

use std::borrow::Cow;

use base64ct::{Base64UrlUnpadded, Encoding};

use super::denied::{CaptchaError, verbs_rule};
use super::error::{Errors, SettingError, require_long_enough, shown};
use super::grants::{MAX_CREDENTIAL_LEN, MAX_LIFE_MS, Signer, granted};
use super::rights::texts;
use super::setting::{GRANT_KEYS, SESSIONS, TURNSTILE_SECRET};
use super::url::{URL_RULE, is_safe};
use crate::json::{Fields, Json};
use crate::length;

/// The sessions that visitors may open.
pub struct Sessions {
    policy: String,
    /// As JSON.
    policies: String,
    /// As JSON.
    verbs: String,
    ttl_ms: i64,
    verify_url: String,
    secret: String,
    /// Hosts where captchas must be solved; empty for any.
    hostnames: Vec<String>,
    /// The action that captchas must be solved for, unless any.
    action: Option<String>,
    signer: Signer,
}

/// The settings of sessions, as texts; `None` if unset.
#[derive(Clone, Copy, Default)]
pub struct SessionSettings<'a> {
    /// `TOLLGATE_SESSIONS`: JSON such as `{"policy":"visits","policies":["api"]}`. Without it there are no sessions.
    pub sessions: Option<&'a str>,
    /// `TURNSTILE_SECRET`.
    pub secret: Option<&'a str>,
    /// The names of all policies, if these are valid.
    pub policies: Option<&'a [&'a str]>,
    /// The names of those with one budget for all keys.
    pub shared: &'a [&'a str],
    /// The names of those with slots.
    pub with_slots: &'a [&'a str],
}

/// A session: its grant, its expiry and its key.
#[expect(missing_docs, reason = "the sentence above says what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub grant: String,
    pub expires_at: i64,
    pub key: String,
}

impl Sessions {
    /// Parses the settings. `signer` is `None` if there is no key to sign with, or if the keys have errors.
    pub(super) fn new(
        settings: SessionSettings<'_>,
        has_grant_keys: bool,
        signer: Option<Signer>,
        errors: &mut Errors,
    ) -> Option<Self> {
        let text = settings.sessions?;
        let before = errors.0.len();
        if !has_grant_keys {
            errors.add(SESSIONS, &format!("needs a key in {GRANT_KEYS}, which signs the grants"));
        }
        let secret = require_long_enough(TURNSTILE_SECRET, settings.secret).and_then(require_graphic);
        let secret = secret.map_err(|error| errors.0.push(error)).ok();
        let Ok(json) = Json::parse(text) else {
            errors.add(SESSIONS, &format!("is not valid JSON: it must be an object of {FIELDS_RULE}"));
            return None;
        };
        let fields = errors.fields_of(SESSIONS, json, FIELDS_RULE, &FIELDS)?;
        let policy = fields.get("policy").and_then(Json::string).filter(|policy| !policy.is_empty());
        let policies = fields.get("policies").and_then(texts);
        let verbs = fields.get("verbs").map_or("[\"consume\",\"peek\"]", Json::raw);
        let are_verbs = || Some(texts(Json::parse(verbs).ok()?)?.iter().all(|verb| granted(verb).is_some()));
        let ttl_ms = fields.get("ttl").map_or(Some(DEFAULT_TTL_MS), ttl_ms);
        let url = fields.get("verify_url").map_or_else(|| Some(TURNSTILE.into()), Json::string);
        let url = url.filter(|url| is_safe(url));
        let hostnames = fields.get("hostname").map_or_else(|| Some(Vec::new()), hostnames);
        let action =
            fields.get("action").map_or(Some(None), |action| action.string().filter(|it| is_action(it)).map(Some));
        for (is_right, field, rule) in [
            (policy.is_some(), "policy", "must be the name of the policy that limits how many an address may open"),
            (policies.is_some(), "policies", "must be a list of one or more names of policies"),
            (are_verbs() == Some(true), "verbs", &format!("must be {}", verbs_rule())),
            (ttl_ms.is_some(), "ttl", "must be a length of time from \"1s\" to \"1day\", such as \"1h\""),
            (url.is_some(), "verify_url", URL_RULE),
            (hostnames.is_some(), "hostname", HOSTNAME_RULE),
            (action.is_some(), "action", ACTION_RULE),
        ] {
            if !is_right {
                errors.add(&place(field), rule);
            }
        }
        let named = policy.iter().map(|name| ("policy", &**name));
        let named = named.chain(policies.iter().flatten().map(|name| ("policies", &**name)));
        for (field, name) in named.filter(|(_, name)| settings.policies.is_some_and(|all| !all.contains(name))) {
            errors.add(&place(field), &format!("there is no policy {}", shown(name)));
        }
        if let Some(name) = policy.as_deref().filter(|name| settings.with_slots.contains(name)) {
            let problem =
                format!("{} has slots, which only reservations take, but a session takes a token", shown(name));
            errors.add(&place("policy"), &problem);
        }
        if let Some(name) = policy.as_deref().filter(|name| settings.shared.contains(name)) {
            let problem = format!("{} has one budget for all, but sessions are counted by address", shown(name));
            errors.add(&place("policy"), &problem);
        }
        if errors.0.len() > before {
            return None;
        }
        let sessions = Self {
            policy: policy?.into_owned(),
            policies: fields.get("policies")?.raw().to_owned(),
            verbs: verbs.to_owned(),
            ttl_ms: ttl_ms?,
            verify_url: url?.into_owned(),
            secret: secret?.to_owned(),
            hostnames: hostnames?,
            action: action?.map(Cow::into_owned),
            signer: signer?,
        };
        let len = sessions.open([0, 0], SOME_MOMENT).grant.len();
        if len > MAX_CREDENTIAL_LEN {
            let problem = format!("makes grants of {len} bytes: at most {MAX_CREDENTIAL_LEN} can be sent");
            errors.add(&place("policies"), &problem);
            return None;
        }
        Some(sessions)
    }

    /// The name of the policy that limits sessions per address.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The captcha verifier's URL.
    #[must_use]
    pub fn verify_url(&self) -> &str {
        &self.verify_url
    }

    /// The secret that authenticates the operator to the verifier.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Timeout in milliseconds for the verifier's answer. Turnstile takes a tenth of a second; after this long, visitors reload the page.
    pub const ANSWER_MS: u32 = 5_000;

    /// Maximum length of the verifier's answer, in bytes. Turnstile's have about 300.
    pub const MAX_ANSWER_LEN: u32 = 16_384;

    /// Checks whether a captcha opens a session: `status` and `answer` are from the verifier's HTTP response.
    ///
    /// # Errors
    /// [`CaptchaError`].
    pub fn verify(&self, status: u16, answer: &[u8]) -> Result<(), CaptchaError> {
        let fields = solved(status, answer)?;
        let found = |name: &str| fields.get(name).and_then(Json::string).unwrap_or_default();
        let hostname = found("hostname");
        if !self.hostnames.is_empty() && !self.hostnames.iter().any(|own| own.eq_ignore_ascii_case(&hostname)) {
            return Err(CaptchaError::Hostname);
        }
        if self.action.as_ref().is_some_and(|own| *own != found("action")) {
            return Err(CaptchaError::Action);
        }
        Ok(())
    }

    /// A session from `now` on, for a key of 128 `random` bits.
    #[must_use]
    pub fn open(&self, random: [u64; 2], now: i64) -> Session {
        let key = format!("session:{}", Base64UrlUnpadded::encode_string(random.map(u64::to_be_bytes).as_flattened()));
        let expires_at = now.saturating_add(self.ttl_ms);
        let grant = self.signer.sign(&key, &self.policies, &self.verbs, expires_at);
        Session { grant, expires_at, key }
    }
}

/// The fields of the verifier's answer about a solved captcha.
fn solved(status: u16, answer: &[u8]) -> Result<Fields<'_>, CaptchaError> {
    let fields = str::from_utf8(answer).ok().and_then(|text| Json::parse(text).ok()?.fields().ok());
    let fields = fields.ok_or(CaptchaError::Unreadable { status })?;
    match fields.get("success").and_then(Json::bool) {
        Some(true) if status == 200 => Ok(fields),
        Some(false) if status < 500 => {
            let codes = fields.get("error-codes").map_or_else(|| Some(Vec::new()), Json::array);
            let codes = codes.ok_or(CaptchaError::Unreadable { status })?;
            let mut errors = codes.iter().filter_map(|code| match code.string().as_deref() {
                Some("missing-input-secret" | "invalid-input-secret") => Some(CaptchaError::WrongSecret),
                Some("internal-error" | "bad-request") => Some(CaptchaError::Unreadable { status }),
                _ => None,
            });
            Err(errors.next().unwrap_or(CaptchaError::Wrong))
        }
        _ => Err(CaptchaError::Unreadable { status }),
    }
}

const FIELDS: [&str; 7] = ["policy", "policies", "verbs", "ttl", "verify_url", "hostname", "action"];

const FIELDS_RULE: &str = "policy, policies and perhaps verbs, ttl, verify_url, hostname and action";

const HOSTNAME_RULE: &str = "must be the name of a host, such as \"www.example.com\", or a list of one or more";

const ACTION_RULE: &str = "must be the action of a widget: 1 to 32 letters, digits, '_' or '-'";

const TURNSTILE: &str = "https://challenges.cloudflare.com/turnstile/v0/siteverify";

const DEFAULT_TTL_MS: i64 = 3_600_000;

/// In 2001, with as many digits as any moment until 2286.
const SOME_MOMENT: i64 = 1_000_000_000_000;

fn place(field: &str) -> String {
    format!("{SESSIONS}.{field}")
}

fn ttl_ms(json: Json<'_>) -> Option<i64> {
    let ms = i64::try_from(length::millis_of(&json.string()?).ok()?).ok()?;
    (1_000..=MAX_LIFE_MS).contains(&ms).then_some(ms)
}

fn hostnames(json: Json<'_>) -> Option<Vec<String>> {
    let all = match json.string() {
        Some(one) => vec![one.into_owned()],
        None => texts(json)?,
    };
    all.iter().all(|name| is_hostname(name)).then_some(all)
}

/// Verifiers report a host without scheme, port or path.
fn is_hostname(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    let is_address = name.starts_with('[');
    (1..=253).contains(&name.len()) && name.bytes().all(is_allowed) && (is_address || !name.contains(':'))
}

/// The characters that Turnstile allows.
fn is_action(action: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=32).contains(&action.len()) && action.bytes().all(is_allowed)
}

fn require_graphic(secret: &str) -> Result<&str, SettingError> {
    if secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(secret);
    }
    Err(SettingError::of_secret(TURNSTILE_SECRET, "must be printable ASCII without white space"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{CredentialSettings, Credentials, Forbidden, Scope};

    const NOW: i64 = 1_700_000_000_000;
    const KEYS: &str =
        r#"{"z":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","a":"BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA"}"#;
    const SESSIONS: SessionSettings<'_> = SessionSettings {
        sessions: Some(r#"{"policy":"visits","policies":["api","daily"]}"#),
        secret: Some("a-turnstile-secret"),
        policies: Some(&["api", "daily", "visits"]),
        shared: &["daily"],
        with_slots: &["uploads"],
    };

    fn read<'a>(sessions: SessionSettings<'a>, grant_keys: Option<&'a str>) -> Result<Credentials, Vec<String>> {
        let tokens = format!(r#"{{"backend":{{"sha256":"{}","scopes":["consume"]}}}}"#, "0".repeat(64));
        let settings =
            CredentialSettings { tokens: Some(&tokens), grant_keys, sessions, ..CredentialSettings::default() };
        Credentials::new(settings).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn with(json: &str) -> Result<Credentials, Vec<String>> {
        read(SessionSettings { sessions: Some(json), ..SESSIONS }, Some(KEYS))
    }

    /// The errors with one more field.
    fn errors(field: &str, json: &str) -> Vec<String> {
        with(&format!(r#"{{"policy":"visits","policies":["api"],"{field}":{json}}}"#)).err().unwrap_or_default()
    }

    #[test]
    fn a_session_is_a_grant_for_a_random_key() {
        let credentials = read(SESSIONS, Some(KEYS)).unwrap();
        let sessions = credentials.sessions().unwrap();
        let Session { grant, expires_at, key } = sessions.open([0x0123_4567_89ab_cdef, u64::MAX], NOW + 7);
        assert_eq!(key, "session:ASNFZ4mrze___________w");
        assert_eq!(expires_at, NOW + 7 + 3_600_000);
        let part =
            |index| String::from_utf8(Base64UrlUnpadded::decode_vec(grant.split('.').nth(index).unwrap()).unwrap());
        assert_eq!(part(0).unwrap(), r#"{"alg":"HS256","kid":"z","typ":"JWT"}"#);
        let claims = r#""exp":1700003600.007,"key":"session:ASNFZ4mrze___________w","policies":["api","daily"]"#;
        assert_eq!(part(1).unwrap(), format!(r#"{{"aud":"tollgate",{claims},"verbs":["consume","peek"]}}"#));
        let bearer = format!("Bearer {grant}");
        let check = |now| credentials.check(Some(&bearer), now);
        assert!(check(expires_at).is_err());
        let caller = check(expires_at - 1).unwrap();
        assert_eq!(caller.key(None, 64), Ok(Some(&crate::access::Key::Text(key.into()))));
        assert_eq!((caller.may_use("daily"), caller.may(Scope::Consume, "peek")), (Ok(()), Ok(())));
        assert!(matches!(caller.may_use("visits"), Err(Forbidden::Policy { .. })));
        assert!(matches!(caller.may(Scope::Consume, "batch"), Err(Forbidden::Verb { .. })));
        assert!(matches!(caller.may(Scope::Adjust, "reset"), Err(Forbidden::Scope { .. })));
        assert_ne!(sessions.open([1, 2], NOW).key, sessions.open([2, 1], NOW).key);
    }

    #[test]
    fn the_grant_is_for_the_audience_of_this_deployment() {
        let settings = CredentialSettings {
            grant_keys: Some(KEYS),
            audience: Some("an \"audience\"\n"),
            sessions: SESSIONS,
            ..CredentialSettings::default()
        };
        let credentials = Credentials::new(settings).unwrap_or_else(|errors| panic!("{errors:?}"));
        let bearer = format!("Bearer {}", credentials.sessions().unwrap().open([0, 0], NOW).grant);
        assert!(credentials.check(Some(&bearer), NOW).is_ok());
        assert!(read(SESSIONS, Some(KEYS)).unwrap().check(Some(&bearer), NOW).is_err());
    }

    #[test]
    fn the_defaults_are_those_of_turnstile() {
        let credentials = read(SESSIONS, Some(KEYS)).unwrap();
        let sessions = credentials.sessions().unwrap();
        assert_eq!(sessions.verify_url(), "https://challenges.cloudflare.com/turnstile/v0/siteverify");
        assert_eq!((sessions.policy(), sessions.secret()), ("visits", "a-turnstile-secret"));
        assert!(read(SessionSettings { sessions: None, ..SESSIONS }, Some(KEYS)).unwrap().sessions().is_none());
    }

    #[test]
    fn a_session_lasts_from_a_second_to_a_minute_less_than_a_day() {
        for (ttl, expected) in [
            ("1s", Some(1_000)),
            ("999ms", None),
            ("1500ms", Some(1_500)),
            ("1h 30m", Some(5_400_000)),
            ("1day", Some(86_400_000)),
            ("86400001ms", None),
            ("99999999999999999999s", None),
            ("", None),
            ("60", None),
        ] {
            let json = format!(r#"{{"policy":"visits","policies":["api"],"ttl":"{ttl}"}}"#);
            let lasts =
                with(&json).map(|credentials| credentials.sessions().unwrap().open([0, 0], NOW).expires_at - NOW);
            assert_eq!(lasts.clone().ok(), expected, "{ttl}");
            let problem = "TOLLGATE_SESSIONS.ttl: must be a length of time from \"1s\" to \"1day\", such as \"1h\"";
            assert!(lasts.err().is_none_or(|errors| errors == [problem]), "{ttl}");
        }
        assert_eq!(errors("ttl", "3600").len(), 1);
    }

    #[test]
    fn the_secret_is_sent_encrypted_or_to_this_machine() {
        for url in [
            "https://challenges.cloudflare.com/turnstile/v0/siteverify",
            "https://verifier.example.com:8443/a?b=c",
            "https://[2001:db8::1]/",
            "http://localhost",
            "http://localhost:8080/siteverify",
            "http://127.0.0.1/siteverify",
            "http://127.0.0.1?a",
        ] {
            assert_eq!(errors("verify_url", &format!("{url:?}")), [""; 0], "{url}");
        }
        for url in [
            "http://verifier.example.com/",
            "http://localhost.example.com/",
            "http://localhost:80@example.com/",
            "http://127.0.0.1@example.com/",
            "http://127.0.0.1\\example.com/",
            "http://localhost%2eexample.com/",
            "https://user@example.com/",
            "https://example.com/#a",
            "https://example.com/a b",
            "https://exämple.com/",
            "https:///a",
            "https://",
            "ftp://localhost/",
            "//example.com/",
            "example.com",
            "",
        ] {
            assert_eq!(errors("verify_url", &format!("{url:?}")).len(), 1, "{url}");
        }
        assert_eq!(errors("verify_url", "7").len(), 1);
    }

    #[test]
    fn every_error_is_named() {
        let policies = "TOLLGATE_SESSIONS.policies: must be a list of one or more names of policies";
        let policy =
            "TOLLGATE_SESSIONS.policy: must be the name of the policy that limits how many an address may open";
        let object = "must be an object of policy, policies and perhaps verbs, ttl, verify_url, hostname and action";
        for (json, expected) in [
            ("{", vec![format!("TOLLGATE_SESSIONS: is not valid JSON: it {object}")]),
            ("[]", vec![format!("TOLLGATE_SESSIONS: {object}")]),
            ("{}", vec![policy.to_owned(), policies.to_owned()]),
            (r#"{"policy":"","policies":[]}"#, vec![policy.to_owned(), policies.to_owned()]),
            (r#"{"policy":["visits"],"policies":"api"}"#, vec![policy.to_owned(), policies.to_owned()]),
            (
                r#"{"policy":"visits","policies":["api"],"policies":["daily"]}"#,
                vec!["TOLLGATE_SESSIONS: gives policies twice".to_owned()],
            ),
            (
                r#"{"policy":"visit","policies":["api","apo"]}"#,
                vec![
                    "TOLLGATE_SESSIONS.policy: there is no policy visit".to_owned(),
                    "TOLLGATE_SESSIONS.policies: there is no policy apo".to_owned(),
                ],
            ),
        ] {
            assert_eq!(with(json).err(), Some(expected), "{json}");
        }
        for verbs in [r#""consume""#, "[]", r#"["reset"]"#, r#"["consume",7]"#, "null"] {
            let problem = "TOLLGATE_SESSIONS.verbs: must be a list of one or more of consume, peek, inspect, settle, \
                           cancel, extend, batch";
            assert_eq!(errors("verbs", verbs), [problem], "{verbs}");
        }
        for hostname in
            ["1", "[]", "\"\"", r#"["a.example",7]"#, r#""https://a.example""#, r#""a.example:443""#, r#""a/b""#]
        {
            let problem = format!("TOLLGATE_SESSIONS.hostname: {HOSTNAME_RULE}");
            assert_eq!(errors("hostname", hostname), [problem], "{hostname}");
        }
        for action in ["1", "\"\"", r#""a b""#, &format!("{:?}", "a".repeat(33))] {
            assert_eq!(errors("action", action), [format!("TOLLGATE_SESSIONS.action: {ACTION_RULE}")], "{action}");
        }
        for (field, right) in [
            ("hostname", r#""localhost""#),
            ("hostname", r#"["a.example","[2001:db8::1]"]"#),
            ("action", &format!("{:?}", "a".repeat(32))),
        ] {
            assert_eq!(errors(field, right), [""; 0], "{right}");
        }
        let unknown = "TOLLGATE_SESSIONS: host is not a field of it; its fields are policy, policies, verbs, ttl, verify_url, \
                       hostname, action";
        assert_eq!(errors("host", "1"), [unknown]);
    }

    #[test]
    fn a_captcha_of_another_host_or_action_opens_no_session() {
        let verify = |settings: &str, answer: &str| {
            let credentials = with(&format!(r#"{{"policy":"visits","policies":["api"]{settings}}}"#)).unwrap();
            credentials.sessions().unwrap().verify(200, format!(r#"{{"success":true{answer}}}"#).as_bytes())
        };
        let both = r#","hostname":["www.example.com","app.example.com"],"action":"sign-up""#;
        for (settings, answer, expected) in [
            ("", r#","hostname":"evil.example","action":"x""#, Ok(())),
            (both, r#","hostname":"App.Example.com","action":"sign-up""#, Ok(())),
            (both, r#","hostname":"example.com","action":"sign-up""#, Err(CaptchaError::Hostname)),
            (both, r#","hostname":"www.example.com.evil.example","action":"sign-up""#, Err(CaptchaError::Hostname)),
            (both, r#","action":"sign-up""#, Err(CaptchaError::Hostname)),
            (both, r#","hostname":7,"action":"sign-up""#, Err(CaptchaError::Hostname)),
            (both, r#","hostname":"www.example.com","action":"Sign-up""#, Err(CaptchaError::Action)),
            (both, r#","hostname":"www.example.com","action":"""#, Err(CaptchaError::Action)),
            (both, r#","hostname":"www.example.com""#, Err(CaptchaError::Action)),
            (r#","hostname":"a.example""#, r#","hostname":"a.example","action":"any""#, Ok(())),
            (r#","action":"a""#, r#","hostname":"any.example","action":"a""#, Ok(())),
        ] {
            assert_eq!(verify(settings, answer), expected, "{settings} {answer}");
        }
        // A captcha that the verifier refuses stays refused as such.
        let credentials = with(r#"{"policy":"visits","policies":["api"],"hostname":"a.example"}"#).unwrap();
        let wrong = credentials.sessions().unwrap().verify(200, br#"{"success":false,"hostname":"b.example"}"#);
        assert_eq!(wrong, Err(CaptchaError::Wrong));
    }

    #[test]
    fn every_setting_that_sessions_need_is_required() {
        let errors = |secret, policies, keys| {
            read(SessionSettings { secret, policies, ..SESSIONS }, keys).err().unwrap_or_default()
        };
        let (secret, policies) = (SESSIONS.secret, SESSIONS.policies);
        assert_eq!(errors(secret, policies, Some(KEYS)), [""; 0]);
        let no_key = "TOLLGATE_SESSIONS: needs a key in TOLLGATE_GRANT_KEYS, which signs the grants";
        assert_eq!(errors(secret, policies, None), [no_key]);
        let wrong_key = "TOLLGATE_GRANT_KEYS: must be an object of keys by kid";
        assert_eq!(errors(secret, policies, Some("[]")), [wrong_key]);
        let no_secret = "the secret TURNSTILE_SECRET is missing: set it with `wrangler secret put TURNSTILE_SECRET`";
        assert_eq!(errors(None, policies, Some(KEYS)), [no_secret]);
        let not_graphic = "the secret TURNSTILE_SECRET must be printable ASCII without white space";
        for secret in ["a-turnstile-secret\n", "a turnstile secret", "ein-schlüssel-dafür"] {
            assert_eq!(errors(Some(secret), policies, Some(KEYS)), [not_graphic], "{secret:?}");
        }
        assert_eq!(errors(secret, None, Some(KEYS)), [""; 0], "policies with errors are named elsewhere");
    }

    #[test]
    fn sessions_are_counted_by_a_policy_with_keys_and_may_use_one_without() {
        assert!(with(r#"{"policy":"visits","policies":["daily"]}"#).is_ok());
        let errors = with(r#"{"policy":"daily","policies":["api"]}"#).err().unwrap_or_default();
        assert_eq!(
            errors,
            ["TOLLGATE_SESSIONS.policy: daily has one budget for all, but sessions are counted by address"]
        );
        let policies: Option<&[&str]> = Some(&["api", "uploads"]);
        let json = r#"{"policy":"uploads","policies":["api"]}"#;
        let errors = read(SessionSettings { sessions: Some(json), policies, ..SESSIONS }, Some(KEYS)).err().unwrap();
        assert_eq!(
            errors,
            ["TOLLGATE_SESSIONS.policy: uploads has slots, which only reservations take, but a session takes a token"]
        );
    }

    #[test]
    fn a_grant_fits_into_a_header() {
        let json = |count: usize| {
            let names: Vec<_> = (0..count).map(|index| format!("{index:0>60}")).collect();
            format!(r#"{{"policy":"visits","policies":{names:?}}}"#)
        };
        let read = |json: &str| {
            read(SessionSettings { sessions: Some(json), policies: None, ..SESSIONS }, Some(KEYS)).map(|credentials| {
                let grant = credentials.sessions().unwrap().open([0, 0], NOW).grant;
                credentials.check(Some(&format!("Bearer {grant}")), NOW).is_ok()
            })
        };
        let most = (0..100).rfind(|&count| read(&json(count)) == Ok(true)).unwrap();
        assert!(most > 40);
        let errors = read(&json(most + 1)).unwrap_err();
        assert!(errors[0].starts_with("TOLLGATE_SESSIONS.policies: makes grants of 4"), "{errors:?}");
        assert!(errors[0].ends_with(" bytes: at most 4096 can be sent"), "{errors:?}");
    }

    #[test]
    fn only_a_successful_verification_opens_a_session() {
        let credentials = read(SESSIONS, Some(KEYS)).unwrap();
        let verify_captcha = |status, answer: &[u8]| credentials.sessions().unwrap().verify(status, answer);
        let unreadable = |status| Err(CaptchaError::Unreadable { status });
        for (status, answer, expected) in [
            (200, r#"{"success":true,"error-codes":[],"hostname":"example.com","action":"","cdata":""}"#, Ok(())),
            (200, r#"{"success":true}"#, Ok(())),
            (201, r#"{"success":true}"#, unreadable(201)),
            (302, r#"{"success":true}"#, unreadable(302)),
            (500, r#"{"success":true}"#, unreadable(500)),
            (200, r#"{"success":false,"error-codes":["timeout-or-duplicate"]}"#, Err(CaptchaError::Wrong)),
            (400, r#"{"success":false,"error-codes":["invalid-input-response"]}"#, Err(CaptchaError::Wrong)),
            (499, r#"{"success":false}"#, Err(CaptchaError::Wrong)),
            (500, r#"{"success":false}"#, unreadable(500)),
            (200, r#"{"success":false,"error-codes":[7,"new-code"]}"#, Err(CaptchaError::Wrong)),
            (200, r#"{"success":false,"error-codes":["invalid-input-secret"]}"#, Err(CaptchaError::WrongSecret)),
            (400, r#"{"success":false,"error-codes":["missing-input-secret"]}"#, Err(CaptchaError::WrongSecret)),
            (200, r#"{"success":false,"error-codes":["x","internal-error"]}"#, unreadable(200)),
            (400, r#"{"success":false,"error-codes":["bad-request"]}"#, unreadable(400)),
            (200, r#"{"success":false,"error-codes":"x"}"#, unreadable(200)),
            (200, r#"{"success":"true"}"#, unreadable(200)),
            (200, r#"{"success":1}"#, unreadable(200)),
            (200, r#"{"success":null}"#, unreadable(200)),
            (200, r#"{"success":false,"success":true}"#, unreadable(200)),
            (200, r#"{"Success":true}"#, unreadable(200)),
            (200, "{}", unreadable(200)),
            (200, "true", unreadable(200)),
            (200, r#"{"success":true} x"#, unreadable(200)),
            (200, "", unreadable(200)),
        ] {
            assert_eq!(verify_captcha(status, answer.as_bytes()), expected, "{status} {answer}");
        }
        assert_eq!(verify_captcha(200, b"{\"success\":true,\"a\":\"\xff\"}"), unreadable(200));
    }

    #[test]
    fn the_log_says_why_no_session_was_opened() {
        for (error, expected) in [
            (CaptchaError::Wrong, "the captcha is wrong, has expired or was used before"),
            (CaptchaError::Hostname, "the captcha was solved on another host than TOLLGATE_SESSIONS.hostname"),
            (CaptchaError::Action, "the captcha was solved for another action than TOLLGATE_SESSIONS.action"),
            (CaptchaError::WrongSecret, "the captcha's verifier does not know the secret TURNSTILE_SECRET"),
            (CaptchaError::Unreadable { status: 500 }, "the captcha's verifier has failed, with status 500"),
            (CaptchaError::Late, "the captcha's verifier has not answered in time"),
            (CaptchaError::Unanswered, "the captcha's verifier has not answered"),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
