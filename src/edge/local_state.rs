//! What a frontend knows of budgets without a call: leased tokens and recent refusals.
//!
//! A request is granted or refused from leases (see `leases.rs`), else refused from memory (see `refusals.rs`), else sent to its object.
//! Each part must know what the other does, since the object counts leased tokens as taken and learns only later which were spent. So both
//! are updated here.
//!
//! Each frontend of an isolate has its own: another may call different objects with the same names.

use super::answer_time::AnswerTime;
use super::lease_pool::Return;
use super::leases::{Leased, Leases};
use super::refusals::{Bound, Refusals};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::{Decided, LeaseRequest, take_part};

/// A frontend's knowledge of budgets.
///
/// A request is sent to its object if neither [`LocalState::consume`] nor [`LocalState::bound`] decides it:
/// ```
/// use tollgate::{edge::LocalState, limit::Verb, policy::Policy};
///
/// let policy = Policy::parse("api", r#"{"rate":"10/s","lease":"2s"}"#).unwrap();
/// let (object, costs, now) = ("0".repeat(64), [1], 1_800_000_000_000);
/// let mut known = LocalState::default();
/// assert_eq!(known.consume(&object, &policy, &costs, now), None);
/// let asked = [(&policy, &costs[..])].into_iter();
/// assert_eq!(known.bound(&object, asked, Verb::Consume, true, now), None);
/// ```
#[derive(Debug, Default)]
pub struct LocalState {
    leases: Leases,
    refusals: Refusals,
}

impl LocalState {
    /// Answers a request with these costs of each limit of a policy from leases, at `now`; `None` if they have not enough. The request must
    /// only take tokens.
    pub fn consume(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<Leased> {
        let leased = self.leases.consume(object, policy, costs, now)?;
        if leased.decided.decision().is_allow() && self.refusals.len() > 0 {
            self.refusals.spent(object, policy, costs, now);
        }
        Some(leased)
    }

    /// Whether any refusal is remembered. If none is, [`LocalState::bound`] returns `None`.
    #[must_use]
    pub fn remembers_any(&self) -> bool {
        self.refusals.len() > 0
    }

    /// The answer of the object with this name at `now` to a request with these costs of each limit of each policy, if known for all of
    /// them. For a request that leases may grant, leased tokens count as returned; the object would refuse others for longer, so for these
    /// nothing is known meanwhile.
    pub fn bound<'a>(
        &mut self,
        object: &str,
        asked: impl Iterator<Item = (&'a Policy, &'a [u64])> + Clone,
        verb: Verb,
        may_be_leased: bool,
        now: i64,
    ) -> Option<Bound> {
        if !may_be_leased && asked.clone().any(|(policy, _)| self.leases.withhold_any(object, policy, now)) {
            return None;
        }
        self.refusals.bound(object, asked, verb, now)
    }

    /// The lease request to send with a request at `now` that leases may grant, but that exceeds them. They end, since what is left of them
    /// would be withheld from that request, too.
    pub fn ask(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<LeaseRequest> {
        self.leases.ask(object, policy, costs, now)
    }

    /// Takes an object's answer to the lease request `request`; the call began and was answered at these moments. Call it before
    /// [`LocalState::answered`]. Returns the lease's id and the delay in milliseconds before [`LocalState::end`].
    pub fn leased(
        &mut self,
        object: &str,
        policy: &Policy,
        request: &LeaseRequest,
        decided: &Decided,
        (called_at, answered_at): (i64, i64),
    ) -> Option<(u64, u64)> {
        let given = AnswerTime { decided_at: decided.now, called_at, answered_at };
        let leased = self.leases.answered(object, policy, request, decided, given);
        if leased.is_some() {
            self.refusals.leased(object, policy, &given);
        }
        leased
    }

    /// Records an object's answer about these policies to a request to take tokens, and whether it was granted. The call began and was
    /// answered at these moments.
    pub fn answered<'a>(
        &mut self,
        object: &str,
        asked: impl Iterator<Item = &'a Policy> + Clone,
        (is_granted, decided): (bool, &Decided),
        (called_at, answered_at): (i64, i64),
    ) {
        let time = AnswerTime { decided_at: decided.now, called_at, answered_at };
        let is_whole = asked.clone().all(|policy| self.leases.is_whole(object, policy, decided, &time));
        let mut rest = decided.limits.as_slice();
        for policy in asked.clone() {
            let own = take_part(&mut rest, policy.limits().len());
            if is_granted {
                self.leases.granted(object, policy, (own, decided), &time);
            } else {
                self.leases.refused(object, policy, answered_at);
            }
        }
        self.refusals.answered(object, asked, (is_granted, is_whole), decided, &time);
    }

    /// Records that a lease request was not answered.
    pub fn failed(&mut self, object: &str, policy: &Policy, request: &LeaseRequest, now: i64) {
        self.leases.failed(object, policy, request, now);
    }

    /// The next step for the lease with this id at `now`: an idle lease is returned, and so is the rest of one that is over.
    pub fn end(&mut self, object: &str, policy: &Policy, id: u64, now: i64) -> Return {
        self.leases.end(object, policy, id, now)
    }

    /// Forgets the refusals of a budget to which the frontend gives something back. Call it before that request and after its answer.
    pub fn forget(&mut self, object: &str, policy: &Policy, now: i64) {
        self.leases.forget(object, policy);
        self.refusals.forget(object, policy, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Decision, Snapshot};
    use crate::protocol::{Lease, LimitAnswer};

    const NOW: i64 = 1_700_000_000_000;
    const OBJECT: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn policy() -> Policy {
        Policy::parse("p", r#"{"rate":"10/s","lease":"2s","refusal_cache":"10s"}"#).unwrap()
    }

    /// An object's decision, and its tokens then, this many milliseconds after `NOW`.
    fn said(decision: Decision, tokens: i64, at: i64) -> Decided {
        let (policy, now) = (policy(), NOW + at);
        let limit = policy.limits()[0].limit();
        let state = limit.restored(&Snapshot { tokens, drops: 0, at: now }).unwrap();
        Decided { may_be_kept: true, ..Decided::new(now, vec![LimitAnswer::new(limit, decision, &state, now)]) }
    }

    fn grant(tokens: i64, at: i64) -> Decided {
        said(Decision::Allow { tokens: 1, ready_at: NOW + at }, tokens, at)
    }

    /// Whether the refusal of a large cost is remembered if it was decided then, in a call that began then.
    fn is_believed(known: &mut LocalState, (called, at, answered): (i64, i64, i64)) -> bool {
        let policy = policy();
        known.refusals = Refusals::default();
        let refusal = said(Decision::Wait { retry_at: NOW + at + 300 }, 2, at);
        known.answered(OBJECT, [&policy].into_iter(), (false, &refusal), (NOW + called, NOW + answered));
        refuses(known, true, answered)
    }

    fn refuses(known: &mut LocalState, may_be_leased: bool, at: i64) -> bool {
        let policy = policy();
        let asked = [(&policy, &[7][..])].into_iter();
        known.bound(OBJECT, asked, Verb::Consume, may_be_leased, NOW + at).is_some_and(|bound| bound.is_refused)
    }

    /// A lease of three tokens until 2 010, given at 10 in a call from 0 to 20.
    fn leasing() -> LocalState {
        let (policy, mut known) = (policy(), LocalState::default());
        let mut ask = || known.ask(OBJECT, &policy, &[1], NOW);
        let none = (0..47).all(|_| ask().is_none());
        known.leases.refused(OBJECT, &policy, NOW);
        let request = known.ask(OBJECT, &policy, &[1], NOW).filter(|_| none).unwrap();
        let lease = Lease { id: 1, from: NOW + 10, until: NOW + 2_010, tokens: vec![3] };
        let given = Decided { lease: Some(lease), ..grant(0, 10) };
        known.leased(OBJECT, &policy, &request, &given, (NOW, NOW + 20)).unwrap();
        known
    }

    #[test]
    fn no_late_answer_is_believed_once_a_newer_lease_is_spent_from_or_returned() {
        let (policy, mut known) = (policy(), leasing());
        for (at, is_whole) in [(9, true), (10, false)] {
            assert_eq!(
                is_believed(&mut known, (0, at, 50)),
                is_whole,
                "its tokens were there before it was given: {at}"
            );
        }
        assert!(known.consume(OBJECT, &policy, &[1], NOW + 30).is_some());
        assert!(!is_believed(&mut known, (0, 9, 50)), "one of them is spent");
        let Return::Send(ended) = known.end(OBJECT, &policy, 1, NOW + 1_500) else { panic!("it is idle") };
        assert!(!is_believed(&mut known, (1_490, 1_499, 1_540)), "the object has not heard yet");
        known.leased(OBJECT, &policy, &ended, &grant(4, 1_500), (NOW + 1_495, NOW + 1_510));
        for (called, at, is_young) in [
            (1_490, 1_499, false),
            // Within one millisecond of the object's clock, the call that began earlier counts as earlier.
            (1_494, 1_500, false),
            (1_495, 1_500, true),
            // The object's clock stepped back.
            (1_510, 0, false),
            (1_511, 0, true),
        ] {
            assert_eq!(is_believed(&mut known, (called, at, 1_540)), is_young, "{called}, {at}");
        }
    }

    #[test]
    fn no_late_refusal_is_believed_after_a_grant_beside_leases() {
        let (policy, mut known) = (policy(), leasing());
        let Return::Send(ended) = known.end(OBJECT, &policy, 1, NOW + 1_500) else { panic!("it is idle") };
        known.leased(OBJECT, &policy, &ended, &grant(3, 1_500), (NOW + 1_495, NOW + 1_510));
        known.answered(OBJECT, [&policy].into_iter(), (true, &grant(0, 1_530)), (NOW + 1_520, NOW + 1_540));
        for (at, is_young) in [(1_529, false), (1_530, true)] {
            assert_eq!(is_believed(&mut known, (1_520, at, 1_550)), is_young, "{at}");
        }
    }

    /// Even if all its tokens are spent: the object may count the bucket as full until then.
    #[test]
    fn no_refusal_is_kept_while_a_lease_is_open() {
        let (policy, now) = (policy(), 60);
        let mut known = leasing();
        assert!(known.consume(OBJECT, &policy, &[3], NOW + now).is_some());
        // Given at 10 until 2 010. The call took 20 ms, so it may be 2 020 by the isolate's clock, and three seconds more.
        for (called, is_believable) in [(now, false), (5_019, false), (5_020, true)] {
            assert_eq!(is_believed(&mut known, (called, called, called)), is_believable, "{called}");
        }
    }

    #[test]
    fn no_unleased_request_is_refused_from_memory_while_a_lease_is_open() {
        let policy = policy();
        for spent in [0, 3] {
            let mut known = leasing();
            assert!(is_believed(&mut known, (0, 9, 50)));
            assert!(spent == 0 || known.consume(OBJECT, &policy, &[spent], NOW + 60).is_some());
            // Nothing is withheld of a spent lease.
            assert_eq!(refuses(&mut known, false, 60), spent == 3);
        }
        let mut known = leasing();
        assert!(is_believed(&mut known, (0, 9, 50)));
        let Return::Send(_) = known.end(OBJECT, &policy, 1, NOW + 1_500) else { panic!("it is idle") };
        // The object never learns of its end.
        for (called, is_given_up) in [(5_019, false), (5_020, true)] {
            is_believed(&mut known, (called, called, called));
            assert_eq!(refuses(&mut known, false, called), is_given_up, "{called}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_makes_no_answer_late_and_extends_no_lease() {
        // The object's clock steps, too, or does not.
        for step_ms in [10_000, 0] {
            let (policy, mut known) = (policy(), leasing());
            assert!(known.consume(OBJECT, &policy, &[1], NOW + 30).is_some());
            // The lease ends when the step is seen, ten seconds back. Of its time 5 020 - 30 ms are left.
            assert!(known.consume(OBJECT, &policy, &[1], NOW - 9_970).is_none());
            for (called, is_given_up) in [(-4_981, false), (-4_980, true)] {
                let decided = called + 10_000 - step_ms;
                assert_eq!(is_believed(&mut known, (called, decided, called)), is_given_up, "{called}, {decided}");
                assert_eq!(refuses(&mut known, false, called), is_given_up, "{called}");
            }
        }
    }

    /// A late report may still be in time.
    #[test]
    fn a_clock_that_steps_forward_forgets_no_unreturned_lease() {
        let (policy, mut known) = (policy(), leasing());
        let returned = (0..2).find_map(|_| known.ask(OBJECT, &policy, &[9], NOW + 60_000)).unwrap();
        assert_eq!(returned.ended.len(), 1);
    }

    #[test]
    fn grants_without_a_refusal_are_not_remembered_even_beside_leases() {
        let (policy, mut known) = (policy(), leasing());
        known.answered(OBJECT, [&policy].into_iter(), (true, &grant(0, 30)), (NOW + 21, NOW + 40));
        assert_eq!(known.refusals.len(), 0);
    }
}
