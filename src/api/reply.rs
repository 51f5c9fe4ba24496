//! An HTTP response.

use std::borrow::Cow;
use std::fmt::Write;

use serde::Serialize;

/// Status, headers and body of a response, before any runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Names, in lower case, and values.
    pub headers: Vec<Header>,
    /// The body; empty if there is none.
    pub body: String,
}

/// A name, in lower case, and a value.
pub type Header = (&'static str, Cow<'static, str>);

/// About the length of a refusal by a policy of one limit. To reserve it at once saves growing three times.
const TYPICAL_BODY_LEN: usize = 512;

impl Reply {
    /// A JSON answer. It must not be cached, and any page may read it: credentials are in a header that the page must
    /// know, not in a cookie that the browser would add on its own.
    pub(super) fn json(status: u16, media_type: &'static str, body: &impl Serialize) -> Self {
        let mut bytes = Vec::with_capacity(TYPICAL_BODY_LEN);
        // Our own types cannot fail to serialize, and JSON is UTF-8.
        let mut body = match serde_json::to_writer(&mut bytes, body) {
            Ok(()) => String::from_utf8(bytes).unwrap_or_default(),
            Err(_) => String::new(),
        };
        body.push('\n'); // so that a terminal shows each answer on a line of its own
        Self::of(status, media_type, body)
    }

    /// The same for an answer that is not JSON.
    pub(super) fn of(status: u16, media_type: &'static str, body: String) -> Self {
        let mut headers = Vec::with_capacity(TYPICAL_HEADERS);
        headers.extend(common(media_type));
        Self { status, headers, body }
    }

    /// The whole as one text, which is cheaper to hand over to JavaScript than its parts: the status, a line for each header,
    /// an empty line, the body.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.text("", &self.headers)
    }

    /// The same without the headers that nearly every reply has: behind the status, a letter says which. What is always the same
    /// need not cross.
    #[must_use]
    pub fn to_short_text(&self) -> String {
        for (letter, media_type) in [("j", "application/json"), ("p", "application/problem+json")] {
            if let Some(headers) = self.headers.strip_prefix(&common(media_type)) {
                return self.text(letter, headers);
            }
        }
        self.to_text()
    }

    fn text(&self, letter: &str, headers: &[Header]) -> String {
        let lens = headers.iter().map(|(name, value)| name.len().saturating_add(value.len()).saturating_add(3));
        let len = lens.fold(self.body.len().saturating_add(6), usize::saturating_add);
        let mut text = String::with_capacity(len);
        _ = write!(text, "{}{letter}", self.status); // a text takes everything
        for (name, value) in headers {
            for part in ["\n", name, ": ", value] {
                text.push_str(part);
            }
        }
        text.push_str("\n\n");
        text.push_str(&self.body);
        text
    }

    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The answer, a JSON object, marked: it was made under policies that may be out of date.
    #[must_use]
    pub fn under_stale_policies(self) -> Self {
        self.with_member("\"stale_policies\":true")
    }

    /// The answer, a JSON object, marked: it was made without a call, from this.
    #[must_use]
    pub fn from_source(self, source: &str) -> Self {
        self.with_member(&format!("\"source\":\"{source}\""))
    }

    fn with_member(mut self, member: &str) -> Self {
        if let Some(members) = self.body.strip_suffix("}\n") {
            self.body = format!("{members},{member}}}\n");
        }
        self
    }

    /// The text of an answer, a JSON object, which now says whether an act was recorded.
    #[must_use]
    pub fn recorded(text: &str, is_recorded: bool) -> String {
        match text.strip_suffix("}\n") {
            Some(members) => format!("{members},\"recorded\":{is_recorded}}}\n"),
            None => text.to_owned(),
        }
    }

    /// The answer to a browser's CORS preflight.
    #[must_use]
    pub fn preflight() -> Self {
        let header = |name, value: &'static str| (name, value.into());
        let headers = vec![
            header("access-control-allow-origin", "*"),
            header("access-control-expose-headers", "X-Request-Id"),
            header("access-control-allow-methods", "GET, POST"),
            header("access-control-allow-headers", "Authorization, Content-Type, Idempotency-Key, X-Request-Id"),
            header("x-content-type-options", "nosniff"),
            header("access-control-max-age", "86400"), // a day: the longest that any browser keeps it
        ];
        Self { status: 204, headers, body: String::new() }
    }

    /// The answer to a health check.
    #[must_use]
    pub fn healthy() -> Self {
        #[derive(Serialize)]
        struct Health {
            status: &'static str,
        }
        Self::json(200, "application/json", &Health { status: "ok" })
    }
}

/// What nearly every reply has; reply.mjs has the same.
const fn common(media_type: &'static str) -> [Header; 5] {
    [
        ("content-type", Cow::Borrowed(media_type)),
        ("cache-control", Cow::Borrowed("no-store")),
        ("x-content-type-options", Cow::Borrowed("nosniff")),
        ("access-control-allow-origin", Cow::Borrowed("*")),
        ("access-control-expose-headers", Cow::Borrowed("RateLimit, RateLimit-Policy, Retry-After, X-Request-Id")),
    ]
}

/// These, the two of the rate limit and `Retry-After`.
const TYPICAL_HEADERS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_leaves_out_only_what_is_common() {
        let rest = "\nretry-after: 2\n\n{}\n";
        for (status, media_type, head) in [(200, "application/json", "200j"), (429, "application/problem+json", "429p")]
        {
            let reply = Reply::of(status, media_type, "{}\n".to_owned()).with("retry-after", "2");
            assert_eq!(reply.to_short_text(), format!("{head}{rest}"));
            let long = format!(
                "{status}\ncontent-type: {media_type}\ncache-control: no-store\nx-content-type-options: nosniff\n\
                 access-control-allow-origin: *\naccess-control-expose-headers: RateLimit, RateLimit-Policy, Retry-After, X-Request-Id{rest}",
            );
            assert_eq!(reply.to_text(), long);
        }
        let other = Reply::of(200, "text/plain", String::new());
        for reply in [other, Reply::preflight()] {
            assert_eq!(reply.to_short_text(), reply.to_text());
        }
    }
}
