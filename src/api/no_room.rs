//! The answer of a limiter in memory to a new key while all its entries are in use.

use super::reply::Reply;
use super::text::seconds;

/// Not a 429: the caller has not used up anything. `retry_after_ms` is when the first entry may be free; `None` if none ever is.
pub(crate) fn no_room(retry_after_ms: Option<u64>) -> Reply {
    let mut headers = vec![
        ("content-type", "application/problem+json".into()),
        ("cache-control", "no-store".into()), // otherwise others would get it too
    ];
    headers.extend(retry_after_ms.map(|ms| ("retry-after", seconds(ms).to_string().into())));
    Reply::bare(503, headers, NO_ROOM.to_owned())
}

const NO_ROOM: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Unavailable","status":503,"detail":"this is not a rate-limit refusal: too many callers are active to serve a new one"}"#;
