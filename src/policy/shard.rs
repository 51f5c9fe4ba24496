//! Which part of a divided policy one is.

/// A shard of a policy: which, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: u8,
    /// 1 if the others are gone.
    pub count: u8,
}
