//! Notices that are due when a key nears a limit, exceeds a soft one or is refused: at most one of each kind within its policy's interval.
//!
//! The moments of the last ones are in a row, so that neither a crash nor an eviction repeats one. It is written before a reply that has a
//! notice, and only then: a refusal without a notice still writes nothing. A version that does not know such rows leaves them alone.
//!
//! ```text
//! byte 0     1: this format
//! 8 bytes    when the row may be deleted
//! then for each kind of which there was a notice
//!   1 byte   the kind
//!   8 bytes  when
//! ```

use super::bytes::Bytes;
use super::writes::{RowWrite, Writes};
use crate::policy::{NoticeKind, Notify};

/// Prefix of a row about notices, before the policy's name.
const NOTICES: &str = "n:";

/// The last notices of a key, by policy name.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<(String, Last)>);

/// The last notices of one policy.
#[derive(Debug, Default, PartialEq, Eq)]
struct Last {
    /// By position of the kind in [`NoticeKind::ALL`].
    given_at: [Option<i64>; NoticeKind::ALL.len()],
    /// When none of it matters any more.
    expires_at: i64,
}

impl Notices {
    /// Takes a row. `false` if the name is another kind of row's. An unreadable row counts as no notices.
    pub(super) fn load(&mut self, name: &str, row: &[u8]) -> bool {
        let Some(policy) = name.strip_prefix(NOTICES) else { return false };
        self.0.push((policy.to_owned(), Last::decode(row).unwrap_or_default()));
        true
    }

    /// Whether a notice is due now; if so, its row is written.
    pub(super) fn give(
        &mut self,
        policy: &str,
        kind: NoticeKind,
        notify: Notify,
        now: i64,
        writes: &mut Writes,
    ) -> bool {
        let known = self.0.iter().position(|(name, _)| name == policy);
        let last = known.and_then(|index| self.0.get(index)).and_then(|(_, last)| last.given_at(kind));
        // A clock that stepped back far must not silence a key until it has caught up.
        if last.is_some_and(|at| now.abs_diff(at) < notify.every_ms()) {
            return false;
        }
        if known.is_none() {
            self.0.push((policy.to_owned(), Last::default()));
        }
        if let Some((_, last)) = self.0.iter_mut().find(|(name, _)| name == policy) {
            last.give(kind, notify, now);
            writes.notices.push((format!("{NOTICES}{policy}"), Some(last.encode())));
        }
        true
    }

    /// Deletes expired rows.
    pub(super) fn clean(&mut self, now: i64, rows: &mut Vec<RowWrite>) {
        self.0.retain(|(policy, last)| {
            let is_over = last.expires_at <= now;
            if is_over {
                rows.push((format!("{NOTICES}{policy}"), None));
            }
            !is_over
        });
    }

    /// When there will be something to delete.
    pub(super) fn expires_at(&self) -> impl Iterator<Item = i64> {
        self.0.iter().map(|(_, last)| last.expires_at)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Last {
    fn given_at(&self, kind: NoticeKind) -> Option<i64> {
        NoticeKind::ALL.into_iter().zip(self.given_at).find(|(of, _)| *of == kind)?.1
    }

    fn give(&mut self, kind: NoticeKind, notify: Notify, now: i64) {
        for (of, at) in NoticeKind::ALL.into_iter().zip(&mut self.given_at) {
            if of == kind {
                *at = Some(now);
            }
        }
        let given_at = self.given_at.iter().flatten();
        let expires_at = given_at.map(|at| at.saturating_add_unsigned(notify.every_ms())).max();
        self.expires_at = expires_at.unwrap_or(now);
    }

    fn encode(&self) -> Vec<u8> {
        let mut row = vec![FORMAT];
        row.extend(self.expires_at.to_le_bytes());
        for (kind, at) in NoticeKind::ALL.into_iter().zip(self.given_at) {
            if let Some(at) = at {
                row.push(kind.number());
                row.extend(at.to_le_bytes());
            }
        }
        row
    }

    /// `None` for bytes that are not such a row. Kinds of a later version are ignored.
    fn decode(row: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(row);
        if bytes.byte()? != FORMAT {
            return None;
        }
        let mut last = Self { expires_at: bytes.i64()?, ..Self::default() };
        while !bytes.is_empty() {
            let (kind, at) = (bytes.byte()?, bytes.i64()?);
            for (of, given_at) in NoticeKind::ALL.into_iter().zip(&mut last.given_at) {
                if of.number() == kind {
                    *given_at = Some(at);
                }
            }
        }
        Some(last)
    }
}

const FORMAT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> Last {
        Last { given_at: [None, Some(7), None], expires_at: 9 }
    }

    /// The format in the storage of every deployment. If it changes, old rows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let row = [1, 9, 0, 0, 0, 0, 0, 0, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((last().encode().as_slice(), Last::decode(&row)), (&row[..], Some(last())));
        let all = Last { given_at: [Some(-1), Some(7), Some(8)], ..last() };
        assert_eq!(Last::decode(&all.encode()), Some(all));
        let later = [&row[..], &[4, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(Last::decode(&later), Some(last()), "a kind of a later version");
    }

    #[test]
    fn an_unreadable_row_counts_as_no_notices() {
        let good = last().encode();
        for row in [&[][..], &[2], &good[..5], &good[..10], &[&[2], &good[1..]].concat()] {
            assert_eq!(Last::decode(row), None, "{row:?}");
        }
        let mut notices = Notices::default();
        assert!(notices.load("n:p", &[2]) && !notices.load("b:p", &good));
        let mut rows = Vec::new();
        notices.clean(0, &mut rows);
        assert_eq!((rows, notices.is_empty()), (vec![("n:p".to_owned(), None)], true));
    }
}
