//! Open reservations of a key.

use std::iter;
use std::slice;
use std::sync::Arc;

use tollgate::ledger::MAX_RESERVATIONS;
use tollgate::limit::Verb;
use tollgate::policy::Policy;
use tollgate::protocol::{Action, ObjectReply, ObjectRequest};

use crate::measure::{head, least_nanos, line, weighed};
use crate::object::{NOW, Object, decided, policy, request};

pub(crate) fn of_a_key() {
    head("Open reservations of a key", &["object, bytes", "a grant, ns", "a refusal, ns", "to open and cancel, ns"]);
    let policy = policy(&format!(r#""rate":1000000,"period":"1s","capacity":{CAPACITY},"unsettled":"refund""#));
    for open in [0, 10, 100, MAX_RESERVATIONS - 1] {
        let (bytes, mut object) = weighed(|| {
            let mut object = Object::new();
            object.consume(&policy, NOW);
            for id in 1..=open as u64 {
                reserve(&mut object, &policy, NOW, id);
            }
            object
        });
        let mut now = NOW;
        let to_grant = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                now += 1;
                assert!(object.consume(&policy, now).decision().is_allow());
            }
        });
        // What the reservations will give back is computed by the first refusal after each change.
        let all = ObjectRequest { costs: vec![vec![CAPACITY]], ..request(Action::Take(Verb::Consume), &policy) };
        let to_refuse = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                let reply = decided(object.ask(slice::from_ref(&policy), &all, now, 0));
                assert!(!reply.decision().is_allow());
            }
        });
        let mut next = 1_000_000;
        let to_open = least_nanos(ASKED, || {
            for _ in 0..ASKED {
                next += 1;
                let id = reserve(&mut object, &policy, now, next);
                decided(object.ask(slice::from_ref(&policy), &request(Action::Cancel(id), &policy), now, 0));
            }
        });
        let nanos = [to_grant, to_refuse, to_open].map(|nanos| format!("{nanos:.0}"));
        line(&open.to_string(), iter::once(bytes.to_string()).chain(nanos));
        if open + 1 == MAX_RESERVATIONS {
            reserve(&mut object, &policy, now, next + 1);
            let request = request(Action::Reserve(Verb::Consume), &policy);
            let one_more = object.ask(slice::from_ref(&policy), &request, now, next + 2);
            assert!(matches!(one_more, ObjectReply::TooManyReservations { .. }), "no more are allowed");
        }
    }
}

/// Its id.
fn reserve(object: &mut Object, policy: &Arc<Policy>, now: i64, id: u64) -> u64 {
    let reply = decided(object.ask(slice::from_ref(policy), &request(Action::Reserve(Verb::Consume), policy), now, id));
    reply.reservation.expect("it is granted").id
}

const ASKED: usize = 100;
const CAPACITY: u64 = 1_000_000;
