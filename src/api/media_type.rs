//! What a body must say that it is.

use super::problem::Problem;

/// Checks that a request says its body is JSON.
///
/// # Errors
/// [`Problem::UnsupportedMediaType`] for any other `Content-Type`, and for none: a form sent by mistake must not pass.
pub fn require_json(content_type: Option<&str>) -> Result<(), Problem> {
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::UnsupportedMediaType { found: essence.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_json() {
        for accepted in ["application/json", "Application/JSON; charset=utf-8", " application/json "] {
            assert_eq!(require_json(Some(accepted)), Ok(()), "{accepted}");
        }
        for refused in [Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonp"), None]
        {
            assert!(matches!(require_json(refused), Err(Problem::UnsupportedMediaType { .. })), "{refused:?}");
        }
    }
}
