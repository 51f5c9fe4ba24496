//! No decision allocates: whatever the verb, the kind of limit, the number of limits and the answer.

mod anywhere;
#[path = "../benches/decisions/counting.rs"]
mod counting;

use std::time::Duration;

use anywhere::test;
use tollgate::limit::{Carry, Config, Decision, Limit, Part, Record, Verb, decide_all, encode};

#[global_allocator]
static HEAP: counting::Counting = counting::Counting;

#[test]
fn no_decision_allocates() {
    let before = counting::allocations();
    let mut answers = [0; 3];
    for config in [Config::token_bucket(3, Duration::from_secs(1)), Config::fixed_window(3, Duration::from_secs(1))] {
        let limit = Limit::new(&Config { max_debt: 2, ..config }).unwrap();
        let mut state = limit.new_state(0, 0);
        // Forward, standing still, back a little and back too far.
        for now in [0, 1, 1, 5_000, 0, 5_000, -100_000] {
            for verb in VERBS {
                for cost in [0, 1, 2, 4, u64::MAX] {
                    let parts = &mut [Part::new(&limit, state, cost), Part::new(&limit, state, 1)];
                    let _ = decide_all(parts, now, verb);
                    let (decision, next) = limit.decide(state, now, cost, verb);
                    state = next;
                    let kind = match decision {
                        Decision::Allow { .. } => 0,
                        Decision::Wait { .. } => 1,
                        Decision::Never { .. } => 2,
                    };
                    answers[kind] += 1;
                }
            }
            state = limit.carry(&limit, state, Carry::Proportional, now, 0);
            assert!(limit.full_at(&state, now) >= Some(now));
            assert!(limit.remaining(&state, now) == 0 || limit.owed(&state, now) == 0);
        }
        let mut bytes = [0; 25];
        bytes.iter_mut().zip(encode(1, [state])).for_each(|(byte, encoded)| *byte = encoded);
        assert!(Record::parse(&bytes).unwrap().states().eq([state]));
    }
    assert_eq!(counting::allocations() - before, 0);
    assert!(answers.iter().all(|&n| n > 0), "{answers:?}");
}

#[test]
fn the_counter_sees_an_allocation() {
    let (allocations, bytes) = (counting::allocations(), counting::live_bytes());
    let block = std::hint::black_box(Box::new([0_u8; 100]));
    assert_eq!((counting::allocations() - allocations, counting::live_bytes() - bytes), (1, 100));
    drop(block);
    assert_eq!(counting::live_bytes(), bytes);
}

const VERBS: [Verb; 9] = [
    Verb::Consume,
    Verb::Reserve { max_wait_ms: None },
    Verb::Reserve { max_wait_ms: Some(100) },
    Verb::Borrow { max_wait_ms: None },
    Verb::Borrow { max_wait_ms: Some(100) },
    Verb::ConsumeUpTo,
    Verb::Charge,
    Verb::Refund,
    Verb::Reset,
];
