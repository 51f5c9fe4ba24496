//! Exact reading of JSON from outside. Numbers are read from their text, since an `f64` cannot hold them all. Duplicate fields are
//! rejected, since parsers disagree on which one counts.
//!
//! `serde_json` checks the syntax, once for the whole text. Its value parsers would bring floating-point tables into the Worker, a
//! thirtieth of its size.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::str::Chars;

use serde::de::IgnoredAny;

use crate::limit::gcd;
use crate::sorted::sort_by;

/// A value in valid JSON, read lazily. It displays as written, except for arrays and objects, which may be long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json<'a>(&'a str);

/// The fields of an object, in the order written.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

/// Why a value's fields cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FieldsError {
    /// The value is not an object.
    NotAnObject,
    /// A field's name contains an unpaired surrogate.
    InvalidName,
    /// The field is given twice.
    Duplicate(String),
}

impl<'a> Json<'a> {
    /// Parses the value in `text`.
    ///
    /// # Errors
    /// The syntax error and its position.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(|IgnoredAny| Self(text.trim_matches(SPACES)))
    }

    /// The value as written.
    pub(crate) const fn raw(self) -> &'a str {
        self.0
    }

    /// The value without whitespace between its parts.
    #[cfg(any(test, feature = "service"))]
    pub(crate) fn compact(self) -> String {
        let (mut is_string, mut is_escaped) = (false, false);
        let keep = |c: &char| {
            match c {
                '"' if !is_escaped => is_string = !is_string,
                c if SPACES.contains(c) => return is_string,
                _ => {}
            }
            is_escaped = is_string && *c == '\\' && !is_escaped;
            true
        };
        self.0.chars().filter(keep).collect()
    }

    /// A string. `None` also for one with an unpaired surrogate, such as `"\ud800"`.
    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        let text = self.0.strip_prefix('"')?.strip_suffix('"')?;
        if text.contains('\\') { unescaped(text).map(Cow::Owned) } else { Some(Cow::Borrowed(text)) }
    }

    /// An integer from 0 to `u64::MAX` in any notation: 1000, 1000.0 and 1e3 are the same.
    pub(crate) fn integer(self) -> Option<u64> {
        let (numerator, denominator) = self.ratio()?;
        (denominator == 1).then_some(numerator)
    }

    /// A non-negative number as a fraction in lowest terms: 2.5 is 5/2. `None` if either part exceeds `u64::MAX`.
    pub(crate) fn ratio(self) -> Option<(u64, u64)> {
        let (mantissa, exponent) = self.0.split_once(['e', 'E']).unwrap_or((self.0, "0"));
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [integer.trim_start_matches('-'), fraction].concat();
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Some((0, 1));
        }
        let number: u64 = significant.parse().ok().filter(|_| !integer.starts_with('-'))?;
        let zeros = i64::try_from(digits.len().checked_sub(significant.len())?).ok()?;
        let shift = zeros.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
        let power = 10_u64.checked_pow(u32::try_from(exponent.unsigned_abs()).ok()?)?;
        if exponent >= 0 {
            return Some((number.checked_mul(power)?, 1));
        }
        let power = NonZeroU64::new(power)?;
        let common = gcd(number, power);
        Some((number / common, power.get() / common))
    }

    /// True or false.
    pub(crate) fn bool(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// The items of an array.
    pub(crate) fn array(self) -> Option<Vec<Self>> {
        let inner = self.0.strip_prefix('[')?.strip_suffix(']')?;
        Some(Parts(inner).map(Json).collect())
    }

    /// The fields of an object.
    ///
    /// # Errors
    /// [`FieldsError`].
    pub(crate) fn fields(self) -> Result<Fields<'a>, FieldsError> {
        let inner = self.0.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or(FieldsError::NotAnObject)?;
        let mut fields = Vec::new();
        for field in Parts(inner) {
            let (name, value) = split(field, b':');
            let name = Json(name).string().ok_or(FieldsError::InvalidName)?;
            fields.push((name, Json(value)));
        }
        let fields = Fields(fields);
        let mut names: Vec<_> = fields.names().collect();
        sort_by(&mut names, Ord::cmp);
        let duplicate = names.windows(2).find(|pair| pair.first() == pair.last());
        match duplicate.and_then(|pair| pair.first()) {
            Some(&name) => Err(FieldsError::Duplicate(name.to_owned())),
            None => Ok(fields),
        }
    }
}

impl<'a> Fields<'a> {
    /// An object with one field.
    pub(crate) fn one(name: &'a str, value: Json<'a>) -> Self {
        Self(vec![(Cow::Borrowed(name), value)])
    }

    /// The field with this name.
    pub(crate) fn get(&self, name: &str) -> Option<Json<'a>> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The field names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// All fields.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Cow<'a, str>, Json<'a>)> {
        self.0.iter().map(|(name, value)| (name, *value))
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.as_bytes().first() {
            Some(b'[') => "an array",
            Some(b'{') => "an object",
            _ => self.0,
        })
    }
}

/// Splits the inside of an array or object at its commas.
struct Parts<'a>(&'a str);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (part, rest) = split(self.0, b',');
        self.0 = rest;
        (!part.is_empty()).then_some(part)
    }
}

/// Splits at the first `separator` outside strings and brackets, and trims both parts.
fn split(text: &str, separator: u8) -> (&str, &str) {
    let (mut depth, mut is_string, mut is_escaped) = (0_usize, false, false);
    let is_it = |&byte: &u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'[' | b'{' => depth = depth.saturating_add(1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => return depth == 0 && byte == separator,
        }
        false
    };
    let at = text.as_bytes().iter().position(is_it).unwrap_or(text.len());
    let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
    (before.trim_matches(SPACES), after.get(1..).unwrap_or_default().trim_matches(SPACES))
}

/// Unescapes a string; `None` if it contains an unpaired surrogate.
fn unescaped(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let c = if c == '\\' { escaped(&mut rest)? } else { c };
        plain.push(c);
    }
    Some(plain)
}

/// Reads one escape sequence.
fn escaped(rest: &mut Chars<'_>) -> Option<char> {
    Some(match rest.next()? {
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let first = code_unit(rest)?;
            let is_pair = (0xd800..0xdc00).contains(&first) && rest.as_str().starts_with("\\u");
            let second = if is_pair { code_unit(&mut rest.clone().skip(2))? } else { 0 };
            let c = char::decode_utf16([first, second]).next()?.ok()?;
            if is_pair {
                _ = rest.nth(5);
            }
            c
        }
        itself => itself,
    })
}

fn code_unit(digits: &mut impl Iterator<Item = char>) -> Option<u16> {
    let unit = digits.take(4).try_fold(0, |unit, digit| Some(unit << 4 | digit.to_digit(16)?))?;
    u16::try_from(unit).ok()
}

const SPACES: [char; 4] = [' ', '\t', '\n', '\r'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn json(text: &str) -> Json<'_> {
        Json::parse(text).unwrap()
    }

    #[test]
    fn compact_text_has_spaces_only_in_strings() {
        for (written, expected) in [
            ("{ \"a b\" : [ 1 ,\t2 ] ,\r\n \"c\" : \" d \" }", r#"{"a b":[1,2],"c":" d "}"#),
            (r#"[ "\\" , "\" , " ]"#, r#"["\\","\" , "]"#),
            (r#"[ "\\\" , " , 1 ]"#, r#"["\\\" , ",1]"#),
            ("7", "7"),
        ] {
            assert_eq!(json(written).compact(), expected);
        }
    }

    #[test]
    fn an_integer_is_exact_in_every_notation() {
        for (written, expected) in [
            ("0", 0),
            ("-0", 0),
            ("-0.0", 0),
            ("0e999999999999999999999", 0),
            ("1.0", 1),
            ("1e3", 1_000),
            ("1E+3", 1_000),
            ("120e-1", 12),
            ("1.25e2", 125),
            ("10000000000000000000000000e-25", 1),
            ("9007199254740991.0", 9_007_199_254_740_991),
            ("9007199254740993", 9_007_199_254_740_993),
            ("18446744073709551615", u64::MAX),
            ("1844674407370955161.5e1", u64::MAX),
        ] {
            assert_eq!(json(written).integer(), Some(expected), "{written}");
        }
    }

    #[test]
    fn nothing_else_is_an_integer() {
        let numbers =
            "-1 1.5 1e-1 125e-1 1e20 18446744073709551616 1e999 1e99999999999999999999 1e-99999999999999999999";
        for written in numbers.split(' ').chain(["\"1\"", "\"\"", "null", "true", "false", "[1]", "[]", "{}", "[0]"]) {
            assert_eq!(json(written).integer(), None, "{written}");
        }
    }

    #[test]
    fn a_fraction_is_exact_and_in_lowest_terms() {
        for (written, expected) in [
            ("2.5", Some((5, 2))),
            ("0.1", Some((1, 10))),
            ("1e-1", Some((1, 10))),
            ("125e-1", Some((25, 2))),
            ("1.10", Some((11, 10))),
            ("1e-19", Some((1, 10_000_000_000_000_000_000))),
            ("1e-20", None),
            ("-2.5", None),
            ("7", Some((7, 1))),
            ("-0.0", Some((0, 1))),
            ("\"2.5\"", None),
            ("[2.5]", None),
            ("null", None),
        ] {
            assert_eq!(json(written).ratio(), expected, "{written}");
        }
    }

    #[test]
    fn a_string_is_borrowed_unless_it_has_escapes() {
        assert!(matches!(json(r#""語""#).string(), Some(Cow::Borrowed("語"))));
        assert_eq!(json(r#" "a\n\ud83d\ude00" "#).string().as_deref(), Some("a\n😀"));
        for other in [r#""\ud800""#, r#""\udc00x""#, "1", "null", "[\"a\"]", "{}"] {
            assert_eq!(json(other).string(), None, "{other}");
        }
    }

    #[test]
    fn fields_are_in_the_order_written_and_none_is_given_twice() {
        let fields = json(r#"{"b": 1, "a": {"b": 2}, "\u0063": [ ]}"#).fields().unwrap();
        assert_eq!(fields.names().collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!(fields.get("a").map(Json::raw), Some(r#"{"b": 2}"#));
        assert!(fields.get("d").is_none());
        for (written, why) in [
            ("[]", FieldsError::NotAnObject),
            ("null", FieldsError::NotAnObject),
            (r#"{"\ud800":1}"#, FieldsError::InvalidName),
            (r#"{"a":1,"b":2,"\u0061":3}"#, FieldsError::Duplicate("a".to_owned())),
        ] {
            assert_eq!(json(written).fields().unwrap_err(), why, "{written}");
        }
    }

    /// The value, converted with the accessors under test.
    fn value(json: Json<'_>) -> Value {
        match json.raw().as_bytes()[0] {
            b'{' => {
                Value::Object(json.fields().unwrap().iter().map(|(name, it)| (name.to_string(), value(it))).collect())
            }
            b'[' => json.array().unwrap().into_iter().map(value).collect(),
            b'"' => json.string().unwrap().into(),
            b'0'..=b'9' => json.integer().unwrap().into(),
            _ => json.bool().map_or(Value::Null, Value::Bool),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let text = || {
            prop::collection::vec(
                prop::sample::select(vec!["\"", "\\", "[", "}", ",", ":", " ", "\n", "\u{8}", "é", "語", "😀"]),
                0..6,
            )
        };
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            text().prop_map(|parts| Value::from(parts.concat())),
        ];
        leaf.prop_recursive(4, 30, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((text(), inner), 0..5)
                    .prop_map(|all| Value::Object(all.into_iter().map(|(name, it)| (name.concat(), it)).collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(crate::chance::config(256))]

        #[test]
        fn every_value_reads_back(expected in values(), is_pretty: bool, has_escapes: bool) {
            let mut text = if is_pretty { serde_json::to_string_pretty(&expected) } else { serde_json::to_string(&expected) }.unwrap();
            if has_escapes {
                text = text.replace('é', r"\u00e9").replace('語', r"\u8a9E").replace('😀', r"\ud83d\uDE00");
            }
            prop_assert_eq!(value(json(&text)), expected);
        }
    }

    #[test]
    fn nesting_uses_no_stack() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(json(&deep).array().map(|items| items.len()), Some(1));
    }

    #[test]
    fn syntax_is_checked_all_at_once() {
        for wrong in ["", "{", "[1,]", r#"{"a":01}"#, r#"{"a":.5}"#, "NaN", "1 2", "\"\n\"", r#"{"a":"\x"}"#, "+1"] {
            assert!(Json::parse(wrong).is_err(), "{wrong}");
        }
    }
}
