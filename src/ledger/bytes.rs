//! A little-endian reader: each part is either complete or absent.

pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn text(&mut self, len: usize) -> Option<&'a str> {
        self.slice(len).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Text with a length byte before it.
    pub(super) fn short_text(&mut self) -> Option<&'a str> {
        let len = self.byte()?;
        self.text(len.into())
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
