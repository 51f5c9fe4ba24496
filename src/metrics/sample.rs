//! The setting for the share of decisions written to a data set.

use crate::json::Json;

/// The setting's name.
const SAMPLE: &str = "TOLLGATE_METRICS_SAMPLE";

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
        format!("{SAMPLE} must be a number from 0 to 1, such as 0.1, not {shown:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
