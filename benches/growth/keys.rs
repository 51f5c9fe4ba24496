//! Keys: what an isolate remembers of them, and what the objects of all take.

use std::time::Duration;

use tollgate::edge::LocalState;
use tollgate::limit::Verb;
use tollgate::metrics::Counts;

use crate::measure::{head, least_nanos, line, nanos_each, timed, weighed};
use crate::object::{NOW, Object, name, policy};
use crate::split_mix::Random;

const COUNTS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Keys that are refused once each: the tables of one isolate.
pub(crate) fn of_an_isolate() {
    head("Refused keys, in one isolate", &["bytes", "to remember, ns", "to refuse, ns", "to count, ns"]);
    let policy = policy(SPENT);
    let refusal = {
        let mut object = Object::new();
        object.consume(&policy, NOW);
        object.consume(&policy, NOW)
    };
    for count in COUNTS {
        let mut least = [f64::INFINITY; 2];
        let (bytes, mut local_state) = (0..PASSES).fold((0, LocalState::default()), |_, _| {
            let mut took = [Duration::ZERO; 2];
            let (bytes, (local_state, _counts)) = weighed(|| {
                let (mut local_state, mut counts) = (LocalState::default(), Counts::default());
                for first in (0..count).step_by(STEP) {
                    let names: Vec<_> = (first..first + STEP).map(name).collect();
                    let keep = |name: &String| {
                        local_state.answered(name, [&*policy].into_iter(), (false, &refusal), (NOW, NOW));
                    };
                    took[0] += timed(|| names.iter().for_each(keep)).0;
                    let refuse = |key| counts.refused("p", key, || None);
                    took[1] += timed(|| (first as u128..(first + STEP) as u128).for_each(refuse)).0;
                }
                (local_state, counts)
            });
            least = [0, 1].map(|index| least[index].min(nanos_each(took[index], count)));
            (bytes, local_state)
        });
        let latest: Vec<_> = (count - STEP..count).map(name).collect();
        let asked = || {
            for name in &latest {
                let bound = local_state.bound(name, [(&*policy, &[1][..])].into_iter(), Verb::Consume, false, NOW);
                assert!(bound.is_some_and(|bound| bound.is_refused));
            }
        };
        let to_refuse = least_nanos(STEP, asked);
        let [to_keep, to_count] = least;
        line(
            &count.to_string(),
            [bytes.to_string()].into_iter().chain([to_keep, to_refuse, to_count].map(|nanos| format!("{nanos:.0}"))),
        );
    }
}

/// The objects of so many keys in one process, as a simulation or a test has them; in production they are spread.
pub(crate) fn of_a_machine() {
    head("Objects of keys that are asked at random", &["bytes each", "a grant, ns"]);
    let policy = policy(r#""rate":100,"period":"1s","capacity":200"#);
    for count in COUNTS {
        let (bytes, mut objects) = weighed(|| {
            let mut objects: Vec<_> = (0..count).map(|_| Object::new()).collect();
            for object in &mut objects {
                object.consume(&policy, NOW);
            }
            objects
        });
        let mut random = Random(1);
        let mut now = NOW;
        let nanos = least_nanos(STEP, || {
            now += 1_000;
            for _ in 0..STEP {
                let index = usize::try_from(random.next() % count as u64).expect("a small number");
                assert!(objects[index].consume(&policy, now).decision().is_allow());
            }
        });
        line(&count.to_string(), [format!("{:.0}", bytes as f64 / count as f64), format!("{nanos:.0}")]);
    }
}

const SPENT: &str = r#""rate":1,"period":"1h","capacity":1"#;
const STEP: usize = 1_000;
/// The fastest counts.
const PASSES: usize = 3;
