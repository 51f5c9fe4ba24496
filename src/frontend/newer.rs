//! Requests are tried again under newer policies, up to a bound.

/// What to ask again with, since objects have been asked under newer policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newer {
    /// The moment of the latest change that those knew who asked them.
    pub as_of: i64,
    /// The definitions of those policies, one to a line.
    pub definitions: String,
    /// How many times the request has been tried.
    pub tries: u8,
}

impl Newer {
    /// After one more try; `None` once there were [`MAX_TRIES`].
    pub(super) fn after(tries: u8, as_of: i64, definitions: &str) -> Option<Self> {
        let tries = tries.saturating_add(1);
        (tries < MAX_TRIES).then(|| Self { as_of, definitions: definitions.to_owned(), tries })
    }

    /// Whether to ask the registry first: what was learned was not enough. It does not include a key's overrides, nor the policies of a
    /// batch's other keys.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.tries > 1
    }
}

/// Under what the frontend knows, under what it has learned, and under what the registry says.
const MAX_TRIES: u8 = 3;
