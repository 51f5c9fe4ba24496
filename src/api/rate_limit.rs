//! The fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers.
//!
//! `RateLimit-Policy` is the same in every answer: each limit's quota `q` and, if it refills, the time window `w` in which that quota may
//! be used. `RateLimit` is the current state: `r` tokens are available, and no more than these within the next `t` seconds. A soft limit
//! grants more at any time, so it has no `t`, but `tollgate-over`: by how many tokens it is exceeded.

use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};

use super::resolved::Answered;
use super::text::seconds;
use super::verdict::until_ms;
use crate::limit::{Config, Decision, Kind};
use crate::policy::NamedLimit;

/// Each limit's quota: `"api";q=100;w=60;tollgate-capacity=200`. A limit that never refills has its capacity as its quota, and no window.
pub(super) fn policy_field(limits: &[NamedLimit]) -> String {
    const Q: &KeyRef = key_ref("q");
    const W: &KeyRef = key_ref("w");
    const CAPACITY: &KeyRef = key_ref("tollgate-capacity");
    let mut list = ListSerializer::new();
    for limit in limits {
        let config = limit.limit().config();
        let Ok(name) = StringRef::from_str(limit.full_name()) else { continue };
        let mut item = list.bare_item(name);
        item = match quota_and_window_s(config) {
            Some((quota, window_s)) => item.parameter(Q, integer(quota)).parameter(W, integer(window_s)),
            None => item.parameter(Q, integer(config.capacity)),
        };
        _ = item.parameter(CAPACITY, integer(config.capacity));
    }
    list.finish().unwrap_or_default()
}

/// Each limit's state: `"api";r=12;t=3`. While `r` tokens are left, `t` is when the next one comes; it is absent if none ever will.
/// `retry_after_s` is the `Retry-After` of a refusal, which is never before the end of a `t`.
pub(super) fn limit_field(answers: &[Answered<'_>], now: i64, retry_after_s: Option<u64>) -> String {
    const R: &KeyRef = key_ref("r");
    const T: &KeyRef = key_ref("t");
    const OVER: &KeyRef = key_ref("tollgate-over");
    let mut list = ListSerializer::new();
    for answered in answers {
        let (limit, _, answer) = answered;
        if let Ok(name) = StringRef::from_str(limit.full_name()) {
            let item = list.bare_item(name).parameter(R, integer(answer.remaining));
            if limit.limit().is_soft() {
                _ = item.parameter(OVER, integer(answer.owed));
            } else if let Some(at) = next_token_at(answered, now) {
                let seconds = seconds(until_ms(now, at));
                _ = item.parameter(T, integer(seconds.min(retry_after_s.unwrap_or(seconds))));
            }
        }
    }
    list.finish().unwrap_or_default()
}

/// Both fields for a banned key: `"api";q=0;tollgate-capacity=0` and `"api";r=0;t=60`.
pub(super) fn banned_fields(limits: &[NamedLimit], retry_after_s: Option<u64>) -> Vec<(&'static str, String)> {
    const Q: &KeyRef = key_ref("q");
    const CAPACITY: &KeyRef = key_ref("tollgate-capacity");
    const R: &KeyRef = key_ref("r");
    const T: &KeyRef = key_ref("t");
    let (mut policy, mut current) = (ListSerializer::new(), ListSerializer::new());
    for name in limits.iter().filter_map(|limit| StringRef::from_str(limit.full_name()).ok()) {
        _ = policy.bare_item(name).parameter(Q, integer(0)).parameter(CAPACITY, integer(0));
        let item = current.bare_item(name).parameter(R, integer(0));
        if let Some(seconds) = retry_after_s {
            _ = item.parameter(T, integer(seconds));
        }
    }
    let (policy, current) = (policy.finish().unwrap_or_default(), current.finish().unwrap_or_default());
    vec![("ratelimit-policy", policy), ("ratelimit", current)]
}

/// The quota and its window in seconds; `None` for a limit that never refills. A calendar's windows differ in length, so theirs is the longest.
fn quota_and_window_s(config: &Config) -> Option<(u64, u64)> {
    let Config { kind, rate, period_ms, capacity, .. } = *config;
    let per_period = match kind {
        Kind::TokenBucket | Kind::RollingWindow => rate,
        Kind::FixedWindow | Kind::FirstUseWindow => rate.min(capacity), // an opening window adds no more than fits
    };
    if rate == 0 {
        return None;
    }
    // `w` is in whole seconds: the period, rounded up.
    let window_s = period_ms.div_ceil(1_000).max(1);
    let quota = u128::from(per_period).saturating_mul(u128::from(window_s)).saturating_mul(1_000);
    let quota = quota.checked_div(u128::from(period_ms)).unwrap_or(0);
    Some((u64::try_from(quota).unwrap_or(u64::MAX), window_s))
}

/// When more than the remaining tokens become available: the moment of the next token for a caller that takes them all now. `None` if
/// never, or of a rolling window.
fn next_token_at(&(limit, _, answer): &Answered<'_>, now: i64) -> Option<i64> {
    let limit = limit.limit();
    if limit.is_rolling() {
        return None; // only its object knows the moments
    }
    let mut state = limit.restored(&answer.snapshot)?;
    let left = limit.remaining(&state, now);
    _ = limit.consume(&mut state, now, left);
    let next = match limit.peek(&state, now, 1) {
        Decision::Wait { retry_at } => Some(retry_at),
        Decision::Allow { .. } | Decision::Never { .. } => None,
    };
    match answer.decision {
        // Tokens held for a batch may be released before any refill.
        Decision::Wait { retry_at } => Some(next.map_or(retry_at, |next| next.min(retry_at))),
        Decision::Allow { .. } | Decision::Never { .. } => next,
    }
}

/// Structured fields hold integers of 15 digits; larger ones saturate.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{State, Verb};
    use crate::policy::Policies;
    use crate::protocol::LimitAnswer;

    #[test]
    fn the_policy_field_has_whole_seconds_and_no_window_where_nothing_refills() {
        for (fields, expected) in [
            (r#""rate":100,"period":"1m""#, r#""p";q=100;w=60;tollgate-capacity=100"#),
            (r#""rate":100,"period":"1m","capacity":7"#, r#""p";q=100;w=60;tollgate-capacity=7"#),
            (r#""rate":1,"period":"100ms""#, r#""p";q=10;w=1;tollgate-capacity=1"#),
            (r#""rate":3,"period":"1500ms""#, r#""p";q=4;w=2;tollgate-capacity=3"#),
            (r#""rate":0,"period":"1s""#, r#""p";q=0;tollgate-capacity=0"#),
            (r#""rate":0,"period":"1s","capacity":50"#, r#""p";q=50;tollgate-capacity=50"#),
            (r#""kind":"fixed_window","rate":0,"period":"1day","capacity":50"#, r#""p";q=50;tollgate-capacity=50"#),
            (
                r#""kind":"fixed_window","rate":9,"period":"1day","capacity":20"#,
                r#""p";q=9;w=86400;tollgate-capacity=20"#,
            ),
            (
                r#""kind":"fixed_window","rate":9,"period":"1day","capacity":5"#,
                r#""p";q=5;w=86400;tollgate-capacity=5"#,
            ),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{{{fields}}}}}"#)).unwrap();
            assert_eq!(policy_field(policies.get("p").unwrap().limits()), expected);
        }
    }

    /// The answers of all limits to `verb` and `cost` at `now`, which changes their `states`.
    fn answers<'a>(
        limits: &'a [NamedLimit],
        states: &mut [State],
        now: i64,
        cost: u64,
        verb: Verb,
    ) -> Vec<Answered<'a>> {
        let each = limits.iter().zip(states).map(|(named, state)| {
            let limit = named.limit();
            let (decision, next) = limit.decide(*state, now, cost, verb);
            *state = next;
            let (remaining, owed) = (limit.remaining(state, now), limit.owed(state, now));
            let (reset_at, snapshot) = (limit.full_at(state, now), limit.snapshot(state));
            (named, cost, LimitAnswer { decision, remaining, owed, reset_at, snapshot, ban: None })
        });
        each.collect()
    }

    fn after(fields: &str, steps: &[(i64, u64, Verb)], retry_after_s: Option<u64>) -> String {
        let policies = Policies::parse(&format!(r#"{{"p":{{{fields}}}}}"#)).unwrap();
        let limits = policies.get("p").unwrap().limits();
        let mut states: Vec<_> = limits.iter().map(|limit| limit.limit().new_state(0, 0)).collect();
        let mut field = String::new();
        for &(now, cost, verb) in steps {
            field = limit_field(&answers(limits, &mut states, now, cost, verb), now, retry_after_s);
        }
        field
    }

    #[test]
    fn t_is_when_more_than_r_is_available() {
        let ten = r#""rate":10,"period":"10s""#;
        let slow = r#""rate":1,"period":"1m","capacity":5"#;
        let window = r#""kind":"fixed_window","rate":10,"period":"1m","offset":"0s""#;
        let budget = r#""rate":0,"period":"1s","capacity":5"#;
        let debtor = r#""rate":1,"period":"1m","capacity":5,"max_debt":10"#;
        let reserve = Verb::Reserve { max_wait_ms: None };
        for (fields, steps, expected) in [
            // Full: a caller that takes all of it gets the next token a second later, or a minute.
            (ten, &[(0, 0, Verb::Consume)][..], r#""p";r=10;t=1"#),
            (slow, &[(0, 0, Verb::Consume)], r#""p";r=5;t=60"#),
            // The last token: when the next comes, not when the bucket is full.
            (ten, &[(0, 10, Verb::Consume)], r#""p";r=0;t=1"#),
            (slow, &[(0, 5, Verb::Consume)], r#""p";r=0;t=60"#),
            (slow, &[(0, 5, Verb::Consume), (59_001, 0, Verb::Consume)], r#""p";r=0;t=1"#),
            (slow, &[(0, 5, Verb::Consume), (58_999, 0, Verb::Consume)], r#""p";r=0;t=2"#),
            // Part of the next token has already been refilled.
            (slow, &[(0, 3, Verb::Consume), (45_000, 0, Verb::Consume)], r#""p";r=2;t=15"#),
            // Refused: the next token, though this cost has to wait for more.
            (slow, &[(0, 4, Verb::Consume), (0, 3, Verb::Consume)], r#""p";r=1;t=60"#),
            // A window: when the next one opens.
            (window, &[(15_000, 4, Verb::Consume)], r#""p";r=6;t=45"#),
            (window, &[(15_000, 10, Verb::Consume)], r#""p";r=0;t=45"#),
            // A budget that never refills: no window, whether or not anything is left.
            (budget, &[(0, 2, Verb::Consume)], r#""p";r=3"#),
            (budget, &[(0, 5, Verb::Consume)], r#""p";r=0"#),
            (budget, &[(0, 5, Verb::Consume), (0, 1, Verb::Consume)], r#""p";r=0"#),
            // In debt: when it is paid and a token is available.
            (debtor, &[(0, 7, reserve)], r#""p";r=0;t=180"#),
            (debtor, &[(0, 99, Verb::Charge)], r#""p";r=0;t=660"#),
            // No tokens at any time, only reservations.
            (r#""rate":1,"period":"1s","capacity":0,"max_debt":5"#, &[(0, 2, reserve)], r#""p";r=0"#),
        ] {
            assert_eq!(after(fields, steps, None), expected, "{fields} {steps:?}");
        }
    }

    #[test]
    fn retry_after_does_not_end_before_any_t() {
        let two = r#""limits":[{"name":"fast","rate":1,"period":"1s"},{"name":"slow","rate":5,"period":"5m"}]"#;
        let steps = &[(0, 1, Verb::Consume), (0, 1, Verb::Consume)];
        assert_eq!(after(two, steps, None), r#""p/fast";r=0;t=1, "p/slow";r=3;t=60"#);
        assert_eq!(after(two, steps, Some(1)), r#""p/fast";r=0;t=1, "p/slow";r=3;t=1"#);
    }

    #[test]
    fn held_tokens_may_be_released_before_any_refill() {
        let policies = Policies::parse(r#"{"p":{"rate":0,"period":"1s","capacity":5}}"#).unwrap();
        let [named] = policies.get("p").unwrap().limits() else { panic!("one limit") };
        let limit = named.limit();
        let empty = limit.lowered(&limit.new_state(0, 0), 5);
        let decision = Decision::Wait { retry_at: 9_500 };
        let answer = LimitAnswer {
            decision,
            remaining: 0,
            owed: 0,
            reset_at: None,
            snapshot: limit.snapshot(&empty),
            ban: None,
        };
        assert_eq!(limit_field(&[(named, 1, answer)], 0, Some(10)), r#""p";r=0;t=10"#);
    }
}
