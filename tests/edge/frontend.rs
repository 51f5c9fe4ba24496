//! A frontend as its callers see it: their requests, and its answers.

use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use tollgate::access::Names;
use tollgate::api::Reply;
use tollgate::frontend::{Now, Service, Settings};
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{Policies, Policy};

/// A frontend that trusts its callers, in its own isolate.
pub(crate) fn service(policies: &Arc<Policies>) -> Service {
    Service::new(Ok(Settings::trusting(Arc::clone(policies))), Rc::default())
}

/// The name of the object of a key.
pub(crate) fn object_of(key: &str) -> String {
    Names::without_secret().object_name(key)
}

/// By both clocks.
pub(crate) const fn now(at: i64) -> Now {
    Now { at, waiting: at }
}

/// The endpoint of a verb, and the members of the body beside the cost.
pub(crate) fn path_of(verb: Verb) -> (&'static str, String) {
    let mode = |mode: &str, max_wait_ms: Option<u64>| {
        let wait = max_wait_ms.map(|ms| format!(r#","max_wait_ms":{ms}"#)).unwrap_or_default();
        ("/v1/consume", format!(r#","mode":"{mode}"{wait}"#))
    };
    match verb {
        Verb::Consume => ("/v1/consume", String::new()),
        Verb::ConsumeUpTo => mode("up_to", None),
        Verb::Borrow { max_wait_ms } => mode("borrow", max_wait_ms),
        Verb::Reserve { max_wait_ms } => mode("reserve", max_wait_ms),
        Verb::Charge => ("/v1/charge", String::new()),
        Verb::Refund => ("/v1/refund", String::new()),
        Verb::Reset => ("/v1/reset", String::new()),
        _ => unreachable!("a new verb"),
    }
}

/// These costs for each limit of the policy, as in a body.
pub(crate) fn cost_of(policy: &Policy, costs: &[u64]) -> String {
    if let [limit] = policy.limits()
        && limit.name().is_none()
    {
        return costs[0].to_string();
    }
    let each = policy.limits().iter().zip(costs);
    let each = each.map(|(limit, cost)| format!(r#""{}":{cost}"#, limit.name().unwrap()));
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

/// A decision in a caller's answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Told {
    pub(crate) allowed: bool,
    /// By the object's clock.
    pub(crate) now: i64,
    retry_at: Option<i64>,
    pub(crate) retry_after_ms: Option<u64>,
    /// "lease" or "cache" if no object was called.
    pub(crate) source: Option<String>,
    /// The id, if it has reserved.
    pub(crate) reservation: Option<String>,
    #[serde(default)]
    pub(crate) replayed: bool,
    /// Of a policy whose limits have names.
    #[serde(default)]
    pub(crate) limits: Vec<Level>,
}

/// One limit in a caller's answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Level {
    pub(crate) remaining: u64,
}

impl Told {
    /// The decision in a reply.
    pub(crate) fn by(reply: &Reply) -> Self {
        let body = reply.body();
        let told: Self = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        assert_eq!(reply.status, if told.allowed { 200 } else { 429 }, "{body}");
        told
    }

    /// The decisions in the reply to a batch, all of whose requests are decided.
    pub(crate) fn each_by(reply: &Reply) -> Vec<Self> {
        #[derive(Deserialize)]
        struct Batch {
            results: Vec<Told>,
        }
        let body = reply.body();
        let Batch { results } = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        results
    }

    /// The decision, as far as it is reported.
    pub(crate) fn decision(&self) -> Decision {
        match (self.allowed, self.retry_at) {
            (true, _) => Decision::Allow { tokens: 0, ready_at: self.now },
            (false, Some(retry_at)) => Decision::Wait { retry_at },
            (false, None) => Decision::Never { max: 0 },
        }
    }
}
