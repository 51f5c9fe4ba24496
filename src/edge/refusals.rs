//! Refusals answered from an isolate's memory.
//!
//! An object's answer shows the levels of a key's buckets. Until something is given back, they can only be lower than that plus what has
//! refilled since. So whatever the same arithmetic refuses by that upper bound, the object would refuse too: the refused cost, larger ones,
//! and smaller ones for as long as they are too large. Nothing is ever granted from here.
//!
//! An answer is kept for a moment only ([`FrontendTerms::refusal_cache_ms`](crate::policy::FrontendTerms::refusal_cache_ms)), because
//! others may give something back meanwhile: then a key is refused too long, at most by that moment. An answer is not kept if the object
//! says that its own reservations and holds can give back. What this isolate gives back invalidates the answer at once.
//!
//! A grant also shows the levels, which are lower than in the remembered refusal, so it replaces the refusal for the rest of its moment:
//! while small costs are granted, large ones are still refused.
//!
//! A refusal older than a lease of this isolate (see `leases.rs`) still includes the leased tokens: each grant from the lease lowers it, or
//! a wait would be too short. An answer is not whole, and not kept, if it lacks tokens leased here, since it would refuse what passes once
//! they are given back, or if it is late and includes what was spent since.
//!
//! Clocks may differ, so only lengths of time are measured: since the call began, which is at least the time since the decision, so that no
//! key is refused after its wait; and since the answer, which is at most that time, so that no reported wait is too short.
//!
//! A policy that bans keys for being refused counts their refusals, so the object must see each of them; only while a key is banned is it
//! refused from here.
//!
//! What comes back of a rolling window is not in its state: an answer that may be kept says when which tokens do, for the next of them. What
//! passes only later is unknown. A grant does not say it, so it makes the isolate forget.
//!
//! Two generations bound the memory: a flood of other keys can only push out a key that is not requested while [`MAX_BUDGETS`](super::MAX_BUDGETS) others are
//! refused, and each of those refusals was a call.

use super::answer_time::AnswerTime;
use super::budget::{Budget, budget};
use super::generations::Generations;
use crate::limit::{Decision, Part, State, Verb, decide_policies};
use crate::policy::{Ban, NamedLimit, Policy, Standing};
use crate::protocol::{ComingBack, Decided, LimitAnswer};

/// A frontend's memory of refused keys.
#[derive(Debug, Default)]
pub(super) struct Refusals(Generations<Budget, Entry>);

#[derive(Clone, Debug)]
enum Entry {
    Kept(Kept),
    /// The isolate gave something back at this moment: answers to calls that began before are late.
    Outdated(i64),
}

#[derive(Clone, Debug)]
struct Kept {
    /// The [id](Policy::id) of the policy under which the request was made.
    policy: u64,
    /// The limits' state, lowered by what was spent from leases since.
    known: Known,
    /// What was spent of each limit; empty if nothing was.
    spent: Box<[u64]>,
    /// The time of the latest answer.
    time: AnswerTime,
    /// When the refused call began, by the isolate's clock: the refusal is remembered from then. Later grants do not prolong that, so that
    /// waiting callers reach the object again.
    refused_at: i64,
}

/// An upper bound of an object's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The answer, as if nothing else had been taken since.
    pub decided: Decided,
    /// Whether it is certainly a refusal, unless something was given back elsewhere.
    pub is_refused: bool,
}

impl Refusals {
    /// The answer of the object with this name at `now` to a request with these costs of each limit of each policy, if known for all of
    /// them.
    pub(super) fn bound<'a>(
        &mut self,
        object: &str,
        asked: impl Iterator<Item = (&'a Policy, &'a [u64])> + Clone,
        verb: Verb,
        now: i64,
    ) -> Option<Bound> {
        let mut all = Vec::new();
        // By the object's clock.
        let (mut latest, mut earliest) = (i64::MIN, i64::MIN);
        for (policy, costs) in asked.filter(|(policy, _)| !policy.limits().is_empty()) {
            let kept = self.kept(budget(object, policy)?, policy, now)?;
            let AnswerTime { decided_at, called_at, answered_at } = kept.time;
            latest = latest.max(decided_at.saturating_add(now.saturating_sub(called_at)));
            earliest = earliest.max(decided_at.saturating_add(now.saturating_sub(answered_at)));
            let has_room = |((limit, spent), cost): ((&NamedLimit, &u64), &u64)| {
                spent.saturating_add(*cost) <= limit.limit().config().capacity
            };
            // The object learns of spent tokens later; a bucket it counts as full until then refills no further: this wait would be too
            // short.
            if !policy.limits().iter().zip(&kept.spent).zip(costs).all(has_room) {
                return None;
            }
            all.push((policy, costs, kept.known));
        }
        if all.is_empty() {
            return None;
        }
        let (at_latest, _) = decide(&all, verb, latest)?;
        let (at_earliest, limits) = decide(&all, verb, earliest)?;
        let is_refused = !at_latest.is_allow() && !at_earliest.is_allow();
        Some(Bound { decided: Decided::new(earliest, limits), is_refused })
    }

    /// Records an object's answer about these policies, whether the request was granted, and whether the answer is whole.
    pub(super) fn answered<'a>(
        &mut self,
        object: &str,
        asked: impl Iterator<Item = &'a Policy>,
        (is_granted, is_whole): (bool, bool),
        decided: &Decided,
        time: &AnswerTime,
    ) {
        match (is_granted, is_whole) {
            (true, true) => self.granted(object, asked, decided, time),
            (true, false) => asked.for_each(|policy| self.forget_kept(object, policy, time.answered_at, |_| true)),
            (false, true) => self.keep(object, asked, decided, time),
            (false, false) => {}
        }
    }

    /// Remembers an object's answer.
    fn keep<'a>(
        &mut self,
        object: &str,
        asked: impl Iterator<Item = &'a Policy>,
        decided: &Decided,
        time: &AnswerTime,
    ) {
        if !decided.may_be_kept || time.has_stepped_back() {
            return;
        }
        for (policy, known) in standing(asked, decided) {
            let (Some(known), Some(budget)) = (known, budget(object, policy)) else { return };
            let is_late = match self.0.get_mut(budget) {
                Some(Entry::Outdated(at)) => time.called_at <= *at,
                Some(Entry::Kept(kept)) => time.is_before(&kept.time),
                None => false,
            };
            if !is_late && may_keep(policy, &known) {
                let (policy, spent, refused_at) = (policy.id(), Box::default(), time.called_at);
                self.0.insert(budget, Entry::Kept(Kept { policy, known, spent, time: *time, refused_at }));
            }
        }
    }

    /// Records an object's grant. What is remembered of these budgets is replaced by the answer, or forgotten if that must not be kept.
    /// Nothing else is added, so grants never push out refusals.
    fn granted<'a>(
        &mut self,
        object: &str,
        asked: impl Iterator<Item = &'a Policy>,
        decided: &Decided,
        time: &AnswerTime,
    ) {
        if self.len() == 0 {
            return;
        }
        for (policy, known) in standing(asked, decided) {
            let Some(budget) = budget(object, policy) else { return };
            let Some(Entry::Kept(kept)) = self.0.get_mut(budget) else { continue };
            match known {
                Some(known)
                    if decided.may_be_kept
                        && !time.has_stepped_back()
                        && may_keep(policy, &known)
                        && kept.policy == policy.id() =>
                {
                    if !time.is_before(&kept.time) {
                        (kept.known, kept.spent, kept.time) = (known, Box::default(), *time);
                    }
                }
                _ => self.forget(object, policy, time.answered_at),
            }
        }
    }

    /// Records that leases granted these costs at `now`. The leases are younger than what is remembered: answers that are not whole are not
    /// kept, and [`Refusals::leased`] forgets them.
    pub(super) fn spent(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) {
        let Some(Entry::Kept(kept)) = budget(object, policy).and_then(|budget| self.0.get_mut(budget)) else { return };
        if kept.policy != policy.id() {
            return;
        }
        // The earliest possible moment, so that this stays an upper bound: if the bucket was full until later, it has refilled less since.
        let AnswerTime { decided_at, answered_at, .. } = kept.time;
        let at = decided_at.saturating_add(now.saturating_sub(answered_at));
        if kept.spent.is_empty() {
            kept.spent = vec![0; costs.len()].into();
        }
        let limits = kept.known.limits.iter_mut().zip(&mut kept.spent).zip(policy.limits());
        for ((((state, _), spent), limit), cost) in limits.zip(costs) {
            *state = limit.limit().lowered(&limit.limit().refilled(state, at), *cost);
            *spent = spent.saturating_add(*cost);
        }
    }

    /// Records that a lease came with this answer. Anything remembered from later lacks its tokens and is forgotten.
    pub(super) fn leased(&mut self, object: &str, policy: &Policy, given: &AnswerTime) {
        self.forget_kept(object, policy, given.answered_at, |kept| given.order(&kept.time).is_le());
    }

    /// Forgets a budget to which the isolate gives something back: before the request, and again after its answer.
    pub(super) fn forget(&mut self, object: &str, policy: &Policy, now: i64) {
        if let Some(budget) = budget(object, policy) {
            self.0.insert(budget, Entry::Outdated(now));
        }
    }

    /// Forgets what is remembered of a budget, if anything is, without pushing out other budgets.
    fn forget_kept(&mut self, object: &str, policy: &Policy, now: i64, is_meant: impl FnOnce(&Kept) -> bool) {
        let Some(budget) = budget(object, policy) else { return };
        if let Some(entry) = self.0.get_mut(budget)
            && let Entry::Kept(kept) = entry
            && is_meant(kept)
        {
            *entry = Entry::Outdated(now);
        }
    }

    /// The number of known budgets.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// What is known of a budget at `now`, if usable.
    fn kept(&mut self, budget: Budget, policy: &Policy, now: i64) -> Option<Kept> {
        let max_ms = i64::try_from(policy.frontend().refusal_cache_ms).unwrap_or(i64::MAX);
        let (is_over, found) = match self.0.get_mut(budget)? {
            Entry::Kept(kept) => {
                // A clock that stepped back must not pass the same moments again.
                let is_fresh = kept.time.answered_at <= now && now.saturating_sub(kept.refused_at) < max_ms;
                (!is_fresh || kept.policy != policy.id(), Some(kept.clone()))
            }
            Entry::Outdated(at) => (now < *at, None),
        };
        if is_over {
            self.0.remove(budget);
            return None;
        }
        found
    }
}

/// A key without limits is not refused, and its answers are no bound.
fn may_keep(policy: &Policy, known: &Known) -> bool {
    let is_counted = policy.object().ban.is_some() && known.ban.is_none();
    policy.frontend().refusal_cache_ms > 0 && policy.standing() != Standing::Unlimited && !is_counted
}

/// What is known of a policy's limits.
#[derive(Clone, Debug)]
struct Known {
    /// The state of each, and of a rolling window also what comes back.
    limits: Box<[(State, ComingBack)]>,
    /// The key's ban.
    ban: Option<Ban>,
}

/// What an answer says of each policy's limits, if it includes all that must be known.
fn standing<'a>(
    asked: impl Iterator<Item = &'a Policy>,
    decided: &Decided,
) -> impl Iterator<Item = (&'a Policy, Option<Known>)> {
    let (mut answers, mut coming_back) = (decided.limits.iter(), decided.coming_back.iter());
    asked.filter(|policy| !policy.limits().is_empty()).map(move |policy| {
        let ban = answers.as_slice().first().and_then(|answer| answer.ban);
        let limits = policy.limits().iter().map(NamedLimit::limit).zip(answers.by_ref());
        let known = limits.map(|(limit, answer)| {
            let coming_back = if limit.is_rolling() { coming_back.next()?.clone() } else { ComingBack::default() };
            Some((limit.restored(&answer.snapshot)?, coming_back))
        });
        (policy, known.collect::<Option<_>>().map(|limits| Known { limits, ban }))
    })
}

/// A policy, the cost of each of its limits, and what is known of them.
type Asked<'a> = (&'a Policy, &'a [u64], Known);

/// The decision of all limits, and each limit's answer, at a moment of the object's clock; `None` if not known.
fn decide<'a>(all: &[Asked<'a>], verb: Verb, now: i64) -> Option<(Decision, Vec<LimitAnswer>)> {
    let parts = |(policy, costs, known): &Asked<'a>| {
        let limits = policy.limits().iter().map(NamedLimit::limit).zip(&known.limits).zip(*costs);
        let part = |((limit, (state, coming_back)), cost): ((_, &(State, ComingBack)), &u64)| {
            Part::new(limit, limit.raised(state, coming_back.by(now)), *cost)
        };
        limits.map(part).collect::<Vec<_>>()
    };
    let mut policies: Vec<_> = all.iter().map(parts).collect();
    let states: Vec<_> = policies.iter().flatten().map(|part| part.state).collect();
    let mut decision = decide_policies(&mut policies, now, verb);
    let mut decided = policies.iter().flatten().zip(&states);
    let mut answers = Vec::new();
    for (policy, _, known) in all {
        let ban = policy.ban(known.ban.and_then(|ban| ban.until), now);
        if ban.is_none() && policy.object().ban.is_some() {
            return None; // the object must count it
        }
        let in_ban = |own: Decision| ban.filter(|_| verb.takes()).map_or(own, |ban| ban.decision(own));
        decision = decision.and(in_ban(Decision::Allow { tokens: 0, ready_at: now }));
        for ((kept, coming_back), (part, state)) in known.limits.iter().zip(decided.by_ref()) {
            let Part { limit, cost, decision: own, .. } = *part;
            let kept = limit.snapshot(kept);
            let own = if limit.is_rolling() && !own.is_allow() {
                limit.refusal_of_rolling(kept.tokens.into(), cost, verb, coming_back.iter())?
            } else {
                own
            };
            // The state is unchanged: nothing is taken.
            let mut answer = LimitAnswer { ban, ..LimitAnswer::new(limit, in_ban(own), state, now) };
            if limit.is_rolling() {
                answer.set_full_at(limit, now.max(kept.at.saturating_add_unsigned(limit.config().period_ms)));
            }
            answers.push(answer);
        }
    }
    Some((decision, answers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::MAX_BUDGETS;
    use crate::limit::Snapshot;

    const NOW: i64 = 1_700_000_000_000;

    fn policy(fields: &str) -> Policy {
        Policy::parse("p", &format!(r#"{{"rate":"10/s"{fields}}}"#)).unwrap()
    }

    fn object(number: usize) -> String {
        format!("{number:032x}{:032x}", 0)
    }

    /// The answer of an object whose key has two tokens left, to a call that took 20 ms.
    fn kept(policy: &Policy) -> Refusals {
        let mut refusals = Refusals::default();
        keep(&mut refusals, policy, &object(1));
        refusals
    }

    fn keep(refusals: &mut Refusals, policy: &Policy, object: &str) {
        refusals.keep(object, [policy].into_iter(), &refusal(policy, NOW), &time(0, (-10, 10)));
    }

    /// Milliseconds after `NOW`.
    fn time(decided: i64, (called, answered): (i64, i64)) -> AnswerTime {
        AnswerTime { decided_at: NOW + decided, called_at: NOW + called, answered_at: NOW + answered }
    }

    fn refusal(policy: &Policy, at: i64) -> Decided {
        let limit = policy.limits()[0].limit();
        let state = limit.restored(&Snapshot { tokens: 2, drops: 0, at }).unwrap();
        let answer = LimitAnswer::new(limit, Decision::Wait { retry_at: at + 300 }, &state, at);
        Decided { may_be_kept: true, ..Decided::new(at, vec![answer]) }
    }

    /// When the key can retry, if it is refused from memory.
    fn refused(refusals: &mut Refusals, policy: &Policy, cost: u64, now: i64) -> Option<Decision> {
        let bound = refusals.bound(&object(1), [(policy, &[cost][..])].into_iter(), Verb::Consume, now)?;
        bound.is_refused.then(|| bound.decided.decision())
    }

    #[test]
    fn a_cost_is_refused_for_as_long_as_it_is_too_large() {
        let policy = policy("");
        let mut refusals = kept(&policy);
        // A token refills every 100 ms. The answer may have taken up to 20 ms to return.
        for (cost, until) in [(3, 90), (4, 190), (5, 290), (10, 790)] {
            let wait = Decision::Wait { retry_at: NOW + until + 10 };
            assert_eq!(refused(&mut refusals, &policy, cost, NOW + 10), Some(wait));
            assert_eq!(refused(&mut refusals, &policy, cost, NOW + until - 1), Some(wait));
            assert_eq!(refused(&mut refusals, &policy, cost, NOW + until), None);
        }
        assert_eq!(refused(&mut refusals, &policy, 2, NOW + 10), None);
    }

    #[test]
    fn a_refusal_is_kept_only_as_long_as_the_policy_says() {
        for (fields, ms) in [("", 1_000), (r#","refusal_cache":"50ms""#, 50), (r#","refusal_cache":"0s""#, 0)] {
            let policy = Policy::parse("p", &format!(r#"{{"rate":"10/h"{fields}}}"#)).unwrap();
            let mut refusals = kept(&policy);
            assert_eq!(refused(&mut refusals, &policy, 9, NOW - 10 + ms - 1).is_some(), ms > 0);
            assert_eq!(refused(&mut refusals, &policy, 9, NOW - 10 + ms), None);
        }
    }

    #[test]
    fn no_refusal_outlasts_a_clock_step_back() {
        let policy = policy("");
        let mut refusals = kept(&policy);
        assert!(refused(&mut refusals, &policy, 9, NOW + 10).is_some());
        assert_eq!(refused(&mut refusals, &policy, 9, NOW + 9), None);
        assert_eq!(refused(&mut refusals, &policy, 9, NOW + 10), None, "not when it comes by again, either");
        refusals.keep(&object(2), [&policy].into_iter(), &refusal(&policy, NOW), &time(0, (10, 9)));
        assert_eq!(refusals.len(), 0);
    }

    #[test]
    fn a_change_of_numbers_forgets_the_refusal() {
        let old = policy("");
        for other in [policy(r#","max_debt":1"#), policy("").in_force_since(1)] {
            let mut refusals = kept(&old);
            assert!(refused(&mut refusals, &old, 9, NOW + 10).is_some());
            assert_eq!(refused(&mut refusals, &other, 9, NOW + 10), None);
            assert_eq!(refused(&mut refusals, &old, 9, NOW + 10), None, "nor by the old ones");
        }
    }

    #[test]
    fn a_banned_key_is_always_refused_and_one_without_limits_never() {
        let banned = |until| policy("").with_standing(Standing::Banned { until }, true);
        for (policy, refusal) in [
            (banned(None), Some(Decision::Never { max: 0 })),
            (banned(Some(NOW + 60_000)), Some(Decision::Wait { retry_at: NOW + 60_000 })),
            (banned(Some(NOW)), None),
            (policy("").with_standing(Standing::Unlimited, true), None),
        ] {
            let mut refusals = kept(&policy);
            assert_eq!(refused(&mut refusals, &policy, 1, NOW + 10), refusal, "{:?}", policy.standing());
        }
    }

    /// The object counts refusals, so only a ban is repeated, and only until it ends by the object's clock at the earliest.
    #[test]
    fn a_policy_that_bans_is_refused_from_memory_only_while_its_ban_lasts() {
        let policy = policy(r#","ban":{"after":1,"within":"1m","for":"1m"}"#);
        assert_eq!(kept(&policy).len(), 0);
        let mut answer = refusal(&policy, NOW);
        for (until, refused_at, expected) in [
            (Some(NOW + 500), 10, Some(Decision::Wait { retry_at: NOW + 500 })),
            (Some(NOW + 500), 489, Some(Decision::Wait { retry_at: NOW + 500 })),
            (Some(NOW + 500), 490, None),
            (None, 989, Some(Decision::Never { max: 0 })),
        ] {
            let ban = Ban { until };
            let own = answer.limits[0];
            answer.limits[0] = LimitAnswer { decision: ban.decision(own.decision), ban: Some(ban), ..own };
            // Only an override bans for ever.
            let is_of_key = until.is_none();
            let standing = if is_of_key { Standing::Banned { until } } else { Standing::Limited };
            let of_key = policy.clone().with_standing(standing, is_of_key);
            let mut refusals = Refusals::default();
            refusals.keep(&object(1), [&of_key].into_iter(), &answer, &time(0, (-10, 10)));
            assert_eq!(refused(&mut refusals, &of_key, 1, NOW + refused_at), expected, "{until:?} {refused_at}");
        }
    }

    #[test]
    fn tokens_given_back_here_are_noticed_at_once_and_late_answers_ignored() {
        let policy = policy("");
        let mut refusals = kept(&policy);
        refusals.forget(&object(1), &policy, NOW - 10);
        assert_eq!(refused(&mut refusals, &policy, 9, NOW + 10), None);
        keep(&mut refusals, &policy, &object(1)); // a call that began at that moment
        assert_eq!(refused(&mut refusals, &policy, 9, NOW + 10), None);
        let mut refusals = Refusals::default();
        refusals.forget(&object(1), &policy, NOW - 11);
        keep(&mut refusals, &policy, &object(1));
        assert!(refused(&mut refusals, &policy, 9, NOW + 10).is_some());
    }

    /// The answer of an object that granted something at that moment and has this many tokens left.
    fn grant(policy: &Policy, tokens: i64, at: i64) -> Decided {
        let limit = policy.limits()[0].limit();
        let state = limit.restored(&Snapshot { tokens, drops: 0, at }).unwrap();
        let answer = LimitAnswer::new(limit, Decision::Allow { tokens: 1, ready_at: at }, &state, at);
        Decided { may_be_kept: true, ..Decided::new(at, vec![answer]) }
    }

    #[test]
    fn a_grant_lengthens_waits_and_is_remembered_no_longer_than_the_refusal() {
        let policy = policy("");
        let granted = |refusals: &mut Refusals, decided: &Decided, called: i64| {
            let time = time(decided.now - NOW, (called, called + 20));
            refusals.granted(&object(1), [&policy].into_iter(), decided, &time);
        };
        let wait = |until| Some(Decision::Wait { retry_at: NOW + until });
        // The answer may have taken up to 20 ms to return.
        let mut refusals = kept(&policy);
        granted(&mut refusals, &grant(&policy, 0, NOW + 100), 90);
        assert_eq!(refused(&mut refusals, &policy, 1, NOW + 110), wait(200));
        assert_eq!(refused(&mut refusals, &policy, 10, NOW + 989), wait(1_100));
        assert_eq!(refused(&mut refusals, &policy, 10, NOW + 990), None, "a second after the call that was refused");
        // An older answer is ignored, whenever its call began.
        let mut refusals = kept(&policy);
        granted(&mut refusals, &grant(&policy, 9, NOW - 1), -5);
        assert_eq!(refused(&mut refusals, &policy, 10, NOW + 20), wait(800));
        // An answer that must not be kept makes the isolate forget, including answers in flight.
        let mut refusals = kept(&policy);
        granted(&mut refusals, &Decided { may_be_kept: false, ..grant(&policy, 0, NOW + 1) }, -10);
        keep(&mut refusals, &policy, &object(1));
        assert_eq!(refused(&mut refusals, &policy, 10, NOW + 10), None);
        let mut refusals = Refusals::default();
        granted(&mut refusals, &grant(&policy, 0, NOW), 0);
        assert_eq!(refusals.len(), 0, "a key that was not refused is not remembered");
    }

    #[test]
    fn grants_from_leases_are_subtracted() {
        let policy = policy("");
        let wait = |until| Some(Decision::Wait { retry_at: NOW + until });
        let mut refusals = kept(&policy);
        assert_eq!([9, 10].map(|cost| refused(&mut refusals, &policy, cost, NOW + 20)), [wait(700), wait(800)]);
        refusals.spent(&object(1), &policy, &[1], NOW + 20);
        // The object may find the bucket full before it learns of the grant: then the wait for all of it is unknown.
        assert_eq!([9, 10].map(|cost| refused(&mut refusals, &policy, cost, NOW + 20)), [wait(800), None]);
    }

    #[test]
    fn a_late_lease_from_before_a_refusal_makes_the_isolate_forget_it() {
        let policy = policy("");
        // The call that brought it began at 0, while that of the refusal was in flight, or afterwards.
        for (called, given_at, is_forgotten) in [(0, -1, true), (0, 0, true), (0, 1, false), (11, -1, false)] {
            let mut refusals = kept(&policy);
            refusals.leased(&object(1), &policy, &time(given_at, (called, 20)));
            assert_eq!(refused(&mut refusals, &policy, 10, NOW + 20).is_none(), is_forgotten, "{called}, {given_at}");
        }
    }

    #[test]
    fn a_flood_of_keys_keeps_a_busy_key_and_memory_is_bounded() {
        let policy = policy("");
        let mut refusals = kept(&policy);
        for number in 2..100_000 {
            keep(&mut refusals, &policy, &object(number));
            if number % MAX_BUDGETS == 0 {
                assert!(refused(&mut refusals, &policy, 9, NOW + 10).is_some(), "{number}");
            }
            assert!(refusals.len() <= 2 * MAX_BUDGETS);
        }
        for number in 0..=2 * MAX_BUDGETS {
            keep(&mut refusals, &policy, &object(1_000_000 + number));
        }
        assert_eq!(refused(&mut refusals, &policy, 9, NOW + 10), None);
    }
}
