//! Limits in shadow: they report what they would do, and change nothing else.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Decision, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, LimitAnswer, ObjectReply};

use crate::chance;
use crate::steps::{Step, steps};
use crate::world::{START, World, decided, request_id, tokens};

/// Lists of limits that a policy enforces.
const ENFORCED: [&str; 5] = [
    r#"{"name":"a","rate":100,"period":"10s","capacity":60,"write_ahead":8,"max_debt":10}"#,
    r#"{"name":"a","rate":3,"period":"1s","capacity":10,"write_ahead":0}"#,
    r#"{"name":"a","rate":5,"period":"1s","capacity":20,"initial":3,"write_ahead":4,"max_debt":6}"#,
    r#"{"name":"a","kind":"fixed_window","rate":20,"period":"5s","capacity":30,"write_ahead":6,"max_debt":20}"#,
    r#"{"name":"a","kind":"fixed_window","rate":20,"calendar":"day","zone":"Europe/Berlin","capacity":30,"write_ahead":6,"max_debt":20}"#,
];

/// Limits that it has in shadow.
const TRIED: [&str; 5] = [
    r#"{"name":"s","rate":4,"period":"1s","capacity":8,"write_ahead":3,"max_debt":12}"#,
    r#"{"name":"s","rate":1,"period":"1s","capacity":30,"write_ahead":0}"#,
    r#"{"name":"s","rate":0,"period":"1s","capacity":40,"write_ahead":5}"#,
    r#"{"name":"s","kind":"fixed_window","rate":9,"period":"2s","capacity":12,"max_debt":5}"#,
    r#"{"name":"s","kind":"fixed_window","rate":9,"calendar":"week","starts":"saturday","capacity":12,"max_debt":5}"#,
];

fn policy(enforced: &str, tried: Option<&str>, more: &str) -> Arc<Policy> {
    let tried = tried.map(|limit| format!(",{}", limit.replacen('{', r#"{"mode":"shadow","#, 1)));
    let json = format!(r#"{{"p":{{"limits":[{enforced}{}]{more}}}}}"#, tried.unwrap_or_default());
    Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
}

/// A world, and the ids of what is open in it.
pub(crate) struct Player {
    pub(crate) world: World,
    reservations: Vec<u64>,
    holds: Vec<u64>,
}

impl Player {
    pub(crate) fn new(policy: &Arc<Policy>) -> Self {
        Self { world: World::empty(policy), reservations: Vec::new(), holds: Vec::new() }
    }

    fn ask(&mut self, action: Action, costs: Option<[u64; 2]>, id: Option<u128>) -> ObjectReply {
        let tried = self.world.policy.shadow_limits().len();
        let shadow_costs = costs.map(|[_, cost]| vec![cost; tried]).filter(|costs| !costs.is_empty());
        let reply = self.world.ask_shadow(
            action,
            costs.map(|[cost, _]| vec![cost]),
            shadow_costs,
            id.map(|id| request_id(id, 0)),
        );
        if let ObjectReply::Decided(Decided { reservation: Some(opened), .. }) = &reply {
            match action {
                Action::Hold(_) => self.holds.push(opened.id),
                Action::Extend(_) => {}
                _ => self.reservations.push(opened.id),
            }
        }
        reply
    }

    /// What the step answers, if anything.
    pub(crate) fn play(&mut self, step: &Step, number: u128) -> Option<ObjectReply> {
        let id = Some(number / 2); // each request id comes twice
        match *step {
            Step::Take(verb, costs) => return Some(self.ask(Action::Take(verb), Some(costs), id)),
            Step::Look(costs) => return Some(self.ask(Action::Look(Verb::Consume), Some(costs), None)),
            Step::Reserve(costs, max_wait_ms) => {
                return Some(self.ask(Action::Reserve(Verb::Reserve { max_wait_ms }), Some(costs), None));
            }
            Step::Settle(which, costs) => {
                let id = self.reservations.get(which).copied()?;
                return Some(self.ask(Action::Settle(id), Some(costs).filter(|costs| costs[0] != 1), None));
            }
            Step::Cancel(which) => {
                let id = self.reservations.get(which).copied()?;
                return Some(self.ask(Action::Cancel(id), None, None));
            }
            Step::Extend(which, costs) => {
                let id = self.reservations.get(which).copied()?;
                return Some(self.ask(Action::Extend(id), Some(costs), None));
            }
            Step::Hold(costs) => {
                // The frontend chooses the id.
                let reply = self.ask(Action::Hold((1 << 40) + u64::try_from(number).unwrap()), Some(costs), id);
                return Some(reply);
            }
            Step::Commit(which) => {
                let id = self.holds.get(which).copied()?;
                return Some(self.ask(Action::Settle(id), None, None));
            }
            Step::Abort(which) => {
                let id = self.holds.get(which).copied()?;
                return Some(self.ask(Action::Cancel(id), None, None));
            }
            Step::Wait(ms) => self.world.now += ms,
            Step::Arrive(count) => self.world.arrive(count),
            Step::FlushIdle => self.world.flush_idle(),
            Step::Clean => self.world.clean(),
            Step::Crash(arrived) => self.world.crash(arrived),
        }
        None
    }
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Every answer and every stored level is as without the limit in shadow, after any requests and events: even if
    /// its row cannot be read.
    #[test]
    fn a_policy_with_a_limit_in_shadow_decides_as_without_it(
        which in 0..ENFORCED.len(),
        tried in 0..TRIED.len(),
        steps in steps(),
        broken_at in prop::option::of(0..80_usize),
        refunds in any::<bool>(),
    ) {
        let more = if refunds { r#","unsettled":"refund","reservation_ttl":"2s""# } else { "" };
        let mut without = Player::new(&policy(ENFORCED[which], None, more));
        let mut with = Player::new(&policy(ENFORCED[which], Some(TRIED[tried]), more));
        for (number, step) in steps.iter().enumerate() {
            if broken_at == Some(number) {
                with.world.storage.entry("b:p~shadow".to_owned()).and_modify(|row| row.truncate(2));
            }
            let mut reply = with.play(step, number as u128);
            if let Some(ObjectReply::Decided(decided)) = &mut reply {
                decided.shadow.clear();
                let is_paid = decided.reserved_costs.iter().zip(&decided.limits).all(|(&cost, limit)| tokens(limit) >= cost);
                let count = if is_paid { 0 } else { decided.limits.len() };
                decided.reserved_costs = decided.reserved_costs.iter().take(count).copied().collect();
            }
            prop_assert_eq!(reply, without.play(step, number as u128), "{:?}", step);
            without.world.ids = with.world.ids; // what is added only in shadow has an id, too
            prop_assert_eq!(with.world.storage.get("b:p"), without.world.storage.get("b:p"), "{:?}", step);
        }
    }

    /// A limit in shadow reports as if it alone were enforced and had received all granted requests. A cost
    /// of zero beside another of the policy does not decide, like giving nothing back.
    #[test]
    fn a_limit_in_shadow_reports_as_if_it_alone_were_enforced(
        which in 0..ENFORCED.len(),
        tried in 0..TRIED.len(),
        steps in steps(),
        unsettled in prop::sample::select(vec!["keep", "refund"]),
    ) {
        reports_as_if_alone(which, tried, &steps, unsettled)?;
    }
}

fn reports_as_if_alone(which: usize, tried: usize, steps: &[Step], unsettled: &str) -> Result<(), TestCaseError> {
    let forever = &format!(r#","unsettled":"{unsettled}","reservation_ttl":"10000days""#);
    let mut world = Player::new(&policy(ENFORCED[which], Some(TRIED[tried]), forever));
    let mut alone = World::empty(&policy(TRIED[tried], None, forever));
    // What is open here, with what is open there for each piece and its cost, and what a committed hold has taken there.
    let mut reservations: Vec<(u64, Vec<Piece>)> = Vec::new();
    let mut holds: Vec<(u64, [u64; 2], Option<u64>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let (now, action, costs) = match *step {
            // A crash may cost a block, and a clock that steps back may recreate a forgotten bucket.
            Step::Crash(_) | Step::Clean => continue,
            // A settlement counts the latest moment that its bucket has seen, and the other may have seen fewer.
            Step::Wait(ms) if ms < 0 && !(reservations.is_empty() && holds.is_empty()) => continue,
            Step::Arrive(_) | Step::FlushIdle | Step::Wait(_) => {
                world.play(step, 0);
                alone.now = world.world.now;
                continue;
            }
            Step::Take(verb, costs) => (alone.now, Action::Take(verb), costs),
            Step::Look(costs) => (alone.now, Action::Look(Verb::Consume), costs),
            Step::Reserve(costs, max_wait_ms) => (alone.now, Action::Reserve(Verb::Reserve { max_wait_ms }), costs),
            Step::Settle(..) | Step::Cancel(_) | Step::Extend(..) => {
                of_reservation(step, &mut world, &mut alone, &mut reservations)?;
                continue;
            }
            // What a batch takes is never given back by itself; the other world has a reservation for it.
            Step::Hold(_) if unsettled == "refund" => continue,
            Step::Hold(costs) => {
                let id = (1 << 40) + number as u64;
                let reply = decided(world.ask(Action::Hold(id), Some(costs), None));
                if reply.decision().is_allow() {
                    alone.levels(); // its bucket is as old as the other
                    holds.push((id, costs, None));
                } else {
                    let there = alone.decided(Action::Look(verb_beside(Verb::Consume, costs)), vec![costs[1]]);
                    prop_assert_eq!(in_years(&reply.shadow), in_years(&[Some(there.limits[0])]));
                }
                continue;
            }
            Step::Commit(index) => {
                let Some((id, costs, taken)) = holds.get_mut(index) else { continue };
                let reply = world.ask(Action::Settle(*id), None, None);
                if let ObjectReply::Decided(Decided { is_replayed: false, shadow, .. }) = reply {
                    let verb = verb_beside(Verb::Consume, *costs);
                    let there = alone.decided(Action::Reserve(verb), vec![costs[1]]);
                    prop_assert_eq!(shadow, [Some(there.limits[0])]);
                    *taken = there.reservation.map(|reserved| reserved.id);
                }
                continue;
            }
            Step::Abort(index) => {
                let Some((id, _, taken)) = holds.get(index).copied() else { continue };
                // After ten seconds it is over, and what was taken stays.
                if matches!(world.ask(Action::Cancel(id), None, None), ObjectReply::Decided(_))
                    && let Some(id) = taken
                {
                    alone.decided(Action::Cancel(id), vec![0]);
                }
                holds.remove(index);
                continue;
            }
        };
        let reply = decided(world.ask(action, Some(costs), None));
        let granted = reply.limits.iter().filter(|_| costs[0] > 0).map(tokens).max();
        let (action, cost) = match action {
            _ if reply.decision().is_allow() => match action {
                Action::Take(Verb::ConsumeUpTo) => (action, costs[1].min(granted.unwrap_or(u64::MAX))),
                // Nothing is reserved, so nothing can be settled.
                Action::Reserve(verb) if reply.reservation.is_none() => (Action::Take(verb), costs[1]),
                _ => (action, costs[1]),
            },
            Action::Take(verb) | Action::Reserve(verb) => (Action::Look(verb), costs[1]),
            other => (other, costs[1]),
        };
        let action = match action {
            // A grant also follows a clock that has stepped back far.
            Action::Take(verb) | Action::Reserve(verb) if verb_beside(verb, costs) != verb => {
                Action::Take(Verb::Refund)
            }
            Action::Look(verb) if verb_beside(verb, costs) != verb => Action::Look(Verb::Refund),
            action => action,
        };
        let there = decided(alone.ask(action, Some(vec![cost]), None));
        prop_assert_eq!(now, reply.now);
        prop_assert_eq!(in_years(&reply.shadow), in_years(&[Some(there.limits[0])]), "{:?}", step);
        if let Some(opened) = reply.reservation {
            // At a cost of 0 the other reserves nothing, but has granted it.
            let is_there = there.decision().is_allow();
            let id = there.reservation.map(|opened| opened.id);
            if is_there && id.is_none() {
                world.ask(Action::Cancel(opened.id), None, None);
            } else {
                reservations.push((opened.id, vec![Piece { cost: costs[1], id }]));
            }
        }
    }
    Ok(())
}

/// A reservation, or an extension of one: its cost, and its id there if it was granted.
struct Piece {
    cost: u64,
    id: Option<u64>,
}

/// A step about one of these, here and there.
fn of_reservation(
    step: &Step,
    world: &mut Player,
    alone: &mut World,
    reservations: &mut Vec<(u64, Vec<Piece>)>,
) -> Result<(), TestCaseError> {
    let (Step::Settle(index, _) | Step::Cancel(index) | Step::Extend(index, _)) = step else { return Ok(()) };
    if *index >= reservations.len() {
        return Ok(());
    }
    let (id, mut pieces) = reservations.remove(*index);
    match *step {
        Step::Settle(_, costs) => {
            let report = report(&world.ask(Action::Settle(id), Some(costs), None));
            prop_assert_eq!(report, settle_alone(alone, &pieces, costs[1]));
            return Ok(());
        }
        Step::Cancel(_) => {
            world.ask(Action::Cancel(id), None, None);
            for id in pieces.into_iter().filter_map(|piece| piece.id) {
                alone.decided(Action::Cancel(id), vec![0]);
            }
            return Ok(());
        }
        // Without a cost it is no piece.
        Step::Extend(_, costs) if costs[1] > 0 => {
            let reply = decided(world.ask(Action::Extend(id), Some(costs), None));
            let is_granted = reply.decision().is_allow();
            let action = if is_granted { Action::Reserve(Verb::Consume) } else { Action::Look(Verb::Consume) };
            let there = alone.decided(action, vec![costs[1]]);
            // What the reservation itself will give back is not counted here.
            let told = |answer: LimitAnswer| (answer.decision.is_allow(), answer.remaining, answer.owed);
            prop_assert_eq!(reply.shadow[0].map(told), Some(told(there.limits[0])));
            if is_granted {
                pieces.push(Piece { cost: costs[1], id: there.reservation.map(|opened| opened.id) });
            }
        }
        _ => {}
    }
    reservations.insert(*index, (id, pieces));
    Ok(())
}

/// Settles at this total those that were granted, as if all were: what is below their sum is given back newest first.
fn settle_alone(alone: &mut World, pieces: &[Piece], total: u64) -> Option<LimitAnswer> {
    let (mut rest, mut settled, mut paid) = (total, None, 0);
    for (index, piece) in pieces.iter().enumerate() {
        let real = if index + 1 == pieces.len() { rest } else { rest.min(piece.cost) };
        rest -= real;
        let answer = piece.id.map(|id| alone.decided(Action::Settle(id), vec![real]).limits[0]);
        paid += answer.as_ref().map_or(real, tokens);
        settled = answer.or(settled);
    }
    settled.map(|answer| match answer.decision {
        Decision::Allow { ready_at, .. } => {
            LimitAnswer { decision: Decision::Allow { tokens: paid, ready_at }, ..answer }
        }
        _ => answer,
    })
}

/// A reservation that waits for an enforced limit expires later than one that does not, so only that it does expire is compared.
fn in_years(reports: &[Option<LimitAnswer>]) -> Vec<Option<LimitAnswer>> {
    const YEAR_MS: i64 = 365 * 86_400_000;
    let rounded = |report: LimitAnswer| match report.decision {
        Decision::Wait { retry_at } if retry_at > START + YEAR_MS => {
            LimitAnswer { decision: Decision::Wait { retry_at: i64::MAX }, ..report }
        }
        _ => report,
    };
    reports.iter().map(|report| report.map(rounded)).collect()
}

/// The verb for the second of these costs, which may be zero beside the first.
const fn verb_beside(verb: Verb, costs: [u64; 2]) -> Verb {
    if verb.takes() && costs[1] == 0 && costs[0] > 0 { Verb::Refund } else { verb }
}

fn report(reply: &ObjectReply) -> Option<LimitAnswer> {
    match reply {
        ObjectReply::Decided(decided) => *decided.shadow.first().unwrap(),
        other => panic!("{other:?}"),
    }
}

const TWO: &str = r#"{"name":"a","rate":100,"period":"1day"}"#;
const SMALL: &str = r#"{"name":"s","rate":2,"period":"1day","max_debt":3,"write_ahead":0}"#;

fn tried() -> Player {
    Player::new(&policy(TWO, Some(SMALL), ""))
}

/// The shadow limit's verdict and level, after a grant.
fn of_shadow(reply: ObjectReply) -> (bool, u64, u64) {
    let reply = decided(reply);
    assert!(reply.decision().is_allow());
    let report = reply.shadow[0].unwrap();
    (report.decision.is_allow(), report.remaining, report.owed)
}

#[test]
fn a_shadow_limit_takes_its_cost_only_when_it_has_it() {
    let mut player = tried();
    let take = Action::Take(Verb::Consume);
    for (cost, expected) in [(1, (true, 1, 0)), (2, (false, 1, 0)), (1, (true, 0, 0)), (1, (false, 0, 0))] {
        assert_eq!(of_shadow(player.ask(take, Some([1, cost]), None)), expected, "{cost}");
    }
    // A refusal of the others takes nothing here either.
    let reply = decided(player.ask(Action::Take(Verb::Refund), Some([0, 1]), None));
    assert_eq!(reply.shadow[0].unwrap().remaining, 1);
    let refused = decided(player.ask(take, Some([1_000, 1]), None));
    assert!(!refused.decision().is_allow());
    assert!(refused.shadow[0].unwrap().decision.is_allow(), "it would have granted it");
    assert_eq!(refused.shadow[0].unwrap().remaining, 1);
}

#[test]
fn up_to_is_not_reduced_and_reports_what_shadow_would_have_granted() {
    let mut player = tried();
    let reply = decided(player.ask(Action::Take(Verb::ConsumeUpTo), Some([10, 10]), None));
    assert_eq!(tokens(&reply.limits[0]), 10);
    assert_eq!(tokens(&reply.shadow[0].unwrap()), 2);
    let reply = decided(player.ask(Action::Take(Verb::ConsumeUpTo), Some([10, 10]), None));
    assert_eq!(tokens(&reply.limits[0]), 10);
    assert!(matches!(reply.shadow[0].unwrap().decision, Decision::Wait { .. }));
}

#[test]
fn a_reservation_does_not_wait_for_a_shadow_limit_and_settles_only_what_that_has_taken() {
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    let mut player = tried();
    let reply = decided(player.ask(reserve, Some([4, 4]), None));
    assert!(matches!(reply.limits[0].decision, Decision::Allow { ready_at: START, .. }));
    assert!(matches!(reply.shadow[0].unwrap().decision, Decision::Allow { ready_at, .. } if ready_at > START));
    // There is no room for that in its debt: it takes nothing, then or later.
    let refused = decided(player.ask(reserve, Some([4, 4]), None));
    assert!(!refused.shadow[0].unwrap().decision.is_allow());
    let settled = player.ask(Action::Settle(player.reservations[1]), Some([9, 9]), None);
    assert_eq!(report(&settled), None);
    let settled = report(&player.ask(Action::Settle(player.reservations[0]), Some([1, 1]), None)).unwrap();
    assert_eq!((tokens(&settled), settled.remaining, settled.owed), (1, 1, 0));
    // A charge beyond the debt stops there, as if it were enforced.
    let reply = player.ask(reserve, Some([1, 1]), None);
    assert_eq!(of_shadow(reply), (true, 0, 0));
    let settled = report(&player.ask(Action::Settle(player.reservations[2]), Some([50, 50]), None)).unwrap();
    assert_eq!((tokens(&settled), settled.owed), (4, 3));
    player.world.crash(0);
    assert_eq!(of_shadow(player.ask(Action::Take(Verb::Refund), Some([0, 0]), None)), (true, 0, 3), "it was stored");
}

#[test]
fn an_expired_reservation_gives_back_what_a_shadow_limit_has_taken() {
    let more = r#","unsettled":"refund","reservation_ttl":"1m""#;
    let mut player = Player::new(&policy(TWO, Some(SMALL), more));
    player.ask(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), Some([2, 2]), None);
    assert_eq!(of_shadow(player.ask(Action::Look(Verb::Refund), Some([0, 0]), None)), (true, 0, 0));
    player.world.crash(usize::MAX);
    player.world.now += 60_000;
    player.world.clean();
    player.world.crash(usize::MAX);
    assert_eq!(of_shadow(player.ask(Action::Look(Verb::Refund), Some([0, 0]), None)), (true, 2, 0));
}

/// It would be granted when a reservation has expired, though nothing refills.
#[test]
fn a_shadow_limit_says_when_a_reservation_gives_back_enough() {
    let never = r#"{"name":"s","rate":0,"period":"1day","capacity":4,"write_ahead":0}"#;
    let more = r#","unsettled":"refund","reservation_ttl":"1m""#;
    let mut player = Player::new(&policy(TWO, Some(never), more));
    let shadow = |reply| report(&reply).unwrap().decision;
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let first = decided(player.ask(reserve, Some([1, 3]), None)).reservation.unwrap();
    let start = player.world.now;
    player.world.now += 10_000;
    let refused = Action::Take(Verb::Consume);
    assert_eq!(shadow(player.ask(refused, Some([1, 2]), None)), Decision::Wait { retry_at: start + 60_000 });
    assert_eq!(shadow(player.ask(refused, Some([1, 5]), None)), Decision::Never { max: 4 });
    // What the reservation itself gives back is not counted for its extension.
    let extend = Action::Extend(first.id);
    assert_eq!(shadow(player.ask(extend, Some([1, 2]), None)), Decision::Never { max: 1 });
    assert_eq!(shadow(player.ask(refused, Some([1, 2]), None)), Decision::Wait { retry_at: start + 70_000 });
    // As does one by a deployment without the limit.
    let with = std::mem::replace(&mut player.world.policy, policy(TWO, None, more));
    player.world.now += 5_000;
    assert!(decided(player.world.ask(extend, Some(vec![0]), None)).decision().is_allow());
    player.world.policy = with;
    assert_eq!(shadow(player.ask(refused, Some([1, 2]), None)), Decision::Wait { retry_at: start + 75_000 });
    player.world.now = start + 74_999;
    assert!(!shadow(player.ask(Action::Look(Verb::Consume), Some([1, 2]), None)).is_allow());
    player.world.now += 1;
    assert!(shadow(player.ask(refused, Some([1, 2]), None)).is_allow());
}

/// Its settlement at the real total is divided as if all of it had been granted, newest first.
#[test]
fn a_shadow_limit_does_not_pay_for_what_it_would_have_refused() {
    let eight = r#"{"name":"s","rate":0,"period":"1day","capacity":8,"write_ahead":0}"#;
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    // Reserved, added and settled; then what is left.
    let cases = [([10, 2], 12, Some(6)), ([10, 2], 15, Some(3)), ([10, 2], 11, Some(7)), ([10, 2], 9, Some(8))];
    let others = [([7, 2], 9, Some(1)), ([7, 2], 12, Some(1)), ([7, 2], 3, Some(5)), ([10, 9], 19, None)];
    for (costs, total, left) in cases.into_iter().chain(others) {
        let mut player = Player::new(&policy(TWO, Some(eight), ""));
        let id = decided(player.ask(reserve, Some([1, costs[0]]), None)).reservation.unwrap().id;
        player.ask(Action::Extend(id), Some([1, costs[1]]), None);
        player.world.crash(usize::MAX);
        let settled = report(&player.ask(Action::Settle(id), Some([2, total]), None));
        assert_eq!(settled.map(|answer| answer.remaining), left, "{costs:?}, {total}");
        assert_eq!(settled.as_ref().map_or(total, tokens), total, "nothing is unpaid: {costs:?}");
    }
}

/// It was in shadow when the tokens were reserved, so it was not asked for them.
#[test]
fn a_limit_enforced_since_does_not_pay_for_what_was_reserved_while_it_was_in_shadow() {
    let in_shadow = policy(TWO, Some(SMALL), "");
    let enforced = policy(&format!("{TWO},{SMALL}"), None, "");
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let mut player = Player::new(&in_shadow);
    let id = decided(player.ask(reserve, Some([5, 1]), None)).reservation.unwrap().id;
    player.world.policy = Arc::clone(&enforced);
    let extended = decided(player.world.ask(Action::Extend(id), Some(vec![1, 1]), None));
    assert_eq!(extended.limits[1].remaining, 1);
    let settled = decided(player.world.ask(Action::Settle(id), Some(vec![6, 3]), None));
    assert_eq!(settled.limits.iter().map(tokens).collect::<Vec<_>>(), [6, 3], "nothing is unpaid");
    assert_eq!(player.world.levels(), [94, 0], "two for the extension");
    let id = decided(player.world.ask(reserve, Some(vec![5, 0]), None)).reservation.unwrap().id;
    player.world.policy = in_shadow;
    let settled = decided(player.ask(Action::Settle(id), Some([5, 9]), None));
    assert_eq!(settled.shadow, [None], "nor the other way round");
}

/// Nor for an extension in between, which the enforced limits were not asked for.
#[test]
fn a_limit_enforced_since_does_not_pay_for_an_extension_while_it_was_in_shadow() {
    let ten = r#"{"name":"s","rate":0,"period":"1day","capacity":10,"write_ahead":0}"#;
    let shadow = policy(TWO, Some(ten), "");
    let enforced = policy(&format!("{TWO},{ten}"), None, "");
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for (is_first_enforced, cost, left) in [
        (false, Some(4), 9),
        (false, None, 9),
        (false, Some(6), 7),
        (true, Some(4), 8),
        (true, None, 8),
        (true, Some(2), 9),
    ] {
        let mut player = Player::new(if is_first_enforced { &enforced } else { &shadow });
        let (costs, tried) = if is_first_enforced { (vec![1, 1], Vec::new()) } else { (vec![1], vec![1]) };
        let first = player.world.ask_shadow(reserve, Some(costs), Some(tried).filter(|tried| !tried.is_empty()), None);
        let id = decided(first).reservation.unwrap().id;
        player.world.policy = Arc::clone(&shadow);
        decided(player.ask(Action::Extend(id), Some([0, 2]), None));
        player.world.policy = Arc::clone(&enforced);
        decided(player.world.ask(Action::Extend(id), Some(vec![1, 1]), None));
        player.world.crash(usize::MAX);
        let settled = decided(player.world.ask(Action::Settle(id), cost.map(|cost| vec![2, cost]), None));
        assert_eq!(settled.limits.iter().map(tokens).collect::<Vec<_>>(), [2, cost.unwrap_or(4)], "nothing is unpaid");
        assert_eq!(player.world.levels(), [98, left], "{is_first_enforced}, {cost:?}");
    }
}

/// Like an enforced one: what an extension costs that it was not asked for has no part of the total.
#[test]
fn a_shadow_limit_pays_more_than_reserved_though_the_last_extension_was_not_requested_of_it() {
    let ten = r#"{"name":"s","rate":0,"period":"1day","capacity":10,"write_ahead":0}"#;
    let with = policy(TWO, Some(ten), "");
    let mut player = Player::new(&with);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let id = decided(player.ask(reserve, Some([1, 5]), None)).reservation.unwrap().id;
    player.world.policy = policy(TWO, None, "");
    decided(player.world.ask(Action::Extend(id), Some(vec![1]), None));
    player.world.policy = with;
    let settled = report(&player.ask(Action::Settle(id), Some([2, 8]), None)).unwrap();
    assert_eq!((tokens(&settled), settled.remaining), (8, 2));
}

/// It was given back when the reservation expired, and is taken again, like that of an enforced limit.
#[test]
fn a_late_settlement_takes_again_of_a_limit_in_shadow_that_the_policy_lacks() {
    let ten = r#"{"name":"s","rate":0,"period":"1day","capacity":10,"write_ahead":0}"#;
    let more = r#","unsettled":"refund","reservation_ttl":"1m""#;
    for other in [None, Some(r#"{"name":"t","rate":0,"period":"1day","capacity":3}"#)] {
        let with = policy(TWO, Some(ten), more);
        let mut player = Player::new(&with);
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = decided(player.ask(reserve, Some([5, 5]), None)).reservation.unwrap().id;
        player.world.now += 60_000;
        decided(player.ask(Action::Look(Verb::Refund), Some([0, 0]), None));
        player.world.policy = policy(TWO, other, more);
        decided(player.world.ask(Action::Settle(id), None, None));
        player.world.crash(usize::MAX);
        player.world.policy = with;
        assert_eq!(of_shadow(player.ask(Action::Look(Verb::Refund), Some([0, 0]), None)), (true, 5, 0), "{other:?}");
    }
}

#[test]
fn a_cancelled_reservation_gives_back_to_a_limit_in_shadow_that_the_policy_lacks_also_after_a_restart() {
    let ten = r#"{"name":"s","rate":0,"period":"1day","capacity":10,"write_ahead":0}"#;
    for restarts in [false, true] {
        let (with, without) = (policy(TWO, Some(ten), ""), policy(TWO, None, ""));
        let mut player = Player::new(&with);
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = decided(player.ask(reserve, Some([5, 5]), None)).reservation.unwrap().id;
        if restarts {
            player.world.crash(usize::MAX);
        }
        player.world.policy = without;
        decided(player.world.ask(Action::Cancel(id), None, None));
        player.world.policy = with;
        let left = of_shadow(player.ask(Action::Look(Verb::Refund), Some([0, 0]), None));
        assert_eq!(left, (true, 10, 0), "restarts: {restarts}");
    }
}

/// The registry knows that the enforced limit had no name at first; the limit in shadow has it from the start.
#[test]
fn a_limit_that_was_named_and_in_shadow_does_not_pay_for_that_time() {
    let policy = |limits: &str| {
        let policies = Policies::parse(&format!(r#"{{"p":{{{limits}}}}}"#)).unwrap();
        Policy::clone(policies.get("p").unwrap())
    };
    let numbers = r#""rate":0,"period":"1s","capacity":10"#;
    let named = |mode: &str| policy(&format!(r#""limits":[{{"name":"a","mode":"{mode}",{numbers}}}]"#));
    let mut at = START - 1;
    let first = policy(numbers).in_force_since(at);
    let mut world = World { as_of: Some(at), ..World::empty(&Arc::new(first)) };
    let change = |world: &mut World, policy: Policy, at: &mut i64| {
        *at += 10;
        let policy = policy.succeeding(&world.policy, *at, Carry::default());
        (world.policy, world.as_of, world.now) = (Arc::new(policy), Some(*at), *at);
    };
    change(&mut world, named("enforce"), &mut at);
    world.decided(Action::Take(Verb::Consume), vec![1]);
    change(&mut world, named("shadow"), &mut at);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let id = decided(world.ask_shadow(reserve, Some(Vec::new()), Some(vec![5]), None)).reservation.unwrap().id;
    change(&mut world, named("enforce"), &mut at);
    assert_eq!(tokens(&world.decided(Action::Settle(id), vec![5]).limits[0]), 5);
    assert_eq!(world.levels(), [9]);
}

/// What had been given back when it expired, and was taken by others, cannot be taken again.
#[test]
fn a_shadow_limit_says_what_a_late_settlement_without_a_cost_could_not_take() {
    let never = r#"{"name":"s","rate":0,"period":"1day","capacity":4,"write_ahead":0}"#;
    let mut player = Player::new(&policy(TWO, Some(never), r#","unsettled":"refund","reservation_ttl":"1m""#));
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let id = decided(player.ask(reserve, Some([5, 3]), None)).reservation.unwrap().id;
    player.world.now += 60_000;
    player.ask(Action::Take(Verb::Consume), Some([0, 2]), None);
    let settled = decided(player.ask(Action::Settle(id), None, None));
    assert_eq!(*settled.reserved_costs, [5, 3]);
    assert_eq!(settled.shadow[0].as_ref().map(tokens), Some(2));
}

/// A policy entirely in shadow takes its cost, opens reservations, and recognizes repetitions.
#[test]
fn a_policy_that_enforces_nothing_grants_everything() {
    let json = r#"{"p":{"rate":2,"period":"1day","mode":"shadow","write_ahead":0},
        "off":{"rate":2,"period":"1day","mode":"off"}}"#;
    let policies = Policies::parse(json).unwrap();
    for name in ["p", "off"] {
        let mut world = World::new(&policies, name);
        let tried = world.policy.shadow_limits().len();
        let mut ask = |action, cost, id: Option<u128>| {
            let id = id.map(|id| request_id(id, 0));
            decided(world.ask_shadow(action, Some(vec![]), Some(vec![cost; tried]), id))
        };
        let allowed =
            |reply: &Decided| reply.shadow.iter().map(|report| report.unwrap().decision.is_allow()).collect::<Vec<_>>();
        for (cost, expected) in [(2, true), (1, false), (1_000, false)] {
            let reply = ask(Action::Take(Verb::Consume), cost, None);
            assert!(reply.decision().is_allow() && reply.limits.is_empty());
            assert_eq!(allowed(&reply), vec![expected; tried]);
        }
        ask(Action::Take(Verb::Reset), 0, None);
        let first = ask(Action::Take(Verb::Consume), 1, Some(1));
        let again = ask(Action::Take(Verb::Consume), 1, Some(1));
        assert_eq!((first.is_replayed, again.is_replayed), (false, tried > 0));
        assert_eq!(allowed(&ask(Action::Take(Verb::Consume), 1, None)), vec![true; tried], "it was charged once");
        let reserved = ask(Action::Reserve(Verb::Reserve { max_wait_ms: None }), 5, None).reservation.unwrap();
        let cancel = Action::Cancel(reserved.id);
        assert!(decided(world.ask(cancel, Some(vec![]), None)).decision().is_allow());
        assert_eq!(world.ask(cancel, Some(vec![]), None), world.ask(cancel, Some(vec![]), None));
    }
}

#[test]
fn off_is_as_if_the_limit_did_not_exist() {
    let with = |off: &str| {
        let json = format!(r#"{{"p":{{"limits":[{TWO}{off}]}}}}"#);
        Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    let (absent, off) = (with(""), with(&format!(",{}", SMALL.replacen('{', r#"{"mode":"off","#, 1))));
    let names = r#","off":["s"]"#;
    assert_eq!(off.definition().replace(names, ""), absent.definition(), "costs may still name it");
    assert_eq!(off.wire_name(), absent.wire_name());
    assert_eq!((off.numbers(), off.version()), (absent.numbers(), absent.version()));
}

/// A limit that is enforced again after a time in shadow has what it had, plus the refill since.
#[test]
fn going_through_shadow_gives_nothing_away() {
    let both = policy(&format!("{TWO},{SMALL}"), None, "");
    let shadow = policy(TWO, Some(SMALL), "");
    let mut world = World::empty(&both);
    world.decided(Action::Take(Verb::Consume), vec![1, 2]);
    assert_eq!(world.levels(), [99, 0]);
    world.policy = shadow;
    assert_eq!(world.levels(), [99]);
    world.crash(usize::MAX);
    assert_eq!(world.levels(), [99]);
    world.policy = both;
    assert_eq!(world.levels(), [99, 0]);
}

/// Tokens taken by a limit in shadow stay its own when it gets a name and the registry loses its rows.
#[test]
fn tokens_taken_by_a_limit_in_shadow_follow_the_name_it_gets() {
    let policy = |limits: &str| {
        let policies = Policies::parse(&format!(r#"{{"p":{{"mode":"shadow",{limits}}}}}"#)).unwrap();
        Policy::clone(policies.get("p").unwrap())
    };
    let first = policy(r#""rate":0,"period":"1s","capacity":100"#).in_force_since(START - 1);
    let named = || policy(r#""limits":[{"name":"s","rate":0,"period":"1s","capacity":100}]"#);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for (action, crashes) in [Action::Hold(7), reserve].into_iter().flat_map(|action| [(action, false), (action, true)])
    {
        let is_held = matches!(action, Action::Hold(_));
        if is_held && crashes {
            continue; // nothing is held then
        }
        let mut world = World { as_of: Some(START - 1), ..World::empty(&Arc::new(first.clone())) };
        let opened = decided(world.ask_shadow(action, Some(Vec::new()), Some(vec![10]), None));
        let id = opened.reservation.unwrap().id;
        if is_held {
            decided(world.ask(Action::Settle(id), None, None));
        }
        let known = named().succeeding(&first, START + 1, Carry::default());
        for (policy, at) in [(known, START + 1), (named().in_force_since(START + 2), START + 2)] {
            (world.policy, world.as_of, world.now) = (Arc::new(policy), Some(at), at);
            let look = Action::Look(Verb::Refund);
            let left = decided(world.ask_shadow(look, Some(Vec::new()), Some(vec![0]), None));
            assert_eq!(left.shadow[0].unwrap().remaining, 90, "{action:?}, {crashes}");
            if crashes {
                world.crash(usize::MAX);
            }
        }
        decided(world.ask(Action::Cancel(id), None, None));
        let left = decided(world.ask_shadow(Action::Look(Verb::Refund), Some(Vec::new()), Some(vec![0]), None));
        assert_eq!(left.shadow[0].unwrap().remaining, 100, "{action:?}, {crashes}");
    }
}
