//! What a Worker is deployed with, right and wrong.

use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate::access::Names;
use tollgate::api::Missing;
use tollgate::frontend::{
    Asked, Binding, Environment, Receivers, Service, Settings, SettingsErrors, Setup, Step, Variable, own_policies,
};

use super::world::{START, answer};
use tollgate::frontend::Now;

const NOW: Now = Now { at: START, waiting: START };

#[derive(Clone, Default)]
struct Deployed {
    variables: BTreeMap<&'static str, Variable>,
    bindings: BTreeMap<&'static str, Binding>,
}

impl Deployed {
    /// A service that lacks nothing.
    fn whole() -> Self {
        let policies = Variable::Json(r#"{"api":{"rate":"10/1m","notify":["refused"]}}"#.to_owned());
        Self::default()
            .with("POLICIES", policies)
            .text("TOLLGATE_KEY_SECRET", "a-secret-of-thirty-two-characters")
            .text("TOLLGATE_TOKEN", "a-token-of-thirty-two-characters-or-more")
            .bound("KEYS", Binding::Namespace)
    }

    fn with(mut self, name: &'static str, variable: Variable) -> Self {
        self.variables.insert(name, variable);
        self
    }

    fn text(self, name: &'static str, text: &str) -> Self {
        self.with(name, Variable::Text(text.to_owned()))
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
    right(Setup::of_binding(&whole.clone().without("TOLLGATE_TOKEN").without("TOLLGATE_KEY_SECRET")));
    assert_eq!(beginnings(&wrong(Setup::of_binding(&bare))), ["KEYS", "POLICIES"]);
    // Those who have it in their own program say where the objects are, and may bring the policies.
    right(Setup::trusting(&whole.clone().without("KEYS"), None));
    assert_eq!(beginnings(&wrong(Setup::trusting(&bare, None))), ["POLICIES"]);
    for in_code in ["{}", r#"{"api":"10/1m"}"#] {
        right(Setup::trusting(&bare, Some(in_code)));
    }
    let errors = wrong(Setup::trusting(&bare, Some(r#"{"api":"ten"}"#)));
    assert!(errors.lines[0].starts_with("policies.api.rate: "), "it is no variable: {:?}", errors.lines);
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let deployed = Deployed::whole()
        .text("POLICIES", "ten a minute")
        .text("TOLLGATE_METRICS_SAMPLE", "2")
        .text("TOLLGATE_WEBHOOK_URL", "http://example.com")
        .text("TOLLGATE_NOTICE_KEYS", "yes")
        .text("TOLLGATE_KEY_SECRET", "short")
        .text("TOLLGATE_TOKEN", "short")
        .bound("REGISTRY", Binding::Other);
    let lines = wrong(Setup::of_service(&deployed)).lines;
    for name in [
        "POLICIES",
        "TOLLGATE_METRICS_SAMPLE",
        "TOLLGATE_WEBHOOK_URL",
        "TOLLGATE_NOTICE_KEYS",
        "TOLLGATE_KEY_SECRET",
        "TOLLGATE_TOKEN",
        "REGISTRY",
    ] {
        assert_eq!(
            lines.iter().filter(|line| line.split([':', ' ']).any(|word| word == name)).count(),
            1,
            "{name}: {lines:#?}"
        );
    }
    let secret = Deployed::whole().with("TOLLGATE_KEY_SECRET", Variable::Json("7".to_owned()));
    assert_eq!(wrong(Setup::of_binding(&secret)).lines, ["TOLLGATE_KEY_SECRET must be text"]);
}

#[test]
fn notices_data_points_and_the_registry_are_for_those_who_have_somewhere_to_put_them() {
    let webhook = |deployed: Deployed| {
        deployed
            .text("TOLLGATE_WEBHOOK_URL", "https://example.com/notices")
            .text("TOLLGATE_WEBHOOK_SECRET", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
    };
    let queue = |deployed: Deployed| deployed.bound("NOTICES", Binding::Other);
    let keys = |deployed: Deployed| deployed.text("TOLLGATE_NOTICE_KEYS", "true");
    let whole = Deployed::whole();
    for (deployed, receivers, has_webhook) in [
        (whole.clone(), Receivers::None, false),
        (keys(whole.clone()), Receivers::None, false),
        (webhook(whole.clone()), Receivers::OfHashes, true),
        (queue(whole.clone()), Receivers::OfHashes, false),
        (keys(webhook(whole.clone())), Receivers::OfKeys, true),
        (keys(queue(whole.clone())), Receivers::OfKeys, false),
    ] {
        let setup = Setup::of_service(&deployed);
        assert_eq!(setup.webhook.is_some(), has_webhook);
        let is_remarked = setup.remarks.iter().any(|line| line.starts_with("policies have notices, but"));
        assert_eq!(is_remarked, receivers == Receivers::None, "{:?}", setup.remarks);
        assert_eq!(right(setup).receivers, receivers);
    }
    let data_set = whole.clone().bound("METRICS", Binding::Other);
    let sampled = data_set.clone().text("TOLLGATE_METRICS_SAMPLE", "0.25");
    for (deployed, sample) in [(whole.clone(), 0.0), (data_set, 1.0), (sampled, 0.25)] {
        assert!((Setup::of_service(&deployed).sample - sample).abs() < 1e-9);
    }
    let registered = whole.bound("REGISTRY", Binding::Namespace);
    let has_registry = |setup| right(setup).registry.is_some();
    assert!(has_registry(Setup::of_service(&registered)) && has_registry(Setup::of_binding(&registered)));
    assert!(has_registry(Setup::trusting(&registered, None)));
    assert!(!has_registry(Setup::trusting(&registered, Some("{}"))), "policies in code are changed in the code");
}

#[test]
fn an_object_says_what_is_wrong_with_the_policies_of_its_deployment_and_goes_on_without() {
    let deployed = |json: &str| Deployed::default().with("POLICIES", Variable::Json(json.to_owned()));
    let (policies, errors) = own_policies(&Deployed::default());
    assert_eq!((policies.iter().count(), errors.len()), (0, 0));
    let (policies, errors) = own_policies(&deployed(r#"{"of an object":"10/1m"}"#));
    assert_eq!((policies.iter().count(), errors.len()), (0, 1), "{errors:?}");
    let (policies, _) = own_policies(&deployed(r#"{"of-an-object":"10/1m"}"#));
    assert_eq!(policies.iter().count(), 1);
}

/// What an application rolls back must be undone: nothing is ahead of its storage, whatever its policies say.
#[test]
fn inside_an_object_everything_is_written_nothing_is_remembered_and_its_own_key_is_the_default() {
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
