//! Counts add up, whatever is lost or sent twice, and the keys refused most are found within the stated error.

mod chance;
#[path = "../benches/decisions/counting.rs"]
mod counting;
#[path = "edge/random.rs"]
mod random;
#[path = "chance/split_mix.rs"]
mod split_mix;

use std::collections::BTreeMap;

use random::{Random, cases};
use tollgate::edge::{Outbox, Tap};
use tollgate::metrics::{
    Audience, CAPACITY, CallOutcome, Counts, Cursor, LISTEN_MS, LiveBatch, LiveDecision, LiveFilter, MAX_POLICIES,
    NoticeOutcome, OTHER_POLICIES, Outcome, PollOutcome, RefusedKeys, Repeat, Report, TopKey, Totals, WINDOW_MS, Word,
    exposition,
};
use tollgate::policy::Cause;

/// A key: few are frequent, and many are rare.
fn key(random: &mut Random) -> u128 {
    let end = 1 << random.below(12);
    random.below(end) as u128
}

fn within_its_error(keys: &RefusedKeys, exact: &BTreeMap<u128, u64>) {
    let counted: BTreeMap<_, _> = keys.counts().iter().copied().collect();
    let total: u64 = exact.values().sum();
    assert_eq!(keys.total(), total);
    assert!(counted.len() <= CAPACITY);
    let sum: u64 = counted.values().sum();
    assert!(keys.lost() * (CAPACITY as u64 + 1) <= total - sum, "{} lost of {total}", keys.lost());
    for (key, &count) in exact {
        let counted = counted.get(key).copied().unwrap_or(0);
        assert!((counted..=counted + keys.lost()).contains(&count), "key {key}: {count}, counted {counted}");
    }
    assert!(counted.keys().all(|key| exact.contains_key(key)), "a key that was never refused");
    assert_eq!(RefusedKeys::of(keys.counts().to_vec(), keys.lost(), keys.total()).as_ref(), Some(keys));
}

#[test]
fn the_keys_refused_most_are_found_within_the_stated_error_in_any_order_of_additions_and_merges() {
    let mut most_lost = 0;
    cases(600, |random| {
        let mut parts: Vec<_> = (0..=random.below(6)).map(|_| (RefusedKeys::default(), BTreeMap::new())).collect();
        for _ in 0..random.below(3_000) {
            let index = random.below(parts.len());
            if parts.len() > 1 && random.once_in(500) {
                let (other, other_exact) = parts.swap_remove(index);
                let (keys, exact) = &mut parts[0];
                keys.merge(&other);
                for (key, count) in other_exact {
                    *exact.entry(key).or_insert(0) += count;
                }
            } else {
                let (keys, exact) = &mut parts[index];
                let key = key(random);
                keys.add(key, || None);
                *exact.entry(key).or_insert(0) += 1;
            }
        }
        for (keys, exact) in &parts {
            within_its_error(keys, exact);
            most_lost = most_lost.max(keys.lost());
        }
    });
    assert!(most_lost > 10, "the law has seen only exact counts");
}

/// Counts something, in `all` too.
fn count(random: &mut Random, all: &mut [&mut Counts]) {
    let policy = ["api", "daily", "llm"][random.below(3)];
    let outcome = Outcome::ALL[random.below(Outcome::ALL.len())];
    let (cause, ms, in_shadow) = (Cause::ALL[random.below(3)], random.below(6_000) as u64, random.once_in(9));
    let (kind, index) = (random.below(9), random.below(20));
    for counts in all {
        match kind {
            0 => counts.decided(policy, outcome, in_shadow),
            1 => counts.refused(policy, index as u128, || Some(format!("{index}"))),
            2 => counts.degraded(cause),
            3 => counts.unavailable(cause),
            4 => counts.called(CallOutcome::Failed(cause), ms),
            5 => counts.repeated(Repeat::ALL[index % 4]),
            6 => counts.noticed(NoticeOutcome::ALL[index % 3]),
            7 => counts.stored(index as u64, ms),
            _ => counts.polled(PollOutcome::ALL[index % 2]),
        }
    }
}

/// Polls are lost on the way there or on the way back, late, and sent twice at once.
#[test]
fn isolates_counts_are_added_up_once_whatever_happens_to_their_reports() {
    cases(400, |random| {
        let numbers: Vec<u64> = (0..4).map(|number| random.next() | number).collect();
        let mut isolates: Vec<_> = (0..4).map(|_| Outbox::default()).collect();
        for isolate in &mut isolates {
            isolate.begin(0);
        }
        let (mut totals, mut exact) = (Totals::new(0), Counts::default());
        let mut late: Vec<(usize, String)> = Vec::new();
        for now in (1..).take(random.below(300)) {
            let index = random.below(isolates.len());
            let isolate = &mut isolates[index];
            match random.below(4) {
                0 => late.push((index, isolate.report(now, || Some(numbers[index])).unwrap())),
                1 if !late.is_empty() => {
                    let (index, report) = late.swap_remove(random.below(late.len()));
                    for _ in 0..=random.below(2) {
                        totals.add(Report::from_text(&report).unwrap(), now);
                    }
                    if random.once_in(2) {
                        isolates[index].confirm(&report);
                    }
                }
                2 if !late.is_empty() && random.once_in(3) => _ = late.pop(),
                _ => count(random, &mut [&mut isolate.counts, &mut exact]),
            }
        }
        for (isolate, number) in isolates.iter_mut().zip(numbers) {
            for _ in 0..2 {
                let report = isolate.report(1_000, || Some(number)).unwrap(); // the unconfirmed one, and later counts
                isolate.confirm(&report);
                totals.add(Report::from_text(&report).unwrap(), 1_000);
            }
        }
        let refused = |counts: &Counts| Report { counts: counts.clone(), ..Report::default() }.to_text();
        let tops: Vec<_> = totals.top(1_000).1.iter().map(|top| (top.policy.to_owned(), top.refusals)).collect();
        let shown = |counts: &Counts| exposition(counts, 0, None, |_| true);
        assert_eq!(shown(totals.counts()), shown(&exact));
        for (policy, refusals) in tops {
            let expected = format!(r#""lost":0,"total":{refusals}"#);
            assert!(refused(&exact).contains(&expected), "{policy}: {expected}");
        }
        assert_eq!(totals.isolates(1_000), 4);
    });
}

#[test]
fn a_report_that_is_confirmed_too_late_does_not_confirm_the_next() {
    let mut isolate = Outbox::default();
    isolate.begin(10);
    isolate.begin(11);
    assert_eq!(isolate.report(20, || None), None, "isolates are distinguished by a random number");
    isolate.counts.degraded(Cause::Failed);
    let read = |text: &str| Report::from_text(text).unwrap();
    let first = isolate.report(20, || Some(7)).unwrap();
    assert_eq!((read(&first).isolate, read(&first).number, read(&first).since), (7, 1, 10));
    assert_eq!(isolate.report(30, || None).unwrap(), first, "it was not confirmed");
    isolate.confirm(&first);
    let second = isolate.report(40, || None).unwrap();
    assert_eq!(read(&second), Report { isolate: 7, number: 2, since: 20, counts: Counts::default() });
    isolate.confirm(&first);
    assert_eq!(isolate.report(50, || None).unwrap(), second);
}

#[test]
fn the_keys_refused_most_are_those_of_the_last_one_or_two_windows() {
    let report = |number: u64, since: i64, key: u128| {
        let mut counts = Counts::default();
        counts.refused("api", key, || None);
        Report { isolate: 1, number, since, counts }
    };
    let mut totals = Totals::new(0);
    let seen = |totals: &mut Totals, now| {
        let (since, top) = totals.top(now);
        let keys = top.iter().flat_map(|top| &top.keys).map(|key| u128::from_str_radix(&key.object, 16).unwrap());
        (since, keys.collect::<Vec<_>>())
    };
    assert_eq!(seen(&mut totals, 5), (5, vec![]));
    totals.add(report(1, 10, 1), 20);
    assert_eq!(seen(&mut totals, 20), (10, vec![1]));
    totals.add(report(2, 20, 2), 20 + WINDOW_MS);
    assert_eq!(seen(&mut totals, 20 + WINDOW_MS), (10, vec![1, 2]), "a new window, and the one before");
    totals.add(report(3, WINDOW_MS, 3), 19 + 2 * WINDOW_MS);
    assert_eq!(seen(&mut totals, 19 + 2 * WINDOW_MS), (10, vec![1, 2, 3]));
    assert_eq!(seen(&mut totals, 20 + 2 * WINDOW_MS), (20, vec![2, 3]));
    assert_eq!(seen(&mut totals, 20 + 3 * WINDOW_MS).1, [0_u128; 0], "nothing was refused for that long");
}

#[test]
fn the_policy_refused_most_comes_first_and_keys_are_shown_by_their_hashes() {
    let mut counts = Counts::default();
    for (policy, key, refusals) in [("api", 1, 2), ("llm", 0xff, 3), ("llm", 2, 4)] {
        let prefix = || (policy == "llm").then(|| format!("{key:x}"));
        (0..refusals).for_each(|_| counts.refused(policy, key, prefix));
    }
    let mut totals = Totals::new(0);
    totals.add(Report { isolate: 1, number: 1, since: 0, counts }, 0);
    let (_, top) = totals.top(0);
    let shown: Vec<_> = top.iter().map(|top| (top.policy, top.refusals, top.keys.clone())).collect();
    let key = |name: &str, prefix: Option<&str>, count| TopKey {
        object: name.to_owned(),
        prefix: prefix.map(str::to_owned),
        at_least: count,
        at_most: count,
    };
    let llm = vec![
        key("00000000000000000000000000000002", Some("2"), 4),
        key("000000000000000000000000000000ff", Some("ff"), 3),
    ];
    assert_eq!(shown, [("llm", 7, llm), ("api", 2, vec![key("00000000000000000000000000000001", None, 2)])]);
}

#[test]
fn a_bounded_number_of_policies_is_counted_by_name() {
    let (mut counts, mut other) = (Counts::default(), Counts::default());
    for policy in 0..MAX_POLICIES + 5 {
        counts.decided(&format!("p{policy}"), Outcome::Allowed, true);
        counts.refused(&format!("p{policy}"), 1, || None);
        other.decided(&format!("q{policy}"), Outcome::Refused, false);
    }
    counts.decided("p0", Outcome::Allowed, false);
    counts.merge(&other);
    let text = exposition(&counts, 0, None, |_| true);
    for (policy, outcome, count) in
        [("p0", "allowed", 2), (OTHER_POLICIES, "allowed", 5), (OTHER_POLICIES, "refused", MAX_POLICIES + 5)]
    {
        let line = format!("tollgate_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&line), "{line}");
    }
    assert_eq!(text.matches("outcome=\"allowed\"").count(), MAX_POLICIES + 1);
}

/// An operator who listens.
struct Operator {
    filter: LiveFilter,
    cursor: Option<Cursor>,
    heard: u64,
    omitted: u64,
}

impl Operator {
    fn ask(&mut self, audience: &mut Audience, now: i64) {
        let heard = audience.listen(self.filter.clone(), None, self.cursor, now).unwrap();
        assert!(!heard.is_interrupted);
        self.cursor = Some(heard.cursor);
        self.heard += heard.decisions.len() as u64;
        self.omitted += heard.omitted;
    }
}

/// Whatever isolates decide and send, in any order, with calls that fail: an operator who listens sees each decision, or that it
/// was left out, once.
#[test]
fn each_decision_is_shown_or_counted_as_left_out() {
    let (mut shown, mut left_out) = (0, 0);
    cases(300, |random| {
        let (mut audience, mut now) = (Audience::new(random.next()), 1_000);
        let mut taps: Vec<_> = (0..=random.below(3)).map(|_| Tap::default()).collect();
        let filters = [
            LiveFilter::default(),
            LiveFilter { policies: Some(vec!["api".to_owned()]), outcomes: None },
            LiveFilter { policies: None, outcomes: Some(vec![Outcome::Refused]) },
        ];
        let mut operators = filters.map(|filter| (Operator { filter, cursor: None, heard: 0, omitted: 0 }, 0_u64));
        for (operator, _) in &mut operators {
            operator.ask(&mut audience, now);
        }
        let listeners = |audience: &mut Audience, now| audience.listeners(1, now).map(|listeners| listeners.to_text());
        for tap in &mut taps {
            tap.on_listeners(listeners(&mut audience, now).as_deref(), now);
        }
        let send = |tap: &mut Tap, audience: &mut Audience, fails: bool, now| {
            let Some(batch) = tap.take(now) else { return };
            if fails {
                return tap.fail();
            }
            audience.take(&LiveBatch::from_text(&batch).unwrap(), now);
            let listeners = audience.listeners(1, now).map(|listeners| listeners.to_text());
            tap.answered(listeners.as_deref(), now);
        };
        for _ in 0..random.below(200) {
            let index = random.below(taps.len());
            match random.below(4) {
                0 => {
                    now += i64::try_from(random.below(2_000)).unwrap();
                    for (operator, _) in &mut operators {
                        operator.ask(&mut audience, now);
                    }
                    for tap in &mut taps {
                        tap.on_listeners(listeners(&mut audience, now).as_deref(), now);
                    }
                }
                1 if taps[index].due(now).is_some() => send(&mut taps[index], &mut audience, random.once_in(5), now),
                _ => {
                    let policy = ["api", "llm"][random.below(2)];
                    let outcome = [Outcome::Allowed, Outcome::Refused][random.below(2)];
                    let count = 1 + random.below(40) as u64;
                    for (operator, decided) in &mut operators {
                        *decided += if operator.filter.passes(policy, outcome) { count } else { 0 };
                    }
                    let decision = LiveDecision {
                        at: now,
                        policy,
                        outcome,
                        source: tollgate::metrics::DecidedBy::Object,
                        cost: 1,
                        remaining: None,
                        retry_at: None,
                        limit: None,
                        object: None,
                        shards: None,
                        cause: None,
                        is_refused_in_shadow: false,
                    };
                    assert!(taps[index].wants(policy, outcome, now));
                    (0..count).for_each(|_| taps[index].add(&decision));
                }
            }
        }
        // Waiting decisions are sent, then those counted as left out because a call failed.
        for tap in &mut taps {
            send(tap, &mut audience, false, now);
        }
        for (operator, decided) in &mut operators {
            operator.ask(&mut audience, now);
            assert_eq!(operator.heard + operator.omitted, *decided, "{:?}", operator.filter);
            shown += operator.heard;
            left_out += operator.omitted;
        }
        now += LISTEN_MS;
        assert!(
            audience.listeners(1, now).is_none() && taps.iter().all(|tap| !tap.wants("api", Outcome::Refused, now))
        );
    });
    assert!(shown > 1_000 && left_out > 1_000, "{shown} shown, {left_out} left out");
}

#[global_allocator]
static HEAP: counting::Counting = counting::Counting;

#[test]
fn counting_a_known_policy_and_key_allocates_no_memory() {
    let mut counts = Counts::default();
    let mut all = || {
        for outcome in Outcome::ALL {
            counts.decided("api", *outcome, true);
        }
        counts.refused("api", 7, || Some("seven".to_owned()));
        counts.degraded(Cause::Failed);
        counts.unavailable(Cause::Failed);
        counts.called(CallOutcome::Answered, 5);
        counts.repeated(Repeat::Failure);
        counts.polled(PollOutcome::Answered);
        counts.noticed(NoticeOutcome::Dropped);
    };
    all();
    let before = (counting::allocations(), counting::live_bytes());
    all();
    assert_eq!((counting::allocations(), counting::live_bytes()), before);
}
