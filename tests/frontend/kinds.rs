//! What each kind of limit can do: the table in docs/policies.md, row by row.

use std::collections::BTreeMap;

use tollgate::frontend::{Asked, Callers, Settings};
use tollgate::policy::Policies;

use super::world::{Answer, CONSUMER, Deployment, World, settings};

/// A policy of each kind, without its braces. Each allows 10.
const KINDS: [(&str, &str); 6] = [
    ("token bucket", r#""rate":10,"period":"1m""#),
    ("fixed window", r#""kind":"fixed_window","rate":10,"period":"1m""#),
    ("calendar", r#""kind":"fixed_window","rate":10,"calendar":"day""#),
    ("from first use", r#""kind":"fixed_window","rate":10,"period":"1m","offset":"first_use""#),
    ("rolling", r#""kind":"rolling_window","rate":10,"period":"1m""#),
    ("slots", r#""kind":"slots","capacity":10"#),
];

/// The rows of the table, each with its answers in the order of its columns.
fn table() -> BTreeMap<String, Vec<bool>> {
    let page = include_str!("../../docs/policies.md");
    let (_, section) = page.split_once("### What each kind can do\n").unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut rows = rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let head = rows.next().unwrap();
    assert_eq!(head[1..], KINDS.map(|(kind, _)| kind));
    let is_yes = |cell: &&str| match *cell {
        "yes" => true,
        "no" => false,
        other => panic!("{other}"),
    };
    rows.skip(1).map(|row| (row[0].to_owned(), row[1..].iter().map(is_yes).collect())).collect()
}

/// How a policy can be refused: by its reader, or a request under it.
enum Probe {
    Fields(&'static str),
    Request(&'static str, &'static str),
    /// A reservation, and what follows it.
    Reservation(&'static [&'static str]),
    /// A second request, in this mode, for what is not there yet.
    Ahead(&'static str),
    /// A reservation with the limit in the request.
    Inline,
    /// More for one key.
    Override,
}

/// What a row says, tried one by one.
const PROBES: [(&str, &[Probe]); 10] = [
    (
        "`consume` without a reservation; `borrow`, `up_to`; `charge`, `refund`, `reset`, `credit`; batches",
        &[
            Probe::Request("/v1/consume", r#"{"policy":"p","key":"k","cost":1}"#),
            Probe::Request("/v1/consume", r#"{"policy":"p","key":"k","cost":1,"mode":"borrow"}"#),
            Probe::Request("/v1/consume", r#"{"policy":"p","key":"k","cost":1,"mode":"up_to"}"#),
            Probe::Request("/v1/charge", r#"{"policy":"p","key":"k","cost":1}"#),
            Probe::Request("/v1/refund", r#"{"policy":"p","key":"k","cost":1}"#),
            Probe::Request("/v1/reset", r#"{"policy":"p","key":"k"}"#),
            Probe::Request("/v1/keys/credit", r#"{"policy":"p","key":"k","cost":1}"#),
            Probe::Request("/v1/batch", r#"{"requests":[{"policy":"p","key":"a"},{"policy":"p","key":"b"}]}"#),
        ],
    ),
    (
        "`reserve`, `extend`, `settle`, `cancel`; overrides, `shadow`, `notify`, `ban`, `refusal_cache`",
        &[
            Probe::Reservation(&["/v1/extend", "/v1/settle"]),
            Probe::Reservation(&["/v1/cancel"]),
            Probe::Override,
            Probe::Fields(r#""mode":"shadow""#),
            Probe::Fields(r#""notify":["refused"]"#),
            Probe::Fields(r#""ban":{"after":1,"within":"1s","for":"1s"}"#),
            Probe::Fields(r#""refusal_cache":"5s""#),
            Probe::Fields(r#""key":[]"#),
            Probe::Fields(r#""unsettled":"refund""#),
        ],
    ),
    ("limits in requests", &[Probe::Inline]),
    ("`reserve` and `borrow` of what comes back later", &[Probe::Ahead("reserve"), Probe::Ahead("borrow")]),
    ("`max_debt`", &[Probe::Fields(r#""max_debt":5"#)]),
    ("`write_ahead`, `on_error`", &[Probe::Fields(r#""write_ahead":2"#), Probe::Fields(r#""on_error":"open""#)]),
    ("`initial`", &[Probe::Fields(r#""initial":3"#)]),
    ("`offset` in time", &[Probe::Fields(r#""offset":"5s""#)]),
    ("`lease`", &[Probe::Fields(r#""lease":"1s""#)]),
    ("`shards`", &[Probe::Fields(r#""shards":2"#)]),
];

impl Probe {
    /// Whether it works with a limit of this kind; a refusal says why.
    fn works(&self, kind: &str, limit: &str) -> Result<(), String> {
        let policy = |more: &str| format!(r#"{{"p":{{{limit}{more}}}}}"#);
        let taken = |cost: u64| format!(r#"{{"policy":"p","key":"k","cost":{cost},"mode":"reserve"}}"#);
        let deployment = Deployment { policies: &policy(""), has_registry: true, ..Deployment::default() };
        let mut world = World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) });
        let passes = |answer: Answer| if answer.status == 200 { Ok(()) } else { Err(answer.reply.body()) };
        match *self {
            Self::Fields(fields) => {
                Policies::parse(&policy(&format!(",{fields}"))).map(drop).map_err(|errors| errors.to_string())
            }
            Self::Request(url, body) => passes(world.post(url, body)),
            Self::Reservation(then) => {
                let reserved = world.post("/v1/consume", &taken(1));
                let body = format!(r#"{{"policy":"p","key":"k","reservation":{}}}"#, reserved.body["reservation"]);
                passes(reserved)?;
                then.iter().try_for_each(|url| passes(world.post(url, &body)))
            }
            Self::Ahead(mode) => {
                let debt = if ["slots", "rolling"].contains(&kind) { "" } else { r#","max_debt":5"# };
                world.deploy(&policy(debt));
                passes(world.post("/v1/consume", &taken(10)))?;
                passes(world.post("/v1/consume", &taken(1).replace("reserve", mode)))
            }
            Self::Inline => {
                let own = format!(r#"{{"policy":"own","key":"k","limits":{{{limit}}},"mode":"reserve"}}"#);
                passes(world.post("/v1/consume", &own))
            }
            Self::Override => {
                world.refresh();
                world.set(r#"{"policy":"p","key":"k","multiple":2}"#);
                let answer = world.post("/v1/consume", &taken(20));
                assert_eq!(answer.body["limit"], 20, "{kind}");
                passes(answer)
            }
        }
    }
}

#[test]
fn each_kind_can_do_what_the_documents_say() {
    let mut table = table();
    for (row, probes) in PROBES {
        let answers = table.remove(row).unwrap_or_else(|| panic!("the documents have no row {row}"));
        for ((kind, limit), documented) in KINDS.into_iter().zip(answers) {
            for probe in probes {
                let found = probe.works(kind, limit);
                assert_eq!(found.is_ok(), documented, "{row}, {kind}: {found:?}");
            }
        }
    }
    assert!(table.is_empty(), "nothing tries {table:?}");
}

/// Where both count tokens.
#[test]
fn what_is_spent_stays_spent_under_a_policy_of_another_kind() {
    for (before, old) in &KINDS[..5] {
        for (after, new) in &KINDS[..5] {
            let mut world = World::new(&format!(r#"{{"p":{{{old}}}}}"#));
            assert_eq!(world.post("/v1/consume", r#"{"policy":"p","key":"k","cost":4}"#).body["remaining"], 6);
            world.deploy(&format!(r#"{{"p":{{{new}}}}}"#));
            let left = &world.post("/v1/consume", r#"{"policy":"p","key":"k"}"#).body["remaining"];
            assert_eq!(*left, 5, "{before} becomes {after}");
        }
    }
}

/// Slots cost nothing in the end, so there is nothing to compare.
#[test]
fn a_settlement_is_repeated_after_its_limit_has_become_one_of_slots_or_back() {
    let tokens = r#"{"p":{"limits":[{"name":"a","rate":10,"period":"1m"}]}}"#;
    let slots = r#"{"p":{"limits":[{"name":"a","kind":"slots","capacity":3}]}}"#;
    for (before, after) in [(tokens, slots), (slots, tokens), (tokens, tokens), (slots, slots)] {
        let mut world = World::new(before);
        let reserved = world.post("/v1/consume", r#"{"policy":"p","key":"k","cost":{"a":2},"mode":"reserve"}"#);
        assert_eq!(reserved.status, 200, "{}", reserved.body);
        let settle = |cost: u64| {
            let id = &reserved.body["reservation"];
            format!(r#"{{"policy":"p","key":"k","reservation":{id},"cost":{{"a":{cost}}}}}"#)
        };
        let ask = |world: &mut World, cost| {
            let body = settle(cost);
            let asked = Asked { url: "/v1/settle", method: "POST", body: body.as_bytes(), ..Asked::default() };
            world.ask(&Asked { authorization: Some(CONSUMER), ..asked })
        };
        assert_eq!(ask(&mut world, 2).status, 200);
        world.deploy(after);
        let again = ask(&mut world, 2);
        assert_eq!((again.status, &again.body["replayed"]), (200, &true.into()), "{before} {after}: {}", again.body);
        // Another cost is another settlement, where costs count.
        let other = if before == tokens && after == tokens { 409 } else { 200 };
        assert_eq!(ask(&mut world, 1).status, other, "{before} {after}");
    }
}
