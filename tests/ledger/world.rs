//! Storage, an object in front of it, and a clock that the tests move.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::ledger::{Background, Ledger, Writes};
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{
    Action, Decided, EndedLease, Known, LeaseRequest, LimitAnswer, ObjectReply, ObjectRequest, RequestId,
};

use crate::pairs::Trace;

pub(crate) const START: i64 = 1_700_000_000_000;
pub(crate) const DAY_MS: i64 = 86_400_000;
pub(crate) const LONG_MS: i64 = 2 * DAY_MS;
const KEY: &str = "k";

/// Policies of all kinds; each name says what is special.
pub(crate) const POLICIES: &str = r#"{
    "block": {"rate": 100, "period": "10s", "capacity": 60, "write_ahead": 8, "max_debt": 10},
    "each": {"rate": 3, "period": "1s", "capacity": 10, "write_ahead": 0, "unsettled": "refund", "reservation_ttl": "2s"},
    "budget": {"rate": 0, "period": "1s", "capacity": 200, "write_ahead": 5},
    "waiting": {"rate": 5, "period": "1s", "capacity": 20, "initial": 3, "write_ahead": 4, "max_debt": 6},
    "window": {"kind": "fixed_window", "rate": 20, "period": "5s", "capacity": 30, "write_ahead": 6, "max_debt": 20},
    "calendar": {"kind": "fixed_window", "rate": 20, "calendar": "day", "zone": "Europe/Berlin", "capacity": 30, "write_ahead": 6, "max_debt": 20},
    "two": {"limits": [
        {"name": "a", "rate": 7, "period": "1s", "capacity": 20, "write_ahead": 3, "max_debt": 5},
        {"name": "b", "kind": "fixed_window", "rate": 60, "period": "1m", "write_ahead": 10, "offset": "0s", "max_debt": 5}
    ], "unsettled": "refund"}
}"#;

pub(crate) fn policies() -> Policies {
    Policies::parse(POLICIES).unwrap()
}

/// Storage, and an object in front of it.
pub(crate) struct World {
    pub(crate) policy: Arc<Policy>,
    /// The frontend's registry version.
    pub(crate) as_of: Option<i64>,
    /// Whether the frontend has somewhere to send notices.
    pub(crate) has_consequences: bool,
    pub(crate) storage: BTreeMap<String, Vec<u8>>,
    /// Background rows that have not arrived yet.
    pub(crate) in_flight: Vec<Background>,
    pub(crate) ledger: Ledger,
    pub(crate) now: i64,
    pub(crate) ids: u64,
    pub(crate) rows_written: u64,
    pub(crate) wants_flush: bool,
    pub(crate) alarm_at: Option<i64>,
    pub(crate) trace: Trace,
}

impl World {
    pub(crate) fn new(policies: &Policies, policy: &str) -> Self {
        Self::empty(policies.get(policy).unwrap())
    }

    pub(crate) fn empty(policy: &Arc<Policy>) -> Self {
        Self {
            policy: Arc::clone(policy),
            as_of: None,
            has_consequences: false,
            storage: BTreeMap::new(),
            in_flight: Vec::new(),
            ledger: Ledger::new([], 0),
            now: START,
            ids: 0,
            rows_written: 0,
            wants_flush: false,
            alarm_at: None,
            trace: Trace::default(),
        }
    }

    pub(crate) fn ask(
        &mut self,
        action: Action,
        costs: Option<Vec<u64>>,
        request_id: Option<RequestId>,
    ) -> ObjectReply {
        self.ask_shadow(action, costs, None, request_id)
    }

    /// With costs for the limits in shadow, too.
    pub(crate) fn ask_shadow(
        &mut self,
        action: Action,
        costs: Option<Vec<u64>>,
        shadow_costs: Option<Vec<u64>>,
        request_id: Option<RequestId>,
    ) -> ObjectReply {
        self.call(action, costs, shadow_costs, request_id, None)
    }

    /// Leases this many tokens of each limit, and reports these leases' spending.
    pub(crate) fn lease(&mut self, wanted: Vec<u64>, ended: Vec<EndedLease>) -> ObjectReply {
        let costs = Some(vec![0; wanted.len()]);
        let request = LeaseRequest { lease_ms: 10_000, horizon_ms: 0, wanted, ended };
        self.call(Action::Look(Verb::Consume), costs, None, None, Some(request))
    }

    fn call(
        &mut self,
        action: Action,
        costs: Option<Vec<u64>>,
        shadow_costs: Option<Vec<u64>>,
        request_id: Option<RequestId>,
        lease: Option<LeaseRequest>,
    ) -> ObjectReply {
        let known = self.as_of.map(|as_of| Known { as_of, ids: vec![self.policy.id()] });
        let (costs, shadow_costs) = (costs.into_iter().collect(), shadow_costs.into_iter().collect());
        let has_consequences = self.has_consequences;
        let request = ObjectRequest { action, request_id, costs, shadow_costs, known, has_consequences, lease };
        let ids = &mut self.ids;
        let random = || {
            *ids += 1;
            Some(*ids)
        };
        let asked = std::slice::from_ref(&self.policy);
        let (reply, writes) = self.ledger.ask(asked, &request, self.now, random).unwrap();
        self.trace.answered(KEY, asked, &request, &reply, self.now);
        self.write(writes);
        reply
    }

    pub(crate) fn write(&mut self, mut writes: Writes) {
        writes.before_reply.append(&mut writes.consequences);
        self.wants_flush = writes.wants_flush;
        self.alarm_at = writes.alarm_at.or(self.alarm_at);
        if writes.clear {
            self.storage.clear();
            self.in_flight.clear();
            self.alarm_at = None;
        }
        self.rows_written += (writes.before_reply.len() + writes.background.len()) as u64;
        // An expired page of replays is deleted with whatever is written, with a row of a limit in shadow too.
        let is_expired_page = |name: &str, row: &Option<_>| name.starts_with("i:") && row.is_none();
        if writes.before_reply.iter().any(|(name, row)| !is_of_shadow(name) && !is_expired_page(name, row)) {
            self.arrive(usize::MAX); // in order: a write before the reply waits for all rows before it
        }
        for (name, row) in writes.before_reply {
            match row {
                Some(row) => _ = self.storage.insert(name, row),
                None => _ = self.storage.remove(&name),
            }
        }
        self.in_flight.extend(writes.background);
        assert!(self.storage.is_empty() || self.alarm_at.is_some(), "rows have an alarm");
    }

    /// The first `count` rows in flight are persisted, with those of limits in shadow between them: these must make no
    /// difference to when the others arrive.
    pub(crate) fn arrive(&mut self, count: usize) {
        let others = self.in_flight.iter().enumerate().filter(|(_, row)| !is_of_shadow(&row.name));
        let end = others.map(|(index, _)| index).nth(count).unwrap_or(self.in_flight.len());
        for background in self.in_flight.drain(..end) {
            self.ledger.confirm(&background.name, background.ticket);
            self.storage.insert(background.name, background.row);
        }
    }

    /// The process ends, and a new one finds the rows that have arrived.
    pub(crate) fn crash(&mut self, arrived: usize) {
        self.arrive(arrived);
        self.trace.restarted(KEY, !self.in_flight.is_empty());
        self.in_flight.clear();
        self.ledger = Ledger::new(self.storage.clone(), 0);
    }

    /// An object with another version of the policy finds this one's rows.
    pub(crate) fn restarted_with(&self, policy: &Arc<Policy>) -> Self {
        let (alarm_at, trace) = (self.alarm_at, self.trace.clone());
        let mut other = Self { alarm_at, now: self.now, trace, ..Self::empty(policy) };
        other.storage.clone_from(&self.storage);
        other.crash(0);
        other
    }

    pub(crate) fn has_row(&self) -> bool {
        self.storage.contains_key(&format!("b:{}", self.policy.name()))
    }

    pub(crate) fn flush_idle(&mut self) {
        let writes = self.ledger.flush_idle(self.now);
        self.write(writes);
    }

    pub(crate) fn clean(&mut self) {
        let writes = self.ledger.clean(self.now);
        self.alarm_at = None;
        self.write(writes);
    }

    pub(crate) fn decided(&mut self, action: Action, costs: Vec<u64>) -> Decided {
        decided(self.ask(action, Some(costs), None))
    }

    /// A request with a request id that must outlast a crash.
    pub(crate) fn decided_once(&mut self, action: Action, costs: Vec<u64>, id: u128) -> Decided {
        decided(self.ask(action, Some(costs), Some(request_id(id, 0))))
    }

    /// The names of the rows, up to their colon.
    pub(crate) fn rows(&self) -> Vec<&str> {
        self.storage.keys().map(|name| &name[..2]).collect()
    }

    /// Tokens left in each limit, rounded down to whole ones; negative when in debt.
    pub(crate) fn levels(&mut self) -> Vec<i64> {
        let zeros = vec![0; self.policy.limits().len()];
        // A refund of 0 is never refused and changes nothing.
        self.decided(Action::Look(Verb::Refund), zeros)
            .limits
            .iter()
            .map(|limit| signed(limit.remaining, limit.owed))
            .collect()
    }
}

fn is_of_shadow(row: &str) -> bool {
    row.starts_with("b:") && row.ends_with("~shadow")
}

/// A level in tokens, negative when in debt.
pub(crate) fn signed(remaining: u64, owed: u64) -> i64 {
    i64::try_from(remaining).unwrap() - i64::try_from(owed).unwrap()
}

pub(crate) fn decided(reply: ObjectReply) -> Decided {
    match reply {
        ObjectReply::Decided(decided) => decided,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn tokens(answer: &LimitAnswer) -> u64 {
    match answer.decision {
        Decision::Allow { tokens, .. } => tokens,
        _ => 0,
    }
}

pub(crate) const fn request_id(id: u128, fingerprint: u64) -> RequestId {
    RequestId { id, fingerprint, ttl_ms: RequestId::USUAL_TTL_MS, by_grant: false }
}
