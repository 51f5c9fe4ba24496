//! The fields of bodies, each with its check.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::cost::{Cost, cost};
use super::json::Whole;
use super::request::{Item, MAX_KEY_LEN};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with \"policy\", \"key\" and optional fields")]
pub(super) struct Body<'a> {
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "key")]
    pub(super) key: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "cost")]
    pub(super) cost: Option<Cost<'a>>,
    #[serde(default)]
    pub(super) snapshot: bool,
    #[serde(default, deserialize_with = "mode")]
    pub(super) mode: Option<Mode>,
    #[serde(default, deserialize_with = "max_wait_ms")]
    pub(super) max_wait_ms: Option<u64>,
    #[serde(default, deserialize_with = "reservation")]
    pub(super) reservation: Option<String>,
}

pub(super) const BODY: &str = "a JSON object with \"policy\", \"key\" and optional fields";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object with a list \"requests\"")]
pub(super) struct BatchBody<'a> {
    #[serde(borrow, deserialize_with = "items")]
    pub(super) requests: Vec<Item<'a>>,
}

pub(super) const BATCH_BODY: &str = "a JSON object with a list \"requests\"";

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    Take,
    Reserve,
    Borrow,
    UpTo,
}

pub(super) fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    /// `Cow` alone would always copy; this borrows text without escapes.
    struct Key;
    impl<'de> Visitor<'de> for Key {
        type Value = Cow<'de, str>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a key of 1 to {MAX_KEY_LEN} bytes of text")
        }
        fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
            checked_key(key).map(Cow::Borrowed)
        }
        fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
            checked_key(key).map(|key| Cow::Owned(key.to_owned()))
        }
    }
    deserializer.deserialize_str(Key)
}

fn checked_key<E: Error>(key: &str) -> Result<&str, E> {
    match key.len() {
        0 => Err(E::custom(format_args!("the key is empty: it must have 1 to {MAX_KEY_LEN} bytes"))),
        len if len > MAX_KEY_LEN => {
            Err(E::custom(format_args!("a key of {len} bytes is too long: at most {MAX_KEY_LEN}")))
        }
        _ => Ok(key),
    }
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    /// Text only: what serde derives would accept an object too.
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Mode;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mode: \"take\", \"reserve\", \"borrow\" or \"up_to\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Mode, E> {
            Mode::deserialize(text.into_deserializer())
        }
    }
    deserializer.deserialize_any(Text).map(Some)
}

fn items<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Item<'de>>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<Item<'de>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of requests")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(Object(item)) = list.next_element()? {
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_any(List)
}

/// An item as an object: what serde derives would accept an array of its fields too.
struct Object<'a>(Item<'a>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Item<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with \"policy\", \"key\" and optional fields")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Item::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(Fields).map(Self)
    }
}

fn max_wait_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Whole("a wait in milliseconds")).map(Some)
}

fn reservation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}
