//! Notices: requested from objects only with a receiver, which sees keys only if configured.

use serde_json::Value;
use tollgate::api::Notice;
use tollgate::edge::Receiver;
use tollgate::frontend::{Asked, Left, Receivers};

use super::world::{ADJUSTER, CONSUMER, Deployment, World};

const POLICIES: &str = r#"{"loud":{"rate":"2/1m","notify":["refused"]},"quiet":"2/1m"}"#;

const NONE: Receivers = Receivers { has_queue: false, has_webhook: false, get_keys: false };
const QUEUE: Receivers = Receivers { has_queue: true, ..NONE };
const WEBHOOK: Receivers = Receivers { has_webhook: true, ..NONE };

#[test]
fn each_receiver_gets_a_notice_with_only_what_it_may_know() {
    use Receiver::{Queue, Webhook};
    let both = Receivers { has_queue: true, get_keys: true, ..WEBHOOK };
    for (receivers, policy, expected) in [
        (NONE, "loud", &[][..]),
        (Receivers { get_keys: true, ..NONE }, "loud", &[]),
        (QUEUE, "loud", &[(Queue, None)]),
        (WEBHOOK, "loud", &[(Webhook, None)]),
        (both, "loud", &[(Queue, Some("k")), (Webhook, Some("k"))]),
        (both, "quiet", &[]),
    ] {
        let mut world = World::of(&Deployment { policies: POLICIES, receivers, ..Deployment::default() });
        assert_eq!(world.service.has_receivers(), receivers.has_queue || receivers.has_webhook);
        let body = format!(r#"{{"policy":"{policy}","key":"k","cost":2}}"#);
        let asked =
            Asked { url: "/v1/consume", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        for is_refused in [false, true] {
            let mut call = world.begin(&asked).ok().unwrap();
            world.carry_out(&mut call);
            let has_consequences = receivers.is_any() && policy == "loud";
            assert_eq!(world.asked.last().unwrap().has_consequences, has_consequences);
            call.reply(world.now());
            let data = |(to, notice): (Receiver, Notice)| (to, data_of(&notice));
            let notices: Vec<_> = call.notices().into_iter().map(data).collect();
            assert!(call.notices().is_empty(), "they are sent once");
            let keys: Vec<_> = notices.iter().map(|(to, data)| (*to, data["key"].as_str())).collect();
            assert_eq!(keys, if is_refused { expected } else { &[] }, "{receivers:?}");
        }
    }
}

/// Data points are written from the call, and so are due notices; then the reply is not all that is left.
#[test]
fn a_call_with_a_report_to_make_needs_more_than_its_reply() {
    for (sample, policy, receivers, expected) in [
        (0.0, "loud", NONE, [Left::Reply, Left::Reply]),
        (0.0, "quiet", QUEUE, [Left::Reply, Left::Reply]),
        (0.0, "loud", QUEUE, [Left::Reply, Left::ReplyAndMore]), // the refusal gives a notice
        (0.1, "quiet", NONE, [Left::ReplyAndMore, Left::ReplyAndMore]),
    ] {
        let mut world = World::of(&Deployment { policies: POLICIES, receivers, sample, ..Deployment::default() });
        let body = format!(r#"{{"policy":"{policy}","key":"k","cost":2}}"#);
        let asked =
            Asked { url: "/v1/consume", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        for expected in expected {
            let mut call = world.begin(&asked).ok().unwrap();
            let next = call.next(world.now()).unwrap();
            let answer = world.object_reply(&call, &next);
            assert_eq!(call.answered(next.object, Some(answer), world.now()), expected, "{policy} {sample}");
        }
        // A refusal from memory gives no notice.
        let mut call = world.begin(&asked).ok().unwrap();
        assert!(call.next(world.now()).is_none());
        assert_eq!(call.only_reply(world.now()).is_some(), sample == 0.0, "{policy} {sample}");
    }
}

/// The data of the notices of a request about `loud`, which is carried out.
fn noticed(world: &mut World, url: &str, authorization: &str, cost: u64) -> Vec<Value> {
    let body = format!(r#"{{"policy":"loud","key":"k","cost":{cost}}}"#);
    let asked = Asked { url, authorization: Some(authorization), body: body.as_bytes(), ..Asked::default() };
    let mut call = world.begin(&asked).ok().unwrap();
    world.carry_out(&mut call);
    call.reply(world.now());
    call.notices().iter().map(|(_, notice)| data_of(notice)).collect()
}

fn data_of(notice: &Notice) -> Value {
    serde_json::from_str::<Value>(&notice.body).unwrap()["data"].take()
}

/// It is no decision, so that it is not counted.
#[test]
fn a_charge_that_leaves_little_gives_a_notice() {
    let policies = r#"{"loud":{"rate":"2/1m","max_debt":9,"notify":["80%"]}}"#;
    let mut world = World::of(&Deployment { policies, receivers: WEBHOOK, ..Deployment::default() });
    let notices = noticed(&mut world, "/v1/charge", ADJUSTER, 5);
    let numbers = |data: &Value| [&data["cost"], &data["remaining"], &data["owed"]].map(Value::as_u64);
    assert_eq!(notices.iter().map(numbers).collect::<Vec<_>>(), [[Some(5), Some(0), Some(3)]]);
    assert_eq!(world.counted()["policies"]["loud"], Value::Null);
}

#[test]
fn a_notice_says_that_its_key_is_banned() {
    let deployment = Deployment { policies: POLICIES, receivers: WEBHOOK, has_registry: true, ..Deployment::default() };
    let mut world = World::of(&deployment);
    world.refresh();
    world.set(r#"{"policy":"loud","key":"k","banned":true}"#);
    let notices = noticed(&mut world, "/v1/consume", CONSUMER, 1);
    assert_eq!(notices.iter().map(|data| &data["banned"]).collect::<Vec<_>>(), [true]);
}

/// Giving back lowers no level.
#[test]
fn only_requests_that_lower_a_level_give_notices() {
    for (url, wants) in [("/v1/consume", true), ("/v1/charge", true), ("/v1/peek", false), ("/v1/refund", false)] {
        let deployment = Deployment { policies: POLICIES, receivers: QUEUE, ..Deployment::default() };
        let mut world = World::of(&deployment);
        let authorization = Some(if ["/v1/charge", "/v1/refund"].contains(&url) { ADJUSTER } else { CONSUMER });
        let body = br#"{"policy":"loud","key":"k"}"#;
        world.ask(&Asked { url, authorization, body, ..Asked::default() });
        assert_eq!(world.asked.last().unwrap().has_consequences, wants, "{url}");
    }
}
