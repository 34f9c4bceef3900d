//! Numbers as text for people.

use gnnflow_data::format::count;

/// Values from here on are written as a product with a power of ten.
const LARGE: f64 = 1e6;
/// Values below are written as a product with a power of ten.
const SMALL: f64 = 1e-3;

/// Formats `value` with `digits` decimal places and with commas between thousands: `12,345.6`.
pub(super) fn decimal(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), count);
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{whole}{fraction}")
}

/// Formats a loss or a metric with four decimal places, and large ones with a power of ten: `0.8150`, `1.9451 × 10¹⁸`.
pub(super) fn score(value: f64) -> String {
    let exponent = if value.is_finite() { exponent(value.abs()).max(0) } else { 0 };
    if exponent == 0 {
        return decimal(value, 4);
    }
    format!("{} × {}", decimal(value / 10f64.powi(exponent), 4), power_of_ten(exponent))
}

/// Returns the power of ten to take out of values of the size `largest`, or 0 if they are readable as they are.
pub(super) fn exponent(largest: f64) -> i32 {
    if largest == 0.0 || (SMALL..LARGE).contains(&largest) { 0 } else { largest.log10().floor() as i32 }
}

/// Formats a power of ten: `10⁻⁵`.
pub(super) fn power_of_ten(exponent: i32) -> String {
    let raised =
        |digit: char| digit.to_digit(10).and_then(|digit| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit as usize)).unwrap_or('⁻');
    format!("10{}", exponent.to_string().chars().map(raised).collect::<String>())
}

/// Formats a count in at most four characters: `950`, `1.2k`, `12k`, `3.4M`.
pub(super) fn short_count(number: u64) -> String {
    let (mut value, mut units) = (number as f64, ["", "k", "M", "G", "T", "P"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    // 999.5 would be rounded to four digits.
    while value >= 999.5 {
        value /= 1000.0;
        unit = units.next().unwrap_or("E");
    }
    let digits = usize::from(!unit.is_empty() && value < 9.95);
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_has_commas_between_thousands_only() {
        assert_eq!(decimal(1_234_567.25, 1), "1,234,567.2");
        assert_eq!(decimal(-1234.0, 0), "-1,234");
        assert_eq!(decimal(0.123_456, 6), "0.123456");
        assert_eq!(decimal(f64::NAN, 2), "NaN");
    }

    #[test]
    fn powers_of_ten_are_raised() {
        assert_eq!([18, -5].map(power_of_ten), ["10¹⁸", "10⁻⁵"]);
        assert_eq!([0.0, 1e-4, 1e-3, 999_999.0, 3e6].map(exponent), [0, -4, 0, 0, 6]);
    }

    #[test]
    fn score_of_any_size_is_short() {
        let all = [0.0, 0.815, -2.0, 12_345.678_9, 1_945_121_659_089_995_520.0, 0.000_012_3];
        let texts = ["0.0000", "0.8150", "-2.0000", "12,345.6789", "1.9451 × 10¹⁸", "0.0000"];
        assert_eq!(all.map(score), texts);
        assert_eq!([f64::NAN, f64::INFINITY].map(score), ["NaN", "inf"]);
    }

    #[test]
    fn short_count_has_at_most_four_characters() {
        let all = [0, 999, 1000, 1249, 9949, 9950, 999_499, 999_500, 2_500_000_000];
        assert_eq!(all.map(short_count), ["0", "999", "1.0k", "1.2k", "9.9k", "10k", "999k", "1.0M", "2.5G"]);
        assert!((0..60).all(|bit| short_count(1 << bit).len() <= 4));
    }
}
