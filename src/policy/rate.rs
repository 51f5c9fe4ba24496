//! A rate as written: `100`, `2.5`, `"100/1m"`, `"20/s burst 40"`, `"100/s burst 60s"`.

use crate::json::Json;
use crate::limit::MAX_TOKENS;

/// An exact rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// The tokens of one period: a fraction in lowest terms.
    pub(super) tokens: (u64, u64),
    /// The period, if the text has one.
    pub(super) period: Option<String>,
    /// The capacity, if the text has one.
    pub(super) burst: Option<Burst>,
}

/// The capacity in a rate's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Burst {
    /// A number of tokens.
    Tokens(u64),
    /// The refill in this length of time, not parsed yet.
    Time(String),
}

impl Default for Rate {
    fn default() -> Self {
        Self { tokens: (0, 1), period: None, burst: None }
    }
}

impl Rate {
    /// A number, or text such as `"100/1m"`, `"20/s burst 40"` and `"100/s burst 60s"`. `None` if it is neither.
    pub(super) fn of(value: Json<'_>) -> Option<Self> {
        let Some(text) = value.string() else { return Some(Self { tokens: tokens(value)?, ..Self::default() }) };
        let (rate, burst) = text.split_once("burst").map_or((&*text, None), |(rate, burst)| (rate, Some(burst)));
        let (tokens_text, period) = rate.split_once('/')?;
        let (period, tokens_text) = (period.trim(), tokens_text.trim());
        if period.is_empty() {
            return None;
        }
        // "20/s" is "20/1s".
        let one = if period.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "1" };
        Some(Self {
            tokens: tokens(Json::parse(tokens_text).ok()?)?,
            period: Some(format!("{one}{period}")),
            burst: match burst {
                Some(text) => Some(burst_of(text.trim())?),
                None => None,
            },
        })
    }

    /// The tokens of one period, rounded up.
    pub(super) const fn rounded_up(&self) -> u64 {
        self.tokens.0.div_ceil(self.tokens.1)
    }
}

fn tokens(value: Json<'_>) -> Option<(u64, u64)> {
    value.ratio().filter(|&(numerator, _)| numerator <= MAX_TOKENS)
}

/// Whole tokens, or text that starts with a digit and ends with a unit.
fn burst_of(text: &str) -> Option<Burst> {
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(char::is_alphabetic) {
        return Some(Burst::Time(text.to_owned()));
    }
    Json::parse(text).ok()?.integer().filter(|&tokens| tokens <= MAX_TOKENS).map(Burst::Tokens)
}
