//! Tokens that were taken and whose real cost is not yet known.
//!
//! ```text
//! byte 0     1: this format
//! byte 1     1 if it gives everything back when it ends, else 0
//! byte 2     2 if it has a memo that must outlast a crash, 1 for another memo, else 0
//! 8 bytes    when it was opened
//! 8 bytes    when it ends
//! 24 bytes   the memo, if there is one: id and fingerprint
//! then for each policy
//!   1 byte   the length of its name, then the name
//!   1 byte   how many limits it has, then 8 bytes for each: the tokens taken
//! ```

use super::bytes::Bytes;
use crate::api::Memo;

/// An open reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) opened_at: i64,
    pub(super) expires_at: i64,
    /// What becomes of it when nobody settles it.
    pub(super) gives_back: bool,
    /// For the first half of a batch: what is to be remembered once it is settled.
    pub(super) memo: Option<Memo>,
    /// What was taken of each policy's limits.
    pub(super) parts: Vec<(String, Vec<u64>)>,
}

impl Reservation {
    pub(super) fn encode(&self) -> Vec<u8> {
        let memo = self.memo.map_or(0, |memo| if memo.is_lasting { 2 } else { 1 });
        let mut bytes = vec![FORMAT, u8::from(self.gives_back), memo];
        bytes.extend(self.opened_at.to_le_bytes());
        bytes.extend(self.expires_at.to_le_bytes());
        if let Some(memo) = self.memo {
            bytes.extend(memo.id.to_le_bytes());
            bytes.extend(memo.fingerprint.to_le_bytes());
        }
        for (policy, tokens) in &self.parts {
            // Names have 64 bytes at most, policies 8 limits.
            bytes.push(u8::try_from(policy.len()).unwrap_or(u8::MAX));
            bytes.extend(policy.as_bytes());
            bytes.push(u8::try_from(tokens.len()).unwrap_or(u8::MAX));
            bytes.extend(tokens.iter().flat_map(|tokens| tokens.to_le_bytes()));
        }
        bytes
    }

    /// `None` for bytes that were not encoded here.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [format, gives_back, memo] = bytes.array()?;
        if format != FORMAT {
            return None;
        }
        let (opened_at, expires_at) = (bytes.i64()?, bytes.i64()?);
        let memo = match memo {
            0 => None,
            kind => Some(Memo { id: bytes.u128()?, fingerprint: bytes.u64()?, is_lasting: kind == 2 }),
        };
        let mut parts = Vec::new();
        while !bytes.is_empty() {
            let len = bytes.byte()?;
            let policy = bytes.text(len.into())?.to_owned();
            let count = bytes.byte()?;
            parts.push((policy, (0..count).map(|_| bytes.u64()).collect::<Option<_>>()?));
        }
        Some(Self { opened_at, expires_at, gives_back: gives_back == 1, memo, parts })
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
            gives_back: true,
            memo: None,
            parts: vec![("api".to_owned(), vec![3, 4])],
        };
        let mut bytes = vec![1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([3, b'a', b'p', b'i', 2, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reservation.encode(), bytes);
        assert_eq!(Reservation::decode(&bytes), Some(reservation.clone()));

        reservation.memo = Some(Memo { id: 5, fingerprint: 6, is_lasting: true });
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
            gives_back: false,
            memo: None,
            parts: vec![("p".into(), vec![3])],
        };
        let good = good.encode();
        assert!(Reservation::decode(&good).is_some());
        assert_eq!(Reservation::decode(&[]), None);
        assert_eq!(Reservation::decode(&good[..good.len() - 1]), None);
        assert_eq!(Reservation::decode(&[&[2], &good[1..]].concat()), None);
    }
}
