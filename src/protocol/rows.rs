//! Storage operations of an object, sent beside a reply's own numbers; used for metrics only.

use super::numbers::{Reader, Unreadable, Writer};

/// Rows of an object's storage: since its last reply, or of several replies together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Rows read.
    pub read: u64,
    /// Rows written. Deleting a row and setting an alarm each count as a row.
    pub written: u64,
}

impl Rows {
    /// Writes them as a section, unless both are zero.
    pub(super) fn write(self, writer: &mut Writer) {
        if self != Self::default() {
            writer.section(ROWS, 2);
            writer.whole(self.read);
            writer.whole(self.written);
        }
    }

    /// Reads them from the sections; zero if absent, as from an older object.
    pub(super) fn of(sections: &Reader<'_>) -> Result<Self, Unreadable> {
        let Some(mut section) = sections.section(ROWS)? else { return Ok(Self::default()) };
        Ok(Self { read: section.whole()?, written: section.whole()? })
    }
}

/// The kind of their section in a reply.
const ROWS: u8 = 7;
