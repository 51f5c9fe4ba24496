//! Retries under newer policies, up to a bound.

/// What to retry with after an object was called under newer policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newer {
    /// The moment of the latest change known to the frontend that called it.
    pub as_of: i64,
    /// The definitions of those policies, one to a line.
    pub definitions: String,
    /// How many times the request has been tried.
    pub tries: u8,
    /// The id of the latest try.
    pub id: u128,
}

impl Newer {
    /// State for one more try; `None` after [`MAX_TRIES`].
    pub(super) fn after((id, tries): (u128, u8), as_of: i64, definitions: &str) -> Option<Self> {
        let tries = tries.saturating_add(1);
        (tries < MAX_TRIES).then(|| Self { as_of, definitions: definitions.to_owned(), tries, id })
    }

    /// Whether to ask the registry first, because the learned policies were not enough. They lack a key's overrides and the policies of a
    /// batch's other keys.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.tries > 1
    }
}

/// One try with the frontend's policies, one with the learned ones, one with the registry's.
const MAX_TRIES: u8 = 3;
