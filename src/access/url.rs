//! Allowed destinations for secrets and notices.

pub(super) const URL_RULE: &str =
    "must begin with https://, or with http:// and localhost or 127.0.0.1, and be ASCII without '@', '#' and '\\'";

/// Whether a secret may be sent there: over TLS, or on this machine.
pub(super) fn is_safe(url: &str) -> bool {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'@' | b'#' | b'\\'));
    let starts_host = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
    let is_local = |rest: &str| {
        let host = rest.split([':', '/', '?']).next();
        matches!(host, Some("localhost" | "127.0.0.1"))
    };
    is_plain
        && (url.strip_prefix("https://").is_some_and(starts_host) || url.strip_prefix("http://").is_some_and(is_local))
}
