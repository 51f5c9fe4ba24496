//! Whether a key is banned or unlimited, as JSON.

use serde::Serialize;

use super::verdict::is_false;
use crate::policy::{Ban, Policy, Standing};

/// Whether a key is banned from a policy or unlimited; nothing for one that is limited.
#[derive(Default, Serialize)]
pub(super) struct BanStatus {
    #[serde(skip_serializing_if = "is_false")]
    banned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    banned_until: Option<i64>,
    #[serde(skip_serializing_if = "is_false")]
    unlimited: bool,
}

impl BanStatus {
    pub(super) fn of(policy: &Policy, ban: Option<Ban>) -> Self {
        Self {
            banned: ban.is_some(),
            banned_until: ban.and_then(|ban| ban.until),
            unlimited: policy.standing() == Standing::Unlimited,
        }
    }
}
