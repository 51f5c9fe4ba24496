//! Encodes values as numbers and decodes them.
//!
//! ```text
//! format      as the format says, up to
//! -kind       the first section: kinds are above 0
//! length      of the section
//! ...         so many numbers; then the next section
//! ```
//!
//! They are sent as text, in decimal with a space between them: as an array, a grant took 7 % more processor time.

/// An encoding of requests and replies.
///
/// A change that an older version must not ignore needs a new format, such as another action, or another field before the sections. The
/// version that introduces a format still reads and writes the older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Format(u8);

impl Format {
    /// The oldest format that this version reads and writes.
    pub const OLDEST: Self = Self(3);

    /// The newest format that this version reads and writes. A frontend tries it first.
    pub const NEWEST: Self = Self(if cfg!(feature = "test-next-format") { 4 } else { 3 });

    /// The format with that number; `None` if this version does not know it.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        let format = Self(u8::try_from(number).ok()?);
        (Self::OLDEST..=Self::NEWEST).contains(&format).then_some(format)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Why numbers are unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// This version does not know their format.
    Format,
    /// They do not match their format.
    Malformed,
}

/// Writes numbers.
pub(super) struct Writer(String);

impl Writer {
    /// With room for this many numbers.
    pub(super) fn new(format: Format, capacity: usize) -> Self {
        let mut writer = Self(String::with_capacity(capacity.saturating_mul(USUAL_DIGITS)));
        writer.small(format.0);
        if format.has_test_field() {
            writer.small(TEST_FIELD);
        }
        writer
    }

    pub(super) fn small(&mut self, value: u8) {
        self.signed(value.into());
    }

    pub(super) fn whole(&mut self, value: u64) {
        self.signed(value.cast_signed());
    }

    pub(super) fn signed(&mut self, value: i64) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    pub(super) fn optional(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.whole(value),
            None => self.signed(-1),
        }
    }

    pub(super) fn moment_or_never(&mut self, moment: Option<i64>) {
        self.signed(moment.unwrap_or(NEVER));
    }

    /// Writes the value as 32-bit words, highest first, because a number holds only 53 bits.
    pub(super) fn words<const COUNT: u32>(&mut self, value: u128) {
        for word in (0..COUNT).rev() {
            let shift = word.saturating_mul(u32::BITS);
            #[expect(clippy::cast_possible_truncation, reason = "the lowest 32 bits are meant")]
            self.signed(i64::from((value >> shift) as u32));
        }
    }

    /// Starts a section with `len` numbers.
    pub(super) fn section(&mut self, kind: u8, len: usize) {
        self.signed(marker_of(kind));
        self.whole(len as u64);
    }

    pub(super) fn finish(mut self) -> String {
        if cfg!(feature = "test-next-format") {
            for number in TEST_SECTION {
                self.signed(number);
            }
        }
        self.0
    }
}

/// Reads numbers.
pub(super) struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Result<(Self, Format), Unreadable> {
        let mut rest = Self(text);
        let format = Format::from_number(rest.whole()?).ok_or(Unreadable::Format)?;
        if format.has_test_field() && rest.whole()? != u64::from(TEST_FIELD) {
            return Err(Unreadable::Malformed);
        }
        Ok((rest, format))
    }

    pub(super) fn whole(&mut self) -> Result<u64, Unreadable> {
        u64::try_from(self.signed()?).map_err(|_| Unreadable::Malformed)
    }

    pub(super) fn signed(&mut self) -> Result<i64, Unreadable> {
        // By bytes: the setup of `split_once` takes longer than searching these few.
        let end = self.0.bytes().position(|byte| byte == b' ').unwrap_or(self.0.len());
        let (first, rest) = self.0.split_at_checked(end).ok_or(Unreadable::Malformed)?;
        self.0 = rest.strip_prefix(' ').unwrap_or(rest);
        first.parse().map_err(|_| Unreadable::Malformed)
    }

    pub(super) fn optional(&mut self) -> Result<Option<u64>, Unreadable> {
        self.signed().map(|number| u64::try_from(number).ok())
    }

    pub(super) fn moment_or_never(&mut self) -> Result<Option<i64>, Unreadable> {
        self.signed().map(|number| (number > NEVER).then_some(number))
    }

    pub(super) fn words<const COUNT: u32>(&mut self) -> Result<u128, Unreadable> {
        (0..COUNT).try_fold(0, |high: u128, _| Ok((high << u32::BITS) | u128::from(self.whole()?)))
    }

    /// The following section of that kind, if there is one.
    pub(super) fn section(&self, kind: u8) -> Result<Option<Self>, Unreadable> {
        let mut rest = Self(self.0);
        while !rest.is_empty() {
            let (found, len) = (rest.signed()?, rest.whole()?);
            let section = rest.split_off(len)?;
            if found == marker_of(kind) {
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    /// Whether nothing follows.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether only sections follow.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_empty() || self.0.starts_with('-')
    }

    /// Removes and returns the next `len` numbers.
    fn split_off(&mut self, len: u64) -> Result<Self, Unreadable> {
        let all = self.0;
        for _ in 0..len {
            self.signed()?;
        }
        let end = all.len().saturating_sub(self.0.len());
        Ok(Self(all.get(..end).unwrap_or_default().trim_end_matches(' ')))
    }
}

/// The number that starts a section of that kind.
const fn marker_of(kind: u8) -> i64 {
    (kind as i64).saturating_neg()
}

/// Represents never: no real moment is this early.
const NEVER: i64 = -9_007_199_254_740_991;

/// A moment has 13 digits and a space, an id or a level up to 17, and most others two.
const USUAL_DIGITS: usize = 8;

/// A possible addition of the next version, so that tests can run two versions side by side: a field before all others, which needs a new
/// format, and a section, which does not.
const TEST_FIELD: u8 = 77;
const TEST_SECTION: [i64; 4] = [-1, 2, 40, 2];

impl Format {
    const fn has_test_field(self) -> bool {
        cfg!(feature = "test-next-format") && self.0 == Self::NEWEST.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_known_by_its_number() {
        for format in [Format::OLDEST, Format::NEWEST] {
            assert_eq!(Format::from_number(format.number().into()), Some(format));
        }
        let next = u64::from(Format::NEWEST.number()) + 1;
        for unknown in [0, u64::from(Format::OLDEST.number()) - 1, next, next + 256, u64::MAX] {
            assert_eq!(Format::from_number(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn every_kind_of_number_survives_a_round_trip() {
        let most = (1 << 53) - 1;
        let mut writer = Writer::new(Format::NEWEST, 0);
        writer.small(255);
        writer.whole(most);
        writer.signed(-most.cast_signed());
        writer.optional(Some(0));
        writer.optional(None);
        writer.moment_or_never(Some(1 - most.cast_signed()));
        writer.moment_or_never(None);
        writer.words::<4>(u128::MAX - 5);
        writer.words::<2>(7 << 32);
        let text = writer.finish();
        let (mut reader, format) = Reader::new(&text).ok().unwrap();
        assert_eq!(format, Format::NEWEST);
        assert_eq!(reader.whole(), Ok(255));
        assert_eq!(reader.whole(), Ok(most));
        assert_eq!(reader.signed(), Ok(-most.cast_signed()));
        assert_eq!(reader.optional(), Ok(Some(0)));
        assert_eq!(reader.optional(), Ok(None));
        assert_eq!(reader.moment_or_never(), Ok(Some(1 - most.cast_signed())));
        assert_eq!(reader.moment_or_never(), Ok(None));
        assert_eq!(reader.words::<4>(), Ok(u128::MAX - 5));
        assert_eq!(reader.words::<2>(), Ok(7 << 32));
        assert!(reader.is_at_end());
    }
}
