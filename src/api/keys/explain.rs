//! `POST /v1/keys/explain`: the answer that a request for tokens would get, with the reasons in words.
//!
//! The object gets the same request as for a peek, so the words agree with its decision.

use serde::Serialize;

use super::super::reply::Reply;
use super::super::resolved::{Answered, ResolvedItem, ban_in};
use super::super::text::timestamp;
use super::super::verdict::{Verdict, until_ms};
use crate::length;
use crate::limit::{Config, Decision, Kind};
use crate::policy::shown_period;

/// The verdict with its reasons. `answers` are of the enforced limits, `tried` of the limits in shadow.
pub(in super::super) fn explanation(
    item: &ResolvedItem,
    answers: &[Answered<'_>],
    tried: &[Answered<'_>],
    verdict: &Verdict<'_>,
) -> Reply {
    #[derive(Serialize)]
    struct Body<'a, V> {
        explanation: String,
        #[serde(flatten)]
        verdict: &'a V,
    }
    let now = verdict.now;
    let shards = item.policy.shards().len().max(1);
    let ban = ban_in(answers).filter(|_| verdict.banned);
    let mut explanation = match ban {
        Some(ban) => {
            let until = ban.until.map_or_else(|| "for good".to_owned(), |until| format!("until {}", moment(until)));
            format!("Refused: this key is blocked from the policy {} {until}.", verdict.policy)
        }
        None if verdict.unlimited => {
            format!("Allowed: this key has no limits under the policy {}; what it takes is counted.", verdict.policy)
        }
        None => match answers.iter().find(|(limit, ..)| limit.full_name() == verdict.full_name) {
            None => format!("Allowed: the policy {} enforces no limit.", verdict.policy),
            Some(decisive) if verdict.allowed => format!("Allowed: {}.", sentence(decisive, shards, now)),
            Some(decisive) => format!("Refused: {}.", sentence(decisive, shards, now)),
        },
    };
    for limit in tried {
        let would = if limit.2.decision.is_allow() { "allow" } else { "refuse" };
        explanation = format!("{explanation} In shadow, one more limit would {would} it: {}.", sentence(limit, 1, now));
    }
    Reply::json(200, "application/json", &Body { explanation, verdict })
}

/// The limit, its state, and the consequence. With shards, what is left is their sum, but one of them must have enough.
fn sentence(&(limit, cost, answer): &Answered<'_>, shards: usize, now: i64) -> String {
    let config = limit.limit().config();
    let in_shards = if shards > 1 { format!(" in {shards} shards") } else { String::new() };
    let standing = if limit.is_slots() {
        let used = config.capacity.saturating_sub(answer.remaining).saturating_add(answer.owed);
        format!("{} are in use", grouped(used))
    } else if answer.owed > 0 && config.is_soft {
        format!("it is exceeded by {}", grouped(answer.owed))
    } else if answer.owed > 0 {
        format!("{} are owed", grouped(answer.owed))
    } else {
        format!("{} are left", grouped(answer.remaining))
    };
    let missing = cost.saturating_add(answer.owed).saturating_sub(answer.remaining);
    let then = match answer.decision {
        Decision::Allow { .. } => String::new(),
        Decision::Wait { retry_at } => {
            let when = format!("by {}, in {}", moment(retry_at), length::shown(until_ms(now, retry_at)));
            if shards > 1 {
                format!("; the first shard to have enough has it {when}")
            } else if limit.is_slots() {
                format!("; enough are free {when}, if no reservation is extended")
            } else if missing > 0 {
                format!("; the {} that are missing are back {when}", grouped(missing))
            } else {
                format!("; it will pass {when}")
            }
        }
        Decision::Never { max } if shards > 1 => {
            format!("; that can never pass, for no shard can have more than {}", grouped(max))
        }
        Decision::Never { max } if config.rate == 0 && !limit.is_slots() => {
            format!("; nothing comes back, so that no more than {} can pass", grouped(max))
        }
        Decision::Never { max } => format!("; that can never pass, for no more than {} can", grouped(max)),
    };
    let (soft, and_so) = if config.is_soft { ("soft ", " and refuses nothing") } else { ("", "") };
    format!(
        "the {soft}limit {} allows {}{and_so}; {standing}{in_shards}, and {} were asked for{then}",
        limit.full_name(),
        if limit.is_slots() { format!("{} at once", grouped(config.capacity)) } else { rule(config) },
        grouped(cost)
    )
}

/// `100 000 per day, at most 2 000 at once`.
fn rule(config: &Config) -> String {
    let Config { kind, rate, period_ms, capacity, calendar, .. } = *config;
    let capacity_text = grouped(capacity);
    if rate == 0 {
        return format!("{capacity_text} once");
    }
    let per = match calendar {
        Some(_) => format!("in each {}", shown_period(config)),
        None => per(kind, period_ms),
    };
    let rate_text = format!("{} {per}", grouped(rate));
    if rate == capacity { rate_text } else { format!("{rate_text}, at most {capacity_text} at once") }
}

fn per(kind: Kind, period_ms: u64) -> String {
    let period = match period_ms {
        1_000 => "second".to_owned(),
        60_000 => "minute".to_owned(),
        3_600_000 => "hour".to_owned(),
        86_400_000 => "day".to_owned(),
        other => length::shown(other),
    };
    match kind {
        Kind::TokenBucket => format!("per {period}"),
        Kind::RollingWindow => format!("in any {period}"),
        Kind::FixedWindow => format!("in each window of a {period}").replace("a hour", "an hour"),
        Kind::FirstUseWindow => {
            format!("in each window of a {period} that opens when a full bucket is used").replace("a hour", "an hour")
        }
    }
}

/// `2026-11-22 14:05:03.123 UTC`; beyond the year 9999, Unix milliseconds.
fn moment(at: i64) -> String {
    match timestamp(at) {
        Some(text) => text.replace('T', " ").replace('Z', " UTC").replace(".000 ", " "),
        None => format!("{at} ms after 1970"),
    }
}

/// `100 000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len().saturating_mul(2));
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && digits.len().saturating_sub(index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::super::super::endpoint::Endpoint;
    use super::super::super::request::Request;
    use super::super::super::resolved::ResolvedRequest;
    use super::*;
    use crate::access::Caller;
    use crate::limit::Verb;
    use crate::policy::{NamedLimit, Policies};
    use crate::protocol::{Decided, LimitAnswer, ObjectReply};

    const NOW: i64 = 1_795_356_000_000; // 2026-11-22 14:00 UTC

    /// The explanation after `taken` tokens of each limit were taken at `NOW`.
    fn explain(policy: &str, taken: (u64, Verb), cost: &str) -> (u16, String, bool) {
        let policies = Policies::parse(&format!(r#"{{"p":{policy}}}"#)).unwrap();
        let body = format!(r#"{{"policy":"p","key":"alice","cost":{cost}}}"#);
        let request = Request::parse(Endpoint::Explain, body.as_bytes()).unwrap();
        let asked = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, NOW).unwrap();
        let item = &asked.items()[0];
        let answer = |limit: &NamedLimit, cost: u64| {
            let limit = limit.limit();
            let mut state = limit.new_state(NOW, 0);
            state = limit.decide(state, NOW, taken.0, taken.1).1;
            LimitAnswer {
                decision: limit.peek(&state, NOW, cost),
                remaining: limit.remaining(&state, NOW),
                owed: limit.owed(&state, NOW),
                reset_at: limit.full_at(&state, NOW),
                snapshot: limit.snapshot(&state),
                ban: None,
            }
        };
        let of = |limits: &[NamedLimit], costs: &[u64]| -> Vec<LimitAnswer> {
            limits.iter().zip(costs).map(|(limit, &cost)| answer(limit, cost)).collect()
        };
        let costs = item.costs.as_ref().unwrap();
        let limits = of(item.policy.limits(), &costs.enforced);
        let shadow = of(item.policy.shadow_limits(), &costs.shadow).into_iter().map(Some).collect();
        let decided = Decided { shadow, ..Decided::new(NOW, limits) };
        let reply = asked.reply(&ObjectReply::Decided(decided)).unwrap();
        let (body, status) = (reply.body(), reply.status);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        (status, body["explanation"].as_str().unwrap().to_owned(), body["allowed"] == true)
    }

    #[test]
    fn a_sentence_has_the_rule_the_numbers_and_the_moment() {
        let day = r#"{"rate":100000,"period":"1day"}"#;
        let minute = r#"{"rate":100,"period":"1m","capacity":200,"max_debt":50}"#;
        let window = r#"{"kind":"fixed_window","rate":1000,"period":"1h","offset":"0s"}"#;
        let once = r#"{"rate":0,"period":"1s","capacity":50}"#;
        let take = |tokens| (tokens, Verb::Consume);
        for (policy, taken, cost, expected) in [
            (
                day,
                take(99_800),
                "500",
                "Refused: the limit p allows 100 000 per day; 200 are left, and 500 were asked for; \
                 the 300 that are missing are back by 2026-11-22 14:04:19.200 UTC, in 4m 19s 200ms.",
            ),
            (day, take(0), "3", "Allowed: the limit p allows 100 000 per day; 100 000 are left, and 3 were asked for."),
            (
                minute,
                (230, Verb::Charge),
                "1",
                "Refused: the limit p allows 100 per minute, at most 200 at once; 30 are owed, and 1 were asked for; the \
                 31 that are missing are back by 2026-11-22 14:00:18.600 UTC, in 18s 600ms.",
            ),
            (
                minute,
                take(0),
                "201",
                "Refused: the limit p allows 100 per minute, at most 200 at once; 200 are left, and 201 \
                 were asked for; that can never pass, for no more than 200 can.",
            ),
            (
                window,
                take(1_000),
                "1",
                "Refused: the limit p allows 1 000 in each window of an hour; 0 are left, and 1 were \
                 asked for; the 1 that are missing are back by 2026-11-22 15:00:00 UTC, in 1h.",
            ),
            (
                once,
                take(48),
                "3",
                "Refused: the limit p allows 50 once; 2 are left, and 3 were asked for; nothing comes \
                 back, so that no more than 2 can pass.",
            ),
        ] {
            let (status, sentence, is_allowed) = explain(policy, taken, cost);
            assert_eq!((status, &*sentence), (200, expected));
            assert_eq!(is_allowed, sentence.starts_with("Allowed"));
        }
    }

    #[test]
    fn the_limit_that_decides_is_named_and_those_in_shadow_too() {
        let two = r#"{"limits":[
            {"name":"requests","rate":60,"period":"1m"},{"name":"tokens","rate":10,"period":"1s"},
            {"name":"new","mode":"shadow","rate":1,"period":"1s","capacity":5}]}"#;
        let (_, sentence, is_allowed) = explain(two, (8, Verb::Consume), r#"{"requests":1,"tokens":4,"new":2}"#);
        assert!(!is_allowed);
        assert!(sentence.starts_with("Refused: the limit p/tokens allows 10 per second; 2 are left"), "{sentence}");
        assert!(sentence.contains(" In shadow, one more limit would allow it: the limit p/new allows"), "{sentence}");
        let shadow = r#"{"rate":1,"period":"1s","mode":"shadow"}"#;
        let (_, sentence, is_allowed) = explain(shadow, (1, Verb::Consume), "1");
        assert!(is_allowed && sentence.starts_with("Allowed: the policy p enforces no limit."), "{sentence}");
        assert!(sentence.contains("would refuse it"), "{sentence}");
    }

    /// Together they have more than the cost.
    #[test]
    fn shards_are_explained_by_their_sum_and_the_first_with_enough() {
        let policies = Policies::parse(r#"{"p":{"rate":80,"period":"80s","capacity":42,"shards":8}}"#).unwrap();
        let explained = |cost: u64, decision| {
            let body = format!(r#"{{"policy":"p","key":"alice","cost":{cost}}}"#);
            let request = Request::parse(Endpoint::Explain, body.as_bytes()).unwrap();
            let asked = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, NOW).unwrap();
            let limit = asked.items()[0].policy.limits()[0].limit();
            let state = limit.decide(limit.new_state(NOW, 0), NOW, 30, Verb::Consume).1;
            let decided = Decided::new(NOW, vec![LimitAnswer::new(limit, decision, &state, NOW)]);
            let reply = asked.reply(&ObjectReply::Decided(decided)).unwrap();
            let body = reply.body();
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            body["explanation"].as_str().unwrap().to_owned()
        };
        let beginning = "the limit p allows 80 per 1m 20s, at most 42 at once; 12 are left in 8 shards, and";
        for (cost, decision, expected) in [
            (1, Decision::Allow { tokens: 1, ready_at: NOW }, format!("Allowed: {beginning} 1 were asked for.")),
            (
                4,
                Decision::Wait { retry_at: NOW + 16_000 },
                format!(
                    "Refused: {beginning} 4 were asked for; the first shard to have enough has it by 2026-11-22 14:00:16 UTC, in 16s."
                ),
            ),
            (
                7,
                Decision::Never { max: 6 },
                format!(
                    "Refused: {beginning} 7 were asked for; that can never pass, for no shard can have more than 6."
                ),
            ),
        ] {
            assert_eq!(explained(cost, decision), expected);
        }
    }

    #[test]
    fn moments_and_numbers_are_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!(moment(NOW), "2026-11-22 14:00:00 UTC");
        assert_eq!(moment(253_402_300_799_999), "9999-12-31 23:59:59.999 UTC");
        assert_eq!(moment(253_402_300_800_000), "253402300800000 ms after 1970");
        assert_eq!(moment(-1), "-1 ms after 1970");
    }
}
