//! The webhook that receives notices, signed as in Standard Webhooks: <https://www.standardwebhooks.com>.

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::error::{Errors, SettingError};
use super::setting::{WEBHOOK_SECRET, WEBHOOK_URL};
use super::url::{URL_RULE, is_safe};

/// The receiver's URL, and the secrets for signing.
pub struct Webhook {
    url: String,
    /// Several while a secret is replaced: a receiver accepts any signature that it can verify.
    secrets: Vec<Vec<u8>>,
}

impl Webhook {
    /// Parses `TOLLGATE_WEBHOOK_URL` and the secret `TOLLGATE_WEBHOOK_SECRET`. `None` without a URL.
    ///
    /// # Errors
    /// All errors. Neither value is shown: a URL may contain a secret.
    pub fn new(url: Option<&str>, secret: Option<&str>) -> Result<Option<Self>, Vec<SettingError>> {
        let Some(url) = url else { return Ok(None) };
        let mut errors = Errors::default();
        if url.len() > MAX_URL_LEN || !is_safe(url) {
            errors.add(WEBHOOK_URL, &format!("{URL_RULE}; of {MAX_URL_LEN} bytes at most"));
        }
        let secrets = secret.map(|secret| secret.split_whitespace().map(decoded).collect::<Option<Vec<_>>>());
        let secrets = match secrets {
            None => Err(format!("is missing: set it with `wrangler secret put {WEBHOOK_SECRET}`")),
            Some(Some(secrets)) if (1..=MAX_SECRETS).contains(&secrets.len()) => Ok(secrets),
            Some(_) => Err(SECRET_RULE.to_owned()),
        };
        match secrets {
            Ok(secrets) if errors.0.is_empty() => return Ok(Some(Self { url: url.to_owned(), secrets })),
            Ok(_) => {}
            Err(problem) => errors.0.push(SettingError::of_secret(WEBHOOK_SECRET, &problem)),
        }
        Err(errors.0)
    }

    /// The receiver's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The header `webhook-signature` of a message sent at this moment, in Unix seconds.
    #[must_use]
    pub fn signature(&self, id: &str, timestamp: u64, body: &str) -> String {
        let signatures = self.secrets.iter().filter_map(|secret| {
            let hmac = Hmac::<Sha256>::new_from_slice(secret).ok()?; // accepts secrets of any length
            let digest = hmac.chain_update(format!("{id}.{timestamp}.{body}")).finalize().into_bytes();
            Some(format!("v1,{}", Base64::encode_string(&digest)))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

/// Decodes a secret such as `whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`.
fn decoded(secret: &str) -> Option<Vec<u8>> {
    let bytes = Base64::decode_vec(secret.strip_prefix("whsec_")?).ok()?;
    (24..=64).contains(&bytes.len()).then_some(bytes)
}

/// The longest that browsers and proxies accept.
const MAX_URL_LEN: usize = 2_048;

/// The old and the new one, and a few more.
const MAX_SECRETS: usize = 4;

const SECRET_RULE: &str = "must be whsec_ and 24 to 64 random bytes in base64 with padding; up to 4 of them with spaces between them, while one \
     is replaced";

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://example.com/hook";
    /// The example of the specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn errors(url: &str, secret: Option<&str>) -> Vec<String> {
        let errors = Webhook::new(Some(url), secret).err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn messages_are_signed_as_the_specification_says() {
        let webhook = Webhook::new(Some(URL), Some(SECRET)).unwrap().unwrap();
        assert_eq!(webhook.url(), URL);
        let sign = |webhook: &Webhook| {
            webhook.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#)
        };
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(&webhook), signature);
        let other = format!("whsec_{}", "A".repeat(32));
        let both = Webhook::new(Some(URL), Some(&format!("{other} {SECRET}\n"))).unwrap().unwrap();
        let [first, second] = sign(&both).split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        assert!(first.starts_with("v1,") && first != second && second == signature);
    }

    #[test]
    fn without_a_url_there_is_no_webhook() {
        for secret in [None, Some("anything")] {
            assert!(Webhook::new(None, secret).is_ok_and(|webhook| webhook.is_none()));
        }
    }

    #[test]
    fn an_error_shows_neither_the_url_nor_the_secret() {
        let long = format!("https://example.com/{}", "a".repeat(2_028));
        assert_eq!((long.len(), errors(&long, Some(SECRET))), (2_048, vec![]));
        for url in
            ["", "example.com", "http://example.com/private", "https://", "ftp://example.com", &format!("{long}a")]
        {
            let [error] = errors(url, Some(SECRET)).try_into().unwrap();
            assert!(error.starts_with("TOLLGATE_WEBHOOK_URL: must begin with https://"), "{error}");
            assert!(!error.contains("private"));
        }
        for url in ["http://localhost:8080/a", "http://127.0.0.1/"] {
            assert_eq!(errors(url, Some(SECRET)), [""; 0]);
        }
        let missing =
            "the secret TOLLGATE_WEBHOOK_SECRET is missing: set it with `wrangler secret put TOLLGATE_WEBHOOK_SECRET`";
        assert_eq!(errors(URL, None), [missing]);
        let of = |bytes: usize| format!("whsec_{}", Base64::encode_string(&vec![7; bytes]));
        let five = [SECRET; 5].join(" ");
        for secret in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_*",
            &of(23),
            &of(65),
            of(32).trim_end_matches('='),
            &five,
        ] {
            assert_eq!(errors(URL, Some(secret)), [format!("the secret TOLLGATE_WEBHOOK_SECRET {SECRET_RULE}")]);
        }
        for secret in [of(24), of(32), of(64), [SECRET; 4].join(" ")] {
            assert_eq!(errors(URL, Some(&secret)), [""; 0]);
        }
        assert_eq!(errors("", None).len(), 2);
    }
}
