//! Which calls are made when, and the outcome: step by step, with answers chosen by the test.

use tollgate::edge::{BATCH_MS, Batch, CALL_MS, Failure, ObjectCall, Outcome};
use tollgate::limit::{Decision, Snapshot, Verb};
use tollgate::policy::Cause;
use tollgate::protocol::{Action, Decided, Format, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};

use super::asked;

const NOW: i64 = 1_700_000_000_000;
const REQUEST_ID: RequestId = RequestId { id: 7, fingerprint: 8, ttl_ms: 0, by_grant: false };

fn request(action: Action) -> ObjectRequest {
    ObjectRequest { request_id: Some(REQUEST_ID), ..asked::request(action, vec![vec![1]]) }
}

/// A batch over objects that hold under 100, 101, ...
fn batch(objects: u64) -> Batch {
    Batch::new((0..objects).map(|object| request(Action::Hold(100 + object))).collect(), NOW)
}

fn decided(decision: Decision, reservation: Option<u64>) -> ObjectReply {
    let snapshot = Snapshot { tokens: 0, drops: 0, at: NOW };
    let limit = LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot, ban: None };
    let reservation = reservation.map(|id| Reserved { id, expires_at: NOW });
    let limits = vec![limit];
    ObjectReply::Decided(Decided { reservation, ..Decided::new(NOW, limits) })
}

fn grant() -> ObjectReply {
    decided(Decision::Allow { tokens: 1, ready_at: NOW }, None)
}

fn held(id: u64) -> ObjectReply {
    decided(Decision::Allow { tokens: 1, ready_at: NOW }, Some(id))
}

fn refusal() -> ObjectReply {
    decided(Decision::Never { max: 0 }, None)
}

const fn failure(cause: Cause) -> Failure {
    Failure { cause, is_retryable: false }
}

/// The calls that are due now, without the details that other tests check.
fn due(batch: &mut Batch, now: i64) -> Vec<(usize, Action)> {
    std::iter::from_fn(|| batch.next(now)).map(|call| (call.object, call.request.action)).collect()
}

/// The calls and answers of two objects, up to the given step.
fn at_step(step: u64) -> Batch {
    let mut batch = batch(2);
    let answers = [|_| grant(), held];
    for answer in answers.into_iter().take(usize::try_from(step).unwrap()) {
        due(&mut batch, NOW);
        for object in 0..2 {
            batch.answered(object, Ok(answer(100 + object as u64)));
        }
    }
    due(&mut batch, NOW);
    batch
}

#[test]
fn one_object_is_one_call() {
    for action in [Action::Take(Verb::Refund), Action::Look(Verb::Consume), Action::Settle(5), Action::Cancel(6)] {
        for reply in [grant(), refusal(), ObjectReply::NoReservation, ObjectReply::RequestIdReused] {
            let mut batch = Batch::new(vec![request(action)], NOW);
            let ObjectCall { object, request: asked, dialect, wait_ms, is_repeated } = batch.next(NOW).unwrap();
            assert_eq!((object, &asked, wait_ms, is_repeated), (0, &request(action), CALL_MS, false));
            assert_eq!((dialect.format, dialect.has_definitions), (Format::NEWEST, false));
            assert_eq!((batch.next(NOW), batch.outcome()), (None, None));
            batch.answered(0, Ok(reply.clone()));
            assert_eq!(batch.next(NOW), None);
            assert_eq!(batch.outcome(), Some(&Outcome::Decided(vec![Ok(reply)])));
            assert!(batch.is_over());
        }
    }
}

#[test]
fn a_call_that_is_late_may_have_done_anything_whatever_else_is_said_of_it() {
    for (is_late, is_overloaded, cause) in [
        (false, false, Cause::Failed),
        (false, true, Cause::Overloaded),
        (true, false, Cause::Timeout),
        (true, true, Cause::Timeout),
    ] {
        for is_retryable in [false, true] {
            assert_eq!(Failure::of(is_late, is_overloaded, is_retryable), Failure { cause, is_retryable });
        }
    }
}

#[test]
fn a_call_that_may_succeed_is_retried_once_unless_the_object_is_overloaded() {
    for cause in Cause::ALL {
        for is_retryable in [false, true] {
            let failure = Failure { cause, is_retryable };
            let mut batch = Batch::new(vec![request(Action::Take(Verb::Consume))], NOW);
            let first = batch.next(NOW).unwrap();
            batch.answered(0, Err(failure));
            if is_retryable && cause != Cause::Overloaded {
                let again = ObjectCall { is_repeated: true, ..first };
                assert_eq!(batch.next(NOW + 9), Some(again), "known by its id");
                batch.answered(0, Err(failure));
            }
            assert_eq!(batch.next(NOW + 9), None);
            assert_eq!(batch.outcome(), Some(&Outcome::Failed { causes: vec![cause], cause }));
        }
    }
}

#[test]
fn all_objects_are_asked_at_once_in_each_step() {
    let mut batch = batch(3);
    let all = |action: fn(u64) -> Action| vec![(0, action(100)), (1, action(101)), (2, action(102))];
    assert_eq!(due(&mut batch, NOW), all(|_| Action::Look(Verb::Consume)));
    for object in [1, 2, 0] {
        assert_eq!(due(&mut batch, NOW), []);
        batch.answered(object, Ok(grant()));
    }
    assert_eq!(due(&mut batch, NOW), all(Action::Hold));
    for object in [2, 0, 1] {
        assert_eq!(due(&mut batch, NOW), []);
        batch.answered(object, Ok(held(100 + object as u64)));
    }
    assert_eq!(due(&mut batch, NOW), all(Action::Settle));
    for object in [0, 1, 2] {
        assert_eq!(batch.outcome(), None);
        batch.answered(object, Ok(grant()));
    }
    assert_eq!(batch.outcome(), Some(&Outcome::Decided(vec![Ok(grant()); 3])));
    assert!(batch.is_over());
}

#[test]
fn only_requests_that_a_client_may_repeat_are_checked_for_an_earlier_attempt() {
    for is_lasting in [false, true] {
        let ttl_ms = if is_lasting { RequestId::USUAL_TTL_MS } else { 0 };
        let request_id = Some(RequestId { ttl_ms, ..REQUEST_ID });
        let requests = [1, 2].map(|id| ObjectRequest { request_id, ..request(Action::Hold(id)) });
        let look = Batch::new(requests.to_vec(), NOW).next(NOW).unwrap().request;
        assert_eq!(look.request_id, request_id.filter(|_| is_lasting));
    }
}

#[test]
fn a_refusal_is_final_whatever_fails_before_or_after_it() {
    for cause in Cause::ALL {
        for step in [0, 1] {
            for refuses_first in [false, true] {
                for is_retryable in [false, true] {
                    let failure = Failure { cause, is_retryable };
                    let mut batch = at_step(step);
                    if refuses_first {
                        batch.answered(1, Ok(refusal()));
                    }
                    batch.answered(0, Err(failure));
                    // A call retried before the refusal fails again.
                    if !refuses_first && batch.outcome().is_none() && batch.next(NOW).is_some() {
                        batch.answered(0, Err(failure));
                        due(&mut batch, NOW);
                    }
                    if !refuses_first {
                        batch.answered(1, Ok(refusal()));
                    }
                    let first = if step == 0 { Err(cause) } else { Ok(grant()) };
                    assert_eq!(batch.outcome(), Some(&Outcome::Decided(vec![first, Ok(refusal())])));
                }
            }
        }
    }
}

#[test]
fn a_failed_peek_waits_for_the_others_because_one_may_refuse() {
    let mut batch = at_step(0);
    batch.answered(0, Err(failure(Cause::Failed)));
    assert_eq!((due(&mut batch, NOW), batch.outcome()), (vec![], None));
    batch.answered(1, Ok(grant()));
    let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
    assert_eq!((due(&mut batch, NOW), batch.outcome()), (vec![], Some(&failed)));
    assert!(batch.is_over(), "nothing was held");
}

#[test]
fn holds_are_aborted_at_once_and_not_waited_for() {
    let mut batch = batch(3);
    due(&mut batch, NOW);
    (0..3).for_each(|object| batch.answered(object, Ok(grant())));
    due(&mut batch, NOW);
    batch.answered(0, Ok(held(100)));
    batch.answered(1, Ok(refusal()));
    assert_eq!(due(&mut batch, NOW), [(0, Action::Cancel(100))], "while the last may still refuse");
    assert_eq!(batch.outcome(), None);
    batch.answered(2, Err(failure(Cause::Timeout)));
    assert_eq!(due(&mut batch, NOW), [(2, Action::Cancel(102))], "it may have been done");
    assert_eq!(batch.outcome(), Some(&Outcome::Decided(vec![Ok(grant()), Ok(refusal()), Ok(grant())])));
    assert!(!batch.is_over());
    batch.answered(0, Err(failure(Cause::Timeout)));
    batch.answered(2, Err(Failure { cause: Cause::Failed, is_retryable: true }));
    assert_eq!(due(&mut batch, NOW), [(2, Action::Cancel(102))]);
    batch.answered(2, Ok(ObjectReply::NoReservation));
    assert!(batch.is_over());
}

#[test]
fn if_one_commit_fails_all_are_undone() {
    for result in [Err(failure(Cause::Timeout)), Err(failure(Cause::Overloaded)), Ok(ObjectReply::NoReservation)] {
        let mut batch = at_step(2);
        let is_gone = result.is_ok();
        batch.answered(0, Ok(grant()));
        batch.answered(1, result);
        let undone = [(0, Action::Cancel(100)), (1, Action::Cancel(101))];
        assert_eq!(due(&mut batch, NOW + 10_000), undone[..if is_gone { 1 } else { 2 }], "even late");
        assert!(matches!(batch.outcome(), Some(Outcome::Failed { .. })));
    }
}

/// Each call has two seconds, and all together five. Calls that would start later are not made.
#[test]
fn the_answer_is_due_after_five_seconds() {
    let mut batch = batch(2);
    let waits = |batch: &mut Batch, at: i64| -> Vec<u64> {
        std::iter::from_fn(|| batch.next(NOW + at)).map(|call| call.wait_ms).collect()
    };
    assert_eq!(waits(&mut batch, 0), [2_000, 2_000]);
    (0..2).for_each(|object| batch.answered(object, Ok(grant())));
    assert_eq!(waits(&mut batch, 1_999), [2_000, 2_000]);
    batch.answered(0, Ok(held(100)));
    batch.answered(1, Err(Failure { cause: Cause::Failed, is_retryable: true }));
    assert_eq!(waits(&mut batch, 3_500), [1_500]);
    batch.answered(1, Ok(held(101)));
    assert_eq!(waits(&mut batch, 4_999), [1, 1]);
    let mut late = at_step(1);
    (0..2).for_each(|object| late.answered(object, Ok(held(100 + object as u64))));
    let timeout = Outcome::Failed { causes: vec![Cause::Timeout], cause: Cause::Timeout };
    let end = NOW + i64::try_from(BATCH_MS).unwrap();
    assert_eq!(due(&mut late, end), [(0, Action::Cancel(100)), (1, Action::Cancel(101))]);
    assert_eq!(late.outcome(), Some(&timeout));
}

/// "Overloaded" promises that nothing was done, so it is reported only if no commit was sent.
#[test]
fn the_reported_cause_never_denies_what_may_have_been_done() {
    use Cause::{Failed, Overloaded, Timeout};
    for (step, first, second, told) in [
        (0, Timeout, Failed, Timeout),
        (0, Timeout, Overloaded, Overloaded),
        (1, Failed, Timeout, Failed),
        (1, Overloaded, Failed, Overloaded),
        (2, Overloaded, Timeout, Timeout),
        (2, Overloaded, Overloaded, Failed),
        (2, Failed, Overloaded, Failed),
    ] {
        let mut batch = at_step(step);
        batch.answered(0, Err(failure(first)));
        batch.answered(1, Err(failure(second)));
        let causes = if first == second { vec![first] } else { vec![first, second] };
        assert_eq!(batch.outcome(), Some(&Outcome::Failed { causes, cause: told }), "{step} {first:?} {second:?}");
    }
}

/// The first call may have been carried out, and its answer lost.
#[test]
fn an_overload_after_a_lost_answer_does_not_say_that_nothing_was_done() {
    let consume = Action::Take(Verb::Consume);
    let mut batch = Batch::new(vec![request(consume)], NOW);
    due(&mut batch, NOW);
    batch.answered(0, Err(Failure { cause: Cause::Failed, is_retryable: true }));
    assert_eq!(due(&mut batch, NOW), [(0, consume)]);
    batch.answered(0, Err(failure(Cause::Overloaded)));
    let failed = Outcome::Failed { causes: vec![Cause::Overloaded], cause: Cause::Failed };
    assert_eq!(batch.outcome(), Some(&failed));
}

#[test]
fn a_decision_about_other_limits_is_a_failure() {
    let ObjectReply::Decided(none) = grant() else { unreachable!() };
    let none = || ObjectReply::Decided(Decided { limits: vec![], ..none.clone() });
    for step in 0..3 {
        let mut batch = at_step(step);
        batch.answered(0, Ok(none()));
        batch.answered(1, Ok(if step == 1 { held(101) } else { grant() }));
        let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
        assert_eq!(batch.outcome(), Some(&failed), "step {step}");
    }
}

#[test]
fn a_key_with_too_many_batches_at_once_is_overloaded() {
    let mut batch = at_step(1);
    batch.answered(0, Ok(ObjectReply::TooManyReservations { max: 1_000 }));
    batch.answered(1, Ok(held(101)));
    let overloaded = Outcome::Failed { causes: vec![Cause::Overloaded], cause: Cause::Overloaded };
    assert_eq!(batch.outcome(), Some(&overloaded));
    assert_eq!(due(&mut batch, NOW), [(1, Action::Cancel(101))], "and there is no hold to abort");
}

#[test]
fn an_earlier_attempt_that_committed_is_not_committed_again() {
    let mut batch = at_step(1);
    batch.answered(0, Ok(grant())); // without a hold
    batch.answered(1, Ok(held(101)));
    assert_eq!(due(&mut batch, NOW), [(1, Action::Settle(101))]);
    batch.answered(1, Ok(grant()));
    assert_eq!(batch.outcome(), Some(&Outcome::Decided(vec![Ok(grant()), Ok(grant())])));
    let mut batch = at_step(1);
    (0..2).for_each(|object| batch.answered(object, Ok(grant())));
    assert_eq!(batch.outcome(), Some(&Outcome::Decided(vec![Ok(grant()), Ok(grant())])));
    assert!(batch.is_over());
}

#[test]
fn an_object_of_an_older_version_chooses_the_id_of_its_hold() {
    let mut batch = at_step(1);
    batch.answered(0, Ok(held(5)));
    batch.answered(1, Ok(held(6)));
    assert_eq!(due(&mut batch, NOW), [(0, Action::Settle(5)), (1, Action::Settle(6))]);
}

#[test]
fn an_object_that_lacks_the_policy_is_sent_its_definition_from_then_on() {
    let mut batch = batch(2);
    let first = batch.next(NOW).unwrap();
    due(&mut batch, NOW);
    batch.answered(1, Ok(grant()));
    batch.answered(0, Ok(ObjectReply::PolicyUnknown));
    let again = batch.next(NOW).unwrap();
    assert!(!first.dialect.has_definitions && again.dialect.has_definitions);
    assert_eq!(again.request, first.request);
    batch.answered(0, Ok(grant()));
    let definitions = |batch: &mut Batch| -> Vec<bool> {
        std::iter::from_fn(|| batch.next(NOW)).map(|call| call.dialect.has_definitions).collect()
    };
    assert_eq!(definitions(&mut batch), [true, false], "in the next step too");
    batch.answered(0, Ok(ObjectReply::PolicyUnknown));
    batch.answered(1, Ok(held(101)));
    let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
    assert_eq!(batch.outcome(), Some(&failed), "it cannot be helped");
}

#[test]
fn policies_that_no_object_has_are_defined_in_every_step() {
    let definitions = |batch: &mut Batch| -> Vec<bool> {
        std::iter::from_fn(|| batch.next(NOW)).map(|call| call.dialect.has_definitions).collect()
    };
    let mut batch = batch(2).with_definitions();
    assert_eq!(definitions(&mut batch), [true, true]);
    batch.answered(0, Ok(grant()));
    batch.answered(1, Ok(grant()));
    assert_eq!(definitions(&mut batch), [true, true]);
    // An object that still does not know them cannot be helped.
    batch.answered(0, Ok(ObjectReply::PolicyUnknown));
    batch.answered(1, Ok(held(101)));
    let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
    assert_eq!(batch.outcome(), Some(&failed));
}

fn outdated(as_of: i64, definitions: &str) -> ObjectReply {
    ObjectReply::PolicyOutdated { as_of, definitions: definitions.to_owned() }
}

#[test]
fn a_request_under_older_policies_is_retried_under_the_newer() {
    let newer = |as_of, definitions: &str| Outcome::Outdated { as_of, definitions: definitions.to_owned() };
    let mut batch = Batch::new(vec![request(Action::Take(Verb::Consume))], NOW);
    due(&mut batch, NOW);
    batch.answered(0, Ok(outdated(5, "a")));
    assert_eq!((batch.next(NOW), batch.outcome()), (None, Some(&newer(5, "a"))));

    // Of a batch nothing stays held.
    for step in 0..2 {
        let mut batch = at_step(step);
        let granted = if step == 0 { grant() } else { held(100) };
        batch.answered(0, Ok(granted));
        batch.answered(1, Ok(outdated(6, "b")));
        let aborts = if step == 0 { vec![] } else { vec![(0, Action::Cancel(100))] };
        assert_eq!((due(&mut batch, NOW), batch.outcome()), (aborts, Some(&newer(6, "b"))));
    }
    let mut batch = at_step(0);
    batch.answered(0, Ok(outdated(7, "a")));
    batch.answered(1, Ok(outdated(6, "b")));
    assert_eq!(batch.outcome(), Some(&newer(6, "a\nb")), "which is true of both");

    // A refusal is final, whatever else could be called.
    let mut batch = at_step(0);
    batch.answered(0, Ok(outdated(7, "a")));
    batch.answered(1, Ok(refusal()));
    assert!(matches!(batch.outcome(), Some(Outcome::Decided(_))));
}

#[test]
fn a_request_that_may_have_been_done_under_older_policies_is_not_retried() {
    let mut batch = Batch::new(vec![request(Action::Take(Verb::Consume))], NOW);
    due(&mut batch, NOW);
    batch.answered(0, Err(Failure { cause: Cause::Failed, is_retryable: true }));
    due(&mut batch, NOW);
    batch.answered(0, Ok(outdated(5, "a")));
    let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
    assert_eq!((batch.next(NOW), batch.outcome()), (None, Some(&failed)));
}

#[test]
fn a_format_that_cannot_be_agreed_on_is_a_failure() {
    let newest = u64::from(Format::NEWEST.number());
    for unknown in [0, newest, newest + 1, u64::MAX] {
        let mut batch = Batch::new(vec![request(Action::Take(Verb::Consume))], NOW);
        due(&mut batch, NOW);
        batch.answered(0, Ok(ObjectReply::FormatUnknown { newest: unknown }));
        let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
        assert_eq!((batch.next(NOW), batch.outcome()), (None, Some(&failed)), "{unknown}");
    }
}

#[test]
fn late_answers_change_nothing() {
    let mut batch = at_step(0);
    batch.answered(2, Ok(refusal()));
    batch.answered(0, Ok(grant()));
    batch.answered(0, Ok(refusal()));
    batch.answered(1, Ok(grant()));
    assert_eq!(due(&mut batch, NOW), [(0, Action::Hold(100)), (1, Action::Hold(101))]);
}

/// A batch over an object that can refuse, and one with only limits in shadow.
fn beside_shadow() -> Batch {
    let tried = ObjectRequest { costs: vec![vec![]], shadow_costs: vec![vec![1]], ..request(Action::Hold(101)) };
    Batch::new(vec![request(Action::Hold(100)), tried], NOW)
}

fn unenforced(reservation: Option<u64>) -> ObjectReply {
    let ObjectReply::Decided(decided) = held(0) else { unreachable!() };
    let reservation = reservation.map(|id| Reserved { id, expires_at: NOW });
    ObjectReply::Decided(Decided { limits: vec![], reservation, ..decided })
}

#[test]
fn an_item_with_only_shadow_limits_does_not_affect_the_outcome() {
    let answers = [|_: u64| grant(), held, |_: u64| grant()];
    let tried = [|_: u64| unenforced(None), |id: u64| unenforced(Some(id)), |_: u64| unenforced(None)];
    let refusals = [ObjectReply::TooManyReservations { max: 1 }, ObjectReply::RequestIdReused];
    let failures = [Cause::Timeout, Cause::Failed, Cause::Overloaded].map(|cause| Err(failure(cause)));
    for wrong in failures.into_iter().chain(refusals.map(Ok)) {
        for failing in 0..3 {
            let mut batch = beside_shadow();
            for step in 0..3 {
                let calls = due(&mut batch, NOW);
                assert_eq!(calls.len(), if step <= failing { 2 } else { 1 }, "{wrong:?} at {failing}: {calls:?}");
                if step <= failing {
                    let answer = if step == failing { wrong.clone() } else { Ok(tried[step](101)) };
                    batch.answered(1, answer);
                }
                batch.answered(0, Ok(answers[step](100)));
            }
            let Some(Outcome::Decided(replies)) = batch.outcome() else { panic!("{wrong:?} at {failing}: {batch:?}") };
            assert_eq!(replies[0], Ok(grant()));
            assert!(batch.is_over());
        }
        // The other is refused, or fails, as without it.
        let mut batch = beside_shadow();
        due(&mut batch, NOW);
        batch.answered(1, wrong.clone());
        batch.answered(0, Ok(refusal()));
        assert!(matches!(batch.outcome(), Some(Outcome::Decided(replies)) if replies[0] == Ok(refusal())), "{wrong:?}");
        let mut batch = beside_shadow();
        due(&mut batch, NOW);
        batch.answered(1, wrong);
        batch.answered(0, Err(failure(Cause::Failed)));
        let failed = Outcome::Failed { causes: vec![Cause::Failed], cause: Cause::Failed };
        assert_eq!(batch.outcome(), Some(&failed));
    }
}

/// A batch over an object that can refuse, and one with only soft limits, which refuses banned keys alone.
fn beside_soft() -> Batch {
    Batch::new(vec![request(Action::Hold(100)), request(Action::Hold(101))], NOW).with_open([false, true])
}

#[test]
fn an_item_with_only_soft_limits_is_granted_whatever_fails_but_refuses_a_banned_key() {
    let answers = [|_: u64| grant(), held, |_: u64| grant()];
    for failing in 0..3 {
        let mut batch = beside_soft();
        for (step, answer) in answers.iter().enumerate() {
            let calls = due(&mut batch, NOW);
            assert_eq!(calls.len(), if step <= failing { 2 } else { 1 }, "failing at {failing}: {calls:?}");
            if step <= failing {
                batch.answered(1, if step == failing { Err(failure(Cause::Timeout)) } else { Ok(answer(101)) });
            }
            batch.answered(0, Ok(answer(100)));
        }
        let Some(Outcome::Decided(replies)) = batch.outcome() else { panic!("failing at {failing}: {batch:?}") };
        assert_eq!((&replies[0], &replies[1]), (&Ok(grant()), &Err(Cause::Timeout)));
        assert!(batch.is_over());
    }
    for banned_at in 0..2 {
        let mut batch = beside_soft();
        for (step, answer) in answers.iter().take(banned_at + 1).enumerate() {
            due(&mut batch, NOW);
            batch.answered(1, Ok(if step == banned_at { refusal() } else { answer(101) }));
            batch.answered(0, Ok(answer(100)));
        }
        assert!(matches!(batch.outcome(), Some(Outcome::Decided(replies)) if replies[1] == Ok(refusal())), "{batch:?}");
        assert_eq!(due(&mut batch, NOW).len(), banned_at, "what the other holds is given back");
    }
}

/// An object gives a notice once: in the first step of the batch that has one.
#[test]
fn each_step_of_a_batch_asks_for_notices_if_its_requests_do() {
    for has_consequences in [false, true] {
        let requests = [1, 2].map(|id| ObjectRequest { has_consequences, ..request(Action::Hold(id)) });
        let mut batch = Batch::new(requests.to_vec(), NOW);
        for answers in [|_: u64| grant(), held, |_: u64| grant()] {
            let calls: Vec<_> = std::iter::from_fn(|| batch.next(NOW)).collect();
            assert_eq!(
                calls.iter().map(|call| call.request.has_consequences).collect::<Vec<_>>(),
                [has_consequences; 2]
            );
            for call in calls {
                batch.answered(call.object, Ok(answers(call.object as u64 + 1)));
            }
        }
        assert!(matches!(batch.outcome(), Some(Outcome::Decided(_))));
    }
}
