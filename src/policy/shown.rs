//! Names and values as errors show them: short, and in one line.

use super::name::is_name;
use crate::json::Json;

/// A name in a line of the log: as it is, or, if it may not be a name, quoted, escaped and cut short.
pub(super) fn shown_name(name: &str) -> String {
    if is_name(name) { name.to_owned() } else { shortened(format!("{name:?}")) }
}

/// A value in a line of the log: JSON, which escapes line breaks, cut short.
pub(super) fn shown_value(value: Json<'_>) -> String {
    shortened(value.to_string())
}

/// The text, cut after [`MAX_SHOWN`] characters.
pub(super) fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Enough to find it by.
const MAX_SHOWN: usize = 80;
