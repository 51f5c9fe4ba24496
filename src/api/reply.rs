//! An HTTP response.

use serde::Serialize;

/// Status, headers and body of a response, before any runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Names, in lower case, and values.
    pub headers: Vec<(&'static str, String)>,
    /// The body; empty if there is none.
    pub body: String,
}

/// About the length of a refusal by a policy of one limit. To reserve it at once saves growing three times.
const TYPICAL_BODY_LEN: usize = 512;

impl Reply {
    /// A JSON answer. It must not be cached, and any page may read it: credentials are in a header that the page must
    /// know, not in a cookie that the browser would add on its own.
    pub(super) fn json(status: u16, media_type: &str, body: &impl Serialize) -> Self {
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
    pub(super) fn of(status: u16, media_type: &str, body: String) -> Self {
        let header = |name, value: &str| (name, value.to_owned());
        let headers = vec![
            header("content-type", media_type),
            header("cache-control", "no-store"),
            header("access-control-allow-origin", "*"),
            header("access-control-expose-headers", "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"),
        ];
        Self { status, headers, body }
    }

    /// The whole as one text, which is cheaper to hand over to JavaScript than its parts: the status, a line for each header,
    /// an empty line, the body.
    #[must_use]
    pub fn to_text(&self) -> String {
        let headers = self.headers.iter().map(|(name, value)| name.len().saturating_add(value.len()).saturating_add(3));
        let len = headers.fold(self.body.len().saturating_add(5), usize::saturating_add);
        let mut text = String::with_capacity(len);
        text.push_str(&self.status.to_string());
        for (name, value) in &self.headers {
            for part in ["\n", name, ": ", value] {
                text.push_str(part);
            }
        }
        text.push_str("\n\n");
        text.push_str(&self.body);
        text
    }

    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
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
        let header = |name, value: &str| (name, value.to_owned());
        let headers = vec![
            header("access-control-allow-origin", "*"),
            header("access-control-expose-headers", "X-Request-Id"),
            header("access-control-allow-methods", "GET, POST"),
            header("access-control-allow-headers", "Authorization, Content-Type, Idempotency-Key, X-Request-Id"),
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
