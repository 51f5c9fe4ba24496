//! The effects of a policy change, in words.

use super::calendar::shown_period;
use super::named::{Policy, unnamed};
use super::named_limit::NamedLimit;
use crate::limit::{Carry, Config, Kind};

/// The changes when `after` replaces `before`, one line each. `None` is no policy. `deleted` is the last policy with that name, if there is
/// none now: its keys continue.
#[must_use]
pub fn describe_change(
    before: Option<&Policy>,
    after: Option<&Policy>,
    deleted: Option<&Policy>,
    carry: Carry,
) -> Vec<String> {
    let mut lines = Vec::new();
    match (before, after) {
        (None, None) => return lines,
        (None, Some(after)) => {
            lines.push(format!("new: {after}"));
            match deleted {
                None if carry == Carry::Reset => {
                    lines.push(format!("every key of {} starts with a new bucket", after.name()));
                }
                None => lines.push(format!("keys of {} without a bucket start with a new one", after.name())),
                Some(deleted) => {
                    lines.push(format!("it was deleted; before: {deleted}"));
                    limits(deleted, after, carry, &mut lines);
                    terms(deleted, after, &mut lines);
                }
            }
        }
        (Some(before), None) => {
            lines.push(format!("deleted: {before}"));
            lines.push(format!("requests that name {} are answered 404, unknown-policy", before.name()));
        }
        (Some(before), Some(after)) => {
            lines.push(format!("before: {before}"));
            lines.push(format!("after: {after}"));
            limits(before, after, carry, &mut lines);
            terms(before, after, &mut lines);
        }
    }
    let name = after.or(before).map(Policy::name).unwrap_or_default();
    lines.push(format!("for every key of {name}, at the latest ten seconds from then"));
    lines
}

fn limits(before: &Policy, after: &Policy, carry: Carry, lines: &mut Vec<String>) {
    let unnamed = unnamed(after.limits(), before);
    let is_named_now =
        |name: Option<&str>| name.is_some() && name == unnamed.as_deref() && before.find_limit(name).is_none();
    for name in names(after) {
        let shown = full_name(after, name);
        let (mut old, new) = (before.find_limit(name), after.find_limit(name));
        if is_named_now(name) {
            old = before.find_limit(None);
            lines.push(format!("{shown} is the limit that had no name"));
        }
        let (old, new) = match (old, new) {
            (None, Some((ENFORCED, new))) if carry != Carry::Reset && before.had_limit(new) => {
                lines.push(format!("{shown} was a limit before: a key goes on with what it had then"));
                continue;
            }
            (None, Some((mode, new))) => {
                let mode = if mode == ENFORCED && !new.limit().is_soft() {
                    String::new()
                } else {
                    format!(", {}", shown_mode(mode, new))
                };
                let start = if new.is_slots() {
                    at_once(new)
                } else {
                    format!("every key starts with {}", count(initial(new)))
                };
                lines.push(format!("{shown} is a new limit{mode}: {start}"));
                continue;
            }
            (Some((was, old)), Some((is, new))) => {
                if was != is {
                    lines.push(format!("{shown}: {} instead of {}", shown_mode(is, new), shown_mode(was, old)));
                    continue; // in a bucket of its own
                }
                (old, new)
            }
            (Some((was, old)), None) => {
                lines.push(format!("{shown}: off instead of {}; it is ignored", shown_mode(was, old)));
                continue;
            }
            (None, None) => continue,
        };
        changed_limit(&shown, old, new, carry, lines);
    }
    let is_gone = |name: Option<&str>| match name {
        None if unnamed.is_some() => false,
        _ => !names(after).contains(&name),
    };
    for name in names(before).into_iter().filter(|name| is_gone(*name)) {
        let shown = full_name(before, name);
        let is_slots = before.find_limit(name).is_some_and(|(_, limit)| limit.is_slots());
        let state =
            if is_slots { "its slots count again if it returns" } else { "its state is kept until it would be full" };
        lines.push(format!("{shown} is no longer a limit; {state}"));
    }
}

/// Describes how a limit changes that both versions of the policy have.
fn changed_limit(shown: &str, old: &NamedLimit, new: &NamedLimit, carry: Carry, lines: &mut Vec<String>) {
    let (is_other_kind, old_is_slots) = (old.kind() != new.kind(), old.is_slots());
    match (old.limit().is_soft(), new.limit().is_soft()) {
        (false, true) => lines.push(format!("{shown} no longer refuses")),
        (true, false) => {
            let is_kept = if is_other_kind { carry == Carry::Additive } else { carry != Carry::Reset };
            let owes = if is_kept { "; what is over is owed" } else { "" };
            lines.push(format!("{shown} refuses from then on{owes}"));
        }
        _ => {}
    }
    if old.is_slots() && new.is_slots() {
        if old.limit() != new.limit() {
            let was = old.limit().config().capacity;
            lines.push(format!("{shown}: {} instead of {was}; those in use count", at_once(new)));
        }
        return;
    }
    if new.is_slots() {
        lines.push(format!("{shown} now limits slots: {}", at_once(new)));
        return;
    }
    if new.limit().is_rolling() && !is_other_kind && old.grains() != new.grains() {
        lines.push(format!("{shown}: {} grains instead of {}", new.grains(), old.grains()));
    }
    let (old, new, start) = (old.limit().config(), new.limit().config(), initial(new));
    if old == new && !is_other_kind && carry != Carry::Reset {
        return;
    }
    if is_other_kind {
        let tokens = if carry == Carry::Additive && !old_is_slots {
            carried(old, new, carry)
        } else {
            format!("every key starts with {}", count(start))
        };
        lines.push(format!("{shown} is of another kind: {tokens}"));
        return;
    }
    if (old.rate, old.period_ms, old.calendar) != (new.rate, new.period_ms, new.calendar) {
        let paces = format!("{} instead of {}", pace(new), pace(old));
        let before = match new.kind {
            Kind::RollingWindow => "what was taken before the change is back a new period after it was taken",
            _ => "time before the change counts at the old rate",
        };
        lines.push(format!("{shown}: {paces}; {before}"));
    }
    if !old.is_soft && !new.is_soft && old.max_debt != new.max_debt {
        let debts = format!("{} instead of {}", count(new.max_debt), count(old.max_debt));
        lines.push(format!("{shown}: a debt of at most {debts}"));
    }
    lines.push(format!("{shown}: {}", carried(old, new, carry)));
}

impl Policy {
    /// The limit with that name, and its mode, unless it is off.
    fn find_limit(&self, name: Option<&str>) -> Option<(&'static str, &NamedLimit)> {
        let all = self.limits().iter().map(|limit| (ENFORCED, limit));
        let mut all = all.chain(self.shadow_limits().iter().map(|limit| (SHADOW, limit)));
        all.find(|(_, limit)| limit.name() == name)
    }
}

/// The names of a policy's limits, in all modes.
fn names(policy: &Policy) -> Vec<Option<&str>> {
    let all = policy.limits().iter().chain(policy.shadow_limits()).map(NamedLimit::name);
    all.chain(policy.off_limits().iter().map(Option::as_deref)).collect()
}

fn full_name(policy: &Policy, limit: Option<&str>) -> String {
    limit.map_or_else(|| policy.name().to_owned(), |limit| format!("{}/{limit}", policy.name()))
}

const ENFORCED: &str = "enforced";
const SHADOW: &str = "in shadow";

/// An enforced limit that never refuses is called soft.
fn shown_mode(mode: &'static str, limit: &NamedLimit) -> &'static str {
    if mode == ENFORCED && limit.limit().is_soft() { "soft" } else { mode }
}

fn at_once(slots: &NamedLimit) -> String {
    format!("{} at once", slots.limit().config().capacity)
}

/// What happens to a key's tokens.
fn carried(old: &Config, new: &Config, carry: Carry) -> String {
    match carry {
        Carry::Reset => format!("every key starts with {}", count(new.initial.unwrap_or(new.capacity))),
        _ if old.capacity == new.capacity => "every key keeps its tokens".to_owned(),
        Carry::AsIs if new.capacity < old.capacity => {
            format!("every key keeps its tokens, but at most {}", new.capacity)
        }
        Carry::AsIs => {
            format!("every key keeps its tokens; one that was full has {} of {}", old.capacity, new.capacity)
        }
        Carry::Proportional => {
            let half = |capacity: u64| capacity / 2;
            let (from, to) = (half(old.capacity), half(new.capacity));
            format!(
                "every key keeps its share of the capacity: {from} of {} become {to} of {}",
                old.capacity, new.capacity
            )
        }
        Carry::Additive => {
            let way = if new.capacity < old.capacity { "loses at most" } else { "gets" };
            format!("every key {way} {}: what is spent stays spent", count(old.capacity.abs_diff(new.capacity)))
        }
    }
}

/// Changes that do not affect tokens.
fn terms(before: &Policy, after: &Policy, lines: &mut Vec<String>) {
    after.object().describe_change(before.object(), lines);
    if before.declared_shards() != after.declared_shards() {
        lines.push(format!(
            "shards: {} instead of {}: one that stays keeps its tokens, but at most its part of the capacity; a new one begins empty",
            after.declared_shards(),
            before.declared_shards()
        ));
    }
    after.frontend().describe_change(before.frontend(), lines);
    after.registry().describe_change(*before.registry(), lines);
}

fn initial(limit: &NamedLimit) -> u64 {
    let Config { initial, capacity, .. } = *limit.limit().config();
    initial.unwrap_or(capacity)
}

fn pace(config: &Config) -> String {
    let period = shown_period(config);
    match config.kind {
        Kind::TokenBucket => format!("{} per {period}", config.rate),
        Kind::FixedWindow => format!("{} for each window of {period}", config.rate),
        Kind::FirstUseWindow => format!("{} for each window of {period} from first use", config.rate),
        Kind::RollingWindow => format!("{} in any {period}", config.rate),
    }
}

fn count(tokens: u64) -> String {
    if tokens == 1 { "1 token".to_owned() } else { format!("{tokens} tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(before: Option<&str>, after: Option<&str>, carry: Carry) -> Vec<String> {
        let parse = |json: &str| Policy::parse("api", json).unwrap();
        let (before, after) = (before.map(parse), after.map(parse));
        let lines = describe_change(before.as_ref(), after.as_ref(), None, carry);
        lines.into_iter().filter(|line| !line.starts_with("before: ") && !line.starts_with("after: ")).collect()
    }

    const WHOM: &str = "for every key of api, at the latest ten seconds from then";

    #[test]
    fn a_policy_that_is_new_or_deleted() {
        let one = Some(r#"{"rate":1,"period":"1s"}"#);
        let shown = "api: token bucket, 1 per 1s, at most 1 at once and 2 within any 1s";
        let created =
            [format!("new: {shown}"), "keys of api without a bucket start with a new one".to_owned(), WHOM.to_owned()];
        assert_eq!(words(None, one, Carry::AsIs), created);
        let gone = "requests that name api are answered 404, unknown-policy";
        assert_eq!(words(one, None, Carry::AsIs), [format!("deleted: {shown}"), gone.to_owned(), WHOM.to_owned()]);
    }

    #[test]
    fn keys_of_a_recreated_policy_keep_what_they_spent() {
        let parse = |json: &str| Policy::parse("api", json).unwrap();
        let (deleted, after) = (parse(r#""9/1h""#), parse(r#""12/1h""#));
        let lines = describe_change(None, Some(&after), Some(&deleted), Carry::Additive);
        let [new, was, pace, tokens, _] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(new.starts_with("new: api: ") && was.starts_with("it was deleted; before: api: "), "{lines:?}");
        assert!(pace.starts_with("api: 12 per 1h instead of 9 per 1h"), "{pace}");
        assert_eq!(tokens, "api: every key gets 3 tokens: what is spent stays spent");
    }

    #[test]
    fn a_limit_that_existed_before_is_not_new() {
        let parse = |json: &str| Policy::parse("api", json).unwrap();
        let [one, two] = [r#"{"name":"a","rate":"9/1h"}"#, r#"{"name":"b","rate":"9/1h"}"#];
        let both = parse(&format!(r#"{{"limits":[{one},{two}]}}"#));
        let before = parse(&format!(r#"{{"limits":[{one}]}}"#));
        let before = before.succeeding(&both.clone().in_force_since(5), 6, Carry::Additive);
        let lines = describe_change(Some(&before), Some(&both), None, Carry::Additive);
        assert_eq!(lines[2..], ["api/b was a limit before: a key goes on with what it had then", WHOM]);
    }

    #[test]
    fn slots_in_use_count_whatever_their_number_was() {
        let slots = |count: u64| format!(r#"{{"kind":"slots","capacity":{count}}}"#);
        let tokens = r#""9/1h""#.to_owned();
        for (before, after, expected) in [
            (slots(3), slots(5), "api: 5 at once instead of 3; those in use count"),
            (tokens.clone(), slots(5), "api now limits slots: 5 at once"),
            (slots(5), tokens, "api is of another kind: every key starts with 9 tokens"),
        ] {
            for carry in Carry::ALL {
                assert_eq!(words(Some(&before), Some(&after), carry), [expected, WHOM], "{carry:?}");
            }
        }
    }

    #[test]
    fn naming_a_limit_keeps_it_the_same() {
        let limit = |name: &str, rate: u32, rest: &str| format!(r#"{{"name":"{name}","rate":"{rate}/1h"{rest}}}"#);
        let list = |limits: &[String]| format!(r#"{{"limits":[{}]}}"#, limits.join(","));
        let named = "api/a is the limit that had no name";
        let shadow = limit("b", 5, r#","mode":"shadow""#);
        for (after, expected) in [
            (list(&[limit("a", 9, "")]), vec![named]),
            (
                list(&[limit("a", 9, ""), shadow]),
                vec![named, "api/b is a new limit, in shadow: every key starts with 5 tokens"],
            ),
            (
                list(&[limit("b", 5, ""), limit("a", 9, "")]),
                vec!["api/b is a new limit: every key starts with 5 tokens", named],
            ),
            (
                list(&[limit("a", 12, "")]),
                vec![
                    named,
                    "api/a: 12 per 1h instead of 9 per 1h; time before the change counts at the old rate",
                    "api/a: every key gets 3 tokens: what is spent stays spent",
                ],
            ),
        ] {
            let lines = words(Some("\"9/1h\""), Some(&after), Carry::Additive);
            assert_eq!(lines, [expected, vec![WHOM]].concat(), "{after}");
        }
    }

    #[test]
    fn a_change_of_numbers_says_what_happens_to_the_tokens() {
        let of = |capacity: u64| format!(r#"{{"rate":"100/1m","capacity":{capacity}}}"#);
        for (carry, from, to, expected) in [
            (Carry::AsIs, 200, 50, "api: every key keeps its tokens, but at most 50"),
            (Carry::AsIs, 50, 200, "api: every key keeps its tokens; one that was full has 50 of 200"),
            (
                Carry::Proportional,
                200,
                50,
                "api: every key keeps its share of the capacity: 100 of 200 become 25 of 50",
            ),
            (Carry::Additive, 200, 199, "api: every key loses at most 1 token: what is spent stays spent"),
            (Carry::Additive, 50, 200, "api: every key gets 150 tokens: what is spent stays spent"),
            (Carry::Reset, 200, 50, "api: every key starts with 50 tokens"),
            (Carry::Reset, 200, 200, "api: every key starts with 200 tokens"),
        ] {
            assert_eq!(words(Some(&of(from)), Some(&of(to)), carry), [expected, WHOM]);
        }
        assert_eq!(
            words(Some("\"100/1m\""), Some(r#"{"rate":"50/1m","capacity":100,"max_debt":5}"#), Carry::AsIs),
            [
                "api: 50 per 1m instead of 100 per 1m; time before the change counts at the old rate",
                "api: a debt of at most 5 tokens instead of 0 tokens",
                "api: every key keeps its tokens",
                WHOM,
            ]
        );
    }

    #[test]
    fn a_rolling_window_counts_what_was_taken_by_its_new_period() {
        let of = |period: &str, grains: u8| {
            format!(r#"{{"kind":"rolling_window","rate":100,"period":"{period}","grains":{grains}}}"#)
        };
        let before = "what was taken before the change is back a new period after it was taken";
        for (to, expected) in [
            (of("1m", 20), vec!["api: 20 grains instead of 60".to_owned(), WHOM.to_owned()]),
            (
                of("1h", 60),
                vec![
                    format!("api: 100 in any 1h instead of 100 in any 1m; {before}"),
                    "api: every key keeps its tokens".to_owned(),
                    WHOM.to_owned(),
                ],
            ),
        ] {
            assert_eq!(words(Some(&of("1m", 60)), Some(&to), Carry::Additive), expected, "{to}");
        }
    }

    #[test]
    fn a_new_mode_is_a_change_of_the_limit() {
        let limit = |name: &str, mode: &str| format!(r#"{{"name":"{name}","rate":"9/1h","mode":"{mode}"}}"#);
        let list = |limits: &[String]| format!(r#"{{"limits":[{}]}}"#, limits.join(","));
        let before = list(&[limit("a", "enforce"), limit("b", "shadow"), limit("c", "enforce"), limit("d", "off")]);
        let after = list(&[limit("a", "shadow"), limit("b", "enforce"), limit("c", "off"), limit("e", "shadow")]);
        assert_eq!(
            words(Some(&before), Some(&after), Carry::AsIs),
            [
                "api/b: enforced instead of in shadow",
                "api/a: in shadow instead of enforced",
                "api/e is a new limit, in shadow: every key starts with 9 tokens",
                "api/c: off instead of enforced; it is ignored",
                "api/d is no longer a limit; its state is kept until it would be full",
                WHOM,
            ]
        );
    }

    #[test]
    fn a_change_says_whether_a_limit_refuses() {
        let hard = r#"{"rate":"9/1h"}"#;
        let soft = r#"{"rate":"9/1h","mode":"soft"}"#;
        let soft_window = r#"{"rate":"9/1h","kind":"fixed_window","mode":"soft"}"#;
        let (refuses, not) = ("api refuses from then on", "api no longer refuses");
        let owed = "api refuses from then on; what is over is owed";
        for (before, after, carry, expected) in [
            (hard, soft, Carry::Additive, &[not, "api: every key keeps its tokens"][..]),
            (soft, hard, Carry::Additive, &[owed, "api: every key keeps its tokens"]),
            (soft, hard, Carry::Reset, &[refuses, "api: every key starts with 9 tokens"]),
            (soft_window, hard, Carry::Additive, &[owed, "api is of another kind: every key keeps its tokens"]),
            (soft_window, hard, Carry::AsIs, &[refuses, "api is of another kind: every key starts with 9 tokens"]),
            (soft, r#"{"rate":"9/1h","mode":"shadow"}"#, Carry::AsIs, &["api: in shadow instead of soft"]),
            (r#"{"rate":"9/1h","mode":"shadow"}"#, soft, Carry::AsIs, &["api: soft instead of in shadow"]),
            (soft, r#"{"rate":"9/1h","mode":"off"}"#, Carry::AsIs, &["api: off instead of soft; it is ignored"]),
        ] {
            let lines = words(Some(before), Some(after), carry);
            let own: Vec<_> = lines.iter().filter(|line| line.starts_with("api") && !line.contains("opens")).collect();
            assert_eq!(own, expected, "{before} to {after}");
        }
        let list = |limits: &str| format!(r#"{{"limits":[{{"name":"a","rate":"9/1h"}}{limits}]}}"#);
        let lines = words(Some(&list("")), Some(&list(r#",{"name":"b","rate":"5/1h","mode":"soft"}"#)), Carry::AsIs);
        assert_eq!(lines[0], "api/b is a new limit, soft: every key starts with 5 tokens");
    }

    #[test]
    fn limits_are_compared_by_their_names() {
        let limit = |name: &str, rest: &str| format!(r#"{{"name":"{name}","rate":"9/1h",{rest}"write_ahead":0}}"#);
        let list = |limits: &[String], rest: &str| format!(r#"{{"limits":[{}]{rest}}}"#, limits.join(","));
        let window = r#""kind":"fixed_window","#;
        let before = list(&[limit("a", ""), limit("b", ""), limit("c", "")], "");
        let after = list(
            &[limit("c", ""), limit("b", window), limit("d", r#""initial":1,"#)],
            r#","ipv6_prefix":56,"show_key_prefix":8,"key":[],"jitter":"1500ms","unsettled":"refund","idempotency_ttl":"2h","notify":["refused","80%"],"carry":"as_is","ban":{"after":1,"within":"1m","for":"2s"}"#,
        );
        assert_eq!(
            words(Some(&before), Some(&after), Carry::AsIs),
            [
                "api/b is of another kind: every key starts with 9 tokens",
                "api/d is a new limit: every key starts with 1 token",
                "api/a is no longer a limit; its state is kept until it would be full",
                "reservations that are opened from then on have the new terms",
                "notices: 80%, refused at most every 10m instead of none",
                "ban: 2s after 1 refusal within 1m, each further one 2 times as long, up to 1day instead of none",
                "idempotency_ttl: 2h instead of 1h, for answers that are given from then on",
                "ipv6_prefix: 56 bits instead of 64: every key that is an IPv6 address gets a new budget",
                "key: one new budget for all instead of one for each key; requests with a key are answered 400",
                "jitter: refusals are spread over 1s 500ms instead of 0s",
                "show_key_prefix: operators are shown 8 characters of a key instead of 0",
                "carry: as_is instead of the default, from this change on",
                WHOM,
            ]
        );
    }
}
