//! The share of requests written to a data set.

use crate::json::Json;

/// The setting's name.
pub const SAMPLE_SETTING: &str = "TOLLGATE_METRICS_SAMPLE";

/// The share, from 0 to 1; 1 if unset.
///
/// # Errors
/// What is wrong with it, on one line.
#[expect(clippy::cast_precision_loss, reason = "a share of so many digits is as good")]
pub fn sample(text: Option<&str>) -> Result<f64, String> {
    let Some(text) = text else { return Ok(1.0) };
    let ratio = Json::parse(text).ok().and_then(Json::ratio);
    let share = ratio.filter(|(part, whole)| part <= whole).map(|(part, whole)| part as f64 / whole as f64);
    share.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!("{SAMPLE_SETTING} must be a number from 0 to 1, such as 0.1, not {shown:?}")
    })
}

/// How many requests a data point stands for if each request is written with the probability `share`. `None` for a request that is not
/// written; `random` is from 0 to below 1.
#[must_use]
pub fn weight(share: f64, random: f64) -> Option<f64> {
    (random < share).then(|| share.recip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_count_all_requests() {
        for (share, random, expected) in [
            (1.0, 0.0, Some(1.0)),
            (1.0, 0.999_999, Some(1.0)),
            (0.25, 0.249, Some(4.0)),
            (0.25, 0.25, None),
            (0.0, 0.0, None),
        ] {
            assert_eq!(weight(share, random), expected, "{share} {random}");
        }
    }

    #[test]
    fn a_share_is_between_0_and_1() {
        for (text, share) in
            [(None, 1.0), (Some("0"), 0.0), (Some(" 0.25 "), 0.25), (Some("1.0"), 1.0), (Some("1e-3"), 0.001)]
        {
            assert!(sample(text).is_ok_and(|found| found.to_bits() == f64::to_bits(share)), "{text:?}");
        }
        for text in ["", "-0.1", "1.01", "10%", "NaN", "inf", "\"0.5\"", "[1]"] {
            let error = sample(Some(text)).unwrap_err();
            assert_eq!(
                error,
                format!("TOLLGATE_METRICS_SAMPLE must be a number from 0 to 1, such as 0.1, not {text:?}")
            );
        }
    }
}
