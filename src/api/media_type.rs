//! The required headers for a body.

use super::problem::Problem;

/// Checks that the headers describe the body as plain JSON.
///
/// # Errors
/// [`Problem::UnsupportedMediaType`] for any other `Content-Type` or none: a form sent by mistake must not pass.
/// [`Problem::UnsupportedContentEncoding`] for a compressed body.
pub fn require_json(content_type: Option<&str>, content_encoding: Option<&str>) -> Result<(), Problem> {
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::UnsupportedMediaType { found: essence.to_owned() });
    }
    match content_encoding.map(str::trim) {
        None | Some("") => Ok(()),
        Some(encoding) if encoding.eq_ignore_ascii_case("identity") => Ok(()),
        Some(encoding) => Err(Problem::UnsupportedContentEncoding { found: encoding.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_json_only() {
        for accepted in ["application/json", "Application/JSON; charset=utf-8", " application/json "] {
            assert_eq!(require_json(Some(accepted), None), Ok(()), "{accepted}");
        }
        for refused in [Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonp"), None]
        {
            assert!(matches!(require_json(refused, None), Err(Problem::UnsupportedMediaType { .. })), "{refused:?}");
        }
    }

    #[test]
    fn rejects_compressed_bodies() {
        let json = Some("application/json");
        for accepted in [None, Some(""), Some("identity"), Some(" Identity ")] {
            assert_eq!(require_json(json, accepted), Ok(()), "{accepted:?}");
        }
        for refused in ["gzip", "br", "deflate", "zstd", "x-gzip", "identity, gzip"] {
            let found = refused.to_owned();
            assert_eq!(require_json(json, Some(refused)), Err(Problem::UnsupportedContentEncoding { found }));
        }
    }
}
