//! Keys: what an isolate keeps of them, and the memory of all their objects.

use std::time::Duration;

use tollgate::edge::ObjectCall;
use tollgate::frontend::Call;
use tollgate::protocol::{ObjectReply, Rows};

use crate::frontend::{Frontend, now};
use crate::measure::{head, least_nanos, line, nanos_each, timed, weighed};
use crate::object::{NOW, Object, policies, policy, policy_in};
use crate::split_mix::Random;

const COUNTS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// What one isolate keeps of keys that are refused once each.
pub(crate) fn of_an_isolate() {
    head("Refused keys, in one isolate", &["bytes", "to ask, ns", "to reply, ns", "to refuse again, ns"]);
    let deployed = policies(SPENT);
    let policy = policy_in(&deployed);
    let refusal = {
        let mut object = Object::new();
        object.consume(&policy, NOW);
        ObjectReply::Decided(object.consume(&policy, NOW))
    };
    for count in COUNTS {
        let mut least = [f64::INFINITY; 2];
        let (mut bytes, mut frontend) = (0, Frontend::new(&deployed, 0));
        for _ in 0..PASSES {
            frontend = Frontend::new(&deployed, 0);
            let took;
            (bytes, took) = weighed(|| refused(&mut frontend, count, &refusal));
            least = [0, 1].map(|index| least[index].min(took[index]));
        }
        let latest: Vec<_> = (count - STEP..count).map(body).collect();
        let to_refuse = least_nanos(STEP, || {
            for body in &latest {
                let mut call = frontend.ask("/v1/consume", body, NOW);
                assert!(call.is_decided() && call.reply(now(NOW)).status == 429);
            }
        });
        let [to_ask, to_reply] = least;
        line(
            &count.to_string(),
            [bytes.to_string()].into_iter().chain([to_ask, to_reply, to_refuse].map(|nanos| format!("{nanos:.0}"))),
        );
    }
}

/// Requests `count` keys, each refused by its object. Returns how many nanoseconds it takes to begin each request, and to
/// build its reply from the object's answer.
fn refused(frontend: &mut Frontend, count: usize, refusal: &ObjectReply) -> [f64; 2] {
    let mut took = [Duration::ZERO; 2];
    for first in (0..count).step_by(STEP) {
        let bodies: Vec<_> = (first..first + STEP).map(body).collect();
        let begin = |body: &String| {
            let mut call = frontend.ask("/v1/consume", body, NOW);
            let ObjectCall { object, .. } = call.next(now(NOW)).expect("nothing is known of the key");
            (call, object)
        };
        let (to_ask, calls) = timed(|| bodies.iter().map(begin).collect::<Vec<_>>());
        let answered: Vec<_> = calls.into_iter().map(|(call, object)| (call, object, refusal.clone())).collect();
        let finish = |(mut call, object, refusal): (Call, usize, ObjectReply)| {
            call.answered(object, Some((refusal, Rows::default())), now(NOW));
            assert_eq!(call.reply(now(NOW)).status, 429);
        };
        let (to_reply, ()) = timed(|| answered.into_iter().for_each(finish));
        took[0] += to_ask;
        took[1] += to_reply;
    }
    took.map(|took| nanos_each(took, count))
}

fn body(key: usize) -> String {
    format!(r#"{{"policy":"p","key":"{key}"}}"#)
}

/// The objects of this many keys in one process, as in a simulation or a test; in production they are spread.
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
/// The fastest run counts.
const PASSES: usize = 3;
