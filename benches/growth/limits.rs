//! Limits of a policy.

use crate::counting::allocations;
use crate::frontend::{Frontend, now};
use crate::measure::{head, least_nanos, line, weighed};
use crate::object::{NOW, Object, policies, policy_in};

pub(crate) fn of_a_policy() {
    head(
        "Limits of a policy",
        &["a grant, ns", "its allocations", "a refusal, ns", "object, bytes", "question, bytes"],
    );
    for count in [1, 2, 4, 8] {
        let limit = |number: usize, capacity: u64| {
            format!(r#"{{"name":"l{number}","rate":1000,"period":"{}s","capacity":{capacity}}}"#, number + 1)
        };
        let with_last = |capacity| {
            let limits: Vec<_> = (0..count).map(|n| limit(n, if n + 1 == count { capacity } else { MANY })).collect();
            policies(&format!(r#""limits":[{}]"#, limits.join(",")))
        };
        // All but the last allow everything.
        let (deployed, closed) = (with_last(MANY), policy_in(&with_last(1)));
        let open = policy_in(&deployed);
        let (bytes, mut object) = weighed(|| {
            let mut object = Object::new();
            object.consume(&open, NOW);
            object
        });
        let mut at = NOW;
        let to_grant = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                at += 1;
                assert!(object.consume(&open, at).decision().is_allow());
            }
        });
        let before = allocations();
        object.consume(&open, at);
        let allocations = allocations() - before;
        let mut object = Object::new();
        object.consume(&closed, NOW);
        let to_refuse = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                assert!(!object.consume(&closed, NOW).decision().is_allow());
            }
        });
        let mut call = Frontend::new(&deployed, 0).ask("/v1/consume", r#"{"policy":"p","key":"a"}"#, NOW);
        let next = call.next(now(NOW)).expect("nothing is known of the key");
        let question = call.sent(&next).request.len();
        line(
            &count.to_string(),
            [
                format!("{to_grant:.0}"),
                allocations.to_string(),
                format!("{to_refuse:.0}"),
                bytes.to_string(),
                question.to_string(),
            ],
        );
    }
}

const MANY: u64 = 1_000_000;
const ASKED: usize = 1_000;
