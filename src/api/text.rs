//! Texts in messages: a client's text, escaped and shortened; moments.

use std::time::{Duration, SystemTime};

/// Maximum characters of the start, and of the end, of a message that contains a client's text.
pub(super) const MOST_SHOWN: usize = 200;

/// The start and the end of a message, each up to that length: they say what was wrong and where.
pub(super) fn shortened(message: &str, most: usize) -> String {
    let mut all = message.char_indices();
    match (all.nth(most), all.nth_back(most)) {
        (Some((head, _)), Some((tail, _))) => {
            let (head, tail) = (message.get(..head).unwrap_or_default(), message.get(tail..).unwrap_or_default());
            format!("{head} ... {tail}")
        }
        _ => message.to_owned(),
    }
}

/// A client's text for an answer to that client: quoted, escaped and shortened.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// `2026-11-22T14:05:03.123Z`; `None` before 1970 and beyond the year 9999.
pub(super) fn timestamp(at: i64) -> Option<String> {
    const YEAR_10_000: u64 = 253_402_300_800_000;
    let ms = u64::try_from(at).ok().filter(|&ms| ms < YEAR_10_000)?;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))?;
    Some(humantime::format_rfc3339_millis(time).to_string())
}

/// Whole seconds, rounded up, at least one, so that waiting this long is enough.
pub(super) fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000).max(1)
}
