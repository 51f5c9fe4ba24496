//! Notices: never two of a kind within the policy's interval, over any crashes, and one whenever it is due.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{NoticeKind, Policies, Policy};
use tollgate::protocol::{Action, Decided, DueNotice, ObjectReply, ObjectRequest};

use crate::chance;
use crate::steps::{Step, steps};
use crate::world::{DAY_MS, LONG_MS, START, World, decided, request_id};

const NEAR: NoticeKind = NoticeKind::NearLimit;
const REFUSED: NoticeKind = NoticeKind::Refused;
const CONSUME: Action = Action::Take(Verb::Consume);

fn policy(fields: &str) -> Arc<Policy> {
    let json = format!(r#"{{"p":{{"rate":1,"period":"1day","capacity":10,"write_ahead":0{fields}}}}}"#);
    Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
}

fn both() -> Arc<Policy> {
    policy(r#","notify":["near_limit","refused"]"#)
}

fn wanting(policy: &Arc<Policy>) -> World {
    World { wants_notices: true, ..World::empty(policy) }
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
fn a_key_near_its_limit_and_a_refused_key_each_give_a_notice() {
    let mut world = wanting(&both());
    for (wait_ms, action, cost, expected, rows) in [
        (0, CONSUME, 8, vec![], 1),                     // 2 of 10 are left: a fifth
        (0, CONSUME, 3, vec![REFUSED], 1),              // nothing is written but that
        (0, CONSUME, 3, vec![], 0),                     // and now nothing at all
        (0, CONSUME, 1, vec![NEAR], 2),                 // each kind has its own time
        (0, CONSUME, 0, vec![], 0),                     // still near
        (599_999, CONSUME, 3, vec![], 0),               // ten minutes, unless the policy says otherwise
        (1, CONSUME, 3, vec![REFUSED], 1),              // and not a millisecond more
        (0, Action::Look(Verb::Consume), 0, vec![], 0), // a peek takes nothing
        (0, CONSUME, 0, vec![NEAR], 1),
        (600_000, Action::Take(Verb::Refund), 0, vec![], 0),
        (0, Action::Hold(7), 0, vec![], 0), // nothing is taken yet
        (0, Action::Settle(7), 0, vec![NEAR], 1),
        (600_000, Action::Take(Verb::Charge), 0, vec![NEAR], 1),
        (600_000, Action::Reserve(Verb::Reserve { max_wait_ms: None }), 1, vec![NEAR], 3),
        (0, Action::Hold(8), 9, vec![REFUSED], 1),
        (600_000, Action::Look(Verb::Consume), 9, vec![REFUSED], 1), // the first step of a batch
    ] {
        world.now += wait_ms;
        let costs = if matches!(action, Action::Settle(_)) { None } else { Some(vec![cost]) };
        let before = world.rows_written;
        let decided = decided(world.ask(action, costs, None));
        assert_eq!((kinds(&decided), world.rows_written - before), (expected, rows), "{action:?} {cost}");
    }
}

#[test]
fn without_a_receiver_or_notify_in_the_policy_no_notice_is_given_or_written() {
    for (policy, wants_notices) in [(both(), false), (policy(""), true)] {
        let mut world = World { wants_notices, ..World::empty(&policy) };
        assert_eq!(given(&mut world, CONSUME, 9), (vec![], 1));
        assert_eq!(given(&mut world, CONSUME, 9), (vec![], 0));
        assert_eq!(world.rows(), ["b:"]);
    }
    for (words, expected) in [(r#""refused""#, [vec![], vec![REFUSED]]), (r#""near_limit""#, [vec![NEAR], vec![]])] {
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
    assert_eq!(kinds(&world.decided_once(CONSUME, vec![9], 1)), [NEAR]);
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
        r#"{"a":{"rate":1,"period":"1day","capacity":10,"notify":["near_limit","refused"]},
            "b":{"rate":1,"period":"1day","capacity":100},
            "c":{"rate":1,"period":"1day","capacity":20,"notify":["near_limit","refused"],"notify_every":"1h"}}"#,
    );
    let policies: Vec<_> = policies.unwrap().iter().cloned().collect();
    let mut ledger = Ledger::new([], 0);
    let mut ask = |cost: u64, now| {
        let costs = vec![vec![cost]; 3];
        let (request_id, shadow_costs, known, wants_notices) = (None, Vec::new(), None, true);
        let request =
            ObjectRequest { action: CONSUME, request_id, costs, shadow_costs, known, wants_notices, lease: None };
        decided(ledger.ask(&policies, &request, now, || None).unwrap().0).notices
    };
    let of = |policy, kind| DueNotice { policy, kind };
    assert_eq!(ask(9, START), [of(0, NEAR)]);
    assert_eq!(ask(9, START), [of(0, REFUSED)], "the others were not taken from, but have not refused");
    assert_eq!(ask(12, START), [of(2, REFUSED)]);
    assert_eq!(ask(12, START + 600_000), [of(0, REFUSED)]);
    assert_eq!(ask(12, START + 3_600_000), [of(0, REFUSED), of(2, REFUSED)]);
}

/// When the last notices were given.
struct Model {
    every_ms: u64,
    kinds: Vec<NoticeKind>,
    last: BTreeMap<u8, i64>,
}

impl Model {
    /// The notices of this answer.
    fn expected(&mut self, action: Action, decided: &Decided, capacities: &[u64]) -> Vec<NoticeKind> {
        let is_near = decided.limits.iter().zip(capacities).any(|(limit, capacity)| limit.remaining * 5 < *capacity);
        let kind = match (decided.decision(), action) {
            (Decision::Wait { .. } | Decision::Never { .. }, _) => REFUSED,
            (_, Action::Take(Verb::Refund | Verb::Reset) | Action::Look(_) | Action::Hold(_) | Action::Cancel(_)) => {
                return vec![];
            }
            _ if is_near => NEAR,
            _ => return vec![],
        };
        let is_early = self.last.get(&kind.number()).is_some_and(|at| decided.now.abs_diff(*at) < self.every_ms);
        if decided.is_replayed || !self.kinds.contains(&kind) || is_early {
            return vec![];
        }
        self.last.insert(kind.number(), decided.now);
        vec![kind]
    }

    /// A row is deleted when none of its kinds matters any more.
    fn clean(&mut self, now: i64) {
        if self.last.values().all(|at| at.saturating_add_unsigned(self.every_ms) <= now) {
            self.last.clear();
        }
    }
}

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
        which in prop::sample::subsequence(NoticeKind::ALL.to_vec(), 1..=2),
        every_s in 10..60_u64,
        steps in steps(),
    ) {
        let words: Vec<_> = which.iter().map(|kind| format!("{:?}", kind.word())).collect();
        let notify = format!(r#""notify":[{}],"notify_every":"{every_s}s""#, words.join(","));
        let policies = Policies::parse(&format!(r#"{{"p":{{{limits},{notify}}}}}"#)).unwrap();
        let mut world = wanting(policies.get("p").unwrap());
        let capacities: Vec<_> = world.policy.limits().iter().map(|limit| limit.limit().config().capacity).collect();
        let mut model = Model { every_ms: every_s * 1_000, kinds: which, last: BTreeMap::new() };
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
                    model.clean(world.now);
                    world.clean();
                    continue;
                }
                Step::Crash(arrived) => {
                    world.crash(arrived);
                    continue;
                }
            };
            let costs = costs.map(|costs| costs[..capacities.len()].to_vec());
            let row = world.storage.get("n:p").cloned();
            let ObjectReply::Decided(decided) = world.ask(action, costs, None) else { continue };
            match action {
                Action::Hold(_) => holds.extend(decided.reservation.map(|opened| opened.id)),
                Action::Extend(_) => {}
                _ => reservations.extend(decided.reservation.map(|opened| opened.id)),
            }
            prop_assert_eq!(kinds(&decided), model.expected(action, &decided, &capacities), "{:?}", action);
            prop_assert_eq!(world.storage.get("n:p") == row.as_ref(), decided.notices.is_empty(), "a row for each, and no other");
        }
    }
}
