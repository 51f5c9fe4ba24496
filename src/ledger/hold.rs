//! Tokens kept from others while a batch asks its other keys.

use std::sync::Arc;

use super::bucket::Need;
use super::decide::tokens;
use super::reservation::{End, Reservation};
use super::{Ledger, LedgerError, Writes};
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::{Decided, ObjectReply, ObjectRequest, RequestId, Reserved};

/// For how long the first half of a batch is held while its other keys are asked: much longer than that takes, and no
/// longer than a budget may be short of it when the one who asked has vanished.
const HOLD_MS: u64 = 10_000;

impl Ledger {
    /// Takes nothing yet, but keeps others from taking it: the first half of a batch over several keys.
    pub(super) fn hold(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        id: u64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.held_before(asked, request.request_id, now)? {
            return Ok(reply);
        }
        if let Some(reply) = self.too_many(|end| end == End::Released) {
            return Ok(reply);
        }
        let (mut limits, decision) = self.decide(asked, Verb::Consume, &request.costs, now, false)?;
        if !decision.is_allow() {
            return Ok(ObjectReply::Decided(self.decided(now, limits)));
        }
        let reserved = Reserved { id, expires_at: now.saturating_add_unsigned(HOLD_MS) };
        self.open_reservation(asked, reserved, End::Released, request.request_id, &limits, now, writes);
        let grants: Vec<_> = limits.iter().map(|limit| (tokens(limit), now)).collect();
        limits = self.standing(asked, &grants, now)?;
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), ..self.decided(now, limits) }))
    }

    /// The first answer to the first half of a batch that is asked again before the second.
    fn held_before(
        &mut self,
        asked: &[Arc<Policy>],
        request_id: Option<RequestId>,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let Some(request_id) = request_id else {
            return Ok(None);
        };
        let same = |open: &Reservation| open.request_id.is_some_and(|other| other.id == request_id.id);
        let Some((&id, open)) = self.reservations.iter().find(|(_, open)| same(open)) else {
            return Ok(None);
        };
        if open.request_id.is_some_and(|other| other.fingerprint != request_id.fingerprint) {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        let (at, expires_at) = (open.opened_at, open.expires_at);
        let taken = asked.iter().zip(&open.parts).flat_map(|(policy, part)| part.tokens(policy));
        let grants: Vec<_> = taken.map(|tokens| (tokens, at)).collect();
        Ok(Some(self.replay(asked, &grants, Some(Reserved { id, expires_at }), now)?))
    }

    /// Takes what was held. It is there: nobody could take it.
    pub(super) fn take_held(&mut self, policy: &Policy, held: &[u64], now: i64) -> Result<(), LedgerError> {
        let bucket = self.bucket(policy)?;
        for ((limit, state), &held) in policy.limits().iter().zip(&mut bucket.states).zip(held) {
            if held > 0 {
                *state = limit.limit().lowered(&limit.limit().refilled(state, now), held);
            }
        }
        bucket.need(Need::Spent);
        Ok(())
    }
}
