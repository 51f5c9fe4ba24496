//! The ledger of an object, with its rows written at once, and its requests.

use std::slice;
use std::sync::Arc;

use tollgate::frontend::own_policies;
use tollgate::ledger::{Ledger, Writes};
use tollgate::limit::Verb;
use tollgate::policy::Policy;
use tollgate::protocol::{Action, Decided, ObjectReply, ObjectRequest};

use crate::disk::Disk;
use crate::key::{Deployed, Key};

pub(crate) const NOW: i64 = 1_700_000_000_000;

pub(crate) struct Object(Ledger);

impl Object {
    pub(crate) fn new() -> Self {
        Self(Ledger::new([], 0))
    }

    /// Its reply. Ids of reservations are taken from `id`.
    pub(crate) fn ask(&mut self, asked: &[Arc<Policy>], request: &ObjectRequest, now: i64, id: u64) -> ObjectReply {
        let (reply, writes) = self.0.ask(asked, request, now, || Some(id)).expect("it can be decided");
        self.confirm(&writes);
        reply
    }

    /// Takes a token, if one is left.
    pub(crate) fn consume(&mut self, policy: &Arc<Policy>, now: i64) -> Decided {
        decided(self.ask(slice::from_ref(policy), &request(CONSUME, policy), now, 0))
    }

    fn confirm(&mut self, writes: &Writes) {
        for row in &writes.background {
            self.0.confirm(&row.name, row.ticket);
        }
    }
}

/// The object of a new key.
pub(crate) fn new_key(policies: &str) -> Key {
    Key::new(policies, Disk::default(), 0)
}

/// Takes a token of a key, if one is left.
pub(crate) fn consume(key: &mut Key, policy: &Arc<Policy>, now: i64) -> Decided {
    let reply = key.service.kept().ask(slice::from_ref(policy), &request(CONSUME, policy), now, || Some(0));
    key.arrive(usize::MAX);
    decided(reply.expect("it can be decided"))
}

const CONSUME: Action = Action::Take(Verb::Consume);

pub(crate) fn decided(reply: ObjectReply) -> Decided {
    match reply {
        ObjectReply::Decided(decided) => decided,
        other => panic!("not a decision: {other:?}"),
    }
}

/// A request for one token of each limit.
pub(crate) fn request(action: Action, policy: &Policy) -> ObjectRequest {
    ObjectRequest {
        action,
        request_id: None,
        costs: vec![vec![1; policy.limits().len()]],
        shadow_costs: vec![],
        known: None,
        has_consequences: false,
        lease: None,
    }
}

/// The policy `p` with these fields, as JSON.
pub(crate) fn policy(fields: &str) -> Arc<Policy> {
    policy_in(&policies(fields))
}

/// A deployment's policies, with just that one, as JSON.
pub(crate) fn policies(fields: &str) -> String {
    format!(r#"{{"p":{{{fields}}}}}"#)
}

/// That one.
pub(crate) fn policy_in(policies: &str) -> Arc<Policy> {
    let (policies, _) = own_policies(&Deployed(policies));
    let policy = policies.get("p").expect("it is there");
    // Computed on first use, and not weighed.
    _ = policy.numbers();
    Arc::clone(policy)
}
