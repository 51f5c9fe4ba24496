//! What a call asks an object, as text.

use super::Call;
use crate::edge::ObjectCall;
use crate::protocol::{definitions_of, names_of};

/// The [request](crate::protocol::ObjectRequest) to an object, in the form in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The names of the policies.
    pub policies: String,
    /// The request, in the format that the object knows.
    pub request: String,
    /// The policies' definitions, if the object lacks them.
    pub definitions: Option<String>,
}

impl Call {
    /// What to ask the object of that [`Call::next`].
    #[must_use]
    pub fn question(&self, next: &ObjectCall) -> Question {
        let ObjectCall { object, request, dialect, .. } = next;
        Question {
            policies: names_of(self.policies_of(*object)),
            request: request.to_text(dialect.format),
            definitions: dialect.has_definitions.then(|| definitions_of(self.policies_of(*object))),
        }
    }
}
