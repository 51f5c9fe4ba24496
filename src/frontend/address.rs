//! A request's URL as the runtime gives it: not normalised, with the `Host` header as the client sent it.

use std::net::Ipv6Addr;

use crate::api::Problem;

/// The path and the query of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    path: &'a str,
    query: &'a str,
}

impl<'a> Address<'a> {
    /// Parses an absolute `http` or `https` URL, or a path. The path is compared as is: no dots are resolved and nothing is decoded.
    ///
    /// # Errors
    /// [`Problem::BadRequest`] if the host is malformed. Parsers differ on where the path then starts: for some a `\` ends the host.
    pub fn parse(url: &'a str) -> Result<Self, Problem> {
        let path_and_query = if url.starts_with('/') { url } else { after_host(url)? };
        let path_and_query = path_and_query.split('#').next().unwrap_or(path_and_query);
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        Ok(Self { path, query })
    }

    /// The path, without the query.
    #[must_use]
    pub const fn path(self) -> &'a str {
        self.path
    }

    /// The query, possibly empty.
    #[must_use]
    pub const fn query(self) -> &'a str {
        self.query
    }
}

/// The part after the host of an absolute URL: empty, or starting with `/`.
fn after_host(url: &str) -> Result<&str, Problem> {
    let rest = ["http://", "https://"].into_iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or_else(|| bad_host("does not follow http:// or https://"))?;
    let after_name = match rest.strip_prefix('[') {
        Some(inside) => {
            let (address, after) = inside.split_once(']').unwrap_or_default();
            address.parse::<Ipv6Addr>().map_err(|_| bad_host("has brackets without an IPv6 address"))?;
            after
        }
        None => rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')),
    };
    let after_port = match after_name.strip_prefix(':') {
        Some(port) => port.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => after_name,
    };
    match after_port.chars().next() {
        Some(found) if found != '/' => Err(bad_host(&format!("has the character {found:?}"))),
        // RFC 9110 §4.2.1 refuses this, and some parsers take the first path segment for the host.
        _ if after_name.len() == rest.len() => Err(bad_host("has no name")),
        _ => Ok(after_port),
    }
}

fn bad_host(why: &str) -> Problem {
    let right =
        "send a name of letters, digits, '-', '.' and '_', or an IPv6 address in brackets, and perhaps ':' and a port";
    Problem::BadRequest { detail: format!("the host, as in the header `Host`, {why}: {right}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(&str, &str), String> {
        match Address::parse(url) {
            Ok(address) => Ok((address.path(), address.query())),
            Err(Problem::BadRequest { detail }) => Err(detail),
            Err(other) => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn the_path_begins_after_the_host_and_ends_at_the_query() {
        for (url, path, query) in [
            ("http://x/v1/consume", "/v1/consume", ""),
            ("https://api.example.com:8787/v1/consume?a=b", "/v1/consume", "a=b"),
            ("http://127.0.0.1:0/", "/", ""),
            ("http://[::1]:8787/v1/peek", "/v1/peek", ""),
            ("http://a_b-c.EXAMPLE./v1/peek", "/v1/peek", ""),
            ("http://x:/v1/peek", "/v1/peek", ""), // an empty port, RFC 3986 §3.2.3
            ("/v1/consume?x", "/v1/consume", "x"),
            ("http://x", "", ""),
            // Text after the host never moves the path.
            ("http://x/v1/consume?/v1/keys/reset", "/v1/consume", "/v1/keys/reset"),
            ("http://x/v1/consume?a?b#c", "/v1/consume", "a?b"),
            ("http://x/v1/consume#/v1/keys/reset", "/v1/consume", ""),
            ("http://x/v1/consume#?b", "/v1/consume", ""),
            // Nothing is decoded, resolved or folded, so these match no endpoint.
            ("http://x//v1/consume", "//v1/consume", ""),
            ("http://x/v1/../v1/consume", "/v1/../v1/consume", ""),
            ("http://x/v1\\keys\\reset", "/v1\\keys\\reset", ""),
            ("http://x/v1%2Fconsume", "/v1%2Fconsume", ""),
            ("http://x/V1/CONSUME", "/V1/CONSUME", ""),
            ("http://x/http://y/v1/consume", "/http://y/v1/consume", ""),
            ("http://x/@y/v1/consume", "/@y/v1/consume", ""),
        ] {
            assert_eq!(read(url), Ok((path, query)), "{url}");
        }
        let long = format!("http://{}/v1/peek?{}", "x".repeat(100_000), "y".repeat(100_000));
        assert_eq!(read(&long).unwrap().0, "/v1/peek");
    }

    #[test]
    fn a_host_in_which_another_parser_finds_a_path_is_an_error() {
        for (host, why) in [
            ("x\\v1\\keys\\reset?", "has the character '\\\\'"),
            ("x\\", "has the character '\\\\'"),
            ("x?", "has the character '?'"),
            ("x#", "has the character '#'"),
            ("user@x", "has the character '@'"),
            ("user:1@x", "has the character '@'"),
            ("x:80:80", "has the character ':'"),
            ("x:8o", "has the character 'o'"),
            ("x y", "has the character ' '"),
            ("x\t", "has the character '\\t'"),
            ("x%2fv1", "has the character '%'"),
            ("x,y", "has the character ','"),
            ("ü", "has the character 'ü'"),
            ("\u{ff0f}v1", "has the character '／'"), // U+FF0F, mapped to a slash by IDNA
            ("[::1", "has brackets without an IPv6 address"),
            ("[x]", "has brackets without an IPv6 address"),
            ("[]", "has brackets without an IPv6 address"),
            ("[::1]x", "has the character 'x'"),
            ("", "has no name"),
            (":80", "has no name"),
        ] {
            let detail = read(&format!("http://{host}/v1/consume")).unwrap_err();
            assert!(detail.starts_with(&format!("the host, as in the header `Host`, {why}: send a name")), "{detail}");
        }
        for url in
            ["", "ftp://x/v1/consume", "http:/v1/consume", "HTTP://x/v1/consume", "x/v1/consume", "\\v1\\consume"]
        {
            let detail = read(url).unwrap_err();
            assert!(detail.contains("does not follow http:// or https://"), "{url}: {detail}");
        }
    }
}
