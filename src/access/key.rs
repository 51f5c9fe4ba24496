//! A budget's key: a text, a list of texts, or an IP address.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use super::address::{self, AddressError, Network};
use crate::hex::bytes_of_hex;
use crate::json::{FieldsError, Json};
use crate::key_hash::{self, KeyHash, KeyHasher};

/// Maximum key length in bytes of UTF-8, for a list the sum of its parts: room for a URL, or an e-mail address after a tenant. Callers with
/// longer ones must hash them.
pub const MAX_KEY_LEN: usize = 512;

/// Maximum parts of a list.
pub const MAX_KEY_PARTS: usize = 8;

/// A budget's key. Untrusted, and never logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// A text, as is.
    Text(Cow<'a, str>),
    /// Parts, such as a tenant and a user. Different lists never share a budget, even if their concatenations are equal. The empty list is
    /// the only key of a policy with one budget for all.
    List(Vec<Cow<'a, str>>),
    /// A client's address, of which only its [`Network`] counts.
    Ip(IpAddr),
    /// The key with this hash. Only for operators, who may know nothing else of it.
    Hash(KeyHash),
}

impl<'a> Key<'a> {
    /// Parses `"alice"`, `["tenant 7", "alice"]` or `{"ip": "192.0.2.1"}`.
    ///
    /// # Errors
    /// [`KeyError`].
    pub(crate) fn parse(json: Json<'a>) -> Result<Self, KeyError> {
        match json.raw().as_bytes().first() {
            Some(b'"') => {
                let text = text(json)?;
                require_len(text.len())?;
                Ok(Self::Text(text))
            }
            Some(b'[') => {
                let items = json.array().unwrap_or_default();
                if items.is_empty() {
                    return Ok(Self::List(Vec::new()));
                }
                if items.len() > MAX_KEY_PARTS {
                    return Err(KeyError::PartCount { count: items.len() });
                }
                let parts = items.into_iter().enumerate().map(|(index, item)| {
                    if !item.raw().starts_with('"') {
                        return Err(KeyError::PartNotText { index });
                    }
                    Some(text(item)?).filter(|part| !part.is_empty()).ok_or(KeyError::PartEmpty { index })
                });
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                require_len(parts.iter().map(|part| part.len()).sum())?;
                Ok(Self::List(parts))
            }
            Some(b'{') => {
                let fields = json.fields().map_err(|error| match error {
                    FieldsError::Duplicate(_) => KeyError::IpTwice,
                    FieldsError::NotAnObject | FieldsError::InvalidName => KeyError::NotOnlyIp,
                })?;
                match (fields.get("ip"), fields.names().count()) {
                    (Some(ip), 1) => Self::of_address(&ip.string().ok_or(KeyError::IpNotText)?),
                    (None, 1) if fields.get("hash").is_some() => Err(KeyError::HashOfOperators),
                    _ => Err(KeyError::NotOnlyIp),
                }
            }
            _ => Err(KeyError::NotAKey),
        }
    }

    /// Parses the same, and `{"hash": "<32 hexadecimal digits>"}`, which only operators may send.
    ///
    /// # Errors
    /// [`KeyError`].
    pub(crate) fn parse_operated(json: Json<'a>) -> Result<Self, KeyError> {
        match Self::parse(json) {
            Err(KeyError::HashOfOperators) => {
                let hash = json.fields().ok().and_then(|fields| fields.get("hash")?.string());
                let bytes = hash.and_then(|digits| bytes_of_hex(&digits)?.try_into().ok());
                bytes.map(Self::Hash).ok_or(KeyError::HashUnreadable)
            }
            other => other,
        }
    }

    /// The key for an address written as in `{"ip": ...}`.
    ///
    /// # Errors
    /// [`KeyError`].
    pub(crate) fn of_address(text: &str) -> Result<Self, KeyError> {
        address::parse(text).map(Self::Ip).map_err(KeyError::Ip)
    }

    /// The bytes that name this key's object, the same for all keys that share a budget: for IPv6 only the first `ipv6_prefix` bits count.
    /// Texts, lists and addresses never have the same bytes, since the latter two start with a byte that is never in UTF-8.
    #[must_use]
    pub fn to_bytes(&self, ipv6_prefix: u8) -> Vec<u8> {
        match self {
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::List(parts) => {
                let mut bytes = vec![NOT_TEXT, LIST];
                for part in parts {
                    // No part is longer than MAX_KEY_LEN.
                    bytes.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes());
                    bytes.extend(part.as_bytes());
                }
                bytes
            }
            Self::Ip(address) => {
                let network = Network::of(*address, ipv6_prefix);
                match network.first() {
                    IpAddr::V4(address) => [&[NOT_TEXT, IPV4][..], &address.octets()].concat(),
                    IpAddr::V6(address) => [&[NOT_TEXT, IPV6, network.prefix()][..], &address.octets()].concat(),
                }
            }
            Self::Hash(hash) => key_hash::bytes_of(hash),
        }
    }

    /// The key without parts, if this is its hash. It is the only key whose hash says which it is: all budgets that are shared by all have it.
    #[must_use]
    pub fn recognized(self, hasher: &KeyHasher) -> Self {
        let shared = Self::List(Vec::new());
        match &self {
            Self::Hash(hash) if *hash == hasher.hash(&shared.to_bytes(0)) => shared,
            _ => self,
        }
    }

    /// The bytes of a request's key for a policy: one that `has_one_budget` takes no key, or `[]`, which is the same; any other takes one
    /// with a part.
    ///
    /// # Errors
    /// [`KeyMisfit`].
    pub fn bytes_for(asked: Option<&Self>, has_one_budget: bool, ipv6_prefix: u8) -> Result<Vec<u8>, KeyMisfit> {
        let no_parts = Self::List(Vec::new());
        match asked {
            None if has_one_budget => Ok(no_parts.to_bytes(ipv6_prefix)),
            None => Err(KeyMisfit::Missing),
            // Any hash fits, except for a budget shared by all: it is of another key.
            Some(key @ Self::Hash(_)) if !has_one_budget => Ok(key.to_bytes(ipv6_prefix)),
            Some(key) if (*key == no_parts) == has_one_budget => Ok(key.to_bytes(ipv6_prefix)),
            Some(_) if has_one_budget => Err(KeyMisfit::NotTaken),
            Some(_) => Err(KeyMisfit::NoParts),
        }
    }

    /// The first characters of the key with these bytes, for operators: a list's parts are joined by commas, an address is as written.
    #[must_use]
    pub fn shown_prefix(bytes: &[u8], characters: u8) -> String {
        let text = match decoded(bytes) {
            Some(Decoded::Text(text)) => text.to_owned(),
            Some(Decoded::List(parts)) => parts.join(","),
            Some(Decoded::Address(address)) => address.to_string(),
            None => String::new(), // a key's bytes always decode
        };
        text.chars().take(characters.into()).collect()
    }

    /// The same key, owned.
    pub(crate) fn into_owned(self) -> Key<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        match self {
            Self::Text(text) => Key::Text(owned(text)),
            Self::List(parts) => Key::List(parts.into_iter().map(owned).collect()),
            Self::Ip(address) => Key::Ip(address),
            Self::Hash(hash) => Key::Hash(hash),
        }
    }
}

/// The key with these [bytes](Key::to_bytes), as JSON as callers write it; for IPv6, the network's first address. `None` if no key has
/// these bytes.
#[must_use]
pub fn key_json(bytes: &[u8]) -> Option<String> {
    match decoded(bytes)? {
        Decoded::Text(text) => serde_json::to_string(text).ok(),
        Decoded::List(parts) => serde_json::to_string(&parts).ok(),
        Decoded::Address(address) => Some(format!("{{\"ip\":\"{address}\"}}")),
    }
}

/// The parts of the key with these bytes; `None` if no key has them.
fn decoded(bytes: &[u8]) -> Option<Decoded<'_>> {
    Some(match bytes {
        [NOT_TEXT, LIST, rest @ ..] => {
            let (mut rest, mut parts) = (rest, Vec::new());
            while let Some((len, after)) = rest.split_first_chunk() {
                let (part, others) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
                parts.push(std::str::from_utf8(part).ok()?);
                rest = others;
            }
            Some(Decoded::List(parts)).filter(|_| rest.is_empty())?
        }
        [NOT_TEXT, IPV4, octets @ ..] => Decoded::Address(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?)),
        [NOT_TEXT, IPV6, _, octets @ ..] => Decoded::Address(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
        text => Decoded::Text(std::str::from_utf8(text).ok()?),
    })
}

enum Decoded<'a> {
    Text(&'a str),
    List(Vec<&'a str>),
    /// For IPv6, the network's first address.
    Address(IpAddr),
}

/// A byte that is never in UTF-8.
const NOT_TEXT: u8 = 0xff;

// The byte that follows it.
const LIST: u8 = 1;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

fn text(json: Json<'_>) -> Result<Cow<'_, str>, KeyError> {
    json.string().ok_or(KeyError::Surrogate)
}

fn require_len(len: usize) -> Result<(), KeyError> {
    match len {
        0 => Err(KeyError::Empty),
        len if len > MAX_KEY_LEN => Err(KeyError::TooLong { len }),
        _ => Ok(()),
    }
}

/// Why a key does not fit its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMisfit {
    /// No key.
    Missing,
    /// A key, but the policy has one budget for all.
    NotTaken,
    /// A list without parts, which only such a policy takes.
    NoParts,
}

impl fmt::Display for KeyMisfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::NotTaken => f.write_str("must be left out: the policy has one budget for all"),
            Self::NoParts => KeyError::PartCount { count: 0 }.fmt(f),
        }
    }
}

impl std::error::Error for KeyMisfit {}

/// Why a key is invalid. The key itself is never shown.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// None of the three forms.
    NotAKey,
    /// An empty text.
    Empty,
    /// More than [`MAX_KEY_LEN`] bytes.
    TooLong { len: usize },
    /// Not valid Unicode: an unpaired surrogate.
    Surrogate,
    /// A list of more than [`MAX_KEY_PARTS`], or an empty one for a policy that needs a key.
    PartCount { count: usize },
    /// A part that is not a text.
    PartNotText { index: usize },
    /// A part that is an empty text.
    PartEmpty { index: usize },
    /// An object with fields other than `ip`.
    NotOnlyIp,
    /// `hash`, which only operators may send.
    HashOfOperators,
    /// `hash` is not the hash of a key.
    HashUnreadable,
    /// `ip` is given twice.
    IpTwice,
    /// `ip` is not a text.
    IpNotText,
    /// `ip` is not an address.
    Ip(AddressError),
}

impl KeyError {
    /// The rule for keys.
    #[must_use]
    pub fn rule() -> String {
        format!(
            "a string of 1 to {MAX_KEY_LEN} bytes, a list of 1 to {MAX_KEY_PARTS} strings, or {{\"ip\":\"<address>\"}}"
        )
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAKey => write!(f, "must be {}", Self::rule()),
            Self::Empty => write!(f, "is empty: it must have 1 to {MAX_KEY_LEN} bytes"),
            Self::TooLong { len } => write!(f, "is {len} bytes long; at most {MAX_KEY_LEN} are allowed"),
            Self::Surrogate => f.write_str("contains an unpaired surrogate, so it is not valid Unicode"),
            Self::PartCount { count } => write!(f, "is a list of {count}; it must have 1 to {MAX_KEY_PARTS} parts"),
            Self::PartNotText { index } => write!(f, "has a part {index} that is not a string"),
            Self::PartEmpty { index } => write!(f, "has an empty part {index}"),
            Self::NotOnlyIp => f.write_str("is an object, so its only field must be `ip`"),
            Self::HashOfOperators => {
                f.write_str("is a `hash`, by which only operators may name a key, under /v1/keys/: give the key itself")
            }
            Self::HashUnreadable => {
                f.write_str("has a `hash` that is not the 32 hexadecimal digits that lists and logs show of a key")
            }
            Self::IpTwice => f.write_str("gives a field twice"),
            Self::IpNotText => f.write_str("has an `ip` that is not a string"),
            Self::Ip(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(json: &str) -> Result<Key<'_>, KeyError> {
        Key::parse(Json::parse(json).unwrap())
    }

    fn ip(text: &str) -> Result<Key<'static>, KeyError> {
        parse(&format!(r#"{{"ip":"{text}"}}"#)).map(Key::into_owned)
    }

    #[test]
    fn a_policy_with_one_budget_takes_no_key_and_any_other_needs_one() {
        let bytes = |key: Option<&str>, has_one_budget| {
            let key = key.map(|key| parse(key).unwrap());
            Key::bytes_for(key.as_ref(), has_one_budget, 64)
        };
        assert_eq!(bytes(None, true), Ok(vec![NOT_TEXT, LIST]));
        assert_eq!(bytes(Some("[]"), true), bytes(None, true));
        assert_eq!(bytes(None, false), Err(KeyMisfit::Missing));
        assert_eq!(bytes(Some("[]"), false), Err(KeyMisfit::NoParts));
        for key in [r#""alice""#, r#"["alice"]"#, r#"["a","b"]"#, r#"{"ip":"192.0.2.1"}"#] {
            assert_eq!(bytes(Some(key), true), Err(KeyMisfit::NotTaken), "{key}");
            let own = bytes(Some(key), false).unwrap();
            assert_ne!(Ok(&own), bytes(None, true).as_ref(), "no key shares that budget");
        }
        let hasher = KeyHasher::default();
        let by_hash = |bytes: &[u8]| Key::bytes_for(Some(&Key::Hash(hasher.hash(bytes)).recognized(&hasher)), true, 64);
        assert_eq!(by_hash(&[NOT_TEXT, LIST]), bytes(None, true), "its own hash names it, too");
        assert_eq!(by_hash(b"alice"), Err(KeyMisfit::NotTaken));
        assert_eq!(key_json(&[NOT_TEXT, LIST]).as_deref(), Some("[]"));
        assert_eq!(Key::shown_prefix(&[NOT_TEXT, LIST], 64), "");
    }

    #[test]
    fn a_key_has_three_forms() {
        assert_eq!(parse(r#""al\u0069ce""#), Ok(Key::Text("alice".into())));
        assert_eq!(parse(r#" [ "tenant 7" , "alice" ] "#), Ok(Key::List(vec!["tenant 7".into(), "alice".into()])));
        assert_eq!(parse(r#"{"ip":"192.0.2.1"}"#), Ok(Key::Ip(IpAddr::from([192, 0, 2, 1]))));
    }

    #[test]
    fn only_an_operator_names_a_key_by_its_hash() {
        let operated = |json: &str| Key::parse_operated(Json::parse(json).unwrap()).map(Key::into_owned);
        let digits = "00112233445566778899aabbccddeeFF";
        let hash = [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        let json = format!(r#"{{"hash":"{digits}"}}"#);
        assert_eq!((operated(&json), parse(&json)), (Ok(Key::Hash(hash)), Err(KeyError::HashOfOperators)));
        assert_eq!(key_json(&Key::Hash(hash).to_bytes(64)), None, "a hash does not say how the key is written");
        // A text with the same digits is a separate key.
        assert_eq!(operated(&format!("{digits:?}")), Ok(Key::Text(digits.into())));
        assert_eq!(operated(r#"["a"]"#), Ok(Key::List(vec!["a".into()])));
        for (json, error) in [
            (r#"{"hash":"00112233445566778899aabbccddeef"}"#, KeyError::HashUnreadable),
            (r#"{"hash":"00112233445566778899aabbccddeefff"}"#, KeyError::HashUnreadable),
            (r#"{"hash":"0011223344556677"}"#, KeyError::HashUnreadable),
            (r#"{"hash":"g0112233445566778899aabbccddeeff"}"#, KeyError::HashUnreadable),
            (r#"{"hash":7}"#, KeyError::HashUnreadable),
            (r#"{"hash":"00112233445566778899aabbccddeeff","ip":"192.0.2.1"}"#, KeyError::NotOnlyIp),
            (r#"{"key":"a"}"#, KeyError::NotOnlyIp),
        ] {
            assert_eq!(operated(json), Err(error), "{json}");
        }
    }

    #[test]
    fn bytes_are_shown_as_their_key() {
        for (key, shown) in [
            (r#""al\u0069ce\n""#, r#""alice\n""#),
            (r#"[ "tenant 7" , "b" ]"#, r#"["tenant 7","b"]"#),
            (r#"{"ip":"::ffff:192.0.2.1"}"#, r#"{"ip":"192.0.2.1"}"#),
            (r#"{"ip":"2001:db8:1:2:3::4"}"#, r#"{"ip":"2001:db8:1:2::"}"#),
        ] {
            let bytes = parse(key).unwrap().to_bytes(64);
            assert_eq!(key_json(&bytes).as_deref(), Some(shown));
            assert_eq!(parse(shown).unwrap().to_bytes(64), bytes, "the same budget");
            if bytes[0] == NOT_TEXT {
                assert!(
                    (1..bytes.len()).all(|len| key_json(&bytes[..len]).is_none_or(|short| short.len() < shown.len()))
                );
            }
        }
        for bytes in [&[NOT_TEXT][..], &[NOT_TEXT, 9], &[NOT_TEXT, LIST, 1], &[NOT_TEXT, LIST, 2, 0, b'a'], &[0xc3]] {
            assert_eq!(key_json(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        let parts = |count: usize, part: &str| format!("[{}]", vec![format!("{part:?}"); count].join(","));
        for (json, error) in [
            ("7", KeyError::NotAKey),
            ("null", KeyError::NotAKey),
            ("true", KeyError::NotAKey),
            (r#""""#, KeyError::Empty),
            (r#""\ud800""#, KeyError::Surrogate),
            (r#"["a","\ud800"]"#, KeyError::Surrogate),
            (&parts(9, "a"), KeyError::PartCount { count: 9 }),
            (r#"["a",1]"#, KeyError::PartNotText { index: 1 }),
            (r#"["a",["b"]]"#, KeyError::PartNotText { index: 1 }),
            (r#"["a",null]"#, KeyError::PartNotText { index: 1 }),
            (r#"["a","b",""]"#, KeyError::PartEmpty { index: 2 }),
            ("{}", KeyError::NotOnlyIp),
            (r#"{"address":"192.0.2.1"}"#, KeyError::NotOnlyIp),
            (r#"{"ip":"192.0.2.1","port":80}"#, KeyError::NotOnlyIp),
            (r#"{"\ud800":1}"#, KeyError::NotOnlyIp),
            (r#"{"ip":"192.0.2.1","ip":"192.0.2.1"}"#, KeyError::IpTwice),
            (r#"{"ip":3221225985}"#, KeyError::IpNotText),
            (r#"{"ip":null}"#, KeyError::IpNotText),
        ] {
            assert_eq!(parse(json), Err(error), "{json}");
        }
        assert!(parse(&parts(8, "a")).is_ok());
    }

    #[test]
    fn a_key_or_all_parts_of_a_list_have_at_most_512_bytes() {
        assert!(parse(&format!("\"{}\"", "k".repeat(512))).is_ok());
        assert_eq!(parse(&format!("\"{}\"", "k".repeat(513))), Err(KeyError::TooLong { len: 513 }));
        let list = |len: usize| format!(r#"["{}","{}"]"#, "k".repeat(256), "k".repeat(len));
        assert!(parse(&list(256)).is_ok());
        assert_eq!(parse(&list(257)), Err(KeyError::TooLong { len: 513 }));
    }

    /// A change here loses the buckets of these keys.
    #[test]
    fn the_bytes_are_unchanged() {
        let bytes = |json: &str, prefix| parse(json).unwrap().to_bytes(prefix);
        assert_eq!(bytes(r#""alice""#, 64), b"alice");
        assert_eq!(bytes(r#"["ab","c"]"#, 64), b"\xff\x01\x02\0ab\x01\0c");
        assert_eq!(bytes(r#"{"ip":"192.0.2.1"}"#, 64), b"\xff\x04\xc0\0\x02\x01");
        let network = b"\xff\x06\x40\x20\x01\x0d\xb8\0\x01\0\x02\0\0\0\0\0\0\0\0";
        assert_eq!(bytes(r#"{"ip":"2001:db8:1:2:3:4:5:6"}"#, 64), network);
    }

    #[test]
    fn only_the_prefix_of_an_ipv6_address_counts() {
        let same = |a: &str, b: &str, prefix| ip(a).unwrap().to_bytes(prefix) == ip(b).unwrap().to_bytes(prefix);
        for (prefix, inside, outside) in [
            (32, "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::"),
            (56, "2001:db8:0:ff:ffff:ffff:ffff:ffff", "2001:db8:0:100::"),
            (64, "2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::"),
            (127, "2001:db8::1", "2001:db8::2"),
            (128, "2001:db8::", "2001:db8::1"),
        ] {
            assert!(same("2001:db8::", inside, prefix), "{inside}/{prefix}");
            assert!(!same("2001:db8::", outside, prefix), "{outside}/{prefix}");
        }
        for prefix in [32, 64, 128] {
            assert!(same("192.0.2.1", "::ffff:192.0.2.1", prefix));
            assert!(!same("192.0.2.1", "192.0.2.2", prefix));
        }
        assert_ne!(ip("2001:db8::").unwrap().to_bytes(64), ip("2001:db8::").unwrap().to_bytes(56), "other networks");
    }

    /// Any key over a small alphabet, so that many are nearly alike.
    fn any_key() -> impl Strategy<Value = Key<'static>> {
        let text = || prop_oneof!["[ab\u{1}\u{2}\0]{1,4}", "\\PC{1,12}"].prop_map(Cow::Owned);
        prop_oneof![
            text().prop_map(Key::Text),
            prop::collection::vec(text(), 1..=MAX_KEY_PARTS).prop_map(Key::List),
            any::<u32>().prop_map(|bits| Key::Ip(IpAddr::V4(bits.into()))),
            any::<u128>().prop_map(|bits| Key::Ip(address::canonical(IpAddr::V6(bits.into())))),
        ]
    }

    proptest! {
        #![proptest_config(crate::chance::config(256))]

        #[test]
        fn no_two_keys_have_the_same_bytes(a in any_key(), b in any_key()) {
            prop_assert_eq!(a.to_bytes(128) == b.to_bytes(128), a == b);
        }

        /// For any way of cutting the same text into parts.
        #[test]
        fn no_two_ways_to_split_a_text_have_the_same_bytes(text in "[a\u{1}\0]{2,12}", cuts in prop::collection::vec(1_usize..12, 2)) {
            let cut = |at: usize| {
                let at = at.min(text.len() - 1);
                Key::List(vec![text[..at].to_owned().into(), text[at..].to_owned().into()])
            };
            let (a, b) = (cut(cuts[0]), cut(cuts[1]));
            prop_assert_eq!(a.to_bytes(64) == b.to_bytes(64), a == b);
            prop_assert_ne!(a.to_bytes(64), Key::List(vec![text.clone().into()]).to_bytes(64));
            prop_assert_ne!(a.to_bytes(64), Key::Text(text.into()).to_bytes(64));
        }
    }

    #[test]
    fn each_error_says_what_is_wrong() {
        for (error, expected) in [
            (
                KeyError::NotAKey,
                "must be a string of 1 to 512 bytes, a list of 1 to 8 strings, or {\"ip\":\"<address>\"}",
            ),
            (KeyError::Empty, "is empty: it must have 1 to 512 bytes"),
            (KeyError::TooLong { len: 513 }, "is 513 bytes long; at most 512 are allowed"),
            (KeyError::PartEmpty { index: 1 }, "has an empty part 1"),
            (KeyError::IpTwice, "gives a field twice"),
            (
                KeyError::Ip(AddressError::Zone),
                "has an `ip` with a zone (%...) that only an IPv6 address may have, as in \"fe80::1%eth0\"",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn an_error_never_shows_the_key() {
        let secret = "secret";
        for json in [r#"["secret",7]"#, r#"{"secret":1}"#, r#"{"ip":"secret"}"#, r#"{"ip":"1.2.3.4:secret"}"#] {
            let error = parse(json).unwrap_err().to_string();
            assert!(!error.contains(secret), "{error}");
        }
    }
}
