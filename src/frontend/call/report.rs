//! Reports a finished request to counters, live listeners, data points and receivers of notices.

use super::super::Now;
use super::super::event::{End, Event};
use super::super::settings::Receivers;
use super::asked::Asked;
use super::plan::Plan;
use crate::access::key_hash_in;
use crate::api::{Notice, Tally};
use crate::edge::Outcome;

/// Emits an event for each budget of a request that ended with `end`, if it takes tokens.
pub(super) fn events<'a>(
    asked: &'a Asked,
    plan: &'a Plan,
    end: Option<End>,
    now: Now,
    report: &mut dyn FnMut(&Event<'a>),
) {
    if asked.whole.takes() {
        all_events(asked, plan, end, now, report);
    }
}

/// The notices due after a request that ended with `end`.
pub(super) fn notices(asked: &Asked, plan: &Plan, end: Option<End>, now: Now) -> Vec<Notice> {
    let with_keys = asked.terms.receivers == Receivers::OfKeys;
    let mut notices = Vec::new();
    all_events(asked, plan, end, now, &mut |event| notices.extend(event.notice(with_keys)));
    notices
}

/// The same for any request: one that takes no tokens is not counted, but it may owe a notice.
fn all_events<'a>(asked: &'a Asked, plan: &'a Plan, end: Option<End>, now: Now, report: &mut dyn FnMut(&Event<'a>)) {
    let shards = asked.of_shards.as_ref().map(|_| plan.objects.len());
    let mut report = |tally: Tally<'a>| {
        let key = plan.objects.get(tally.object).map(|object| key_hash_in(&object.name));
        report(&Event::of(tally, now.at, plan.decided_by, key, shards));
    };
    match (end, plan.calls.outcome()) {
        (Some(End::Decided), Some(Outcome::Decided(replies))) => {
            let objects = plan.objects.iter().map(|object| &*object.items);
            asked.whole.tally(objects.zip(replies), report);
        }
        (Some(End::Undecided(outcome, cause)), _) => asked.whole.tally_undecided(outcome, cause, &mut report),
        _ => {}
    }
}
