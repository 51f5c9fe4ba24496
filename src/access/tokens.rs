//! API tokens: random texts for backends and operators, stored only as hashes.

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::error::Errors;
use super::rights::{RIGHTS, Rights};
use super::setting::TOKENS;
use crate::hex::bytes_of_hex;
use crate::json::Json;

/// An API token and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) name: String,
    /// SHA-256 of its whole text. It is random and long, so its hash needs neither salt nor stretching.
    hash: [u8; 32],
    pub(super) rights: Rights,
}

pub(super) struct Tokens(Vec<Token>);

impl Tokens {
    /// Parses `TOLLGATE_TOKENS`.
    pub(super) fn new(tokens: Option<&str>, errors: &mut Errors) -> Self {
        let mut all: Vec<Token> = Vec::new();
        for (name, json) in tokens.map(|text| errors.entries(TOKENS, text, "tokens by name")).unwrap_or_default() {
            let place = format!("{TOKENS}.{name}");
            let Some(token) = token(&place, name, json, errors) else { continue };
            match all.iter().find(|other| other.hash == token.hash) {
                Some(other) => {
                    let problem = format!("is that of {} too: make a token for each", other.name);
                    errors.add(&format!("{place}.sha256"), &problem);
                }
                None => all.push(token),
            }
        }
        Self(all)
    }

    /// The API token with this text. The time depends only on the text's length and the number of API tokens.
    pub(super) fn find(&self, text: &str) -> Option<&Token> {
        let hash = hash_of(text);
        let mut found = u32::MAX;
        for (index, token) in (0..).zip(&self.0) {
            found.conditional_assign(&index, token.hash.ct_eq(&hash));
        }
        self.0.get(usize::try_from(found).ok()?)
    }
}

fn token(place: &str, name: String, json: Json<'_>, errors: &mut Errors) -> Option<Token> {
    let before = errors.0.len();
    let known = [&["sha256"][..], &RIGHTS].concat();
    let fields = errors.fields_of(place, json, "sha256, scopes and perhaps policies", &known)?;
    let hash = fields.get("sha256").and_then(Json::string).and_then(|digits| bytes_of_hex(&digits)?.try_into().ok());
    if hash.is_none() {
        let problem = "must be the 64 hexadecimal digits of the token's SHA-256, never the token itself";
        errors.add(&format!("{place}.sha256"), problem);
    }
    let rights = Rights::read(place, &fields, None, errors);
    let hash = hash.filter(|_| errors.0.len() == before)?;
    Some(Token { name, hash, rights: rights? })
}

fn hash_of(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Scope;

    fn hash(text: &str) -> String {
        hash_of(text).iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
    }

    fn read(tokens: &str) -> Result<Tokens, Vec<String>> {
        let mut errors = Errors::default();
        let tokens = Tokens::new(Some(tokens), &mut errors);
        if errors.0.is_empty() { Ok(tokens) } else { Err(errors.0.iter().map(ToString::to_string).collect()) }
    }

    fn errors(tokens: &str) -> Vec<String> {
        read(tokens).err().unwrap_or_default()
    }

    #[test]
    fn the_hash_is_sha_256() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"); // FIPS 180-2 B.1
    }

    #[test]
    fn each_token_is_found_by_its_whole_text() {
        let json = format!(
            r#"{{"a":{{"sha256":"{}","scopes":["consume"]}},"b":{{"sha256":"{}","scopes":["adjust","admin"],"policies":["p"]}},
                "c":{{"sha256":"{}","scopes":["consume"]}}}}"#,
            hash("tg_a"),
            hash("tg_b").to_uppercase(),
            hash("tg_c"),
        );
        let tokens = read(&json).unwrap();
        let name = |text| tokens.find(text).map(|token| token.name.as_str());
        assert_eq!([name("tg_a"), name("tg_b"), name("tg_c")], [Some("a"), Some("b"), Some("c")]);
        for other in ["", "tg_", "tg_A", "tg_aa", "tg_a ", &hash("tg_a")] {
            assert_eq!(name(other), None, "{other}");
        }
        let b = tokens.find("tg_b").unwrap();
        assert_eq!(b.rights.scopes, [Scope::Adjust, Scope::Admin]);
        assert_eq!(b.rights.policies.as_deref(), Some(&["p".to_owned()][..]));
        assert_eq!(tokens.find("tg_a").unwrap().rights.policies, None);
    }

    #[test]
    fn every_error_is_named_and_shows_no_secret() {
        let hash = "0".repeat(64);
        let good = format!(r#""sha256":"{hash}","scopes":["consume"]"#);
        let secret = "tg_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
        let not_hash = "must be the 64 hexadecimal digits of the token's SHA-256, never the token itself";
        let name_rule = "the name of entry 0 is not valid: it must be 1 to 40 ASCII letters, digits, '_', '-' or '.'";
        for (json, expected) in [
            ("{".to_owned(), vec!["TOLLGATE_TOKENS: is not valid JSON: it must be an object of tokens by name".to_owned()]),
            ("[]".to_owned(), vec!["TOLLGATE_TOKENS: must be an object of tokens by name".to_owned()]),
            ("{}".to_owned(), vec!["TOLLGATE_TOKENS: must have 1 to 100 entries, not 0".to_owned()]),
            (r#"{"\ud800":{}}"#.to_owned(), vec!["TOLLGATE_TOKENS: has a name with an unpaired surrogate".to_owned()]),
            (format!(r#"{{"a":{{{good}}},"a":{{{good}}}}}"#), vec!["TOLLGATE_TOKENS: gives a twice".to_owned()]),
            (
                format!(r#"{{"{secret}":{{}},"{secret}":{{}}}}"#),
                vec!["TOLLGATE_TOKENS: gives a text of 46 bytes twice".to_owned()],
            ),
            (format!(r#"{{"{secret}":{{{good}}}}}"#), vec![format!("TOLLGATE_TOKENS: {name_rule}")]),
            (format!(r#"{{"":{{{good}}}}}"#), vec![format!("TOLLGATE_TOKENS: {name_rule}")]),
            (format!(r#"{{"a b":{{{good}}}}}"#), vec![format!("TOLLGATE_TOKENS: {name_rule}")]),
            (
                r#"{"a":[]}"#.to_owned(),
                vec!["TOLLGATE_TOKENS.a: must be an object of sha256, scopes and perhaps policies".to_owned()],
            ),
            (
                format!(r#"{{"a":{{{good},"scope":1,"{secret}":1}}}}"#),
                vec![
                    "TOLLGATE_TOKENS.a: scope is not a field of it; its fields are sha256, scopes, policies, inline, key_prefix".to_owned(),
                    "TOLLGATE_TOKENS.a: a text of 46 bytes is not a field of it; its fields are sha256, scopes, policies, inline, key_prefix"
                        .to_owned(),
                ],
            ),
            (format!(r#"{{"a":{{{good},"scopes":[]}}}}"#), vec!["TOLLGATE_TOKENS.a: gives scopes twice".to_owned()]),
            (
                "{\"a\":{}}".to_owned(),
                vec![
                    format!("TOLLGATE_TOKENS.a.sha256: {not_hash}"),
                    "TOLLGATE_TOKENS.a.scopes: must be a list of one or more of consume, adjust, admin".to_owned(),
                ],
            ),
            (
                format!(r#"{{"a":{{"sha256":"{hash}","scopes":["read","consume","{secret}"],"policies":[]}}}}"#),
                vec![
                    "TOLLGATE_TOKENS.a.scopes: there is no scope read; there are consume, adjust, admin".to_owned(),
                    "TOLLGATE_TOKENS.a.scopes: there is no scope a text of 46 bytes; there are consume, adjust, admin"
                        .to_owned(),
                    "TOLLGATE_TOKENS.a.policies: must be a list of one or more names of policies; leave it out for all of them"
                        .to_owned(),
                ],
            ),
            (
                format!(r#"{{"a":{{{good}}},"b":{{{good}}},"c":{{{good}}}}}"#),
                vec![
                    "TOLLGATE_TOKENS.b.sha256: is that of a too: make a token for each".to_owned(),
                    "TOLLGATE_TOKENS.c.sha256: is that of a too: make a token for each".to_owned(),
                ],
            ),
        ] {
            assert_eq!(errors(&json), expected, "{json}");
        }
        for list in ["[]", "\"consume\"", "[1]", "[\"\"]", "[null]", "{}", "null", r#"["consume",1]"#] {
            let json = format!(r#"{{"a":{{"sha256":"{hash}","scopes":{list},"policies":{list}}}}}"#);
            assert_eq!(errors(&json).len(), 2, "{list}");
        }
        for digits in [&hash[1..], &format!("{hash}0"), &format!("{hash}00"), &format!("{}g", &hash[1..]), secret, ""] {
            let json = format!(r#"{{"a":{{"sha256":"{digits}","scopes":["consume"]}}}}"#);
            assert_eq!(errors(&json), [format!("TOLLGATE_TOKENS.a.sha256: {not_hash}")], "{digits}");
        }
    }

    #[test]
    fn there_may_be_100_with_names_of_40_bytes() {
        let json = |count: usize, len: usize| {
            let token = |index| {
                format!(r#""{index:0>len$}":{{"sha256":"{}","scopes":["consume"]}}"#, hash(&format!("tg_{index}")))
            };
            format!("{{{}}}", (0..count).map(token).collect::<Vec<_>>().join(","))
        };
        let tokens = read(&json(100, 40)).unwrap();
        assert!((0..100).all(|index| tokens.find(&format!("tg_{index}")).is_some()));
        assert_eq!(errors(&json(101, 3)), ["TOLLGATE_TOKENS: must have 1 to 100 entries, not 101"]);
        assert_eq!(errors(&json(1, 41)).len(), 1);
    }
}
