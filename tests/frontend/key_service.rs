//! The object of a key: its answers to texts.

use tollgate::frontend::{KeyService, SentRequest};
use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, Definitions, Format, Known, ObjectReply, ObjectRequest, Rows};

use super::asked::request;
use super::disk::Disk;
use super::environment::Deployed;
use super::world::START;

/// The object of a key in that deployment, and errors in its policies.
pub(crate) fn object(deployed: &Deployed) -> (KeyService<Disk>, Vec<String>) {
    KeyService::new(Disk::default(), "", Some(1), deployed).unwrap()
}

fn service(policies: &str) -> (KeyService<Disk>, Vec<String>) {
    object(&Deployed::default().json("POLICIES", policies))
}

fn consume(cost: u64) -> ObjectRequest {
    request(Action::Take(Verb::Consume), vec![vec![cost]])
}

fn sent(names: &str, request: &str, definitions: Option<String>) -> SentRequest {
    SentRequest { names: names.to_owned(), request: request.to_owned(), definitions }
}

fn asked(
    service: &mut KeyService<Disk>,
    names: &str,
    request: &str,
    definitions: Option<String>,
) -> Result<(ObjectReply, Rows), String> {
    let mut known = Definitions::new();
    let reply = service.decide(sent(names, request, definitions), &mut known, START, || Some(1));
    reply.map(|text| ObjectReply::from_text(&text).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn a_request_is_decided_under_the_definition_that_came_with_it_or_that_of_the_deployment() {
    let (mut service, errors) = service(r#"{"api":"10/1m"}"#);
    assert!(errors.is_empty());
    let policies = Policies::parse(r#"{"api":"10/1m","other":"5/1m"}"#).unwrap();
    let text = consume(3).to_text(Format::NEWEST);
    let [own, other] = ["api", "other"].map(|name| policies.get(name).unwrap());
    let mut remaining = |name: &str, definition| match asked(&mut service, name, &text, definition).unwrap().0 {
        ObjectReply::Decided(decided) => Some(decided.limits[0].remaining),
        ObjectReply::PolicyUnknown => None,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(remaining(own.wire_name(), None), Some(7));
    assert_eq!(remaining(own.wire_name(), None), Some(4));
    assert_eq!(remaining(other.wire_name(), None), None);
    assert_eq!(remaining(other.wire_name(), Some(other.definition())), Some(2));
    assert_eq!(remaining(own.wire_name(), None), Some(1));
}

/// Also if the request before it differs in nothing else.
#[test]
fn each_request_is_decided_under_the_version_that_it_names() {
    let (mut service, _) = service(r#"{"own":"1/1m"}"#);
    let versions = [r#"{"api":"20/1m"}"#, r#"{"api":"30/1m"}"#].map(|json| Policies::parse(json).unwrap());
    let [first, second] = versions.each_ref().map(|policies| policies.get("api").unwrap());
    let mut remaining = |id: Option<u64>, definition| {
        let known = id.map(|id| Known { as_of: 1, ids: vec![id] });
        let text = ObjectRequest { known, ..consume(1) }.to_text(Format::NEWEST);
        let mut sent = Definitions::new();
        for policy in [first, second] {
            let known = Known { as_of: 1, ids: vec![policy.id()] };
            let _ = sent.asked(&Policies::default(), policy.wire_name(), Some(&known), Some(&policy.definition()));
        }
        let request = self::sent(first.wire_name(), &text, definition);
        let reply = service.decide(request, &mut sent, START, || Some(1)).unwrap();
        match ObjectReply::from_text(&reply).unwrap().0 {
            ObjectReply::Decided(decided) => decided.limits[0].remaining,
            reply => panic!("{reply:?}"),
        }
    };
    assert_eq!(remaining(None, Some(first.definition())), 19);
    assert_eq!(remaining(None, Some(second.definition())), 28);
    assert_eq!(remaining(Some(first.id()), None), 17);
    assert_eq!(remaining(Some(second.id()), None), 26);
}

#[test]
fn a_reply_reports_the_rows_since_the_last_one() {
    let (mut service, _) = service(r#"{"api":"10/1m"}"#);
    let policies = Policies::parse(r#"{"api":"10/1m"}"#).unwrap();
    let name = policies.get("api").unwrap().wire_name();
    for (cost, written) in [(1, 2), (20, 0)] {
        let text = consume(cost).to_text(Format::NEWEST);
        assert_eq!(asked(&mut service, name, &text, None).unwrap().1, Rows { read: 0, written }, "{cost}");
    }
}

#[test]
fn unreadable_requests_and_rows_are_reported() {
    let (mut service, errors) = service(r#"{"api":"ten per minute"}"#);
    assert!(errors.iter().any(|error| error.contains("api")), "{errors:?}");
    let wrong = asked(&mut service, "api", &consume(1).to_text(Format::NEWEST).replace(' ', "x"), None);
    assert_eq!(wrong.unwrap_err(), "the request's numbers are malformed");
    let later = asked(&mut service, "api", "99 0 0", None).unwrap().0;
    assert_eq!(later, ObjectReply::FormatUnknown { newest: Format::NEWEST.number().into() });
    let question = service.inspect("how?", START).unwrap_err();
    assert_eq!(question.to_string(), "the question of a frontend cannot be read");
}

#[test]
fn without_randomness_there_is_no_object() {
    let made = |random| KeyService::new(Disk::default(), "", random, &Deployed::default());
    assert!(made(Some(0)).is_ok());
    assert_eq!(made(None).unwrap_err().to_string(), "there is no randomness");
}
