//! A page of replays: the row in which they survive a crash.
//!
//! ```text
//! byte 0      1: this format
//! then for each replay
//!   2 bytes   the length of the rest of it; readers ignore trailing bytes that they do not know
//!   1 byte    the sum of 1 if it has a request id, 2 if it opened a reservation, and
//!             4 if it settled one at the reserved cost, 8 at another cost, 12 if it cancelled it, and
//!             16 if it was about the first of several shards, 32 if its caller has a grant, 64 if it settled one that was over,
//!             128 if the reserved cost was not taken in full
//!   8 bytes   the moment of the decision
//!   24 bytes  the request id, if there is one: id and fingerprint
//!   16 bytes  the reservation that it opened, if there is one: its id, and when it ends
//!   8 bytes   the id of the reservation that it closed, if there is one
//!   1 byte    how many policies were asked, then for each
//!     2 bytes   the length of its name and those of its limits' accounts, then these, each account after a byte of 0
//!     then for each limit
//!       8 bytes   the tokens that moved
//!       8 bytes   when they are ready
//!       8 bytes   the cost, if a reservation was settled at another one, or the reserved one, if it was not taken in full
//!   1 byte    how many shards the budget had, if there were several
//! ```

use super::bytes::Bytes;
use crate::policy::{NamedLimit, Policy, is_of_slots};
use crate::protocol::Reserved;

/// An earlier answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replay {
    /// The id of the request, and its fingerprint.
    pub(super) request_id: Option<(u128, u64)>,
    pub(super) decided_at: i64,
    pub(super) opened: Option<Reserved>,
    pub(super) closed: Option<Closed>,
    pub(super) grants: Vec<Grant>,
    /// The budget's number of shards; 1 if not divided.
    pub(super) shards: u8,
    /// Whether a grant's holder sent the request.
    pub(super) by_grant: bool,
}

impl Replay {
    /// Its weight where replays are limited: one for each [`WEIGHT_BYTES`] it takes in a page.
    pub(super) fn weight(&self) -> usize {
        weight(self.grants.iter().map(|Grant { names, limits, costs }| (names.len(), limits.len(), costs.len())))
    }

    /// What was granted of this policy.
    pub(super) fn grant_of(&self, policy: &Policy) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.policy() == policy.name())
    }

    /// Whether only the reservation that it closed identifies it.
    pub(super) const fn is_only_closed(&self) -> bool {
        self.closed.is_some() && self.request_id.is_none()
    }
}

/// A reservation that a request closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) id: u64,
    pub(super) how: How,
    /// Whether it had expired by then.
    pub(super) is_late: bool,
}

/// How a reservation was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Settled at the reserved cost, because the request gave no other.
    AsReserved,
    /// Settled at the costs in its grants.
    AtCosts,
    Cancelled,
}

/// What was granted of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The policy's name, and the accounts of the limits that it had: see [`names`].
    names: String,
    /// For each limit the moved tokens, and when they are ready.
    pub(super) limits: Vec<(u64, i64)>,
    /// For each limit the requested cost, if a reservation was settled at one, or the reserved cost, if it was settled at that and not all
    /// of it was taken. Otherwise empty.
    pub(super) costs: Vec<u64>,
}

impl Grant {
    pub(super) fn new(policy: &Policy, limits: Vec<(u64, i64)>) -> Self {
        Self { names: names(policy.name(), policy.limits().iter().map(NamedLimit::account)), limits, costs: Vec::new() }
    }

    pub(super) fn policy(&self) -> &str {
        self.names.split(SEPARATOR).next().unwrap_or_default()
    }

    pub(super) fn is_of_slots(&self, place: usize) -> bool {
        is_of_slots(self.names.split(SEPARATOR).nth(place.saturating_add(1)))
    }

    /// The place of each limit of `policy` here: by its account, as limits may have been added, removed or moved since. Without a registry,
    /// one that had no name, or has none any more, is the one at its place.
    pub(super) fn places(&self, policy: &Policy) -> Vec<Option<usize>> {
        let known: Vec<_> = self.names.split(SEPARATOR).skip(1).collect();
        let accounts: Vec<_> = policy.limits().iter().map(|limit| limit.account().unwrap_or_default()).collect();
        let place = |(index, limit): (usize, &NamedLimit)| {
            let account = limit.account().unwrap_or_default();
            let unnamed = limit.unnamed_account().unwrap_or_default();
            let renamed = known.get(index).filter(|known| !accounts.contains(known));
            let renamed = renamed.filter(|known| **known == unnamed || account == unnamed);
            let renamed = renamed.filter(|known| is_of_slots(Some(**known)) == limit.is_slots());
            known.iter().position(|known| *known == account).or(renamed.map(|_| index))
        };
        policy.limits().iter().enumerate().map(place).collect()
    }
}

/// The name of a policy, and its limits' accounts, each after a byte that no name contains; nothing for one without a name.
pub(super) fn names<'a>(policy: &str, accounts: impl Iterator<Item = Option<&'a str>>) -> String {
    accounts.fold(policy.to_owned(), |mut names, account| {
        names.push(SEPARATOR);
        names.push_str(account.unwrap_or_default());
        names
    })
}

const SEPARATOR: char = '\0';

/// [`Replay::weight`], from the length of each policy's names and its numbers of limits and costs.
pub(super) fn weight(policies: impl Iterator<Item = (usize, usize, usize)>) -> usize {
    let lens = policies.map(|(names, limits, costs)| [2, names, limits.saturating_mul(16), costs.saturating_mul(8)]);
    lens.flatten().fold(HEAD_BYTES, usize::saturating_add).div_ceil(WEIGHT_BYTES)
}

/// About the size of a replay for one policy of six limits with short names, without costs.
const WEIGHT_BYTES: usize = 256;

/// Maximum size of a replay without its policies.
const HEAD_BYTES: usize = 60;

/// The row of a page.
pub(super) fn encode_page<'a>(replays: impl Iterator<Item = &'a Replay>) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    for replay in replays {
        let replay = encode(replay);
        // 16 policies of 8 limits take less than 14 KB.
        bytes.extend(u16::try_from(replay.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(replay);
    }
    bytes
}

/// The replays in a row, or `None` for bytes that are not a page.
pub(super) fn decode_page(bytes: &[u8]) -> Option<Vec<Replay>> {
    let mut bytes = Bytes(bytes);
    if bytes.byte()? != FORMAT {
        return None;
    }
    let mut replays = Vec::new();
    while !bytes.is_empty() {
        let len = bytes.array().map(u16::from_le_bytes)?;
        replays.push(decode(Bytes(bytes.slice(len.into())?))?);
    }
    Some(replays)
}

const FORMAT: u8 = 1;

const HAS_REQUEST_ID: u8 = 1;
const HAS_OPENED: u8 = 2;
const CLOSED: u8 = 12;
const HAS_SHARDS: u8 = 16;
const BY_GRANT: u8 = 32;
const LATE: u8 = 64;
const HAS_COSTS: u8 = 128;

fn encode(replay: &Replay) -> Vec<u8> {
    let Replay { request_id, decided_at, opened, closed, grants, shards, by_grant } = replay;
    let how = match closed.map(|closed| closed.how) {
        None => 0,
        Some(How::AsReserved) => 4,
        Some(How::AtCosts) => 8,
        Some(How::Cancelled) => 12,
    };
    let has = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
    let ids = has(request_id.is_some(), HAS_REQUEST_ID) | has(opened.is_some(), HAS_OPENED);
    let is_late = closed.is_some_and(|closed| closed.is_late);
    let has_costs = how == 4 && grants.iter().any(|grant| !grant.costs.is_empty());
    let costs = has(has_costs, HAS_COSTS);
    let mut bytes =
        vec![how | ids | costs | has(*shards > 1, HAS_SHARDS) | has(*by_grant, BY_GRANT) | has(is_late, LATE)];
    bytes.extend(decided_at.to_le_bytes());
    if let Some((id, fingerprint)) = request_id {
        bytes.extend(id.to_le_bytes());
        bytes.extend(fingerprint.to_le_bytes());
    }
    if let Some(Reserved { id, expires_at }) = opened {
        bytes.extend(id.to_le_bytes());
        bytes.extend(expires_at.to_le_bytes());
    }
    if let Some(closed) = closed {
        bytes.extend(closed.id.to_le_bytes());
    }
    // A batch has at most 16 policies of 8 limits; a name has at most 64 bytes.
    bytes.push(u8::try_from(grants.len()).unwrap_or(u8::MAX));
    for Grant { names, limits, costs } in grants {
        bytes.extend(u16::try_from(names.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(names.as_bytes());
        for (index, (tokens, ready_at)) in limits.iter().enumerate() {
            bytes.extend(tokens.to_le_bytes());
            bytes.extend(ready_at.to_le_bytes());
            if how == 8 || has_costs {
                bytes.extend(costs.get(index).copied().unwrap_or_default().to_le_bytes());
            }
        }
    }
    bytes.extend((*shards > 1).then_some(*shards));
    bytes
}

fn decode(mut bytes: Bytes<'_>) -> Option<Replay> {
    let flags = bytes.byte()?;
    let decided_at = bytes.i64()?;
    let request_id = if flags & HAS_REQUEST_ID == 0 { None } else { Some((bytes.u128()?, bytes.u64()?)) };
    let opened =
        if flags & HAS_OPENED == 0 { None } else { Some(Reserved { id: bytes.u64()?, expires_at: bytes.i64()? }) };
    let how = match flags & CLOSED {
        0 => None,
        4 => Some(How::AsReserved),
        8 => Some(How::AtCosts),
        _ => Some(How::Cancelled),
    };
    let closed = match how {
        None => None,
        Some(how) => Some(Closed { id: bytes.u64()?, how, is_late: flags & LATE != 0 }),
    };
    let count = bytes.byte()?;
    let mut grants = Vec::with_capacity(count.into());
    for _ in 0..count {
        let len = bytes.array().map(u16::from_le_bytes)?;
        let names = bytes.text(len.into())?.to_owned();
        let (mut limits, mut costs) = (Vec::new(), Vec::new());
        for _ in names.split(SEPARATOR).skip(1) {
            limits.push((bytes.u64()?, bytes.i64()?));
            if how == Some(How::AtCosts) || flags & HAS_COSTS != 0 {
                costs.push(bytes.u64()?);
            }
        }
        grants.push(Grant { names, limits, costs });
    }
    let shards = if flags & HAS_SHARDS == 0 { 1 } else { bytes.byte()? };
    Some(Replay { request_id, decided_at, opened, closed, grants, shards, by_grant: flags & BY_GRANT != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(costs: &[u64]) -> Vec<Grant> {
        let names = names("p", [Some("a")].into_iter());
        vec![Grant { names, limits: vec![(3, 7)], costs: costs.to_vec() }]
    }

    fn replays() -> Vec<Replay> {
        let closed = |how, costs: &[u64]| Replay {
            request_id: None,
            decided_at: 2,
            opened: None,
            closed: Some(Closed { id: 6, how, is_late: how == How::Cancelled }),
            grants: grant(costs),
            shards: 1,
            by_grant: false,
        };
        vec![
            Replay {
                request_id: Some((8, 9)),
                decided_at: 2,
                opened: Some(Reserved { id: 4, expires_at: 5 }),
                closed: None,
                grants: grant(&[]),
                shards: 1,
                by_grant: true,
            },
            Replay {
                request_id: Some((8, 9)),
                decided_at: 2,
                opened: None,
                closed: None,
                grants: grant(&[]),
                shards: 6,
                by_grant: false,
            },
            closed(How::AsReserved, &[]),
            closed(How::AsReserved, &[10]),
            closed(How::AtCosts, &[10]),
            closed(How::Cancelled, &[]),
        ]
    }

    /// The format in the storage of every deployment. If it changes, old pages must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let word = |value: u8| [value, 0, 0, 0, 0, 0, 0, 0];
        let grant = [&[1, 3, 0, b'p', 0, b'a'][..], &word(3), &word(7)].concat();
        let closed = |flag: u8| [&[flag][..], &word(2), &word(6), &grant].concat();
        let rows = [
            [&[35][..], &word(2), &word(8), &word(0), &word(9), &word(4), &word(5), &grant].concat(),
            [&[17][..], &word(2), &word(8), &word(0), &word(9), &grant, &[6]].concat(),
            closed(4),
            [closed(4 + 128), word(10).to_vec()].concat(),
            [closed(8), word(10).to_vec()].concat(),
            closed(12 + 64),
        ];
        let with_len = |row: &Vec<u8>| [&[u8::try_from(row.len()).unwrap(), 0][..], row].concat();
        let expected = [vec![1], rows.iter().flat_map(with_len).collect()].concat();
        assert_eq!(encode_page(replays().iter()), expected);
        assert_eq!(decode_page(&expected), Some(replays()));
    }

    #[test]
    fn additions_of_a_later_version_to_a_replay_are_ignored() {
        let row = encode_page(replays()[..1].iter());
        let longer = [&[1, row[1] + 2][..], &row[2..], &[7, 7]].concat();
        assert_eq!(decode_page(&longer).unwrap(), replays()[..1]);
    }

    #[test]
    fn other_bytes_are_not_a_page() {
        let good = encode_page(replays()[..1].iter());
        assert!(decode_page(&good).is_some() && decode_page(&[1]).is_some());
        assert_eq!(decode_page(&[&[2], &good[1..]].concat()), None);
        for len in (0..1).chain(2..good.len()) {
            assert_eq!(decode_page(&good[..len]), None, "{len} bytes");
        }
    }
}
