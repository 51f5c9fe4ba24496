//! Prometheus's text format, version 0.0.4, which Prometheus, Grafana's agents and OpenTelemetry's collectors read.

use std::fmt::{Display, Write};

use super::counts::Counts;
use super::words::{CallOutcome, NoticeOutcome, Outcome, PollOutcome, Repeat, RowAccess, Word};
use crate::policy::Cause;

/// The `Content-Type` of the format.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The counts as text, counted since `began_at`. Policies are included only if `may_name` accepts them. `isolates` is the number of
/// isolates that have counted; `None` if it is only the one that answers.
#[must_use]
pub fn exposition(counts: &Counts, began_at: i64, isolates: Option<usize>, may_name: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let policies: Vec<_> = counts.policies.iter().filter(|(policy, _)| may_name(policy)).collect();
    let by_outcome = policies.iter().flat_map(|(policy, counts)| {
        let all = Outcome::ALL.iter().zip(&counts.decisions);
        all.map(|(outcome, count)| (vec![("policy", policy.as_str()), ("outcome", outcome.word())], *count))
    });
    let decisions = "Requests to take tokens (consume, reserve, extend with a cost, batch), by policy and by outcome.";
    family(&mut text, "tollgate_decisions_total", decisions, by_outcome);

    let by_policy = policies.iter().map(|(policy, counts)| (vec![("policy", policy.as_str())], counts.shadow_refusals));
    let shadow = "Requests to take tokens that a limit in shadow would have refused.";
    family(&mut text, "tollgate_shadow_refusals_total", shadow, by_policy);

    let by_policy = policies.iter().map(|(policy, counts)| (vec![("policy", policy.as_str())], counts.cached_refusals));
    let cached = "Requests to take tokens that an isolate refused by an earlier refusal, without a call.";
    family(&mut text, "tollgate_cached_refusals_total", cached, by_policy);

    let by_policy =
        policies.iter().map(|(policy, counts)| (vec![("policy", policy.as_str())], counts.leased_decisions));
    let leased = "Requests to take tokens that an isolate decided from a lease, without a call.";
    family(&mut text, "tollgate_leased_decisions_total", leased, by_policy);

    let failures = [("degraded", &counts.degraded), ("unavailable", &counts.unavailable)];
    let by_cause = failures.into_iter().flat_map(|(answer, counts)| {
        let all = Cause::ALL.into_iter().zip(counts);
        all.map(move |(cause, count)| (vec![("answer", answer), ("cause", cause.word())], *count))
    });
    let help = "Requests without a decision, let pass (degraded) or answered 503 (unavailable), by cause.";
    family(&mut text, "tollgate_undecided_requests_total", help, by_cause);

    calls(&mut text, counts);
    for (access, rows) in RowAccess::ALL.iter().zip(counts.rows) {
        let (name, help) = match access {
            RowAccess::Read => ("tollgate_object_rows_read_total", "Rows that the objects of keys have read."),
            RowAccess::Written => (
                "tollgate_object_rows_written_total",
                "Rows that the objects of keys have written or deleted, and alarms that they have set. \
                 What an object does after its last answer, and the registry, is not counted.",
            ),
        };
        family(&mut text, name, help, [(Vec::new(), rows)].into_iter());
    }

    let help = "Calls and requests that were made again, by reason.";
    family(&mut text, "tollgate_repeats_total", help, by_word::<Repeat>("reason", &counts.repeats));
    let help = "Requests of isolates to the registry of policies, by outcome.";
    family(&mut text, "tollgate_registry_polls_total", help, by_word::<PollOutcome>("outcome", &counts.polls));
    let help = "Notices to the webhook and to the queue, by outcome.";
    family(&mut text, "tollgate_notices_total", help, by_word::<NoticeOutcome>("outcome", &counts.notices));

    match isolates {
        Some(isolates) => {
            head(&mut text, "tollgate_reporting_isolates", "gauge", "Isolates that have reported in the last minute.");
            sample(&mut text, "tollgate_reporting_isolates", &[], &isolates);
        }
        None => text.insert_str(0, "# There is no registry of policies: these are the counts of a single isolate.\n"),
    }
    let name = "tollgate_metrics_start_time_seconds";
    head(&mut text, name, "gauge", "Unix time since which these counters have counted.");
    sample(&mut text, name, &[], &Seconds(u64::try_from(began_at).unwrap_or(0)));
    text
}

fn calls(text: &mut String, counts: &Counts) {
    let name = "tollgate_object_call_duration_seconds";
    head(text, name, "histogram", "Calls to the objects of keys, as isolates see them, by outcome.");
    let (bucket, sum, count) = (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
    for (outcome, histogram) in CallOutcome::ALL.iter().zip(&counts.calls) {
        let outcome = ("outcome", outcome.word());
        for (bound_ms, count) in histogram.cumulative() {
            let le = bound_ms.map_or_else(|| "+Inf".to_owned(), |ms| Seconds(ms).to_string());
            sample(text, &bucket, &[outcome, ("le", &le)], &count);
        }
        sample(text, &sum, &[outcome], &Seconds(histogram.sum_ms()));
        sample(text, &count, &[outcome], &histogram.count());
    }
}

/// The label of each word, and its count.
fn by_word<'a, W: Word>(
    label: &'static str,
    counts: &'a [u64],
) -> impl Iterator<Item = (Vec<(&'static str, &'a str)>, u64)> {
    W::ALL.iter().zip(counts).map(move |(word, count)| (vec![(label, word.word())], *count))
}

/// A counter: its samples have labels and a value.
fn family<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Vec<(&'static str, &'a str)>, u64)>,
) {
    head(text, name, "counter", help);
    for (labels, value) in samples {
        sample(text, name, &labels, &value);
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    write(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
}

fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: &dyn Display) {
    text.push_str(name);
    for (index, (label, value)) in labels.iter().enumerate() {
        write(text, format_args!("{}{label}=\"", if index == 0 { '{' } else { ',' }));
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                _ => text.push(c),
            }
        }
        text.push('"');
    }
    write(text, format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
}

fn write(text: &mut String, part: std::fmt::Arguments<'_>) {
    _ = text.write_fmt(part); // writing to a String cannot fail
}

/// Milliseconds, displayed exactly in seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_exact_in_seconds() {
        for (ms, text) in [(0, "0"), (1, "0.001"), (20, "0.02"), (2_500, "2.5"), (5_000, "5"), (12_345, "12.345")] {
            assert_eq!(Seconds(ms).to_string(), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        sample(&mut text, "x", &[("a", "1\\2\"3\n4"), ("b", "")], &5);
        assert_eq!(text, "x{a=\"1\\\\2\\\"3\\n4\",b=\"\"} 5\n");
    }

    #[test]
    fn a_token_for_some_policies_sees_no_others() {
        let mut counts = Counts::default();
        counts.decided("api", Outcome::Allowed, false);
        counts.decided("llm", Outcome::Never, true);
        let text = exposition(&counts, 1_500, None, |policy| policy == "llm");
        assert!(text.contains("tollgate_decisions_total{policy=\"llm\",outcome=\"never\"} 1\n"), "{text}");
        assert!(text.contains("tollgate_shadow_refusals_total{policy=\"llm\"} 1\n") && !text.contains("api"), "{text}");
        assert!(text.ends_with("\ntollgate_metrics_start_time_seconds 1.5\n"), "{text}");
    }
}
