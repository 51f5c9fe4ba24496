//! Names and values in error messages: short, and on one line.

use super::name::is_name;
use crate::json::Json;

/// A name in a log line: unchanged, or, if it is not a valid name, quoted, escaped and shortened.
pub(super) fn shown_name(name: &str) -> String {
    if is_name(name) { name.to_owned() } else { shortened(format!("{name:?}")) }
}

/// A value in a log line: shortened JSON, which escapes line breaks.
pub(super) fn shown_value(value: Json<'_>) -> String {
    shortened(value.to_string())
}

/// Cuts the text after [`MAX_SHOWN`] characters.
pub(super) fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Enough to identify it.
const MAX_SHOWN: usize = 80;
