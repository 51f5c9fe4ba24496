//! Small worlds, in which everything that can happen is tried in every order, and random walks through larger ones.
//!
//! With `TOLLGATE_CASES=1`, one more fault happens in each small world, and two with more, as in `npm run soak`. There is no chance in them.

#[path = "../ledger/ban_model.rs"]
mod ban_model;
#[path = "../chance/mod.rs"]
mod chance;
#[allow(dead_code, reason = "of the ledger's tests, which need more of it")]
#[path = "../ledger/disk.rs"]
mod disk;
mod key;
mod model;
#[path = "../pairs/mod.rs"]
mod pairs;
#[path = "../edge/random.rs"]
mod random;
mod search;
#[path = "../chance/split_mix.rs"]
mod split_mix;
mod walks;
mod world;

use model::{Numbers, Refill};
use search::Search;
use world::{Ask, Bounds, Fault, Plan, Step};

const fn bucket(rate: i64, capacity: i64) -> Numbers {
    Numbers { rate, period_ms: 1_000, capacity, refill: Refill::Continuous }
}

/// Three tokens in each window.
const fn window(refill: Refill, period_ms: i64) -> Numbers {
    Numbers { rate: 3, period_ms, capacity: 3, refill }
}

const fn exact(limit: &'static str, numbers: Numbers) -> Bounds {
    Bounds { limit, laxest: numbers, strictest: Some(numbers), write_ahead: 0, is_slots: false }
}

const fn between(limit: &'static str, strictest: Numbers, laxest: Numbers) -> Bounds {
    Bounds { limit, laxest, strictest: Some(strictest), write_ahead: 0, is_slots: false }
}

/// A request of the key `k` at the first frontend.
const fn ask(url: &'static str, cost: i64) -> Ask {
    Ask { frontend: 0, url, key: "k", cost: Some(cost), more: "", idempotency_key: None, or: 429 }
}

const fn at(frontend: usize, ask: Ask) -> Step {
    Step::Ask(Ask { frontend, ..ask })
}

const fn with(more: &'static str, ask: Ask) -> Ask {
    Ask { more, ..ask }
}

const fn closing(url: &'static str, cost: Option<i64>) -> Step {
    Step::Ask(Ask { cost, more: r#","reservation":"$""#, or: 200, ..ask(url, 0) })
}

const fn put(texts: &'static [&'static str], times: usize) -> Step {
    Step::Put(texts, times)
}

static CRASHES: Plan = Plan {
    name: "a bucket, crashes and a clock that steps back",
    frontends: &[r#"{"p":{"rate":2,"period":"1s","capacity":3,"write_ahead":1,"refusal_cache":"0s"}}"#],
    has_registry: false,
    clients: &[&[at(0, ask("/v1/consume", 2)), at(0, ask("/v1/refund", 1))], &[at(0, ask("/v1/consume", 2))]],
    moments: &[0, 700, 200],
    faults: &[Fault::Crash, Fault::Evict],
    max_faults: 1,
    limits: &[Bounds { write_ahead: 1, ..exact("", bucket(2, 3)) }],
};

/// A consume that is repeated under its `Idempotency-Key`, beside a caller whose refusals are remembered.
static MESSAGES: Plan = Plan {
    name: "messages that are lost, late or repeated",
    frontends: &[r#"{"p":{"rate":1,"period":"1s","capacity":3,"write_ahead":0}}"#],
    has_registry: false,
    clients: &[&[at(0, ORDER), at(0, ORDER)], &[at(0, ask("/v1/consume", 2))]],
    moments: &[0, 1_500],
    faults: &[Fault::Late, Fault::Again, Fault::Crash],
    max_faults: 2,
    limits: &[exact("", bucket(1, 3))],
};

const ORDER: Ask = Ask { idempotency_key: Some("order"), ..ask("/v1/consume", 2) };

/// A limit leaves the policy and returns while its tokens are leased.
static RENAMED: Plan = Plan {
    name: "a leased limit that is renamed and named as before",
    frontends: &[A],
    has_registry: true,
    clients: &[
        &[at(0, with(r#","tokens":2"#, LEASE)), at(0, ask("/v1/consume", 2))],
        &[put(&[B], 1), Step::Poll(0), at(0, ask("/v1/consume", 1)), put(&[A_ALONE], 1), Step::Poll(0)],
    ],
    moments: &[0],
    faults: &[Fault::Crash, Fault::RegistryCrash],
    max_faults: 1,
    limits: &[exact("a", bucket(0, 4)), exact("b", bucket(0, 4))],
};

const A: &str = r#"{"p":{"limits":[{"name":"a","rate":0,"period":"1s","capacity":4,"write_ahead":0}],"lease":"10s","refusal_cache":"0s"}}"#;
const A_ALONE: &str = r#"{"limits":[{"name":"a","rate":0,"period":"1s","capacity":4,"write_ahead":0}],"lease":"10s","refusal_cache":"0s"}"#;
const B: &str = r#"{"limits":[{"name":"b","rate":0,"period":"1s","capacity":4,"write_ahead":0}],"lease":"10s","refusal_cache":"0s"}"#;
const LEASE: Ask = Ask { cost: None, ..ask("/v1/lease", 0) };

/// Without a registry, an older frontend does not know the limit `b`, whose tokens a newer one has leased.
static ROLL_OUT: Plan = Plan {
    name: "a roll-out that adds a limit, and a lease of it",
    frontends: &[
        r#"{"p":{"limits":[{"name":"a","rate":1,"period":"1s","capacity":9,"write_ahead":0}],"lease":"2s","refusal_cache":"0s"}}"#,
        r#"{"p":{"limits":[{"name":"a","rate":1,"period":"1s","capacity":9,"write_ahead":0},{"name":"b","rate":1,"period":"1s","capacity":4,"write_ahead":0}],"lease":"2s","refusal_cache":"0s"}}"#,
    ],
    has_registry: false,
    clients: &[
        &[
            at(1, with(r#","tokens":2"#, LEASE)),
            at(1, Ask { cost: None, more: r#","returned":[{"lease":"$","spent":1}]"#, ..LEASE }),
        ],
        &[at(0, ask("/v1/consume", 1)), at(1, ask("/v1/consume", 2))],
    ],
    moments: &[0, 6_000],
    faults: &[Fault::Crash],
    max_faults: 1,
    limits: &[exact("a", bucket(1, 9)), exact("b", bucket(1, 4))],
};

/// A key's override is set and removed again and again, with requests between or without any.
static OVERRIDES: Plan = Plan {
    name: "an override that is set and removed often",
    frontends: &[r#"{"p":{"rate":1,"period":"10s","capacity":4,"write_ahead":0,"refusal_cache":"0s"}}"#],
    has_registry: true,
    clients: &[
        &[at(0, ask("/v1/consume", 1)), Step::Poll(0), at(0, ask("/v1/consume", 1))],
        &[Step::Override(&[SET, REMOVED], 4), Step::Override(&[SET, REMOVED], 4), Step::Override(&[SET], 1)],
    ],
    moments: &[0, 20_000],
    faults: &[Fault::Crash, Fault::RegistryCrash],
    max_faults: 1,
    limits: &[between(
        "",
        Numbers { period_ms: 10_000, ..bucket(1, 4) },
        Numbers { period_ms: 10_000, ..bucket(2, 8) },
    )],
};

const SET: &str = r#"{"overrides":[{"policy":"p","key":"k","multiple":2}]}"#;
const REMOVED: &str = r#"{"removed":[{"policy":"p","key":"k"}]}"#;

/// More changes of a policy's numbers than its timeline keeps.
static NUMBERS: Plan = Plan {
    name: "numbers that change often",
    frontends: &[r#"{"p":{"rate":1,"period":"10s","capacity":4,"write_ahead":0,"refusal_cache":"0s"}}"#],
    has_registry: true,
    clients: &[
        &[at(0, ask("/v1/consume", 1)), Step::Poll(0), at(0, ask("/v1/consume", 1))],
        &[put(&[MORE, LESS], 34), put(&[MORE, LESS], 34)],
    ],
    moments: &[0, 20_000],
    faults: &[Fault::Crash],
    max_faults: 1,
    // A missing token is half a token at half the capacity, so a bucket may end up with one more than 8 hold.
    limits: &[between(
        "",
        Numbers { period_ms: 10_000, ..bucket(1, 4) },
        Numbers { period_ms: 10_000, ..bucket(2, 9) },
    )],
};

const MORE: &str = r#"{"rate":2,"period":"10s","capacity":8,"write_ahead":0,"refusal_cache":"0s","carry":"additive"}"#;
const LESS: &str =
    r#"{"rate":1,"period":"10s","capacity":4,"write_ahead":0,"refusal_cache":"0s","carry":"proportional"}"#;

/// A refund is repeated, and a reservation settled, when the budget has been divided.
static SHARDS: Plan = Plan {
    name: "shards that rise after a refund and a reservation",
    frontends: &[r#"{"p":{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s"}}"#],
    has_registry: true,
    clients: &[
        &[Step::Ask(Ask { or: 400, ..RESERVE }), closing("/v1/settle", Some(1))],
        &[at(0, REFUND), at(0, REFUND), at(0, Ask { cost: Some(1), or: 422, ..REFUND })],
        &[put(&[DIVIDED], 1), Step::Poll(0)],
    ],
    moments: &[0],
    // After a crash, a full object does not know how it was divided: until every frontend does, twice the capacity may be granted.
    faults: &[],
    max_faults: 0,
    limits: &[Bounds { strictest: None, ..exact("", bucket(1, 4)) }],
};

const DIVIDED: &str = r#"{"rate":1,"period":"1s","capacity":4,"shards":2,"write_ahead":0,"refusal_cache":"0s"}"#;
const REFUND: Ask = Ask { idempotency_key: Some("refund"), ..ask("/v1/refund", 2) };

const RESERVE: Ask = with(r#","mode":"reserve","max_wait_ms":0"#, ask("/v1/consume", 2));

/// A reservation is closed when the bucket has been full without it, and has been spent since, or after it has expired.
static LATE: Plan = Plan {
    name: "a reservation that is settled late",
    frontends: &[EXPIRING],
    has_registry: false,
    clients: &[
        &[at(0, RESERVE), closing("/v1/settle", Some(1))],
        &[at(0, ask("/v1/consume", 3)), at(0, ask("/v1/consume", 1))],
    ],
    moments: &[0, 1_500, 3_000],
    faults: &[Fault::Crash],
    max_faults: 1,
    limits: &[exact("", bucket(1, 4))],
};

const EXPIRING: &str = r#"{"p":{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s","unsettled":"refund","reservation_ttl":"2s"}}"#;

/// The same over the edge of a window, with one that is cancelled.
static WINDOW: Plan = Plan {
    name: "a reservation over the edge of a window",
    frontends: &[
        r#"{"p":{"kind":"fixed_window","offset":"0s","rate":3,"period":"2s","write_ahead":0,"refusal_cache":"0s","reservation_ttl":"3s"}}"#,
    ],
    has_registry: false,
    clients: &[
        &[at(0, RESERVE), closing("/v1/cancel", None)],
        &[at(0, ask("/v1/consume", 1)), at(0, ask("/v1/consume", 2))],
    ],
    moments: &[0, 1_500, 2_500],
    faults: &[Fault::Crash],
    max_faults: 1,
    limits: &[exact("", window(Refill::Windows, 2_000))],
};

/// The numbers rise and an override ends while tokens are reserved.
static RESERVED: Plan = Plan {
    name: "a reservation while numbers change",
    frontends: &[
        r#"{"p":{"rate":1,"period":"10s","capacity":4,"write_ahead":0,"refusal_cache":"0s","unsettled":"refund","reservation_ttl":"2s"}}"#,
    ],
    has_registry: true,
    clients: &[
        &[at(0, RESERVE), closing("/v1/settle", Some(1))],
        &[
            Step::Override(&[SET], 1),
            Step::Poll(0),
            at(0, ask("/v1/consume", 2)),
            Step::Override(&[REMOVED], 1),
            Step::Poll(0),
        ],
    ],
    // The moments of changes differ, so two in one millisecond are a millisecond ahead of the clock, and nothing refills before them.
    moments: &[0, 20_002],
    faults: &[Fault::Crash],
    max_faults: 1,
    limits: &[between(
        "",
        Numbers { period_ms: 10_000, ..bucket(1, 4) },
        Numbers { period_ms: 10_000, ..bucket(2, 8) },
    )],
};

/// The frontend that closes the reservation does not know of the change, and the bucket is full again by the numbers that it knows.
static UNAWARE: Plan = Plan {
    name: "a reservation that is closed by a frontend with earlier numbers",
    frontends: &[FAST, FAST],
    has_registry: true,
    clients: &[
        &[at(0, RESERVE), closing("/v1/cancel", None)],
        &[put(&[SLOW], 1), Step::Poll(1), at(1, ask("/v1/consume", 1))],
    ],
    moments: &[0, 1_002],
    faults: &[Fault::Crash],
    max_faults: 1,
    limits: &[between("", bucket(1, 2), bucket(2, 4))],
};

const FAST: &str = r#"{"p":{"rate":2,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s"}}"#;
const SLOW: &str = r#"{"rate":1,"period":"1s","capacity":2,"write_ahead":0,"refusal_cache":"0s"}"#;

/// A key gets an override and the policy shards while tokens are leased.
static LEASED: Plan = Plan {
    name: "a lease while an override is set and shards rise",
    frontends: &[r#"{"p":{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s","lease":"10s"}}"#],
    has_registry: true,
    clients: &[
        &[at(0, Ask { or: 400, ..with(r#","tokens":2"#, LEASE) }), at(0, ask("/v1/consume", 2))],
        &[Step::Override(&[SET], 1), Step::Poll(0), at(0, ask("/v1/consume", 2)), put(&[DIVIDED], 1), Step::Poll(0)],
    ],
    moments: &[0, 1_000],
    faults: &[Fault::Crash],
    max_faults: 1,
    limits: &[Bounds { strictest: None, ..exact("", bucket(2, 8)) }],
};

/// The capacity differs between deployments that have no registry, while tokens are reserved and a request is repeated.
static CAPACITIES: Plan = Plan {
    name: "a roll-out of another capacity",
    frontends: &[
        r#"{"p":{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s"}}"#,
        r#"{"p":{"rate":1,"period":"1s","capacity":6,"write_ahead":0,"refusal_cache":"0s"}}"#,
    ],
    has_registry: false,
    clients: &[
        &[at(0, RESERVE), at(1, Ask { more: r#","reservation":"$""#, or: 200, ..ask("/v1/settle", 1) })],
        &[at(1, ORDER), at(0, ORDER)],
    ],
    moments: &[0, 3_000],
    faults: &[Fault::Crash, Fault::Late],
    max_faults: 1,
    limits: &[between("", bucket(1, 4), bucket(1, 6))],
};

/// A policy gets a second limit while a request is repeated.
static GROWN: Plan = Plan {
    name: "a limit that is added while a request is repeated",
    frontends: &[r#"{"p":{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s"}}"#],
    has_registry: true,
    clients: &[&[at(0, ORDER), at(0, ORDER)], &[put(&[TWO], 1), Step::Poll(0), at(0, ask("/v1/consume", 1))]],
    moments: &[0],
    faults: &[Fault::Late, Fault::Again, Fault::Crash],
    max_faults: 1,
    limits: &[exact("", bucket(1, 4)), exact("b", bucket(1, 4))],
};

const TWO: &str = r#"{"limits":[{"name":"a","rate":1,"period":"1s","capacity":4,"write_ahead":0},{"name":"b","rate":1,"period":"1s","capacity":4,"write_ahead":0}],"refusal_cache":"0s"}"#;

/// The numbers rise and fall while tokens are leased.
static LEASED_NUMBERS: Plan = Plan {
    name: "a lease while numbers change",
    frontends: &[r#"{"p":{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s","lease":"2s"}}"#],
    has_registry: true,
    clients: &[
        &[at(0, with(r#","tokens":2"#, LEASE)), at(0, with(r#","returned":[{"lease":"$","spent":1}]"#, LEASE))],
        &[put(&[RISEN], 1), Step::Poll(0), at(0, ask("/v1/consume", 2)), put(&[FALLEN], 1), Step::Poll(0)],
    ],
    moments: &[0, 6_000],
    // After a crash, a lease that was returned may count as spent at its end, so what has refilled since the return is lost.
    faults: &[],
    max_faults: 0,
    limits: &[between("", bucket(1, 4), bucket(2, 8))],
};

const RISEN: &str = r#"{"rate":2,"period":"1s","capacity":8,"write_ahead":0,"refusal_cache":"0s","lease":"2s"}"#;
const FALLEN: &str = r#"{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s","lease":"2s"}"#;

/// A refund is repeated when the budget is whole again.
static UNITED: Plan = Plan {
    name: "shards that fall after a refund",
    frontends: &[r#"{"p":{"rate":1,"period":"1s","capacity":4,"shards":2,"write_ahead":0,"refusal_cache":"0s"}}"#],
    has_registry: true,
    clients: &[
        &[at(0, ask("/v1/consume", 2)), at(0, REFUND), at(0, REFUND)],
        &[put(&[WHOLE], 1), Step::Poll(0), at(0, ask("/v1/consume", 2))],
    ],
    moments: &[0],
    faults: &[],
    max_faults: 0,
    limits: &[Bounds { strictest: None, ..exact("", bucket(1, 4)) }],
};

const WHOLE: &str = r#"{"rate":1,"period":"1s","capacity":4,"write_ahead":0,"refusal_cache":"0s","carry":"as_is"}"#;

/// Slots are held, given back and expire, beside a limit whose tokens are kept.
static SLOTS: Plan = Plan {
    name: "slots that are held, given back and expire",
    frontends: &[
        r#"{"p":{"limits":[{"name":"at_once","kind":"slots","capacity":2},{"name":"t","rate":1,"period":"1s","capacity":4,"write_ahead":0}],"reservation_ttl":"2s","refusal_cache":"0s"}}"#,
    ],
    has_registry: false,
    clients: &[&[at(0, SLOT), closing("/v1/settle", Some(1))], &[at(0, SLOT), at(0, SLOT)]],
    moments: &[0, 2_500],
    faults: &[Fault::Crash, Fault::Evict],
    max_faults: 1,
    limits: &[Bounds { is_slots: true, ..exact("at_once", bucket(0, 2)) }, exact("t", bucket(1, 4))],
};

const SLOT: Ask = Ask { cost: Some(1), ..RESERVE };

/// Refusals at two frontends, with a reset between them, before, during and after bans that grow.
static BANS: Plan = Plan {
    name: "bans that begin, grow and are lifted",
    frontends: &[BANNING, BANNING],
    has_registry: false,
    clients: &[
        &[at(0, ask("/v1/consume", 2)), at(0, ask("/v1/consume", 1))],
        &[at(1, ask("/v1/consume", 1)), at(1, Ask { cost: None, or: 200, ..ask("/v1/reset", 0) })],
    ],
    moments: &[0, 1_000], // when the first ban is over
    faults: &[Fault::Crash, Fault::Again],
    max_faults: 1,
    limits: &[exact("", bucket(0, 2))],
};

const BANNING: &str = r#"{"p":{"rate":0,"period":"1s","capacity":2,"write_ahead":0,"ban":{"after":1,"within":"5s","for":"1s","max":"4s"}}}"#;

/// In a window of each kind, a reservation that is settled, beside another request: before its tokens are back, at that moment, and over a step back
/// of the clock.
const WINDOWED: &[&[Step]] = &[&[at(0, RESERVE), closing("/v1/settle", Some(1))], &[at(0, ORDER)]];

static ROLLING: Plan = Plan {
    name: "a rolling window",
    frontends: &[r#"{"p":{"kind":"rolling_window","rate":3,"period":"1s","write_ahead":1,"refusal_cache":"0s"}}"#],
    has_registry: false,
    clients: WINDOWED,
    // After the step back, at the last moment before tokens are back, and at the first.
    moments: &[1, 0, 999, 1_001],
    faults: &[Fault::Crash, Fault::Again],
    max_faults: 1,
    limits: &[Bounds { write_ahead: 1, ..exact("", window(Refill::Rolling, 1_000)) }],
};

static FIRST_USE: Plan = Plan {
    name: "a window from first use",
    frontends: &[
        r#"{"p":{"kind":"fixed_window","offset":"first_use","rate":3,"period":"1s","write_ahead":1,"refusal_cache":"0s"}}"#,
    ],
    limits: &[Bounds { write_ahead: 1, ..exact("", window(Refill::FromFirstUse, 1_000)) }],
    ..ROLLING
};

/// Midnight comes twice, and opens one window.
static CALENDAR: Plan = Plan {
    name: "a window of a calendar",
    frontends: &[r#"{"p":{"kind":"fixed_window","calendar":"day","rate":3,"write_ahead":1,"refusal_cache":"0s"}}"#],
    moments: &[MIDNIGHT - 1, MIDNIGHT, MIDNIGHT - 1],
    limits: &[Bounds { write_ahead: 1, ..exact("", window(Refill::Windows, 86_400_000)) }],
    ..ROLLING
};

const MIDNIGHT: i64 = 6_400_000;

#[test]
fn a_rolling_window_gives_back_each_token_a_period_after_it_was_taken() {
    Search::new(&ROLLING).run();
}

#[test]
fn a_window_from_first_use_is_over_a_period_after_it_opened() {
    Search::new(&FIRST_USE).run();
}

#[test]
fn a_window_of_a_calendar_opens_once_a_day() {
    Search::new(&CALENDAR).run();
}

#[test]
fn crashes_cost_a_block_and_give_nothing() {
    Search::new(&CRASHES).run();
}

#[test]
fn a_repeated_request_is_granted_once() {
    Search::new(&MESSAGES).run();
}

#[test]
fn a_lease_outlives_a_rename() {
    Search::new(&RENAMED).run();
}

#[test]
fn a_lease_outlives_a_roll_out() {
    Search::new(&ROLL_OUT).run();
}

#[test]
fn overrides_that_change_often_take_nothing() {
    Search::new(&OVERRIDES).run();
}

#[test]
fn numbers_that_change_often_take_nothing() {
    Search::new(&NUMBERS).run();
}

#[test]
fn shards_that_rise_give_nothing_twice() {
    Search::new(&SHARDS).run();
}

#[test]
fn what_is_settled_late_was_taken_at_once() {
    Search::new(&LATE).run();
}

#[test]
fn what_is_settled_late_was_taken_from_its_window() {
    Search::new(&WINDOW).run();
}

#[test]
fn a_reservation_outlives_other_numbers() {
    Search::new(&RESERVED).run();
}

#[test]
fn a_reservation_is_closed_under_earlier_numbers() {
    Search::new(&UNAWARE).run();
}

#[test]
fn a_lease_outlives_an_override_and_shards() {
    Search::new(&LEASED).run();
}

#[test]
fn a_roll_out_of_another_capacity_takes_and_gives_nothing() {
    Search::new(&CAPACITIES).run();
}

#[test]
fn a_request_that_is_repeated_under_more_limits_is_granted_once() {
    Search::new(&GROWN).run();
}

#[test]
fn a_lease_outlives_other_numbers() {
    Search::new(&LEASED_NUMBERS).run();
}

#[test]
fn shards_that_fall_give_nothing_twice() {
    Search::new(&UNITED).run();
}

#[test]
fn bans_begin_and_end_exactly_wherever_refusals_come_from() {
    Search::new(&BANS).run();
}

#[test]
fn slots_are_held_as_long_as_their_reservations() {
    Search::new(&SLOTS).run();
}

#[test]
fn states_with_equal_fingerprints_answer_alike() {
    for plan in [&CRASHES, &OVERRIDES] {
        assert!(Search::new(plan).compared() > 100, "{}: too few to show anything", plan.name);
    }
}
