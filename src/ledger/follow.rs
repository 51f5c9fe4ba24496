//! How a bucket follows its policy from version to version: its tokens are carried over at the moment of each change. So
//! refills before it count at the old numbers and refills after it at the new, whenever the bucket is next asked.
//!
//! A limit is the same if it has the same name and kind. One that was not there starts as in a new bucket. One that is not
//! there any more is kept, dormant, until it is full and none of its tokens are leased: versions that alternate during a roll-out give
//! nothing away.
//!
//! A bucket is never carried over before its own moment: until then, frontends that knew only the old numbers asked it. Where
//! the moment of a change is not known, the answer is on the safe side:
//!
//! * To a policy that no registry has seen, a bucket is carried over when it is first asked under it.
//! * To a version older than the bucket's own, it was carried over at some moment since it was last asked. Its level is the
//!   lower of what it would be for the first of these moments and for the last: as a function of the moment it is concave, so it
//!   is nowhere lower than at both ends.
//! * From a time of which several versions were merged into one, a bucket goes through the weakest of them, which it
//!   enters at the moment it was last carried over or later: see `policy/weakest.rs`.

use super::inline::accounts;
use super::leases::Leases;
use super::row::NamedState;
use super::without::without;
use crate::limit::{Carry, Limit, State};
use crate::policy::{NamedLimit, Policy};

/// The limits of `policy` at `now`, in its order, and after them the dormant ones, of a bucket that was at the version `since` and has
/// these leases.
pub(super) fn follow(
    old: Vec<NamedState>,
    since: i64,
    policy: &Policy,
    leases: &Leases,
    now: i64,
    phase: u64,
) -> Vec<NamedState> {
    if policy.is_inline() {
        return accounts(old, policy, now, phase);
    }
    let timeline = policy.timeline();
    let is_there =
        |(named, old): (&NamedLimit, &NamedState)| named.name() == old.name.as_deref() && *named.limit() == old.limit;
    let is_unchanged = old.len() >= policy.limits().len() && policy.limits().iter().zip(&old).all(is_there);
    if timeline.since() == since && since != 0 && is_unchanged {
        return old;
    }
    let current = || policy.limits().iter().map(|limit| (limit.name(), limit.limit())).collect();
    let carried_at =
        |old, at| carried(old, &Step { at, carry: Carry::AsIs, limits: current(), merged: None }, leases, now, phase);
    if timeline.since() == 0 || timeline.since() == since {
        return carried_at(old, now);
    }
    if timeline.since() < since {
        // Each limit not before its own moment.
        let last_asked_at = old.iter().map(NamedState::at).min().unwrap_or(now);
        let first = carried_at(old.clone(), last_asked_at).into_iter().take(policy.limits().len());
        let mut last = carried_at(old, now);
        for (last, first) in last.iter_mut().zip(first) {
            if last.limit.surplus_over(&last.state, &first.state, now).is_some() {
                last.state = first.state;
            }
            let limit = last.limit;
            if let Some((last, first)) = last.cuts.as_mut().zip(first.cuts) {
                last.lower_of(first, &limit, now);
            }
        }
        return last;
    }
    let earlier = timeline.earlier().iter().map(|version| Step {
        at: version.since,
        carry: version.carry,
        limits: version.limits.iter().map(|(name, limit)| (name.as_deref(), limit)).collect(),
        merged: version.merged.map(|merged| merged.carry),
    });
    let last = Step { at: timeline.since(), carry: timeline.carry(), limits: current(), merged: None };
    let mut steps: Vec<_> = earlier.chain([last]).collect();
    // If it was last asked under numbers that no registry has seen, it follows the versions from then on.
    let asked_at = if since == 0 { old.iter().map(NamedState::at).max().unwrap_or(now) } else { since };
    let known = steps.partition_point(|step| step.at <= asked_at);
    let first = known.saturating_sub(1);
    let within = steps.get_mut(first).filter(|step| since != 0 && step.at <= asked_at);
    match within.and_then(|step| Some((step.merged?, step))) {
        // It may have been asked under any of those for which that version stands.
        Some((carry, step)) => {
            step.carry = carry;
            steps.drain(..first);
        }
        None => _ = steps.drain(..if since == 0 { first } else { known }),
    }
    steps.iter().fold(old, |old, step| carried(old, step, leases, now, phase))
}

/// The states of a bucket of which nothing was ever taken: a new one. A shard may not have been there all the time, and what it has
/// since then must not be more than if it had been asked each time.
pub(super) fn untouched(policy: &Policy, now: i64, phase: u64) -> Vec<State> {
    let new = || policy.limits().iter().map(|limit| limit.limit().new_state(now, phase)).collect();
    let Some(first) = policy.timeline().earlier().first().filter(|_| policy.shard().is_some()) else { return new() };
    let began_at = first.since.min(now);
    let begin = |(name, limit): &(Option<String>, Limit)| NamedState {
        name: name.clone(),
        limit: *limit,
        state: limit.new_state(began_at, phase),
        cuts: None,
    };
    let states = first.limits.iter().map(begin).collect();
    let states =
        follow(states, first.since, policy, &Leases::default(), now, phase).into_iter().map(|limit| limit.state);
    states.take(policy.limits().len()).collect()
}

/// A version, and how a bucket comes over to it.
struct Step<'a> {
    /// When.
    at: i64,
    carry: Carry,
    limits: Vec<(Option<&'a str>, &'a Limit)>,
    /// How a bucket came over from one to the next, if it stands for several.
    merged: Option<Carry>,
}

fn is_same(old: &NamedState, name: Option<&str>, limit: &Limit) -> bool {
    old.name.as_deref() == name && old.limit.config().kind == limit.config().kind
}

/// The place of the same limit. If it has several accounts, from a time when its numbers came with requests: that of these numbers, or else the
/// lowest.
fn same_in(old: &[NamedState], name: Option<&str>, limit: &Limit, now: i64) -> Option<usize> {
    let tokens = |old: &NamedState| old.limit.snapshot(&old.limit.refilled(&old.state, now)).tokens;
    let all = old.iter().enumerate().filter(|(_, old)| is_same(old, name, limit));
    all.min_by_key(|(_, old)| (old.limit != *limit, tokens(old))).map(|(index, _)| index)
}

/// The limits of the step, in its order, and after them the dormant ones.
fn carried(mut old: Vec<NamedState>, step: &Step<'_>, leases: &Leases, now: i64, phase: u64) -> Vec<NamedState> {
    let mut all = Vec::with_capacity(step.limits.len());
    for &(name, limit) in &step.limits {
        let same = same_in(&old, name, limit, now);
        let (state, cuts) = match same.map(|index| old.swap_remove(index)) {
            None => (limit.new_state(step.at.min(now), phase), None),
            Some(same) if same.limit == *limit && step.carry != Carry::Reset => (same.state, same.cuts),
            Some(mut same) => {
                let at = step.at.max(same.at()).min(now);
                if let Some(cuts) = &mut same.cuts {
                    cuts.carry(limit, &same.limit, step.carry, at, phase);
                }
                (limit.carry(&same.limit, same.state, step.carry, at, phase), same.cuts)
            }
        };
        // Its other accounts are not charged from now on.
        old.retain(|other| !is_same(other, name, limit));
        all.push(NamedState { name: name.map(str::to_owned), limit: *limit, state, cuts });
    }
    let at = step.at.min(now);
    let withheld = |dormant: &NamedState| leases.of_name(dormant.name.as_deref());
    let full_at = |dormant: &NamedState| {
        let left = without(&dormant.limit, &dormant.state, withheld(dormant), at);
        dormant.limit.full_at(&left, at).unwrap_or(i64::MAX)
    };
    old.retain(|dormant| full_at(dormant) > at || dormant.cuts.is_some());
    while old.len() > MAX_DORMANT {
        let evictable = old.iter().enumerate().filter(|(_, dormant)| withheld(dormant) == 0);
        let Some((soonest, _)) = evictable.min_by_key(|(_, dormant)| full_at(dormant)) else { break };
        old.remove(soonest);
    }
    all.extend(old);
    all
}

/// The most dormant limits kept for other versions of a policy. Beyond that, those that are full soonest are evicted
/// first. Limits with leased tokens are kept in any case; `leases.rs` bounds them.
const MAX_DORMANT: usize = 8;

impl NamedState {
    /// The moment up to which refills are credited: that of a settlement, too, which may leave the state as it is.
    pub(super) fn at(&self) -> i64 {
        let at = |state| self.limit.snapshot(state).at;
        self.cuts.as_ref().map(|cuts| at(cuts.newest())).max(Some(at(&self.state))).unwrap_or_default()
    }
}
