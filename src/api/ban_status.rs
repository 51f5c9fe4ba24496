//! Whether a key is banned or unlimited, as JSON.

use serde::Serialize;

use super::verdict::is_false;
use crate::policy::{Policy, Standing};

/// The standing that a policy gives to its key; nothing for one that is limited.
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
    pub(super) fn of(policy: &Policy) -> Self {
        match policy.standing() {
            Standing::Limited => Self::default(),
            Standing::Unlimited => Self { unlimited: true, ..Self::default() },
            Standing::Banned { until } => Self { banned: true, banned_until: until, ..Self::default() },
        }
    }
}
