//! Walks through larger worlds, in which anything may meet anything: requests of every kind, changes of a policy and of a key's override, and
//! faults, in random order. There is no model; what holds of every answer is checked in `world.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use tollgate::policy::Policies;

use super::random::{self, Random};
use super::world::{ANY, Ask, Event, Fault, Plan, Step, World};

#[test]
fn each_answer_says_what_was_done_whatever_meets() {
    random::cases(1_500, |random| {
        let (plan, mut history) = (plan(random), Vec::new());
        let walked = catch_unwind(AssertUnwindSafe(|| walk(&plan, random, &mut history)));
        if let Err(panic) = walked {
            eprintln!("{plan:#?}\nafter {history:?}");
            resume_unwind(panic);
        }
    });
}

/// A walk ends at the latest after this many events.
const MAX_EVENTS: usize = 250;

fn walk(plan: &Plan, random: &mut Random, history: &mut Vec<Event>) {
    let deployments: Vec<_> = plan.frontends.iter().map(|text| Arc::new(Policies::parse(text).unwrap())).collect();
    let mut world = World::new(plan, &deployments);
    while history.len() < MAX_EVENTS {
        let events = world.events(plan, plan.max_faults);
        if events.is_empty() {
            break;
        }
        let event = loop {
            let event = &events[random.below(events.len())];
            let once_in = match event {
                Event::Next(_) | Event::Arrive(_) => 1,
                Event::Tick => 4,
                Event::Fault(..) => 12, // there is one at each message
            };
            if random.once_in(once_in) {
                break event.clone();
            }
        };
        history.push(event.clone());
        world.step(plan, &event);
    }
}

fn plan(random: &mut Random) -> Plan {
    let (has_registry, is_inline) = (!random.once_in(4), random.once_in(3));
    let (first, second) = (deployment(random, !is_inline), deployment(random, true));
    let third = if random.once_in(2) { second } else { deployment(random, true) };
    let requests =
        |random: &mut Random| &*(0..12).map(|_| Step::Ask(ask(random, is_inline))).collect::<Vec<_>>().leak();
    let polls = if random.once_in(2) { 0..3 } else { 0..0 }; // or the registry is not known at first
    let changes = polls.map(Step::Poll).chain((0..10).map(|_| change(random))).collect::<Vec<_>>().leak();
    let mut clients = vec![requests(random), requests(random)];
    clients.extend(has_registry.then_some(&*changes));
    Plan {
        name: "a walk",
        frontends: vec![first, second, third].leak(),
        has_registry,
        clients: clients.leak(),
        moments: &[0, 300, 1_500, 900, 4_000, 4_200, 90_000, 20_000, 26_000],
        faults: &[Fault::Crash, Fault::Evict, Fault::Late, Fault::Again],
        max_faults: 4,
        limits: &[],
    }
}

/// The policies of a deployment. Without `p`, requests may bring its limits.
fn deployment(random: &mut Random, has_p: bool) -> &'static str {
    let p = if has_p { format!(r#","p":{}"#, policy(random)) } else { String::new() };
    leaked(format!(r#"{{"q":{{"rate":5,"period":"1s","write_ahead":1}}{p}}}"#))
}

fn policy(random: &mut Random) -> String {
    let bucket = format!(r#""rate":{},"period":"1s","capacity":8,"write_ahead":3"#, 1 + random.below(3));
    let window = r#""kind":"fixed_window","offset":"0s","rate":6,"period":"2s","write_ahead":2,"max_debt":6"#;
    let first_use = window.replace("0s", "first_use");
    let calendar = r#""kind":"fixed_window","calendar":"day","rate":6,"write_ahead":2,"max_debt":6"#;
    let rolling = r#""kind":"rolling_window","rate":6,"period":"2s","grains":4,"write_ahead":2"#;
    let slots = r#""name":"at_once","kind":"slots","capacity":2"#;
    let limits = match random.below(12) {
        0 => format!(r#"{bucket},"max_debt":6"#),
        1 => window.to_owned(),
        2 => format!(r#""limits":[{{"name":"a",{bucket},"max_debt":6}},{{"name":"s",{bucket},"mode":"shadow"}}]"#),
        3 => format!(r#""limits":[{{"name":"a",{bucket},"max_debt":6}},{{"name":"b",{window}}}]"#),
        4 => format!(r#""limits":[{{{slots}}},{{"name":"a",{bucket},"max_debt":6}}]"#),
        5 => format!(r#""limits":[{{{slots}}},{{"name":"b",{first_use}}}]"#),
        6 => calendar.to_owned(),
        7 => format!(r#""limits":[{{{slots}}},{{"name":"b",{calendar}}}]"#),
        8 => format!(r#""limits":[{{"name":"b",{rolling}}},{{"name":"s",{rolling},"mode":"shadow"}}]"#),
        9 | 10 => {
            // Soft limits have no `max_debt`.
            let soft = |fields: &str| fields.replace(r#","max_debt":6"#, "");
            let soft = &[bucket.clone(), soft(window), soft(&first_use), soft(calendar)][random.below(4)];
            let beside = [&format!(r#""name":"a",{bucket}"#), slots, &format!(r#""name":"a",{rolling}"#)];
            match random.below(4) {
                3 => format!(r#"{soft},"mode":"soft""#),
                which => format!(r#""limits":[{{{}}},{{"name":"b",{soft},"mode":"soft"}}]"#, beside[which]),
            }
        }
        _ => {
            return format!(r#"{{{bucket},"shards":2,"carry":"as_is"}}"#);
        }
    };
    let carry = ["as_is", "proportional", "additive"][random.below(3)];
    let has_none = ["slots", "rolling", "soft"].iter().any(|word| limits.contains(word));
    let refuses = limits.contains("\"limits\"") || !limits.contains("soft");
    let extra = match random.below(3) {
        0 if refuses => r#""ban":{"after":2,"within":"5s","for":"1s","max":"20s"},"#,
        _ if has_none => "",
        _ => r#""lease":"2s","#,
    };
    let over = if limits.contains("soft") { r#","over""# } else { "" };
    let terms = format!(r#""unsettled":"refund","reservation_ttl":"1s","notify":["50%","80%","refused"{over}]"#);
    format!(r#"{{{limits},"carry":"{carry}",{extra}{terms}}}"#)
}

/// What an operator does.
fn change(random: &mut Random) -> Step {
    const OVERRIDES: [&[&str]; 5] = [
        &[r#"{"overrides":[{"policy":"p","key":"k","multiple":2}]}"#],
        &[r#"{"overrides":[{"policy":"p","key":"k","multiple":0.5}]}"#],
        &[r#"{"overrides":[{"policy":"p","key":"k","banned":true}]}"#],
        &[r#"{"overrides":[{"policy":"p","key":"k","unlimited":true}]}"#],
        &[r#"{"removed":[{"policy":"p","key":"k"}]}"#],
    ];
    match random.below(10) {
        0 => Step::Put(&[DELETED], 1),
        1 => Step::PutAnew(leaked(policy(random))),
        2..4 => Step::Put(vec![leaked(policy(random))].leak(), 1),
        4..7 => Step::Override(OVERRIDES[random.below(OVERRIDES.len())], 1),
        _ => Step::Poll(random.below(3)),
    }
}

/// The text of a policy that is deleted.
const DELETED: &str = "";

fn ask(random: &mut Random, is_inline: bool) -> Ask {
    let (frontend, cost) = (random.below(3), Some(if random.once_in(2) { 1 } else { 3 }));
    let limits = match random.below(9) {
        _ if !is_inline || frontend > 0 => "",
        0 => r#","limits":"6/2s""#,
        1 | 2 => r#","limits":{"rate":3,"period":"1s","capacity":8,"max_debt":6,"write_ahead":3}"#,
        3 => r#","limits":{"kind":"fixed_window","rate":6,"period":"2s","max_debt":6}"#,
        4 => r#","limits":{"kind":"fixed_window","offset":"first_use","rate":6,"period":"2s","max_debt":6}"#,
        5 => r#","limits":{"kind":"slots","capacity":2}"#,
        6 => r#","limits":{"kind":"fixed_window","calendar":"day","rate":6,"max_debt":6}"#,
        _ => "",
    };
    let (url, cost, more, idempotency_key) = match random.below(24) {
        0 | 23 => ("/v1/consume", Some(2), "", Some("order")),
        1 => ("/v1/refund", Some(2), "", Some("refund")),
        2 => ("/v1/refund", cost, "", None),
        3 => ("/v1/reset", None, "", None),
        4 => ("/v1/charge", cost, "", None),
        5 => ("/v1/consume", cost, r#","mode":"up_to""#, None),
        6 => ("/v1/consume", Some(5), r#","mode":"borrow""#, None),
        7 | 8 => ("/v1/consume", cost, r#","mode":"reserve","max_wait_ms":0"#, None),
        9 => ("/v1/consume", Some(5), r#","mode":"reserve""#, None),
        10 | 11 => ("/v1/settle", Some(1), CLOSED, None),
        12 => ("/v1/cancel", None, CLOSED, None),
        13 | 14 => ("/v1/extend", Some(1), CLOSED, None),
        15 => ("/v1/lease", None, r#","tokens":2"#, None),
        16 => ("/v1/lease", None, r#","returned":[{"lease":"$","spent":1}]"#, None),
        17 => ("/v1/batch", None, r#"{"policy":"q","key":"k"}"#, None),
        18 => ("/v1/batch", None, r#"{"policy":"q","key":"l"}"#, None),
        _ => ("/v1/consume", cost, "", None),
    };
    let more = match url {
        "/v1/batch" => leaked(format!(r#"{{"policy":"p","key":"k"{limits}}},{more}"#)),
        "/v1/lease" => more,
        _ => leaked(format!("{more}{limits}")),
    };
    Ask { frontend, url, key: "k", cost, more, idempotency_key, or: ANY }
}

const CLOSED: &str = r#","reservation":"$""#;

fn leaked(text: String) -> &'static str {
    text.leak()
}
