//! A client's text in a message: escaped and cut short.

/// The beginning and the end of a message that contains a client's text: they say what was wrong and where.
pub(super) fn shortened(message: &str) -> String {
    const MOST: usize = 200;
    let mut all = message.char_indices();
    match (all.nth(MOST), all.nth_back(MOST)) {
        (Some((head, _)), Some((tail, _))) => {
            let (head, tail) = (message.get(..head).unwrap_or_default(), message.get(tail..).unwrap_or_default());
            format!("{head} ... {tail}")
        }
        _ => message.to_owned(),
    }
}

/// A client's text for an answer to that client: quoted, escaped and cut short.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
