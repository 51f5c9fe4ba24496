//! A request, from the first look at it to its answer and the rows that it makes necessary.

use std::sync::Arc;

use super::{Ledger, LedgerError, Writes};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::{Action, ObjectReply, ObjectRequest};

impl Ledger {
    /// Answers a request about the buckets of the policies `asked`; `random` gives the ids of reservations. A bucket that was
    /// asked before under another [`Policy`] of that name is carried over to this one.
    ///
    /// # Errors
    /// When the costs do not fit the limits, a stored bucket cannot be read, or there is nothing random.
    pub fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> Result<(ObjectReply, Writes), LedgerError> {
        let limits = asked.iter().map(|policy| policy.limits().len());
        let omits_costs = request.costs.is_empty() && matches!(request.action, Action::Settle(_) | Action::Cancel(_));
        if !omits_costs && !limits.eq(request.costs.iter().map(Vec::len)) {
            return Err(LedgerError("the costs do not fit the limits of the policies".to_owned()));
        }
        let id = match request.action {
            Action::Reserve(_) | Action::Hold(0) => self.unused_id(random)?,
            Action::Hold(id) => id,
            _ => 0,
        };
        for policy in asked {
            self.open(policy, now)?;
        }
        let mut writes = Writes::default();
        self.end_expired(now, &mut writes);
        let reply = match self.remembered(asked, request.request_id, now)? {
            Some(reply) => reply,
            None => self.perform(asked, request, now, id, &mut writes)?,
        };
        self.collect_writes(now, &mut writes);
        if !self.has_alarm && !writes.before_reply.is_empty() {
            writes.alarm_at = Some(self.next_alarm(now));
            self.has_alarm = true;
        }
        Ok((reply, writes))
    }

    /// Answers a request that was not asked before. `id` is for the reservation that it may open.
    fn perform(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        id: u64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        match request.action {
            Action::Look(verb) => {
                let (limits, _) = self.decide(asked, verb, &request.costs, now, false)?;
                Ok(ObjectReply::Decided(self.decided(now, limits)))
            }
            // There is nothing to settle of nothing.
            Action::Reserve(verb) if !asks_for_any(request) => self.take(asked, verb, request, now),
            Action::Take(verb) => self.take(asked, verb, request, now),
            Action::Reserve(verb) => self.reserve(asked, verb, request, now, id, writes),
            Action::Hold(_) => self.hold(asked, request, now, id, writes),
            Action::Settle(id) => self.settle(asked, id, request, now, writes),
            Action::Cancel(id) => self.cancel(asked, id, request, now, writes),
        }
    }

    fn take(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let (limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        // Who consumes nothing only looks, and may look again.
        if decision.is_allow() && (asks_for_any(request) || !verb.takes()) {
            self.remember(asked, request.request_id, now, None, &limits)?;
        }
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }
}

fn asks_for_any(request: &ObjectRequest) -> bool {
    request.costs.iter().flatten().any(|&cost| cost > 0)
}
