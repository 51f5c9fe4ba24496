//! An HTTP response.

use std::borrow::Cow;
use std::fmt::Write;
use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Status, headers and body of a response, independent of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Names, in lower case, and values, without those of CORS: only the text for HTTP has these. Inside an application, which pages may
    /// read its responses is for the application to decide.
    pub headers: Vec<Header>,
    /// The headers that pages may read.
    exposed: &'static str,
    /// A note for the log, not for the client.
    pub note: Option<String>,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    /// The text, possibly empty.
    Text(String),
    /// A JSON object without its closing brace: its marks are still to come.
    Object { members: String, marks: Marks },
}

/// Members added to an answer besides the decision. They come in this order, after all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The source of an answer made without a call.
    pub source: Option<&'static str>,
    /// Whether the policies may have been stale.
    pub stale_policies: bool,
    /// For an act, whether it was recorded.
    pub recorded: Option<bool>,
}

impl Marks {
    fn write(self, text: &mut String) {
        if let Some(source) = self.source {
            _ = write!(text, ",\"source\":\"{source}\""); // writing to a String cannot fail
        }
        if self.stale_policies {
            text.push_str(",\"stale_policies\":true");
        }
        if let Some(is_recorded) = self.recorded {
            _ = write!(text, ",\"recorded\":{is_recorded}");
        }
    }
}

/// A name, in lower case, and a value.
pub type Header = (&'static str, Cow<'static, str>);

/// About the length of a refusal by a policy with one limit. Reserving it at once avoids three reallocations.
const TYPICAL_BODY_LEN: usize = 512;

/// The length of `source`, which most marked answers have, and the end of the object.
const TYPICAL_MARKS_LEN: usize = 24;

impl Reply {
    /// A JSON answer. It must not be cached.
    pub(super) fn json(status: u16, media_type: &'static str, body: &impl Serialize) -> Self {
        let mut bytes = Vec::with_capacity(TYPICAL_BODY_LEN);
        let mut serializer = Serializer::with_formatter(&mut bytes, Unclosed::default());
        // Our own types cannot fail to serialize, and JSON is UTF-8.
        let members = match body.serialize(&mut serializer) {
            Ok(()) => String::from_utf8(bytes).unwrap_or_default(),
            Err(_) => String::new(),
        };
        Self::with_body(status, media_type, Body::Object { members, marks: Marks::default() })
    }

    /// An answer that is not a JSON object.
    pub(super) fn of(status: u16, media_type: &'static str, body: String) -> Self {
        Self::with_body(status, media_type, Body::Text(body))
    }

    fn with_body(status: u16, media_type: &'static str, body: Body) -> Self {
        let mut headers = Vec::with_capacity(TYPICAL_HEADERS);
        headers.extend(common(media_type));
        Self { status, headers, exposed: EXPOSED, note: None, body }
    }

    /// An answer with its own headers, and an optional text.
    #[must_use]
    pub(crate) const fn bare(status: u16, headers: Vec<Header>, body: String) -> Self {
        Self { status, headers, exposed: "X-Request-Id", note: None, body: Body::Text(body) }
    }

    /// The whole reply by HTTP as one text, which is cheaper to pass to JavaScript than its parts: the status, optionally a letter for the
    /// headers that nearly every reply has, optionally a space and the note for the log; a line for each other header, an empty line, the
    /// body. Constant headers need not cross: see [`Reply::letters`]. Callers inside an application are only sent replies with a letter.
    #[must_use]
    pub fn to_text(&self) -> String {
        let short = LETTERS.into_iter().find_map(|(letter, media_type)| {
            let others = self.headers.strip_prefix(&common(media_type))?;
            Some((Some(letter), others))
        });
        let (letter, headers) = short.unwrap_or((None, &self.headers));
        let cors = if letter.is_none() { &readable(self.exposed)[..] } else { &[] };
        let mut text = String::with_capacity(self.text_len(headers));
        _ = write!(text, "{}", self.status); // writing to a String cannot fail
        text.extend(letter);
        if let Some(note) = &self.note {
            _ = write!(text, " {}: {note}", self.status);
        }
        for (name, value) in headers.iter().chain(cors) {
            for part in ["\n", name, ": ", value] {
                text.push_str(part);
            }
        }
        text.push_str("\n\n");
        self.write_body(&mut text);
        text
    }

    /// The body, possibly empty.
    #[must_use]
    pub fn body(&self) -> String {
        let mut text = String::new();
        self.write_body(&mut text);
        text
    }

    fn write_body(&self, text: &mut String) {
        match &self.body {
            Body::Text(body) => text.push_str(body),
            Body::Object { members, marks } => {
                text.push_str(members);
                marks.write(text);
                text.push_str("}\n"); // so that terminals show each answer on its own line
            }
        }
    }

    fn text_len(&self, headers: &[Header]) -> usize {
        let lens = headers.iter().map(|(name, value)| name.len().saturating_add(value.len()).saturating_add(3));
        let body = match &self.body {
            Body::Text(body) => body.len(),
            Body::Object { members, .. } => members.len().saturating_add(TYPICAL_MARKS_LEN),
        };
        lens.fold(body.saturating_add(7), usize::saturating_add)
    }

    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Adds a mark. Only a JSON object can have marks.
    #[must_use]
    pub fn marked(mut self, mark: impl FnOnce(&mut Marks)) -> Self {
        if let Body::Object { marks, .. } = &mut self.body {
            mark(marks);
        }
        self
    }

    /// The letters in [`Reply::to_text`], each with the headers that it stands for. Those of CORS are only for HTTP.
    pub fn letters(is_http: bool) -> impl Iterator<Item = (char, Vec<Header>)> {
        let cors = if is_http { readable(EXPOSED).to_vec() } else { Vec::new() };
        LETTERS.into_iter().map(move |(letter, media_type)| (letter, [&common(media_type)[..], &cors].concat()))
    }

    /// The answer to a browser's CORS preflight.
    #[must_use]
    pub fn preflight() -> Self {
        let header = |name, value: &'static str| (name, value.into());
        let headers = vec![
            header("access-control-allow-methods", "GET, POST"),
            header("access-control-allow-headers", "Authorization, Content-Type, Idempotency-Key, X-Request-Id"),
            header("x-content-type-options", "nosniff"),
            header("access-control-max-age", "86400"), // a day: the longest that any browser caches it
        ];
        Self::bare(204, headers, String::new())
    }

    /// The headers of the contract, which is the same for all callers. Its body is in JavaScript.
    #[must_use]
    pub fn contract() -> Self {
        let [content_type, _, nosniff] = common("application/json");
        let cached = ("cache-control", Cow::Borrowed("public, max-age=3600"));
        Self::bare(200, vec![content_type, cached, nosniff], String::new())
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

/// Writes compact JSON without the brace that closes the outermost object.
#[derive(Default)]
struct Unclosed {
    depth: usize,
}

impl Formatter for Unclosed {
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth = self.depth.saturating_add(1);
        writer.write_all(b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 { Ok(()) } else { writer.write_all(b"}") }
    }
}

/// The letters that stand for headers in [`Reply::to_text`].
const LETTERS: [(char, &str); 2] = [('j', "application/json"), ('p', "application/problem+json")];

/// The headers of CORS. Any page may read an answer, and these of its headers: credentials are in a header that the page must know, not in
/// a cookie that the browser adds by itself.
const fn readable(exposed: &'static str) -> [Header; 2] {
    [("access-control-allow-origin", Cow::Borrowed("*")), ("access-control-expose-headers", Cow::Borrowed(exposed))]
}

/// The headers of nearly every reply.
const fn common(media_type: &'static str) -> [Header; 3] {
    [
        ("content-type", Cow::Borrowed(media_type)),
        ("cache-control", Cow::Borrowed("no-store")),
        ("x-content-type-options", Cow::Borrowed("nosniff")),
    ]
}

/// Of nearly every reply, the headers that pages may read.
const EXPOSED: &str = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id";

/// The common ones, the two of the rate limit and `Retry-After`.
const TYPICAL_HEADERS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_omits_only_common_headers() {
        for (letter, media_type) in [('j', "application/json"), ('p', "application/problem+json")] {
            let reply = Reply::of(429, media_type, "{}\n".to_owned()).with("retry-after", "2");
            assert_eq!(reply.to_text(), format!("429{letter}\nretry-after: 2\n\n{{}}\n"));
            let noted = Reply { note: Some("a reason".to_owned()), ..reply };
            assert_eq!(noted.to_text(), format!("429{letter} 429: a reason\nretry-after: 2\n\n{{}}\n"));
            let headers = |is_http| Reply::letters(is_http).find(|(other, _)| *other == letter).unwrap().1;
            let names = |is_http| headers(is_http).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
            let own = ["content-type", "cache-control", "x-content-type-options"];
            assert_eq!(names(false), own);
            let cors = ["access-control-allow-origin", "access-control-expose-headers"];
            assert_eq!(names(true), [&own[..], &cors].concat());
            assert_eq!(headers(false).first().map(|(_, value)| &**value), Some(media_type));
        }
        let other = Reply::of(200, "text/plain", String::new());
        let lines = "content-type: text/plain\ncache-control: no-store\nx-content-type-options: nosniff";
        let cors = format!("access-control-allow-origin: *\naccess-control-expose-headers: {EXPOSED}");
        assert_eq!(other.to_text(), format!("200\n{lines}\n{cors}\n\n"));
        assert!(Reply::contract().to_text().contains("\ncache-control: public, max-age=3600\n"));
        for reply in [Reply::preflight(), Reply::contract()] {
            let end = "\naccess-control-allow-origin: *\naccess-control-expose-headers: X-Request-Id\n\n";
            assert!(reply.to_text().ends_with(end), "{}", reply.to_text());
        }
    }

    #[test]
    fn marks_become_members_of_the_json_object() {
        let reply = Reply::json(200, "application/json", &serde_json::json!({ "a": { "b": [{}, "}"] } }));
        assert_eq!(reply.body(), "{\"a\":{\"b\":[{},\"}\"]}}\n");
        let marked =
            reply.marked(|marks| *marks = Marks { source: Some("lease"), stale_policies: true, recorded: Some(false) });
        assert_eq!(
            marked.body(),
            "{\"a\":{\"b\":[{},\"}\"]},\"source\":\"lease\",\"stale_policies\":true,\"recorded\":false}\n"
        );
        let text = Reply::of(200, "text/plain", "a}\n".to_owned()).marked(|marks| marks.stale_policies = true);
        assert_eq!(text.body(), "a}\n");
    }
}
