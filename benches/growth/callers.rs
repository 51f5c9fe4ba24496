//! Concurrent callers: calls in flight in an isolate, and holds of batches in an object.

use std::sync::Arc;

use tollgate::edge::{Batch, ObjectCall, Outcome};
use tollgate::limit::Verb;
use tollgate::policy::Policy;
use tollgate::protocol::{Action, ObjectRequest};

use crate::measure::{head, least_nanos, line, weighed};
use crate::object::{NOW, Object, decided, policy, request};

/// All ask at once, each step of all before the next step of any: the worst order for an object.
pub(crate) fn of_an_object() {
    let columns = ["isolate, bytes each", "each request, ns"];
    head("Concurrent requests for one key", &columns);
    let policy = policy(r#""rate":1000000,"period":"1s","capacity":1000000"#);
    for callers in COUNTS {
        row(callers, 1, &policy, &|_| vec![request(Action::Take(Verb::Consume), &policy)]);
    }
    head("Concurrent batches for the same two keys", &columns);
    for callers in COUNTS {
        row(callers, 2, &policy, &|caller| {
            // Ids that nothing else has.
            [0, 1].map(|key| request(Action::Hold(2 * caller as u64 + key + 1), &policy)).into()
        });
    }
}

/// A committed hold is kept for ten seconds, in which its batch may still be undone.
pub(crate) fn of_recent_batches() {
    head("Batches over a key in the last ten seconds", &["object, bytes", "a grant, ns", "a batch, ns"]);
    let policy = policy(r#""rate":1000000,"period":"1s","capacity":1000000"#);
    for batches in [0, 10, 100, 1_000, 10_000] {
        let mut id = 0;
        let mut commit = |object: &mut Object| {
            id += 1;
            for action in [Action::Look(Verb::Consume), Action::Hold(id), Action::Settle(id)] {
                assert!(decided(object.ask(&policy, &request(action, &policy), NOW, 0)).decision().is_allow());
            }
        };
        let (bytes, mut object) = weighed(|| {
            let mut object = Object::new();
            object.consume(&policy, NOW);
            (0..batches).for_each(|_| commit(&mut object));
            object
        });
        let to_grant = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                assert!(object.consume(&policy, NOW).decision().is_allow());
            }
        });
        let to_commit = least_nanos(ASKED, || (0..ASKED).for_each(|_| commit(&mut object)));
        line(&batches.to_string(), [bytes.to_string(), format!("{to_grant:.0}"), format!("{to_commit:.0}")]);
    }
}

fn row(callers: usize, keys: usize, policy: &Arc<Policy>, ask: &dyn Fn(usize) -> Vec<ObjectRequest>) {
    let begun = || (0..callers).map(|caller| Batch::new(ask(caller), NOW)).collect::<Vec<_>>();
    let (bytes, _) = weighed(begun);
    let nanos = least_nanos(callers, || {
        let mut objects: Vec<_> = (0..keys).map(|_| Object::new()).collect();
        let mut batches = begun();
        while step(&mut batches, &mut objects, policy) {}
        assert!(batches.iter().all(|batch| matches!(batch.outcome(), Some(Outcome::Decided(_)))));
    });
    line(&callers.to_string(), [format!("{:.0}", bytes as f64 / callers as f64), format!("{nanos:.0}")]);
}

/// Each makes the calls that it has to make, and then gets all answers; returns whether there were any.
fn step(batches: &mut [Batch], objects: &mut [Object], policy: &Arc<Policy>) -> bool {
    let mut in_flight = Vec::new();
    for (index, batch) in batches.iter_mut().enumerate() {
        while let Some(call) = batch.next(NOW) {
            in_flight.push((index, call));
        }
    }
    for (index, ObjectCall { object, request, .. }) in &in_flight {
        let reply = objects[*object].ask(policy, request, NOW, 0);
        batches[*index].answered(*object, Ok(reply));
    }
    !in_flight.is_empty()
}

const ASKED: usize = 10;

const COUNTS: [usize; 4] = [1, 10, 100, 1_000];
