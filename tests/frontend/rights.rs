//! Rights: checked before the body is read, and again where the request is carried out.

use tollgate::api::Endpoint;
use tollgate::frontend::{Asked, Head, Step};

use super::world::{ADJUSTER, CONSUMER, Deployment, LONG, OPERATOR, OPERATOR_OF_API, SHORT, World};

/// Every path, with a valid method and a valid body.
fn targets() -> Vec<(&'static str, &'static str, &'static str)> {
    let endpoints = Endpoint::ALL.map(|endpoint| {
        let body = match endpoint {
            Endpoint::Settle | Endpoint::Cancel => r#"{"policy":"api","key":"k","reservation":"0123456789abc"}"#,
            Endpoint::Batch => r#"{"requests":[{"policy":"api","key":"k"}]}"#,
            _ => r#"{"policy":"api","key":"k"}"#,
        };
        ("POST", endpoint.path(), body)
    });
    let others = [
        ("POST", "/v1/keys/inspect", r#"{"key":"k"}"#),
        ("POST", "/v1/keys/block", r#"{"policy":"api","key":"k","for_ms":1000}"#),
        ("GET", "/v1/policies", ""),
        ("GET", "/v1/policies/api", ""),
        ("GET", "/v1/policies/other", ""),
        ("PUT", "/v1/policies/api", r#""1/1s""#),
        ("DELETE", "/v1/policies/api", ""),
        ("GET", "/v1/overrides?policy=api", ""),
        ("PUT", "/v1/overrides", r#"{"overrides":[]}"#),
        ("DELETE", "/v1/overrides?policy=api&key=%22k%22", ""),
        ("GET", "/v1/audit", ""),
        ("GET", "/v1/metrics", ""),
        ("GET", "/v1/metrics/top", ""),
        ("GET", "/v1/decisions", ""),
    ];
    endpoints.into_iter().chain(others).collect()
}

/// Both checks refuse the same requests: neither relies on the other.
#[test]
fn both_checks_of_rights_agree() {
    let world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
    let mut found = [0, 0];
    for (method, path, body) in targets() {
        for host in ["", "http://localhost", "https://user-content.example:8443"] {
            let url = format!("{host}{path}");
            for authorization in
                [None, Some("Bearer x"), Some(CONSUMER), Some(ADJUSTER), Some(OPERATOR), Some(OPERATOR_OF_API)]
            {
                let head = world.head(method, &url, authorization).map_err(|reply| reply.status).err();
                let asked = Asked { url: &url, method, authorization, body: body.as_bytes(), ..Asked::default() };
                let carried_out = match world.service.ask(&asked, world.now(), &mut || Some(7)) {
                    Step::Reply(reply) => Some(reply.status).filter(|status| [401, 403].contains(status)),
                    Step::Call(_) | Step::Administer { .. } | Step::InspectKey(_) => None,
                };
                assert_eq!(head, carried_out, "{method} {url} with {authorization:?}");
                found[usize::from(head.is_none())] += 1;
                let is_anybodys = authorization.is_none() || authorization == Some("Bearer x");
                assert_eq!(head == Some(401), is_anybodys, "{method} {url} with {authorization:?}");
            }
        }
    }
    assert!(found[0] > 200 && found[1] > 100, "{found:?}");
}

/// Only operators may carry out operators' acts; giving back needs its own scope.
#[test]
fn each_path_needs_its_scope() {
    let world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
    for (method, path, _) in targets() {
        let allowed = [CONSUMER, ADJUSTER, OPERATOR].map(|token| world.head(method, path, Some(token)).is_ok());
        let expected = match path {
            "/v1/charge" | "/v1/refund" | "/v1/reset" | "/v1/lease" => [false, true, false],
            _ if Endpoint::of(path).is_some() && !path.starts_with("/v1/keys/") => [true, false, false],
            _ => [false, false, true],
        };
        assert_eq!(allowed, expected, "{path}");
    }
}

#[test]
fn a_restricted_operator_may_name_no_other_policy() {
    let policies = r#"{"api":"10/1m","other":"10/1m"}"#;
    let world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    for (path, status) in [("/v1/policies/api", None), ("/v1/policies/other", Some(403))] {
        assert_eq!(world.head("GET", path, Some(OPERATOR_OF_API)).err().map(|reply| reply.status), status, "{path}");
        assert_eq!(world.head("GET", path, Some(OPERATOR)), Ok(Head::AskMore { max_len: SHORT }));
    }
}

#[test]
fn requests_without_a_credential_need_no_settings_either() {
    let world = World::new(r#"{"api":"10/1m"}"#);
    assert_eq!(world.head("GET", "/v1/openapi.json", None), Ok(Head::Contract));
    assert_eq!(world.head("GET", "/healthz", None).unwrap_err().status, 200);
    assert_eq!(world.head("OPTIONS", "/v1/consume", None).unwrap_err().status, 204);
    // Without a credential a caller learns nothing about other paths.
    for path in ["/", "/v1/consume", "/v1/nothing", "/v1/session"] {
        assert_eq!(world.head("POST", path, None).unwrap_err().status, 401, "{path}");
    }
    // Requests carried out elsewhere, and unknown ones, are named by path.
    for path in ["/v1/session", "/v1/nothing", "/healthz", "/v1/openapi.json"] {
        let asked = Asked { url: path, authorization: Some(OPERATOR), ..Asked::default() };
        let Step::Reply(reply) = world.service.ask(&asked, world.now(), &mut || None) else { panic!("{path}") };
        assert!(reply.status == 404 && reply.body().contains(path), "{}", reply.body());
    }
    for (method, path, status) in [
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/consume", 405),
        ("POST", "/v1/session", 404),
        ("GET", "/v1/policies", 404), // there is no registry
    ] {
        assert_eq!(world.head(method, path, Some(OPERATOR)).unwrap_err().status, status, "{path}");
    }
}

#[test]
fn the_maximum_body_depends_on_the_path() {
    let world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
    assert_eq!(world.head("POST", "/v1/consume", Some(CONSUMER)), Ok(Head::Ask { max_len: SHORT }));
    let overrides = world.head("PUT", "http://x/v1/overrides?dry_run", Some(OPERATOR));
    assert_eq!(overrides, Ok(Head::AskMore { max_len: LONG }));
}
