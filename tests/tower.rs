//! The `tower` layer in a real axum server, over a real connection. Only the clock is the test's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use serde_json::Value;
use tollgate::api::Problem;
use tollgate::policy::Policies;
use tollgate::tower::RateLimitLayer;

const START: i64 = 1_800_000_000_000;

/// A server that limits each user by `policy`, and its clock.
fn serve(policy: &str, max_keys: usize) -> (SocketAddr, Arc<AtomicI64>) {
    let policies = Policies::parse(&format!(r#"{{"api":{policy}}}"#)).expect("a policy");
    let clock = Arc::new(AtomicI64::new(START));
    let now = Arc::clone(&clock);
    let user = |request: &Request| request.headers().get("user").cloned();
    let cost = |request: &Request| request.uri().query().map_or(1, |cost| cost.parse().expect("a cost"));
    let policy = policies.get("api").expect("it is there");
    let layer = RateLimitLayer::new(policy, max_keys, user, move || now.load(Ordering::SeqCst));
    let app = Router::new().route("/", get(async || "Hello")).layer(layer.expect("it can grant").cost(cost));
    (listen(app), clock)
}

/// A server that limits the networks of the addresses that callers send as their `user`.
fn serve_addresses(policy: &str) -> SocketAddr {
    let policies = Policies::parse(&format!(r#"{{"api":{policy}}}"#)).expect("a policy");
    let address = |request: &Request| request.headers().get("user")?.to_str().ok()?.parse().ok();
    let layer = RateLimitLayer::by_address(policies.get("api").expect("it is there"), 10, address, || START);
    listen(Router::new().route("/", get(async || "Hello")).layer(layer.expect("it can grant")))
}

fn listen(app: Router) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("as tokio wants it");
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, app).await
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
fn a_policy_with_one_budget_is_a_layer_that_ignores_its_key() {
    let policies = Policies::parse(r#"{"all":{"rate":"9/s","key":[]}}"#).expect("a policy");
    let policy = policies.get("all").expect("it is there");
    let keyed = RateLimitLayer::<u64, _, _>::new(policy, 10, |_: &Request| Some(7), || START);
    assert!(matches!(keyed.err(), Some(Problem::Misconfigured { .. })));
    assert!(RateLimitLayer::<(), _, _>::new(policy, 10, |_: &Request| Some(()), || START).is_ok());
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
    assert_eq!(other.status, 500, "without a key, and no preflight");
    assert_eq!(request(address, "alice").status, 200);
    assert_eq!(send(address, "OPTIONS /", "user: alice\r\n").status, 429);
}

#[test]
fn a_request_without_a_key_gets_500_and_takes_nothing() {
    let (address, _) = serve(r#"{"rate":2,"period":"1m"}"#, 1);
    let by_address = serve_addresses(r#"{"rate":2,"period":"1m"}"#);
    for server in [address, by_address] {
        for _ in 0..3 {
            let answer = request(server, "");
            assert_eq!((answer.status, answer.fields()), (500, [None, None, None]));
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            let body: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(body["type"], "urn:problem-type:tollgate:misconfigured");
            assert_eq!(body["status"], 500);
            assert!(body["detail"].as_str().expect("a text").contains("into_make_service_with_connect_info"));
        }
        let answer = request(server, "192.0.2.1"); // the only entry is still free, and the budget full
        assert_eq!((answer.status, answer.header("ratelimit")), (200, Some(r#""api";r=1;t=30"#)));
    }
}

#[test]
fn by_address_limits_networks_in_every_notation_of_an_address() {
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
