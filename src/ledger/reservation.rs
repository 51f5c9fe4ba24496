//! Tokens that were taken and whose real cost is not yet known.
//!
//! ```text
//! byte 0     1: this format
//! byte 1     when it expires: 0 if it stays charged, 1 if it is refunded, 2 if it was only held
//! byte 2     2 if it has a request id that must outlast a crash, 1 for another request id, else 0
//! 8 bytes    when it was opened
//! 8 bytes    when it ends
//! 24 bytes   the request id, if there is one: id and fingerprint
//! then for each policy
//!   1 byte   the length of its name, then the name
//!   1 byte   how many limits it has, then for each
//!     1 byte   the length of its name, 0 if it has none, then the name
//!     8 bytes  the tokens
//! ```

use super::bytes::Bytes;
use crate::policy::Policy;
use crate::protocol::RequestId;

/// An open reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) opened_at: i64,
    pub(super) expires_at: i64,
    /// What becomes of it when nobody settles it.
    pub(super) end: End,
    /// For the first half of a batch: what is to be remembered once it is settled.
    pub(super) request_id: Option<RequestId>,
    /// The policies it is of.
    pub(super) parts: Vec<ReservedPart>,
}

/// What becomes of a reservation that nobody settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its tokens were taken, and that stays so.
    Charged,
    /// Its tokens were taken, and are given back.
    Refunded,
    /// Its tokens were not taken, but nobody else could have them. To take them and give them back would not be the same:
    /// in the meantime a full bucket would refill.
    Released,
}

/// What is reserved of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReservedPart {
    pub(super) policy: String,
    /// The tokens of each limit, by its name: the policy may have other limits, or another order, when it ends.
    tokens: Vec<(Option<String>, u64)>,
}

impl ReservedPart {
    pub(super) fn new(policy: &Policy, tokens: impl IntoIterator<Item = u64>) -> Self {
        let names = policy.limits().iter().map(|limit| limit.name().map(str::to_owned));
        Self { policy: policy.name().to_owned(), tokens: names.zip(tokens).collect() }
    }

    /// The tokens of each limit that `policy` has now; 0 of one that was not there then.
    pub(super) fn tokens(&self, policy: &Policy) -> Vec<u64> {
        let of = |name: Option<&str>| self.tokens.iter().find(|(other, _)| other.as_deref() == name);
        policy.limits().iter().map(|limit| of(limit.name()).map_or(0, |(_, tokens)| *tokens)).collect()
    }
}

impl Reservation {
    pub(super) fn encode(&self) -> Vec<u8> {
        let request_id = self.request_id.map_or(0, |request_id| if request_id.is_lasting { 2 } else { 1 });
        let end = match self.end {
            End::Charged => 0,
            End::Refunded => 1,
            End::Released => 2,
        };
        let mut bytes = vec![FORMAT, end, request_id];
        bytes.extend(self.opened_at.to_le_bytes());
        bytes.extend(self.expires_at.to_le_bytes());
        if let Some(request_id) = self.request_id {
            bytes.extend(request_id.id.to_le_bytes());
            bytes.extend(request_id.fingerprint.to_le_bytes());
        }
        // Names have 64 bytes at most, policies 8 limits.
        let short = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
        for ReservedPart { policy, tokens } in &self.parts {
            bytes.push(short(policy.len()));
            bytes.extend(policy.as_bytes());
            bytes.push(short(tokens.len()));
            for (name, tokens) in tokens {
                let name = name.as_deref().unwrap_or_default();
                bytes.push(short(name.len()));
                bytes.extend(name.as_bytes());
                bytes.extend(tokens.to_le_bytes());
            }
        }
        bytes
    }

    /// `None` for bytes that were not encoded here.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [format, end, request_id] = bytes.array()?;
        if format != FORMAT {
            return None;
        }
        let end = match end {
            0 => End::Charged,
            1 => End::Refunded,
            2 => End::Released,
            _ => return None,
        };
        let (opened_at, expires_at) = (bytes.i64()?, bytes.i64()?);
        let request_id = match request_id {
            0 => None,
            kind => Some(RequestId { id: bytes.u128()?, fingerprint: bytes.u64()?, is_lasting: kind == 2 }),
        };
        let mut parts = Vec::new();
        while !bytes.is_empty() {
            let len = bytes.byte()?;
            let policy = bytes.text(len.into())?.to_owned();
            let count = bytes.byte()?;
            let limit = |_| {
                let len = bytes.byte()?;
                let name = bytes.text(len.into())?;
                Some(((!name.is_empty()).then(|| name.to_owned()), bytes.u64()?))
            };
            parts.push(ReservedPart { policy, tokens: (0..count).map(limit).collect::<Option<_>>()? });
        }
        Some(Self { opened_at, expires_at, end, request_id, parts })
    }
}

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// What lies in the storage of every deployment. If this changes, open reservations must still be read.
    #[test]
    fn the_stored_format_is_unchanged() {
        let mut reservation = Reservation {
            opened_at: 1,
            expires_at: 2,
            end: End::Refunded,
            request_id: None,
            parts: vec![ReservedPart { policy: "api".to_owned(), tokens: vec![(None, 3), (Some("b".to_owned()), 4)] }],
        };
        let mut bytes = vec![1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([3, b'a', b'p', b'i', 2]);
        bytes.extend([0, 3, 0, 0, 0, 0, 0, 0, 0, 1, b'b', 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reservation.encode(), bytes);
        assert_eq!(Reservation::decode(&bytes), Some(reservation.clone()));

        reservation.request_id = Some(RequestId { id: 5, fingerprint: 6, is_lasting: true });
        bytes[2] = 2;
        bytes.splice(19..19, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reservation.encode(), bytes);
        assert_eq!(Reservation::decode(&bytes), Some(reservation));
    }

    #[test]
    fn what_was_not_encoded_here_is_none() {
        let good = Reservation {
            opened_at: 1,
            expires_at: 2,
            end: End::Charged,
            request_id: None,
            parts: vec![ReservedPart { policy: "p".into(), tokens: vec![(None, 3)] }],
        };
        let good = good.encode();
        assert!(Reservation::decode(&good).is_some());
        assert_eq!(Reservation::decode(&[]), None);
        assert_eq!(Reservation::decode(&good[..good.len() - 1]), None);
        assert_eq!(Reservation::decode(&[&[2], &good[1..]].concat()), None);
    }
}
