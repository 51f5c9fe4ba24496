//! The id of an HTTP request, which is in its response and in its log lines.

/// Maximum length in bytes; tracing systems use up to 55.
const MAX_LEN: usize = 128;

/// Whether a caller's `X-Request-Id` is safe in headers and logs. Otherwise the request gets a random one.
#[must_use]
pub fn is_request_id(id: &str) -> bool {
    let is_safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.:/+=@-".contains(byte);
    (1..=MAX_LEN).contains(&id.len()) && id.as_bytes().iter().all(is_safe)
}

#[cfg(test)]
mod tests {
    use super::is_request_id;

    #[test]
    fn an_id_has_only_what_is_safe_in_headers_and_logs() {
        let longest = "x".repeat(128);
        for id in ["a", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Root=1:a_b/c+d@e.f", &longest] {
            assert!(is_request_id(id), "{id}");
        }
        let long = "x".repeat(129);
        for id in ["", " ", "a b", "a\"b", "a\nb", "a,b", "a\u{e9}", "\u{661}", "{a}", "a\\b", &long] {
            assert!(!is_request_id(id), "{id:?}");
        }
    }
}
