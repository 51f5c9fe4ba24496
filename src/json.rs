//! JSON that others write, read exactly. A number is read from its text, since an `f64` cannot hold every one, and no
//! field may be given twice, since readers disagree about which of the two counts.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A value in valid JSON. Its parts are read when they are asked for. It shows as it was written, but for lists and
/// objects, which may be long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json<'a>(&'a str);

/// The fields of an object, in the order written.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

/// Why a value has no fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoFields {
    /// It is something else.
    NotAnObject,
    /// The name of a field has half of a surrogate pair in it, so it is no text.
    NotText,
    /// A field of that name is given twice.
    Twice(String),
}

impl<'a> Json<'a> {
    /// The value that is written in `text`.
    ///
    /// # Errors
    /// What is wrong with its syntax, and where.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// What was written.
    pub(crate) const fn written(self) -> &'a str {
        self.0
    }

    /// Text. `None` also for text with half of a surrogate pair, such as `"\ud800"`.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        serde_json::from_str(self.0).ok().map(|Text(text)| text)
    }

    /// A whole number from 0 to `u64::MAX`, however it is written: 1000, 1000.0 and 1e3 are the same.
    pub(crate) fn whole(self) -> Option<u64> {
        let (mantissa, exponent) = self.0.split_once(['e', 'E']).unwrap_or((self.0, "0"));
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [integer.trim_start_matches('-'), fraction].concat();
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Some(0);
        }
        let number: u64 = significant.parse().ok()?;
        let zeros = i64::try_from(digits.len().checked_sub(significant.len())?).ok()?;
        let shift = zeros.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
        let scale = 10_u64.checked_pow(u32::try_from(exponent).ok()?)?;
        number.checked_mul(scale).filter(|_| !integer.starts_with('-'))
    }

    /// True or false.
    pub(crate) fn boolean(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// The items of a list.
    pub(crate) fn list(self) -> Option<Vec<Self>> {
        serde_json::from_str(self.0).ok()
    }

    /// The fields of an object.
    ///
    /// # Errors
    /// [`NoFields`].
    pub(crate) fn fields(self) -> Result<Fields<'a>, NoFields> {
        if !self.0.starts_with('{') {
            return Err(NoFields::NotAnObject);
        }
        let fields: Fields = serde_json::from_str(self.0).map_err(|_| NoFields::NotText)?;
        let mut names = BTreeSet::new();
        let twice = fields.names().find(|name| !names.insert(*name)).map(str::to_owned);
        twice.map_or(Ok(fields), |name| Err(NoFields::Twice(name)))
    }
}

impl<'a> Fields<'a> {
    /// The field of that name.
    pub(crate) fn get(&self, name: &str) -> Option<Json<'a>> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The fields' names.
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
            Some(b'[') => "a list",
            Some(b'{') => "an object",
            _ => self.0,
        })
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|value| Self(value.get()))
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((Text(name), value)) = map.next_entry()? {
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// `Cow` alone would always copy. This copies only what has escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json<'_> {
        Json::parse(text).unwrap()
    }

    #[test]
    fn a_whole_number_is_exact_however_it_is_written() {
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
            assert_eq!(json(written).whole(), Some(expected), "{written}");
        }
    }

    #[test]
    fn nothing_else_is_a_whole_number() {
        let numbers =
            "-1 1.5 1e-1 125e-1 1e20 18446744073709551616 1e999 1e99999999999999999999 1e-99999999999999999999";
        for written in numbers.split(' ').chain(["\"1\"", "\"\"", "null", "true", "false", "[1]", "[]", "{}", "[0]"]) {
            assert_eq!(json(written).whole(), None, "{written}");
        }
    }

    #[test]
    fn text_is_borrowed_unless_it_has_escapes() {
        assert!(matches!(json(r#""語""#).text(), Some(Cow::Borrowed("語"))));
        assert_eq!(json(r#" "a\n\ud83d\ude00" "#).text().as_deref(), Some("a\n😀"));
        for other in [r#""\ud800""#, r#""\udc00x""#, "1", "null", "[\"a\"]", "{}"] {
            assert_eq!(json(other).text(), None, "{other}");
        }
    }

    #[test]
    fn fields_are_in_the_order_written_and_none_is_given_twice() {
        let fields = json(r#"{"b": 1, "a": {"b": 2}, "\u0063": [ ]}"#).fields().unwrap();
        assert_eq!(fields.names().collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!(fields.get("a").map(Json::written), Some(r#"{"b": 2}"#));
        assert!(fields.get("d").is_none());
        for (written, why) in [
            ("[]", NoFields::NotAnObject),
            ("null", NoFields::NotAnObject),
            (r#"{"\ud800":1}"#, NoFields::NotText),
            (r#"{"a":1,"b":2,"\u0061":3}"#, NoFields::Twice("a".to_owned())),
        ] {
            assert_eq!(json(written).fields().unwrap_err(), why, "{written}");
        }
    }

    #[test]
    fn depth_takes_no_stack() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(json(&deep).list().map(|list| list.len()), Some(1));
    }

    #[test]
    fn syntax_is_checked_all_at_once() {
        for wrong in ["", "{", "[1,]", r#"{"a":01}"#, r#"{"a":.5}"#, "NaN", "1 2", "\"\n\"", r#"{"a":"\x"}"#, "+1"] {
            assert!(Json::parse(wrong).is_err(), "{wrong}");
        }
    }
}
