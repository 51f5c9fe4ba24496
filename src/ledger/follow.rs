//! How a bucket follows its policy through versions: its tokens are carried over at the moment of each change, so refills before it count
//! at the old numbers and refills after it at the new, whenever the next request comes.
//!
//! A limit is identified by its account: its name, or none if it had none at first. A new one starts as in a new bucket. A removed one is
//! kept, dormant, until it is full and none of its tokens are leased: versions that alternate during a roll-out give nothing away. If it
//! had other numbers, [`Carry`] says how it continues: with [`Carry::Additive`] the earlier numbers keep their account, as in
//! `accounts.rs`; with the others they are forgotten, except those of another kind.
//!
//! A bucket is never carried over before its own moment: until then, requests came from frontends that knew only the old numbers. Where the
//! moment of a change is unknown, the answer is on the safe side:
//!
//! * To a policy that no registry has seen, a bucket is carried over at its first request under it.
//! * To a version older than the bucket's own, it was carried over at some moment since its last request. If those numbers have no account,
//!   its level is carried over as is: to the lower of the results for the first and the last of these moments. As a function of the moment
//!   it is concave, so it is nowhere lower than at both ends.
//! * To a version that it has followed before, when frontends without the registry, or with an earlier version, asked since: the change is
//!   not made again. The account of those numbers goes on; if there is none, the level is carried over as is.
//! * From a time whose versions were merged into one, a bucket goes through the weakest of them, which it enters at the moment it was last
//!   carried over or later: see `policy/weakest.rs`.

use std::sync::Arc;

use super::accounts::{accounts, of_request, succeeding};
use super::leases::Leases;
use super::names::Renamed;
use super::reservation::Expired;
use super::row::NamedState;
use super::without::without;
use crate::limit::{Carry, Limit, State};
use crate::policy::{NamedLimit, Policy, is_of_slots};

/// What happened to a bucket while it followed no version: each counts under the numbers of its moment.
pub(super) struct Meanwhile<'a> {
    /// Leases may be over.
    pub(super) leases: &'a mut Leases,
    /// Reservations may have expired: their openings, and the places of these; soonest first.
    pub(super) expired: Vec<(Expired, usize)>,
    /// The ids of those that were given back.
    pub(super) returned: Vec<u64>,
    /// Whether its numbers came with requests.
    pub(super) is_inline: bool,
    /// Whether it has open reservations.
    pub(super) has_openings: bool,
    pub(super) now: i64,
}

impl<'a> Meanwhile<'a> {
    pub(super) const fn new(leases: &'a mut Leases, is_inline: bool, has_openings: bool, now: i64) -> Self {
        Self { leases, expired: Vec::new(), returned: Vec::new(), is_inline, has_openings, now }
    }

    /// What had happened by that moment.
    fn end(&mut self, accounts: &mut [NamedState], by: i64) {
        self.leases.end(accounts, self.is_inline, (by, self.now));
        let due = self.expired.partition_point(|(expired, _)| expired.at <= by);
        for (Expired { id, taken, .. }, cut) in self.expired.drain(..due) {
            for account in accounts.iter_mut() {
                account.give_back((id, cut), taken.tokens_of(account.name.as_deref()));
            }
            self.returned.push(id);
        }
        for account in accounts.iter_mut() {
            account.fit_log(by); // tokens of a lease that is over
            account.bring_back(by);
        }
    }

    /// The limits after a step, which are carried over by `carry`.
    fn step(
        &mut self,
        mut old: Vec<NamedState>,
        (count, by): (usize, i64),
        carry: impl FnOnce(Vec<NamedState>, &Leases) -> Vec<NamedState>,
    ) -> Vec<NamedState> {
        self.end(&mut old, by.min(self.now));
        let fitted = |mut all: Vec<NamedState>| {
            for account in &mut all {
                account.fit_log(account.at().min(self.now));
            }
            all
        };
        if !self.leases.is_any() {
            return fitted(carry(old, self.leases));
        }
        let all = fitted(carry(old.clone(), self.leases));
        self.leases.follow(&old, all.get(..count).unwrap_or(&all), self.has_openings);
        all
    }
}

/// The limits of `policy` at `now`, in its order, then the dormant ones, of a bucket that was at the version `since`, and has followed
/// versions up to `reached`.
pub(super) fn follow(
    old: Vec<NamedState>,
    (since, reached): (i64, i64),
    policy: &Policy,
    meanwhile: &mut Meanwhile<'_>,
    phase: u64,
) -> Vec<NamedState> {
    let (now, count) = (meanwhile.now, policy.limits().len());
    if policy.is_inline() {
        return meanwhile.step(old, (count, now), |old, _| of_request(old, policy, now, phase));
    }
    let timeline = policy.timeline();
    let is_there = |(named, old): (&NamedLimit, &NamedState)| {
        named.account() == old.name.as_deref() && *named.limit() == old.limit
    };
    let is_unchanged = old.len() >= policy.limits().len() && policy.limits().iter().zip(&old).all(is_there);
    if timeline.since() == since && since != 0 && is_unchanged {
        return old;
    }
    let current = || policy.limits().iter().map(|limit| (limit.account(), limit.limit()));
    if timeline.since() == 0 || timeline.since() == since {
        let step =
            Step { at: now, carry: Carry::Additive, limits: current().collect(), merged: None, is_repeated: false };
        return meanwhile.step(old, (count, now), |old, leases| carried(old, &step, leases, now, phase));
    }
    if timeline.since() < since {
        return meanwhile.step(old, (count, now), |old, leases| {
            // No limit before its own moment.
            let last_asked_at = old.iter().map(NamedState::at).min().unwrap_or(now);
            let carried_at = |old, at: i64| known_or_as_is(old, current(), (at, now), phase);
            let first = carried_at(old.clone(), last_asked_at.min(now)).into_iter().take(count);
            let mut last = carried_at(old, now);
            for (last, first) in last.iter_mut().zip(first) {
                last.lower_to(first, now);
                last.fit_log(now);
            }
            without_left(last, count, leases, now)
        });
    }
    let earlier = timeline.earlier().iter().map(|version| Step {
        at: version.since,
        carry: version.carry,
        limits: version.limits.iter().map(|(name, limit)| (name.as_deref(), limit)).collect(),
        merged: version.merged.map(|merged| merged.carry),
        is_repeated: since < version.since && version.since <= reached,
    });
    let last = Step {
        at: timeline.since(),
        carry: timeline.carry(),
        limits: current().collect(),
        merged: None,
        is_repeated: since < timeline.since() && timeline.since() <= reached,
    };
    let mut steps: Vec<_> = earlier.chain([last]).collect();
    // If its last request was under numbers that no registry has seen, it follows the versions from then on.
    let asked_at = if since == 0 { old.iter().map(NamedState::at).max().unwrap_or(now) } else { since };
    let known = steps.partition_point(|step| step.at <= asked_at);
    let first = known.saturating_sub(1);
    let within = steps.get_mut(first).filter(|step| since != 0 && step.at <= asked_at);
    match within.and_then(|step| Some((step.merged?, step))) {
        // The request may have been under any version that this one stands for.
        Some((carry, step)) => {
            step.carry = carry;
            steps.drain(..first);
        }
        None => _ = steps.drain(..if since == 0 { first } else { known }),
    }
    steps.iter().fold(old, |old, step| {
        let moment = (step.limits.len(), step.at);
        meanwhile.step(old, moment, |old, leases| carried(old, step, leases, now, phase))
    })
}

/// Calls accounts as `policy` does, and returns which has another name now. Without the registry's timeline, a policy does not know that
/// one of its limits had no name at first. The one that was asked `before` knows it, or had that limit without its name; during a roll-out
/// also with its name, while this one has it without.
pub(super) fn rename(
    old: &mut [NamedState],
    leases: &mut Leases,
    policy: &Policy,
    before: impl FnOnce() -> Option<Arc<Policy>>,
) -> Option<Renamed> {
    let has = |old: &[NamedState], name: Option<&str>| old.iter().any(|account| account.name.as_deref() == name);
    let limits = || policy.limits().iter().filter(|limit| limit.name().is_some());
    let is_alone = policy.timeline().since() == 0;
    let owned = |account: Option<&str>| account.map(str::to_owned);
    let unnamed_before = limits().find(|limit| has(old, limit.unnamed_account()) && !has(old, limit.account()));
    let named_now = limits().find(|limit| limit.account() == limit.unnamed_account());
    let renamed = match (named_now, unnamed_before) {
        (Some(known), _) => Renamed { from: owned(known.own_account()), to: owned(known.unnamed_account()) },
        (None, Some(like)) => {
            let before = before()?;
            let is_new = |limit: &&NamedLimit| limit.is_slots() == like.is_slots() && !has(old, limit.account());
            let named = |name: Option<String>| limits().find(|limit| name.is_some() && limit.name() == name.as_deref());
            let known = named(owned(before.timeline().unnamed())).filter(|limit| limit.is_slots() == like.is_slots());
            let new = || named(before.continued_by(limits().filter(is_new)));
            let to = known.or_else(|| new().filter(|_| is_alone))?;
            Renamed { from: owned(to.unnamed_account()), to: owned(to.own_account()) }
        }
        (None, None) if is_alone && limits().next().is_none() => {
            let own = policy.limits().iter().find(|limit| !has(old, limit.account()))?;
            let before = before()?;
            let like = || before.limits().iter().filter(|limit| limit.is_slots() == own.is_slots());
            let name = policy.continued_by(like())?;
            let from = like().find(|limit| limit.name() == Some(&name))?;
            Renamed { from: owned(from.own_account()), to: owned(own.account()) }
        }
        (None, None) => return None,
    };
    if !has(old, renamed.from.as_deref()) || has(old, renamed.to.as_deref()) {
        return None;
    }
    leases.rename(&renamed);
    for account in old.iter_mut().filter(|account| account.name == renamed.from) {
        account.name.clone_from(&renamed.to);
    }
    Some(renamed)
}

/// The states of a bucket nothing was ever taken from: a new one. A shard may not have existed all the time, and must not have more than if
/// it had received each request.
pub(super) fn untouched(policy: &Policy, now: i64, phase: u64) -> Vec<State> {
    let new = || policy.limits().iter().map(|limit| limit.limit().new_state(now, phase)).collect();
    let Some(first) = policy.timeline().earlier().first().filter(|_| policy.shard().is_some()) else { return new() };
    let began_at = first.since.min(now);
    let begin = |(name, limit): &(Option<String>, Limit)| {
        NamedState::new(name.as_deref(), limit, limit.new_state(began_at, phase))
    };
    let states = first.limits.iter().map(begin).collect();
    let (mut leases, since) = (Leases::default(), first.since);
    let states = follow(states, (since, since), policy, &mut Meanwhile::new(&mut leases, false, false, now), phase);
    states.into_iter().map(|limit| limit.state).take(policy.limits().len()).collect()
}

/// A version, and how a bucket is carried over to it.
struct Step<'a> {
    /// The moment.
    at: i64,
    carry: Carry,
    limits: Vec<(Option<&'a str>, &'a Limit)>,
    /// How buckets were carried over between the versions it stands for, if there are several.
    merged: Option<Carry>,
    /// Whether the bucket has followed it before. Each change is made to a bucket only once.
    is_repeated: bool,
}

/// The step's limits, in its order, then the others.
fn carried(mut old: Vec<NamedState>, step: &Step<'_>, leases: &Leases, now: i64, phase: u64) -> Vec<NamedState> {
    let at = step.at.min(now);
    let limits = || step.limits.iter().copied();
    if step.is_repeated && step.carry != Carry::Additive {
        let all = known_or_as_is(old, limits(), (at, now), phase);
        return without_left(all, step.limits.len(), leases, at);
    }
    if step.carry == Carry::Additive {
        let begin = |limit: &Limit, known: &[&NamedState]| succeeding(limit, known, (at, now), phase);
        let all = accounts(old, limits(), begin, |limit| limit.new_state(at, phase));
        return without_left(all, step.limits.len(), leases, at);
    }
    let mut all = Vec::with_capacity(old.len().max(step.limits.len()));
    for (name, limit) in limits() {
        let is_same = |account: &NamedState| account.name.as_deref() == name && account.is_of_kind(limit);
        let same = old.iter().position(is_same).map(|index| old.remove(index));
        all.push(match same {
            None => NamedState::new(name, limit, limit.new_state(at, phase)),
            Some(same) if same.limit == *limit && step.carry != Carry::Reset => same,
            Some(same) => same.carried(limit, step.carry, at, phase),
        });
        // It has no other accounts from now on.
        let is_begun = |account: &NamedState| step.carry == Carry::Reset && account.name.as_deref() == name;
        old.retain(|account| !is_same(account) && !is_begun(account));
    }
    all.extend(old);
    without_left(all, step.limits.len(), leases, at)
}

/// The accounts of these limits, in their order, then the others. One that is new gets the level of the account in force, as is.
fn known_or_as_is<'a>(
    old: Vec<NamedState>,
    limits: impl IntoIterator<Item = (Option<&'a str>, &'a Limit)>,
    (at, now): (i64, i64),
    phase: u64,
) -> Vec<NamedState> {
    let as_is = |limit: &Limit, known: &[&NamedState]| match known.first() {
        Some(in_force) if in_force.is_of_kind(limit) => {
            Some(NamedState::clone(in_force).carried(limit, Carry::AsIs, at, phase))
        }
        _ => succeeding(limit, known, (at, now), phase),
    };
    accounts(old, limits, as_is, |limit| limit.new_state(at, phase))
}

/// Drops limits beyond the first `count` that are full and have no leases, and those beyond [`MAX_DORMANT`].
fn without_left(mut all: Vec<NamedState>, count: usize, leases: &Leases, at: i64) -> Vec<NamedState> {
    let others = all.split_off(count.min(all.len()));
    let is_there = |account: &NamedState| all.iter().any(|limit| limit.name == account.name);
    let (charged, mut left): (Vec<_>, Vec<_>) = others.into_iter().partition(is_there);
    let withheld = |account: &NamedState| leases.of_name(account.name.as_deref());
    let full_at = |account: &NamedState| {
        if is_of_slots(account.name.as_deref()) {
            return at; // held by their reservations
        }
        if account.limit.is_rolling() {
            let over_at = account.log.over_at(&account.limit).unwrap_or(at);
            return if withheld(account) > 0 { i64::MAX } else { over_at };
        }
        let left = without(&account.limit, &account.state, withheld(account), at);
        account.limit.full_at(&left, at).unwrap_or(i64::MAX)
    };
    // All accounts of a limit, or none.
    let needed: Vec<_> = left
        .iter()
        .filter(|account| full_at(account) > at || account.cuts.is_some())
        .map(|account| account.name.clone())
        .collect();
    left.retain(|account| needed.contains(&account.name));
    let is_first = |left: &[NamedState], index: usize| {
        let name = |account: &NamedState| account.name.clone();
        left.iter().position(|account| left.get(index).map(name) == Some(name(account))) == Some(index)
    };
    while (0..left.len()).filter(|&index| is_first(&left, index)).count() > MAX_DORMANT {
        let full_at = |name: &Option<String>| {
            left.iter().filter(|account| account.name == *name).map(full_at).max().unwrap_or(at)
        };
        let evictable = left.iter().filter(|account| withheld(account) == 0).map(|account| &account.name);
        let Some(soonest) = evictable.min_by_key(|name| full_at(name)).cloned() else { break };
        left.retain(|account| account.name != soonest);
    }
    all.extend(charged);
    all.extend(left);
    all
}

/// Maximum dormant limits kept that only other versions of a policy have. Beyond that, those that will be full soonest are evicted first.
/// Limits with leased tokens are kept in any case; `leases.rs` bounds them.
const MAX_DORMANT: usize = 8;

impl NamedState {
    fn is_of_kind(&self, limit: &Limit) -> bool {
        self.limit.config().kind == limit.config().kind
    }

    /// Gives back what an expired reservation took. At an earlier moment than its end the result is the same, and no refill is credited too
    /// early.
    fn give_back(&mut self, (id, cut): (u64, usize), tokens: u64) {
        let at = self.at();
        if self.limit.is_rolling() {
            self.log.settle(&self.limit, id, (tokens, 0), 0, &mut self.state);
        } else if let Some(cuts) = &mut self.cuts {
            cuts.settle(&self.limit, cut, (tokens, 0), &mut self.state, at);
        }
    }

    /// Carries it over to other numbers at that moment, or later if refills have been credited beyond it.
    fn carried(mut self, limit: &Limit, how: Carry, at: i64, phase: u64) -> Self {
        let at = at.max(self.at());
        let state = limit.carry(&self.limit, self.state, how, at, phase);
        let cuts = self.cuts.take().map(|mut cuts| {
            cuts.carry(limit, &self.limit, how, at, phase);
            cuts.in_window_of(limit, &state)
        });
        if how == Carry::Reset {
            self.log.reset();
        }
        Self { state, cuts, limit: *limit, ..self } // of the same kind, so its log goes on
    }
}
