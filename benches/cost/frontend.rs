//! The real frontend of an isolate for benchmarks: requests are JSON, and the benchmark makes the object calls.

use std::rc::Rc;
use std::sync::Arc;

use tollgate::frontend::{Asked, Call, Now, Service, Settings, Step};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Definitions, names_of};

use crate::split_mix::Random;

/// The only frontend of an isolate.
pub(crate) struct Frontend {
    service: Service,
    random: Random,
}

impl Frontend {
    /// A frontend under the policies of its deployment.
    pub(crate) fn new(deployed: &Arc<Policies>, seed: u64) -> Self {
        let settings = Settings::trusting(Arc::clone(deployed));
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

/// The policies under which an object of the same deployment decides.
pub(crate) fn policies_of(call: &Call, object: usize, deployed: &Policies) -> Vec<Arc<Policy>> {
    let names = names_of(call.policies_of(object));
    Definitions::new().asked(deployed, &names, None, None).expect("they are of the same deployment")
}
