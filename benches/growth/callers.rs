//! Concurrent callers: requests in flight in an isolate, and holds of batches in an object.

use std::slice;

use tollgate::frontend::Call;

use crate::frontend::{Frontend, decide, now};
use crate::key::Key;
use crate::measure::{head, least_nanos, line, weighed};
use crate::object::{NOW, consume, new_key, policies, policy_in};

/// All call at once, each step of all before the next step of any: the worst order for an object.
pub(crate) fn of_an_object() {
    let columns = ["isolate, bytes each", "each request, ns"];
    head("Concurrent requests for one key", &columns);
    for callers in COUNTS {
        row(callers, 1, "/v1/consume", r#"{"policy":"p","key":"a"}"#);
    }
    head("Concurrent batches for the same two keys", &columns);
    for callers in COUNTS {
        row(callers, 2, "/v1/batch", BATCH);
    }
}

/// A committed hold is kept for ten seconds, in which its batch may still be undone.
pub(crate) fn of_recent_batches() {
    head("Batches over a key in the last ten seconds", &["object, bytes", "a grant, ns", "a batch, ns"]);
    let deployed = policies(PLENTY);
    let policy = policy_in(&deployed);
    for batches in [0, 10, 100, 1_000, 10_000] {
        let mut frontend = Frontend::new(&deployed, 0);
        let mut commit = |keys: &mut [Key; 2]| {
            let mut call = frontend.ask("/v1/batch", BATCH, NOW);
            carry_out(slice::from_mut(&mut call), keys);
            assert_eq!(call.reply(now(NOW)).status, 200);
        };
        let new_keys = || [new_key(&deployed), new_key(&deployed)];
        commit(&mut new_keys()); // what the isolate keeps of the first is not weighed
        let (bytes, mut key) = weighed(|| {
            let mut keys = new_keys();
            consume(&mut keys[0], &policy, NOW);
            (0..batches).for_each(|_| commit(&mut keys));
            let [key, _] = keys;
            key.disk.get_mut().rows.clear(); // they are not in the object's memory
            key
        });
        let to_grant = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                assert!(consume(&mut key, &policy, NOW).decision().is_allow());
            }
        });
        let mut keys = [key, new_key(&deployed)];
        let to_commit = least_nanos(ASKED, || (0..ASKED).for_each(|_| commit(&mut keys)));
        line(&batches.to_string(), [bytes.to_string(), format!("{to_grant:.0}"), format!("{to_commit:.0}")]);
    }
}

fn row(callers: usize, keys: usize, url: &str, body: &str) {
    let deployed = policies(PLENTY);
    let mut frontend = Frontend::new(&deployed, 0);
    let mut begun = || (0..callers).map(|_| frontend.ask(url, body, NOW)).collect::<Vec<_>>();
    let (bytes, _) = weighed(&mut begun);
    let nanos = least_nanos(callers, || {
        let mut keys: Vec<_> = (0..keys).map(|_| new_key(&deployed)).collect();
        let mut calls = begun();
        carry_out(&mut calls, &mut keys);
        assert!(calls.iter_mut().all(|call| call.reply(now(NOW)).status == 200));
    });
    line(&callers.to_string(), [format!("{:.0}", bytes as f64 / callers as f64), format!("{nanos:.0}")]);
}

/// Each makes its calls and then gets all answers, until there are none. All are about these keys.
fn carry_out(calls: &mut [Call], keys: &mut [Key]) {
    loop {
        let mut in_flight = Vec::new();
        for (index, call) in calls.iter_mut().enumerate() {
            while let Some(next) = call.next(now(NOW)) {
                in_flight.push((index, next));
            }
        }
        if in_flight.is_empty() {
            return;
        }
        for (index, next) in in_flight {
            decide(&mut calls[index], &next, &mut keys[next.object], NOW, 0);
        }
    }
}

const PLENTY: &str = r#""rate":1000000,"period":"1s","capacity":1000000"#;

const BATCH: &str = r#"{"requests":[{"policy":"p","key":"a"},{"policy":"p","key":"b"}]}"#;

const ASKED: usize = 10;

const COUNTS: [usize; 4] = [1, 10, 100, 1_000];
