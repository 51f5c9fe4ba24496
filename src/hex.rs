//! Bytes as hexadecimal digits, two per byte.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

/// These bytes as lower-case digits.
pub(crate) fn hex_of(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0'); // a nibble is below 16
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses digits in either case; `None` for anything else.
pub(crate) fn bytes_of_hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let (pairs, []) = digits.as_chunks() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back_as_they_were_written() {
        let all: Vec<u8> = (0..=255).collect();
        let digits = hex_of(&all);
        assert_eq!((digits.len(), &digits[..6], &digits[506..]), (512, "000102", "fdfeff"));
        assert_eq!(bytes_of_hex(&digits), Some(all.clone()));
        assert_eq!(bytes_of_hex(&digits.to_uppercase()), Some(all));
        assert_eq!(bytes_of_hex(""), Some(Vec::new()));
        for wrong in ["0", "000", "0x", "+1", " 1", "g0", "\u{665}0"] {
            assert_eq!(bytes_of_hex(wrong), None, "{wrong}");
        }
    }
}
