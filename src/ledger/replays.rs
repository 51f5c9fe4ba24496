//! What was answered before, for questions that are asked again.
//!
//! ```text
//! 16 bytes   the id
//! 8 bytes    the fingerprint
//! 1 byte     1 if it must outlast a crash, else 0
//! 8 bytes    the moment of the decision
//! 8 bytes    the reservation that was opened, or all ones
//! 8 bytes    when that ends
//! 1 byte     how many limits decided, then for each
//!   8 bytes  the tokens that moved
//!   8 bytes  when they are ready
//! ```

use std::collections::VecDeque;

use super::bytes::Bytes;
use crate::protocol::{RequestId, Reserved};

/// The last grants of one bucket, oldest first. Refusals are not among them: who was refused asks anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Replays(VecDeque<Replay>);

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replay {
    pub(super) request_id: RequestId,
    pub(super) decided_at: i64,
    pub(super) reservation: Option<Reserved>,
    /// For each limit the tokens that moved, and when they are ready.
    pub(super) grants: Vec<(u64, i64)>,
}

/// How many grants are remembered of each kind, clients' and the front's own. Of a client that sends more than so many at once, the first may be forgotten before
/// it repeats them; each costs at least 66 bytes of the bucket's row.
const MAX_REPLAYS: usize = 64;

/// How long a row is kept for the sake of what it remembers: a day, as the best-known payment interface does.
const REPLAY_TTL_MS: i64 = 86_400_000;

/// How long the front's own questions are worth keeping: it repeats them at once or never.
const RETRIED_MS: u64 = 10_000;

impl Replays {
    pub(super) fn get(&self, id: u128) -> Option<&Replay> {
        self.0.iter().rev().find(|grant| grant.request_id.id == id)
    }

    pub(super) fn push(&mut self, grant: Replay) {
        // Each kind by itself: a client's own must not go for the sake of the front's, which serve for seconds.
        let is_same_kind = |other: &Replay| other.request_id.is_lasting == grant.request_id.is_lasting;
        if self.0.iter().filter(|other| is_same_kind(other)).count() >= MAX_REPLAYS {
            let oldest = self.0.iter().position(is_same_kind).unwrap_or(0);
            self.0.remove(oldest);
        }
        self.0.push_back(grant);
    }

    /// Until when the row must be kept.
    pub(super) fn expires_at(&self) -> Option<i64> {
        let lasting = self.0.iter().filter(|grant| grant.request_id.is_lasting);
        lasting.map(|grant| grant.decided_at.saturating_add(REPLAY_TTL_MS)).max()
    }

    pub(super) fn encode(&self, now: i64, bytes: &mut Vec<u8>) {
        for Replay { request_id, decided_at, reservation, grants } in &self.0 {
            if !request_id.is_lasting && now.abs_diff(*decided_at) > RETRIED_MS {
                continue;
            }
            let Reserved { id, expires_at } = reservation.unwrap_or(Reserved { id: u64::MAX, expires_at: 0 });
            bytes.extend(request_id.id.to_le_bytes());
            bytes.extend(request_id.fingerprint.to_le_bytes());
            bytes.push(u8::from(request_id.is_lasting));
            bytes.extend(decided_at.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes.extend(expires_at.to_le_bytes());
            // A batch of 16 policies of 8 limits has 128.
            bytes.push(u8::try_from(grants.len()).unwrap_or(u8::MAX));
            for (tokens, ready_at) in grants {
                bytes.extend(tokens.to_le_bytes());
                bytes.extend(ready_at.to_le_bytes());
            }
        }
    }

    /// Reads all that is left, or `None` if that was not encoded here.
    pub(super) fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let mut grants = VecDeque::new();
        while !bytes.is_empty() {
            let (id, fingerprint, is_lasting) = (bytes.u128()?, bytes.u64()?, bytes.byte()? == 1);
            let (decided_at, reservation, expires_at) = (bytes.i64()?, bytes.u64()?, bytes.i64()?);
            let count = bytes.byte()?;
            grants.push_back(Replay {
                request_id: RequestId { id, fingerprint, is_lasting },
                decided_at,
                reservation: (reservation != u64::MAX).then_some(Reserved { id: reservation, expires_at }),
                grants: (0..count).map(|_| Some((bytes.u64()?, bytes.i64()?))).collect::<Option<_>>()?,
            });
        }
        Some(Self(grants))
    }
}
