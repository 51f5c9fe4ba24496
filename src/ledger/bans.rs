//! Bans of a key for being refused often, each longer than the one before.
//!
//! A row has the latest ban and the refusals since, so that neither a crash nor an eviction forgets them: people who guess a password by
//! hand take longer than an object stays in memory. While a ban lasts, refusals count for nothing and write nothing: a client that never
//! stops is let in again when it ends, and banned for longer if it is refused as often again.
//!
//! ```text
//! byte 0     1: this format
//! 8 bytes    from when on the row may be deleted
//! 8 bytes    when the latest ban ends; -2⁶³ if there is none
//! 8 bytes    how many milliseconds it lasts
//! 8 bytes    from when on the next ban is a first one
//! 8 bytes    each moment at which the key was refused since, oldest first
//! ```

use std::collections::VecDeque;

use super::bytes::Bytes;
use super::writes::{RowWrite, Writes};
use crate::policy::BanTerms;

/// How long a row can matter: a ban of the longest time, and that time without one.
const LONGEST_MS: u64 = 2 * BanTerms::MAX_MS;

/// Prefix of a row about bans, before the policy's name.
const BAN: &str = "x:";

/// The bans and refusals of a key, by policy name.
#[derive(Clone, Debug, Default)]
pub(super) struct Bans(Vec<(String, Own)>);

/// Those of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    expires_at: i64,
    /// When the latest ban ends.
    until: i64,
    length_ms: u64,
    /// From when on the next ban is a first one.
    forgotten_at: i64,
    /// When the key was refused since, oldest first.
    refused_at: VecDeque<i64>,
    /// The id that a frontend made for the request refused last. Not stored: it repeats a request at once or never.
    last_id: Option<u128>,
}

impl Bans {
    /// Takes a row. `false` if the name is another kind of row's. An unreadable row counts as none.
    pub(super) fn load(&mut self, name: &str, row: &[u8]) -> bool {
        let Some(policy) = name.strip_prefix(BAN) else { return false };
        self.0.push((policy.to_owned(), Own::decode(row).unwrap_or_default()));
        true
    }

    /// The end of the policy's latest ban, which may be over.
    pub(super) fn until(&self, policy: &str) -> Option<i64> {
        self.0.iter().find(|(name, _)| name == policy).map(|(_, own)| own.until)
    }

    /// Caps bans at their length after the clock stepped back, and notes those that are over: no later step back revives them.
    pub(super) fn follow(&mut self, now: i64) {
        for (_, own) in &mut self.0 {
            let ahead = own.until.abs_diff(own.until.min(now.saturating_add_unsigned(own.length_ms)));
            own.until = own.until.saturating_sub_unsigned(ahead);
            own.forgotten_at = own.forgotten_at.saturating_sub_unsigned(ahead);
            if own.until <= now {
                own.until = i64::MIN;
            }
            own.expires_at = own.expires_at.min(now.saturating_add_unsigned(LONGEST_MS));
            own.refused_at.iter_mut().for_each(|at| *at = (*at).min(now));
        }
    }

    /// Records a refusal of a key that is not banned, once if a frontend repeats the request with this id. If it is one too many, a ban
    /// begins, and its end is returned.
    pub(super) fn refused(
        &mut self,
        policy: &str,
        terms: BanTerms,
        (now, id): (i64, Option<u128>),
        writes: &mut Writes,
    ) -> Option<i64> {
        let known = self.0.iter().position(|(name, _)| name == policy);
        let index = known.unwrap_or(self.0.len());
        if known.is_none() {
            self.0.push((policy.to_owned(), Own::default()));
        }
        let (_, own) = self.0.get_mut(index)?;
        if id.is_some() && std::mem::replace(&mut own.last_id, id) == id {
            return None;
        }
        own.refused_at.push_back(now);
        while own.refused_at.front().is_some_and(|at| now.abs_diff(*at) >= terms.within_ms) {
            own.refused_at.pop_front();
        }
        let is_too_often = own.refused_at.len() >= terms.after.into();
        if is_too_often {
            own.refused_at = VecDeque::new();
            own.length_ms = terms.length_ms((now < own.forgotten_at).then_some(own.length_ms));
            own.until = now.saturating_add_unsigned(own.length_ms);
            own.forgotten_at = own.until.saturating_add_unsigned(terms.max_ms);
        }
        own.expires_at = own.forgotten_at.max(now.saturating_add_unsigned(terms.within_ms));
        let row = (row_name(policy), Some(own.encode()));
        // A refusal is one whether or not it can be recorded.
        writes.consequences.push(row);
        is_too_often.then_some(own.until)
    }

    /// Ends the policy's ban, and forgets earlier ones and all refusals.
    pub(super) fn lift(&mut self, policy: &str, rows: &mut Vec<RowWrite>) {
        rows.extend(self.0.iter().find(|(name, _)| name == policy).map(|_| (row_name(policy), None)));
        self.0.retain(|(name, _)| name != policy);
    }

    /// Deletes the rows that no longer matter.
    pub(super) fn clean(&mut self, now: i64, rows: &mut Vec<RowWrite>) {
        self.follow(now);
        let over = self.0.iter().filter(|(_, own)| own.expires_at <= now);
        rows.extend(over.map(|(policy, _)| (row_name(policy), None)));
        self.0.retain(|(_, own)| own.expires_at > now);
    }

    /// When there will be something to delete.
    pub(super) fn expires_at(&self) -> impl Iterator<Item = i64> {
        self.0.iter().map(|(_, own)| own.expires_at)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Own {
    fn default() -> Self {
        let (expires_at, until, forgotten_at) = (i64::MIN, i64::MIN, i64::MIN);
        Self { expires_at, until, length_ms: 0, forgotten_at, refused_at: VecDeque::new(), last_id: None }
    }
}

fn row_name(policy: &str) -> String {
    format!("{BAN}{policy}")
}

impl Own {
    fn encode(&self) -> Vec<u8> {
        let Self { expires_at, until, length_ms, forgotten_at, refused_at, last_id: _ } = self;
        let mut row = vec![FORMAT];
        let numbers =
            [expires_at.to_le_bytes(), until.to_le_bytes(), length_ms.to_le_bytes(), forgotten_at.to_le_bytes()];
        row.extend(numbers.as_flattened());
        row.extend(refused_at.iter().flat_map(|at| at.to_le_bytes()));
        row
    }

    /// `None` for bytes that are not such a row.
    fn decode(row: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(row);
        if bytes.byte()? != FORMAT {
            return None;
        }
        let (expires_at, until, length_ms, forgotten_at) = (bytes.i64()?, bytes.i64()?, bytes.u64()?, bytes.i64()?);
        let mut own = Self { expires_at, until, length_ms, forgotten_at, ..Self::default() };
        while !bytes.is_empty() {
            own.refused_at.push_back(bytes.i64()?);
        }
        Some(own)
    }
}

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The format in the storage of every deployment. If it changes, old rows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let own = Own {
            expires_at: 7,
            until: -1,
            length_ms: 60_000,
            forgotten_at: 5,
            refused_at: [3, -1].into(),
            last_id: None,
        };
        let numbers = [7, -1, 60_000, 5, 3, -1].map(i64::to_le_bytes);
        let row = [&[1][..], numbers.as_flattened()].concat();
        assert_eq!((own.encode(), Own::decode(&row)), (row, Some(own)));
    }

    #[test]
    fn an_unreadable_row_is_no_ban_and_is_deleted() {
        let good = Own::default().encode();
        for row in [&[][..], &[2], &good[..32], &[&good[..], &[0]].concat(), &[&[2], &good[1..]].concat()] {
            assert_eq!(Own::decode(row), None);
            let mut bans = Bans::default();
            assert!(bans.load("x:p", row) && !bans.load("b:p", row));
            assert_eq!(bans.until("p"), Some(i64::MIN));
            let mut rows = Vec::new();
            bans.clean(0, &mut rows);
            assert_eq!((rows, bans.is_empty()), (vec![("x:p".to_owned(), None)], true));
        }
    }
}
