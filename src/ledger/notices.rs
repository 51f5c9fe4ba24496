//! Notices that are due when a share of a limit is used up, a soft one is exceeded, or a request is refused.
//!
//! Each share is told once: again in the next window, or when the level has risen above it by a tenth of the capacity, so that a level which
//! hovers about it gives one notice and not many. Of one kind and limit there is at most one within the policy's interval.
//!
//! What was told is in a row, so that neither a crash nor an eviction repeats a notice. It is written before a reply that has a notice, and
//! when a share can be told again: a refusal without a notice still writes nothing. A version that does not know such rows leaves them
//! alone.
//!
//! ```text
//! byte 0     2: this format
//! 8 bytes    from when on the row may be deleted, with the bucket
//! then for each kind and limit of which there was a notice
//!   1 byte   the kind
//!   1 byte   1 if it can be told again
//!   8 bytes  when it was told
//!   8 bytes  the window's opening
//!   1 byte   the length of the limit's name, and the name; nothing if it has none
//! ```

use super::bytes::Bytes;
use super::writes::{RowWrite, Writes};
use crate::policy::{NoticeKind, Notify};

/// Prefix of a row about notices, before the policy's name.
const NOTICES: &str = "n:";

/// The last notices of a key, by policy name.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<(String, Told)>);

/// The last notices of one policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    notices: Vec<Last>,
    /// When the interval after the last of them is over.
    expires_at: i64,
}

/// The last notice of one kind about one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Last {
    of: Of,
    is_armed: bool,
    at: i64,
    /// The opening of the window that it was about; 0 if windows do not matter.
    window_at: i64,
}

/// What a notice is about. Refusals have no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) kind: NoticeKind,
    pub(super) limit: Option<String>,
}

impl Notices {
    /// Takes a row. `false` if the name is another kind of row's. An unreadable row counts as no notices.
    pub(super) fn load(&mut self, name: &str, row: &[u8]) -> bool {
        let Some(policy) = name.strip_prefix(NOTICES) else { return false };
        self.0.push((policy.to_owned(), Told::decode(row).unwrap_or_default()));
        true
    }

    /// Applies `change` to what was told of a policy. If it says that it changed anything, the row is written.
    pub(super) fn change(&mut self, policy: &str, writes: &mut Writes, change: impl FnOnce(&mut Told) -> bool) {
        let known = self.0.iter().position(|(name, _)| name == policy);
        let mut new = Told::default();
        let told = known.and_then(|index| self.0.get_mut(index)).map_or(&mut new, |(_, told)| told);
        if !change(told) {
            return;
        }
        let row = format!("{NOTICES}{policy}");
        writes.notices.retain(|(name, _)| *name != row);
        writes.notices.push((row, told.encode()));
        if told.notices.is_empty() {
            self.0.retain(|(name, _)| name != policy);
        } else if known.is_none() {
            self.0.push((policy.to_owned(), new));
        }
    }

    /// Whether anything of a policy waits to be told again.
    pub(super) fn is_unarmed(&self, policy: &str) -> bool {
        self.0.iter().any(|(name, told)| name == policy && told.waits(|| true))
    }

    /// Deletes rows on which nothing depends: no bucket is left that could still be below a share.
    pub(super) fn clean(&mut self, now: i64, has_bucket: impl Fn(&str) -> bool, rows: &mut Vec<RowWrite>) {
        self.0.retain(|(policy, told)| {
            let is_over = told.expires_at <= now && !told.waits(|| has_bucket(policy));
            if is_over {
                rows.push((format!("{NOTICES}{policy}"), None));
            }
            !is_over
        });
    }

    /// When there will be something to delete. A row that waits for its bucket is deleted when that is.
    pub(super) fn expires_at(&self, has_bucket: impl Fn(&str) -> bool) -> impl Iterator<Item = i64> {
        let alone = self.0.iter().filter(move |(policy, told)| !told.waits(|| has_bucket(policy)));
        alone.map(|(_, told)| told.expires_at)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Told {
    /// Forgets all of it. Returns whether there was anything.
    pub(super) fn clear(&mut self) -> bool {
        let was_empty = self.notices.is_empty();
        self.notices.clear();
        !was_empty
    }

    /// Lets those be told again for which `is_back`, a limit's name and the kind. Returns whether that changed anything.
    pub(super) fn arm(&mut self, is_back: impl Fn(&Of) -> bool) -> bool {
        let mut has_changed = false;
        for last in self.notices.iter_mut().filter(|last| !last.is_armed && is_back(&last.of)) {
            (last.is_armed, has_changed) = (true, true);
        }
        has_changed
    }

    /// Whether a notice is due now; then it counts as told.
    pub(super) fn tell(&mut self, of: Of, window_at: i64, notify: Notify, now: i64) -> bool {
        let known = self.notices.iter().position(|last| last.of == of);
        if let Some(last) = known.and_then(|index| self.notices.get(index)) {
            let is_new = last.is_armed || last.window_at != window_at || of.kind == NoticeKind::Refused;
            // A clock that stepped back far must not silence a key until it has caught up.
            if !is_new || now.abs_diff(last.at) < notify.every_ms() {
                return false;
            }
        }
        let last = Last { of, is_armed: false, at: now, window_at };
        match known.and_then(|index| self.notices.get_mut(index)) {
            Some(known) => *known = last,
            None => self.notices.push(last),
        }
        let last_at = self.notices.iter().map(|last| last.at).max();
        self.expires_at = last_at.unwrap_or(now).saturating_add_unsigned(notify.every_ms());
        true
    }

    /// Forgets limits that there are no longer.
    pub(super) fn retain(&mut self, is_limit: impl Fn(Option<&str>) -> bool) {
        self.notices.retain(|last| last.of.kind == NoticeKind::Refused || is_limit(last.of.limit.as_deref()));
    }

    /// Whether any of it matters until the bucket is full, if there is one.
    fn waits(&self, has_bucket: impl Fn() -> bool) -> bool {
        self.notices.iter().any(|last| !last.is_armed && last.of.kind != NoticeKind::Refused) && has_bucket()
    }

    /// `None` if there is nothing to write.
    fn encode(&self) -> Option<Vec<u8>> {
        let mut row = vec![FORMAT];
        row.extend(self.expires_at.to_le_bytes());
        for Last { of: Of { kind, limit }, is_armed, at, window_at } in &self.notices {
            row.extend([kind.number(), u8::from(*is_armed)]);
            row.extend(at.to_le_bytes());
            row.extend(window_at.to_le_bytes());
            let name = limit.as_deref().unwrap_or_default();
            row.push(u8::try_from(name.len()).unwrap_or(u8::MAX)); // names are shorter
            row.extend(name.as_bytes().iter().take(u8::MAX.into()));
        }
        (!self.notices.is_empty()).then_some(row)
    }

    /// `None` for bytes that are not such a row. Kinds of a later version are ignored.
    fn decode(row: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(row);
        if bytes.byte()? != FORMAT {
            return None;
        }
        let mut told = Self { expires_at: bytes.i64()?, ..Self::default() };
        while !bytes.is_empty() {
            let (kind, is_armed) = (bytes.byte()?, bytes.byte()? != 0);
            let (at, window_at, name) = (bytes.i64()?, bytes.i64()?, bytes.short_text()?);
            let limit = (!name.is_empty()).then(|| name.to_owned());
            let last = |kind| Last { of: Of { kind, limit }, is_armed, at, window_at };
            told.notices.extend(NoticeKind::from_number(kind.into()).map(last));
        }
        Some(told)
    }
}

const FORMAT: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Told {
        let of = Of { kind: NoticeKind::Used { percent: 80 }, limit: None };
        Told { notices: vec![Last { of, is_armed: true, at: 7, window_at: -1 }], expires_at: 9 }
    }

    /// The format in the storage of every deployment. If it changes, old rows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let row = [2, 9, 0, 0, 0, 0, 0, 0, 0, 80, 1, 7, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0];
        assert_eq!((told().encode().as_deref(), Told::decode(&row)), (Some(&row[..]), Some(told())));
        let mut more = told();
        for (kind, limit) in [(NoticeKind::Over, Some("day")), (NoticeKind::Refused, None)] {
            let of = Of { kind, limit: limit.map(str::to_owned) };
            more.notices.push(Last { of, is_armed: false, at: -8, window_at: 5 });
        }
        assert_eq!(Told::decode(&more.encode().unwrap()), Some(more));
        let later = [&row[..], &[103], &[0; 18]].concat();
        assert_eq!(Told::decode(&later), Some(told()), "a kind of a later version");
        assert_eq!(Told::default().encode(), None);
    }

    #[test]
    fn an_unreadable_row_counts_as_no_notices() {
        let good = told().encode().unwrap();
        for row in [&[][..], &[1], &good[..5], &good[..10], &good[..27], &[&[3], &good[1..]].concat()] {
            assert_eq!(Told::decode(row), None, "{row:?}");
        }
        let mut notices = Notices::default();
        assert!(notices.load("n:p", &[1]) && !notices.load("b:p", &good));
        let mut rows = Vec::new();
        notices.clean(0, |_| true, &mut rows);
        assert_eq!((rows, notices.is_empty()), (vec![("n:p".to_owned(), None)], true));
    }
}
