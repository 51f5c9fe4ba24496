//! The `tower` layer in real servers and clients, over real connections. Only the clock is the test's.

use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::thread;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tollgate::policy::{Policies, Policy};
use tollgate::tower::RateLimitLayer;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_layer::Layer;
use tower_service::Service;

const START: i64 = 1_800_000_000_000;

fn policy(policy: &str) -> Arc<Policy> {
    named("api", policy)
}

fn named(name: &str, policy: &str) -> Arc<Policy> {
    let policies = Policies::parse(&format!(r#"{{"{name}":{policy}}}"#)).expect("a policy");
    Arc::clone(policies.get(name).expect("it is there"))
}

/// A server that limits each user by that policy, and its clock.
fn serve(limits: &str, max_keys: usize) -> (SocketAddr, Arc<AtomicI64>) {
    let clock = Arc::new(AtomicI64::new(START));
    let now = Arc::clone(&clock);
    let cost = |request: &Parts| request.uri.query().map_or(1, |cost| cost.parse().expect("a cost"));
    let layer = RateLimitLayer::new(&policy(limits)).key(user).cost(cost).max_keys(max_keys);
    (listen(app(layer.clock(move || now.load(Ordering::SeqCst)))), clock)
}

/// A server that limits the networks of the addresses that callers send as their `user`.
fn serve_addresses(limits: &str) -> SocketAddr {
    let layer = RateLimitLayer::new(&policy(limits)).ip(|request| user(request)?.parse().ok());
    listen(app(layer.max_keys(10).clock(|| START)))
}

fn user(request: &Parts) -> Option<String> {
    request.headers.get("user")?.to_str().ok().map(str::to_owned)
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "Hello")).layer(layer)
}

fn listen(app: Router) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("as tokio wants it");
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
        })
    });
    address
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Its lines of that field.
    fn all(&self, name: &str) -> Vec<&str> {
        self.head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    fn fields(&self) -> [Option<&str>; 3] {
        ["ratelimit-policy", "ratelimit", "retry-after"].map(|name| self.header(name))
    }
}

fn request(address: SocketAddr, user: &str) -> Answer {
    request_to(address, user, "/")
}

fn request_to(address: SocketAddr, user: &str, path: &str) -> Answer {
    let user = if user.is_empty() { String::new() } else { format!("user: {user}\r\n") };
    send(address, &format!("GET {path}"), &user)
}

fn send(address: SocketAddr, method_and_path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let request = format!("{method_and_path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

#[test]
fn a_policy_with_one_budget_ignores_keys() {
    let layer = RateLimitLayer::new(&policy(r#"{"rate":"2/1m","key":[]}"#)).clock(|| START);
    for layer in [layer.clone().key(user), layer.ip(|_| None)] {
        let server = listen(app(layer));
        for (user, status) in [("alice", 200), ("", 200), ("bob", 429)] {
            assert_eq!(request(server, user).status, status, "{user:?}");
        }
    }
}

#[test]
fn jitter_lengthens_reported_waits_and_delays_no_grant() {
    let (address, clock) = serve(r#"{"rate":"1/10s","jitter":"5s"}"#, 10);
    assert_eq!(request(address, "alice").status, 200);
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let answer = request(address, "alice");
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        let retry_at = body["retry_at"].as_i64().expect("a moment");
        assert!((START + 10_000..=START + 15_000).contains(&retry_at), "{retry_at}");
        let seconds = (retry_at - START).unsigned_abs().div_ceil(1_000).to_string();
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some(&*seconds)));
        told.insert(retry_at);
    }
    assert!(told.len() > 10, "{told:?}");
    clock.store(START + 10_000, Ordering::SeqCst);
    assert_eq!(request(address, "alice").status, 200);
}

#[test]
fn answers_like_the_service() {
    let (address, clock) = serve(r#"{"rate":2,"period":"1m"}"#, 10);
    let policy = Some(r#""api";q=2;w=60;tollgate-capacity=2"#);
    for (user, later_ms, status, fields) in [
        ("alice", 0, 200, [policy, Some(r#""api";r=1;t=30"#), None]),
        ("alice", 0, 200, [policy, Some(r#""api";r=0;t=30"#), None]),
        ("alice", 500, 429, [policy, Some(r#""api";r=0;t=30"#), Some("30")]),
        ("bob", 500, 200, [policy, Some(r#""api";r=1;t=30"#), None]),
        ("alice", 29_999, 429, [policy, Some(r#""api";r=0;t=1"#), Some("1")]),
        ("alice", 30_000, 200, [policy, Some(r#""api";r=0;t=30"#), None]),
    ] {
        clock.store(START + later_ms, Ordering::SeqCst);
        let answer = request(address, user);
        assert_eq!((answer.status, answer.fields()), (status, fields), "{user} at {later_ms}: {}", answer.head);
        if status == 200 {
            assert_eq!(answer.body, "Hello");
        } else {
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            assert_eq!(answer.header("access-control-allow-origin"), None);
            let body: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
            assert_eq!(body["violated-policies"], serde_json::json!(["api"]));
            assert_eq!(body["retry_after_ms"], 30_000 - later_ms);
        }
    }
}

/// Also where clocks change on that day.
#[cfg(feature = "zones")]
#[test]
fn a_calendar_s_refusals_last_until_midnight_in_its_zone() {
    const HOUR_MS: i64 = 3_600_000;
    let fields = r#"{"kind":"fixed_window","rate":2,"calendar":"day","zone":"Europe/Berlin"}"#;
    // The ends of days in 2026 and 2027.
    for (ends, hours) in [(20_763 * 24 - 1, 24), (21_123 * 24 - 1, 25), (20_906 * 24 - 2, 23)] {
        let ends = ends * HOUR_MS;
        let (address, clock) = serve(fields, 1);
        for (user, now, status, remaining, seconds) in [
            ("alice", ends - hours * HOUR_MS, 200, Some(1), hours * 3_600),
            ("alice", ends - hours * HOUR_MS, 200, Some(0), hours * 3_600),
            ("alice", ends - hours * HOUR_MS, 429, Some(0), hours * 3_600),
            ("bob", ends - hours * HOUR_MS, 503, None, hours * 3_600),
            ("alice", ends - HOUR_MS - 1, 429, Some(0), 3_601),
            ("alice", ends - 1, 429, Some(0), 1),
            ("bob", ends - 1, 503, None, 1),
            ("bob", ends, 200, Some(1), 24 * 3_600),
            ("alice", ends, 503, None, 24 * 3_600),
        ] {
            clock.store(now, Ordering::SeqCst);
            let answer = request(address, user);
            let policy = remaining.map(|_| r#""api";q=2;w=86400;tollgate-capacity=2"#);
            let left = remaining.map(|left| format!(r#""api";r={left};t={seconds}"#));
            let retry_after = (status != 200).then(|| seconds.to_string());
            let fields = [policy, left.as_deref(), retry_after.as_deref()];
            assert_eq!((answer.status, answer.fields()), (status, fields), "{hours} hours, {user}, {}", now - ends);
        }
    }
}

#[test]
fn all_limits_of_a_policy_must_grant() {
    let limits = r#"{"name":"fast","rate":1,"period":"1s"},{"name":"slow","rate":2,"period":"1h"}"#;
    let (address, clock) = serve(&format!(r#"{{"limits":[{limits}]}}"#), 10);
    assert_eq!(request(address, "alice").status, 200);
    let refused = request(address, "alice");
    assert_eq!(refused.header("ratelimit"), Some(r#""api/fast";r=0;t=1, "api/slow";r=1;t=1"#));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    clock.store(START + 1_000, Ordering::SeqCst);
    assert_eq!(request(address, "alice").status, 200);
}

#[test]
fn a_request_costs_what_the_function_says() {
    let limits = r#"{"name":"fast","rate":5,"period":"1m"},{"name":"slow","rate":3,"period":"1h"}"#;
    let (address, _) = serve(&format!(r#"{{"limits":[{limits}]}}"#), 2);
    for (user, cost, status, remaining) in [
        ("alice", 2, 200, Some([3, 1])),
        ("alice", 2, 429, Some([3, 1])),
        ("alice", 0, 200, Some([3, 1])), // takes nothing
        ("alice", 1, 200, Some([2, 0])),
        ("alice", 0, 200, Some([2, 0])), // nothing is left and nothing is requested
        ("alice", 4, 400, None),         // never, though the other limit could
        ("bob", 3, 200, Some([2, 0])),
        ("carol", 0, 200, Some([5, 3])), // needs no room
        ("carol", 1, 503, None),
        ("carol", 4, 400, None), // whether or not there is room
        ("bob", u64::MAX, 400, None),
    ] {
        let answer = request_to(address, user, &format!("/?{cost}"));
        let fields = answer.header("ratelimit").map(|fields| {
            ["\"api/fast\";r=", "\"api/slow\";r="].map(|start| {
                let (_, rest) = fields.split_once(start).expect("each limit");
                rest[..1].parse::<u64>().expect("a digit")
            })
        });
        assert_eq!((answer.status, fields), (status, remaining), "{user}, {cost}: {}", answer.head);
        if status == 400 {
            let body: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(body["type"], "urn:problem-type:tollgate:cost-too-large");
            let (limit, max) = if cost > 5 { ("fast", 5) } else { ("slow", 3) }; // the first that cannot
            assert_eq!(body["max_cost"], max);
            let detail = format!("policy api/{limit} can never grant {cost} tokens at once; at most {max}");
            assert_eq!(body["detail"], detail);
        }
    }
}

/// One process has no shards: what can be granted at once is the whole capacity.
#[test]
fn a_policy_with_shards_is_not_divided() {
    let (address, _) = serve(r#"{"rate":4000,"period":"1h","shards":8}"#, 10);
    let policy = Some(r#""api";q=4000;w=3600;tollgate-capacity=4000"#);
    for (cost, status, fields) in [
        (501, 200, [policy, Some(r#""api";r=3499;t=1"#), None]),
        (3_500, 429, [policy, Some(r#""api";r=3499;t=1"#), Some("1")]),
        (3_499, 200, [policy, Some(r#""api";r=0;t=1"#), None]),
        (4_001, 400, [None; 3]),
    ] {
        let answer = request_to(address, "alice", &format!("/?{cost}"));
        assert_eq!((answer.status, answer.fields()), (status, fields), "{cost}: {}", answer.body);
        if status == 400 {
            let body: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(body["max_cost"], 4_000);
        }
    }
}

#[test]
fn a_new_key_without_room_gets_503_and_no_invented_fields() {
    let (address, clock) = serve(r#"{"rate":2,"period":"1m"}"#, 1);
    assert_eq!(request(address, "alice").status, 200);
    let answer = request(address, "bob");
    assert_eq!((answer.status, answer.fields()), (503, [None, None, Some("30")]));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let body: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(body["status"], 503);
    clock.store(START + 30_000, Ordering::SeqCst);
    assert_eq!(request(address, "bob").status, 200);
}

/// The application would otherwise have one budget for all callers, which any of them can use up.
/// The server allows only GET, so 405 is its own answer.
#[test]
fn a_preflight_proceeds_without_a_key_and_takes_nothing() {
    let (address, _) = serve(r#"{"rate":1,"period":"1s"}"#, 10);
    let preflight = "origin: https://app.example\r\naccess-control-request-method: GET\r\n";
    for headers in [preflight.to_owned(), format!("{preflight}user: alice\r\n")] {
        let answer = send(address, "OPTIONS /", &headers);
        assert_eq!((answer.status, answer.fields()), (405, [None; 3]));
    }
    let other = send(address, "OPTIONS /", "origin: https://app.example\r\n");
    assert_eq!(other.status, 500, "without a key, and not a preflight");
    assert_eq!(request(address, "alice").status, 200);
    assert_eq!(send(address, "OPTIONS /", "user: alice\r\n").status, 429);
}

#[test]
fn a_request_without_a_key_gets_500_and_takes_nothing() {
    let (address, _) = serve(r#"{"rate":2,"period":"1m"}"#, 1);
    let by_address = serve_addresses(r#"{"rate":2,"period":"1m"}"#);
    for server in [address, by_address] {
        for _ in 0..3 {
            misconfigured(&request(server, ""), "found no key");
        }
        let answer = request(server, "192.0.2.1"); // the only entry is still free, and the budget full
        assert_eq!((answer.status, answer.header("ratelimit")), (200, Some(r#""api";r=1;t=30"#)));
    }
}

#[test]
fn a_policy_with_slots_is_a_mistake_of_the_server() {
    let limits = r#"{"limits":[{"name":"a","kind":"slots","capacity":2},{"name":"b","rate":"9/s"}]}"#;
    misconfigured(&request(serve(limits, 10).0, "alice"), "the server's policy has slots");
}

/// Beside another limit, and each user's by itself.
#[test]
fn a_rolling_window_lets_no_more_than_its_rate_pass_in_any_interval() {
    let limits =
        r#"{"limits":[{"name":"a","kind":"rolling_window","rate":2,"period":"10s"},{"name":"b","rate":"9/s"}]}"#;
    let (address, clock) = serve(limits, 10);
    for (ms, status, retry_after) in
        [(0, 200, None), (7_500, 200, None), (9_000, 429, Some("1")), (9_999, 429, Some("1")), (10_000, 200, None)]
    {
        clock.store(START + ms, Ordering::SeqCst);
        let answer = request(address, "alice");
        assert_eq!((answer.status, answer.header("retry-after")), (status, retry_after), "after {ms} ms");
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some(r#""api/a";q=2;w=10;tollgate-capacity=2, "api/b";q=9;w=1;tollgate-capacity=9"#)
        );
    }
    let refused = request(address, "alice");
    assert_eq!(refused.header("ratelimit"), Some(r#""api/a";r=0, "api/b";r=8;t=1"#));
    let body = refused.json();
    assert_eq!(
        (&body["retry_at"], &body["reset_at"]),
        (&Value::from(START + 17_500), &Value::from(START + 20_000)),
        "{body}"
    );
    assert_eq!(request(address, "bob").status, 200);
}

fn misconfigured(answer: &Answer, detail: &str) {
    assert_eq!((answer.status, answer.fields()), (500, [None, None, None]));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let body = answer.json();
    assert_eq!((&body["type"], &body["status"]), (&"urn:problem-type:tollgate:misconfigured".into(), &500.into()));
    assert!(body["detail"].as_str().expect("a text").contains(detail), "{body}");
}

#[test]
fn networks_are_limited_in_every_notation_of_an_address() {
    let policy = r#"{"rate":1,"period":"1m"}"#;
    for (policy, rows) in [
        (policy.to_owned(), &[("2001:db8::1", 200), ("2001:db8::2", 429), ("2001:db8:0:1::1", 200)][..]),
        (policy.replace('}', r#","ipv6_prefix":48}"#), &[("2001:db8::1", 200), ("2001:db8:0:1::1", 429)]),
        (policy.to_owned(), &[("192.0.2.1", 200), ("::ffff:192.0.2.1", 429), ("64:ff9b::192.0.2.1", 429)]),
        (policy.to_owned(), &[("64:ff9b::192.0.2.1", 200), ("64:ff9b::192.0.2.2", 200), ("192.0.2.2", 429)]),
    ] {
        let server = serve_addresses(&policy);
        for (address, status) in rows {
            assert_eq!(request(server, address).status, *status, "{address} of {rows:?}");
        }
    }
}

#[test]
fn a_policy_that_can_grant_nothing_refuses_without_a_retry_time() {
    for policy in [r#"{"rate":0,"period":"1s"}"#, r#"{"rate":1,"period":"1s","capacity":0,"max_debt":1}"#] {
        let (address, clock) = serve(policy, 10);
        for now in [START, START + 1_000_000] {
            clock.store(now, Ordering::SeqCst);
            for cost in [1, 2, u64::MAX >> 12] {
                let answer = request_to(address, "alice", &format!("/?{cost}"));
                assert_eq!(
                    (answer.status, answer.header("retry-after")),
                    (429, None),
                    "{policy} {cost}: {}",
                    answer.body
                );
                let body: Value = serde_json::from_str(&answer.body).expect("JSON");
                assert!(
                    body["detail"].as_str().unwrap().ends_with("; with a capacity of 0 nothing can pass"),
                    "{body}"
                );
            }
            assert_eq!(request_to(address, "alice", "/?0").status, 200, "{policy}");
        }
    }
}

#[test]
fn only_enforced_limits_are_checked() {
    let two = r#"{"limits":[{"name":"a","rate":2,"period":"1m"},{"name":"b","rate":1,"period":"1m","mode":"shadow"}]}"#;
    let (address, _) = serve(two, 10);
    let policy = Some(r#""api/a";q=2;w=60;tollgate-capacity=2"#);
    for (status, fields) in [
        (200, [policy, Some(r#""api/a";r=1;t=30"#), None]),
        (200, [policy, Some(r#""api/a";r=0;t=30"#), None]),
        (429, [policy, Some(r#""api/a";r=0;t=30"#), Some("30")]),
    ] {
        let answer = request(address, "alice");
        assert_eq!((answer.status, answer.fields()), (status, fields));
    }
    for mode in ["shadow", "off"] {
        let (address, _) = serve(&format!(r#"{{"rate":1,"period":"1m","mode":"{mode}"}}"#), 10);
        for _ in 0..3 {
            let answer = request_to(address, "alice", "/?1000");
            assert_eq!((answer.status, answer.fields()), (200, [None, None, None]), "{mode}");
        }
    }
}

#[test]
fn one_line_limits_the_peers_of_an_axum_server() {
    let server = listen(app(RateLimitLayer::per_ip("1/1m").expect("a limit")));
    let policy = Some(r#""per_ip";q=1;w=60;tollgate-capacity=1"#);
    let granted = request(server, "alice");
    assert_eq!(
        (granted.status, granted.fields(), &*granted.body),
        (200, [policy, Some(r#""per_ip";r=0;t=60"#), None], "Hello")
    );
    let refused = request(server, "bob"); // from the same address
    assert_eq!((refused.status, refused.header("ratelimit-policy")), (429, policy));
    let retry_after_s: u64 = refused.header("retry-after").expect("a field").parse().expect("a number");
    assert!((1..=60).contains(&retry_after_s), "{retry_after_s}");
}

#[tokio::test]
async fn without_the_peers_address_the_answer_says_how_to_serve() {
    let mut service = RateLimitLayer::per_ip("1/1m").expect("a limit").layer(hello());
    for (peer, status) in [
        (None, 500),
        (Some("[::ffff:192.0.2.1]:1"), 200),
        (Some("192.0.2.1:2"), 429),
        (Some("192.0.2.2:1"), 200),
        (None, 500),
    ] {
        let mut request = Request::new(());
        if let Some(peer) = peer {
            request.extensions_mut().insert::<SocketAddr>(peer.parse().expect("an address"));
        }
        let response = call(&mut service, request).await;
        assert_eq!(response.status(), status, "{peer:?}");
        if status == 500 {
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            let detail = body["detail"].as_str().expect("a text");
            assert!(detail.contains("into_make_service_with_connect_info"), "{detail}");
        }
    }
    // As in tests of an axum application.
    let mut request = Request::new(());
    let peer: SocketAddr = "192.0.2.2:9".parse().expect("an address");
    request.extensions_mut().insert(axum::extract::connect_info::MockConnectInfo(peer));
    assert_eq!(call(&mut service, request).await.status(), 429);
}

#[test]
fn a_limit_that_does_not_parse_is_an_error_that_says_why() {
    let number = "must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as \"100/1m\" or \"20/s burst 40\"";
    for (limit, expected) in [
        ("fast", format!("limits.rate: {number}, not \"fast\"")),
        ("", format!("limits.rate: {number}, not \"\"")),
        (
            "1/s\"",
            "limits.rate: must be a length of time such as \"90s\" or \"1h 30m\", not \"1s\\\"\"; units are ms, s, m, h, day, week"
                .to_owned(),
        ),
        ("100", format!("limits.rate: {number}, not \"100\"")),
        ("1/0s", "limits.period: a period of 0 ms is too short: at least 1 ms".to_owned()),
    ] {
        let error: Box<dyn std::error::Error> = RateLimitLayer::per_ip(limit).expect_err(limit).into();
        assert_eq!(error.to_string(), expected, "{limit}");
    }
    for (limit, policy) in [
        ("100/s burst 60s", r#""per_ip";q=100;w=1;tollgate-capacity=6000"#),
        ("2.5/1m burst 4", r#""per_ip";q=5;w=120;tollgate-capacity=4"#),
    ] {
        let layer = RateLimitLayer::per_ip(limit).expect("a limit").clock(|| START);
        assert_eq!(request(listen(app(layer)), "").header("ratelimit-policy"), Some(policy), "{limit}");
    }
}

/// Each row is a request whose client is known: that client's only token is gone by then.
#[test]
fn behind_proxies_the_client_is_counted_from_the_right() {
    for (proxies, headers, client) in [
        (1, &["192.0.2.1"][..], Some("192.0.2.1")),
        (1, &["198.51.100.9, 192.0.2.1"], Some("192.0.2.1")), // the client wrote the first
        (1, &["unknown, \"_\",,, 192.0.2.1"], Some("192.0.2.1")),
        (1, &["\u{e9},192.0.2.1"], Some("192.0.2.1")),          // not ASCII
        (1, &["198.51.100.9", "192.0.2.1"], Some("192.0.2.1")), // a proxy that adds a line
        (2, &["198.51.100.9", "192.0.2.1, 10.0.0.1"], Some("192.0.2.1")),
        (2, &["198.51.100.9, 192.0.2.1", "10.0.0.1"], Some("192.0.2.1")),
        (3, &["192.0.2.1", "10.0.0.1", "10.0.0.2"], Some("192.0.2.1")),
        (1, &["192.0.2.1:4711"], Some("192.0.2.1")),
        (1, &["::ffff:192.0.2.1"], Some("192.0.2.1")),
        (1, &["2001:db8::2"], Some("2001:db8::1")), // of the same /64
        (1, &["[2001:db8::1]:4711"], Some("2001:db8::1")),
        (1, &["[2001:db8::1]"], Some("2001:db8::1")),
        (1, &["[2001:db8::1"], None),
        (1, &["fe80::1%eth0"], Some("fe80::1")),
        (0, &["192.0.2.1"], Some("127.0.0.1")), // the peer
        (1, &[], None),
        (1, &[""], None),
        (1, &["192.0.2.1, unknown"], None),
        (1, &["192.0.2.1,"], None),
        (2, &["192.0.2.1"], None),
        (usize::MAX, &["192.0.2.1"], None),
    ] {
        let layer = RateLimitLayer::per_ip("1/1m").expect("a limit").clock(|| START).trusted_proxies(proxies);
        let server = listen(app(layer));
        let forwarded = |entry: &str| format!("x-forwarded-for: {entry}\r\n");
        if let Some(client) = client {
            let entries = [client].into_iter().chain((1..proxies).map(|_| "10.9.9.9"));
            let first = send(server, "GET /", &forwarded(&entries.collect::<Vec<_>>().join(",")));
            assert_eq!(first.status, 200, "{proxies} {headers:?}");
        }
        let answer = send(server, "GET /", &headers.iter().copied().map(forwarded).collect::<String>());
        match client {
            Some(_) => assert_eq!(answer.status, 429, "{proxies} {headers:?}"),
            None => misconfigured(&answer, "X-Forwarded-For"),
        }
    }
}

#[test]
fn stacked_layers_append_their_fields_and_a_refusal_names_its_own_limit() {
    let layer = |name, rate| RateLimitLayer::new(&named(name, rate)).key(user).clock(|| START);
    let server = listen(app(layer("inner", r#""1/1m""#)).layer(layer("outer", r#""2/4m""#)));
    let (inner, outer) = (r#""inner";q=1;w=60;tollgate-capacity=1"#, r#""outer";q=2;w=240;tollgate-capacity=2"#);
    for (status, policies, limits, retry_after, refused_by) in [
        (200, &[inner, outer][..], &[r#""inner";r=0;t=60"#, r#""outer";r=1;t=120"#][..], &[][..], None),
        (429, &[inner, outer], &[r#""inner";r=0;t=60"#, r#""outer";r=0;t=120"#], &["60"], Some("inner")),
        (429, &[outer], &[r#""outer";r=0;t=120"#], &["120"], Some("outer")),
    ] {
        let answer = request(server, "alice");
        let fields = ["ratelimit-policy", "ratelimit", "retry-after"].map(|name| answer.all(name));
        assert_eq!(
            (answer.status, &fields[..]),
            (status, &[policies.to_vec(), limits.to_vec(), retry_after.to_vec()][..])
        );
        if let Some(name) = refused_by {
            assert_eq!(answer.json()["violated-policies"], serde_json::json!([name]));
        }
    }
}

/// Up to a minute counts as no time elapsed, so that a client has to wait for that, too.
#[test]
fn after_a_small_step_back_of_the_clock_the_time_to_wait_is_still_enough() {
    let (server, clock) = serve(r#""1/1s""#, 1);
    assert_eq!(request_to(server, "alice", "/").status, 200);
    clock.fetch_sub(30_000, Ordering::SeqCst);
    for (wait_ms, retry_after) in [(0, "31"), (30_000, "1")] {
        clock.fetch_add(wait_ms, Ordering::SeqCst);
        for (user, status) in [("alice", 429), ("bob", 503)] {
            let answer = request_to(server, user, "/");
            assert_eq!((answer.status, answer.header("retry-after")), (status, Some(retry_after)), "{user}");
        }
    }
    clock.fetch_add(1_000, Ordering::SeqCst);
    assert_eq!(request_to(server, "alice", "/").status, 200);
}

#[test]
fn a_skipped_request_takes_nothing_and_needs_no_key() {
    let layer = RateLimitLayer::new(&policy(r#""1/1m""#)).key(user).clock(|| START);
    let server = listen(app(layer.skip(|request| request.uri.query() == Some("health"))));
    for (user, path, status, has_fields) in [
        ("", "/?health", 200, false),
        ("alice", "/?health", 200, false),
        ("alice", "/", 200, true),
        ("alice", "/", 429, true),
        ("alice", "/?health", 200, false),
        ("", "/", 500, false),
    ] {
        let answer = request_to(server, user, path);
        assert_eq!((answer.status, answer.header("ratelimit").is_some()), (status, has_fields), "{user} {path}");
    }
}

#[test]
fn the_applications_function_changes_the_layers_own_responses_only() {
    let refusal = |request: &Parts, refused: Response<Bytes>| {
        let (mut head, body) = refused.into_parts();
        head.headers.insert("content-type", "text/plain".parse().expect("a value"));
        let problem: Value = serde_json::from_slice(&body).expect("JSON");
        Response::from_parts(head, format!("{}: {}", request.uri.path(), problem["title"]).into())
    };
    let layer = RateLimitLayer::new(&policy(r#""1/1m""#)).max_keys(1).key(user).clock(|| START).refusal(refusal);
    let layer = layer.cost(|request| request.uri.query().map_or(1, |cost| cost.parse().expect("a cost")));
    let server = listen(app(layer));
    for (user, path, status, body, limits) in [
        ("alice", "/", 200, "Hello", Some(r#""api";r=0;t=60"#)),
        ("alice", "/", 429, r#"/: "Quota exceeded""#, Some(r#""api";r=0;t=60"#)),
        ("alice", "/?2", 400, r#"/: "Cost too large""#, None),
        ("bob", "/", 503, r#"/: "Unavailable""#, None),
        ("", "/", 500, r#"/: "Misconfigured""#, None),
        ("alice", "/elsewhere", 429, r#"/elsewhere: "Quota exceeded""#, Some(r#""api";r=0;t=60"#)),
    ] {
        let answer = request_to(server, user, path);
        let own = answer.header("content-type") == Some("text/plain");
        assert_eq!((answer.status, &*answer.body, answer.header("ratelimit")), (status, body, limits), "{path}");
        assert!(own || status == 200);
    }
}

#[test]
fn routes_and_clones_share_their_budgets_until_one_is_set_anew() {
    let layer = RateLimitLayer::new(&policy(r#""3/1m""#)).key(user).clock(|| START);
    let routes = Router::new().route("/a", get(async || "a")).route("/b", get(async || "b")).layer(layer.clone());
    let (routes, clone, other) = (listen(routes), listen(app(layer.clone())), listen(app(layer.max_keys(9))));
    for (server, path, status, remaining) in [
        (routes, "/a", 200, r#""api";r=2;t=20"#),
        (routes, "/b", 200, r#""api";r=1;t=20"#),
        (clone, "/", 200, r#""api";r=0;t=20"#),
        (routes, "/a", 429, r#""api";r=0;t=20"#),
        (other, "/", 200, r#""api";r=2;t=20"#),
    ] {
        let answer = request_to(server, "alice", path);
        assert_eq!((answer.status, answer.header("ratelimit")), (status, Some(remaining)));
    }
}

/// A service in plain hyper, with a body of its own.
#[tokio::test]
async fn limits_a_hyper_server_and_a_hyper_client() {
    let layer = |rate| RateLimitLayer::per_ip(rate).expect("a limit").clock(|| START);
    let limited = layer("2/1m").layer(hello());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.expect("a connection");
            let mut limited = limited.clone();
            let service = ServiceFn(move |mut request: Request<_>| {
                request.extensions_mut().insert(peer);
                limited.call(request)
            });
            let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move {
                http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await
            });
        }
    });

    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let host = |request: &Parts| request.uri.host().map(str::to_owned);
    let mut client = layer("3/1m").key(host).layer(client);
    let policy = r#""per_ip";q=2;w=60;tollgate-capacity=2"#;
    let own_policy = r#""per_ip";q=3;w=60;tollgate-capacity=3"#;
    for (status, body, policies) in [
        (200, Some("Hello"), &[policy, own_policy][..]),
        (200, Some("Hello"), &[policy, own_policy]),
        (429, None, &[policy, own_policy]), // the server's
        (429, None, &[own_policy]),         // the client's: nothing was sent
    ] {
        let request = Request::get(format!("http://{address}/")).body(Full::default()).expect("a request");
        let response = call(&mut client, request).await;
        let found: Vec<_> = response.headers().get_all("ratelimit-policy").iter().cloned().collect();
        assert_eq!(
            (response.status().as_u16(), &found[..]),
            (status, &policies.iter().map(|policy| policy.parse().expect("a value")).collect::<Vec<_>>()[..])
        );
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        match body {
            Some(body) => assert_eq!(bytes, body),
            None => assert_eq!(serde_json::from_slice::<Value>(&bytes).expect("JSON")["status"], 429),
        }
    }
}

#[tokio::test]
async fn limits_a_grpc_server_and_a_grpc_client() {
    let peer = |request: &Parts| Some(request.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip());
    let layer = |rate| RateLimitLayer::per_ip(rate).expect("a limit").clock(|| START);
    let exhausted = |_: &Parts, _| tonic::Status::resource_exhausted("too many requests").into_http();
    for (server, client, codes) in [
        // A gRPC client takes the JSON of a problem for a broken message.
        (layer("2/1m").ip(peer), layer("9/1m"), [tonic::Code::Ok, tonic::Code::Ok, tonic::Code::Internal]),
        (
            layer("2/1m").ip(peer).refusal(exhausted),
            layer("9/1m"),
            [tonic::Code::Ok, tonic::Code::Ok, tonic::Code::ResourceExhausted],
        ),
        (
            layer("9/1m").ip(peer),
            layer("1/1m").refusal(exhausted),
            [tonic::Code::Ok, tonic::Code::ResourceExhausted, tonic::Code::ResourceExhausted],
        ),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (_, health) = tonic_health::server::health_reporter();
        let served = Server::builder().layer(server).add_service(health);
        tokio::spawn(served.serve_with_incoming(TcpIncoming::from(listener)));
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        let ip: IpAddr = address.ip();
        let mut client = HealthClient::new(client.ip(move |_| Some(ip)).layer(channel));
        for code in codes {
            let answer = client.check(HealthCheckRequest::default()).await;
            assert_eq!(answer.as_ref().map_or_else(tonic::Status::code, |_| tonic::Code::Ok), code);
            if let Ok(response) = answer {
                let fields = response.metadata().get_all("ratelimit").iter().count();
                assert_eq!(fields, 2, "the server's and the client's");
            }
        }
    }
}

/// A service that answers with a body of `http_body_util`.
fn hello<B>() -> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone {
    ServiceFn(|_: Request<B>| ready(Ok(Response::new(Full::from("Hello")))))
}

async fn call<R, S: Service<R, Error: std::fmt::Debug>>(service: &mut S, request: R) -> S::Response {
    poll_fn(|context| service.poll_ready(context)).await.expect("ready");
    service.call(request).await.expect("a response")
}

#[derive(Clone)]
struct ServiceFn<F>(F);

impl<R, F: FnMut(R) -> A, A: Future<Output = Result<T, E>>, T, E> Service<R> for ServiceFn<F> {
    type Response = T;
    type Error = E;
    type Future = A;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> A {
        (self.0)(request)
    }
}
