//! Sessions: grants for visitors without an account, who have solved a captcha.
//!
//! Their verifier speaks the protocol of Cloudflare's Turnstile. It takes a token once, and only of the widget that belongs to the
//! secret; Turnstile shows that widget on the operator's own hosts only. So nothing more is compared here.

use std::fmt;

use base64ct::{Base64UrlUnpadded, Encoding};

use super::error::{Errors, require_long_enough, shown};
use super::grants::{MAX_LIFE_MS, Signer, granted};
use super::scope::Scope;
use super::tokens::{MAX_LEN, texts};
use crate::json::Json;

/// The sessions that visitors may open.
pub struct Sessions {
    policy: String,
    policies: Vec<String>,
    verbs: Vec<&'static str>,
    ttl_ms: i64,
    verify_url: String,
    secret: String,
    signer: Signer,
}

/// The settings of sessions, as texts: `None` for one that is not set.
#[derive(Clone, Copy, Default)]
pub struct SessionSettings<'a> {
    /// `TOLLGATE_SESSIONS`: JSON such as `{"policy":"visits","policies":["api"]}`. Without it there are no sessions.
    pub sessions: Option<&'a str>,
    /// `TURNSTILE_SECRET`.
    pub secret: Option<&'a str>,
    /// The names of all policies, if these have no errors.
    pub policies: Option<&'a [&'a str]>,
}

/// A session: its grant, until when that is valid, and for which key.
#[expect(missing_docs, reason = "the sentence above says what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub grant: String,
    pub expires_at: i64,
    pub key: String,
}

impl Sessions {
    /// Reads the settings. `signer` is `None` if there is no key to sign with, or if the keys have errors.
    pub(super) fn new(
        settings: SessionSettings<'_>,
        has_grant_keys: bool,
        signer: Option<Signer>,
        errors: &mut Errors,
    ) -> Option<Self> {
        let text = settings.sessions?;
        let before = errors.0.len();
        if !has_grant_keys {
            errors.add(SETTING, "needs a key in TOLLGATE_GRANT_KEYS, which signs the grants");
        }
        let secret = require_long_enough(SECRET, settings.secret).map_err(|error| errors.0.push(error)).ok();
        let Ok(json) = Json::parse(text) else {
            errors.add(SETTING, &format!("is not valid JSON: it must be an object of {FIELDS_RULE}"));
            return None;
        };
        let fields = errors.fields(SETTING, json, FIELDS_RULE)?;
        for field in fields.names().filter(|field| !FIELDS.contains(field)) {
            errors
                .add(SETTING, &format!("{} is not a field of it; its fields are {}", shown(field), FIELDS.join(", ")));
        }
        let policy = fields.get("policy").and_then(Json::string).filter(|policy| !policy.is_empty());
        if policy.is_none() {
            errors.add(&place("policy"), "must be the name of the policy that limits how many an address may open");
        }
        let policies = fields.get("policies").and_then(texts);
        if policies.is_none() {
            errors.add(&place("policies"), "must be a list of one or more names of policies");
        }
        let named = policy.iter().map(|name| ("policy", &**name));
        let named = named.chain(policies.iter().flatten().map(|name| ("policies", &**name)));
        for (field, name) in named.filter(|(_, name)| settings.policies.is_some_and(|all| !all.contains(name))) {
            errors.add(&place(field), &format!("there is no policy {}", shown(name)));
        }
        let verbs = fields.get("verbs").map_or_else(
            || Some(vec!["consume", "peek"]),
            |json| texts(json)?.iter().map(|verb| granted(verb)).collect::<Option<Vec<_>>>(),
        );
        if verbs.is_none() {
            let known = Scope::Consume.verbs().join(", ");
            errors.add(&place("verbs"), &format!("must be a list of one or more of {known}"));
        }
        let ttl_ms = fields.get("ttl").map_or(Some(DEFAULT_TTL_MS), ttl_ms);
        if ttl_ms.is_none() {
            errors.add(&place("ttl"), "must be a length of time from \"1s\" to \"1day\", such as \"1h\"");
        }
        let url = fields.get("verify_url").map_or_else(|| Some(TURNSTILE.into()), Json::string);
        let url = url.filter(|url| is_safe(url));
        if url.is_none() {
            let problem = "must begin with https://, or with http:// and localhost or 127.0.0.1, and be ASCII without '@', '#' and '\\'";
            errors.add(&place("verify_url"), problem);
        }
        if errors.0.len() > before {
            return None;
        }
        let sessions = Self {
            policy: policy?.into_owned(),
            policies: policies?,
            verbs: verbs?,
            ttl_ms: ttl_ms?,
            verify_url: url?.into_owned(),
            secret: secret?.to_owned(),
            signer: signer?,
        };
        let len = sessions.open([0, 0], LONGEST_MOMENT).grant.len();
        if len > MAX_LEN {
            let problem = format!("makes grants of {len} bytes: {MAX_LEN} are the most that can be sent");
            errors.add(&place("policies"), &problem);
            return None;
        }
        Some(sessions)
    }

    /// The name of the policy that limits how many an address may open.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Where captchas are verified.
    #[must_use]
    pub fn verify_url(&self) -> &str {
        &self.verify_url
    }

    /// What the verifier knows the operator by.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// A session that begins at `now`, for a key of 128 `random` bits.
    #[must_use]
    pub fn open(&self, random: [u64; 2], now: i64) -> Session {
        let key = format!("session:{}", Base64UrlUnpadded::encode_string(random.map(u64::to_be_bytes).as_flattened()));
        let expires_at = now.saturating_add(self.ttl_ms);
        let grant = self.signer.sign(&key, &self.policies, &self.verbs, expires_at);
        Session { grant, expires_at, key }
    }
}

/// What the verifier says of a captcha: `status` and `answer` are those of its HTTP response.
///
/// # Errors
/// [`CaptchaError`].
pub fn verify_captcha(status: u16, answer: &[u8]) -> Result<(), CaptchaError> {
    let fields = str::from_utf8(answer).ok().and_then(|text| Json::parse(text).ok()?.fields().ok());
    let fields = fields.ok_or(CaptchaError::Unreadable { status })?;
    match fields.get("success").and_then(Json::bool) {
        Some(true) if status == 200 => Ok(()),
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

/// Why a captcha opens no session. Shows nothing of the captcha.
#[expect(missing_docs, reason = "the sentence of a variant says what its number is")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptchaError {
    /// The captcha is wrong, has expired or was used before.
    Wrong,
    /// The verifier does not know the operator's secret.
    WrongSecret,
    /// The verifier has failed, or answers with this `status` what its protocol does not have.
    Unreadable { status: u16 },
}

impl fmt::Display for CaptchaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong => f.write_str("the captcha is wrong, has expired or was used before"),
            Self::WrongSecret => write!(f, "the captcha's verifier does not know the secret {SECRET}"),
            Self::Unreadable { status } => write!(f, "the captcha's verifier has failed, with status {status}"),
        }
    }
}

impl std::error::Error for CaptchaError {}

const SETTING: &str = "TOLLGATE_SESSIONS";

const SECRET: &str = "TURNSTILE_SECRET";

const FIELDS: [&str; 5] = ["policy", "policies", "verbs", "ttl", "verify_url"];

const FIELDS_RULE: &str = "policy, policies and perhaps verbs, ttl and verify_url";

const TURNSTILE: &str = "https://challenges.cloudflare.com/turnstile/v0/siteverify";

const DEFAULT_TTL_MS: i64 = 3_600_000;

/// The longest that a session lasts. Servers whose clocks are a minute behind take its grant, which lasts a day at most by theirs.
const LONGEST_TTL_MS: i64 = MAX_LIFE_MS - 60_000;

/// The year 2286: until then moments have no more digits.
const LONGEST_MOMENT: i64 = 9_999_999_999_999 - MAX_LIFE_MS;

fn place(field: &str) -> String {
    format!("{SETTING}.{field}")
}

fn ttl_ms(json: Json<'_>) -> Option<i64> {
    let length = humantime::parse_duration(&json.string()?).ok()?;
    let ms = i64::try_from(length.as_millis()).ok()?;
    (1_000..=MAX_LIFE_MS).contains(&ms).then_some(ms.min(LONGEST_TTL_MS))
}

/// Whether the secret may be sent there: encrypted, or on this machine.
fn is_safe(url: &str) -> bool {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'@' | b'#' | b'\\'));
    let starts_host = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
    let is_local = |rest: &str| {
        let host = rest.split([':', '/', '?']).next();
        matches!(host, Some("localhost" | "127.0.0.1"))
    };
    is_plain
        && (url.strip_prefix("https://").is_some_and(starts_host) || url.strip_prefix("http://").is_some_and(is_local))
}
