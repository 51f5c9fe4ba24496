//! What a request is asked again with, since objects have been asked under newer policies.

/// What to ask again with, since objects have been asked under newer policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newer {
    /// The moment of the latest change that those knew who asked them.
    pub as_of: i64,
    /// The definitions of those policies, one to a line.
    pub definitions: String,
    /// How often it has been asked.
    pub tries: u8,
}

impl Newer {
    /// For a request that has been asked once more, beside so many times before; `None` if that is enough.
    pub(super) fn after(before: u8, as_of: i64, definitions: &str) -> Option<Self> {
        let tries = before.saturating_add(1);
        (tries < MAX_TRIES).then(|| Self { as_of, definitions: definitions.to_owned(), tries })
    }

    /// Whether to ask the registry before: what was learned did not do. Of a key with overrides it says too little, and of a request over
    /// several keys others may be newer, too.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.tries > 1
    }
}

/// Under what the frontend knows, under what it has learned, and under what the registry says.
const MAX_TRIES: u8 = 3;
