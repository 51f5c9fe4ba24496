//! A Worker's bindings and settings, valid and invalid.

use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate::access::Names;
use tollgate::api::Missing;
use tollgate::edge::PolicySnapshot;
use tollgate::frontend::{
    Asked, Binding, Callers, Environment, Receivers, Service, Settings, SettingsErrors, Setup, Step, Variable,
    hasher_in, own_policies,
};
use tollgate::registry::Registry;

use super::registry_service::Disk;
use super::sessions;
use super::world::{ABOUT_K, CONSUMER, GRANT_KEYS, START, World, answer, grant, tokens};
use tollgate::frontend::Now;

const NOW: Now = Now { at: START, waiting: START };

const POLICIES: &str = r#"{"api":{"rate":"10/1m","notify":["refused"]}}"#;
const KEY_SECRET: &str = "a-secret-of-thirty-two-characters";

#[derive(Clone, Default)]
pub(crate) struct Deployed {
    variables: BTreeMap<&'static str, Variable>,
    bindings: BTreeMap<&'static str, Binding>,
}

impl Deployed {
    /// A service that lacks nothing.
    fn whole() -> Self {
        Self::default()
            .json("POLICIES", POLICIES)
            .text("TOLLGATE_KEY_SECRET", KEY_SECRET)
            .text("TOLLGATE_TOKENS", &tokens())
            .bound("KEYS", Binding::Namespace)
    }

    fn with(mut self, name: &'static str, variable: Variable) -> Self {
        self.variables.insert(name, variable);
        self
    }

    fn text(self, name: &'static str, text: &str) -> Self {
        self.with(name, Variable::Text(text.to_owned()))
    }

    pub(crate) fn json(self, name: &'static str, json: &str) -> Self {
        self.with(name, Variable::Json(json.to_owned()))
    }

    fn without(mut self, name: &str) -> Self {
        self.variables.remove(name);
        self.bindings.remove(name);
        self
    }

    fn bound(mut self, name: &'static str, binding: Binding) -> Self {
        self.bindings.insert(name, binding);
        self
    }
}

impl Environment for Deployed {
    fn variable(&self, name: &str) -> Option<Variable> {
        self.variables.get(name).cloned()
    }

    fn binding(&self, name: &str) -> Binding {
        self.bindings.get(name).copied().unwrap_or(Binding::Nothing)
    }
}

/// The settings of an application that passes a namespace.
fn trusting(env: &Deployed, in_code: Option<&str>) -> Setup {
    Setup::trusting(env, in_code, Binding::Namespace)
}

fn right(setup: Setup) -> Settings {
    setup.settings.unwrap_or_else(|errors| panic!("{:?}", errors.lines))
}

fn wrong(setup: Setup) -> SettingsErrors {
    match setup.settings {
        Ok(_) => panic!("nothing is wrong"),
        Err(errors) => errors,
    }
}

#[test]
fn each_kind_of_frontend_needs_what_it_uses() {
    let whole = Deployed::whole();
    let bare = Deployed::default();
    // Of each line the first word that is a name.
    let beginnings = |errors: &SettingsErrors| {
        let is_name = |word: &&str| word.len() > 3 && word.chars().all(|char| char.is_ascii_uppercase() || char == '_');
        let beginning = |line: &String| line.split([':', ' ']).find(is_name).unwrap().to_owned();
        errors.lines.iter().map(beginning).collect::<Vec<_>>()
    };
    right(Setup::of_service(&whole));
    let errors = wrong(Setup::of_service(&bare));
    assert_eq!(errors.missing, [Missing::Objects, Missing::Policies]);
    assert_eq!(beginnings(&errors), ["KEYS", "POLICIES", "TOLLGATE_TOKENS", "TOLLGATE_KEY_SECRET"]);
    // A binding is a credential, and the names of objects may do without a secret.
    right(Setup::of_binding(&whole));
    right(Setup::of_binding(&whole.clone().without("TOLLGATE_TOKENS").without("TOLLGATE_KEY_SECRET")));
    assert_eq!(beginnings(&wrong(Setup::of_binding(&bare))), ["KEYS", "POLICIES"]);
    // Applications with Tollgate in their own program name the objects, and may pass the policies.
    right(trusting(&whole.clone().without("KEYS"), None));
    assert_eq!(wrong(Setup::trusting(&whole, None, Binding::Nothing)).missing, [Missing::Namespace]);
    let errors = wrong(trusting(&bare, None));
    assert_eq!((beginnings(&errors), &errors.missing[..]), (vec!["POLICIES".to_owned()], &[Missing::Policies][..]));
    for in_code in ["{}", r#"{"api":"10/1m"}"#] {
        right(trusting(&bare, Some(in_code)));
        for keys in [Binding::Nothing, Binding::Other] {
            assert_eq!(wrong(Setup::trusting(&whole, Some(in_code), keys)).missing, [Missing::Namespace]);
        }
    }
    // Errors in these name the option, not the variable, whatever the policies are called.
    let errors = wrong(trusting(&bare, Some(r#"{"POLICIES":"ten","other":"ten"}"#)));
    let places: Vec<_> = errors.lines.iter().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["policies.POLICIES.rate", "policies.other.rate"]);
    // Policies in code are not in the registry, so the REGISTRY binding does not matter.
    right(trusting(&bare.bound("REGISTRY", Binding::Other), Some("{}")));
    let errors = wrong(trusting(&whole, Some(r#"{"other":"10/1m","api":"10/1m"}"#)));
    assert_eq!(errors.lines, ["policies.api: the variable POLICIES has it too; remove one of them"]);
    // Unreadable policies have no names.
    for declared in [whole.clone().text("POLICIES", "api"), whole.clone().json("POLICIES", "null")] {
        right(trusting(&declared, Some(r#"{"api":"10/1m"}"#)));
    }
}

#[test]
fn each_kind_of_frontend_has_its_callers_and_sends_only_policies_in_code() {
    let whole = Deployed::whole();
    for (setup, callers, policies, sends_definitions) in [
        (Setup::of_service(&whole), "credentials", &["api"][..], false),
        (Setup::of_binding(&whole), "binding", &["api"], false),
        (trusting(&whole, None), "own program", &["api"], false),
        (trusting(&whole, Some("{}")), "own program", &[], true),
        (Setup::inside("the-id", r#"{"mails":"10/1m"}"#), "own object", &["mails"], true),
    ] {
        let settings = right(setup);
        let found = match settings.callers {
            Callers::WithCredentials(_) => "credentials",
            Callers::Bound => "binding",
            Callers::Trusted => "own program",
            Callers::Inside(_) => "own object",
        };
        assert_eq!((found, settings.sends_definitions), (callers, sends_definitions));
        assert_eq!(settings.policies.iter().map(|policy| policy.name()).collect::<Vec<_>>(), policies, "{callers}");
    }
}

#[test]
fn exactly_the_configured_credentials_are_accepted() {
    let whole = Deployed::whole().json("POLICIES", sessions::DEPLOYMENT.policies);
    let without_tokens = whole.clone().without("TOLLGATE_TOKENS").text("TOLLGATE_GRANT_KEYS", GRANT_KEYS);
    let grants = whole.clone().text("TOLLGATE_GRANT_KEYS", GRANT_KEYS);
    let of_others = grants.clone().text("TOLLGATE_AUDIENCE", "others");
    let grant = &*grant(START + 60_000);
    let is_accepted = |deployed: &Deployed, asked: &Asked<'_>| {
        let service = Service::new(Ok(right(Setup::of_service(deployed))), Rc::default());
        matches!(service.ask(asked, NOW, &mut || Some(9)), Step::Call(_))
    };
    for (deployed, credential, expected) in [
        (&whole, CONSUMER, true),
        (&whole, "Bearer consumer-0123456789abcdef0123456780", false),
        (&whole, grant, false),
        (&without_tokens, CONSUMER, false),
        (&without_tokens, grant, true),
        (&grants, CONSUMER, true),
        (&grants, grant, true),
        (&of_others, grant, false),
    ] {
        let asked = Asked { authorization: Some(credential), ..ABOUT_K };
        assert_eq!(is_accepted(deployed, &asked), expected, "{credential}");
    }
    // A visitor opens a session without a credential.
    let with_sessions = |sessions: &str| {
        grants.clone().text("TOLLGATE_SESSIONS", sessions).text("TURNSTILE_SECRET", "the-secret-of-the-captcha")
    };
    let body = br#"{"captcha":"solved"}"#;
    let session = Asked { url: "/v1/session", method: "POST", address: Some("192.0.2.1"), body, ..Asked::default() };
    let sessions = with_sessions(sessions::DEPLOYMENT.sessions.unwrap());
    assert!(is_accepted(&sessions, &session) && !is_accepted(&grants, &session));
    let unknown = with_sessions(r#"{"policy":"visits","policies":["api","unknown"]}"#);
    let lines = wrong(Setup::of_service(&unknown)).lines;
    assert_eq!(lines, ["TOLLGATE_SESSIONS.policies: there is no policy unknown"]);
    let policies = r#"{"api":"10/1m","visits":{"rate":"5/1m","key":[]}}"#;
    let shared = with_sessions(r#"{"policy":"visits","policies":["api"]}"#).json("POLICIES", policies);
    let lines = wrong(Setup::of_service(&shared)).lines;
    assert_eq!(lines, ["TOLLGATE_SESSIONS.policy: visits has one budget for all, but sessions are counted by address"]);
}

/// The registry's object hashes keys as frontends do, or no override would be found.
#[test]
fn keys_are_hashed_with_the_secret_by_all_frontends_and_by_the_registry() {
    let deployed = Deployed::whole().bound("REGISTRY", Binding::Namespace);
    let names = Names::new(Some(KEY_SECRET)).unwrap();
    for setup in [
        Setup::of_service(&deployed),
        Setup::of_binding(&deployed),
        trusting(&deployed, None),
        trusting(&deployed, Some("{}")),
    ] {
        assert_eq!(right(setup).names.object_name(b"k"), names.object_name(b"k"));
    }
    let hasher = hasher_in(&deployed);
    assert_eq!(hasher.hash(b"k"), names.hash(b"k"));
    let mut world = World::with(right(trusting(&deployed, None)));
    world.registry = Registry::new(hasher, [("", ""); 0]);
    world.refresh();
    world.set(r#"{"policy":"api","key":"k","rate":"7/1m"}"#);
    assert_eq!(world.post("/v1/peek", r#"{"policy":"api","key":"k"}"#).body["limit"], 7);
    // Without a secret, or with one that is too short, it hashes without.
    for deployed in [Deployed::default(), deployed.text("TOLLGATE_KEY_SECRET", "short")] {
        assert_eq!(hasher_in(&deployed).hash(b"k"), Names::without_secret().hash(b"k"));
    }
}

#[test]
fn before_the_registry_answers_the_policies_of_the_deployment_are_in_force() {
    let settings = right(Setup::of_service(&Deployed::whole().bound("REGISTRY", Binding::Namespace)));
    let mut known = settings.registry.unwrap().into_inner();
    assert_eq!(known.policies().iter().map(|policy| policy.name()).collect::<Vec<_>>(), ["api"]);
    let mut expected = PolicySnapshot::new(POLICIES, &settings.policies);
    assert_eq!(known.poll(START), expected.poll(START), "it names the deployment by the text of its policies");
}

#[test]
fn all_errors_are_reported_at_once() {
    let deployed = Deployed::whole()
        .text("POLICIES", "ten a minute")
        .text("TOLLGATE_METRICS_SAMPLE", "2")
        .text("TOLLGATE_WEBHOOK_URL", "http://example.com")
        .text("TOLLGATE_NOTICE_KEYS", "yes")
        .text("TOLLGATE_KEY_SECRET", "short")
        .text("TOLLGATE_TOKENS", "short")
        .bound("REGISTRY", Binding::Other);
    let lines = wrong(Setup::of_service(&deployed)).lines;
    for name in [
        "POLICIES",
        "TOLLGATE_METRICS_SAMPLE",
        "TOLLGATE_WEBHOOK_URL",
        "TOLLGATE_NOTICE_KEYS",
        "TOLLGATE_KEY_SECRET",
        "TOLLGATE_TOKENS",
        "REGISTRY",
    ] {
        assert_eq!(
            lines.iter().filter(|line| line.split([':', ' ']).any(|word| word == name)).count(),
            1,
            "{name}: {lines:#?}"
        );
    }
    let secret = Deployed::whole().json("TOLLGATE_KEY_SECRET", "7");
    assert_eq!(wrong(Setup::of_binding(&secret)).lines, ["TOLLGATE_KEY_SECRET must be text"]);
}

/// A single error makes settings unusable, and one setting may have several errors.
#[test]
fn each_wrong_setting_is_reported_alone() {
    let whole = Deployed::whole();
    let insecure = whole.clone().text("TOLLGATE_WEBHOOK_URL", "http://example.com");
    let registry = whole.clone().bound("REGISTRY", Binding::Other);
    for (deployed, expected) in [
        (whole.clone().without("KEYS"), &["KEYS: no Durable Object namespace is bound"][..]),
        (whole.clone().bound("KEYS", Binding::Other), &["KEYS: no Durable Object namespace is bound"]),
        (whole.clone().without("POLICIES"), &["POLICIES: there are no policies"]),
        (whole.clone().json("POLICIES", "{}"), &["POLICIES: there are no policies"]),
        (whole.clone().text("POLICIES", POLICIES), &["POLICIES: must be a table of policies by name"]),
        (whole.clone().json("POLICIES", r#"{"a":"ten","b":"ten"}"#), &["POLICIES.a.rate: ", "POLICIES.b.rate: "]),
        (whole.clone().text("TOLLGATE_KEY_SECRET", "short"), &["the secret TOLLGATE_KEY_SECRET has 5 bytes"]),
        (whole.clone().text("TOLLGATE_TOKENS", "short"), &["TOLLGATE_TOKENS: is not valid JSON"]),
        (
            whole.clone().text("TOLLGATE_TOKENS", "short").text("TOLLGATE_AUDIENCE", ""),
            &["TOLLGATE_TOKENS: is not valid JSON", "TOLLGATE_AUDIENCE: is empty"],
        ),
        (whole.clone().text("TOLLGATE_METRICS_SAMPLE", "2"), &["TOLLGATE_METRICS_SAMPLE must be a number"]),
        (whole.clone().text("TOLLGATE_NOTICE_KEYS", "yes"), &["TOLLGATE_NOTICE_KEYS must be true or false"]),
        (insecure, &["TOLLGATE_WEBHOOK_URL: must ", "the secret TOLLGATE_WEBHOOK_SECRET is missing"]),
        (registry.clone(), &["REGISTRY: is not a Durable Object namespace"]),
    ] {
        let setup = Setup::of_service(&deployed);
        assert!(setup.webhook.is_none() && setup.remarks.is_empty(), "{expected:?}");
        let lines = wrong(setup).lines;
        let is_expected = |(line, beginning): (&String, &&str)| line.starts_with(beginning);
        assert!(lines.len() == expected.len() && lines.iter().zip(expected).all(is_expected), "{lines:#?}");
    }
    for setup in [Setup::of_binding(&registry), trusting(&registry, None)] {
        assert_eq!(wrong(setup).lines.len(), 1);
    }
}

#[test]
fn the_log_describes_each_policy_and_warns_of_what_is_probably_missing() {
    let silent = r#"{"api":"10/1m","daily":"9/1day"}"#;
    let telling = r#"{"api":"10/1m","daily":{"rate":"9/1day","notify":["refused"]}}"#;
    let (api, daily) = ("policy api: token bucket, 10 per 1m", "policy daily: token bucket, 9 per 1day");
    let receiver = "policies have notices, but there is no receiver: set TOLLGATE_WEBHOOK_URL, or bind a queue";
    let whole = Deployed::whole();
    let with_queue = whole.clone().bound("NOTICES", Binding::Other);
    for (deployed, policies, expected) in [
        (&whole, silent, &[api, daily][..]),
        (&whole, telling, &[api, daily, receiver]),
        (&with_queue, telling, &[api, daily]),
        (&with_queue, silent, &[api, daily]),
    ] {
        let deployed = deployed.clone().json("POLICIES", policies);
        let remarks = Setup::of_service(&deployed).remarks;
        let is_expected = |(remark, beginning): (&String, &&str)| remark.starts_with(beginning);
        assert!(remarks.len() == expected.len() && remarks.iter().zip(expected).all(is_expected), "{remarks:#?}");
        assert!(Setup::of_binding(&deployed).remarks.is_empty() && trusting(&deployed, None).remarks.is_empty());
    }
}

#[test]
fn notices_data_points_and_the_registry_are_used_only_if_bound() {
    let webhook = |deployed: Deployed| {
        deployed
            .text("TOLLGATE_WEBHOOK_URL", "https://example.com/notices")
            .text("TOLLGATE_WEBHOOK_SECRET", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
    };
    let queue = |deployed: Deployed| deployed.bound("NOTICES", Binding::Other);
    let namespace = |deployed: Deployed| deployed.bound("NOTICES", Binding::Namespace);
    let keys = |deployed: Deployed| deployed.text("TOLLGATE_NOTICE_KEYS", "true");
    let hashes = |deployed: Deployed| deployed.text("TOLLGATE_NOTICE_KEYS", "false");
    let whole = Deployed::whole();
    for (deployed, has_queue, has_webhook, get_keys) in [
        (whole.clone(), false, false, false),
        (keys(whole.clone()), false, false, true),
        (webhook(whole.clone()), false, true, false),
        (queue(whole.clone()), true, false, false),
        (keys(webhook(whole.clone())), false, true, true),
        (keys(queue(webhook(whole.clone()))), true, true, true),
        (hashes(queue(whole.clone())), true, false, false),
        (queue(whole.clone()).json("TOLLGATE_NOTICE_KEYS", "true"), true, false, true),
        (namespace(whole.clone()), true, false, false), // the binding is checked only when a notice is sent
    ] {
        let setup = Setup::of_service(&deployed);
        assert_eq!(setup.webhook.is_some(), has_webhook);
        let is_remarked = setup.remarks.iter().any(|line| line.starts_with("policies have notices, but"));
        assert_eq!(is_remarked, !has_queue && !has_webhook, "{:?}", setup.remarks);
        assert_eq!(right(setup).receivers, Receivers { has_queue, has_webhook, get_keys });
    }
    let data_set = whole.clone().bound("METRICS", Binding::Other);
    let sampled = data_set.clone().text("TOLLGATE_METRICS_SAMPLE", "0.25");
    let as_number = data_set.clone().json("TOLLGATE_METRICS_SAMPLE", "0.25");
    let namespace = whole.clone().bound("METRICS", Binding::Namespace);
    for (deployed, sample) in
        [(whole.clone(), 0.0), (data_set, 1.0), (sampled, 0.25), (as_number, 0.25), (namespace, 1.0)]
    {
        assert!((right(Setup::of_service(&deployed)).sample - sample).abs() < 1e-9);
    }
    let has_registry = |setup| Service::new(Ok(right(setup)), Rc::default()).has_registry();
    assert!(!has_registry(Setup::of_service(&whole)) && !has_registry(Setup::of_binding(&whole)));
    let registered = whole.bound("REGISTRY", Binding::Namespace);
    assert!(has_registry(Setup::of_service(&registered)) && has_registry(Setup::of_binding(&registered)));
    assert!(has_registry(trusting(&registered, None)));
    assert!(!has_registry(trusting(&registered, Some("{}"))), "policies in code are changed in the code");
}

#[test]
fn an_object_reports_errors_in_its_deployments_policies_and_goes_on_without() {
    let deployed = |json: &str| Deployed::default().json("POLICIES", json);
    let (policies, errors) = own_policies(&Deployed::default());
    assert_eq!((policies.iter().count(), errors.len()), (0, 0));
    let (policies, errors) = own_policies(&deployed(r#"{"of an object":"10/1m"}"#));
    assert_eq!((policies.iter().count(), errors.len()), (0, 1), "{errors:?}");
    let (policies, errors) = own_policies(&deployed(r#"{"of-an-object":"10/1m"}"#));
    assert_eq!((policies.iter().count(), errors.len()), (1, 0));
}

/// An application's rollback must undo everything: memory is never ahead of storage, whatever the policies say.
#[test]
fn inside_an_object_all_is_written_nothing_remembered_and_its_own_key_the_default() {
    let policies = r#"{
        "mails": {"rate":"10/1m","lease":"10s","refusal_cache":"1m","write_ahead":7},
        "wide": {"rate":"80/1m","shards":4},
        "tried": {"limits":[{"name":"a","rate":"10/1m"},{"name":"b","rate":"10/1m","mode":"shadow"}]},
        "all": {"rate":"10/1m","key":[]}
    }"#;
    let service = Service::new(Ok(right(Setup::inside("the-id", policies))), Rc::default());
    let names = Names::without_secret();
    let object = |key: &str| names.object_name(key.as_bytes());
    for (body, keys) in [
        (r#"{"policy":"mails"}"#, vec!["the-id"]),
        (r#"{"policy":"mails","key":"other"}"#, vec!["other"]),
        (r#"{"policy":"tried"}"#, vec!["the-id"]),
        (r#"{"policy":"wide"}"#, vec!["the-id"]),
        (r#"{"policy":"plan","limits":"10/1m"}"#, vec!["the-id"]),
        (r#"{"policy":"plan","limits":[{"name":"a","rate":"10/1m","write_ahead":7}]}"#, vec!["the-id"]),
        (r#"{"requests":[{"policy":"mails"},{"policy":"mails","key":"b"},{"policy":"tried"}]}"#, vec!["the-id", "b"]),
    ] {
        let url = if body.contains("requests") { "/v1/batch" } else { "/v1/consume" };
        let asked = Asked { url, body: body.as_bytes(), ..Asked::default() };
        let Step::Call(mut call) = service.ask(&asked, NOW, &mut || Some(9)) else { panic!("{body}") };
        let mut found: Vec<_> = (0..call.count()).map(|index| call.object(index).to_owned()).collect();
        let mut expected: Vec<_> = keys.iter().map(|key| object(key)).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{body}");
        assert!(call.next(NOW).unwrap().dialect.has_definitions, "no object has policies in code");
        for index in 0..call.count() {
            for policy in call.policies_of(index) {
                let limits = policy.limits().iter().chain(policy.shadow_limits());
                assert!(limits.clone().count() > 0 && limits.clone().all(|limit| limit.write_ahead() == 0), "{body}");
                let terms = (policy.frontend().lease, policy.frontend().refusal_cache_ms, policy.declared_shards());
                assert_eq!(terms, (None, 0, 1), "{body}");
            }
        }
    }
    // One budget for all has no key.
    let asked = Asked { url: "/v1/consume", body: br#"{"policy":"all"}"#, ..Asked::default() };
    let Step::Call(call) = service.ask(&asked, NOW, &mut || Some(9)) else { panic!("not asked") };
    assert_ne!(call.object(0), object("the-id"));
    let asked = Asked { body: br#"{"policy":"all","key":"a"}"#, ..asked };
    let Step::Reply(reply) = service.ask(&asked, NOW, &mut || Some(9)) else { panic!("it takes no key") };
    assert_eq!(answer(reply).status, 400);
    let errors = wrong(Setup::inside("the-id", r#"{"mails":{"rate":"10/1m","lease":"never"}}"#));
    assert!(errors.lines[0].starts_with("policies.mails.lease: "), "{:?}", errors.lines);
}

#[test]
fn a_registry_adopts_its_own_deployments_policies() {
    let disk = Disk::default();
    let mut service = disk.service(START, 1);
    for (deployed, is_right, writes) in [
        (Deployed::whole().without("POLICIES"), true, 0), // it does not know policies in code
        (Deployed::whole().json("POLICIES", "[]"), false, 0),
        (Deployed::whole(), true, 1),
        (Deployed::whole(), true, 1), // they are known
    ] {
        assert_eq!(service.beat(&deployed, START).unwrap().is_ok(), is_right);
        assert_eq!(disk.writes(), writes);
    }
}
