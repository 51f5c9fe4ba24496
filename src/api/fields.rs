//! The structured fields `RateLimit-Policy` and `RateLimit`, draft-ietf-httpapi-ratelimit-headers.

use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};

use crate::limit::Config;
use crate::policy::NamedLimit;

/// What each limit allows: `"api";q=100;w=60;tollgate-capacity=200`.
pub(super) fn policy_field(limits: &[NamedLimit]) -> String {
    const Q: &KeyRef = key_ref("q");
    const W: &KeyRef = key_ref("w");
    const CAPACITY: &KeyRef = key_ref("tollgate-capacity");
    let mut list = ListSerializer::new();
    for limit in limits {
        let Config { rate, period_ms, capacity, .. } = *limit.limit().config();
        // `w` is whole seconds: the smallest number of periods, or of seconds, that is both.
        let window_s = period_ms.div_ceil(1_000).max(1);
        let quota = u128::from(rate).saturating_mul(u128::from(window_s)).saturating_mul(1_000);
        let quota = quota.checked_div(u128::from(period_ms)).unwrap_or(0);
        if let Ok(name) = StringRef::from_str(limit.full_name()) {
            _ = list
                .bare_item(name)
                .parameter(Q, integer(u64::try_from(quota).unwrap_or(u64::MAX)))
                .parameter(W, integer(window_s))
                .parameter(CAPACITY, integer(capacity));
        }
    }
    list.finish().unwrap_or_default()
}

/// What is left of each, and the seconds until there is more, if ever: `"api";r=12;t=30`.
pub(super) fn limit_field<'a>(limits: impl IntoIterator<Item = (&'a str, u64, Option<u64>)>) -> String {
    const R: &KeyRef = key_ref("r");
    const T: &KeyRef = key_ref("t");
    let mut list = ListSerializer::new();
    for (name, remaining, next_s) in limits {
        if let Ok(name) = StringRef::from_str(name) {
            let item = list.bare_item(name).parameter(R, integer(remaining));
            if let Some(seconds) = next_s {
                _ = item.parameter(T, integer(seconds));
            }
        }
    }
    list.finish().unwrap_or_default()
}

/// Structured fields hold integers of 15 digits; a larger one is not wrong when it is cut to that.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use super::policy_field;
    use crate::policy::Policies;

    #[test]
    fn the_policy_field_has_whole_seconds() {
        for (rate, period, expected) in [
            (100, "1m", r#""p";q=100;w=60;tollgate-capacity=100"#),
            (1, "100ms", r#""p";q=10;w=1;tollgate-capacity=1"#),
            (3, "1500ms", r#""p";q=4;w=2;tollgate-capacity=3"#),
            (0, "1s", r#""p";q=0;w=1;tollgate-capacity=0"#),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{{"rate":{rate},"period":"{period}"}}}}"#)).unwrap();
            assert_eq!(policy_field(policies.get("p").unwrap().limits()), expected);
        }
    }
}
