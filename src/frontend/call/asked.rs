//! What is asked, and what is done once it is answered.

use super::super::settings::Receivers;
use crate::api::ResolvedRequest;
use crate::edge::InForce;

/// What is asked, with the policies under which it began, even if those change meanwhile.
#[derive(Clone)]
pub(in super::super) struct Asked {
    /// The request as it was asked.
    pub(in super::super) whole: ResolvedRequest,
    /// About a budget in several shards, the same with an item for each.
    pub(in super::super) of_shards: Option<ResolvedRequest>,
    pub(in super::super) purpose: Purpose,
    pub(in super::super) terms: Terms,
}

/// What is done once it is answered.
#[derive(Clone)]
pub(in super::super) enum Purpose {
    /// Nothing.
    Answer,
    /// An act of an operator, who has this name, is recorded.
    Act { by: String },
    /// A visitor's captcha is verified, if that is allowed.
    Session(Verification),
}

/// What a captcha's verifier is asked. It has a secret, so it cannot be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Verification {
    /// Where it is.
    pub url: String,
    /// The secret that it shares with this deployment.
    pub secret: String,
    /// What the visitor has sent.
    pub captcha: String,
    /// The visitor's address.
    pub address: String,
}

/// What the frontend adds to every request of its own.
#[derive(Clone, Debug)]
pub(in super::super) struct Terms {
    /// How many times the request has been tried.
    pub(in super::super) tries: u8,
    pub(in super::super) in_force: InForce,
    /// Whether the policies may be out of date.
    pub(in super::super) is_stale: bool,
    /// Whether objects are sent the definitions of the policies at once.
    pub(in super::super) sends_definitions: bool,
    pub(in super::super) receivers: Receivers,
}

impl Asked {
    /// What the objects are asked.
    pub(in super::super) fn parts(&self) -> &ResolvedRequest {
        self.of_shards.as_ref().unwrap_or(&self.whole)
    }
}
