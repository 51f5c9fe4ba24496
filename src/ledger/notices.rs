//! Notices that are due when a share of a limit is used up, a soft one is exceeded, or a request is refused.
//!
//! Each share gives one: the next in the next window, or for a limit without windows when its level was above the share by a tenth of the
//! capacity, so that a level which hovers about it gives one notice and not many. Other numbers are news, too. Of one kind and limit there is
//! at most one within the policy's interval.
//!
//! What was given is in a row, so that neither a crash nor an eviction repeats a notice. It is written before a reply that has a notice, and
//! with the next granted request when another may be given: a refusal without a notice still writes nothing. A version that does not know
//! such rows leaves them alone.
//!
//! ```text
//! byte 0     2: this format
//! 8 bytes    from when on the row may be deleted, with the bucket
//! then for each kind and limit of which there was a notice
//!   1 byte   the kind
//!   1 byte   1 if the next may be given
//!   8 bytes  when it was given
//!   8 bytes  the window's opening
//!   8 bytes  the capacity
//!   1 byte   the length of the limit's name, and the name; nothing if it has none
//! ```

use super::bytes::Bytes;
use super::names::Renamed;
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
    /// Whether the row does not have what may be given again.
    is_unsaved: bool,
}

/// The last notice of one kind about one limit. Refusals have no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) kind: NoticeKind,
    pub(super) limit: Option<String>,
    is_armed: bool,
    at: i64,
    under: Under,
}

/// What a notice is about: in another window, or with other numbers, it is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Under {
    pub(super) capacity: u64,
    /// 0 if windows do not matter.
    pub(super) window_at: i64,
}

impl Notices {
    /// Takes a row. `false` if the name is another kind of row's. An unreadable row counts as no notices.
    pub(super) fn load(&mut self, name: &str, row: &[u8]) -> bool {
        let Some(policy) = name.strip_prefix(NOTICES) else { return false };
        self.0.push((policy.to_owned(), Told::decode(row).unwrap_or_default()));
        true
    }

    /// Applies `change` to the notices of a policy. If it says so, the row is written.
    pub(super) fn change(&mut self, policy: &str, writes: &mut Writes, change: impl FnOnce(&mut Told) -> bool) {
        let known = self.0.iter().position(|(name, _)| name == policy);
        let mut new = Told::default();
        let told = known.and_then(|index| self.0.get_mut(index)).map_or(&mut new, |(_, told)| told);
        if !change(told) {
            return;
        }
        told.is_unsaved = false;
        writes.consequences.push((format!("{NOTICES}{policy}"), told.encode()));
        if told.notices.is_empty() {
            self.0.retain(|(name, _)| name != policy);
        } else if known.is_none() {
            self.0.push((policy.to_owned(), new));
        }
    }

    /// Whether the next notice of anything waits for the level of a policy's limits.
    pub(super) fn waits(&self, policy: &str) -> bool {
        self.0.iter().any(|(name, told)| name == policy && told.waits(|| true))
    }

    /// Gives a limit its new name.
    pub(super) fn rename(&mut self, policy: &str, Renamed { from, to }: &Renamed) {
        let own = self.0.iter_mut().filter(|(name, _)| name == policy).flat_map(|(_, told)| &mut told.notices);
        for last in own.filter(|last| last.kind != NoticeKind::Refused && last.limit == *from) {
            last.limit.clone_from(to);
        }
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
    /// Forgets all but refusals. Returns whether there was anything.
    pub(super) fn reset(&mut self) -> bool {
        let before = self.notices.len();
        self.retain(|last| last.kind == NoticeKind::Refused);
        self.notices.len() < before
    }

    /// Lets the next notice be given of those for which `is_back`.
    pub(super) fn arm(&mut self, is_back: impl Fn(&Last) -> bool) {
        for last in &mut self.notices {
            if !last.is_armed && is_back(last) {
                last.is_armed = true;
                self.is_unsaved = true;
            }
        }
    }

    /// Whether a notice is due now; then it counts as given.
    pub(super) fn give(
        &mut self,
        (kind, limit): (NoticeKind, Option<&str>),
        under: Under,
        notify: Notify,
        now: i64,
    ) -> bool {
        let known = self.notices.iter_mut().find(|last| last.kind == kind && last.limit.as_deref() == limit);
        if let Some(last) = known {
            let is_new = last.is_armed || last.under != under || kind == NoticeKind::Refused;
            // A clock that stepped back far must not silence a key until it has caught up.
            if !is_new || now.abs_diff(last.at) < notify.every_ms() {
                return false;
            }
            (last.is_armed, last.at, last.under) = (false, now, under);
        } else {
            self.notices.push(Last { kind, limit: limit.map(str::to_owned), is_armed: false, at: now, under });
        }
        let last_at = self.notices.iter().map(|last| last.at).max();
        self.expires_at = last_at.unwrap_or(now).saturating_add_unsigned(notify.every_ms());
        true
    }

    pub(super) fn retain(&mut self, matters: impl Fn(&Last) -> bool) {
        self.notices.retain(matters);
    }

    pub(super) const fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Whether any of it matters until the bucket is full, if there is one.
    fn waits(&self, has_bucket: impl Fn() -> bool) -> bool {
        self.notices.iter().any(|last| !last.is_armed && last.kind != NoticeKind::Refused) && has_bucket()
    }

    /// `None` if there is nothing to write.
    fn encode(&self) -> Option<Vec<u8>> {
        let mut row = vec![FORMAT];
        row.extend(self.expires_at.to_le_bytes());
        for Last { kind, limit, is_armed, at, under: Under { capacity, window_at } } in &self.notices {
            row.extend([kind.number(), u8::from(*is_armed)]);
            row.extend([at.to_le_bytes(), window_at.to_le_bytes(), capacity.to_le_bytes()].as_flattened());
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
            let (at, window_at, capacity) = (bytes.i64()?, bytes.i64()?, bytes.u64()?);
            let name = bytes.short_text()?;
            let limit = (!name.is_empty()).then(|| name.to_owned());
            let last = |kind| Last { kind, limit, is_armed, at, under: Under { capacity, window_at } };
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
        let (kind, under) = (NoticeKind::Used { percent: 80 }, Under { capacity: 5, window_at: -1 });
        let last = Last { kind, limit: None, is_armed: true, at: 7, under };
        Told { notices: vec![last], expires_at: 9, is_unsaved: false }
    }

    /// The format in the storage of every deployment. If it changes, old rows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let row =
            [&[2, 9, 0, 0, 0, 0, 0, 0, 0, 80, 1, 7, 0, 0, 0, 0, 0, 0, 0][..], &[255; 8], &[5, 0, 0, 0, 0, 0, 0, 0, 0]]
                .concat();
        assert_eq!((told().encode().as_ref(), Told::decode(&row)), (Some(&row), Some(told())));
        let mut more = told();
        for (kind, limit) in [(NoticeKind::Over, Some("day")), (NoticeKind::Refused, None)] {
            let limit = limit.map(str::to_owned);
            more.notices.push(Last { kind, limit, is_armed: false, at: -8, under: Under::default() });
        }
        assert_eq!(Told::decode(&more.encode().unwrap()), Some(more));
        let later = [&row[..], &[103], &[0; 26]].concat();
        assert_eq!(Told::decode(&later), Some(told()), "a kind of a later version");
        assert_eq!(Told::default().encode(), None);
    }

    #[test]
    fn an_unreadable_row_counts_as_no_notices() {
        let good = told().encode().unwrap();
        for row in [&[][..], &[1], &good[..5], &good[..10], &good[..35], &[&[3], &good[1..]].concat()] {
            assert_eq!(Told::decode(row), None, "{row:?}");
        }
        let mut notices = Notices::default();
        assert!(notices.load("n:p", &[1]) && !notices.load("b:p", &good));
        let mut rows = Vec::new();
        notices.clean(0, |_| true, &mut rows);
        assert_eq!((rows, notices.is_empty()), (vec![("n:p".to_owned(), None)], true));
    }
}
