//! The lint: what a policy admits and costs at worst, and probable mistakes in it. As data, with codes that do not change, and in words.
//! The Worker's log, the command and the npm package all use it, so they agree.

mod facts;
mod findings;
mod openings;
mod words;
mod worst;

use serde::Serialize;

pub use facts::{Admitted, BanFacts, CrashCost, DebtFacts, LimitFacts, LongRun};
pub use findings::{Code, Finding, Level};

use super::named::Policy;

/// The lint of a policy. It displays as a summary line and, indented, a line for each limit's costs and one for each finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Lint {
    /// The name of the policy.
    pub policy: String,
    /// What it allows, in one line: the policy's `Display`.
    pub summary: String,
    /// For each limit not disabled: enforced ones in the order written, then those in shadow.
    pub limits: Vec<LimitFacts>,
    /// Maximum that all enforced limits together admit of requests with equal costs in each, for the period of each limit.
    pub together: Vec<Admitted>,
    /// What its bans mean, if it bans keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bans: Option<BanFacts>,
    /// Probable mistakes and surprises, if any.
    pub findings: Vec<Finding>,
}

impl Policy {
    /// Computes what the policy admits at worst, what a crash and a change may cost, and probable mistakes.
    ///
    /// All numbers are exact. What a limit admits at most is reached by callers who take all they can, and exceeded by none; refunds and
    /// resets are not counted. The maximum of all limits together is reached if all are token buckets with room for two tokens and for a
    /// millisecond's refill; otherwise it may not be. Moments are whole milliseconds, and a length of time includes both ends.
    ///
    /// ```
    /// use tollgate::policy::Policies;
    ///
    /// let policies = Policies::parse(r#"{"api":"100/1m burst 200","hourly":{"kind":"fixed_window","rate":"9/h"}}"#)?;
    /// let api = policies.get("api").unwrap().lint();
    /// assert_eq!(api.limits[0].within[0].tokens, 300);
    /// assert_eq!(api.limits[0].full_after_ms, Some(120_000));
    /// assert!(api.findings.is_empty());
    /// let hourly = policies.get("hourly").unwrap().lint();
    /// assert_eq!(hourly.findings[0].text, "18 can pass within 1ms, where two windows meet; a token bucket has no such edge");
    /// # Ok::<(), tollgate::policy::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn lint(&self) -> Lint {
        let limits = facts::of(self);
        Lint {
            policy: self.name().to_owned(),
            summary: self.to_string(),
            together: facts::together(&limits),
            bans: self.object().ban.map(BanFacts::of),
            findings: findings::of(self),
            limits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policies;

    fn lint(policy: &str) -> Lint {
        Policies::parse(&format!(r#"{{"p":{policy}}}"#)).unwrap().get("p").unwrap().lint()
    }

    #[test]
    fn bans_are_told_by_what_a_clumsy_user_and_an_attacker_meet() {
        for (ban, expected) in [
            (
                r#""after":5,"within":"10m","for":"1m""#,
                "bans: 4 refusals within any 10m are tolerated; one more bans a key for 1m, and each further ban is 2 times as long, up to 1day; \
                 a key that never stops is let in again 10 times in its first day",
            ),
            (
                r#""after":2,"within":"1day","for":"6h","grow":1"#,
                "bans: 1 refusal within any 1day is tolerated; one more bans a key for 6h; a key that never stops is let in again 3 times in its first day",
            ),
            (
                r#""after":1,"within":"1s","for":"5s","grow":10,"max":"50s""#,
                "bans: the first refusal bans a key for 5s, and each further ban is 10 times as long, up to 50s; \
                 a key that never stops is let in again 1728 times in its first day",
            ),
            (
                r#""after":9,"within":"1s","for":"365days""#,
                "bans: 8 refusals within any 1s are tolerated; one more bans a key for 365days; a key that never stops is let in again 0 times in its first day",
            ),
        ] {
            let bans = lint(&format!(r#"{{"rate":"1/s","ban":{{{ban}}}}}"#)).bans.unwrap();
            assert_eq!(bans.to_string(), expected, "{ban}");
        }
        assert_eq!(lint(r#""1/s""#).bans, None);
    }

    /// For each finding, a valid policy, then one that is wrong by one.
    #[test]
    fn a_finding_begins_where_it_says() {
        for (policy, codes) in [
            (r#""100/1m burst 200""#, ""),
            (r#"{"kind":"slots","capacity":1}"#, ""),
            (r#"{"kind":"slots","capacity":1000}"#, ""),
            (r#"{"kind":"slots","capacity":1001}"#, "many_slots"),
            (r#"{"kind":"slots","capacity":0}"#, "refuses_all"),
            // Nothing passes.
            (r#""1/s burst 1""#, ""),
            (r#""1/s burst 0""#, "refuses_all"),
            (r#"{"rate":"0/s","capacity":5,"initial":0}"#, "refuses_all"),
            (r#"{"rate":"1/s","capacity":0,"max_debt":1}"#, "only_debt"),
            (r#"{"rate":"0/s","capacity":0,"max_debt":1}"#, "only_debt never_refills debt_never_paid"),
            // Rows that are never deleted.
            (r#""0/s burst 5""#, "never_refills"),
            (r#"{"rate":"5/s","initial":4}"#, "kept_forever"),
            (r#"{"rate":"5/s","initial":5}"#, ""),
            // A capacity too small for the rate.
            (r#""3/s burst 1""#, ""), // 1 per 334ms
            (r#"{"rate":5,"period":"1ms","capacity":1}"#, "rate_not_reached"),
            (r#"{"rate":5,"period":"1ms","capacity":5}"#, ""),
            (r#"{"kind":"fixed_window","rate":100,"period":"1s","capacity":99}"#, "window_edge"),
            (r#"{"kind":"fixed_window","rate":100,"period":"1s","capacity":98}"#, "rate_not_reached window_edge"),
            // Debt.
            (r#"{"rate":"1/h","max_debt":24}"#, ""),
            (r#"{"rate":"1/h","max_debt":25}"#, "long_debt"),
            (r#"{"rate":"1/h","max_debt":25,"reservation_ttl":"25h"}"#, ""),
            (r#"{"kind":"fixed_window","rate":"9/week","max_debt":9}"#, "window_edge"),
            (r#"{"kind":"fixed_window","rate":"9/week","max_debt":10}"#, "window_edge long_debt"),
            (r#"{"rate":"0/h","capacity":5,"max_debt":1}"#, "never_refills debt_never_paid"),
            // Crashes.
            (r#"{"rate":"1/m","capacity":100,"write_ahead":25}"#, ""),
            (r#"{"rate":"1/m","capacity":100,"write_ahead":26}"#, "costly_crash"),
            (r#"{"rate":"10/s","capacity":100,"write_ahead":100}"#, ""),
            (r#"{"rate":"10/s","capacity":101,"write_ahead":101}"#, "costly_crash"),
            (r#"{"rate":"0/s","capacity":100,"write_ahead":26}"#, "never_refills costly_crash"),
            // Failures.
            (r#"{"rate":"1/s","on_error":"open"}"#, "fails_open"),
            (r#"{"rate":"1/s","on_error":["overloaded"]}"#, "fails_open flood_opens"),
            // Shards.
            (r#"{"rate":"16/s","shards":1,"refusal_cache":"0s"}"#, ""),
            (r#"{"rate":"16/s","shards":16}"#, "divided_capacity"),
            (r#"{"rate":"16/s","idempotency_ttl":"1h"}"#, ""),
            (r#"{"rate":"16/s","idempotency_ttl":"1h 1s"}"#, "many_idempotency_keys"),
            (r#"{"rate":"1024/day","capacity":9216,"idempotency_ttl":"7days"}"#, ""), // 16 384 in a week
            (r#"{"rate":"1024/day","capacity":9217,"idempotency_ttl":"7days"}"#, "many_idempotency_keys"),
            (r#"{"rate":"16/s","shards":2,"refusal_cache":"0s"}"#, "divided_capacity refused_by_each_shard"),
            // Modes.
            (r#"{"rate":"1/s","mode":"shadow","on_error":"open"}"#, "not_enforced"),
            (r#"{"rate":"1/s","mode":"off"}"#, "not_enforced"),
            (r#"{"kind":"slots","capacity":1001,"mode":"shadow"}"#, "many_slots not_enforced"),
            (
                r#"{"limits":[{"name":"a","rate":"1/s"},{"name":"b","rate":"60/m","mode":"shadow"},{"name":"c","rate":"0/s","mode":"off"}]}"#,
                "b:not_enforced c:not_enforced",
            ),
            (
                r#"{"limits":[{"name":"a","rate":"1/s"},{"name":"b","rate":"0/s burst 1","mode":"shadow"}]}"#,
                "b:never_refills b:not_enforced",
            ),
            // Limits that never decide.
            (r#"{"limits":[{"name":"a","rate":"10/s"},{"name":"b","rate":"599/m"}]}"#, ""),
            (r#"{"limits":[{"name":"a","rate":"10/s"},{"name":"b","rate":"600/m"}]}"#, "b:never_decides"),
            (r#"{"limits":[{"name":"b","rate":"600/m"},{"name":"a","rate":"10/s"}]}"#, "b:never_decides"),
            (r#"{"limits":[{"name":"a","rate":"10/s"},{"name":"b","rate":"10/s"}]}"#, "b:never_decides"),
            (r#"{"limits":[{"name":"a","rate":"10/s"},{"name":"b","rate":"600/m","initial":9}]}"#, "b:kept_forever"),
            (
                r#"{"limits":[{"name":"a","kind":"fixed_window","rate":"10/s"},{"name":"b","rate":"600/m burst 20"}]}"#,
                "a:window_edge b:never_decides",
            ),
            (
                r#"{"limits":[{"name":"a","kind":"fixed_window","rate":"10/s"},{"name":"b","rate":"600/m burst 19"}]}"#,
                "a:window_edge",
            ),
            (
                r#"{"limits":[{"name":"a","rate":"1/s"},{"name":"b","kind":"fixed_window","rate":"60/m"}]}"#,
                "b:window_edge b:never_decides",
            ),
            (
                r#"{"limits":[{"name":"a","rate":"1/s burst 2"},{"name":"b","kind":"fixed_window","rate":"60/m"}]}"#,
                "b:window_edge",
            ),
            // Windows that open together, now and then, and never.
            (
                r#"{"limits":[{"name":"a","kind":"fixed_window","rate":"9/h"},{"name":"b","kind":"fixed_window","rate":"99/day"}]}"#,
                "a:window_edge b:window_edge",
            ),
            (
                r#"{"limits":[{"name":"a","kind":"fixed_window","rate":"9/5h"},{"name":"b","kind":"fixed_window","rate":"19/day"}]}"#,
                "a:window_edge b:window_edge b:windows_not_aligned",
            ),
            (
                r#"{"limits":[{"name":"a","kind":"fixed_window","rate":"9/h","offset":"5m"},
                    {"name":"b","kind":"fixed_window","rate":"99/day","offset":"65m"}]}"#,
                "a:window_edge b:window_edge",
            ),
            (
                r#"{"limits":[{"name":"a","kind":"fixed_window","rate":"9/h","offset":"5m"},
                    {"name":"b","kind":"fixed_window","rate":"99/day","offset":"6m"}]}"#,
                "a:window_edge b:window_edge b:windows_not_aligned",
            ),
        ] {
            let shown = |finding: &Finding| {
                let limit = finding.limit.as_ref().map_or_else(String::new, |limit| format!("{limit}:"));
                format!("{limit}{}", finding.code)
            };
            let found: Vec<_> = lint(policy).findings.iter().map(shown).collect();
            assert_eq!(found.join(" "), codes, "{policy}");
        }
    }

    #[test]
    fn windows_say_when_they_open_together() {
        let text = |first: &str, second: &str| {
            let limit = |name, rest| format!(r#"{{"name":"{name}","kind":"fixed_window","rate":9,{rest}}}"#);
            let lint = lint(&format!(r#"{{"limits":[{},{}]}}"#, limit("a", first), limit("b", second)));
            lint.findings.iter().find(|finding| finding.code == Code::WindowsNotAligned).map(|found| found.text.clone())
        };
        for (first, second, expected) in [
            (r#""period":"1day""#, r#""period":"1h""#, None),
            (r#""period":"5h""#, r#""period":"1day""#, Some("together only every 5days")),
            (r#""period":"2h","offset":"0s""#, r#""period":"2h","offset":"1h""#, Some("never at the same moment")),
            (r#""period":"2h","offset":"0s""#, r#""period":"3h","offset":"1h""#, Some("together only every 6h")),
            (
                r#""period":"1h","offset":"0s""#,
                r#""period":"1h""#,
                Some(
                    "at moments that have nothing to do with each other: one has an offset, the other the phase of the key",
                ),
            ),
        ] {
            let expected = expected.map(|when| format!("its windows and those of p/a open {when}"));
            assert_eq!(text(first, second), expected, "{first} and {second}");
        }
    }

    #[test]
    fn describes_a_policy_in_words() {
        let api = lint(r#""100/1m burst 200""#);
        assert_eq!(
            api.to_string(),
            "p: token bucket, 100 per 1m, at most 200 at once and 300 within any 1m\n  \
             from empty to full in 2m; a crash costs a key at most 10, back after 6s; renaming it resets a key \
             to 200"
        );
        let llm = lint(
            r#"{"on_error":"open","limits":[{"name":"requests","rate":"60/m","max_debt":10,"write_ahead":0},
                {"name":"tokens","kind":"fixed_window","rate":"100000/day","max_debt":200000}]}"#,
        );
        assert_eq!(
            llm.to_string(),
            "p: requests token bucket, 60 per 1m, at most 60 at once and 120 within any 1m AND tokens fixed window, 100000 per \
             1day, at most 100000 at once and 200000 within any 1day; fails open on timeout, failed\n  \
             together, at the same cost in each: at most 120 within any 1m and 86460 within any 1day\n  \
             requests: from empty to full in 1m; with debt at most 70 at once, paid after 10s; a crash costs nothing; renaming it resets a \
             key to 60\n  \
             tokens: from empty to full in 1day; with debt at most 300000 at once, paid after 2days; a crash costs a key at most \
             5000, back after 1day; renaming it resets a key to 100000\n  \
             note: tokens: 200000 can pass within 1ms, where two windows meet; a token bucket has no such edge (window_edge)\n  \
             warning: tokens: a debt of 200000 takes 2days to be paid, and until then the key is refused (long_debt)\n  \
             note: when no decision can be made, requests pass uncounted: it fails open on timeout, failed (fails_open)"
        );
    }

    #[test]
    fn a_limit_in_shadow_says_so() {
        let lint = lint(r#"{"limits":[{"name":"a","rate":"1/s"},{"name":"b","rate":"60/m","mode":"shadow"}]}"#);
        assert_eq!(
            lint.to_string(),
            "p: a token bucket, 1 per 1s, at most 1 at once and 2 within any 1s; shadow: b token bucket, 60 per 1m, at most 60 at \
             once and 120 within any 1m\n  \
             a: from empty to full in 1s; a crash costs a key at most 1, back after 1s; renaming it resets a key \
             to 1\n  \
             b: in shadow, from empty to full in 1m; a crash costs a key at most 3, back after 3s; renaming it resets a \
             key to 60\n  \
             note: b: is in shadow: it says what it would refuse, and refuses nothing (not_enforced)"
        );
        assert_eq!(lint.together, []);
    }

    #[test]
    fn is_json() {
        let lint = lint(r#"{"rate":"0/s","capacity":5,"max_debt":1,"write_ahead":0}"#);
        assert_eq!(
            serde_json::to_string(&lint).unwrap(),
            r#"{"policy":"p","summary":"p: token bucket, 0 per 1s, at most 5 at once","limits":[{"is_enforced":true,"kind":"token_bucket","rate":0,"#.to_owned()
                + r#""period_ms":1000,"capacity":5,"long_run":{"tokens":0,"period_ms":1000},"burst":5,"within":[{"period_ms":1000,"#
                + r#""tokens":5}],"full_after_ms":null,"debt":{"max_debt":1,"burst":6,"within":[{"period_ms":1000,"tokens":6}],"#
                + r#""paid_after_ms":null},"crash":{"tokens":0,"back_after_ms":0},"change_grants":5}],"together":[],"findings":["#
                + r#"{"level":"note","code":"never_refills","text":"with a rate of 0 a spent budget never refills, and its row is "#
                + r#"never deleted"},{"level":"warning","code":"debt_never_paid","text":"with a rate of 0 a debt of up to 1 is never "#
                + r#"paid: the key is refused for good"}]}"#
        );
    }
}
