//! Soft limits: they count everything that passes, below zero if need be, refuse nothing, and change nothing about hard ones.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Config, Kind, Verb};
use tollgate::policy::Policy;
use tollgate::protocol::{Action, LimitAnswer, ObjectReply};

use crate::chance;
use crate::steps::{Step, steps};
use crate::world::{START, World, request_id, signed};

/// The fields of hard limits.
const HARD: [&str; 4] = [
    r#""rate":100,"period":"10s","capacity":60,"write_ahead":8,"max_debt":10"#,
    r#""rate":3,"period":"1s","capacity":10,"write_ahead":0"#,
    r#""kind":"fixed_window","rate":20,"period":"5s","capacity":30,"write_ahead":6,"max_debt":20"#,
    r#""kind":"fixed_window","rate":9,"period":"4s","offset":"first_use""#,
];

/// Those of soft ones.
const SOFT: [&str; 4] = [
    r#""rate":4,"period":"1s","capacity":8,"write_ahead":3"#,
    r#""rate":0,"period":"1s","capacity":5"#,
    r#""kind":"fixed_window","rate":9,"period":"2s","capacity":12,"offset":"0s""#,
    r#""rate":1,"period":"1s","capacity":0"#,
];

/// A policy of these limits, of which the soft one comes last.
fn policy(hard: Option<&str>, soft: Option<&str>, more: &str) -> Arc<Policy> {
    let hard = hard.map(|fields| format!(r#"{{"name":"a",{fields}}}"#));
    let soft = soft.map(|fields| format!(r#"{{"name":"s","mode":"soft",{fields}}}"#));
    let limits: Vec<_> = hard.into_iter().chain(soft).collect();
    Arc::new(Policy::parse("p", &format!(r#"{{"limits":[{}]{more}}}"#, limits.join(","))).unwrap())
}

/// A world, and the ids of what is open in it.
struct Player {
    world: World,
    reservations: Vec<u64>,
    holds: Vec<u64>,
}

impl Player {
    fn new(policy: &Arc<Policy>) -> Self {
        Self { world: World::empty(policy), reservations: Vec::new(), holds: Vec::new() }
    }

    fn ask(&mut self, action: Action, cost: Option<u64>, id: Option<u128>) -> ObjectReply {
        let costs = cost.map(|cost| vec![cost; self.world.policy.limits().len()]);
        let reply = self.world.ask(action, costs, id.map(|id| request_id(id, 0)));
        if let ObjectReply::Decided(decided) = &reply
            && let Some(opened) = decided.reservation
        {
            match action {
                Action::Hold(_) => self.holds.push(opened.id),
                Action::Extend(_) => {}
                _ => self.reservations.push(opened.id),
            }
        }
        reply
    }

    /// What the step answers, if anything. Both limits are asked for the same.
    fn play(&mut self, step: &Step, number: u128) -> Option<ObjectReply> {
        let id = Some(number / 2); // each request id comes twice
        match *step {
            Step::Take(verb, [cost, _]) => return Some(self.ask(Action::Take(verb), Some(cost), id)),
            Step::Look([cost, _]) => return Some(self.ask(Action::Look(Verb::Consume), Some(cost), None)),
            Step::Reserve([cost, _], max_wait_ms) => {
                return Some(self.ask(Action::Reserve(Verb::Reserve { max_wait_ms }), Some(cost), None));
            }
            Step::Settle(which, [cost, _]) => {
                let id = self.reservations.get(which).copied()?;
                return Some(self.ask(Action::Settle(id), Some(cost).filter(|cost| *cost != 1), None));
            }
            Step::Cancel(which) => {
                let id = self.reservations.get(which).copied()?;
                return Some(self.ask(Action::Cancel(id), None, None));
            }
            Step::Extend(which, [cost, _]) => {
                let id = self.reservations.get(which).copied()?;
                return Some(self.ask(Action::Extend(id), Some(cost), None));
            }
            Step::Hold([cost, _]) => {
                let hold = (1 << 40) + u64::try_from(number).unwrap(); // the frontend chooses it
                return Some(self.ask(Action::Hold(hold), Some(cost), id));
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
            // A forgotten bucket is full again in both, but one that is owed for is kept.
            Step::Clean | Step::Crash(_) => {}
        }
        None
    }
}

/// What of a reply is about the hard limit.
fn of_hard(reply: Option<ObjectReply>) -> Option<(ObjectReply, Option<LimitAnswer>)> {
    reply.map(|reply| match reply {
        ObjectReply::Decided(mut decided) => {
            let hard = decided.limits.first().copied();
            decided.limits.truncate(1);
            decided.before.truncate(1);
            decided.reserved_costs = decided.reserved_costs.first().copied().into_iter().collect();
            (ObjectReply::Decided(decided), hard)
        }
        other => (other, None),
    })
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Every answer of a hard limit is as without a soft one beside it, after any requests and events but a crash, which costs both what
    /// the rows lack. And a request is granted if the hard one grants it.
    #[test]
    fn a_hard_limit_decides_as_without_a_soft_one(
        (hard, soft) in (0..HARD.len(), 0..SOFT.len()),
        steps in steps(),
        refunds in any::<bool>(),
    ) {
        let more = if refunds { r#","unsettled":"refund","reservation_ttl":"2s""# } else { "" };
        let mut without = Player::new(&policy(Some(HARD[hard]), None, more));
        let mut with = Player::new(&policy(Some(HARD[hard]), Some(SOFT[soft]), more));
        for (number, step) in (0..).zip(&steps) {
            let reply = with.play(step, number);
            if let Some(ObjectReply::Decided(decided)) = &reply {
                let [hard, soft] = decided.limits[..] else { panic!("{decided:?}") };
                prop_assert!(soft.decision.is_allow(), "{:?}: {:?}", step, soft);
                prop_assert_eq!(decided.decision().is_allow(), hard.decision.is_allow());
            }
            prop_assert_eq!(of_hard(reply), of_hard(without.play(step, number)), "{:?}", step);
            without.world.ids = with.world.ids;
        }
    }

    /// After any requests a soft limit's level is what a replay of all that passed makes of it, with the real cost of each reservation.
    #[test]
    fn a_soft_limit_counts_all_that_passes(
        hard in prop::option::of(0..HARD.len()),
        soft in 0..SOFT.len(),
        steps in steps(),
        refunds in any::<bool>(),
    ) {
        let terms = if refunds { r#","unsettled":"refund","reservation_ttl":"2s""# } else { "" };
        let policy = policy(hard.map(|hard| HARD[hard]), Some(SOFT[soft]), terms);
        let mut player = Player::new(&policy);
        let limit = *policy.limits().last().unwrap().limit().config();
        let mut replay = Replay { limit, refunds, facts: Vec::new() };
        for (number, step) in (0..).zip(&steps) {
            let now = player.world.now;
            let taken = player.reservations.clone();
            let id = |which: usize| taken.get(which).copied();
            match step {
                // Batches have laws of their own, and so has a clock that steps back.
                Step::Hold(_) | Step::Commit(_) | Step::Abort(_) => continue,
                Step::Wait(ms) if *ms < 0 => continue,
                _ => {}
            }
            let Some(ObjectReply::Decided(answer)) = player.play(step, number) else { continue };
            let soft = *answer.limits.last().unwrap();
            if answer.decision().is_allow() && !answer.is_replayed {
                match *step {
                    Step::Take(Verb::Refund, [cost, _]) => replay.add(now, Fact::Back(cost)),
                    Step::Take(Verb::Reset, _) => replay.add(now, Fact::Full),
                    Step::Take(Verb::ConsumeUpTo, _) if hard.is_some() => {
                        replay.add(now, Fact::Taken(answer.limits[0].decision.tokens()));
                    }
                    Step::Take(_, [cost, _]) => replay.add(now, Fact::Taken(cost)),
                    Step::Reserve([cost, _], _) => match answer.reservation {
                        Some(opened) => replay.reserve(opened.id, cost, opened.expires_at, now),
                        None => replay.add(now, Fact::Taken(cost)),
                    },
                    Step::Extend(which, [cost, _]) => {
                        replay.reserve(id(which).unwrap(), cost, answer.reservation.unwrap().expires_at, now);
                    }
                    Step::Settle(which, [cost, _]) => {
                        replay.settle(id(which).unwrap(), Some(cost).filter(|cost| *cost != 1));
                    }
                    Step::Cancel(which) => replay.settle(id(which).unwrap(), Some(0)),
                    _ => {}
                }
            }
            prop_assert_eq!(signed(soft.remaining, soft.owed), replay.level(now), "{:?} {:?}", step, replay);
        }
    }
}

/// All that happened to a soft limit.
#[derive(Debug)]
struct Replay {
    limit: Config,
    /// Whether a reservation that nobody settles in time costs nothing.
    refunds: bool,
    facts: Vec<(i64, Fact)>,
}

#[derive(Clone, Copy, Debug)]
enum Fact {
    Taken(u64),
    Back(u64),
    Full,
    /// A reservation, or what an extension has added to it. `until` is when it expires, if it is open.
    Reserved {
        id: u64,
        tokens: u64,
        until: Option<i64>,
    },
}

impl Replay {
    fn add(&mut self, now: i64, fact: Fact) {
        self.facts.push((now, fact));
    }

    fn pieces(&mut self, of: u64) -> Vec<(&mut u64, &mut Option<i64>)> {
        let all = self.facts.iter_mut().filter_map(|(_, fact)| match fact {
            Fact::Reserved { id, tokens, until } if *id == of => Some((tokens, until)),
            _ => None,
        });
        all.collect()
    }

    /// Opens a reservation, or prolongs and raises it.
    fn reserve(&mut self, id: u64, tokens: u64, expires_at: i64, now: i64) {
        self.facts.push((now, Fact::Reserved { id, tokens, until: None }));
        for (_, until) in self.pieces(id) {
            *until = Some(expires_at);
        }
    }

    /// What it cost below its sum is given back newest first; the newest pays what it cost above.
    fn settle(&mut self, id: u64, cost: Option<u64>) {
        let mut pieces = self.pieces(id);
        let last = pieces.len().saturating_sub(1);
        let mut rest = cost;
        for (index, (tokens, until)) in pieces.iter_mut().enumerate() {
            **until = None;
            if let Some(rest) = &mut rest {
                let own = if index == last { *rest } else { (*rest).min(**tokens) };
                *rest -= own;
                **tokens = own;
            }
        }
    }

    /// In whole tokens, rounded down.
    fn level(&self, now: i64) -> i64 {
        let Config { kind, rate, period_ms, capacity, .. } = self.limit;
        let [rate, period, capacity] = [rate, period_ms, capacity].map(i128::from);
        let full = capacity * period;
        let refilled = |from: i64, to: i64| match kind {
            Kind::FixedWindow => (i128::from(to) / period - i128::from(from) / period) * rate * period,
            _ => i128::from(to - from) * rate,
        };
        let (mut level, mut at) = (full, START);
        for &(moment, fact) in &self.facts {
            level = full.min(level + refilled(at, moment));
            at = moment;
            level = match fact {
                Fact::Reserved { until: Some(until), .. } if self.refunds && until <= now => level,
                Fact::Taken(tokens) | Fact::Reserved { tokens, .. } => level - i128::from(tokens) * period,
                Fact::Back(tokens) => full.min(level + i128::from(tokens) * period),
                Fact::Full => full,
            };
        }
        level = full.min(level + refilled(at, now));
        i64::try_from(level.div_euclid(period)).unwrap()
    }
}
