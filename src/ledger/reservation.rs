//! Tokens taken before the real cost is known.
//!
//! ```text
//! byte 0     1: this format
//! byte 1     when it expires: 0 if it stays charged, 1 if it is refunded
//! byte 2     1 if the holder of a grant opened it, or raised it, else 0
//! 8 bytes    when it was opened
//! 8 bytes    when it ends
//! then for each policy
//!   1 byte   the length of its name, then the name
//!   1 byte   how many limits it has, then for each
//!     1 byte   the length of its account's name, 0 if it has none, then the name
//!     1 byte   0 if it was enforced, 3 if it was and took less than was granted; in shadow, 1 if it granted its cost, 2 if not
//!     8 bytes  the tokens taken, unless that byte is 2
//!     8 bytes  those granted or refused and not taken, if that byte is 2 or 3
//! then for each raise a byte of 0, where a policy would have the length of its name, 8 bytes for its id, and its policies in the same way
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use super::bytes::Bytes;
use super::names::{RESERVATION, Renamed};
use crate::limit::Decision;
use crate::policy::{NamedLimit, Policy, is_of_slots, name_of, without_shadow};
use crate::protocol::{LimitAnswer, PolicyTokens};

/// An open reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) opened_at: i64,
    pub(super) expires_at: i64,
    /// What happens when it expires.
    pub(super) end: End,
    /// Whether a grant's holder opened or raised it.
    pub(super) by_grant: bool,
    /// What it took first, of each policy.
    pub(super) parts: Vec<ReservedPart>,
    /// What it took later, the latest last.
    pub(super) raises: Vec<Raise>,
}

/// Tokens added to a reservation. In the buckets it has an opening of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raise {
    pub(super) id: u64,
    pub(super) parts: Vec<ReservedPart>,
}

/// What happens to a reservation that expires unsettled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It keeps its full cost.
    Charged,
    /// Its tokens are given back.
    Refunded,
}

/// The tokens reserved under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReservedPart {
    pub(super) policy: String,
    takes: Vec<Take>,
}

/// What was taken of one limit. The policy may have other limits, or another order, when the reservation ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Take {
    account: Option<String>,
    mode: Mode,
    tokens: u64,
    /// How many more were granted and not taken: by a limit in shadow that would have refused them, or for a key without limits.
    spared: u64,
}

/// The limit's mode at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Enforced,
    Shadow,
    /// In shadow, and it would have refused.
    Refused,
}

/// A piece of a reservation, for one policy's bucket: that of its enforced limits, or that of those in shadow.
pub(super) struct Piece<'a> {
    /// Its opening's id.
    pub(super) id: u64,
    /// Whether it is settled in this bucket: what was requested only of limits in shadow has no opening in that of the enforced ones.
    pub(super) is_open: bool,
    /// The share of each limit of the policy.
    pub(super) shares: Vec<Share>,
    /// What was taken of the bucket's limits, also of those that the policy has lost since.
    pub(super) taken: Cow<'a, ReservedPart>,
}

/// What one opening of an expired reservation gives back to a bucket.
pub(super) struct Expired {
    pub(super) at: i64,
    pub(super) id: u64,
    pub(super) taken: ReservedPart,
}

/// One limit's share of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// What its bucket took.
    pub(super) taken: u64,
    /// What it did not take, and does not pay for.
    pub(super) spared: u64,
    /// Whether it pays for what exceeds both: not for a piece that was requested of it in shadow if it is enforced now, or the other way
    /// round, nor in shadow for one that it would have refused.
    pub(super) pays_more: bool,
    /// Whether it takes part in this piece: it was requested of it, or, if it is enforced, of its bucket before it was added.
    pub(super) is_asked: bool,
}

impl Share {
    /// Its part of the cost.
    pub(super) const fn cost(self) -> u64 {
        self.taken.saturating_add(self.spared)
    }

    /// What the bucket should have taken, if its part of the cost really was `real`.
    pub(super) fn paid(self, real: u64) -> u64 {
        let more = if self.pays_more { real.saturating_sub(self.cost()) } else { 0 };
        self.taken.min(real).saturating_add(more)
    }
}

impl ReservedPart {
    pub(super) fn new(policy: &Policy, tokens: impl IntoIterator<Item = u64>) -> Self {
        Self::of_some(policy, policy.limits().iter().zip(tokens))
    }

    /// Only what these limits of the policy have taken.
    pub(super) fn of_some<'a>(policy: &Policy, taken: impl Iterator<Item = (&'a NamedLimit, u64)>) -> Self {
        let take = |(limit, tokens)| Take::of(limit, Mode::Enforced, tokens);
        Self { policy: policy.name().to_owned(), takes: taken.map(take).collect() }
    }

    /// The parts of a request for the policies `asked`, which moved `tokens` of each limit.
    pub(super) fn all<'a>(
        asked: impl IntoIterator<Item = &'a Policy>,
        tokens: impl IntoIterator<Item = u64>,
    ) -> Vec<Self> {
        let mut tokens = tokens.into_iter();
        asked.into_iter().map(|policy| Self::new(policy, tokens.by_ref().take(policy.limits().len()))).collect()
    }

    /// The tokens of all limits, by name.
    pub(super) fn to_tokens(&self) -> PolicyTokens {
        let enforced = self.takes.iter().filter(|take| take.mode == Mode::Enforced);
        let limits = enforced.map(|take| (name_of(take.account.as_deref()).map(str::to_owned), take.tokens));
        PolicyTokens { policy: self.policy.clone(), limits: limits.collect() }
    }

    /// The tokens of each limit of `policy`; 0 for one added since, and for slots: their buckets are never lower.
    pub(super) fn tokens(&self, policy: &Policy) -> Vec<u64> {
        policy.limits().iter().map(|limit| self.tokens_of(limit.account())).collect()
    }

    /// Adds what was granted of each enforced limit and not taken.
    pub(super) fn with_granted(mut self, granted: &[u64]) -> Self {
        for (take, granted) in self.takes.iter_mut().zip(granted) {
            take.spared = granted.saturating_sub(take.tokens);
        }
        self
    }

    /// The tokens of the named limit; `None` if it was not enforced then.
    pub(super) fn taken(&self, account: Option<&str>) -> Option<u64> {
        let mut enforced = self.takes.iter().filter(|take| take.mode == Mode::Enforced);
        enforced.find(|take| take.account.as_deref() == account).map(|take| take.tokens)
    }

    /// The share of each limit of `policy`, which may be that of limits in shadow.
    fn shares(&self, policy: &Policy, is_open: bool) -> Vec<Share> {
        let is_shadow = policy.name() != self.policy;
        let own = if is_shadow { Mode::Shadow } else { Mode::Enforced };
        let share = |limit: &NamedLimit| match self.takes.iter().find(|take| take.is_of(limit)) {
            Some(take) if limit.is_slots() => Share { pays_more: take.mode == own, is_asked: true, ..Share::default() },
            Some(&Take { mode, tokens: taken, spared, .. }) if mode == own => {
                Share { taken, spared, pays_more: true, is_asked: true }
            }
            Some(take) => Share { spared: take.cost(), is_asked: true, ..Share::default() },
            // One added since is settled at the real cost. That has no effect on a new account, whose cut is void, only on one that was
            // dormant at the opening.
            None => Share { pays_more: is_open && !is_shadow, is_asked: is_open && !is_shadow, ..Share::default() },
        };
        policy.limits().iter().map(share).collect()
    }

    /// Renames an account of its enforced limits, or of those in shadow. Returns whether anything was requested of it.
    pub(super) fn rename(&mut self, Renamed { from, to }: &Renamed, in_shadow: bool) -> bool {
        let mut takes = self.takes.iter_mut();
        let take = takes.find(|take| take.account == *from && (take.mode != Mode::Enforced) == in_shadow);
        take.map(|take| take.account.clone_from(to)).is_some()
    }

    /// Adds what the policy's limits in shadow have taken, or would have refused, by the next of all `answers`.
    pub(super) fn add_shadow(
        &mut self,
        policy: &Policy,
        costs: &[u64],
        answers: &mut impl Iterator<Item = Option<LimitAnswer>>,
    ) {
        let tried = policy.shadow_limits().iter().zip(costs).zip(answers);
        self.takes.extend(tried.filter_map(|((limit, &cost), answer)| {
            Some(match answer?.decision {
                Decision::Allow { tokens, .. } => Take::of(limit, Mode::Shadow, tokens),
                Decision::Wait { .. } | Decision::Never { .. } => {
                    Take { spared: cost, ..Take::of(limit, Mode::Refused, 0) }
                }
            })
        }));
    }

    /// What limits in shadow have taken, as if they were enforced.
    pub(super) fn of_shadow(&self) -> Self {
        let in_shadow = self.takes.iter().filter(|take| take.mode == Mode::Shadow);
        let as_enforced = |take: &Take| Take { mode: Mode::Enforced, ..take.clone() };
        Self { policy: self.policy.clone(), takes: in_shadow.map(as_enforced).collect() }
    }

    /// The limits' accounts.
    pub(super) fn accounts(&self) -> impl Iterator<Item = Option<&str>> {
        self.takes.iter().map(|take| take.account.as_deref())
    }

    /// Adds the tokens of `other`, by limit.
    pub(super) fn merge(&mut self, other: &Self) {
        for take in &other.takes {
            match self.takes.iter_mut().find(|own| own.account == take.account && own.mode == take.mode) {
                Some(own) => own.tokens = own.tokens.saturating_add(take.tokens),
                None => self.takes.push(take.clone()),
            }
        }
    }

    /// Whether it says nothing of any limit.
    pub(super) const fn is_empty(&self) -> bool {
        self.takes.is_empty()
    }

    /// Whether any limit has tokens here.
    pub(super) fn is_any(&self) -> bool {
        self.takes.iter().any(|take| take.tokens > 0)
    }

    /// The tokens of the named limit; 0 for slots.
    pub(super) fn tokens_of(&self, account: Option<&str>) -> u64 {
        self.taken(account).filter(|_| !is_of_slots(account)).unwrap_or(0)
    }

    /// Slots that it holds, whatever the limit's mode was.
    fn of_slots(&self) -> impl Iterator<Item = &Take> {
        self.takes.iter().filter(|take| take.mode != Mode::Refused && is_of_slots(take.account.as_deref()))
    }
}

impl Raise {
    /// Whether it was requested of enforced limits. Otherwise only the buckets of limits in shadow have an opening for it.
    fn is_enforced(&self) -> bool {
        self.parts.iter().flat_map(|part| &part.takes).any(|take| take.mode == Mode::Enforced)
    }
}

impl Take {
    fn of(limit: &NamedLimit, mode: Mode, tokens: u64) -> Self {
        Self { account: limit.account().map(str::to_owned), mode, tokens, spared: 0 }
    }

    const fn cost(&self) -> u64 {
        self.tokens.saturating_add(self.spared)
    }

    /// Whether it is of this limit. While that was in shadow, no registry knew it without its name.
    fn is_of(&self, limit: &NamedLimit) -> bool {
        let account = self.account.as_deref();
        account == limit.account() || self.mode != Mode::Enforced && account == limit.own_account()
    }
}

/// The part of this policy, which may be that of its limits in shadow.
pub(super) fn part_of<'a>(parts: &'a [ReservedPart], policy: &Policy) -> Option<&'a ReservedPart> {
    parts.iter().find(|part| part.policy == without_shadow(policy.name()))
}

impl Reservation {
    /// Whether its tokens are given back when it expires. Slots always are.
    pub(super) fn is_refunded(&self) -> bool {
        self.end == End::Refunded
    }

    /// Whether it has slots, enforced or in shadow.
    pub(super) fn has_slots(&self) -> bool {
        let mut takes = self.pieces(0).flat_map(|(_, parts)| parts).flat_map(ReservedPart::of_slots);
        takes.next().is_some()
    }

    /// Its slots of each limit of `policy`, if it has any, taken while the limit was enforced or while it was in shadow.
    pub(super) fn slots(&self, policy: &Policy) -> Option<Vec<u64>> {
        let parts = self.pieces(0).filter_map(|(_, parts)| part_of(parts, policy));
        let taken: Vec<_> = parts.flat_map(ReservedPart::of_slots).collect();
        let of = |limit: &NamedLimit| {
            let own = taken.iter().filter(|take| limit.is_slots() && take.is_of(limit));
            own.map(|take| take.tokens).fold(0, u64::saturating_add)
        };
        let all: Vec<_> = policy.limits().iter().map(of).collect();
        all.iter().any(|&slots| slots > 0).then_some(all)
    }

    /// What it holds is not free before it ends, in the answers of enforced limits and of those in shadow.
    pub(super) fn hold_slots(
        &self,
        asked: &[Arc<Policy>],
        limits: &mut [LimitAnswer],
        shadow: &mut [Option<LimitAnswer>],
    ) {
        let held =
            |policy: &Arc<Policy>| self.slots(policy).unwrap_or_else(|| policy.limits().iter().map(|_| 0).collect());
        let enforced = limits.iter_mut().map(Some).zip(asked.iter().flat_map(held));
        let shadows = asked.iter().filter_map(|policy| policy.shadow());
        let shadow = shadow.iter_mut().map(Option::as_mut).zip(shadows.flat_map(held));
        for (answer, slots) in enforced.chain(shadow) {
            if let Some(answer) = answer.filter(|_| slots > 0) {
                answer.reset_at = answer.reset_at.max(Some(self.expires_at));
            }
        }
    }

    /// Renames an account of this bucket. Returns whether anything was taken from it.
    pub(super) fn rename(&mut self, bucket: &str, renamed: &Renamed) -> bool {
        let policy = without_shadow(bucket);
        let raised = self.raises.iter_mut().flat_map(|raise| &mut raise.parts);
        let parts = self.parts.iter_mut().chain(raised).filter(|part| part.policy == policy);
        parts.filter_map(|part| part.rename(renamed, policy != bucket).then_some(())).count() > 0
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let end = match self.end {
            End::Charged => 0,
            End::Refunded => 1,
        };
        let mut bytes = vec![FORMAT, end, u8::from(self.by_grant)];
        bytes.extend(self.opened_at.to_le_bytes());
        bytes.extend(self.expires_at.to_le_bytes());
        encode_parts(&self.parts, &mut bytes);
        for Raise { id, parts } in &self.raises {
            bytes.push(0);
            bytes.extend(id.to_le_bytes());
            encode_parts(parts, &mut bytes);
        }
        bytes
    }

    /// The number of its openings in its buckets.
    pub(super) fn openings(&self) -> usize {
        self.raises.len().saturating_add(1)
    }

    /// What it has taken, with the openings' ids, oldest first.
    pub(super) fn pieces(&self, id: u64) -> impl Iterator<Item = (u64, &[ReservedPart])> {
        let raises = self.raises.iter().map(|raise| (raise.id, raise.parts.as_slice()));
        std::iter::once((id, self.parts.as_slice())).chain(raises)
    }

    /// Its pieces for `policy`'s bucket, which may be that of limits in shadow, oldest first.
    pub(super) fn pieces_in(&self, id: u64, policy: &Policy) -> Vec<Piece<'_>> {
        let is_shadow = without_shadow(policy.name()) != policy.name();
        let first = std::iter::once((id, &self.parts, true));
        let mut pieces = Vec::new();
        for (id, parts, is_enforced) in
            first.chain(self.raises.iter().map(|raise| (raise.id, &raise.parts, raise.is_enforced())))
        {
            let Some(part) = part_of(parts, policy) else { continue };
            let is_open = is_shadow || is_enforced;
            let taken = if is_shadow { Cow::Owned(part.of_shadow()) } else { Cow::Borrowed(part) };
            pieces.push(Piece { id, is_open, shares: part.shares(policy, is_open), taken });
        }
        pieces
    }

    /// The total it has taken, of each policy.
    pub(super) fn to_tokens(&self) -> Vec<PolicyTokens> {
        let mut all = self.parts.clone();
        for part in self.raises.iter().flat_map(|raise| &raise.parts) {
            for of_policy in all.iter_mut().filter(|of| of.policy == part.policy) {
                of_policy.merge(part);
            }
        }
        all.iter().map(ReservedPart::to_tokens).collect()
    }

    /// `None` for bytes not encoded here.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [format, end, by_grant] = bytes.array()?;
        let end = match (format, end) {
            (FORMAT, 0) => End::Charged,
            (FORMAT, 1) => End::Refunded,
            _ => return None,
        };
        let (opened_at, expires_at) = (bytes.i64()?, bytes.i64()?);
        let (mut parts, mut raises) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let policy = bytes.short_text()?.to_owned();
            if policy.is_empty() {
                raises.push(Raise { id: bytes.u64()?, parts: Vec::new() });
                continue;
            }
            let count = bytes.byte()?;
            let limit = |_| {
                let name = bytes.short_text()?;
                let account = (!name.is_empty()).then(|| name.to_owned());
                let (mode, has_spared) = match bytes.byte()? {
                    0 => (Mode::Enforced, false),
                    1 => (Mode::Shadow, false),
                    2 => (Mode::Refused, true),
                    _ => (Mode::Enforced, true),
                };
                let tokens = if mode == Mode::Refused { 0 } else { bytes.u64()? };
                Some(Take { account, mode, tokens, spared: if has_spared { bytes.u64()? } else { 0 } })
            };
            let part = ReservedPart { policy, takes: (0..count).map(limit).collect::<Option<_>>()? };
            raises.last_mut().map_or(&mut parts, |raise| &mut raise.parts).push(part);
        }
        Some(Self { opened_at, expires_at, end, by_grant: by_grant == 1, parts, raises })
    }
}

fn encode_parts(parts: &[ReservedPart], bytes: &mut Vec<u8>) {
    // Names have at most 64 bytes, policies at most 8 limits.
    let short = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
    for ReservedPart { policy, takes } in parts {
        bytes.push(short(policy.len()));
        bytes.extend(policy.as_bytes());
        bytes.push(short(takes.len()));
        for Take { account, mode, tokens, spared } in takes {
            let name = account.as_deref().unwrap_or_default();
            bytes.push(short(name.len()));
            bytes.extend(name.as_bytes());
            let (mode, numbers) = match mode {
                Mode::Enforced if *spared == 0 => (0, [Some(tokens), None]),
                Mode::Shadow => (1, [Some(tokens), None]),
                Mode::Refused => (2, [None, Some(spared)]),
                Mode::Enforced => (3, [Some(tokens), Some(spared)]),
            };
            bytes.push(mode);
            bytes.extend(numbers.into_iter().flatten().flat_map(|number| number.to_le_bytes()));
        }
    }
}

/// The name of its row.
pub(super) fn reservation_row(id: u64) -> String {
    format!("{RESERVATION}{id:013x}")
}

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn take(account: Option<&str>, mode: Mode, tokens: u64, spared: u64) -> Take {
        Take { account: account.map(str::to_owned), mode, tokens, spared }
    }

    fn part(policy: &str, takes: Vec<Take>) -> ReservedPart {
        ReservedPart { policy: policy.to_owned(), takes }
    }

    /// The format in the storage of every deployment. If it changes, open reservations must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let takes = [
            take(None, Mode::Enforced, 3, 0),
            take(Some("b"), Mode::Shadow, 4, 0),
            take(Some("c"), Mode::Refused, 0, 5),
            take(Some("d"), Mode::Enforced, 6, 7),
        ];
        let reservation = Reservation {
            opened_at: 1,
            expires_at: 2,
            end: End::Refunded,
            by_grant: true,
            parts: vec![part("api", takes.to_vec())],
            raises: Vec::new(),
        };
        let mut bytes = vec![1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([3, b'a', b'p', b'i', 4]);
        bytes.extend([0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, b'b', 1, 4, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, b'c', 2, 5, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, b'd', 3, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reservation.encode(), bytes);
        assert_eq!(Reservation::decode(&bytes), Some(reservation.clone()));

        let part = part("p", vec![take(None, Mode::Enforced, 5, 0)]);
        let raised = Reservation { raises: vec![Raise { id: 6, parts: vec![part] }], ..reservation };
        let raise = [0, 6, 0, 0, 0, 0, 0, 0, 0, 1, b'p', 1, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(raised.encode(), [&bytes[..], &raise].concat());
        assert_eq!(Reservation::decode(&raised.encode()), Some(raised));
    }

    #[test]
    fn other_bytes_are_not_a_reservation() {
        let good = Reservation {
            opened_at: 1,
            expires_at: 2,
            end: End::Charged,
            by_grant: false,
            parts: vec![part("p", vec![take(None, Mode::Enforced, 3, 0)])],
            raises: Vec::new(),
        };
        let good = good.encode();
        assert!(Reservation::decode(&good).is_some());
        assert_eq!(Reservation::decode(&[]), None);
        assert_eq!(Reservation::decode(&good[..good.len() - 1]), None);
        assert_eq!(Reservation::decode(&[&[2], &good[1..]].concat()), None);
    }
}
