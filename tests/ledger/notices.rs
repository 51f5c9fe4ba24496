//! Notices: each share once until its level has been back or a window has opened, never two of a kind within the policy's interval, over any
//! crashes, and one whenever it is due.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Kind, Verb};
use tollgate::policy::{NoticeKind, Policies, Policy};
use tollgate::protocol::{Action, Decided, DueNotice, LimitAnswer, ObjectReply, ObjectRequest};

use crate::chance;
use crate::steps::{Step, steps};
use crate::world::{DAY_MS, LONG_MS, START, World, decided, request_id};

const USED: NoticeKind = NoticeKind::Used { percent: 80 };
const REFUSED: NoticeKind = NoticeKind::Refused;
const CONSUME: Action = Action::Take(Verb::Consume);

fn policy(fields: &str) -> Arc<Policy> {
    let json = format!(r#"{{"p":{{"rate":1,"period":"1day","capacity":10,"write_ahead":0{fields}}}}}"#);
    Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
}

fn both() -> Arc<Policy> {
    policy(r#","notify":["80%","refused"]"#)
}

fn wanting(policy: &Arc<Policy>) -> World {
    World { has_consequences: true, ..World::empty(policy) }
}

fn kinds(decided: &Decided) -> Vec<NoticeKind> {
    decided.notices.iter().map(|notice| notice.kind).collect()
}

/// The notices of a request, and how many rows it has written.
fn given(world: &mut World, action: Action, cost: u64) -> (Vec<NoticeKind>, u64) {
    let before = world.rows_written;
    let decided = world.decided(action, vec![cost]);
    (kinds(&decided), world.rows_written - before)
}

#[test]
fn a_key_that_has_used_up_a_share_and_a_refused_key_each_give_a_notice() {
    const REFUND: Action = Action::Take(Verb::Refund);
    let mut world = wanting(&both());
    for (wait_ms, action, cost, expected, rows) in [
        (0, CONSUME, 7, vec![], 1),                     // 3 of 10 are left
        (0, CONSUME, 4, vec![REFUSED], 1),              // nothing is written but that
        (0, CONSUME, 4, vec![], 0),                     // and now nothing at all
        (0, CONSUME, 1, vec![USED], 2),                 // each kind has its own time
        (0, CONSUME, 0, vec![], 0),                     // still used up
        (599_999, CONSUME, 3, vec![], 0),               // ten minutes, unless the policy says otherwise
        (1, CONSUME, 3, vec![REFUSED], 1),              // and not a millisecond more
        (0, Action::Look(Verb::Consume), 0, vec![], 0), // a peek takes nothing
        (600_000, CONSUME, 1, vec![], 1),               // it has been told, and was not back since
        (0, REFUND, 1, vec![], 1),
        (0, CONSUME, 0, vec![], 0),
        (0, REFUND, 1, vec![], 2),
        (0, CONSUME, 20, vec![REFUSED], 1), // 3 are left: a tenth above the share, and the next notice may be given
        (0, CONSUME, 0, vec![], 0),
        (0, CONSUME, 1, vec![USED], 2),
        (0, REFUND, 8, vec![], 2),
        (0, CONSUME, 20, vec![], 0),              // a refusal writes nothing
        (599_999, Action::Hold(7), 9, vec![], 0), // nothing is taken yet
        (0, Action::Settle(7), 0, vec![], 1),     // it is too early by a millisecond, but may be given
        (1, Action::Take(Verb::Charge), 0, vec![USED], 1),
        (0, Action::Hold(8), 9, vec![REFUSED], 1),
        (600_000, Action::Look(Verb::Consume), 9, vec![REFUSED], 1), // the first step of a batch
        (0, Action::Take(Verb::Reset), 0, vec![], 2),
        (0, Action::Reserve(Verb::Reserve { max_wait_ms: None }), 9, vec![USED], 3), // at once after a reset
        (0, CONSUME, 9, vec![], 0), // but a refusal is news only after ten minutes
    ] {
        world.now += wait_ms;
        let costs = if matches!(action, Action::Settle(_)) { None } else { Some(vec![cost]) };
        let before = world.rows_written;
        let decided = decided(world.ask(action, costs, None));
        let got = (kinds(&decided), world.rows_written - before);
        assert_eq!(got, (expected, rows), "{action:?} {cost}, {:?}", decided.limits[0]);
    }
}

#[test]
fn several_shares_that_are_crossed_at_once_give_a_notice_each_for_their_own_limit() {
    let json = r#"{"p":{"notify":["50%","80%","100%","over"],"limits":[
        {"name":"a","rate":10,"period":"1h","write_ahead":0},
        {"name":"b","rate":20,"period":"1h","write_ahead":0,"mode":"soft"}]}}"#;
    let mut world = wanting(Policies::parse(json).unwrap().get("p").unwrap());
    let of = |limit, percent| DueNotice { policy: 0, limit, kind: NoticeKind::Used { percent } };
    let over = DueNotice { policy: 0, limit: 1, kind: NoticeKind::Over };
    let mut given = |costs: [u64; 2]| world.decided(CONSUME, costs.to_vec()).notices;
    assert_eq!(given([4, 9]), []);
    assert_eq!(given([5, 0]), [of(0, 50), of(0, 80)]);
    assert_eq!(given([0, 12]), [of(1, 50), of(1, 80), of(1, 100), over]);
    assert_eq!(given([1, 30]), [of(0, 100)]);
    assert_eq!(given([0, 0]), []);
}

#[test]
fn a_new_window_can_be_told_anew_even_if_it_begins_with_less() {
    let json =
        r#"{"p":{"kind":"fixed_window","rate":10,"period":"1h","offset":"0s","mode":"soft","notify":["50%","over"]}}"#;
    let hour = 3_600_000;
    for crashes in [false, true] {
        let mut world = wanting(Policies::parse(json).unwrap().get("p").unwrap());
        world.now -= world.now % hour;
        let half = NoticeKind::Used { percent: 50 };
        for (wait_ms, cost, expected) in [
            (0, 17, vec![half, NoticeKind::Over]),
            (hour - 1, 1, vec![]),
            (1, 0, vec![half]), // of 10, 8 are owed to the window before
            (hour, 1, vec![]),  // it is full again
            (0, 4, vec![half]),
        ] {
            world.now += wait_ms;
            let decided = world.decided(CONSUME, vec![cost]);
            assert_eq!(kinds(&decided), expected, "{wait_ms} {cost} {:?}", decided.limits[0]);
            if crashes {
                world.flush_idle();
                world.crash(usize::MAX);
            }
        }
    }
}

/// Reserving much and settling little again and again is news once.
#[test]
fn within_a_window_a_level_that_rises_again_is_no_news() {
    for (kind, notices) in [
        (r#""kind":"fixed_window","offset":"0s""#, 1),
        (r#""kind":"fixed_window","offset":"first_use""#, 1),
        (r#""kind":"rolling_window""#, 4),
        (r#""kind":"token_bucket""#, 4),
    ] {
        let json = format!(r#"{{"p":{{{kind},"rate":100,"period":"1day","write_ahead":0,"notify":["80%"]}}}}"#);
        let mut world = wanting(Policies::parse(&json).unwrap().get("p").unwrap());
        let mut given = Vec::new();
        for _ in 0..4 {
            let reserved = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![85]);
            given.extend(kinds(&reserved));
            let id = reserved.reservation.unwrap().id;
            given.extend(kinds(&world.decided(Action::Settle(id), vec![5])));
            world.now += 600_000;
        }
        assert_eq!(given, vec![USED; notices], "{kind}");
    }
}

#[test]
fn a_share_of_other_numbers_is_news_and_a_new_name_is_none() {
    let policy = |limit: &str| {
        let json =
            format!(r#"{{"p":{{{limit},"kind":"fixed_window","offset":"0s","period":"1day","notify":["80%"]}}}}"#);
        Policy::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    let named = |name: &str, rate: u64| {
        let limit = format!(r#"{{"name":"{name}","kind":"fixed_window","offset":"0s","rate":{rate},"period":"1day"}}"#);
        let json = format!(r#"{{"p":{{"limits":[{limit}],"notify":["80%"]}}}}"#);
        Policy::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    let mut world = wanting(&Arc::new(policy(r#""rate":100"#)));
    assert_eq!(given(&mut world, CONSUME, 85).0, [USED]);
    world.policy = Arc::new(named("a", 100));
    world.now += 600_000;
    assert_eq!(given(&mut world, CONSUME, 1).0, []);
    world.policy = Arc::new(named("a", 1_000));
    assert_eq!(given(&mut world, CONSUME, 1).0, []);
    assert_eq!(given(&mut world, CONSUME, 800).0, [USED]);
}

/// A level that hovers about a share is news once.
#[test]
fn what_was_told_is_remembered_as_long_as_the_bucket_is_not_full() {
    let json = r#"{"p":{"rate":10,"period":"1day","write_ahead":0,"notify":["50%"],"notify_every":"10s"}}"#;
    let mut world = wanting(Policies::parse(json).unwrap().get("p").unwrap());
    let half = NoticeKind::Used { percent: 50 };
    assert_eq!(given(&mut world, CONSUME, 6).0, [half]);
    for _ in 0..20 {
        world.now += DAY_MS / 10;
        world.clean();
        world.crash(0);
        assert_eq!(given(&mut world, CONSUME, 1).0, []);
    }
    assert_eq!(world.rows(), ["b:", "n:"]);
    world.now += 2 * DAY_MS;
    world.clean();
    assert!(world.storage.is_empty());
}

#[test]
fn without_a_receiver_or_notify_in_the_policy_no_notice_is_given_or_written() {
    for (policy, has_consequences) in [(both(), false), (policy(""), true)] {
        let mut world = World { has_consequences, ..World::empty(&policy) };
        assert_eq!(given(&mut world, CONSUME, 9), (vec![], 1));
        assert_eq!(given(&mut world, CONSUME, 9), (vec![], 0));
        assert_eq!(world.rows(), ["b:"]);
    }
    for (words, expected) in [(r#""refused""#, [vec![], vec![REFUSED]]), (r#""80%""#, [vec![USED], vec![]])] {
        let mut world = wanting(&policy(&format!(r#","notify":[{words}]"#)));
        assert_eq!([given(&mut world, CONSUME, 9).0, given(&mut world, CONSUME, 9).0], expected);
    }
}

#[test]
fn neither_a_crash_nor_an_eviction_repeats_a_notice() {
    let mut world = wanting(&both());
    assert_eq!(given(&mut world, CONSUME, 11).0, [REFUSED]);
    assert_eq!(world.rows(), ["n:"], "a key that was only refused has no bucket in storage");
    world.crash(0);
    assert_eq!(given(&mut world, CONSUME, 11), (vec![], 0));
    world.now += 600_000;
    assert_eq!(given(&mut world, CONSUME, 11), (vec![REFUSED], 1));
}

#[test]
fn a_replay_gives_no_notice() {
    let mut world = wanting(&both());
    assert_eq!(kinds(&world.decided_once(CONSUME, vec![9], 1)), [USED]);
    world.now += 600_000;
    let again = world.decided_once(CONSUME, vec![9], 1);
    assert!(again.is_replayed && again.notices.is_empty());
    // A refusal is not remembered: it is decided again.
    let refused = |world: &mut World| kinds(&decided(world.ask(CONSUME, Some(vec![9]), Some(request_id(2, 0)))));
    assert_eq!((refused(&mut world), refused(&mut world)), (vec![REFUSED], vec![]));
}

#[test]
fn a_clock_that_steps_back_far_does_not_silence_a_key() {
    let mut world = wanting(&both());
    assert_eq!(given(&mut world, CONSUME, 11).0, [REFUSED]);
    world.now -= 599_999;
    assert_eq!(given(&mut world, CONSUME, 11).0, []);
    world.now -= 1;
    assert_eq!(given(&mut world, CONSUME, 11).0, [REFUSED]);
}

#[test]
fn the_row_is_deleted_once_nothing_depends_on_it() {
    let mut world = wanting(&policy(r#","notify":["refused"],"notify_every":"3days""#));
    assert_eq!(given(&mut world, CONSUME, 11).0, [REFUSED]);
    for days in [1, 3] {
        assert_eq!(world.alarm_at, Some(START + days * DAY_MS));
        world.now = START + days * DAY_MS - 1;
        world.clean();
        assert_eq!(world.rows(), ["n:"]);
        world.crash(0);
    }
    world.now += 1;
    world.clean();
    assert!(world.storage.is_empty() && world.alarm_at.is_none());

    // The same beside a bucket that stays.
    let mut world = wanting(&both());
    given(&mut world, CONSUME, 7);
    given(&mut world, CONSUME, 9);
    assert_eq!(world.rows(), ["b:", "n:"]);
    world.now += LONG_MS;
    world.clean();
    assert_eq!(world.rows(), ["b:"]);
}

#[test]
fn an_unreadable_row_costs_at_most_one_extra_notice() {
    for row in [vec![], vec![9; 9], vec![1, 0]] {
        let mut world = wanting(&both());
        world.storage.insert("n:p".to_owned(), row);
        world.alarm_at = Some(START);
        world.crash(0);
        assert_eq!((given(&mut world, CONSUME, 11).0, given(&mut world, CONSUME, 11).0), (vec![REFUSED], vec![]));
    }
}

/// The policies of one request, decided together: each has its own notices.
#[test]
fn each_of_several_policies_has_its_own_notices() {
    let policies = Policies::parse(
        r#"{"a":{"rate":1,"period":"1day","capacity":10,"notify":["80%","refused"]},
            "b":{"rate":1,"period":"1day","capacity":100},
            "c":{"rate":1,"period":"1day","capacity":20,"notify":["80%","refused"],"notify_every":"1h"}}"#,
    );
    let policies: Vec<_> = policies.unwrap().iter().cloned().collect();
    let mut ledger = Ledger::new([], 0);
    let mut ask = |cost: u64, now| {
        let costs = vec![vec![cost]; 3];
        let (request_id, shadow_costs, known, has_consequences) = (None, Vec::new(), None, true);
        let request =
            ObjectRequest { action: CONSUME, request_id, costs, shadow_costs, known, has_consequences, lease: None };
        decided(ledger.ask(&policies, &request, now, || None).unwrap().0).notices
    };
    let of = |policy, kind| DueNotice { policy, limit: 0, kind };
    assert_eq!(ask(9, START), [of(0, USED)]);
    assert_eq!(ask(9, START), [of(0, REFUSED)], "the others were not taken from, but have not refused");
    assert_eq!(ask(12, START), [of(2, REFUSED)]);
    assert_eq!(ask(12, START + 600_000), [of(0, REFUSED)]);
    assert_eq!(ask(12, START + 3_600_000), [of(0, REFUSED), of(2, REFUSED)]);
}

/// What was told, and when.
struct Model {
    every_ms: u64,
    kinds: Vec<NoticeKind>,
    /// By limit and kind.
    told: BTreeMap<(usize, u8), Told>,
}

#[derive(Clone, Copy)]
struct Told {
    at: i64,
    /// The opening of the window.
    window_at: i64,
    /// Whether the level of a limit without windows has been back since.
    is_back: bool,
    /// The same, but forgotten in a crash: a refusal or a hold has seen it.
    is_seen_back: bool,
}

impl Model {
    /// Notes the levels before a request, in tokens, below zero if owed.
    fn before(&mut self, levels: &[i64], policy: &Policy) {
        for ((limit, kind), told) in &mut self.told {
            let Some(NoticeKind::Used { percent }) = NoticeKind::from_number((*kind).into()) else { continue };
            let config = policy.limits()[*limit].limit().config();
            if config.kind == Kind::FixedWindow {
                continue;
            }
            let share = (110 - percent).min(100);
            told.is_seen_back |= i128::from(levels[*limit]) * 100 >= i128::from(config.capacity) * i128::from(share);
        }
    }

    fn save(&mut self) {
        self.told.values_mut().for_each(|told| told.is_back |= told.is_seen_back);
    }

    fn crash(&mut self) {
        self.told.values_mut().for_each(|told| told.is_seen_back = told.is_back);
    }

    /// The notices of this answer.
    fn expected(&mut self, action: Action, decided: &Decided, policy: &Policy) -> Vec<NoticeKind> {
        let mut due = Vec::new();
        let is_refused = !decided.decision().is_allow();
        if decided.is_replayed {
            return due;
        }
        if matches!(action, Action::Take(Verb::Reset)) {
            self.told.retain(|(_, kind), _| *kind == REFUSED.number());
        }
        let is_silent = matches!(
            action,
            Action::Take(Verb::Refund | Verb::Reset) | Action::Look(_) | Action::Hold(_) | Action::Cancel(_)
        );
        if is_refused {
            due.extend(self.tell(0, REFUSED, 0, decided.now));
        } else if !is_silent {
            for (limit, (named, answer)) in policy.limits().iter().zip(&decided.limits).enumerate() {
                let config = named.limit().config();
                let is_window = config.kind == Kind::FixedWindow;
                // The windows of `LIMITS` open at the epoch's minutes. After a step back the later one goes on.
                let now = decided.now.max(answer.snapshot.at);
                let window_at = if is_window { now - now.rem_euclid(60_000) } else { 0 };
                let mut kinds = self.kinds.clone();
                kinds.sort_by_key(|kind| kind.number());
                for kind in kinds {
                    let NoticeKind::Used { percent } = kind else { continue };
                    let share = i128::from(config.capacity) * i128::from(100 - percent);
                    if i128::from(answer.level()) * 100 <= share {
                        due.extend(self.tell(limit, kind, window_at, decided.now));
                    }
                }
            }
        }
        let is_written = !is_refused && !matches!(action, Action::Look(_) | Action::Hold(_));
        if is_written || !due.is_empty() {
            self.save();
        }
        due
    }

    fn tell(&mut self, limit: usize, kind: NoticeKind, window_at: i64, now: i64) -> Option<NoticeKind> {
        let known = self.told.get(&(limit, kind.number()));
        let is_due = known.is_none_or(|told| {
            let is_new = kind == REFUSED || told.is_seen_back || told.window_at != window_at;
            is_new && now.abs_diff(told.at) >= self.every_ms
        });
        let is_due = is_due && self.kinds.contains(&kind);
        if is_due {
            let told = Told { at: now, window_at, is_back: false, is_seen_back: false };
            self.told.insert((limit, kind.number()), told);
        }
        is_due.then_some(kind)
    }
}

const KINDS: [NoticeKind; 4] = [NoticeKind::Used { percent: 5 }, NoticeKind::Used { percent: 60 }, USED, REFUSED];

const LIMITS: [&str; 3] = [
    r#""rate":100,"period":"10s","capacity":60,"write_ahead":8,"max_debt":10"#,
    r#""rate":1,"period":"10s","capacity":10,"write_ahead":0,"unsettled":"refund","reservation_ttl":"2s""#,
    r#""limits":[{"name":"a","rate":7,"period":"1s","capacity":20,"write_ahead":3,"max_debt":5},
        {"name":"b","kind":"fixed_window","rate":60,"period":"1m","write_ahead":10,"offset":"0s","max_debt":5}]"#,
];

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn a_notice_is_given_exactly_when_it_is_due(
        limits in prop::sample::select(&LIMITS[..]),
        which in prop::sample::subsequence(KINDS.to_vec(), 1..=3),
        every_s in 10..60_u64,
        steps in steps(),
    ) {
        let words: Vec<_> = which.iter().map(|kind| format!("\"{kind}\"")).collect();
        let notify = format!(r#""notify":[{}],"notify_every":"{every_s}s""#, words.join(","));
        let policies = Policies::parse(&format!(r#"{{"p":{{{limits},{notify}}}}}"#)).unwrap();
        let mut world = wanting(policies.get("p").unwrap());
        let capacities: Vec<_> = world.policy.limits().iter().map(|limit| limit.limit().config().capacity).collect();
        let mut model = Model { every_ms: every_s * 1_000, kinds: which, told: BTreeMap::new() };
        let (mut reservations, mut holds): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        for step in steps {
            let id = |ids: &[u64], which: usize| ids.get(which).copied();
            let (action, costs) = match step {
                Step::Take(verb, costs) => (Action::Take(verb), Some(costs)),
                Step::Look(costs) => (Action::Look(Verb::Consume), Some(costs)),
                Step::Reserve(costs, max_wait_ms) => (Action::Reserve(Verb::Reserve { max_wait_ms }), Some(costs)),
                Step::Hold(costs) => (Action::Hold(0), Some(costs)),
                Step::Settle(which, costs) => match id(&reservations, which) {
                    Some(id) => (Action::Settle(id), Some(costs)),
                    None => continue,
                },
                Step::Cancel(which) => match id(&reservations, which) {
                    Some(id) => (Action::Cancel(id), None),
                    None => continue,
                },
                Step::Extend(which, costs) => match id(&reservations, which) {
                    Some(id) => (Action::Extend(id), Some(costs)),
                    None => continue,
                },
                Step::Commit(which) => match id(&holds, which) {
                    Some(id) => (Action::Settle(id), None),
                    None => continue,
                },
                Step::Abort(which) => match id(&holds, which) {
                    Some(id) => (Action::Cancel(id), None),
                    None => continue,
                },
                Step::Wait(ms) => {
                    world.now += ms;
                    continue;
                }
                Step::Arrive(count) => {
                    world.arrive(count);
                    continue;
                }
                Step::FlushIdle => {
                    world.flush_idle();
                    continue;
                }
                Step::Clean => {
                    world.clean();
                    // Then the interval is over; if the clock steps back now, it is not known any more.
                    if !world.storage.contains_key("n:p") {
                        model.told.clear();
                    }
                    continue;
                }
                Step::Crash(arrived) => {
                    world.crash(arrived);
                    model.crash();
                    continue;
                }
            };
            let costs = costs.map(|costs| costs[..capacities.len()].to_vec());
            let row = world.storage.get("n:p").cloned();
            let nothing = Some(vec![0; capacities.len()]);
            let before = decided(world.ask(Action::Look(Verb::Refund), nothing, None));
            let ObjectReply::Decided(decided) = world.ask(action, costs, None) else { continue };
            // What gives back is seen at once.
            let raised = matches!(action, Action::Take(Verb::Refund) | Action::Cancel(_)).then_some(&decided);
            for seen in [Some(&before), raised].into_iter().flatten().filter(|_| !matches!(action, Action::Look(_))) {
                model.before(&seen.limits.iter().map(LimitAnswer::level).collect::<Vec<_>>(), &world.policy);
            }
            match action {
                Action::Hold(_) => holds.extend(decided.reservation.map(|opened| opened.id)),
                Action::Extend(_) => {}
                _ => reservations.extend(decided.reservation.map(|opened| opened.id)),
            }
            prop_assert_eq!(kinds(&decided), model.expected(action, &decided, &world.policy), "{:?}", action);
            prop_assert!(decided.notices.is_empty() || world.storage.get("n:p") != row.as_ref(), "a row for each");
        }
    }
}
