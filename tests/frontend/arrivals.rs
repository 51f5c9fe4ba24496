//! Checks before the body is read: the method, the headers about the body, and its length.

use std::rc::Rc;

use tollgate::api::Missing;
use tollgate::frontend::{Arrival, Asked, Head, Isolate, Service, SettingsErrors, Step};

use super::world::{CONSUMER, Deployment, LONG, OPERATOR, SHORT, World};

/// A request to consume, and to change overrides: their bodies may have different lengths.
const CONSUME: Arrival<'_> = Arrival {
    method: "POST",
    url: "/v1/consume",
    authorization: Some(CONSUMER),
    props: None,
    content_type: Some("application/json"),
    content_encoding: None,
    content_length: None,
};
const OVERRIDE: Arrival<'_> =
    Arrival { method: "PUT", url: "/v1/overrides?dry_run", authorization: Some(OPERATOR), ..CONSUME };
const BLOCK: Arrival<'_> = Arrival { url: "/v1/keys/block", authorization: Some(OPERATOR), ..CONSUME };

#[test]
fn a_body_must_be_plain_json_of_a_length_that_its_path_allows() {
    let world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
    let length = |content_length, arrival| Arrival { content_length: Some(content_length), ..arrival };
    for (arrival, expected) in [
        (CONSUME, Ok(Head::Ask { max_len: SHORT })),
        (length("16384", CONSUME), Ok(Head::Ask { max_len: SHORT })),
        (length("16385", CONSUME), Err((413, "16384"))),
        (length("99999999999999999999", CONSUME), Ok(Head::Ask { max_len: SHORT })), // no number: it is counted while it is read
        (length("1048576", OVERRIDE), Ok(Head::AskMore { max_len: LONG })),
        (length("1048577", OVERRIDE), Err((413, "1048576"))),
        (Arrival { content_type: None, ..CONSUME }, Err((415, "application/json"))),
        (Arrival { content_type: Some("text/plain"), ..CONSUME }, Err((415, "text/plain"))),
        (Arrival { content_encoding: Some("gzip"), ..CONSUME }, Err((415, "gzip"))),
        (Arrival { content_encoding: Some("gzip"), ..OVERRIDE }, Err((415, "gzip"))),
        (length("16385", BLOCK), Err((413, "16384"))),
        (Arrival { content_type: Some("text/plain"), ..BLOCK }, Err((415, "text/plain"))),
        (Arrival { content_encoding: Some("gzip"), ..BLOCK }, Err((415, "gzip"))),
        // A request without a body has no headers about one.
        (Arrival { method: "GET", content_type: None, ..OVERRIDE }, Ok(Head::AskMore { max_len: LONG })),
        (Arrival { method: "GET", content_encoding: Some("gzip"), ..OVERRIDE }, Ok(Head::AskMore { max_len: LONG })),
    ] {
        let found = world.service.head(&arrival, world.now());
        match (&found, expected) {
            (Err(reply), Err((status, part))) => {
                assert_eq!(reply.status, status, "{arrival:?}");
                assert!(reply.body().contains(part), "{arrival:?}: {}", reply.body());
            }
            (found, expected) => assert_eq!(found.as_ref().ok().copied(), expected.ok(), "{arrival:?}"),
        }
    }
}

/// Only metrics wait until the registry has all counts; requests to objects need the fewest headers.
#[test]
fn each_path_says_what_it_needs_before_an_answer() {
    let world = World::of(&Deployment { has_registry: true, ..super::sessions::DEPLOYMENT });
    for (method, path, authorization, head) in [
        ("GET", "/v1/openapi.json", None, Head::Contract),
        ("HEAD", "/v1/openapi.json", None, Head::Contract),
        ("POST", "/v1/session", None, Head::AskMore { max_len: SHORT }),
        ("POST", "/v1/consume", Some(CONSUMER), Head::Ask { max_len: SHORT }),
        ("POST", "/v1/keys/reset", Some(OPERATOR), Head::Ask { max_len: SHORT }),
        ("POST", "/v1/keys/inspect", Some(OPERATOR), Head::Ask { max_len: SHORT }),
        ("POST", "/v1/keys/block", Some(OPERATOR), Head::AskMore { max_len: SHORT }),
        ("GET", "/v1/metrics", Some(OPERATOR), Head::Report { max_len: SHORT }),
        ("GET", "/v1/metrics/top", Some(OPERATOR), Head::Report { max_len: SHORT }),
        ("GET", "/v1/policies", Some(OPERATOR), Head::AskMore { max_len: SHORT }),
        ("PUT", "/v1/policies/api", Some(OPERATOR), Head::AskMore { max_len: SHORT }),
        ("GET", "/v1/audit", Some(OPERATOR), Head::AskMore { max_len: SHORT }),
        ("GET", "/v1/decisions", Some(OPERATOR), Head::AskMore { max_len: SHORT }),
    ] {
        assert_eq!(world.head(method, path, authorization), Ok(head), "{method} {path}");
    }
    for (path, authorization) in [("/v1/openapi.json", None), ("/healthz", None), ("/v1/consume", Some(CONSUMER))] {
        assert_eq!(world.head("DELETE", path, authorization).unwrap_err().status, 405, "{path}");
    }
}

/// If sessions are enabled, their path exists; no other path depends on that.
#[test]
fn sessions_open_no_other_path() {
    let world = World::of(&super::sessions::DEPLOYMENT);
    for (path, status) in [("/v1/consume", 401), ("/v1/nothing", 401), ("/v1/metrics", 401)] {
        assert_eq!(world.head("POST", path, None).unwrap_err().status, status, "{path}");
    }
}

#[test]
fn metrics_need_no_registry_and_other_operator_requests_do() {
    let world = World::new(r#"{"api":"10/1m"}"#);
    for path in ["/v1/metrics", "/v1/metrics/top"] {
        assert_eq!(world.head("GET", path, Some(OPERATOR)), Ok(Head::Report { max_len: SHORT }), "{path}");
    }
    for path in ["/v1/policies", "/v1/policies/api", "/v1/overrides", "/v1/audit", "/v1/decisions"] {
        let refused = world.head("GET", path, Some(OPERATOR)).unwrap_err();
        let asked = Asked { url: path, method: "GET", authorization: Some(OPERATOR), ..Asked::default() };
        let Step::Reply(reply) = world.service.ask(&asked, world.now(), &mut || None) else { panic!("{path}") };
        assert_eq!((refused.status, refused), (404, reply), "{path}");
    }
}

/// Errors in settings are for the log; callers only learn what is missing altogether.
#[test]
fn wrong_settings_answer_all_requests_alike_except_those_that_need_none() {
    for (missing, others, lines) in [
        (vec![Missing::Policies], &["POLICIES.api: no rate", "TOKENS: none"][..], &["POLICIES: ", "TOKENS: none"][..]),
        (vec![Missing::Objects], &["POLICIES.api: no rate"], &["KEYS: ", "POLICIES.api: no rate"]),
        (vec![], &["POLICIES.api: no rate"], &["POLICIES.api: no rate"]),
    ] {
        let errors = SettingsErrors::new(missing.clone(), others.iter().map(|&line| line.to_owned()).collect());
        let service = Service::new(Err(errors), Rc::new(Isolate::default()));
        let errors = service.errors().unwrap();
        assert_eq!(errors.lines.len(), lines.len(), "{:?}", errors.lines);
        for (line, start) in errors.lines.iter().zip(lines) {
            assert!(line.starts_with(start), "{line}");
        }
        assert_eq!(errors.missing, missing);
        let now = World::new(r#"{"api":"10/1m"}"#).now();
        let status = |method, url| match service.head(&Arrival { method, url, ..CONSUME }, now) {
            Ok(_) => 200,
            Err(reply) => reply.status,
        };
        assert_eq!(["/healthz", "/v1/openapi.json"].map(|url| status("GET", url)), [503, 200]);
        assert_eq!(["/v1/consume", "/v1/nothing", "/"].map(|url| status("POST", url)), [500; 3]);
        assert_eq!(status("OPTIONS", "/v1/consume"), 204);
    }
    assert!(World::new(r#"{"api":"10/1m"}"#).service.errors().is_none());
}

/// Also where no length was declared. One more byte is refused before anything else of the body is read, and after the caller's rights.
#[test]
fn a_body_has_the_length_that_its_path_allows() {
    let world = World::of(&Deployment { has_registry: true, ..super::sessions::DEPLOYMENT });
    for (method, url, authorization, max) in [
        ("POST", "/v1/consume", Some(CONSUMER), 16_384),
        ("POST", "/v1/batch", Some(CONSUMER), 16_384),
        ("POST", "/v1/session", None, 16_384),
        ("POST", "/v1/keys/inspect", Some(OPERATOR), 16_384),
        ("POST", "/v1/keys/block", Some(OPERATOR), 16_384),
        ("PUT", "/v1/policies/api", Some(OPERATOR), 16_384),
        ("PUT", "/v1/overrides", Some(OPERATOR), 1_048_576),
    ] {
        let status = |len: usize, authorization| {
            let body = vec![b' '; len];
            let asked = Asked { url, method, authorization, body: &body, ..Asked::default() };
            match world.service.ask(&asked, world.now(), &mut || Some(1)) {
                Step::Reply(reply) => reply.status,
                _ => 0, // the registry reads it
            }
        };
        assert_ne!(status(max, authorization), 413, "{url}");
        assert_eq!(status(max + 1, authorization), 413, "{url}");
        if authorization.is_some() {
            assert_eq!(status(max + 1, None), 401, "{url}");
        }
    }
}

#[test]
fn a_body_that_does_not_arrive_is_an_error_with_the_reason() {
    let late = super::world::answer(Service::unreadable(None));
    assert_eq!(late.status, 408, "{}", late.body);
    let broken = super::world::answer(Service::unreadable(Some("Network connection lost")));
    assert_eq!(broken.status, 400, "{}", broken.body);
    assert!(broken.body["detail"].as_str().unwrap().ends_with("Network connection lost"), "{}", broken.body);
}
