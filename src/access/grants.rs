//! Grants: JSON Web Tokens that a backend makes for a browser or an app. HS256 only.
//!
//! Parsed by hand, with `hmac` and `base64ct`: the maintained libraries accept an unknown `crit`, and would add 56 KB (`jwt-compact`) or
//! 534 KB (`jsonwebtoken`) to a Worker of 320 KB.

use base64ct::{Base64UrlUnpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::caller::Grant;
use super::denied::GrantError;
use super::error::Errors;
use super::key::Key;
use super::numeric_date::millis_of_numeric_date;
use super::rights::texts;
use super::scope::Scope;
use super::setting::{AUDIENCE, GRANT_KEYS};
use crate::json::{Fields, Json};

/// The keys for verifying grants, and the audience of these.
pub(super) struct Grants {
    /// HMACs with the key already absorbed, by `kid`, in the order of the setting.
    keys: Vec<(String, Hmac<Sha256>)>,
    audience: String,
}

/// The first key, with which the service itself signs grants.
pub(super) struct Signer {
    kid: String,
    mac: Hmac<Sha256>,
    /// As JSON.
    audience: String,
}

impl Grants {
    /// Reads `TOLLGATE_GRANT_KEYS` and `TOLLGATE_AUDIENCE`.
    pub(super) fn new(keys: Option<&str>, audience: Option<&str>, errors: &mut Errors) -> Self {
        let mut macs = Vec::new();
        for (kid, json) in keys.map(|text| errors.entries(GRANT_KEYS, text, "keys by kid")).unwrap_or_default() {
            let bytes = json.string().and_then(|text| Base64UrlUnpadded::decode_vec(&text).ok());
            match bytes.as_deref().map(|bytes| (bytes.len(), Hmac::new_from_slice(bytes))) {
                Some((len, Ok(mac))) if len >= MIN_KEY_LEN => macs.push((kid, mac)),
                Some((len, _)) => {
                    let problem = format!("has {len} bytes: HS256 needs {MIN_KEY_LEN} random ones or more");
                    errors.add(&format!("{GRANT_KEYS}.{kid}"), &problem);
                }
                None => {
                    errors.add(&format!("{GRANT_KEYS}.{kid}"), "must be random bytes in base64url, without padding");
                }
            }
        }
        let audience = audience.unwrap_or("tollgate").to_owned();
        if audience.is_empty() {
            errors.add(AUDIENCE, "is empty: it must be the `aud` of grants, or not be set");
        }
        Self { keys: macs, audience }
    }

    /// The signer with the first key.
    pub(super) fn signer(&self) -> Option<Signer> {
        let (kid, mac) = self.keys.first()?.clone();
        Some(Signer { kid, mac, audience: serde_json::to_string(&self.audience).ok()? })
    }

    fn key(&self, kid: &str) -> Option<&Hmac<Sha256>> {
        self.keys.iter().find(|(other, _)| other == kid).map(|(_, mac)| mac)
    }

    /// The rights of the grant in `jwt` at `now`.
    pub(super) fn verify(&self, jwt: &str, now: i64) -> Result<Grant, GrantError> {
        let mut parts = jwt.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(GrantError::Malformed { part: "it" });
        };
        let kid = kid_of(header)?;
        let mac = self.key(&kid).ok_or(GrantError::UnknownKid)?;
        let signature =
            Base64UrlUnpadded::decode_vec(signature).map_err(|_| GrantError::Malformed { part: "the signature" })?;
        let signed = mac.clone().chain_update(header).chain_update(b".").chain_update(payload);
        signed.verify_slice(&signature).map_err(|_| GrantError::WrongSignature)?; // in constant time
        let payload = decoded(payload, "the payload")?;
        self.grant(&members(&payload, "the payload")?, now)
    }

    fn grant(&self, claims: &Fields<'_>, now: i64) -> Result<Grant, GrantError> {
        let moment = |name| claims.get(name).map(|json| millis_of_numeric_date(json).ok_or(GrantError::Claim { name }));
        let exp = moment("exp").ok_or(GrantError::Claim { name: "exp" })??;
        if now >= exp {
            return Err(GrantError::Expired { ms_ago: now.saturating_sub(exp) });
        }
        if exp.saturating_sub(now) > MAX_LIFE_MS.saturating_add(MAX_AHEAD_MS) {
            return Err(GrantError::TooLong { ms_left: exp.saturating_sub(now), max_ms: MAX_LIFE_MS });
        }
        if let Some(nbf) = moment("nbf").transpose()?.filter(|&nbf| now < nbf) {
            return Err(GrantError::NotYet { ms_left: nbf.saturating_sub(now) });
        }
        let claim = |name| claims.get(name).ok_or(GrantError::Claim { name });
        // A text or a list of texts, RFC 7519 §4.1.3.
        let aud = claim("aud")?;
        let audiences = aud.string().map(|text| vec![text.into_owned()]).or_else(|| texts(aud));
        if !audiences.ok_or(GrantError::Claim { name: "aud" })?.contains(&self.audience) {
            return Err(GrantError::OtherAudience);
        }
        // Not the empty list: a grant is for one key.
        let key = Key::parse(claim("key")?).ok().filter(|key| *key != Key::List(Vec::new()));
        let key = key.ok_or(GrantError::Claim { name: "key" })?.into_owned();
        let policies = texts(claim("policies")?).ok_or(GrantError::Claim { name: "policies" })?;
        let verbs = texts(claim("verbs")?).and_then(|verbs| verbs.iter().map(|verb| granted(verb)).collect());
        Ok(Grant { key, policies, verbs: verbs.ok_or(GrantError::Claim { name: "verbs" })? })
    }
}

impl Signer {
    /// The JWT of a grant for the key `"<key>"`, valid until just before `expires_at`. The `policies` and `verbs` are JSON.
    pub(super) fn sign(&self, key: &str, policies: &str, verbs: &str, expires_at: i64) -> String {
        let header = format!(r#"{{"alg":"HS256","kid":"{}","typ":"JWT"}}"#, self.kid); // a `kid` needs no escapes
        let (seconds, millis) = (expires_at.div_euclid(1_000), expires_at.rem_euclid(1_000));
        let aud = &self.audience;
        let claims = format!(
            r#"{{"aud":{aud},"exp":{seconds}.{millis:03},"key":"{key}","policies":{policies},"verbs":{verbs}}}"#
        );
        let signed = [encoded(header.as_bytes()), encoded(claims.as_bytes())].join(".");
        let signature = self.mac.clone().chain_update(&signed).finalize().into_bytes();
        [signed, encoded(&signature)].join(".")
    }
}

fn encoded(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

/// As long as the hash, RFC 7518 §3.2.
const MIN_KEY_LEN: usize = 32;

/// How far the signer's clock may be ahead: a minute, so that a small difference refuses no grant of a whole day.
const MAX_AHEAD_MS: i64 = 60_000;

/// A day. A grant cannot be revoked.
pub(super) const MAX_LIFE_MS: i64 = 86_400_000;

/// Maximum length of a credential, of which grants are the longest: a longer one is refused before any work.
pub(super) const MAX_CREDENTIAL_LEN: usize = 4096;

/// The `kid` of a header with HS256 and no unsupported extension.
fn kid_of(header: &str) -> Result<String, GrantError> {
    let json = decoded(header, "the header")?;
    let header = members(&json, "the header")?;
    let text = |name| header.get(name).map(Json::string);
    if text("alg").flatten().as_deref() != Some("HS256") {
        return Err(GrantError::OtherAlgorithm);
    }
    if text("typ").is_some_and(|typ| typ.as_deref() != Some("JWT")) {
        return Err(GrantError::OtherType);
    }
    if header.get("crit").is_some() {
        return Err(GrantError::Critical);
    }
    text("kid").flatten().map(String::from).ok_or(GrantError::NoKid)
}

fn decoded(part: &str, name: &'static str) -> Result<String, GrantError> {
    let bytes = Base64UrlUnpadded::decode_vec(part).ok();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(GrantError::Malformed { part: name })
}

/// The members of an object. Duplicates are rejected, since parsers disagree on which one counts.
fn members<'a>(json: &'a str, part: &'static str) -> Result<Fields<'a>, GrantError> {
    Json::parse(json).ok().and_then(|json| json.fields().ok()).ok_or(GrantError::Malformed { part })
}

/// The verb, if a grant may have it.
pub(super) fn granted(verb: &str) -> Option<&'static str> {
    Scope::Consume.verbs().iter().find(|known| **known == verb).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;
    const KEY: [u8; 32] = [7; 32];
    const OTHER_KEY: [u8; 40] = [8; 40];

    fn grants() -> Grants {
        let keys = format!(r#"{{"k1":"{}","k2":"{}"}}"#, encoded(KEY), encoded(OTHER_KEY));
        of(&keys, None).unwrap()
    }

    fn of(keys: &str, audience: Option<&str>) -> Result<Grants, Vec<String>> {
        let mut errors = Errors::default();
        let grants = Grants::new(Some(keys), audience, &mut errors);
        if errors.0.is_empty() { Ok(grants) } else { Err(errors.0.iter().map(ToString::to_string).collect()) }
    }

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        super::encoded(bytes.as_ref())
    }

    fn signed_with(key: &[u8], header: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> String {
        let text = format!("{}.{}", encoded(header), encoded(payload));
        let mac = Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(&text);
        format!("{text}.{}", encoded(mac.finalize().into_bytes()))
    }

    const HEADER: &str = r#"{"alg":"HS256","kid":"k1"}"#;
    const PAYLOAD: &str =
        r#"{"aud":"tollgate","exp":1700000060,"key":"alice","policies":["api"],"verbs":["consume","peek"]}"#;

    fn with_header(header: &str) -> Result<Grant, GrantError> {
        grants().verify(&signed_with(&KEY, header, PAYLOAD), NOW)
    }

    fn with_payload(payload: &str) -> Result<Grant, GrantError> {
        grants().verify(&signed_with(&KEY, HEADER, payload), NOW)
    }

    /// The payload with another value for one claim, or without it.
    fn with_claim(name: &str, value: Option<&str>) -> Result<Grant, GrantError> {
        let json = Json::parse(PAYLOAD).unwrap().fields().unwrap();
        let others =
            json.iter().filter(|(other, _)| *other != name).map(|(name, json)| format!("{name:?}:{}", json.raw()));
        let claim = value.map(|value| format!("{name:?}:{value}"));
        with_payload(&format!("{{{}}}", others.chain(claim).collect::<Vec<_>>().join(",")))
    }

    fn right() -> Grant {
        Grant { key: Key::Text("alice".into()), policies: vec!["api".to_owned()], verbs: vec!["consume", "peek"] }
    }

    #[test]
    fn a_grant_says_what_its_holder_may_do() {
        assert_eq!(with_payload(PAYLOAD), Ok(right()));
        assert_eq!(with_header(r#"{"typ":"JWT","alg":"HS256","kid":"k1","cty":"x","x":{"a":1}}"#), Ok(right()));
        let list = Grant { key: Key::List(vec!["t".into(), "u".into()]), ..right() };
        assert_eq!(with_claim("key", Some(r#"["t","u"]"#)), Ok(list));
        let ip = Grant { key: Key::Ip([192, 0, 2, 1].into()), ..right() };
        assert_eq!(with_claim("key", Some(r#"{"ip":"::ffff:192.0.2.1"}"#)), Ok(ip));
        let all = r#"["consume","peek","inspect","settle","cancel","extend","batch"]"#;
        assert_eq!(with_claim("verbs", Some(all)).unwrap().verbs, Scope::Consume.verbs());
        assert_eq!(with_claim("policies", Some(r#"["a","b"]"#)).unwrap().policies, ["a", "b"]);
    }

    /// Minted by `PyJWT` 2.15.1.
    #[test]
    fn a_grant_from_another_library_is_accepted() {
        let jwt = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImsxIiwidHlwIjoiSldUIn0.eyJhdWQiOiJ0b2xsZ2F0ZSIsImV4cCI6MTcwMDAwMDA2MCwibmJmIjoxN\
                   zAwMDAwMDAwLCJrZXkiOlsidGVuYW50IDciLCJhbGljZSJdLCJwb2xpY2llcyI6WyJhcGkiXSwidmVyYnMiOlsiY29uc3VtZSIsInBlZWsiXX0\
                   .H1M3WqHub0hG-08mY48un5BUeTXVMeC3HTnM75yKSec";
        let key = Key::List(vec!["tenant 7".into(), "alice".into()]);
        assert_eq!(grants().verify(jwt, NOW), Ok(Grant { key, ..right() }));
    }

    #[test]
    fn keys_are_chosen_by_kid() {
        let header = |kid: &str| format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#);
        let verify = |kid, key: &[u8]| grants().verify(&signed_with(key, header(kid), PAYLOAD), NOW);
        assert_eq!(verify("k2", &OTHER_KEY), Ok(right()));
        assert_eq!(verify("k2", &KEY), Err(GrantError::WrongSignature));
        assert_eq!(verify("k1", &OTHER_KEY), Err(GrantError::WrongSignature));
        for kid in ["k3", "", "K1", "k1 ", "../k1"] {
            assert_eq!(verify(kid, &KEY), Err(GrantError::UnknownKid), "{kid}");
        }
    }

    #[test]
    fn a_header_names_hs256_and_nothing_else() {
        for (header, error) in [
            (r#"{"kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":"none","kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":"hs256","kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":"HS512","kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":"RS256","kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":["HS256"],"kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":null,"kid":"k1"}"#, GrantError::OtherAlgorithm),
            (r#"{"alg":"HS256","kid":"k1","typ":"jwt"}"#, GrantError::OtherType),
            (r#"{"alg":"HS256","kid":"k1","typ":"at+jwt"}"#, GrantError::OtherType),
            (r#"{"alg":"HS256","kid":"k1","typ":null}"#, GrantError::OtherType),
            (r#"{"alg":"HS256","kid":"k1","crit":["exp"]}"#, GrantError::Critical),
            (r#"{"alg":"HS256","kid":"k1","crit":[]}"#, GrantError::Critical),
            (r#"{"alg":"HS256","kid":"k1","crit":null}"#, GrantError::Critical),
            (r#"{"alg":"HS256"}"#, GrantError::NoKid),
            (r#"{"alg":"HS256","kid":1}"#, GrantError::NoKid),
            (r#"{"alg":"HS256","kid":["k1"]}"#, GrantError::NoKid),
            (r#"{"alg":"none","alg":"HS256","kid":"k1"}"#, GrantError::Malformed { part: "the header" }),
            (r#"{"alg":"HS256","kid":"k1","kid":"k1"}"#, GrantError::Malformed { part: "the header" }),
            (r#"{"alg":"HS256","kid":"k1","\u0061lg":"HS256"}"#, GrantError::Malformed { part: "the header" }),
            (r#"["HS256"]"#, GrantError::Malformed { part: "the header" }),
            ("", GrantError::Malformed { part: "the header" }),
            ("{", GrantError::Malformed { part: "the header" }),
            (r#"{"alg":"HS256","kid":"k1"} x"#, GrantError::Malformed { part: "the header" }),
        ] {
            assert_eq!(with_header(header), Err(error), "{header}");
        }
        let jwt = signed_with(&KEY, b"{\"alg\":\"HS256\",\"kid\":\"k1\",\"x\":\"\xff\"}", PAYLOAD);
        assert_eq!(grants().verify(&jwt, NOW), Err(GrantError::Malformed { part: "the header" }));
    }

    #[test]
    fn nothing_is_parsed_before_the_signature_is_verified() {
        let good = signed_with(&KEY, HEADER, PAYLOAD);
        let (text, signature) = good.rsplit_once('.').unwrap();
        let (header, payload) = text.split_once('.').unwrap();
        let wrong = GrantError::WrongSignature;
        let flipped = if signature.starts_with('A') { 'B' } else { 'A' };
        for (jwt, error) in [
            (format!("{text}."), wrong),
            (format!("{text}.{}", encoded([0; 32])), wrong),
            (format!("{text}.{}", &signature[..40]), wrong), // 30 bytes
            (format!("{text}.{flipped}{}", &signature[1..]), wrong),
            (format!("{text}.{}", encoded([&KEY[..], &[0]].concat())), wrong), // 33 bytes
            (format!("{header}.{}.{signature}", encoded("not JSON")), wrong),
            (format!("{header}..{signature}"), wrong),
            (format!("{text}.{signature}="), GrantError::Malformed { part: "the signature" }),
            (format!("{text}.{signature}\u{a0}"), GrantError::Malformed { part: "the signature" }),
            (format!("{text}.+{}", &signature[1..]), GrantError::Malformed { part: "the signature" }),
            (format!("{header}=.{payload}.{signature}"), GrantError::Malformed { part: "the header" }),
            (format!("{text}.{signature}."), GrantError::Malformed { part: "it" }),
            (text.to_owned(), GrantError::Malformed { part: "it" }),
            (String::new(), GrantError::Malformed { part: "it" }),
            (format!(".{payload}.{signature}"), GrantError::Malformed { part: "the header" }),
        ] {
            assert_eq!(grants().verify(&jwt, NOW), Err(error), "{jwt}");
        }
        assert_eq!(grants().verify(&good, NOW), Ok(right()));
    }

    /// The last of 43 characters has two unused bits: they must be 0, or one grant would have four spellings.
    #[test]
    fn a_grant_has_one_encoding_in_base64url() {
        let good = signed_with(&KEY, HEADER, PAYLOAD);
        let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let last = good.chars().last().unwrap();
        let accepted = letters.chars().filter(|letter| {
            let jwt = format!("{}{letter}", &good[..good.len() - 1]);
            grants().verify(&jwt, NOW).is_ok()
        });
        assert_eq!(accepted.collect::<Vec<_>>(), [last]);
    }

    #[test]
    fn a_payload_is_an_object_without_duplicates() {
        let malformed = Err(GrantError::Malformed { part: "the payload" });
        for payload in ["", "{", "[]", "7", &PAYLOAD.replace('{', r#"{"exp":9999999999,"#), &format!("{PAYLOAD} x")] {
            assert_eq!(with_payload(payload), malformed, "{payload}");
        }
        let duplicate = PAYLOAD.replace(r#""key":"alice""#, r#""key":"alice","k\u0065y":"bob""#);
        assert_eq!(with_payload(&duplicate), malformed);
    }

    #[test]
    fn every_claim_is_required_and_exact() {
        for name in ["aud", "exp", "key", "policies", "verbs"] {
            assert_eq!(with_claim(name, None), Err(GrantError::Claim { name }), "no {name}");
            for value in ["null", "true", "{}", "[]", r#""""#, r#"[""]"#, "[1]"] {
                let expected = match (name, value) {
                    ("aud", r#""""#) => GrantError::OtherAudience,
                    _ => GrantError::Claim { name },
                };
                assert_eq!(with_claim(name, Some(value)), Err(expected), "{name} {value}");
            }
        }
        for value in [r#""1700000060""#, "null", "[1700000060]"] {
            assert_eq!(with_claim("exp", Some(value)), Err(GrantError::Claim { name: "exp" }), "{value}");
            assert_eq!(with_claim("nbf", Some(value)), Err(GrantError::Claim { name: "nbf" }), "{value}");
        }
        for verbs in
            [r#"["reset"]"#, r#"["consume","refund"]"#, r#"["consume","charge"]"#, r#"["Consume"]"#, r#"["*"]"#]
        {
            assert_eq!(with_claim("verbs", Some(verbs)), Err(GrantError::Claim { name: "verbs" }), "{verbs}");
        }
        for key in ["7", r#"{"ip":"192.0.2.1:80"}"#, &format!("{:?}", "k".repeat(513))] {
            assert_eq!(with_claim("key", Some(key)), Err(GrantError::Claim { name: "key" }), "{key}");
        }
    }

    #[test]
    fn a_grant_is_for_this_service() {
        for aud in [r#""tollgate""#, r#"["other","tollgate"]"#, r#"["tollgate"]"#] {
            assert_eq!(with_claim("aud", Some(aud)), Ok(right()), "{aud}");
        }
        for aud in [r#""Tollgate""#, r#""tollgate ""#, r#"["other"]"#, r#""other tollgate""#] {
            assert_eq!(with_claim("aud", Some(aud)), Err(GrantError::OtherAudience), "{aud}");
        }
        let keys = format!(r#"{{"k1":"{}"}}"#, encoded(KEY));
        let other = of(&keys, Some("other")).unwrap();
        assert_eq!(other.verify(&signed_with(&KEY, HEADER, PAYLOAD), NOW), Err(GrantError::OtherAudience));
        let payload = PAYLOAD.replace("tollgate", "other");
        assert_eq!(other.verify(&signed_with(&KEY, HEADER, payload), NOW), Ok(right()));
        assert_eq!(of(&keys, Some("")).err().unwrap().len(), 1);
    }

    #[test]
    fn a_grant_is_valid_from_nbf_until_just_before_exp_and_for_a_day_and_a_minute_at_most() {
        for (claim, value, expected) in [
            ("exp", "1700000000", Err(GrantError::Expired { ms_ago: 0 })),
            ("exp", "1700000000.000", Err(GrantError::Expired { ms_ago: 0 })),
            ("exp", "1700000000.001", Ok(right())),
            ("exp", "1699999999", Err(GrantError::Expired { ms_ago: 1_000 })),
            ("exp", "1699999999.999", Err(GrantError::Expired { ms_ago: 1 })),
            ("exp", "0", Err(GrantError::Expired { ms_ago: NOW })),
            ("exp", "-1e999", Err(GrantError::Expired { ms_ago: i64::MAX })),
            ("exp", "1700086460", Ok(right())),
            ("exp", "17000864.6e2", Ok(right())),
            ("exp", "1700086460.0001", Err(GrantError::TooLong { ms_left: 86_460_001, max_ms: MAX_LIFE_MS })),
            ("exp", "1700086461", Err(GrantError::TooLong { ms_left: 86_461_000, max_ms: MAX_LIFE_MS })),
            ("exp", "1e999", Err(GrantError::TooLong { ms_left: i64::MAX - NOW, max_ms: MAX_LIFE_MS })),
            (
                "exp",
                "1700000060000",
                Err(GrantError::TooLong { ms_left: 1_700_000_060_000_000 - NOW, max_ms: MAX_LIFE_MS }),
            ), // milliseconds
            ("nbf", "1700000000", Ok(right())),
            ("nbf", "1700000000.001", Err(GrantError::NotYet { ms_left: 1 })),
            ("nbf", "1700000001", Err(GrantError::NotYet { ms_left: 1_000 })),
            ("nbf", "9999999999", Err(GrantError::NotYet { ms_left: 9_999_999_999_000 - NOW })),
            ("nbf", "0", Ok(right())),
            ("nbf", "-1.5", Ok(right())),
        ] {
            assert_eq!(with_claim(claim, Some(value)), expected, "{claim} {value}");
        }
    }

    #[test]
    fn each_error_says_what_is_wrong() {
        let claim = |name| GrantError::Claim { name }.to_string();
        for (error, expected) in [
            (
                GrantError::Malformed { part: "it" }.to_string(),
                "it is not well-formed: three parts of base64url, two of them JSON without duplicates",
            ),
            (GrantError::OtherAlgorithm.to_string(), "its `alg` is not HS256"),
            (GrantError::OtherType.to_string(), "its `typ` is neither absent nor JWT"),
            (GrantError::Critical.to_string(), "it has `crit`, which is not supported"),
            (GrantError::NoKid.to_string(), "it has no `kid`"),
            (GrantError::UnknownKid.to_string(), "TOLLGATE_GRANT_KEYS has no key of its `kid`, or is not set"),
            (GrantError::WrongSignature.to_string(), "its signature is wrong"),
            (claim("exp"), "its claim `exp` is not a number of seconds since 1970"),
            (claim("nbf"), "its claim `nbf` is not a number of seconds since 1970"),
            (claim("key"), "its claim `key` is not a key as in a request"),
            (claim("policies"), "its claim `policies` is not a list of one or more names"),
            (
                claim("verbs"),
                "its claim `verbs` is not a list of one or more of consume, peek, inspect, settle, cancel, extend, batch",
            ),
            (claim("aud"), "its claim `aud` is not a string or a list of them"),
            (GrantError::OtherAudience.to_string(), "its `aud` names another service"),
            (GrantError::Expired { ms_ago: 5 }.to_string(), "it has expired 5 ms ago"),
            (GrantError::NotYet { ms_left: 5 }.to_string(), "it is not valid for another 5 ms"),
            (
                GrantError::TooLong { ms_left: 86_460_001, max_ms: MAX_LIFE_MS }.to_string(),
                "it expires in 86460001 ms; a grant may last 86400000 ms, a day, at most",
            ),
        ] {
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_key_that_cannot_be_used_is_named_but_never_shown() {
        let errors = |keys: &str| of(keys, None).err().unwrap_or_default();
        assert_eq!(errors(&format!(r#"{{"k":"{}"}}"#, encoded([1; 32]))), [""; 0]);
        assert_eq!(
            errors(&format!(r#"{{"k":"{}"}}"#, encoded([1; 31]))),
            ["TOLLGATE_GRANT_KEYS.k: has 31 bytes: HS256 needs 32 random ones or more"]
        );
        let text = encoded([1; 32]);
        for value in [format!("\"{text}=\""), format!("\"{}\"", "+".repeat(43)), "7".to_owned(), "null".to_owned()] {
            let problem = "TOLLGATE_GRANT_KEYS.k: must be random bytes in base64url, without padding";
            assert_eq!(errors(&format!(r#"{{"k":{value}}}"#)), [problem], "{value}");
        }
        // With name and key swapped, no error shows the key.
        let exchanged = errors(&format!(r#"{{"{text}":"k"}}"#));
        assert!(exchanged.len() == 1 && !exchanged.concat().contains(&text), "{exchanged:?}");
        let twice = errors(&format!(r#"{{"k":"{text}","k":"{text}"}}"#));
        assert_eq!(twice, ["TOLLGATE_GRANT_KEYS: gives k twice"]);
    }
}
