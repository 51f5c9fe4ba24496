//! The first answer to a request, when it is repeated.

use std::sync::Arc;

use super::bucket::Need;
use super::replays::Replay;
use super::{Ledger, LedgerError};
use crate::limit::Decision;
use crate::policy::Policy;
use crate::protocol::{Decided, LimitAnswer, ObjectReply, RequestId, Reserved};

impl Ledger {
    /// The first answer to a request that is asked again.
    pub(super) fn remembered(
        &mut self,
        asked: &[Arc<Policy>],
        request_id: Option<RequestId>,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let (Some(request_id), Some(first)) = (request_id, asked.first()) else {
            return Ok(None);
        };
        let Some(grant) = self.bucket(first)?.replays.get(request_id.id) else {
            return Ok(None);
        };
        if grant.request_id.fingerprint != request_id.fingerprint {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        let Replay { grants, reservation, .. } = grant.clone();
        Ok(Some(self.replay(asked, &grants, reservation, now)?))
    }

    /// A grant of before, with what is left now.
    pub(super) fn replay(
        &mut self,
        asked: &[Arc<Policy>],
        grants: &[(u64, i64)],
        reservation: Option<Reserved>,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let limits = self.standing(asked, grants, now)?;
        let decided = self.decided(now, limits);
        Ok(ObjectReply::Decided(Decided { is_replayed: true, reservation, ..decided }))
    }

    pub(super) fn remember(
        &mut self,
        asked: &[Arc<Policy>],
        request_id: Option<RequestId>,
        now: i64,
        reservation: Option<Reserved>,
        limits: &[LimitAnswer],
    ) -> Result<(), LedgerError> {
        let Some(request_id) = request_id else {
            return Ok(());
        };
        let grants = limits.iter().filter_map(|limit| match limit.decision {
            Decision::Allow { tokens, ready_at } => Some((tokens, ready_at)),
            _ => None,
        });
        let grants: Vec<_> = grants.collect();
        self.push(asked, Replay { request_id, decided_at: now, reservation, grants })
    }

    /// Remembers a grant in the bucket of the first policy that was asked, where a repetition looks for it.
    pub(super) fn push(&mut self, asked: &[Arc<Policy>], grant: Replay) -> Result<(), LedgerError> {
        if let Some(first) = asked.first() {
            let bucket = self.bucket(first)?;
            if grant.request_id.is_lasting {
                bucket.need(Need::Lasting);
            }
            bucket.replays.push(grant);
        }
        Ok(())
    }
}
