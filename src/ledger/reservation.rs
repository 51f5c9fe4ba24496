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
//!     8 bytes  the tokens
//! then for each raise a byte of 0, where a policy would have the length of its name, 8 bytes for its id, and its policies in the same way
//! ```

use std::sync::Arc;

use super::bytes::Bytes;
use super::names::{RESERVATION, Renamed};
use crate::policy::{NamedLimit, Policy, is_of_slots, name_of, shadow_of, without_shadow};
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
    /// The tokens of each limit, by account: the policy may have other limits, or another order, when the reservation ends.
    tokens: Vec<(Option<String>, u64)>,
}

impl ReservedPart {
    pub(super) fn new(policy: &Policy, tokens: impl IntoIterator<Item = u64>) -> Self {
        let names = policy.limits().iter().map(|limit| limit.account().map(str::to_owned));
        Self { policy: policy.name().to_owned(), tokens: names.zip(tokens).collect() }
    }

    /// Only what these limits of the policy have taken.
    pub(super) fn of_some<'a>(policy: &Policy, taken: impl Iterator<Item = (&'a NamedLimit, u64)>) -> Self {
        let mut part = Self { policy: policy.name().to_owned(), tokens: Vec::new() };
        part.add(taken);
        part
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
        let is_enforced =
            |(account, _): &&(Option<String>, u64)| account.as_deref().is_none_or(|name| without_shadow(name) == name);
        let named =
            |(account, tokens): &(Option<String>, u64)| (name_of(account.as_deref()).map(str::to_owned), *tokens);
        let limits = self.tokens.iter().filter(is_enforced).map(named).collect();
        PolicyTokens { policy: self.policy.clone(), limits }
    }

    /// The tokens of each limit of `policy`; 0 for one added since, and for slots: their buckets are never lower.
    pub(super) fn tokens(&self, policy: &Policy) -> Vec<u64> {
        let taken = |limit: &NamedLimit| if limit.is_slots() { 0 } else { self.tokens_of(limit.account()) };
        policy.limits().iter().map(taken).collect()
    }

    /// The tokens of the named limit; `None` if it has taken none because it would have refused, or did not exist.
    pub(super) fn taken(&self, limit: Option<&str>) -> Option<u64> {
        self.tokens.iter().find(|(name, _)| name.as_deref() == limit).map(|(_, tokens)| *tokens)
    }

    /// Renames an account of this policy. Returns whether anything was taken from it.
    pub(super) fn rename(&mut self, Renamed { from, to }: &Renamed) -> bool {
        let name = self.tokens.iter_mut().map(|(name, _)| name).find(|name| *name == from);
        name.map(|name| name.clone_from(to)).is_some()
    }

    /// Adds what limits in shadow have taken: the limits of a policy have different names, whatever their modes.
    pub(super) fn add<'a>(&mut self, taken: impl Iterator<Item = (&'a NamedLimit, u64)>) {
        self.tokens.extend(taken.map(|(limit, tokens)| (limit.account().map(str::to_owned), tokens)));
    }

    /// Adds what limits in shadow have taken, under names that no limit can have: a limit enforced since has taken none of it.
    pub(super) fn add_shadow<'a>(&mut self, taken: impl Iterator<Item = (&'a NamedLimit, u64)>) {
        self.tokens.extend(taken.map(|(limit, tokens)| (Some(mark(limit.account())), tokens)));
    }

    /// What limits in shadow have taken, by their own names.
    pub(super) fn of_shadow(&self) -> Self {
        let own = |(name, tokens): &(Option<String>, u64)| {
            let marked = name.as_deref()?;
            let own = without_shadow(marked);
            (own.len() < marked.len()).then(|| (Some(own.to_owned()).filter(|own| !own.is_empty()), *tokens))
        };
        Self { policy: self.policy.clone(), tokens: self.tokens.iter().filter_map(own).collect() }
    }

    /// The number of limits that the policy had.
    pub(super) const fn limit_count(&self) -> usize {
        self.tokens.len()
    }

    /// Adds the tokens of `other`, by limit name.
    pub(super) fn merge(&mut self, other: &Self) {
        for (name, tokens) in &other.tokens {
            match self.tokens.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = own.saturating_add(*tokens),
                None => self.tokens.push((name.clone(), *tokens)),
            }
        }
    }

    /// Whether any limit has tokens here.
    pub(super) fn is_any(&self) -> bool {
        self.tokens.iter().any(|(_, tokens)| *tokens > 0)
    }

    /// The tokens of the named limit.
    pub(super) fn tokens_of(&self, limit: Option<&str>) -> u64 {
        self.taken(limit).unwrap_or(0)
    }
}

/// The name under which a limit in shadow is stored beside the enforced ones.
fn mark(account: Option<&str>) -> String {
    shadow_of(account.unwrap_or_default())
}

/// The part of this policy.
pub(super) fn part_of<'a>(parts: &'a [ReservedPart], policy: &Policy) -> Option<&'a ReservedPart> {
    parts.iter().find(|part| part.policy == policy.name())
}

impl Reservation {
    /// Whether its tokens are given back when it expires. Slots always are.
    pub(super) fn is_refunded(&self) -> bool {
        self.end == End::Refunded
    }

    /// Whether it has slots, enforced or in shadow.
    pub(super) fn has_slots(&self) -> bool {
        let mut accounts = self.pieces(0).flat_map(|(_, parts)| parts).flat_map(|part| &part.tokens);
        accounts.any(|(account, _)| is_of_slots(account.as_deref().map(without_shadow)))
    }

    /// Its slots of each limit of `policy`, if it has any, taken while the limit was enforced or while it was in shadow.
    pub(super) fn slots(&self, policy: &Policy) -> Option<Vec<u64>> {
        let own = self.pieces(0).flat_map(|(_, parts)| parts);
        let taken: Vec<_> = own
            .filter(|part| part.policy == without_shadow(policy.name()))
            .flat_map(|part| &part.tokens)
            .map(|(account, tokens)| (account.as_deref().map(without_shadow), *tokens))
            .filter(|(account, _)| is_of_slots(*account))
            .collect();
        let of = |limit: &NamedLimit| {
            let own = taken.iter().filter(|(account, _)| limit.is_slots() && *account == limit.account());
            own.map(|(_, tokens)| *tokens).fold(0, u64::saturating_add)
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
        let mark = |name: &Option<String>| Some(mark(name.as_deref()));
        let marked = Renamed { from: mark(&renamed.from), to: mark(&renamed.to) };
        let policy = without_shadow(bucket);
        let renamed = if policy == bucket { renamed } else { &marked };
        let raised = self.raises.iter_mut().flat_map(|raise| &mut raise.parts);
        let parts = self.parts.iter_mut().chain(raised).filter(|part| part.policy == policy);
        parts.filter_map(|part| part.rename(renamed).then_some(())).count() > 0
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
                Some(((!name.is_empty()).then(|| name.to_owned()), bytes.u64()?))
            };
            let part = ReservedPart { policy, tokens: (0..count).map(limit).collect::<Option<_>>()? };
            raises.last_mut().map_or(&mut parts, |raise| &mut raise.parts).push(part);
        }
        Some(Self { opened_at, expires_at, end, by_grant: by_grant == 1, parts, raises })
    }
}

fn encode_parts(parts: &[ReservedPart], bytes: &mut Vec<u8>) {
    // Names have at most 64 bytes, policies at most 8 limits.
    let short = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
    for ReservedPart { policy, tokens } in parts {
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
}

/// The name of its row.
pub(super) fn reservation_row(id: u64) -> String {
    format!("{RESERVATION}{id:013x}")
}

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The format in the storage of every deployment. If it changes, open reservations must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let reservation = Reservation {
            opened_at: 1,
            expires_at: 2,
            end: End::Refunded,
            by_grant: true,
            parts: vec![ReservedPart { policy: "api".to_owned(), tokens: vec![(None, 3), (Some("b".to_owned()), 4)] }],
            raises: Vec::new(),
        };
        let mut bytes = vec![1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([3, b'a', b'p', b'i', 2]);
        bytes.extend([0, 3, 0, 0, 0, 0, 0, 0, 0, 1, b'b', 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reservation.encode(), bytes);
        assert_eq!(Reservation::decode(&bytes), Some(reservation.clone()));

        let part = ReservedPart { policy: "p".to_owned(), tokens: vec![(None, 5)] };
        let raised = Reservation { raises: vec![Raise { id: 6, parts: vec![part] }], ..reservation };
        let raise = [0, 6, 0, 0, 0, 0, 0, 0, 0, 1, b'p', 1, 0, 5, 0, 0, 0, 0, 0, 0, 0];
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
            parts: vec![ReservedPart { policy: "p".into(), tokens: vec![(None, 3)] }],
            raises: Vec::new(),
        };
        let good = good.encode();
        assert!(Reservation::decode(&good).is_some());
        assert_eq!(Reservation::decode(&[]), None);
        assert_eq!(Reservation::decode(&good[..good.len() - 1]), None);
        assert_eq!(Reservation::decode(&[&[2], &good[1..]].concat()), None);
    }
}
