//! Bans of a key for being refused often, each longer than the one before.
//!
//! The moments of refusals are in memory: an object that leaves it forgets them. A ban is in a row, written before the refusal that causes
//! it is answered, so that neither a crash nor an eviction ends it. While it lasts, refusals count for nothing: a client that never stops is
//! let in again when it ends, and banned for longer if it is refused as often again.
//!
//! ```text
//! byte 0     1: this format
//! 8 bytes    when the ban ends
//! 8 bytes    how many milliseconds it lasts
//! 8 bytes    from when on the row may be deleted, and the next ban is a first one
//! ```

use std::collections::VecDeque;

use super::bytes::Bytes;
use super::writes::RowWrite;
use crate::policy::BanTerms;

/// Prefix of a row about a ban, before the policy's name.
const BAN: &str = "x:";

/// The bans and refusals of a key, by policy name.
#[derive(Clone, Debug, Default)]
pub(super) struct Bans(Vec<(String, Own)>);

/// Those of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Own {
    last: Option<Last>,
    /// When it was refused since then, oldest first.
    refused_at: VecDeque<i64>,
}

/// The latest ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    until: i64,
    length_ms: u64,
    forgotten_at: i64,
}

impl Bans {
    /// Takes a row. `false` if the name is another kind of row's. An unreadable row counts as one that may be deleted.
    pub(super) fn load(&mut self, name: &str, row: &[u8]) -> bool {
        let Some(policy) = name.strip_prefix(BAN) else { return false };
        let over = Last { until: i64::MIN, length_ms: 0, forgotten_at: i64::MIN };
        let last = Some(Last::decode(row).unwrap_or(over));
        self.0.push((policy.to_owned(), Own { last, ..Own::default() }));
        true
    }

    /// The end of the policy's latest ban, which may be over. A clock that stepped back makes no ban longer than it was.
    pub(super) fn until(&self, policy: &str, now: i64) -> Option<i64> {
        let last = self.0.iter().find(|(name, _)| name == policy)?.1.last?;
        Some(last.until.min(now.saturating_add_unsigned(last.length_ms)))
    }

    /// Makes later moments than a clock that has stepped back allows earlier, so that a ban ends although the clock shows them again.
    pub(super) fn follow(&mut self, now: i64) {
        for (_, own) in &mut self.0 {
            if let Some(last) = &mut own.last {
                let ahead = last.until.abs_diff(last.until.min(now.saturating_add_unsigned(last.length_ms)));
                last.until = last.until.saturating_sub_unsigned(ahead);
                last.forgotten_at = last.forgotten_at.saturating_sub_unsigned(ahead);
            }
            own.refused_at.iter_mut().for_each(|at| *at = (*at).min(now));
        }
    }

    /// Records a refusal of a key that is not banned. If it is one too many, the ban begins, and its end is returned; its row is added to
    /// `rows`.
    pub(super) fn refused(&mut self, policy: &str, terms: BanTerms, now: i64, rows: &mut Vec<RowWrite>) -> Option<i64> {
        let known = self.0.iter().position(|(name, _)| name == policy);
        let index = known.unwrap_or(self.0.len());
        if known.is_none() {
            self.0.push((policy.to_owned(), Own::default()));
        }
        let (_, own) = self.0.get_mut(index)?;
        own.refused_at.push_back(now);
        while own.refused_at.front().is_some_and(|at| now.abs_diff(*at) >= terms.within_ms)
            || own.refused_at.len() > terms.after.into()
        {
            own.refused_at.pop_front();
        }
        if own.refused_at.len() < terms.after.into() {
            return None;
        }
        own.refused_at = VecDeque::new();
        let before = own.last.filter(|last| now < last.forgotten_at).map(|last| last.length_ms);
        let length_ms = terms.length_ms(before);
        let until = now.saturating_add_unsigned(length_ms);
        let last = Last { until, length_ms, forgotten_at: until.saturating_add_unsigned(terms.max_ms) };
        own.last = Some(last);
        rows.push((row_name(policy), Some(last.encode())));
        Some(until)
    }

    /// Ends the policy's ban and forgets earlier ones and all refusals.
    pub(super) fn lift(&mut self, policy: &str, rows: &mut Vec<RowWrite>) {
        let has_row = |(name, own): &&(String, Own)| name == policy && own.last.is_some();
        rows.extend(self.0.iter().find(has_row).map(|_| (row_name(policy), None)));
        self.0.retain(|(name, _)| name != policy);
    }

    /// Deletes the rows of bans that no longer matter.
    pub(super) fn clean(&mut self, now: i64, rows: &mut Vec<RowWrite>) {
        for (policy, own) in &mut self.0 {
            if own.last.is_some_and(|last| last.forgotten_at <= now) {
                own.last = None;
                rows.push((row_name(policy), None));
            }
        }
        self.0.retain(|(_, own)| own.last.is_some() || !own.refused_at.is_empty());
    }

    /// When there will be something to delete.
    pub(super) fn expires_at(&self) -> impl Iterator<Item = i64> {
        self.0.iter().filter_map(|(_, own)| own.last).map(|last| last.forgotten_at)
    }

    /// Whether there are no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, own)| own.last.is_none())
    }
}

fn row_name(policy: &str) -> String {
    format!("{BAN}{policy}")
}

impl Last {
    fn encode(self) -> Vec<u8> {
        let Self { until, length_ms, forgotten_at } = self;
        let numbers = [until.to_le_bytes(), length_ms.to_le_bytes(), forgotten_at.to_le_bytes()];
        [&[FORMAT][..], numbers.as_flattened()].concat()
    }

    /// `None` for bytes that are not such a row.
    fn decode(row: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(row);
        if bytes.byte()? != FORMAT {
            return None;
        }
        Some(Self { until: bytes.i64()?, length_ms: bytes.u64()?, forgotten_at: bytes.i64()? })
    }
}

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The format in the storage of every deployment. If it changes, old rows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let last = Last { until: -1, length_ms: 60_000, forgotten_at: 7 };
        let row = [&[1][..], &[255; 8], &[0x60, 0xea, 0, 0, 0, 0, 0, 0], &[7, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!((last.encode(), Last::decode(&row)), (row, Some(last)));
    }

    #[test]
    fn an_unreadable_row_is_no_ban_and_is_deleted() {
        for row in [&[][..], &[2], &[1, 0]] {
            let mut bans = Bans::default();
            assert!(bans.load("x:p", row) && !bans.load("b:p", row));
            assert_eq!(bans.until("p", 0), Some(i64::MIN));
            let mut rows = Vec::new();
            bans.clean(0, &mut rows);
            assert_eq!((rows, bans.is_empty()), (vec![("x:p".to_owned(), None)], true));
        }
    }
}
