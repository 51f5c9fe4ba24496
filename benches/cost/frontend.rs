//! The real frontend of an isolate for benchmarks: requests are JSON, and the benchmark makes the object calls.

use std::rc::Rc;

use tollgate::edge::ObjectCall;
use tollgate::frontend::{Asked, Call, Now, Receivers, Service, Settings, Step, own_policies};
use tollgate::protocol::{Definitions, ObjectReply, Rows};

use crate::key::{Deployed, Key};
use crate::split_mix::Random;

/// The only frontend of an isolate.
pub(crate) struct Frontend {
    service: Service,
    random: Random,
}

impl Frontend {
    /// A frontend of a deployment with these policies.
    pub(crate) fn new(policies: &str, seed: u64) -> Self {
        let receivers = Receivers { has_webhook: true, ..Receivers::default() };
        let settings = Settings { receivers, ..Settings::trusting(own_policies(&Deployed(policies)).0) };
        Self { service: Service::new(Ok(settings), Rc::default()), random: Random(seed) }
    }

    /// Begins the request with this body.
    pub(crate) fn ask(&mut self, url: &str, body: &str, at: i64) -> Call {
        let Self { service, random } = self;
        let asked = Asked { url, body: body.as_bytes(), ..Asked::default() };
        match service.ask(&asked, now(at), &mut || Some(random.next())) {
            Step::Call(call) => *call,
            Step::Reply(reply) => panic!("{body}: {reply:?}"),
            Step::Administer { .. } | Step::InspectKey(_) => panic!("{url} is for operators"),
        }
    }
}

/// Both clocks are the same, as on Workers.
pub(crate) const fn now(at: i64) -> Now {
    Now { at, waiting: at }
}

/// The object of a key answers a call from its own deployment, which knows no definitions but its own. Its id is `id`, if it needs one.
/// Returns the rows since the object's last answer.
pub(crate) fn decide(call: &mut Call, next: &ObjectCall, key: &mut Key, at: i64, id: u64) -> Rows {
    let reply = key.service.decide(call.sent(next), &mut Definitions::new(), at, || Some(id));
    let (reply, rows) = ObjectReply::from_text(&reply.expect("it can be decided")).expect("of the same version");
    call.answered(next.object, Some((reply, rows)), now(at));
    rows
}
