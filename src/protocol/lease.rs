//! Tokens that a frontend takes in advance, to spend without a call.
//!
//! ```text
//! of a request
//!   lease_ms     how long the tokens shall be usable
//!   horizon_ms   how long the frontend would wait for them
//!   how many limits there are, then the tokens wanted of each; all 0 if the frontend only returns some
//!   then for each lease that has ended
//!     id           in 2 words
//!     tokens spent of each limit
//! of a reply
//!   id           in 2 words
//!   from, until  by the object's clock
//!   then the tokens of each limit
//! ```

use super::numbers::{Reader, Unreadable, Writer};

/// Milliseconds after `until` during which the object still withholds a lease, before it counts all of it as spent: a frontend's clock may
/// step back while a call takes two seconds, and stand still while a request computes.
pub const LEASE_GRACE_MS: u64 = 3_000;

/// The lease messages of a frontend, about the only policy of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// How long the tokens shall be usable, in milliseconds.
    pub lease_ms: u64,
    /// How long the frontend would wait for them, in milliseconds: meanwhile it refuses by itself.
    pub horizon_ms: u64,
    /// The tokens wanted of each limit; all 0 if it only returns some.
    pub wanted: Vec<u64>,
    /// The leases that it no longer spends from.
    pub ended: Vec<EndedLease>,
}

/// A lease that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedLease {
    /// Its id.
    pub id: u64,
    /// The spent tokens of each limit; the rest is given back.
    pub spent: Vec<u64>,
}

/// Tokens that one frontend may spend. The object withholds them from all others until it has them back, or for some time after they can
/// last be spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Random, 64 bits.
    pub id: u64,
    /// When the leased tokens have refilled, by the object's clock: not before its `now`.
    pub from: i64,
    /// When they can no longer be spent.
    pub until: i64,
    /// For each limit.
    pub tokens: Vec<u64>,
}

impl LeaseRequest {
    /// Maximum ended leases reported in one request, and so remembered by a frontend until the object has confirmed them.
    pub const MAX_ENDED: usize = 16;

    /// Whether any tokens are wanted.
    #[must_use]
    pub fn wants_any(&self) -> bool {
        self.wanted.iter().any(|&tokens| tokens > 0)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let limits = self.wanted.len();
        // One from a version with other limits is meaningless here.
        let ended = || self.ended.iter().filter(|ended| ended.spent.len() == limits);
        let each = limits.saturating_add(2);
        let len = ended().count().saturating_mul(each).saturating_add(limits).saturating_add(3);
        writer.section(REQUESTED, len);
        writer.whole(self.lease_ms);
        writer.whole(self.horizon_ms);
        writer.whole(limits as u64);
        write_all(&self.wanted, writer);
        for EndedLease { id, spent } in ended() {
            writer.words::<2>((*id).into());
            write_all(spent, writer);
        }
    }

    pub(super) fn read(rest: &Reader<'_>) -> Result<Option<Self>, Unreadable> {
        let Some(mut section) = rest.section(REQUESTED)? else { return Ok(None) };
        let (lease_ms, horizon_ms, limits) = (section.whole()?, section.whole()?, section.whole()?);
        let tokens = |section: &mut Reader<'_>| (0..limits).map(|_| section.whole()).collect::<Result<Vec<_>, _>>();
        let wanted = tokens(&mut section)?;
        let mut ended = Vec::new();
        while !section.is_empty() {
            let id = section.words::<2>()?;
            let id = u64::try_from(id).map_err(|_| Unreadable::Malformed)?;
            ended.push(EndedLease { id, spent: tokens(&mut section)? });
        }
        Ok(Some(Self { lease_ms, horizon_ms, wanted, ended }))
    }
}

impl Lease {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.section(GIVEN, self.tokens.len().saturating_add(4));
        writer.words::<2>(self.id.into());
        writer.signed(self.from);
        writer.signed(self.until);
        write_all(&self.tokens, writer);
    }

    pub(super) fn read(rest: &Reader<'_>) -> Result<Option<Self>, Unreadable> {
        let Some(mut section) = rest.section(GIVEN)? else { return Ok(None) };
        let id = u64::try_from(section.words::<2>()?).map_err(|_| Unreadable::Malformed)?;
        let (from, until) = (section.signed()?, section.signed()?);
        let mut tokens = Vec::new();
        while !section.is_empty() {
            tokens.push(section.whole()?);
        }
        Ok(Some(Self { id, from, until, tokens }))
    }
}

fn write_all(tokens: &[u64], writer: &mut Writer) {
    for &tokens in tokens {
        writer.whole(tokens);
    }
}

/// The kind of the section of a request.
const REQUESTED: u8 = 5;

/// The kind of the section of a reply.
const GIVEN: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Format;

    #[test]
    fn both_survive_a_round_trip() {
        let wanted = LeaseRequest {
            lease_ms: 2_000,
            horizon_ms: 1_000,
            wanted: vec![20, 1 << 52],
            ended: [1, u64::MAX].map(|id| EndedLease { id, spent: vec![3, 4] }).into(),
        };
        let none = LeaseRequest { lease_ms: 1, horizon_ms: 0, wanted: Vec::new(), ended: Vec::new() };
        for request in [wanted, none] {
            let mut writer = Writer::new(Format::NEWEST, 0);
            request.write(&mut writer);
            let text = writer.finish();
            let (reader, _) = Reader::new(&text).ok().unwrap();
            assert_eq!(LeaseRequest::read(&reader), Ok(Some(request)));
            assert_eq!(Lease::read(&reader), Ok(None));
        }
        let lease = Lease { id: u64::MAX - 1, from: 5, until: 2_005, tokens: vec![7, 0] };
        let mut writer = Writer::new(Format::NEWEST, 0);
        lease.write(&mut writer);
        let text = writer.finish();
        let (reader, _) = Reader::new(&text).ok().unwrap();
        assert_eq!(Lease::read(&reader), Ok(Some(lease)));
    }

    #[test]
    fn a_lease_of_other_limits_is_left_out() {
        let ended = [(1, vec![3]), (2, vec![4, 5])].map(|(id, spent)| EndedLease { id, spent });
        let request = LeaseRequest { lease_ms: 2_000, horizon_ms: 0, wanted: vec![0, 0], ended: ended.to_vec() };
        let mut writer = Writer::new(Format::NEWEST, 0);
        request.write(&mut writer);
        let text = writer.finish();
        let (reader, _) = Reader::new(&text).ok().unwrap();
        let read = LeaseRequest::read(&reader).unwrap().unwrap();
        assert_eq!(read.ended, ended[1..]);
    }

    #[test]
    fn missing_numbers_are_an_error() {
        for len in 0..7 {
            let mut writer = Writer::new(Format::NEWEST, 0);
            writer.section(REQUESTED, len);
            // Announces two limits, and one ended lease.
            [2_000, 0, 2, 1, 1, 0, 9].iter().take(len).for_each(|&number| writer.whole(number));
            let text = writer.finish();
            let (reader, _) = Reader::new(&text).ok().unwrap();
            assert_eq!(LeaseRequest::read(&reader).is_ok(), len == 5, "{len}");
        }
    }
}
