//! Limits of a policy.

use tollgate::limit::Verb;
use tollgate::protocol::{Action, Format};

use crate::counting::allocations;
use crate::measure::{head, least_nanos, line, weighed};
use crate::object::{NOW, Object, policy, request};

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
            policy(&format!(r#""limits":[{}]"#, limits.join(",")))
        };
        // All but the last let everything pass.
        let (open, closed) = (with_last(MANY), with_last(1));
        let (bytes, mut object) = weighed(|| {
            let mut object = Object::new();
            object.consume(&open, NOW);
            object
        });
        let mut now = NOW;
        let to_grant = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                now += 1;
                assert!(object.consume(&open, now).decision().is_allow());
            }
        });
        let before = allocations();
        object.consume(&open, now);
        let allocations = allocations() - before;
        let mut object = Object::new();
        object.consume(&closed, NOW);
        let to_refuse = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                assert!(!object.consume(&closed, NOW).decision().is_allow());
            }
        });
        let question = request(Action::Take(Verb::Consume), &open).to_text(Format::NEWEST).len();
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
