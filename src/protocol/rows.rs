//! What an object's storage has done, which a reply tells beside its own numbers: for whoever counts, not for the answer.

use super::numbers::{Reader, Unreadable, append_section};

/// Rows of an object's storage: since its last reply, or of several replies together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// How many were read.
    pub read: u64,
    /// How many were written. Deleting a row and setting an alarm are a row each.
    pub written: u64,
}

impl Rows {
    /// Adds a section with them to the numbers of a reply, unless there are none.
    pub fn append_to(self, text: &mut String) {
        if self != Self::default() {
            append_section(text, ROWS, [self.read, self.written]);
        }
    }

    /// Those that the sections say; none if it is not said, as by an older object.
    pub(super) fn of(sections: &Reader<'_>) -> Result<Self, Unreadable> {
        let Some(mut section) = sections.section(ROWS)? else { return Ok(Self::default()) };
        Ok(Self { read: section.whole()?, written: section.whole()? })
    }
}

/// The kind of the section, among those of a reply.
const ROWS: u8 = 7;
