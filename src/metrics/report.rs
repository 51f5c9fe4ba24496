//! An isolate's report to the registry, sent with its polls: every few seconds at most, so it is JSON, and readers ignore unknown
//! fields and words.

use serde::Serialize;

use super::counts::{Counts, PolicyCounts, add};
use super::histogram::Histogram;
use super::refused_keys::RefusedKeys;
use super::words::{CallOutcome, RowAccess, Word};
use crate::json::{Fields, Json};
use crate::sorted::SortedMap;

/// An isolate's counts since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The isolate's random number.
    pub isolate: u64,
    /// The report's number: 1, 2, 3, ... A resent report keeps its number, so that it counts once.
    pub number: u64,
    /// When it started to count.
    pub since: i64,
    /// The counts.
    pub counts: Counts,
}

impl Report {
    /// The report as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let counts = &self.counts;
        let calls = CallOutcome::ALL.iter().zip(&counts.calls).filter(|(_, histogram)| histogram.count() > 0);
        let written = Written {
            isolate: format!("{:016x}", self.isolate),
            number: self.number,
            since: self.since,
            policies: counts.policies.iter().map(|(name, counts)| (name.as_str(), WrittenPolicy::of(counts))).collect(),
            refused: counts.refused.iter().map(|(name, keys)| (name.as_str(), WrittenKeys::of(keys))).collect(),
            degraded: words::<crate::policy::Cause>(&counts.degraded),
            unavailable: words::<crate::policy::Cause>(&counts.unavailable),
            calls: calls.map(|(outcome, histogram)| (outcome.word(), WrittenHistogram::of(histogram))).collect(),
            rows: words::<RowAccess>(&counts.rows),
            repeats: words::<super::Repeat>(&counts.repeats),
            polls: words::<super::PollOutcome>(&counts.polls),
            notices: words::<super::NoticeOutcome>(&counts.notices),
        };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }

    /// Parses a report; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let fields = fields(Json::parse(text).ok()?)?;
        let mut counts = Counts::default();
        for (name, policy) in named(&fields, "policies")? {
            counts.policies.insert(name, policy_counts(policy)?);
        }
        for (name, keys) in named(&fields, "refused")? {
            counts.refused.insert(name, refused_keys(keys)?);
        }
        for (outcome, histogram) in named(&fields, "calls")? {
            if let Some(outcome) = CallOutcome::from_word(&outcome) {
                *counts.calls.get_mut(outcome.index())? = read_histogram(histogram)?;
            }
        }
        read_words::<crate::policy::Cause>(&fields, "degraded", &mut counts.degraded)?;
        read_words::<crate::policy::Cause>(&fields, "unavailable", &mut counts.unavailable)?;
        read_words::<RowAccess>(&fields, "rows", &mut counts.rows)?;
        read_words::<super::Repeat>(&fields, "repeats", &mut counts.repeats)?;
        read_words::<super::PollOutcome>(&fields, "polls", &mut counts.polls)?;
        read_words::<super::NoticeOutcome>(&fields, "notices", &mut counts.notices)?;
        Some(Self {
            isolate: u64::from_str_radix(&fields.get("isolate")?.string()?, 16).ok()?,
            number: fields.get("number")?.integer()?,
            since: i64::try_from(fields.get("since")?.integer()?).ok()?,
            counts,
        })
    }
}

#[derive(Serialize)]
struct Written<'a> {
    isolate: String,
    number: u64,
    since: i64,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    policies: SortedMap<&'a str, WrittenPolicy>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    refused: SortedMap<&'a str, WrittenKeys>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    degraded: SortedMap<&'static str, u64>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    unavailable: SortedMap<&'static str, u64>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    calls: SortedMap<&'static str, WrittenHistogram<'a>>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    rows: SortedMap<&'static str, u64>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    repeats: SortedMap<&'static str, u64>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    polls: SortedMap<&'static str, u64>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    notices: SortedMap<&'static str, u64>,
}

#[derive(Serialize)]
struct WrittenPolicy {
    decisions: SortedMap<&'static str, u64>,
    shadow_refusals: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_refusals: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_decisions: Option<u64>,
}

#[derive(Serialize)]
struct WrittenKeys {
    keys: SortedMap<String, u64>,
    #[serde(skip_serializing_if = "SortedMap::is_empty")]
    prefixes: SortedMap<String, String>,
    lost: u64,
    total: u64,
}

#[derive(Serialize)]
struct WrittenHistogram<'a> {
    buckets: &'a [u64],
    sum_ms: u64,
}

impl WrittenPolicy {
    fn of(counts: &PolicyCounts) -> Self {
        let decisions = words::<super::Outcome>(&counts.decisions);
        let PolicyCounts { shadow_refusals, cached_refusals, leased_decisions, .. } = *counts;
        let if_any = |count| Some(count).filter(|&count| count > 0);
        let (cached_refusals, leased_decisions) = (if_any(cached_refusals), if_any(leased_decisions));
        Self { decisions, shadow_refusals, cached_refusals, leased_decisions }
    }
}

impl WrittenKeys {
    fn of(keys: &RefusedKeys) -> Self {
        let counts = keys.counts().iter().map(|&(key, count)| (hex(key), count));
        let prefixes = keys.counts().iter().filter_map(|&(key, _)| Some((hex(key), keys.prefix(key)?.to_owned())));
        Self { keys: counts.collect(), prefixes: prefixes.collect(), lost: keys.lost(), total: keys.total() }
    }
}

impl<'a> WrittenHistogram<'a> {
    fn of(histogram: &'a Histogram) -> Self {
        Self { buckets: histogram.buckets(), sum_ms: histogram.sum_ms() }
    }
}

/// The counts that are not 0, by word.
fn words<W: Word>(counts: &[u64]) -> SortedMap<&'static str, u64> {
    let all = W::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
    all.map(|(word, count)| (word.word(), *count)).collect()
}

/// The name of a key in reports and answers.
pub(super) fn hex(key: u128) -> String {
    format!("{key:032x}")
}

fn policy_counts(json: Json<'_>) -> Option<PolicyCounts> {
    let fields = fields(json)?;
    let mut counts = PolicyCounts::default();
    read_words::<super::Outcome>(&fields, "decisions", &mut counts.decisions)?;
    counts.shadow_refusals = fields.get("shadow_refusals")?.integer()?;
    counts.cached_refusals = fields.get("cached_refusals").map_or(Some(0), Json::integer)?;
    counts.leased_decisions = fields.get("leased_decisions").map_or(Some(0), Json::integer)?;
    Some(counts)
}

fn refused_keys(json: Json<'_>) -> Option<RefusedKeys> {
    let fields = fields(json)?;
    let counts = named(&fields, "keys")?.into_iter().map(|(key, count)| {
        let key = u128::from_str_radix(&key, 16).ok()?;
        Some((key, count.integer()?))
    });
    let (lost, total) = (fields.get("lost")?.integer()?, fields.get("total")?.integer()?);
    let mut keys = RefusedKeys::of(counts.collect::<Option<_>>()?, lost, total)?;
    for (key, prefix) in named(&fields, "prefixes")? {
        keys.set_prefix(u128::from_str_radix(&key, 16).ok()?, prefix.string()?.into_owned());
    }
    Some(keys)
}

fn read_histogram(json: Json<'_>) -> Option<Histogram> {
    let fields = fields(json)?;
    let buckets: Option<Vec<_>> = fields.get("buckets")?.array()?.into_iter().map(Json::integer).collect();
    Histogram::of(&buckets?, fields.get("sum_ms")?.integer()?)
}

/// Parses counts by word. Words of a later version are ignored.
fn read_words<W: Word>(fields: &Fields<'_>, name: &str, counts: &mut [u64]) -> Option<()> {
    for (word, count) in named(fields, name)? {
        if let Some(word) = W::from_word(&word) {
            add(counts, word, count.integer()?);
        }
    }
    Some(())
}

/// The members of an object, empty if it is absent.
fn named<'a>(fields: &Fields<'a>, name: &str) -> Option<Vec<(String, Json<'a>)>> {
    let Some(value) = fields.get(name) else { return Some(Vec::new()) };
    let fields = self::fields(value)?;
    Some(fields.iter().map(|(name, value)| (name.clone().into_owned(), value)).collect())
}

fn fields(json: Json<'_>) -> Option<Fields<'_>> {
    json.fields().ok()
}

#[cfg(test)]
mod tests {
    use super::super::{NoticeOutcome, Outcome, PollOutcome, Repeat};
    use super::*;
    use crate::policy::Cause;

    fn report() -> Report {
        let mut counts = Counts::default();
        counts.decided("api", Outcome::Allowed, false);
        counts.decided("api", Outcome::Refused, true);
        counts.refused("api", 255, || Some("al".to_owned()));
        counts.degraded(Cause::Timeout);
        counts.unavailable(Cause::Overloaded);
        counts.called(CallOutcome::Answered, 3);
        counts.called(CallOutcome::Failed(Cause::Timeout), 2_001);
        counts.stored(0, 4);
        counts.repeated(Repeat::PolicyOutdated);
        counts.polled(PollOutcome::Answered);
        counts.noticed(NoticeOutcome::Dropped);
        Report { isolate: 1, number: 2, since: 3, counts }
    }

    const TEXT: &str = concat!(
        r#"{"isolate":"0000000000000001","number":2,"since":3,"#,
        r#""policies":{"api":{"decisions":{"allowed":1,"refused":1},"shadow_refusals":1}},"#,
        r#""refused":{"api":{"keys":{"000000000000000000000000000000ff":1},"prefixes":{"000000000000000000000000000000ff":"al"},"lost":0,"total":1}},"#,
        r#""degraded":{"timeout":1},"unavailable":{"overloaded":1},"#,
        r#""calls":{"answered":{"buckets":[0,0,1,0,0,0,0,0,0,0,0,0,0],"sum_ms":3},"#,
        r#""timeout":{"buckets":[0,0,0,0,0,0,0,0,0,0,0,1,0],"sum_ms":2001}},"#,
        r#""rows":{"written":4},"repeats":{"policy_outdated":1},"polls":{"answered":1},"notices":{"dropped":1}}"#,
    );

    /// Neighbouring versions exchange it.
    #[test]
    fn the_format_is_unchanged() {
        assert_eq!(report().to_text(), TEXT);
        assert_eq!(Report::from_text(TEXT), Some(report()));
        let nothing = Report { isolate: u64::MAX, number: 1, since: 0, counts: Counts::default() };
        assert_eq!(Report::from_text(&nothing.to_text()), Some(nothing));
    }

    #[test]
    fn additions_of_a_later_version_are_ignored() {
        let later = TEXT
            .replacen(r#""allowed":1"#, r#""borrowed":9,"allowed":1"#, 1)
            .replacen(r#""answered":{"#, r#""unknown":7,"answered":{"#, 1)
            .replacen(r#""since":3"#, r#""since":3,"more":[]"#, 1);
        assert_eq!(Report::from_text(&later), Some(report()));
    }

    #[test]
    fn anything_else_is_rejected() {
        for (from, to) in [
            (r#""number":2,"#, ""),
            (r#""since":3"#, r#""since":-3"#),
            (r#""0000000000000001""#, r#""x""#),
            (r#""0000000000000001""#, "1"),
            (r#"{"allowed":1,"refused":1}"#, "[1,1]"),
            (r#""allowed":1"#, r#""allowed":1.5"#),
            (r#","shadow_refusals":1"#, ""),
            ("000000000000000000000000000000ff", "zz"),
            (r#""total":1"#, r#""total":0"#),
            ("[0,0,1,0,0,0,0,0,0,0,0,0,0]", "[0,0,1]"),
            (r#","sum_ms":3"#, ""),
            (r#"{"api":{"decisions""#, r#"{"api":7,"b":{"decisions""#),
        ] {
            let changed = TEXT.replacen(from, to, 1);
            assert_ne!(changed, TEXT, "{from}");
            assert_eq!(Report::from_text(&changed), None, "{changed}");
        }
        assert_eq!((Report::from_text(""), Report::from_text("[]")), (None, None));
    }
}
