//! The request to the objects, and the steps after their answers.

use std::fmt;

use super::super::settings::Receivers;
use crate::api::ResolvedRequest;
use crate::edge::InForce;

/// The request, with the policies in force when it began, even if they change meanwhile.
#[derive(Clone, Debug)]
pub(in super::super) struct Asked {
    /// The request as received.
    pub(in super::super) whole: ResolvedRequest,
    /// For a budget in several shards: the same with an item for each.
    pub(in super::super) of_shards: Option<ResolvedRequest>,
    pub(in super::super) purpose: Purpose,
    pub(in super::super) terms: Terms,
}

/// What to do after the answers.
#[derive(Clone, Debug)]
pub(in super::super) enum Purpose {
    /// Reply.
    Answer,
    /// Tell the platform's rate limiting method whether it is allowed.
    Limit,
    /// Nothing: no request waits for them.
    Leases,
    /// Record an act of the operator with this name, if there is a registry.
    Act { by: String, has_registry: bool },
    /// Verify a visitor's captcha, if the limits allow it.
    Session(Verification),
}

/// A request to the captcha's verifier. It contains a secret, so only its type is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Verification {
    /// The verifier's URL.
    pub url: String,
    /// The secret shared with this deployment.
    pub secret: String,
    /// The visitor's captcha response.
    pub captcha: String,
    /// The visitor's address.
    pub address: String,
}

impl fmt::Debug for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verification").finish_non_exhaustive()
    }
}

/// Added by the frontend to every request it makes.
#[derive(Clone, Debug)]
pub(in super::super) struct Terms {
    /// The request's id: from its `Idempotency-Key`, or the frontend's own.
    pub(in super::super) id: u128,
    /// How many times the request has been tried.
    pub(in super::super) tries: u8,
    pub(in super::super) in_force: InForce,
    /// Whether the policies may be stale.
    pub(in super::super) is_stale: bool,
    /// Whether the first call already includes the policies' definitions.
    pub(in super::super) sends_definitions: bool,
    pub(in super::super) receivers: Receivers,
    /// Whether decisions are written as data points.
    pub(in super::super) has_points: bool,
}

impl Asked {
    /// The request with one item per object.
    pub(in super::super) fn parts(&self) -> &ResolvedRequest {
        self.of_shards.as_ref().unwrap_or(&self.whole)
    }
}
