//! A request to an object, as text.

use super::Call;
use crate::edge::ObjectCall;
use crate::protocol::{definitions_of, names_of};

/// The [request](crate::protocol::ObjectRequest) to an object, in the form in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// The names of the policies.
    pub names: String,
    /// The request, in the format that the object knows.
    pub request: String,
    /// The policies' definitions, if the object lacks them.
    pub definitions: Option<String>,
}

impl Call {
    /// The request of that [`Call::next`] as it is sent.
    #[must_use]
    pub fn sent(&self, next: &ObjectCall) -> SentRequest {
        let ObjectCall { object, request, dialect, .. } = next;
        SentRequest {
            names: names_of(self.policies_of(*object)),
            request: request.to_text(dialect.format),
            definitions: dialect.has_definitions.then(|| definitions_of(self.policies_of(*object))),
        }
    }
}
