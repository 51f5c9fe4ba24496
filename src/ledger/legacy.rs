//! Replays as they lay at the end of a bucket's row of format 1. They are read once, and go to pages of their own.
//!
//! ```text
//! 16 bytes   the request id
//! 8 bytes    the fingerprint
//! 1 byte     1 if it must outlast a crash, else 0
//! 8 bytes    the moment of the decision
//! 8 bytes    the reservation that was opened, or all ones
//! 8 bytes    when that ends
//! 1 byte     how many limits decided, then for each
//!   8 bytes  the tokens that moved
//!   8 bytes  when they are ready
//! ```

use super::bytes::Bytes;
use crate::protocol::{RequestId, Reserved};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LegacyReplay {
    pub(super) request_id: RequestId,
    pub(super) decided_at: i64,
    pub(super) opened: Option<Reserved>,
    /// For each limit of each policy the tokens that moved, and when they are ready.
    pub(super) grants: Vec<(u64, i64)>,
}

/// Reads all that is left, or `None` if that is not a list of replays.
pub(super) fn decode(bytes: &mut Bytes<'_>) -> Option<Vec<LegacyReplay>> {
    let mut replays = Vec::new();
    while !bytes.is_empty() {
        let (id, fingerprint, is_lasting) = (bytes.u128()?, bytes.u64()?, bytes.byte()? == 1);
        let (decided_at, reservation, expires_at) = (bytes.i64()?, bytes.u64()?, bytes.i64()?);
        let count = bytes.byte()?;
        replays.push(LegacyReplay {
            request_id: RequestId {
                id,
                fingerprint,
                ttl_ms: if is_lasting { RequestId::USUAL_TTL_MS } else { 0 },
                by_grant: false,
            },
            decided_at,
            opened: (reservation != u64::MAX).then_some(Reserved { id: reservation, expires_at }),
            grants: (0..count).map(|_| Some((bytes.u64()?, bytes.i64()?))).collect::<Option<_>>()?,
        });
    }
    Some(replays)
}
