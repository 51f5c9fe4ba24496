//! What an operator is told about overrides that were not changed.

use super::super::problem::Problem;
use super::super::text::{MOST_SHOWN, shortened};
use crate::protocol::OverridesError;

impl Problem {
    /// Why no override was changed.
    #[must_use]
    pub fn of_overrides(error: OverridesError) -> Self {
        let why = match error {
            OverridesError::Invalid(lines) => shortened(&lines.join("; "), MOST_SHOWN),
            OverridesError::TooMany { max, is_own, is_restricted, are_bans } => {
                let place = if is_own { " under the policies of this token" } else { "" };
                let reserve = match (is_restricted, are_bans) {
                    (true, true) => "; an unrestricted token has more room",
                    (true, false) => "; bans alone, or an unrestricted token, have more room",
                    (false, false) => "; bans alone have more room",
                    (false, true) => "",
                };
                format!(
                    "more than {max} overrides{place} would be in force or have ended within a minute. Remove some and try again \
                     a minute later{reserve}"
                )
            }
        };
        Self::BadRequest { detail: format!("nothing was changed: {why}") }
    }
}
